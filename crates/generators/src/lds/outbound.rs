//! Listeners of outbound traffic, one for each bind and port (listeners §3).

mod build;
mod conflict;
mod destination;
mod l4_routes;
mod plan;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use model::{
    ConfigKey, Endpoint, Port, Protocol, Resolution, Service, api,
    proxy::{InterceptionMode, IpMode},
    service::{Registry, UNSPECIFIED_ADDRESS},
};
use pushctx::EgressListener;

use self::{
    conflict::{Arrival, PortClass},
    l4_routes::ServicePort,
};
use super::{
    address::{self, WantedPort},
    by_host::ByHost,
    context::Context,
};

pub(crate) use build::{build, catch_all, config_metadata, exact_balance};
pub(crate) use destination::{
    PortRef, UNKNOWN_SERVICE, is_dynamic_wildcard, routed, to_server_name, with_rule,
};
pub(crate) use plan::{
    ChainContent, ChainMatch, ChainPlan, HttpPlan, ListenerPlan, TcpDestination, TcpPlan,
};

/// Plans the outbound listeners of a class, by name.
///
/// Egress listeners and, within them, services are visited in the order of the scope, which decides
/// conflicts: the first one wins.
pub(crate) fn plan(ctx: &Context<'_>) -> Vec<ListenerPlan> {
    let mut walk = Walk {
        ctx,
        listeners: BTreeMap::new(),
    };
    for egress in &ctx.scope().egress {
        walk.egress(egress);
    }
    let mut plans: Vec<ListenerPlan> = walk
        .listeners
        .into_values()
        .map(|entry| entry.plan)
        .filter(|plan| !plan.chains.is_empty())
        .collect();
    plans.sort_by_cached_key(ListenerPlan::name);
    plans
}

/// A listener under construction.
struct Entry {
    plan: ListenerPlan,
    /// A catch-all egress listener must not add to it: its port is listed explicitly.
    locked: bool,
}

struct Walk<'a> {
    ctx: &'a Context<'a>,
    listeners: BTreeMap<(Arc<str>, u16), Entry>,
}

/// Where the listeners of one egress listener bind.
struct Bind {
    /// Explicit addresses; empty when the services decide.
    addresses: Vec<Arc<str>>,
    bound: bool,
}

impl Bind {
    fn first(&self) -> &str {
        self.addresses.first().map_or("", |a| a)
    }
}

/// A service port with what the egress listener says of it.
struct Target<'a> {
    rules: &'a ByHost<'a>,
    service: &'a Arc<Service>,
    port: PortRef<'a>,
    binds: &'a [Arc<str>],
    bound: bool,
    /// Addresses of one endpoint, when listeners of headless services are chains of the wildcard.
    endpoint: Option<&'a [Arc<str>]>,
}

