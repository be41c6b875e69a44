//! A gateway's configuration, put together from parts.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use model::{NamespacedName, fingerprint, host};
use pushctx::GatewayServer;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use xds::Body;

use super::{
    super::{domains, frame},
    GatewayRouteInputs, Routed, SHARE,
    host::Host,
    index::HostIndex,
    routes::{Routes, RoutesInputs},
};
use crate::{cache::Cache, route};

/// Route lists, and virtual hosts, that are kept: a gateway of many hosts has one of each for a host.
const CACHED_PARTS: usize = 40_000;
/// What gateways' configurations are made of.
#[derive(Debug)]
pub(in crate::rds) struct GatewayParts {
    /// Hosts that VirtualServices have on servers.
    places: Cache<Arc<[Place]>>,
    /// Route lists of VirtualServices.
    routes: Cache<Arc<Routes>>,
    /// Encoded virtual hosts.
    pub(super) hosts: Cache<Bytes>,
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
    pub(in crate::rds) fn built(&self) -> (u64, u64) {
        (self.routes.stats().misses, self.hosts.stats().misses)
    }
}

/// Builds a gateway's route configuration. What a change does not reach is joined as it is.
pub(in crate::rds) fn build(inputs: &GatewayRouteInputs, parts: &GatewayParts) -> Body {
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
            name: format!("{}:{port}", domains::bracketed(&host)).into(),
            host: host.into(),
        }
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
