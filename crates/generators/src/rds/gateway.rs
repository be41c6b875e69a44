//! Route configurations of gateways (gateways §12).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use envoy_types::pb::envoy::config::{
    core::v3::{HeaderValue, HeaderValueOption},
    route::v3::{Route, VirtualHost, virtual_host::TlsRequirementType},
};
use model::{ConfigKey, Kind, NamespacedName, Service, fingerprint, host};
use prost::Message as _;
use pushctx::{
    ConsolidatedRule, GatewayServer, MergedGateway, ProxyClass, PushContext, ResolvedVirtualService,
};
use rayon::prelude::*;
use xds::Body;

use super::{
    frame,
    inputs::{self, ClientView},
};
use crate::{
    cache::Cache,
    route::{self, RouteContext},
};

/// Route lists, and virtual hosts, that are kept: a gateway of many hosts has one of each for a host.
const CACHED_PARTS: usize = 40_000;

/// The inputs of one route configuration of a gateway; its fingerprint is the cache key.
#[derive(Clone, Debug)]
pub(super) struct GatewayRouteInputs {
    name: String,
    /// Servers of the name, in merge order.
    servers: Vec<Arc<GatewayServer>>,
    /// VirtualServices by Gateway, in order.
    virtual_services: BTreeMap<NamespacedName, Vec<Arc<ResolvedVirtualService>>>,
    /// Services by destination host, as each VirtualService's namespace means it.
    services: BTreeMap<(Arc<str>, String), Arc<Service>>,
    /// Rules of destinations that hash requests, by host.
    rules: BTreeMap<String, Arc<ConsolidatedRule>>,
    client: ClientView,
    /// The port on which the same is offered by HTTP/3, as its author wrote it.
    http3: Option<u32>,
    /// Virtual hosts with equal routes become one.
    collapse: bool,
}

impl GatewayRouteInputs {
    /// Gathers the inputs of `name`; `None` when no server has it.
    pub(super) fn gather(
        context: &PushContext,
        class: &ProxyClass,
        gateway: &MergedGateway,
        name: &str,
    ) -> Option<Self> {
        let servers = gateway.routes.get(name)?.clone();
        let namespace = &class.proxy.namespace;
        let mut virtual_services = BTreeMap::new();
        for server in &servers {
            virtual_services
                .entry(server.gateway.clone())
                .or_insert_with(|| {
                    context
                        .virtual_services()
                        .for_gateway(namespace, &server.gateway.to_string())
                });
        }
        let mut services = BTreeMap::new();
        let mut rules = BTreeMap::new();
        let mut client = ClientView::of(context, class);
        let all: Vec<_> = virtual_services.values().flatten().collect();
        for vs in &all {
            let own = &vs.config.meta.namespace;
            for host in destinations(vs) {
                let found = context
                    .services()
                    .get(host, own)
                    .filter(|service| context.is_visible(service, namespace))
                    .or_else(|| class.scope.service(host));
                if let Some(service) = found {
                    services.insert((own.clone(), host.to_owned()), service.clone());
                }
                if let Some(rule) = class.scope.outbound_rule(host, &class.labels)
                    && inputs::hashes(rule)
                {
                    rules.insert(host.to_owned(), rule.clone());
                }
            }
        }
        if !inputs::looks_at_labels(all.iter().copied()) {
            client.labels.clear();
        }
        Some(Self {
            name: name.to_owned(),
            servers,
            virtual_services,
            services,
            rules,
            client,
            http3: http3_port(gateway, name),
            collapse: context.features().route_collapse,
        })
    }

