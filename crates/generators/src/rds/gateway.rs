//! Route configurations of gateways (gateways §12).

mod assembly;
mod host;
mod index;
mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{ConfigKey, Kind, NamespacedName, Service, fingerprint};
use pushctx::{
    ConsolidatedRule, GatewayServer, MergedGateway, ProxyClass, PushContext, ResolvedVirtualService,
};
use rayon::prelude::*;

pub(super) use self::assembly::{GatewayParts, build};
use super::inputs::{self, ClientView};

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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use intake::{Change, Decoder, Intake, Options};
    use model::{Node, Proxy};

    use super::{
        host::Host,
        routes::{Routes, RoutesInputs},
        *,
    };
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
