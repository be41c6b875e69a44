//! Which authorization policies, Telemetry objects, EnvoyFilters and extensions apply to a workload
//! (config-model §14.3-§14.6).

mod extension;

use std::sync::Arc;

use model::{
    Config, MeshState, Meta,
    api::{
        AuthorizationPolicy, EnvoyFilter, Telemetry, TrafficExtension,
        envoy_filter::{ApplyTo, Operation, Patch},
        security::AuthorizationAction,
    },
};

use crate::{
    PushContext, Workload,
    attach::{ByNamespace, is_namespace_wide},
};

pub use extension::{ExtensionQuery, FilterChainKind, TrafficSide};

/// What patches of an EnvoyFilter change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchTarget {
    /// Clusters.
    Clusters,
    /// Listeners, and what is in them.
    Listeners,
    /// Route configurations, and what is in them, also where a listener holds them.
    Routes,
    /// Extension configurations.
    Extensions,
    /// Nothing that is served here.
    Nothing,
}

impl PatchTarget {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [
        Self::Clusters,
        Self::Listeners,
        Self::Routes,
        Self::Extensions,
        Self::Nothing,
    ];

    /// What patches with this `applyTo` change.
    pub const fn of(apply_to: ApplyTo) -> Self {
        match apply_to {
            ApplyTo::Cluster => Self::Clusters,
            ApplyTo::Listener
            | ApplyTo::ListenerFilter
            | ApplyTo::FilterChain
            | ApplyTo::NetworkFilter
            | ApplyTo::HttpFilter => Self::Listeners,
            ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute => Self::Routes,
            ApplyTo::ExtensionConfig => Self::Extensions,
            ApplyTo::Bootstrap | ApplyTo::Invalid => Self::Nothing,
        }
    }

    /// Tells whether a filter has such patches; one without any changes nothing.
    fn is_of(self, filter: &EnvoyFilter) -> bool {
        let patches = &filter.config_patches;
        let mut targets = patches.iter().map(|patch| Self::of(patch.apply_to));
        (patches.is_empty() && self == Self::Nothing) || targets.any(|target| target == self)
    }
}

/// Policies by namespace.
#[derive(Clone, Default, Debug)]
pub struct PolicyIndex {
    authorization: ByNamespace<AuthorizationPolicy>,
    telemetry: ByNamespace<Telemetry>,
    /// EnvoyFilters by [`PatchTarget`]: whoever patches one kind of resource does not meet the others.
    envoy_filter: [ByNamespace<EnvoyFilter>; PatchTarget::ALL.len()],
    /// Those EnvoyFilters that may give clusters other names.
    renaming: ByNamespace<EnvoyFilter>,
    /// `WasmPlugins` are among them, translated.
    extension: ByNamespace<TrafficExtension>,
}

impl PolicyIndex {
    pub(crate) fn build(state: &MeshState) -> Self {
        Self::default().next(&MeshState::default(), state)
    }

    /// Brings the index from `old` to `new`; untouched namespaces are shared.
    pub(crate) fn next(&self, old: &MeshState, new: &MeshState) -> Self {
        let (old, new) = (&old.objects, &new.objects);
        Self {
            authorization: self
                .authorization
                .next(&old.authorization_policies, &new.authorization_policies),
            telemetry: self.telemetry.next(&old.telemetries, &new.telemetries),
            envoy_filter: PatchTarget::ALL.map(|target| {
                let index = &self.envoy_filter[target as usize];
                index.next_of(&old.envoy_filters, &new.envoy_filters, |filter| {
                    target.is_of(filter)
                })
            }),
            renaming: self.renaming.next_of(
                &old.envoy_filters,
                &new.envoy_filters,
                may_rename_clusters,
            ),
            extension: extension::next(&self.extension, old, new),
        }
    }

    /// Tells whether the objects behind the index are the same ones.
    pub(crate) fn is_current(old: &MeshState, new: &MeshState) -> bool {
        let (old, new) = (&old.objects, &new.objects);
        old.authorization_policies
            .ptr_eq(&new.authorization_policies)
            && old.telemetries.ptr_eq(&new.telemetries)
            && old.envoy_filters.ptr_eq(&new.envoy_filters)
            && old.traffic_extensions.ptr_eq(&new.traffic_extensions)
            && old.wasm_plugins.ptr_eq(&new.wasm_plugins)
    }
}

/// The authorization policies of a workload by action, each list in order: those of the root
/// namespace, of the workload's, of its services'; by creation within a namespace.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct AuthorizationPolicies {
    /// `CUSTOM`.
    pub custom: Vec<Arc<Config<AuthorizationPolicy>>>,
    /// `DENY`.
    pub deny: Vec<Arc<Config<AuthorizationPolicy>>>,
    /// `ALLOW`.
    pub allow: Vec<Arc<Config<AuthorizationPolicy>>>,
    /// `AUDIT`.
    pub audit: Vec<Arc<Config<AuthorizationPolicy>>>,
}