    /// Hash of all inputs.
    pub(super) fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            name,
            servers,
            virtual_services,
            services,
            rules,
            client,
            http3,
            collapse,
        } = self;
        let servers: Vec<_> = servers
            .iter()
            .map(|of_port| {
                let GatewayServer {
                    server,
                    gateway,
                    annotations,
                    port,
                    route_name,
                    sni_hosts,
                } = &**of_port;
                let server = fingerprint::of_json(server);
                (server, gateway, annotations, port, route_name, sni_hosts)
            })
            .collect();
        let virtual_services: Vec<_> = virtual_services
            .iter()
            .map(|(gateway, list)| {
                let of = |vs: &Arc<ResolvedVirtualService>| {
                    let meta = &vs.config.meta;
                    (meta.namespace.clone(), meta.name.clone(), vs.fingerprint)
                };
                (gateway, list.iter().map(of).collect::<Vec<_>>())
            })
            .collect();
        let services: Vec<_> = services.iter().map(|(k, s)| (k, s.fingerprint)).collect();
        let rules: Vec<_> = rules.iter().map(|(h, r)| (h, r.fingerprint)).collect();
        fingerprint::of(&(
            (name, servers, virtual_services),
            (services, rules, client.fingerprint(), collapse),
            http3,
        ))
    }

    /// The objects that the configuration is built from.
    pub(super) fn provenance(&self) -> BTreeSet<ConfigKey> {
        let gateways = self.virtual_services.keys().map(|gateway| {
            ConfigKey::new(
                Kind::Gateway,
                gateway.namespace.clone(),
                gateway.name.clone(),
            )
        });
        let virtual_services = self
            .virtual_services
            .values()
            .flatten()
            .flat_map(|vs| vs.sources.clone());
        gateways.chain(virtual_services).collect()
    }
}

/// Finds the port of the servers of a route configuration's name that are offered by HTTP/3.
fn http3_port(gateway: &MergedGateway, name: &str) -> Option<u32> {
    let mut servers = gateway
        .quic
        .iter()
        .flat_map(|(_, servers)| &servers.servers);
    let server = servers.find(|server| server.route_name == name)?;
    server.server.port.as_ref().map(|port| port.number)
}

/// Hosts that a VirtualService's HTTP rules send requests to.
fn destinations(vs: &ResolvedVirtualService) -> impl Iterator<Item = &str> {
    vs.config.spec.http.iter().flat_map(|rule| {
        let routes = rule.route.iter().filter_map(|r| r.destination.as_ref());
        let mirrors = rule.mirrors.iter().filter_map(|m| m.destination.as_ref());
        routes
            .chain(&rule.mirror)
            .chain(mirrors)
            .map(|d| d.host.as_str())
    })
}

/// What gateways' configurations are made of: route lists of VirtualServices, and virtual hosts.
#[derive(Debug)]
pub(super) struct GatewayParts {
    routes: Cache<Arc<Routes>>,
    hosts: Cache<Bytes>,
}

impl Default for GatewayParts {
    fn default() -> Self {
        Self {
            routes: Cache::new(CACHED_PARTS),
            hosts: Cache::new(CACHED_PARTS),
        }
    }
}

impl GatewayParts {
    /// How many route lists and virtual hosts were built so far.
    #[cfg(test)]
    pub(super) fn built(&self) -> (u64, u64) {
        (self.routes.stats().misses, self.hosts.stats().misses)
    }
}

/// Builds a gateway's route configuration. What a change does not reach is joined as it is.
pub(super) fn build(inputs: &GatewayRouteInputs, parts: &GatewayParts) -> Body {
    let mut assembly = Assembly {
        inputs,
        client: inputs.client.fingerprint(),
        parts,
        hosts: Vec::new(),
        by_name: HashMap::new(),
    };
    let mut built = HashMap::new();
    for server in &inputs.servers {
        assembly.add_server(server, &mut built);
    }
    let hosts = assembly.finish();
    let hosts = hosts.into_par_iter().map(|host| host.encode(parts));
    let mut joined: Vec<Bytes> = vec![frame::head(&inputs.name).into()];
    joined.par_extend(hosts);
    joined.push(frame::tail().into());
    joined.into_iter().collect()
}

