//! The snapshot itself.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    sync::{Arc, OnceLock},
};

use equivalent::{Comparable, Equivalent};
use model::{
    Features, MeshState, PushRequest, Service, ServiceEndpoints, ServiceKey, api,
    state::MeshIdentity,
};

use crate::{
    DestinationRuleIndex, PatchOutcomes, SecretErrors, ServiceIndex, VirtualServiceIndex,
    authn::AuthnIndex,
    class::{Classes, Keys, Named},
    cluster_local::ClusterLocalHosts,
    gateway::GatewayIndex,
    policy::PolicyIndex,
    proxy_config::ProxyConfigIndex,
    scope::{Changes, Scopes, SidecarIndex},
    step::Step,
    waypoint::WaypointIndex,
    workload_entry::WorkloadEntryIndex,
};

/// One immutable state of the mesh with its indexes. Every index is behind an `Arc`: the next
/// snapshot shares those that a change does not reach.
#[derive(Clone, Debug)]
pub struct PushContext {
    pub(crate) state: MeshState,
    /// Tells this snapshot from all others.
    pub(crate) id: Arc<()>,
    /// How it came out of the one before; `None` when it was built from nothing.
    pub(crate) step: Option<Arc<Step>>,
    pub(crate) services: Arc<ServiceIndex>,
    pub(crate) virtual_services: Arc<VirtualServiceIndex>,
    pub(crate) destination_rules: Arc<DestinationRuleIndex>,
    pub(crate) sidecars: Arc<SidecarIndex>,
    pub(crate) authn: Arc<AuthnIndex>,
    pub(crate) workload_entries: Arc<WorkloadEntryIndex>,
    pub(crate) policies: Arc<PolicyIndex>,
    pub(crate) proxy_configs: Arc<ProxyConfigIndex>,
    pub(crate) gateways: Arc<GatewayIndex>,
    pub(crate) cluster_local: Arc<ClusterLocalHosts>,
    /// What was computed on demand.
    pub(crate) named: Arc<OnceLock<Named>>,
    pub(crate) waypoints: Arc<OnceLock<WaypointIndex>>,
    pub(crate) scopes: Arc<Scopes>,
    pub(crate) classes: Arc<Classes>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) patch_outcomes: Arc<PatchOutcomes>,
    pub(crate) secret_errors: Arc<SecretErrors>,
}

impl PushContext {
    /// Builds all indexes of `state`.
    pub fn build(state: MeshState) -> Self {
        let ((services, virtual_services), (destination_rules, workload_entries)) = rayon::join(
            || {
                rayon::join(
                    || ServiceIndex::build(&state),
                    || VirtualServiceIndex::build(&state),
                )
            },
            || {
                rayon::join(
                    || DestinationRuleIndex::build(&state),
                    || WorkloadEntryIndex::build(&state.objects.workload_entries),
                )
            },
        );
        Self {
            id: Arc::default(),
            step: None,
            services: Arc::new(services),
            virtual_services: Arc::new(virtual_services),
            destination_rules: Arc::new(destination_rules),
            sidecars: Arc::new(SidecarIndex::build(&state)),
            authn: Arc::new(AuthnIndex::build(&state)),
            workload_entries: Arc::new(workload_entries),
            policies: Arc::new(PolicyIndex::build(&state)),
            proxy_configs: Arc::new(ProxyConfigIndex::build(&state)),
            gateways: Arc::new(GatewayIndex::build(&state.objects.gateways)),
            cluster_local: Arc::new(ClusterLocalHosts::build(&state)),
            named: Arc::default(),
            waypoints: Arc::default(),
            scopes: Arc::default(),
            classes: Arc::default(),
            keys: Arc::default(),
            patch_outcomes: Arc::default(),
            secret_errors: Arc::default(),
            state,
        }
    }

