//! Patches of clusters (envoyfilter §9).

use std::sync::Arc;

use envoy_types::pb::envoy::config::{
    cluster::v3::Cluster,
    core::v3::{TransportSocket, transport_socket::ConfigType},
};
use model::api::envoy_filter::{ClusterMatch, Operation};

use pushctx::PatchTarget;

use super::{
    Pass, Patch, PatchIndex, Reach, Run,
    buckets::{Buckets, Step, walk},
};
use crate::names::{ClusterName, Direction};

/// The selective condition of a patch.
#[derive(Hash, Debug)]
enum Key<'a> {
    Name(&'a str),
    Parts {
        service: Option<&'a str>,
        subset: Option<&'a str>,
        port: Option<u32>,
    },
}

/// Which of service, subset and port a patch states.
type Mask = (bool, bool, bool);

/// Patches of clusters by name, service, subset and port.
#[derive(Debug, Default)]
pub(crate) struct ClusterPatches {
    patches: Vec<Arc<Patch>>,
    /// Everything but additions.
    buckets: Buckets,
    masks: Vec<Mask>,
}

impl PatchIndex for ClusterPatches {
    const TARGETS: &'static [PatchTarget] = &[PatchTarget::Clusters];

    fn build(patches: Vec<Arc<Patch>>) -> Self {
        let mut index = Self::default();
        for (patch, position) in patches.iter().zip(0..) {
            if patch.operation == Operation::Add {
                continue;
            }
            let key = patch.matching.cluster.as_ref().and_then(key);
            if let Some(Key::Parts {
                service,
                subset,
                port,
            }) = &key
            {
                let mask = (service.is_some(), subset.is_some(), port.is_some());
                if !index.masks.contains(&mask) {
                    index.masks.push(mask);
                }
            }
            index.buckets.push(position, key);
        }
        index.patches = patches;
        index
    }
}

fn key(matching: &ClusterMatch) -> Option<Key<'_>> {
    if !matching.name.is_empty() {
        return Some(Key::Name(&matching.name));
    }
    let (service, subset) = (text(&matching.service), text(&matching.subset));
    let port = (matching.port_number != 0).then_some(matching.port_number);
    (service.is_some() || subset.is_some() || port.is_some()).then_some(Key::Parts {
        service,
        subset,
        port,
    })
}

fn text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

impl ClusterPatches {
    /// Tells which patches may touch a cluster. `hosts` are the host names behind an inbound cluster.
    pub(crate) fn reach(&self, name: &str, hosts: &[Arc<str>], pass: Pass) -> Reach {
        let candidates = self.positions(name, hosts);
        Reach::of(
            candidates.iter().map(|at| &self.patches[*at as usize]),
            pass,
        )
    }

    /// Patches a cluster; `None` when it is removed.
    pub(crate) fn apply(&self, cluster: Cluster, hosts: &[Arc<str>], run: &Run) -> Option<Cluster> {
        let mut cluster = Some(cluster);
        walk(
            &mut cluster,
            |c| c.as_ref().map(|c| c.name.clone()).unwrap_or_default(),
            |name| self.positions(name, hosts),
            |slot, position| {
                let Some(cluster) = slot else {
                    return Step::Stop;
                };
                let patch = &self.patches[position as usize];
                if !patch.is_for(run.pass) || !matches(patch, &cluster.name, hosts) {
                    return Step::Untouched;
                }
                if patch.operation == Operation::Remove {
                    *slot = None;
                    run.applied(patch);
                    return Step::Stop;
                }
                let Some(lists) = patch.merges() else {
                    run.missed(patch, &format_args!("clusters have no {}", patch.operation));
                    return Step::Untouched;
                };
                if !merge_transport_socket(patch, cluster, run) {
                    patch.merge_into(cluster, lists, run);
                }
                Step::Changed
            },
        );
        cluster
    }

