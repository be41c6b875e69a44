//! Patches of route configurations (envoyfilter §15).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost, route};
use model::api::envoy_filter::{
    ApplyTo, Operation, RouteAction, RouteConfigurationMatch, RouteMatch,
};

use pushctx::PatchTarget;

use super::{
    Pass, Patch, PatchIndex, Reach, Run,
    buckets::{Buckets, Step, walk},
};
use crate::names::ClusterName;

/// What a patch asks of a route configuration, as far as names say it for every kind of proxy.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ConfigurationKey {
    Name(String),
    Port(u32),
}

impl ConfigurationKey {
    fn of(patch: &Patch) -> Option<Self> {
        let matching = patch.matching.route_configuration.as_ref()?;
        if !matching.name.is_empty() {
            return Some(Self::Name(matching.name.clone()));
        }
        (matching.port_number != 0).then_some(Self::Port(matching.port_number))
    }
}

/// The selective condition of patches of virtual hosts and routes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Key {
    VirtualHost(String),
    Domain(String),
    Name(String),
    Port(u32),
}

/// Patches of route configurations, their virtual hosts and routes.
#[derive(Debug, Default)]
pub(crate) struct RoutePatches {
    patches: Vec<Arc<Patch>>,
    /// All of them, by what they ask of the configuration.
    reaching: Buckets,
    /// The fingerprint of those that ask nothing of the configuration, by pass.
    everywhere: [Reach; 3],
    configurations: Vec<u32>,
    hosts: Buckets,
    added_hosts: Vec<u32>,
    routes: Buckets,
}

impl PatchIndex for RoutePatches {
    const TARGETS: &'static [PatchTarget] = &[PatchTarget::Routes];

    fn build(patches: Vec<Arc<Patch>>) -> Self {
        let mut index = Self::default();
        let mut everywhere = Vec::new();
        for (patch, position) in patches.iter().zip(0..) {
            match ConfigurationKey::of(patch) {
                None => everywhere.push(patch),
                asked => index.reaching.push(position, asked),
            }
            match patch.apply_to {
                ApplyTo::RouteConfiguration => index.configurations.push(position),
                ApplyTo::VirtualHost if patch.operation == Operation::Add => {
                    index.added_hosts.push(position);
                }
                ApplyTo::VirtualHost => index.hosts.push(position, key(patch)),
                _ => index.routes.push(position, key(patch)),
            }
        }
        index.everywhere = Pass::ALL.map(|pass| Reach::of(everywhere.iter().copied(), pass));
        index.patches = patches;
        index
    }
}

fn key(patch: &Patch) -> Option<Key> {
    let matching = patch.matching.route_configuration.as_ref()?;
    let text = |t: &String| (!t.is_empty()).then(|| t.clone());
    let host = matching.vhost.as_ref();
    host.and_then(|h| text(&h.name))
        .map(Key::VirtualHost)
        .or_else(|| host.and_then(|h| text(&h.domain_name)).map(Key::Domain))
        .or_else(|| text(&matching.name).map(Key::Name))
        .or_else(|| (matching.port_number != 0).then_some(Key::Port(matching.port_number)))
}

/// Server ports behind the bound ports of a gateway.
pub(crate) type ServerPorts = BTreeMap<u16, BTreeSet<u32>>;

/// What the name of a route configuration says.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RouteNames {
    /// The name itself.
    name: String,
    /// Ports that a patch may state: that of the name, or the server ports behind it.
    ports: BTreeSet<u32>,
    /// Name of the server's port (gateways).
    port_name: String,
    /// `namespace/name` of the gateway (gateways).
    gateway: String,
    /// Set for gateways: port name and gateway count for these.
    servers: Option<Arc<ServerPorts>>,
}

impl RouteNames {
    /// Understands a sidecar's name: a port, or the name of an inbound cluster.
    pub(crate) fn of_sidecar(name: &str) -> Self {
        let port = if name.starts_with("inbound") {
            u32::from(ClusterName::parse(name).port)
        } else {
            name.parse().unwrap_or_default()
        };
        Self {
            name: name.to_owned(),
            ports: BTreeSet::from([port]),
            ..Self::default()
        }
    }

    /// Understands a gateway's name.
    pub(crate) fn of_gateway(name: &str, servers: Arc<ServerPorts>) -> Self {
        let parts: Vec<&str> = name.split('.').collect();
        let (port, port_name, gateway) = match parts[..] {
            ["http", port] => (port.parse().unwrap_or_default(), "", String::new()),
            ["https", port, port_name, gateway, namespace] => (
                port.parse().unwrap_or_default(),
                port_name,
                format!("{namespace}/{gateway}"),
            ),
            _ => (0, "", String::new()),
        };
        let behind = u16::try_from(port).ok().and_then(|port| servers.get(&port));
        Self {
            name: name.to_owned(),
            ports: behind.cloned().unwrap_or_else(|| BTreeSet::from([port])),
            port_name: port_name.to_owned(),
            gateway,
            servers: Some(servers),
        }
    }

