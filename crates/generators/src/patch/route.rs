//! Patches of route configurations (envoyfilter §15).

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost, route};
use model::api::envoy_filter::{
    ApplyTo, Operation, RouteAction, RouteConfigurationMatch, RouteMatch,
};

use super::{
    Pass, Patch, PatchIndex,
    buckets::{Buckets, Step, walk},
};
use crate::names::ClusterName;

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
    configurations: Vec<u32>,
    hosts: Buckets<Key>,
    added_hosts: Vec<u32>,
    routes: Buckets<Key>,
}

impl PatchIndex for RoutePatches {
    const KINDS: &'static [ApplyTo] = &[
        ApplyTo::RouteConfiguration,
        ApplyTo::VirtualHost,
        ApplyTo::HttpRoute,
    ];

    fn build(patches: Vec<Arc<Patch>>) -> Self {
        let mut index = Self::default();
        for (patch, position) in patches.iter().zip(0..) {
            match patch.apply_to {
                ApplyTo::RouteConfiguration => index.configurations.push(position),
                ApplyTo::VirtualHost if patch.operation == Operation::Add => {
                    index.added_hosts.push(position);
                }
                ApplyTo::VirtualHost => index.hosts.push(position, key(patch)),
                _ => index.routes.push(position, key(patch)),
            }
        }
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

/// What the name of a route configuration says.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RouteNames {
    /// The name itself.
    pub name: String,
    /// Ports that a patch may state: that of the name, or the server ports behind it.
    pub ports: BTreeSet<u32>,
    /// Name of the server's port (gateways).
    pub port_name: String,
    /// `namespace/name` of the gateway (gateways).
    pub gateway: String,
    /// Whether port name and gateway count.
    pub of_gateway: bool,
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

    /// Understands a gateway's name; `servers` lists the server ports behind a bound port.
    pub(crate) fn of_gateway(name: &str, servers: impl Fn(u32) -> Option<BTreeSet<u32>>) -> Self {
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
        Self {
            name: name.to_owned(),
            ports: servers(port).unwrap_or_else(|| BTreeSet::from([port])),
            port_name: port_name.to_owned(),
            gateway,
            of_gateway: true,
        }
    }

    fn matches(&self, matching: Option<&RouteConfigurationMatch>) -> bool {
        let Some(matching) = matching else {
            return true;
        };
        let of_gateway = !self.of_gateway
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

    /// Lists all patches of a pass, in order.
    pub(crate) fn all(&self, pass: Pass) -> impl Iterator<Item = Arc<Patch>> + '_ {
        self.patches
            .iter()
            .filter(move |patch| patch.is_for(pass))
            .cloned()
    }

    /// Lists the patches that may touch a configuration, in no particular order.
    pub(crate) fn candidates(&self, names: &RouteNames, pass: Pass) -> Vec<Arc<Patch>> {
        self.all(pass)
            .filter(|patch| names.matches(patch.matching.route_configuration.as_ref()))
            .collect()
    }

    /// Patches a configuration.
    pub(crate) fn apply(&self, routes: &mut RouteConfiguration, names: &RouteNames, pass: Pass) {
        let mut names = names.clone();
        for position in &self.configurations {
            let patch = self.get(*position);
            let wanted = patch.matching.route_configuration.as_ref();
            if let Some(lists) = patch.merges()
                && patch.is_for(pass)
                && names.matches(wanted)
            {
                patch.merge_into(routes, lists);
                names.name.clone_from(&routes.name);
            }
        }
        let mut removed = BTreeSet::new();
        for host in &mut routes.virtual_hosts {
            if !self.patch_host(host, &names, pass) {
                removed.insert(host.name.clone());
                continue;
            }
            self.patch_routes(host, &names, pass);
        }
        for position in &self.added_hosts {
            let patch = self.get(*position);
            if patch.is_for(pass) && names.matches(patch.matching.route_configuration.as_ref()) {
                routes.virtual_hosts.extend(patch.typed::<VirtualHost>());
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
    fn patch_host(&self, host: &mut VirtualHost, names: &RouteNames, pass: Pass) -> bool {
        let mut stays = true;
        walk(
            host,
            HostKeys::of,
            |keys| self.hosts.candidates(keys.probes(names)),
            |host, position| {
                let patch = self.get(position);
                if !patch.is_for(pass) || !HostKeys::of(host).matches(patch, names) {
                    return Step::Untouched;
                }
                match (patch.operation, patch.merges()) {
                    (Operation::Remove, _) => {
                        stays = false;
                        return Step::Stop;
                    }
                    (Operation::Replace, _) => {
                        if let Some(value) = patch.typed() {
                            *host = value;
                        }
                    }
                    (_, Some(lists)) => patch.merge_into(host, lists),
                    _ => return Step::Untouched,
                }
                Step::Changed
            },
        );
        stays
    }

    fn patch_routes(&self, host: &mut VirtualHost, names: &RouteNames, pass: Pass) {
        if self.routes.is_empty() {
            return;
        }
        let keys = HostKeys::of(host);
        let patches: Vec<&Patch> = self
            .routes
            .candidates(keys.probes(names))
            .into_iter()
            .map(|position| &**self.get(position))
            .filter(|patch| patch.is_for(pass) && keys.matches(patch, names))
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
                    break;
                }
                if let Some(lists) = patch.merges() {
                    patch.merge_into(route, lists);
                }
            }
        }
        for patch in &patches {
            insert(&mut slots, patch);
        }
        host.routes = slots.into_iter().flatten().collect();
    }
}

fn insert(slots: &mut Vec<Option<Route>>, patch: &Patch) {
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
        _ => return,
    };
    if let Some(route) = patch.typed() {
        slots.insert(at, Some(route));
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