/// Identifies the routes of one VirtualService on one Gateway.
type RoutesKey = (NamespacedName, NamespacedName);

/// The routes of one VirtualService.
#[derive(Debug)]
struct Routes {
    /// Hash of what they were made of.
    hash: u64,
    list: Vec<Route>,
}

/// What the routes of one VirtualService on one server are made of; its fingerprint is their key.
struct RoutesInputs<'a> {
    vs: &'a ResolvedVirtualService,
    gateway: &'a NamespacedName,
    /// The port as its author wrote it.
    port: u32,
    is_tls: bool,
    services: BTreeMap<&'a str, &'a Arc<Service>>,
    rules: BTreeMap<&'a str, &'a Arc<ConsolidatedRule>>,
    client: (&'a ClientView, u64),
    http3: Option<u32>,
}

impl RoutesInputs<'_> {
    fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            vs,
            gateway,
            port,
            is_tls,
            services,
            rules,
            client: (_, client),
            http3,
        } = self;
        let meta = &vs.config.meta;
        let services: Vec<_> = services.iter().map(|(h, s)| (h, s.fingerprint)).collect();
        let rules: Vec<_> = rules.iter().map(|(h, r)| (h, r.fingerprint)).collect();
        fingerprint::of(&(
            (&meta.namespace, &meta.name, vs.fingerprint),
            (gateway, port, is_tls),
            (services, rules, client, http3),
        ))
    }

    fn build(&self) -> Vec<Route> {
        let client = self.client.0;
        let gateways = BTreeSet::from([self.gateway.to_string()]);
        let service = |host: &str| self.services.get(host).copied().cloned();
        let rule = |host: &str| self.rules.get(host).copied().cloned();
        let mut routes = route::translate(
            self.vs,
            &RouteContext {
                listener_port: u16::try_from(self.port).unwrap_or_default(),
                gateways: &gateways,
                labels: &client.labels,
                namespace: &client.namespace,
                service: &service,
                rule: &rule,
                mesh_retry: client.retries.as_ref(),
                forwarded_host: client.forwarded_host,
                tls_server: self.is_tls,
                plain_shadow_host: client.plain_shadow_host,
                session: client.session.as_ref(),
                handles: None,
            },
        );
        if let Some(port) = self.http3 {
            for route in &mut routes {
                route.response_headers_to_add.push(alternative(port));
            }
        }
        routes
    }
}

/// A virtual host under construction: which route lists it has, by identity.
struct Host {
    /// Without routes; in a box, as there may be thousands, which are moved and sorted.
    vh: Box<VirtualHost>,
    keys: Vec<RoutesKey>,
    routes: Vec<Arc<Routes>>,
}

impl Host {
    /// Encodes it as a field of a configuration.
    fn encode(self, parts: &GatewayParts) -> Bytes {
        let Self { mut vh, routes, .. } = self;
        // Its one map has one entry at most: equal ones have equal bytes.
        let hashes: Vec<u64> = routes.iter().map(|routes| routes.hash).collect();
        let hash = fingerprint::of(&(vh.encode_to_vec(), hashes));
        parts.hosts.get_or_build(hash, || {
            let lists = routes.iter().flat_map(|routes| &routes.list);
            vh.routes = lists.cloned().collect();
            vh.routes.sort_by_key(route::is_catch_all);
            let mut bytes = Vec::new();
            frame::host(&vh, &mut bytes);
            frame::canonicalize(&mut bytes);
            bytes.into()
        })
    }
}

struct Assembly<'a> {
    inputs: &'a GatewayRouteInputs,
    /// Hash of the inputs' client.
    client: u64,
    parts: &'a GatewayParts,
    hosts: Vec<Host>,
    by_name: HashMap<String, usize>,
}