    /// Takes on the name that a patch gave to the configuration.
    fn rename(&mut self, name: &str) {
        if self.name != name {
            *self = match self.servers.take() {
                Some(servers) => Self::of_gateway(name, servers),
                None => Self::of_sidecar(name),
            };
        }
    }

    fn probes(&self) -> impl Iterator<Item = ConfigurationKey> {
        let ports = self.ports.iter().copied().map(ConfigurationKey::Port);
        ports.chain([ConfigurationKey::Name(self.name.clone())])
    }

    fn matches(&self, matching: Option<&RouteConfigurationMatch>) -> bool {
        let Some(matching) = matching else {
            return true;
        };
        let of_gateway = self.servers.is_none()
            || ((matching.port_name.is_empty() || matching.port_name == self.port_name)
                && (matching.gateway.is_empty() || matching.gateway == self.gateway));
        (matching.name.is_empty() || matching.name == self.name)
            && of_gateway
            && (matching.port_number == 0 || self.ports.contains(&matching.port_number))
    }
}

/// What of a virtual host conditions look at.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct HostKeys {
    name: String,
    domains: Vec<String>,
}

impl HostKeys {
    fn of(host: &VirtualHost) -> Self {
        Self {
            name: host.name.clone(),
            domains: host.domains.clone(),
        }
    }

    fn probes(&self, names: &RouteNames) -> Vec<Key> {
        let mut probes = vec![
            Key::VirtualHost(self.name.clone()),
            Key::Name(names.name.clone()),
        ];
        probes.extend(self.domains.iter().cloned().map(Key::Domain));
        probes.extend(names.ports.iter().copied().map(Key::Port));
        probes
    }

    fn matches(&self, patch: &Patch, names: &RouteNames) -> bool {
        let matching = patch.matching.route_configuration.as_ref();
        names.matches(matching)
            && matching
                .and_then(|m| m.vhost.as_ref())
                .is_none_or(|wanted| {
                    (wanted.name.is_empty() || wanted.name == self.name)
                        && (wanted.domain_name.is_empty()
                            || self.domains.contains(&wanted.domain_name))
                })
    }
}

impl RoutePatches {
    /// Tells whether there is no patch.
    pub(crate) fn is_empty(&self) -> bool {
        self.patches.is_empty()
    }

    /// Tells which patches may touch a configuration.
    ///
    /// Those that ask nothing of the configuration itself count as one, whatever virtual hosts they
    /// are for: so this costs what asks for this configuration.
    pub(crate) fn reach(&self, names: &RouteNames, pass: Pass) -> Reach {
        let asking = self.reaching.candidates(names.probes());
        let asking = asking.iter().map(|position| self.get(*position));
        let asking = asking.filter(|p| names.matches(p.matching.route_configuration.as_ref()));
        self.everywhere[pass as usize].and(Reach::of(asking, pass))
    }

    /// Patches a configuration.
    pub(crate) fn apply(&self, routes: &mut RouteConfiguration, names: &RouteNames, run: &Run) {
        let mut names = names.clone();
        for position in &self.configurations {
            let patch = self.get(*position);
            let wanted = patch.matching.route_configuration.as_ref();
            if !patch.is_for(run.pass) || !names.matches(wanted) {
                continue;
            }
            if let Some(lists) = patch.merges() {
                patch.merge_into(routes, lists, run);
                names.rename(&routes.name);
            } else {
                run.missed(
                    patch,
                    &format_args!("route configurations have no {}", patch.operation),
                );
            }
        }
        let mut removed = BTreeSet::new();
        for host in &mut routes.virtual_hosts {
            if !self.patch_host(host, &names, run) {
                removed.insert(host.name.clone());
                continue;
            }
            self.patch_routes(host, &names, run);
        }
        for position in &self.added_hosts {
            let patch = self.get(*position);
            if patch.is_for(run.pass)
                && names.matches(patch.matching.route_configuration.as_ref())
                && let Some(host) = patch.typed::<VirtualHost>(run)
            {
                routes.virtual_hosts.push(host);
                run.applied(patch);
            }
        }
        routes
            .virtual_hosts
            .retain(|host| !removed.contains(&host.name));
    }

