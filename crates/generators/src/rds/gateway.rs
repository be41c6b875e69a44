//! Route configurations of gateways (gateways §12).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use envoy_types::pb::envoy::config::{
    core::v3::{HeaderValue, HeaderValueOption},
    route::v3::{Route, VirtualHost, virtual_host::TlsRequirementType},
};
use envoy_types::pb::google::protobuf::Any;
use model::{ConfigKey, Kind, NamespacedName, Service, fingerprint, host};
use pushctx::{
    ConsolidatedRule, GatewayServer, MergedGateway, ProxyClass, PushContext, ResolvedVirtualService,
};
use rayon::prelude::*;
use rustc_hash::FxHashMap;
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
/// Fewest VirtualServices that a thread looks at.
const SHARE: usize = 256;

/// The inputs of one route configuration of a gateway; its fingerprint is the cache key.
#[derive(Clone, Debug)]
pub(super) struct GatewayRouteInputs {
    name: String,
    /// Servers of the name, in merge order.
    servers: Vec<Arc<GatewayServer>>,
    /// VirtualServices by Gateway, in order.
    virtual_services: BTreeMap<NamespacedName, Vec<Routed>>,
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
                        .into_par_iter()
                        .with_min_len(SHARE)
                        .map(|vs| Routed::gather(context, class, vs))
                        .collect::<Vec<_>>()
                });
        }
        let mut client = ClientView::of(context, class);
        let mut all = virtual_services.values().flatten().map(|routed| &routed.vs);
        if !inputs::looks_at_labels(all.by_ref()) {
            client.labels.clear();
        }
        Some(Self {
            name: name.to_owned(),
            servers,
            virtual_services,
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
                let list = list.iter().map(|routed| routed.fingerprint);
                (gateway, list.collect::<Vec<_>>())
            })
            .collect();
        fingerprint::of(&(
            (name, servers, virtual_services),
            (client.fingerprint(), collapse, http3),
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
            .flat_map(|routed| routed.vs.sources.clone());
        gateways.chain(virtual_services).collect()
    }
}

/// A VirtualService, and what it sends requests to.
#[derive(Clone, Debug)]
struct Routed {
    vs: Arc<ResolvedVirtualService>,
    /// One for each of its [`destinations`].
    targets: Vec<Target>,
    /// Hash of both.
    fingerprint: u64,
}

/// A destination, as a VirtualService's namespace means it.
#[derive(Clone, Default, Debug)]
struct Target {
    service: Option<Arc<Service>>,
    /// Its rule, if that hashes requests.
    rule: Option<Arc<ConsolidatedRule>>,
}

impl Routed {
    fn new(vs: Arc<ResolvedVirtualService>, targets: Vec<Target>) -> Self {
        let meta = &vs.config.meta;
        let of_targets: Vec<_> = targets.iter().map(Target::fingerprint).collect();
        let parts = (&meta.namespace, &meta.name, vs.fingerprint, of_targets);
        Self {
            fingerprint: fingerprint::of(&parts),
            vs,
            targets,
        }
    }

    fn gather(context: &PushContext, class: &ProxyClass, vs: Arc<ResolvedVirtualService>) -> Self {
        let own = &vs.config.meta.namespace;
        let target = |host: &str| Target {
            service: context
                .services()
                .get(host, own)
                .filter(|service| context.is_visible(service, &class.proxy.namespace))
                .or_else(|| class.scope.service(host))
                .cloned(),
            rule: class
                .scope
                .outbound_rule(host, &class.labels)
                .filter(|rule| inputs::hashes(rule))
                .cloned(),
        };
        let targets = destinations(&vs).map(target).collect();
        Self::new(vs, targets)
    }

    /// Its destinations by host.
    fn by_host(&self) -> BTreeMap<&str, &Target> {
        destinations(&self.vs).zip(&self.targets).collect()
    }
}