impl Assembly<'_> {
    fn add_server(&mut self, server: &GatewayServer, built: &mut HashMap<RoutesKey, Arc<Routes>>) {
        let written = server.server.port.as_ref().map_or(0, |p| p.number);
        let redirects = server
            .server
            .tls
            .as_ref()
            .is_some_and(|tls| tls.https_redirect);
        let none = Vec::new();
        let index = HostIndex::of(&server.server.hosts);
        for vs in self
            .inputs
            .virtual_services
            .get(&server.gateway)
            .unwrap_or(&none)
        {
            let hosts = index.intersection(vs);
            if hosts.is_empty() {
                continue;
            }
            let key = (server.gateway.clone(), vs.config.meta.namespaced_name());
            let routes = if let Some(routes) = built.get(&key) {
                routes.clone()
            } else {
                let routes = self.translate(vs, server, written);
                if routes.list.is_empty() {
                    continue;
                }
                built.insert(key.clone(), routes.clone());
                routes
            };
            for host in hosts {
                self.add_host(&host.to_lowercase(), written, vs, &key, &routes, redirects);
            }
        }
        if redirects {
            for host in &server.server.hosts {
                self.redirect(&host.to_lowercase(), written);
            }
        }
    }

    fn translate(
        &self,
        vs: &ResolvedVirtualService,
        server: &GatewayServer,
        port: u32,
    ) -> Arc<Routes> {
        let all = self.inputs;
        let own = &vs.config.meta.namespace;
        let (mut services, mut rules) = (BTreeMap::new(), BTreeMap::new());
        for host in destinations(vs) {
            let service = all.services.get(&(own.clone(), host.to_owned()));
            services.extend(service.map(|service| (host, service)));
            rules.extend(all.rules.get(host).map(|rule| (host, rule)));
        }
        let inputs = RoutesInputs {
            vs,
            gateway: &server.gateway,
            port,
            is_tls: server.server.tls.is_some(),
            services,
            rules,
            client: (&all.client, self.client),
            http3: all.http3,
        };
        let hash = inputs.fingerprint();
        self.parts.routes.get_or_build(hash, || {
            let list = inputs.build();
            Arc::new(Routes { hash, list })
        })
    }

    fn add_host(
        &mut self,
        name: &str,
        port: u32,
        vs: &ResolvedVirtualService,
        key: &RoutesKey,
        routes: &Arc<Routes>,
        redirects: bool,
    ) {
        let host = if let Some(at) = self.by_name.get(name) {
            &mut self.hosts[*at]
        } else {
            let mut host = self.start(name, port);
            let own = (vs.config.meta.namespace.clone(), name.to_owned());
            if let Some(labels) = &self.inputs.client.session
                && destinations(vs).any(|host| host == name)
                && let Some(service) = self.inputs.services.get(&own)
                && let Some(config) = route::session_of_service(service, labels)
            {
                let filter = route::SESSION_FILTER.to_owned();
                host.vh.typed_per_filter_config.insert(filter, config);
            }
            self.push(name, host)
        };
        host.routes.push(routes.clone());
        host.keys.push(key.clone());
        if redirects {
            host.vh.require_tls = TlsRequirementType::All.into();
        }
    }

    fn redirect(&mut self, name: &str, port: u32) {
        let host = if let Some(at) = self.by_name.get(name) {
            &mut self.hosts[*at]
        } else {
            let host = self.start(name, port);
            self.push(name, host)
        };
        host.vh.require_tls = TlsRequirementType::All.into();
    }

    fn start(&self, name: &str, port: u32) -> Host {
        let vh = Box::new(VirtualHost {
            name: format!("{}:{port}", super::domains::bracketed(name)),
            domains: vec![name.to_owned()],
            include_request_attempt_count: self.inputs.client.attempt_count,
            ..VirtualHost::default()
        });
        Host {
            vh,
            keys: Vec::new(),
            routes: Vec::new(),
        }
    }

    fn push(&mut self, name: &str, host: Host) -> &mut Host {
        let at = self.hosts.len();
        self.by_name.insert(name.to_owned(), at);
        self.hosts.push(host);
        &mut self.hosts[at]
    }

    /// Collapses and sorts what was gathered (gateways §12.5).
    fn finish(mut self) -> Vec<Host> {
        if self.hosts.is_empty() {
            let first = self.inputs.servers.first();
            let written = first
                .and_then(|s| s.server.port.as_ref())
                .map_or(0, |p| p.number);
            return vec![Host {
                vh: Box::new(VirtualHost {
                    name: format!("blackhole:{written}"),
                    domains: vec!["*".to_owned()],
                    ..VirtualHost::default()
                }),
                keys: Vec::new(),
                routes: Vec::new(),
            }];
        }
        if self.inputs.collapse {
            self.hosts = collapse(self.hosts);
        }
        self.hosts.sort_by(|a, b| a.vh.name.cmp(&b.vh.name));
        self.hosts
    }
}

