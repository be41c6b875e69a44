//! Everything that a sidecar's route configuration is built from.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use model::{AddressView, ConfigKey, Kind, Labels, Protocol, Service, api, fingerprint};
use pushctx::{ConsolidatedRule, EgressListener, ProxyClass, PushContext, ResolvedVirtualService};

use xds::Source;

use super::{domains, name::RouteName};
use crate::{
    names,
    route::{self, SessionLabels},
};

/// What happens to hosts that nobody knows (routes §8).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Unknown {
    /// Forwarded to this cluster.
    Allow(String),
    /// Resolved by name.
    DynamicDns,
    /// Answered with 502.
    Block,
}

/// The facts of a class and the mesh that routes depend on.
#[derive(Clone, PartialEq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent settings of the mesh and proxy"
)]
pub(crate) struct ClientView {
    /// The proxy's namespace.
    pub namespace: Arc<str>,
    /// The proxy's DNS domain.
    pub domain: String,
    /// Labels of the workload; empty when no rule looks at them.
    pub labels: Labels,
    /// Which addresses of services it uses.
    pub addresses: AddressView,
    /// What happens to unknown hosts.
    pub unknown: Unknown,
    /// Requests carry their attempt count.
    pub attempt_count: bool,
    /// Rewrites and passed-through requests carry `x-forwarded-host`.
    pub forwarded_host: bool,
    /// The mesh's default retries.
    pub retries: Option<api::common::HttpRetry>,
    /// Host names get an absolute form.
    pub absolute_names: bool,
    /// Mirrors keep the host as it is.
    pub plain_shadow_host: bool,
    /// Labels that ask for persistent sessions.
    pub session: Option<SessionLabels>,
}

impl ClientView {
    /// Reads the facts off a class and the snapshot.
    pub(crate) fn of(context: &PushContext, class: &ProxyClass) -> Self {
        let features = context.features();
        let headers = crate::proxy_config::of(context, class)
            .proxy_headers
            .as_ref();
        let policy = &class.scope.outbound_policy;
        let unknown = match policy.mode {
            api::sidecar::OutboundTrafficMode::AllowAny => {
                Unknown::Allow(match policy.egress_proxy.as_ref() {
                    Some(proxy) => {
                        names::outbound(route::destination_port(proxy), &proxy.subset, &proxy.host)
                    }
                    None => names::PASSTHROUGH.to_owned(),
                })
            }
            api::sidecar::OutboundTrafficMode::AllowAnyDynamicDns => Unknown::DynamicDns,
            api::sidecar::OutboundTrafficMode::RegistryOnly => Unknown::Block,
        };
        Self {
            namespace: class.scope.namespace.clone(),
            domain: class.proxy.dns_domain.clone(),
            labels: class.labels.clone(),
            addresses: AddressView::of(&class.proxy, features),
            unknown,
            attempt_count: headers
                .and_then(|h| h.attempt_count.as_ref())
                .and_then(|a| a.disabled)
                .is_none_or(|disabled| !disabled),
            forwarded_host: headers
                .and_then(|h| h.x_forwarded_host.as_ref())
                .and_then(|x| x.enabled)
                .unwrap_or(false),
            retries: context.mesh().default_http_retry_policy.clone(),
            absolute_names: features.absolute_fqdn_vhost_domain,
            plain_shadow_host: features.disable_shadow_host_suffix,
            session: SessionLabels::of(features),
        }
    }

    pub(super) fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            namespace,
            domain,
            labels,
            addresses,
            unknown,
            attempt_count,
            forwarded_host,
            retries,
            absolute_names,
            plain_shadow_host,
            session,
        } = self;
        fingerprint::of(&(
            (namespace, domain, labels, addresses, unknown),
            (attempt_count, forwarded_host, fingerprint::of_json(retries)),
            (absolute_names, plain_shadow_host, session),
        ))
    }
}

/// The inputs of one route configuration of a sidecar; its fingerprint is the cache key.
#[derive(Clone, Debug)]
pub(crate) struct RouteInputs {
    /// The requested name.
    pub name: String,
    /// What the name means.
    pub kind: RouteName,
    /// The listener's port; 0 when routes of all ports are asked for.
    pub port: u16,
    /// Services by lower-case host name, cut to the port where there is one.
    pub services: BTreeMap<Arc<str>, Arc<Service>>,
    /// VirtualServices that take part, in import order.
    pub virtual_services: Vec<Arc<ResolvedVirtualService>>,
    /// Which VirtualService owns a service host, for wildcards: host to (namespace, name).
    pub owners: BTreeMap<Arc<str>, (Arc<str>, Arc<str>)>,
    /// Rules of services and destinations that hash requests, by host.
    pub rules: BTreeMap<String, Arc<ConsolidatedRule>>,
    /// The client's facts.
    pub client: ClientView,
}