impl Walk<'_> {
    fn egress(&mut self, egress: &EgressListener) {
        let all = egress.virtual_services.iter();
        let rules = ByHost::new(all.filter(|vs| {
            let spec = &vs.config.spec;
            !spec.tcp.is_empty() || !spec.tls.is_empty()
        }));
        let bind = self.bind_of(egress.listener.as_ref());
        match egress.listener.as_ref().and_then(|l| l.port.as_ref()) {
            Some(port) => self.listed_port(egress, port, &bind, &rules),
            None => self.catch_all(egress, &bind, &rules),
        }
    }

    fn bind_of(&self, listener: Option<&api::sidecar::EgressListener>) -> Bind {
        let explicit = listener.map_or("", |l| l.bind.as_str());
        let bound = self.ctx.interception() == InterceptionMode::None
            || listener.is_some_and(|l| l.capture_mode == api::sidecar::CaptureMode::None)
            || address::is_unix(explicit);
        let addresses = if !explicit.is_empty() {
            vec![explicit.into()]
        } else if bound {
            self.ctx.local.localhosts.clone()
        } else {
            Vec::new()
        };
        Bind { addresses, bound }
    }

    fn refuses(&self, port: PortRef<'_>, bind: &Bind) -> bool {
        self.ctx.taken_ports().refuses(WantedPort {
            bind: bind.first(),
            port: port.number,
            protocol: port.protocol,
            bound: bind.bound,
            sidecar_ingress: false,
        })
    }

    fn listed_port(
        &mut self,
        egress: &EgressListener,
        port: &api::sidecar::SidecarPort,
        bind: &Bind,
        rules: &ByHost<'_>,
    ) {
        let Ok(number) = u16::try_from(port.number) else {
            return;
        };
        let port = PortRef {
            number,
            name: &port.name,
            protocol: Protocol::parse(&port.protocol),
        };
        if self.refuses(port, bind) {
            return;
        }
        for service in &egress.services {
            self.add(&Target {
                rules,
                service,
                port,
                binds: &bind.addresses,
                bound: bind.bound,
                endpoint: None,
            });
        }
    }

    fn catch_all(&mut self, egress: &EgressListener, bind: &Bind, rules: &ByHost<'_>) {
        for entry in self.listeners.values_mut() {
            entry.locked = true;
        }
        for service in &egress.services {
            for port in &service.ports {
                let number = port.port;
                let wanted = PortRef {
                    number,
                    name: &port.name,
                    protocol: port.protocol,
                };
                if self.refuses(wanted, bind) {
                    continue;
                }
                let target = Target {
                    rules,
                    service,
                    port: wanted,
                    binds: &bind.addresses,
                    bound: bind.bound,
                    endpoint: None,
                };
                if bind.addresses.is_empty() && self.is_headless(service, port) {
                    self.headless(&target, port);
                } else {
                    self.add(&target);
                }
            }
        }
    }

    /// A service whose endpoints are addressed themselves (listeners §3.3).
    fn is_headless(&self, service: &Service, port: &Port) -> bool {
        service.resolution == Resolution::Passthrough
            && matches!(
                PortClass::of(port.protocol),
                PortClass::Tcp | PortClass::Auto
            )
            && &*service.address_for(&self.ctx.view) == UNSPECIFIED_ADDRESS
    }

    fn headless(&mut self, target: &Target<'_>, port: &Port) {
        let service = target.service;
        let endpoints: Vec<Arc<Endpoint>> = self
            .ctx
            .snapshot
            .endpoints_of(service)
            .into_iter()
            .flat_map(|endpoints| endpoints.iter())
            .filter(|endpoint| serves(endpoint, port))
            .cloned()
            .collect();
        let may_be_anywhere = service.attributes.registry != Registry::Kubernetes
            && service.attributes.selector.is_empty();
        if endpoints.is_empty() && may_be_anywhere {
            self.add(target);
            return;
        }
        let own = self.ctx.own_addresses().first();
        let shared_listener =
            self.ctx.features().headless_filter_chain_listener && port.protocol.is_tcp();
        for endpoint in &endpoints {
            let parsed: Option<Vec<IpAddr>> =
                endpoint.addresses.iter().map(|a| a.parse().ok()).collect();
            let Some(addresses) = parsed.filter(|a| !a.is_empty()) else {
                continue;
            };
            if addresses.first() == own {
                continue;
            }
            if shared_listener {
                let binds = &self.ctx.local.wildcards;
                self.add(&Target {
                    binds,
                    endpoint: Some(&endpoint.addresses),
                    ..*target
                });
            } else {
                self.add(&Target {
                    binds: &endpoint.addresses,
                    ..*target
                });
            }
        }
    }

    /// Adds one service port (listeners §3.2).
    fn add(&mut self, target: &Target<'_>) {
        let (service, port) = (target.service, target.port);
        let class = PortClass::of(port.protocol);
        if service.resolution == Resolution::Alias || class == PortClass::None {
            return;
        }
        let (address, further) = self.addresses_of(service);
        let mut cidrs: Vec<Arc<str>> = target.endpoint.map(<[_]>::to_vec).unwrap_or_default();
        let binds = if !target.binds.is_empty() {
            target.binds.to_vec()
        } else if class == PortClass::Http {
            self.ctx.local.wildcards.clone()
        } else {
            let all: Vec<Arc<str>> = std::iter::once(address.clone()).chain(further).collect();
            if address.contains('/') {
                cidrs = all;
                self.ctx.local.wildcards.clone()
            } else {
                all
            }
        };
        let key = (binds.first().cloned().unwrap_or_default(), port.number);
        if self.listeners.get(&key).is_some_and(|entry| entry.locked) {
            return;
        }
        let mut plan = ListenerPlan {
            port: port.number,
            port_protocol: port.protocol,
            binds,
            bound: target.bound,
            chains: Vec::new(),
            protocol: port.protocol,
            sources: std::iter::once(service.source.key().clone()).collect(),
        };
        plan.sources.extend(rule_sources(self.ctx, service));
        if port.protocol == Protocol::HttpProxy {
            let http = self.http_chain(target, &key.0, false);
            plan.chains.push(http);
            self.listeners.insert(
                key,
                Entry {
                    plan,
                    locked: false,
                },
            );
            return;
        }
        if class != PortClass::Http {
            let mut l4 = l4_routes::plan(
                self.ctx,
                target.rules,
                ServicePort {
                    service,
                    port,
                    bind: &key.0,
                    address: &address,
                    cidrs: &cidrs,
                    headless: target.endpoint.is_some(),
                },
            );
            plan.chains = l4.chains;
            plan.sources.append(&mut l4.sources);
        }
        let tcp_chains = plan.chains.len();
        let on_wildcard = key.0 == *self.ctx.local.wildcard();
        match class {
            PortClass::Http => {
                plan.chains
                    .push(self.http_chain(target, &key.0, on_wildcard));
                if on_wildcard {
                    plan.protocol = Protocol::Unsupported;
                }
            }
            PortClass::Auto => plan.chains.push(self.http_chain(target, &key.0, true)),
            PortClass::Tcp | PortClass::None => {}
        }
        match self.listeners.entry(key) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Entry {
                    plan,
                    locked: false,
                });
            }
            std::collections::btree_map::Entry::Occupied(mut place) => {
                let current = &mut place.get_mut().plan;
                let arrival = Arrival {
                    plan,
                    tcp_chains,
                    protocol: port.protocol,
                };
                if conflict::resolve(current, arrival) > 0 {
                    tracing::debug!(
                        conflict = conflict::report(current, port.protocol, &service.hostname),
                        "listener conflict"
                    );
                }
            }
        }
    }

    /// The address that listeners of a service bind, and further ones (listeners §2.5).
    fn addresses_of(&self, service: &Service) -> (Arc<str>, Vec<Arc<str>>) {
        let view = &self.ctx.view;
        let mut address = service.address_for(view);
        let mut further: Vec<Arc<str>> = service.addresses_for(view).into_iter().skip(1).collect();
        if service.attributes.registry == Registry::External && &*address == UNSPECIFIED_ADDRESS {
            match self.ctx.proxy().ip_mode {
                IpMode::V4 => {}
                IpMode::V6 => address = "::".into(),
                IpMode::Dual => further.push("::".into()),
            }
        }
        (address, further)
    }

    fn http_chain(&self, target: &Target<'_>, bind: &str, sniffed: bool) -> ChainPlan {
        let number = target.port.number;
        let sniffed_service = PortClass::of(target.port.protocol) == PortClass::Auto
            && bind != &**self.ctx.local.wildcard();
        let route_name = if number == 0 {
            bind.to_owned()
        } else if sniffed_service {
            format!("{}:{number}", target.service.hostname)
        } else {
            number.to_string()
        };
        ChainPlan {
            matching: ChainMatch {
                plain_http: sniffed,
                ..ChainMatch::default()
            },
            config: None,
            content: ChainContent::Http(HttpPlan {
                route_name,
                grpc_web: target.port.protocol == Protocol::GrpcWeb,
                dynamic_dns: is_dynamic_wildcard(target.service)
                    .then(|| target.service.hostname.clone()),
                is_proxy: false,
            }),
        }
    }
}

/// The DestinationRules behind the settings of chains to a service.
fn rule_sources(ctx: &Context<'_>, service: &Service) -> Vec<ConfigKey> {
    ctx.outbound_rule(&service.hostname)
        .into_iter()
        .flat_map(|rule| &rule.sources)
        .map(|name| {
            ConfigKey::new(
                model::Kind::DestinationRule,
                name.namespace.clone(),
                name.name.clone(),
            )
        })
        .collect()
}

/// Tells whether an endpoint is one of a service port.
fn serves(endpoint: &Endpoint, port: &Port) -> bool {
    if endpoint.legacy_port_key == 0 {
        endpoint.service_port_name == port.name
    } else {
        endpoint.legacy_port_key == port.port
    }
}