impl Target {
    fn fingerprint(&self) -> (Option<u64>, Option<u64>) {
        // Named one by one, so that a new field cannot be forgotten.
        let Self { service, rule } = self;
        let service = service.as_ref().map(|service| service.fingerprint);
        (service, rule.as_ref().map(|rule| rule.fingerprint))
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

/// What gateways' configurations are made of.
#[derive(Debug)]
pub(super) struct GatewayParts {
    /// Hosts that VirtualServices have on servers.
    places: Cache<Arc<[Place]>>,
    /// Route lists of VirtualServices.
    routes: Cache<Arc<Routes>>,
    /// Encoded virtual hosts.
    hosts: Cache<Bytes>,
}

impl Default for GatewayParts {
    fn default() -> Self {
        Self {
            places: Cache::new(CACHED_PARTS),
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
        lists: HashMap::new(),
        count: 0,
        hosts: Vec::new(),
        by_host: FxHashMap::default(),
    };
    for server in &inputs.servers {
        assembly.add_server(server);
    }
    let hosts = assembly.finish();
    let hosts = hosts.into_par_iter().with_min_len(SHARE);
    let mut joined: Vec<Bytes> = vec![frame::head(&inputs.name).into()];
    joined.par_extend(hosts.map(|host| host.encode(parts)));
    joined.push(frame::tail().into());
    joined.into_iter().collect()
}

/// A host that a VirtualService has on a server.
#[derive(Debug)]
struct Place {
    /// The host, in lower case.
    host: Arc<str>,
    /// The name of its virtual host.
    name: Arc<str>,
}

impl Place {
    fn new(host: &str, port: u32) -> Self {
        let host = host.to_lowercase();
        Self {
            name: format!("{}:{port}", super::domains::bracketed(&host)).into(),
            host: host.into(),
        }
    }
}

/// The routes of one VirtualService.
#[derive(Debug)]
struct Routes {
    /// Hash of what they were made of.
    hash: u64,
    list: Vec<Route>,
}

/// What the routes of one VirtualService on one server are made of; its fingerprint is their key.
struct RoutesInputs<'a> {
    routed: &'a Routed,
    gateway: &'a NamespacedName,
    /// The port as its author wrote it.
    port: u32,
    is_tls: bool,
    client: (&'a ClientView, u64),
    http3: Option<u32>,
}

impl RoutesInputs<'_> {
    fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            routed,
            gateway,
            port,
            is_tls,
            client: (_, client),
            http3,
        } = self;
        fingerprint::of(&(routed.fingerprint, gateway, port, is_tls, client, http3))
    }

    fn build(&self) -> Vec<Route> {
        let client = self.client.0;
        let gateways = BTreeSet::from([self.gateway.to_string()]);
        let targets = self.routed.by_host();
        let service = |host: &str| targets.get(host).and_then(|target| target.service.clone());
        let rule = |host: &str| targets.get(host).and_then(|target| target.rule.clone());
        let mut routes = route::translate(
            &self.routed.vs,
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

/// A virtual host under construction.
#[derive(Default)]
struct Host {
    name: Arc<str>,
    domains: Vec<Arc<str>>,
    /// The route lists that it has, with numbers that identify them.
    routes: Vec<(usize, Arc<Routes>)>,
    needs_tls: bool,
    counts_attempts: bool,
    session: Option<Box<Any>>,
}

impl Host {
    fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            name,
            domains,
            routes,
            needs_tls,
            counts_attempts,
            session,
        } = self;
        let routes: Vec<u64> = routes.iter().map(|(_, routes)| routes.hash).collect();
        let session = session.as_ref().map(|any| (&any.type_url, &any.value));
        let flags = (needs_tls, counts_attempts);
        fingerprint::of(&(name, domains, routes, flags, session))
    }

    /// Encodes it as a field of a configuration.
    fn encode(self, parts: &GatewayParts) -> Bytes {
        parts.hosts.get_or_build(self.fingerprint(), || {
            let lists = self.routes.iter().flat_map(|(_, routes)| &routes.list);
            let mut vh = VirtualHost {
                name: self.name.to_string(),
                domains: self.domains.iter().map(ToString::to_string).collect(),
                routes: lists.cloned().collect(),
                include_request_attempt_count: self.counts_attempts,
                ..VirtualHost::default()
            };
            vh.routes.sort_by_key(route::is_catch_all);
            if self.needs_tls {
                vh.require_tls = TlsRequirementType::All.into();
            }
            if let Some(config) = self.session {
                let filter = route::SESSION_FILTER.to_owned();
                vh.typed_per_filter_config.insert(filter, *config);
            }
            let mut bytes = Vec::new();
            frame::host(&vh, &mut bytes);
            frame::canonicalize(&mut bytes);
            bytes.into()
        })
    }
}

/// The route lists of one Gateway's VirtualServices, in their order, with numbers that identify them.
type Lists = Vec<Option<(usize, Arc<Routes>)>>;

struct Assembly<'a> {
    inputs: &'a GatewayRouteInputs,
    /// Hash of the inputs' client.
    client: u64,
    parts: &'a GatewayParts,
    /// What the servers so far have by Gateway: a list belongs to the first server that has its host.
    lists: HashMap<&'a NamespacedName, Lists>,
    /// How many there are.
    count: usize,
    hosts: Vec<Host>,
    by_host: FxHashMap<Arc<str>, usize>,
}