impl RouteInputs {
    /// Gathers the inputs of `name` for a class (routes §5).
    pub(crate) fn gather(
        context: &PushContext,
        class: &ProxyClass,
        name: &str,
        kind: RouteName,
    ) -> Self {
        let mut client = ClientView::of(context, class);
        let listener = egress_listener(&class.scope.egress, kind.port(), name);
        let declared = listener
            .and_then(|l| l.listener.as_ref())
            .and_then(|l| l.port.as_ref());
        let port = match declared {
            Some(p) if Protocol::parse(&p.protocol) == Protocol::HttpProxy => 0,
            _ => kind.port(),
        };
        let services = listener.map(|l| lookup(&l.services, port, &client.addresses));
        let services = services.unwrap_or_default();
        let virtual_services: Vec<_> = listener
            .into_iter()
            .flat_map(|l| l.virtual_services.iter())
            .filter(|vs| port == 80 || concerns(vs, &services))
            .cloned()
            .collect();
        let owners = listener
            .map(|listener| owners(listener, &virtual_services, &services, &listener.services))
            .unwrap_or_default();
        let mut rules = BTreeMap::new();
        if !context.destination_rules().is_empty() {
            let hosts = services.values().map(|s| &*s.hostname);
            for host in hosts.chain(destinations(&virtual_services)) {
                let rule = class.scope.outbound_rule(host, &class.labels);
                if let Some(rule) = rule.filter(|rule| hashes(rule)) {
                    rules.insert(host.to_owned(), rule.clone());
                }
            }
        }
        if !looks_at_labels(&virtual_services) {
            client.labels.clear();
        }
        Self {
            name: name.to_owned(),
            kind,
            port,
            services,
            virtual_services,
            owners,
            rules,
            client,
        }
    }

    /// Tells whether only one host was asked for.
    pub(crate) const fn is_sniffed(&self) -> bool {
        matches!(self.kind, RouteName::Sniffed(_))
    }

    /// Hash of all inputs.
    pub(crate) fn fingerprint(&self) -> u64 {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            name,
            kind,
            port,
            services,
            virtual_services,
            owners,
            rules,
            client,
        } = self;
        let services: Vec<_> = services.iter().map(|(h, s)| (h, s.fingerprint)).collect();
        let rules: Vec<_> = rules.iter().map(|(h, r)| (h, r.fingerprint)).collect();
        let virtual_services: Vec<_> = virtual_services
            .iter()
            .map(|vs| {
                (
                    &vs.config.meta.namespace,
                    &vs.config.meta.name,
                    vs.fingerprint,
                )
            })
            .collect();
        fingerprint::of(&(
            (name, kind, port, services, rules),
            (virtual_services, owners, client.fingerprint()),
        ))
    }

    /// The ids of the objects that the configuration is built from.
    pub(super) fn sources(&self) -> Vec<Source> {
        let services = self.services.values().map(|service| service.source.ids());
        let virtual_services = self.virtual_services.iter().flat_map(|vs| &vs.sources);
        let rules = self.rules.values().flat_map(|r| &r.sources).map(|name| {
            ConfigKey::new(
                Kind::DestinationRule,
                name.namespace.clone(),
                name.name.clone(),
            )
        });
        let virtual_services = virtual_services.map(ToString::to_string);
        let keys = virtual_services.chain(rules.map(|rule| rule.to_string()));
        let services = services.flat_map(|ids| ids.iter().cloned());
        let mut sources: Vec<Source> = services.chain(keys.map(Source::from)).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }
}

/// Chooses the egress listener (routes §5.1).
pub(super) fn egress_listener<'a>(
    listeners: &'a [EgressListener],
    port: u16,
    name: &str,
) -> Option<&'a EgressListener> {
    listeners.iter().find(|listener| {
        let Some(declared) = &listener.listener else {
            return true;
        };
        match &declared.port {
            None => true,
            Some(p) if p.number != 0 => p.number == u32::from(port),
            Some(_) => port == 0 && declared.bind == name,
        }
    })
}

