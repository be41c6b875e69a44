//! Authentication: mutual TLS of servers, and what clients infer of it (config-model §9.2, §14.2).

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, MeshState, Port, Service, ServiceKey,
    api::{
        PeerAuthentication, RequestAuthentication,
        security::{MutualTls, MutualTlsMode},
    },
    fingerprint,
};

use crate::{
    PushContext, Workload,
    attach::{ByNamespace, is_namespace_wide},
};

/// Label value of endpoints that do not accept mutual TLS.
const TLS_DISABLED: &str = "disabled";

/// Policies by namespace, with the modes of whole namespaces.
#[derive(Clone, Default, Debug)]
pub(crate) struct AuthnIndex {
    peer: ByNamespace<PeerAuthentication>,
    request: ByNamespace<RequestAuthentication>,
    /// The mode of the mesh; `None` when no policy of the root namespace is for all of it.
    mesh_mode: Option<MutualTlsMode>,
    modes: BTreeMap<Arc<str>, MutualTlsMode>,
    fingerprint: u64,
}

impl AuthnIndex {
    pub(crate) fn build(state: &MeshState) -> Self {
        let peer = ByNamespace::build(&state.objects.peer_authentications);
        let request = ByNamespace::build(&state.objects.request_authentications);
        Self::with(state, peer, request)
    }

    pub(crate) fn next(&self, old: &MeshState, new: &MeshState) -> Self {
        let (old, state, new) = (&old.objects, new, &new.objects);
        let peer = self
            .peer
            .next(&old.peer_authentications, &new.peer_authentications);
        let request = self
            .request
            .next(&old.request_authentications, &new.request_authentications);
        Self::with(state, peer, request)
    }

    fn with(
        state: &MeshState,
        peer: ByNamespace<PeerAuthentication>,
        request: ByNamespace<RequestAuthentication>,
    ) -> Self {
        let wide = |list: &[Arc<Config<PeerAuthentication>>]| {
            list.iter()
                .find(|p| is_namespace_wide(&p.spec))
                .map(|p| mode(p.spec.mtls.as_ref()))
        };
        let mesh_mode = wide(peer.of(state.root_namespace()))
            .map(|mode| mode.unwrap_or(MutualTlsMode::Permissive));
        let modes = peer
            .iter()
            .filter_map(|(namespace, list)| {
                let mode = wide(list)?
                    .or(mesh_mode)
                    .unwrap_or(MutualTlsMode::Permissive);
                Some((namespace.clone(), mode))
            })
            .collect();
        let fingerprint = fingerprint::of(
            &peer
                .iter()
                .flat_map(|(_, list)| list)
                .map(|p| {
                    (
                        &p.meta.namespace,
                        &p.meta.name,
                        fingerprint::of_json(&p.spec),
                    )
                })
                .collect::<Vec<_>>(),
        );
        Self {
            peer,
            request,
            mesh_mode,
            modes,
            fingerprint,
        }
    }

    /// The mode of a namespace as a whole: its own, else the mesh's.
    fn mode_of(&self, namespace: &str) -> Option<MutualTlsMode> {
        self.modes.get(namespace).copied().or(self.mesh_mode)
    }
}

/// The stated mode; `None` when it is to be inherited.
fn mode(mtls: Option<&MutualTls>) -> Option<MutualTlsMode> {
    mtls.map(|m| m.mode)
        .filter(|mode| *mode != MutualTlsMode::Unset)
}

/// What a workload's inbound traffic must be; no mode in here is `UNSET`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EffectivePeerAuthentication {
    /// The mode of every port that has none of its own.
    pub mode: MutualTlsMode,
    /// Modes by workload port.
    pub ports: BTreeMap<u16, MutualTlsMode>,
}

impl EffectivePeerAuthentication {
    /// Returns the mode of a workload port.
    pub fn of_port(&self, port: u16) -> MutualTlsMode {
        self.ports.get(&port).copied().unwrap_or(self.mode)
    }
}