impl PushContext {
    /// Finds the authorization policies of a workload.
    pub fn authorization_policies(&self, workload: &Workload<'_>) -> AuthorizationPolicies {
        let services = workload.services.iter().map(|s| &*s.attributes.namespace);
        let namespaces = [self.root_namespace(), workload.namespace]
            .into_iter()
            .chain(services);
        let mut policies = AuthorizationPolicies::default();
        for policy in self.policies.authorization.of_all(namespaces) {
            if workload.is_target_of(&policy.meta, &policy.spec, self.state()) {
                let list = match policy.spec.action {
                    AuthorizationAction::Custom => &mut policies.custom,
                    AuthorizationAction::Deny => &mut policies.deny,
                    AuthorizationAction::Allow => &mut policies.allow,
                    AuthorizationAction::Audit => &mut policies.audit,
                };
                list.push(policy.clone());
            }
        }
        policies
    }

    /// Lists the Telemetry objects of a workload, later ones override earlier ones: of the root
    /// namespace and of the workload's the oldest that is for all of it, of a waypoint's service
    /// likewise, then every one that attaches in the last of these namespaces
    /// (telemetry-extensions §2).
    pub fn telemetries(&self, workload: &Workload<'_>) -> Vec<Arc<Config<Telemetry>>> {
        let index = &self.policies.telemetry;
        let wide = |namespace: &str| {
            index
                .of(namespace)
                .iter()
                .find(|t| is_namespace_wide(&t.spec))
                .cloned()
        };
        let root = self.root_namespace();
        let mut layers: Vec<_> = wide(root).into_iter().collect();
        if workload.namespace != root {
            layers.extend(wide(workload.namespace));
        }
        let mut namespace = workload.namespace;
        if workload.is_waypoint
            && let Some(service) = workload.services.first()
            && *service.attributes.namespace != *namespace
        {
            namespace = &service.attributes.namespace;
            layers.extend(wide(namespace));
        }
        let attached = index.of(namespace).iter().filter(|t| {
            !is_namespace_wide(&t.spec) && workload.is_target_of(&t.meta, &t.spec, self.state())
        });
        layers.extend(attached.cloned());
        layers
    }

    /// Lists the EnvoyFilters of a workload that have patches of some targets, in the order in which
    /// their patches apply: by priority, those of the root namespace first, by creation time, by
    /// `name.namespace` (envoyfilter §5, §6). Conditions on the proxy are those of single patches and
    /// not looked at.
    pub fn envoy_filters(
        &self,
        workload: &Workload<'_>,
        targets: &[PatchTarget],
    ) -> Vec<Arc<Config<EnvoyFilter>>> {
        let root = self.root_namespace();
        let indexes = targets
            .iter()
            .map(|target| &self.policies.envoy_filter[*target as usize]);
        let filters = indexes.flat_map(|index| self.attached(index, workload));
        let mut filters: Vec<_> = filters.cloned().collect();
        filters.sort_by(|a, b| {
            let order = |f: &Config<EnvoyFilter>| {
                (f.spec.priority, *f.meta.namespace != *root, f.meta.created)
            };
            order(a)
                .cmp(&order(b))
                .then_with(|| full_name(&a.meta).cmp(full_name(&b.meta)))
        });
        filters.dedup_by(|a, b| Arc::ptr_eq(a, b));
        filters
    }

    /// Tells whether an EnvoyFilter of a workload may give clusters other names than those of their
    /// services.
    pub fn may_rename_clusters(&self, workload: &Workload<'_>) -> bool {
        let mut renaming = self.attached(&self.policies.renaming, workload);
        renaming.next().is_some()
    }

    /// Lists those EnvoyFilters of an index that attach to a workload.
    fn attached<'a>(
        &'a self,
        index: &'a ByNamespace<EnvoyFilter>,
        workload: &'a Workload<'a>,
    ) -> impl Iterator<Item = &'a Arc<Config<EnvoyFilter>>> {
        // Service targets never match: filters are not selected for a service.
        let workload = Workload {
            services: &[],
            ..*workload
        };
        let filters = index.of_all([self.root_namespace(), workload.namespace]);
        filters.filter(move |f| workload.is_target_of(&f.meta, &f.spec, self.state()))
    }
}

/// Tells whether a patch of a filter may change the name of a cluster.
fn may_rename_clusters(filter: &EnvoyFilter) -> bool {
    let names = |patch: &Patch| {
        let named = patch
            .value
            .as_ref()
            .is_some_and(|v| v.get("name").is_some());
        named && matches!(patch.operation, Operation::Merge | Operation::Replace)
    };
    let mut of_clusters = filter
        .config_patches
        .iter()
        .filter(|patch| patch.apply_to == ApplyTo::Cluster);
    of_clusters.any(|patch| patch.patch.as_ref().is_some_and(names))
}

/// The bytes of `name.namespace`.
fn full_name(meta: &Meta) -> impl Iterator<Item = u8> + '_ {
    let (name, namespace) = (meta.name.bytes(), meta.namespace.bytes());
    name.chain([b'.']).chain(namespace)
}

#[cfg(test)]
mod tests;