/// The services of a listener by host name (routes §5.2). Of two with one name the later wins.
pub(super) fn lookup<'a>(
    services: impl IntoIterator<Item = &'a Arc<Service>>,
    port: u16,
    view: &AddressView,
) -> BTreeMap<Arc<str>, Arc<Service>> {
    let mut result = BTreeMap::new();
    for service in services {
        if port == 0 {
            result.insert(service.hostname.clone(), service.clone());
            continue;
        }
        let Some(found) = service.port(port).filter(|p| p.protocol != Protocol::Udp) else {
            continue;
        };
        let hostname = domains::lowercase(&service.hostname);
        let already_cut = service.ports.len() == 1
            && matches!(hostname, Cow::Borrowed(_))
            && service.auto_allocated_v4.is_empty()
            && service.auto_allocated_v6.is_empty();
        let cut = if already_cut {
            service.clone()
        } else {
            let mut cut = Service::clone(service);
            cut.ports = vec![found.clone()];
            cut.hostname = hostname.as_ref().into();
            cut.default_address = service.address_for(view);
            cut.auto_allocated_v4 = "".into();
            cut.auto_allocated_v6 = "".into();
            cut.seal()
        };
        result.insert(cut.hostname.clone(), cut);
    }
    result
}

/// Finds out which VirtualService owns which of the services that take part. Only VirtualServices with
/// a wildcard ask.
pub(super) fn owners<'a>(
    listener: &EgressListener,
    virtual_services: &[Arc<ResolvedVirtualService>],
    services: &BTreeMap<Arc<str>, Arc<Service>>,
    candidates: impl IntoIterator<Item = &'a Arc<Service>>,
) -> BTreeMap<Arc<str>, (Arc<str>, Arc<str>)> {
    let mut asked = virtual_services.iter().flat_map(|vs| &vs.config.spec.hosts);
    if !asked.any(|host| model::host::is_wildcard(host)) {
        return BTreeMap::new();
    }
    candidates
        .into_iter()
        .filter(|service| services.contains_key(&*service.hostname))
        .filter_map(|service| {
            let meta = &listener.virtual_service(&service.hostname)?.config.meta;
            let owner = (meta.namespace.clone(), meta.name.clone());
            Some((service.hostname.clone(), owner))
        })
        .collect()
}

/// Lists the hosts that VirtualServices send requests to.
pub(super) fn destinations(
    virtual_services: &[Arc<ResolvedVirtualService>],
) -> impl Iterator<Item = &str> {
    virtual_services
        .iter()
        .flat_map(|vs| &vs.config.spec.http)
        .flat_map(|rule| &rule.route)
        .filter_map(|route| route.destination.as_ref())
        .map(|destination| destination.host.as_str())
}

/// Tells whether some host of a VirtualService means a service of the lookup (routes §5.4).
fn concerns(vs: &ResolvedVirtualService, services: &BTreeMap<Arc<str>, Arc<Service>>) -> bool {
    vs.config.spec.hosts.iter().any(|host| {
        services.contains_key(host.to_lowercase().as_str())
            || services.keys().any(|name| {
                (model::host::is_wildcard(host) || model::host::is_wildcard(name))
                    && model::host::matches(host, name)
            })
    })
}

pub(super) fn hashes(rule: &ConsolidatedRule) -> bool {
    let in_policy = |policy: &api::destination_rule::TrafficPolicy| {
        let balancers = policy
            .port_level_settings
            .iter()
            .map(|s| s.load_balancer.as_ref());
        balancers
            .chain([policy.load_balancer.as_ref()])
            .flatten()
            .any(|lb| lb.consistent_hash.is_some())
    };
    let spec = &rule.config.spec;
    spec.traffic_policy.as_ref().is_some_and(in_policy)
        || spec
            .subsets
            .iter()
            .filter_map(|s| s.traffic_policy.as_ref())
            .any(in_policy)
}

/// Tells whether some rule looks at the labels of its client.
pub(super) fn looks_at_labels<'a>(
    virtual_services: impl IntoIterator<Item = &'a Arc<ResolvedVirtualService>>,
) -> bool {
    virtual_services
        .into_iter()
        .flat_map(|vs| &vs.config.spec.http)
        .flat_map(|rule| &rule.r#match)
        .any(|m| !m.source_labels.is_empty())
}