impl<'a> Assembly<'a> {
    fn add_server(&mut self, server: &'a GatewayServer) {
        let written = server.server.port.as_ref().map_or(0, |p| p.number);
        let hosts = &server.server.hosts;
        let tls = server.server.tls.as_ref();
        let redirects = tls.is_some_and(|tls| tls.https_redirect);
        let routed = self.inputs.virtual_services.get(&server.gateway);
        let routed = routed.map_or(&[][..], Vec::as_slice);
        let mut lists = self.lists.remove(&server.gateway).unwrap_or_default();
        lists.resize(routed.len(), None);
        let index = LazyLock::new(|| HostIndex::of(hosts));
        let on_server = fingerprint::of(&(hosts, written));
        let found: Vec<_> = routed
            .par_iter()
            .zip(&lists)
            .with_min_len(SHARE)
            .map(|(routed, list)| {
                let key = fingerprint::of(&(on_server, routed.fingerprint));
                let places = self.parts.places.get_or_build(key, || {
                    let hosts = index.intersection(&routed.vs);
                    hosts.iter().map(|host| Place::new(host, written)).collect()
                });
                let routes = match list {
                    Some((_, routes)) => routes.clone(),
                    None if places.is_empty() => return None,
                    None => self.translate(routed, server, written),
                };
                (!routes.list.is_empty()).then_some((places, routes))
            })
            .collect();
        for (at, found) in found.into_iter().enumerate() {
            let Some((places, routes)) = found else {
                continue;
            };
            let list = lists[at].get_or_insert_with(|| {
                self.count += 1;
                (self.count, routes)
            });
            for place in &*places {
                let host = self.host(place, Some(&routed[at]));
                host.routes.push(list.clone());
                host.needs_tls |= redirects;
            }
        }
        self.lists.insert(&server.gateway, lists);
        if redirects {
            for host in hosts {
                let place = Place::new(host, written);
                self.host(&place, None).needs_tls = true;
            }
        }
    }

    fn translate(&self, routed: &Routed, server: &GatewayServer, port: u32) -> Arc<Routes> {
        let inputs = RoutesInputs {
            routed,
            gateway: &server.gateway,
            port,
            is_tls: server.server.tls.is_some(),
            client: (&self.inputs.client, self.client),
            http3: self.inputs.http3,
        };
        let hash = inputs.fingerprint();
        self.parts.routes.get_or_build(hash, || {
            let list = inputs.build();
            Arc::new(Routes { hash, list })
        })
    }