/// Tells clients that HTTP/3 is spoken on a port (gateways §16).
fn alternative(port: u32) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: "alt-svc".to_owned(),
            value: format!("h3=\":{port}\"; ma=86400"),
            ..HeaderValue::default()
        }),
        ..HeaderValueOption::default()
    }
}

/// The hosts of a server, found by name: there may be thousands, and as many VirtualServices.
struct HostIndex<'a> {
    /// In order, each with the namespace whose VirtualServices it is for; without one it is for all.
    hosts: Vec<(Option<&'a str>, &'a str)>,
    /// Places of those that are no patterns.
    exact: HashMap<&'a str, Vec<usize>>,
    /// Places of patterns.
    patterns: Vec<usize>,
}

impl<'a> HostIndex<'a> {
    fn of(hosts: &'a [String]) -> Self {
        let mut index = Self {
            hosts: Vec::with_capacity(hosts.len()),
            exact: HashMap::new(),
            patterns: Vec::new(),
        };
        for (place, host) in hosts.iter().enumerate() {
            let (namespace, host) = match host.split_once('/') {
                None => (None, host.as_str()),
                Some((namespace, host)) => (Some(namespace), host),
            };
            index.hosts.push((namespace, host));
            if host::is_wildcard(host) {
                index.patterns.push(place);
            } else {
                index.exact.entry(host).or_default().push(place);
            }
        }
        index
    }

    /// Hosts that both the server and a VirtualService have: the narrower of each pair that overlaps.
    fn intersection(&self, vs: &ResolvedVirtualService) -> Vec<String> {
        let wanted = &vs.config.spec.hosts;
        let mut places: Vec<usize> = if wanted.iter().any(|host| host::is_wildcard(host)) {
            (0..self.hosts.len()).collect()
        } else {
            // A name overlaps with itself and with patterns.
            let exact = wanted
                .iter()
                .filter_map(|host| self.exact.get(host.as_str()));
            exact.flatten().chain(&self.patterns).copied().collect()
        };
        places.sort_unstable();
        places.dedup();
        let mut found: Vec<String> = Vec::new();
        for place in places {
            let (namespace, host) = self.hosts[place];
            if namespace.is_some_and(|namespace| *namespace != *vs.config.meta.namespace) {
                continue;
            }
            for wanted in wanted {
                let both = if host::subset_of(host, wanted) {
                    host
                } else if host::subset_of(wanted, host) {
                    wanted
                } else {
                    continue;
                };
                if !found.iter().any(|f| f == both) {
                    found.push(both.to_owned());
                }
            }
        }
        found
    }
}