/// The namespaces where policies of a workload are looked for, in the order of most kinds: its own,
/// the root's, those of its services.
pub(crate) fn namespaces<'a>(workload: &Workload<'a>, root: &'a str) -> Vec<&'a str> {
    let services = workload.services.iter().map(|s| &*s.attributes.namespace);
    [workload.namespace, root]
        .into_iter()
        .chain(services)
        .collect()
}

impl PushContext {
    /// Merges the `PeerAuthentications` of a workload: mesh, namespace, then the oldest of its
    /// namespace that selects it. Selectors of the root namespace never apply.
    pub fn peer_authentication(&self, workload: &Workload<'_>) -> EffectivePeerAuthentication {
        let root = self.root_namespace();
        let namespaces = namespaces(workload, root);
        let candidates = || self.authn.peer.of_all(namespaces.iter().copied());
        let in_root = |p: &Config<PeerAuthentication>| *p.meta.namespace == *root;
        let wide = |of_root: bool| {
            candidates().find(|p| in_root(p) == of_root && is_namespace_wide(&p.spec))
        };
        let selected = candidates()
            .filter(|p| !in_root(p) && !is_namespace_wide(&p.spec))
            .filter(|p| workload.is_selected_by(&p.spec))
            .min_by(|a, b| a.meta.creation_order().cmp(&b.meta.creation_order()));
        let mode = [selected, wide(false), wide(true)]
            .into_iter()
            .flatten()
            .find_map(|p| mode(p.spec.mtls.as_ref()))
            .unwrap_or(MutualTlsMode::Permissive);
        let ports = selected
            .into_iter()
            .flat_map(|p| &p.spec.port_level_mtls)
            .filter_map(|(port, mtls)| {
                Some((
                    u16::try_from(*port).ok()?,
                    self::mode(Some(mtls)).unwrap_or(mode),
                ))
            })
            .collect();
        EffectivePeerAuthentication { mode, ports }
    }

    /// Lists the `RequestAuthentications` of a workload: those of its namespace, of the root
    /// namespace, of its services' namespaces; all apply together.
    pub fn request_authentications(
        &self,
        workload: &Workload<'_>,
    ) -> Vec<Arc<Config<RequestAuthentication>>> {
        self.authn
            .request
            .of_all(namespaces(workload, self.root_namespace()))
            .filter(|p| workload.is_target_of(&p.meta, &p.spec, self.state()))
            .cloned()
            .collect()
    }

    /// Hash over all `PeerAuthentications`.
    pub fn peer_authentication_fingerprint(&self) -> u64 {
        self.authn.fingerprint
    }

    /// Infers what clients of a service port may expect of its servers when nobody says so
    /// (config-model §9.2). `None` means unknown: the service is outside of the mesh.
    ///
    /// `passthrough` is true when the client's policy balances with PASSTHROUGH. Policies of single
    /// workloads and ports are not looked at.
    pub fn infer_mtls(
        &self,
        service: &Service,
        port: &Port,
        passthrough: bool,
    ) -> Option<MutualTlsMode> {
        if service.mesh_external {
            return None;
        }
        if service.is_passthrough() || passthrough {
            let mut endpoints = self.endpoints_of_port(service, port).peekable();
            if endpoints.peek().is_none() || endpoints.any(|e| &*e.tls_mode == TLS_DISABLED) {
                return Some(MutualTlsMode::Disable);
            }
        }
        let mode = self.authn.mode_of(&service.attributes.namespace);
        Some(mode.unwrap_or(MutualTlsMode::Permissive))
    }

    /// Lists the endpoints of a service's port, shard by shard (service-registry §9.5).
    pub fn endpoints_of_port<'a>(
        &'a self,
        service: &Service,
        port: &'a Port,
    ) -> impl Iterator<Item = &'a Arc<model::Endpoint>> {
        let key = ServiceKey::new(
            service.attributes.namespace.clone(),
            service.hostname.clone(),
        );
        self.endpoints(&key)
            .into_iter()
            .flat_map(|endpoints| endpoints.iter())
            .filter(|e| {
                if e.legacy_port_key == 0 {
                    e.service_port_name == port.name
                } else {
                    e.legacy_port_key == port.port
                }
            })
    }
}

#[cfg(test)]
mod tests;