    /// Builds the snapshot of `state`, taking over from this one whatever did not change.
    ///
    /// What changed is read off the tables, which share what they have in common: the result is the
    /// same as that of a full build, whatever `request` says. A forced request, and new settings of
    /// the mesh, build everything.
    #[must_use]
    pub fn next(&self, state: MeshState, request: &PushRequest) -> Self {
        let (old, new) = (&self.state, &state);
        if request.forced || !same_settings(old, new) {
            return Self {
                keys: self.keys.clone(),
                patch_outcomes: self.patch_outcomes.clone(),
                secret_errors: self.secret_errors.clone(),
                ..Self::build(state)
            };
        }
        let mut next = Self {
            state: state.clone(),
            id: Arc::default(),
            ..self.clone()
        };
        let (before, after) = (&old.objects, &new.objects);
        let mut names_stay = true;
        let mut services = BTreeSet::new();
        if !old.services.ptr_eq(&new.services) || !before.namespaces.ptr_eq(&after.namespaces) {
            let (index, dirty) = self.services.next(old, new);
            next.services = Arc::new(index);
            services = dirty;
        }
        let mut virtual_services = BTreeSet::new();
        if !before.virtual_services.ptr_eq(&after.virtual_services) {
            let (index, dirty) = self.virtual_services.next(old, new);
            next.virtual_services = Arc::new(index);
            virtual_services = dirty;
            names_stay = false;
        }
        let mut destination_rules = BTreeSet::new();
        if !before.destination_rules.ptr_eq(&after.destination_rules) {
            let (index, dirty) = self.destination_rules.next(old, new);
            next.destination_rules = Arc::new(index);
            destination_rules = dirty;
            names_stay = false;
        }
        let sidecars = !before.sidecars.ptr_eq(&after.sidecars);
        if sidecars {
            next.sidecars = Arc::new(SidecarIndex::build(new));
            names_stay = false;
        }
        let authn_stays = before
            .peer_authentications
            .ptr_eq(&after.peer_authentications)
            && before
                .request_authentications
                .ptr_eq(&after.request_authentications);
        if !authn_stays {
            next.authn = Arc::new(self.authn.next(old, new));
            names_stay = false;
        }
        if !before.workload_entries.ptr_eq(&after.workload_entries) {
            let table = (&before.workload_entries, &after.workload_entries);
            next.workload_entries = Arc::new(self.workload_entries.next(table.0, table.1));
        }
        if !PolicyIndex::is_current(old, new) {
            next.policies = Arc::new(self.policies.next(old, new));
            names_stay = false;
        }
        if !before.proxy_configs.ptr_eq(&after.proxy_configs) {
            next.proxy_configs = Arc::new(self.proxy_configs.next(old, new));
            names_stay = false;
        }
        let gateways_stay = before.gateways.ptr_eq(&after.gateways);
        if !gateways_stay {
            next.gateways = Arc::new(self.gateways.next(&before.gateways, &after.gateways));
            names_stay = false;
        }
        if !names_stay {
            next.named = Arc::default();
        }
        let waypoints_stay = !new.features.ambient
            || (old.services.ptr_eq(&new.services)
                && before.namespaces.ptr_eq(&after.namespaces)
                && before.pods.ptr_eq(&after.pods)
                && before.workload_entries.ptr_eq(&after.workload_entries)
                && before
                    .kubernetes_gateways
                    .ptr_eq(&after.kubernetes_gateways));
        if !waypoints_stay {
            next.waypoints = Arc::default();
        }
        let changes = Changes {
            old: self,
            new: &next,
            services,
            virtual_services,
            destination_rules,
            sidecars,
        };
        let step = Step::new(&changes);
        if !changes.is_empty() || !gateways_stay || !waypoints_stay {
            let scopes = Arc::new(self.scopes.carry(&changes));
            next.scopes = scopes;
            next.classes = Arc::new(self.classes.succeed());
        }
        next.step = Some(Arc::new(step));
        next
    }