/// Folds virtual hosts with the same routes into the most specific of them.
fn collapse(mut hosts: Vec<Host>) -> Vec<Host> {
    hosts.sort_by(|a, b| host::more_specific(&a.vh.domains[0], &b.vh.domains[0]));
    let mut kept: Vec<Host> = Vec::with_capacity(hosts.len());
    let mut by_routes: HashMap<(Vec<RoutesKey>, i32), usize> = HashMap::new();
    for host in hosts {
        let key = (host.keys.clone(), host.vh.require_tls);
        if let Some(at) = by_routes.get(&key) {
            kept[*at].vh.domains.extend(host.vh.domains);
        } else {
            by_routes.insert(key, kept.len());
            kept.push(host);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use intake::{Change, Decoder, Intake, Options};
    use model::{Node, Proxy};

    use super::*;
    use crate::testing::flips::{Flip, check_fields};

    const OBJECTS: &str = "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: a, annotations: {note: x}}
spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v, namespace: a}
spec: {hosts: [one.example], gateways: [g], http: [{route: [{destination: {host: one.example}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: d, namespace: a}
spec: {host: one.example, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x}}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s, namespace: a}
spec: {hosts: [one.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}
";

    impl Flip for Arc<GatewayServer> {
        fn flip(&mut self) {
            Self::make_mut(self).port.flip();
        }
    }

    #[test]
    fn every_field_of_the_inputs_counts() {
        let decoded = Decoder {
            admitted: true,
            ..Decoder::default()
        }
        .decode("gateway", OBJECTS);
        let mut intake = Intake::new(Options::default());
        #[expect(clippy::disallowed_methods, reason = "requests say when they started")]
        intake.apply(
            decoded.objects.into_iter().map(Change::Apply),
            Instant::now(),
        );
        let context = PushContext::build(intake.state());
        let node = Node {
            id: "router~10.0.0.9~p.a~a.svc.cluster.local".to_owned(),
            ..Node::default()
        };
        let class = context.resolve(&context.classify(&Proxy::parse(&node).unwrap()));
        let merged = class.gateway.as_deref().unwrap();
        let name = merged.routes.keys().next().unwrap();
        let sample = || {
            let mut inputs = GatewayRouteInputs::gather(&context, &class, merged, name).unwrap();
            inputs.http3.get_or_insert(443);
            inputs
        };
        check_fields!(
            sample,
            GatewayRouteInputs::fingerprint,
            GatewayRouteInputs {
                name,
                servers,
                virtual_services,
                services,
                rules,
                client: ClientView {
                    domain: "other".to_owned(),
                    ..sample().client
                },
                http3,
                collapse,
            }
        );
        let all = sample();
        let (gateway, list) = all.virtual_services.first_key_value().unwrap();
        let other = ResolvedVirtualService {
            fingerprint: !list[0].fingerprint,
            ..ResolvedVirtualService::clone(&list[0])
        };
        let elsewhere = NamespacedName::new("b", "other");
        check_fields!(
            || RoutesInputs {
                vs: &list[0],
                gateway,
                port: 80,
                is_tls: false,
                services: all
                    .services
                    .iter()
                    .map(|((_, h), s)| (h.as_str(), s))
                    .collect(),
                rules: all.rules.iter().map(|(h, r)| (h.as_str(), r)).collect(),
                client: (&all.client, 1),
                http3: Some(443),
            },
            RoutesInputs::fingerprint,
            RoutesInputs {
                vs: &other,
                gateway: &elsewhere,
                port,
                is_tls,
                services,
                rules,
                client: (&all.client, 2),
                http3,
            }
        );
        let of_server = |server: &GatewayServer| {
            GatewayRouteInputs {
                servers: vec![Arc::new(server.clone())],
                ..sample()
            }
            .fingerprint()
        };
        check_fields!(
            || GatewayServer {
                sni_hosts: vec!["h".to_owned()],
                ..GatewayServer::clone(&sample().servers[0])
            },
            of_server,
            GatewayServer {
                server: model::api::gateway::Server::default(),
                gateway: NamespacedName::new("b", "other"),
                annotations: Arc::default(),
                port,
                route_name,
                sni_hosts,
            }
        );
    }
}

#[cfg(test)]
mod changes;