    fn get(&self, position: u32) -> &Arc<Patch> {
        &self.patches[position as usize]
    }

    /// Patches a virtual host; tells whether it stays.
    fn patch_host(&self, host: &mut VirtualHost, names: &RouteNames, run: &Run) -> bool {
        let mut stays = true;
        walk(
            host,
            HostKeys::of,
            |keys| self.hosts.candidates(keys.probes(names)),
            |host, position| {
                let patch = self.get(position);
                if !patch.is_for(run.pass) || !HostKeys::of(host).matches(patch, names) {
                    return Step::Untouched;
                }
                match (patch.operation, patch.merges()) {
                    (Operation::Remove, _) => {
                        stays = false;
                        run.applied(patch);
                        return Step::Stop;
                    }
                    (Operation::Replace, _) => {
                        if let Some(value) = patch.typed(run) {
                            *host = value;
                            run.applied(patch);
                        }
                    }
                    (_, Some(lists)) => {
                        patch.merge_into(host, lists, run);
                    }
                    (operation, None) => {
                        run.missed(patch, &format_args!("virtual hosts have no {operation}"));
                        return Step::Untouched;
                    }
                }
                Step::Changed
            },
        );
        stays
    }

    fn patch_routes(&self, host: &mut VirtualHost, names: &RouteNames, run: &Run) {
        if self.routes.is_empty() {
            return;
        }
        let keys = HostKeys::of(host);
        let patches: Vec<&Arc<Patch>> = self
            .routes
            .candidates(keys.probes(names))
            .into_iter()
            .map(|position| self.get(position))
            .filter(|patch| patch.is_for(run.pass) && keys.matches(patch, names))
            .collect();
        if patches.is_empty() {
            return;
        }
        // Deleted routes keep their place until everything else is in its own.
        let mut slots: Vec<Option<Route>> = std::mem::take(&mut host.routes)
            .into_iter()
            .map(Some)
            .collect();
        for slot in &mut slots {
            for patch in &patches {
                let Some(route) = slot.as_mut().filter(|r| matches_route(wanted(patch), r)) else {
                    continue;
                };
                if patch.operation == Operation::Remove {
                    *slot = None;
                    run.applied(patch);
                    break;
                }
                if let Some(lists) = patch.merges() {
                    patch.merge_into(route, lists, run);
                }
            }
        }
        for patch in &patches {
            insert(&mut slots, patch, run);
        }
        host.routes = slots.into_iter().flatten().collect();
    }
}

fn insert(slots: &mut Vec<Option<Route>>, patch: &Arc<Patch>, run: &Run) {
    let anchor = wanted(patch);
    let found = anchor.and_then(|wanted| {
        slots.iter().position(|slot| {
            slot.as_ref()
                .is_some_and(|r| matches_route(Some(wanted), r))
        })
    });
    let at = match (patch.operation, anchor, found) {
        (Operation::Add, ..) | (Operation::InsertAfter, None, _) => slots.len(),
        (Operation::InsertAfter, Some(_), Some(at)) => at + 1,
        (Operation::InsertBefore | Operation::InsertFirst, None, _)
        | (Operation::InsertFirst, Some(_), Some(_)) => 0,
        (Operation::InsertBefore, Some(_), Some(at)) => at,
        (
            Operation::InsertAfter | Operation::InsertBefore | Operation::InsertFirst,
            Some(_),
            None,
        ) => {
            run.missed(
                patch,
                &format_args!("{}: no route matches", patch.operation),
            );
            return;
        }
        (Operation::Replace, ..) => {
            run.missed(patch, &"routes have no REPLACE");
            return;
        }
        _ => return,
    };
    if let Some(route) = patch.typed(run) {
        slots.insert(at, Some(route));
        run.applied(patch);
    }
}

fn wanted(patch: &Patch) -> Option<&RouteMatch> {
    patch
        .matching
        .route_configuration
        .as_ref()?
        .vhost
        .as_ref()?
        .route
        .as_ref()
}

fn matches_route(wanted: Option<&RouteMatch>, route: &Route) -> bool {
    let Some(wanted) = wanted else { return true };
    let action = match (&wanted.action, &route.action) {
        (RouteAction::Any, _) => true,
        (wanted, Some(route::Action::Route(_))) => *wanted == RouteAction::Route,
        (wanted, Some(route::Action::Redirect(_))) => *wanted == RouteAction::Redirect,
        (wanted, Some(route::Action::DirectResponse(_))) => *wanted == RouteAction::DirectResponse,
        _ => true,
    };
    action && (wanted.name.is_empty() || wanted.name == route.name)
}