    /// Mesh configuration with defaults.
    pub fn mesh(&self) -> &Arc<api::MeshConfig> {
        &self.state.mesh
    }

    /// Configured networks.
    pub fn networks(&self) -> &Arc<api::MeshNetworks> {
        &self.state.networks
    }

    /// Feature flags.
    pub fn features(&self) -> &Arc<Features> {
        &self.state.features
    }

    /// Domain, cluster id, revision.
    pub fn identity(&self) -> &Arc<MeshIdentity> {
        &self.state.identity
    }

    /// The objects and registry data that the snapshot was built from.
    pub fn state(&self) -> &MeshState {
        &self.state
    }

    /// Namespace of mesh-wide objects.
    pub fn root_namespace(&self) -> &str {
        self.state.root_namespace()
    }

    /// Services by visibility and host.
    pub fn services(&self) -> &ServiceIndex {
        &self.services
    }

    /// VirtualServices by gateway.
    pub fn virtual_services(&self) -> &VirtualServiceIndex {
        &self.virtual_services
    }

    /// DestinationRules.
    pub fn destination_rules(&self) -> &DestinationRuleIndex {
        &self.destination_rules
    }

    /// All policies; snapshots between which none changed share them.
    pub fn policies(&self) -> &Arc<PolicyIndex> {
        &self.policies
    }

    /// What became of the patches of EnvoyFilters: here and in all snapshots that this one follows
    /// or that follow it.
    pub fn patch_outcomes(&self) -> &Arc<PatchOutcomes> {
        &self.patch_outcomes
    }

    /// Counts secrets that are not served: here and in all snapshots that this one follows or that
    /// follow it.
    pub fn secret_errors(&self) -> &Arc<SecretErrors> {
        &self.secret_errors
    }

    /// Endpoints of a service key; `None` when it has none.
    pub fn endpoints(&self, key: &ServiceKey) -> Option<&Arc<ServiceEndpoints>> {
        self.state.endpoints.get(key)
    }

    /// Endpoints of a service; `None` when it has none.
    pub fn endpoints_of(&self, service: &Service) -> Option<&Arc<ServiceEndpoints>> {
        self.state.endpoints.get(&KeyOf(service))
    }

    /// Tells whether clients of `namespace` may refer to a service.
    pub fn is_visible(&self, service: &Service, namespace: &str) -> bool {
        self.services.is_visible(service, namespace)
    }

    /// Tells whether traffic to a host stays in the client's cluster (config-model §9.3).
    pub fn is_cluster_local(&self, hostname: &str) -> bool {
        self.cluster_local.contains(hostname)
    }
}

/// Tells whether nothing changed that every index depends on.
fn same_settings(old: &MeshState, new: &MeshState) -> bool {
    same(&old.mesh, &new.mesh)
        && same(&old.networks, &new.networks)
        && same(&old.features, &new.features)
        && same(&old.identity, &new.identity)
}

fn same<T: PartialEq>(old: &Arc<T>, new: &Arc<T>) -> bool {
    Arc::ptr_eq(old, new) || old == new
}

/// The key of a service, to look up what is kept by it without making one.
struct KeyOf<'a>(&'a Service);

impl Equivalent<ServiceKey> for KeyOf<'_> {
    fn equivalent(&self, key: &ServiceKey) -> bool {
        self.compare(key).is_eq()
    }
}

impl Comparable<ServiceKey> for KeyOf<'_> {
    fn compare(&self, key: &ServiceKey) -> Ordering {
        // Names of namespaces are shared: most often the addresses tell without a look at the text.
        let (namespace, other) = (&self.0.attributes.namespace, &key.namespace);
        let by_namespace = if Arc::ptr_eq(namespace, other) {
            Ordering::Equal
        } else {
            namespace.cmp(other)
        };
        by_namespace.then_with(|| self.0.hostname.cmp(&key.hostname))
    }
}