    /// The virtual host of a host; a new one is for the VirtualService that is the first to have it.
    fn host(&mut self, place: &Place, first: Option<&Routed>) -> &mut Host {
        let at = if let Some(at) = self.by_host.get(&place.host) {
            *at
        } else {
            self.hosts.push(Host {
                name: place.name.clone(),
                domains: vec![place.host.clone()],
                counts_attempts: self.inputs.client.attempt_count,
                session: first.and_then(|routed| self.session(routed, &place.host)),
                ..Host::default()
            });
            let at = self.hosts.len() - 1;
            self.by_host.insert(place.host.clone(), at);
            at
        };
        &mut self.hosts[at]
    }

    /// How requests stick to endpoints, where a VirtualService leads to the service of the host itself.
    fn session(&self, routed: &Routed, host: &str) -> Option<Box<Any>> {
        let labels = self.inputs.client.session.as_ref()?;
        let targets = routed.by_host();
        let service = targets.get(host)?.service.as_ref()?;
        route::session_of_service(service, labels).map(Box::new)
    }

    /// Collapses and sorts what was gathered (gateways §12.5).
    fn finish(mut self) -> Vec<Host> {
        if self.hosts.is_empty() {
            let first = self.inputs.servers.first();
            let written = first
                .and_then(|s| s.server.port.as_ref())
                .map_or(0, |p| p.number);
            return vec![Host {
                name: format!("blackhole:{written}").into(),
                domains: vec!["*".into()],
                ..Host::default()
            }];
        }
        if self.inputs.collapse {
            self.hosts = collapse(self.hosts);
        }
        self.hosts.par_sort_by(|a, b| a.name.cmp(&b.name));
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

/// Folds virtual hosts with the same routes into the most specific of them. Of those with the same routes
/// that ask differently for TLS, just the last one takes others in, as Istio has it.
fn collapse(mut hosts: Vec<Host>) -> Vec<Host> {
    hosts.par_sort_by(|a, b| host::more_specific(&a.domains[0], &b.domains[0]));
    let mut kept: Vec<Host> = Vec::with_capacity(hosts.len());
    let mut last: FxHashMap<Vec<usize>, usize> = FxHashMap::default();
    for host in hosts {
        let lists: Vec<usize> = host.routes.iter().map(|(number, _)| *number).collect();
        match last.get(&lists) {
            Some(at) if kept[*at].needs_tls == host.needs_tls => {
                kept[*at].domains.extend(host.domains);
            }
            _ => {
                last.insert(lists, kept.len());
                kept.push(host);
            }
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
            fingerprint: !list[0].vs.fingerprint,
            ..ResolvedVirtualService::clone(&list[0].vs)
        };
        let target = list[0].targets[0].clone();
        assert!(target.service.is_some() && target.rule.is_some());
        check_fields!(
            || target.clone(),
            |target: &Target| Routed::new(list[0].vs.clone(), vec![target.clone()]).fingerprint,
            Target {
                service: None,
                rule: None,
            }
        );
        let other = Routed::new(Arc::new(other), list[0].targets.clone());
        let elsewhere = NamespacedName::new("b", "other");
        check_fields!(
            || RoutesInputs {
                routed: &list[0],
                gateway,
                port: 80,
                is_tls: false,
                client: (&all.client, 1),
                http3: Some(443),
            },
            RoutesInputs::fingerprint,
            RoutesInputs {
                routed: &other,
                gateway: &elsewhere,
                port,
                is_tls,
                client: (&all.client, 2),
                http3,
            }
        );
        check_fields!(
            || Host {
                name: "a".into(),
                domains: vec!["a".into()],
                ..Host::default()
            },
            Host::fingerprint,
            Host {
                name: "b".into(),
                domains: vec!["b".into()],
                routes: vec![(
                    0,
                    Arc::new(Routes {
                        hash: 1,
                        list: Vec::new()
                    })
                )],
                needs_tls,
                counts_attempts,
                session: Some(Box::default()),
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