    /// Lists the patches that add clusters in a pass.
    pub(crate) fn adding(&self, pass: Pass) -> impl Iterator<Item = Arc<Patch>> + '_ {
        let adding = self.patches.iter();
        adding.filter(move |patch| patch.adds_in(pass)).cloned()
    }

    fn positions(&self, name: &str, hosts: &[Arc<str>]) -> Vec<u32> {
        if self.buckets.is_empty() {
            return Vec::new();
        }
        let parsed = ClusterName::parse(name);
        let inbound = parsed.direction == Direction::Inbound && !hosts.is_empty();
        let mut probes = vec![Key::Name(name)];
        for &(service, subset, port) in &self.masks {
            let no_part = (subset && parsed.subset.is_empty()) || (port && parsed.port == 0);
            if no_part {
                continue;
            }
            let key = |host| Key::Parts {
                service: host,
                subset: subset.then_some(parsed.subset),
                port: port.then(|| u32::from(parsed.port)),
            };
            if service && inbound {
                probes.extend(hosts.iter().map(|host| key(Some(host))));
            } else {
                probes.push(key(service.then_some(parsed.hostname)));
            }
        }
        self.buckets.candidates(probes)
    }
}

/// Tells whether a patch's condition holds for a cluster (envoyfilter §9.1).
fn matches(patch: &Patch, name: &str, hosts: &[Arc<str>]) -> bool {
    let Some(matching) = &patch.matching.cluster else {
        return true;
    };
    if !matching.name.is_empty() {
        return matching.name == name;
    }
    let parsed = ClusterName::parse(name);
    let of_host = if parsed.direction == Direction::Inbound && !hosts.is_empty() {
        hosts.iter().any(|host| **host == *matching.service)
    } else {
        parsed.hostname == matching.service
    };
    (matching.subset.is_empty() || matching.subset == parsed.subset)
        && (matching.service.is_empty() || of_host)
        && (matching.port_number == 0 || matching.port_number == u32::from(parsed.port))
}

/// Merges a patch that states a transport socket into that of the cluster; tells whether the rest of
/// the patch does not count (envoyfilter §9.2).
fn merge_transport_socket(patch: &Arc<Patch>, cluster: &mut Cluster, run: &Run) -> bool {
    let states_socket = patch
        .value
        .as_ref()
        .is_some_and(|value| value.has_field_by_name("transport_socket"));
    if !states_socket {
        return false;
    }
    let Some(wanted) = patch
        .typed::<Cluster>(run)
        .and_then(|value| value.transport_socket)
    else {
        return true;
    };
    if !cluster.transport_socket_matches.is_empty() {
        let sockets = cluster.transport_socket_matches.iter_mut();
        let found = sockets
            .filter_map(|entry| entry.transport_socket.as_mut())
            .find(|socket| socket.name == wanted.name);
        match found {
            Some(socket) => merge_socket(patch, socket, &wanted, run),
            None => run.missed(
                patch,
                &format_args!("no transport socket is called {:?}", wanted.name),
            ),
        }
        return true;
    }
    let own = cluster.transport_socket.as_mut();
    if let Some(socket) = own.filter(|socket| socket.name == wanted.name) {
        merge_socket(patch, socket, &wanted, run);
    } else {
        cluster.transport_socket = Some(wanted);
        run.applied(patch);
    }
    true
}

/// Merges the config of one transport socket into that of another of the same name.
pub(super) fn merge_socket(
    patch: &Arc<Patch>,
    socket: &mut TransportSocket,
    wanted: &TransportSocket,
    run: &Run,
) {
    let (Some(ConfigType::TypedConfig(target)), Some(ConfigType::TypedConfig(config))) =
        (&mut socket.config_type, &wanted.config_type)
    else {
        run.missed(patch, &"a transport socket has no configuration");
        return;
    };
    match envoy_json::merge::merge_any(target, config) {
        Ok(()) => run.applied(patch),
        Err(error) => run.failed(patch, &error),
    }
}
