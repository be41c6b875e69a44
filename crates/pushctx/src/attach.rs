//! Which policies attach to which workload (config-model §14.1), and policies by namespace.

use std::{collections::BTreeSet, sync::Arc};

use imbl::OrdMap;
use model::{
    Config, Labels, MeshState, Meta, NamespacedName, Service, Table,
    api::{
        AuthorizationPolicy, EnvoyFilter, PeerAuthentication, RequestAuthentication, Telemetry,
        TrafficExtension, common::PolicyTargetReference,
    },
    selects,
    service::Registry,
};

use crate::{diff, order::CreationOrder};

/// The label that names the Gateway API gateway of a workload.
pub(crate) const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// A workload as policies see it.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub labels: &'a Labels,
    /// It is a waypoint.
    pub is_waypoint: bool,
    /// The services that a waypoint handles; empty for all other workloads.
    pub services: &'a [Arc<Service>],
}

/// A policy that names the workloads it is for.
pub(crate) trait Attachable {
    /// The labels of its selector; `None` when it has none.
    fn selector(&self) -> Option<&Labels>;

    /// The resources it attaches to.
    fn target_refs(&self) -> &[PolicyTargetReference] {
        &[]
    }
}

/// `targetRef` counts when `targetRefs` is empty.
fn refs<'a>(
    many: &'a [PolicyTargetReference],
    one: Option<&'a PolicyTargetReference>,
) -> &'a [PolicyTargetReference] {
    if many.is_empty() {
        one.map_or(&[], std::slice::from_ref)
    } else {
        many
    }
}

macro_rules! attachable {
    ($($type:ty: $selector:ident.$labels:ident, $refs:expr;)*) => { $(
        impl Attachable for $type {
            fn selector(&self) -> Option<&Labels> {
                self.$selector.as_ref().map(|s| &s.$labels)
            }

            fn target_refs(&self) -> &[PolicyTargetReference] {
                let get: fn(&Self) -> &[PolicyTargetReference] = $refs;
                get(self)
            }
        }
    )* };
}

attachable! {
    PeerAuthentication: selector.match_labels, |_| &[];
    RequestAuthentication: selector.match_labels, |p| refs(&p.target_refs, p.target_ref.as_ref());
    AuthorizationPolicy: selector.match_labels, |p| refs(&p.target_refs, p.target_ref.as_ref());
    Telemetry: selector.match_labels, |p| refs(&p.target_refs, p.target_ref.as_ref());
    TrafficExtension: selector.match_labels, |p| &p.target_refs;
    EnvoyFilter: workload_selector.labels, |p| &p.target_refs;
}

/// Tells whether a policy is for its whole namespace: no selector, or an empty one, and no targets.
pub(crate) fn is_namespace_wide(policy: &impl Attachable) -> bool {
    policy.selector().is_none_or(Labels::is_empty) && policy.target_refs().is_empty()
}

impl Workload<'_> {
    /// Tells whether a policy attaches to the workload.
    pub(crate) fn is_target_of(
        &self,
        meta: &Meta,
        policy: &impl Attachable,
        state: &MeshState,
    ) -> bool {
        let refs = policy.target_refs();
        let selected = || self.is_selected_by(policy);
        let Some(gateway) = self.labels.get(GATEWAY_NAME) else {
            return refs.is_empty() && selected();
        };
        if refs.is_empty() {
            let may_select = state.features.selector_based_gateway_policy;
            return !self.is_waypoint && may_select && selected();
        }
        refs.iter().any(|target| {
            let namespace = &*meta.namespace;
            match (target.group.as_str(), target.kind.as_str()) {
                ("gateway.networking.k8s.io", "Gateway") => {
                    let in_own = target.namespace.is_empty() || target.namespace == *namespace;
                    in_own && namespace == self.namespace && target.name == *gateway
                }
                ("gateway.networking.k8s.io", "GatewayClass") => {
                    self.is_waypoint
                        && target.name == "istio-waypoint"
                        && namespace == state.root_namespace()
                }
                ("" | "core", "Service") => {
                    self.is_waypoint && self.handles(target, namespace, Registry::Kubernetes)
                }
                ("networking.istio.io", "ServiceEntry") => {
                    self.is_waypoint && self.handles(target, namespace, Registry::External)
                }
                _ => false,
            }
        })
    }

    /// Tells whether the selector of a policy, and nothing else, chooses the workload.
    pub(crate) fn is_selected_by(&self, policy: &impl Attachable) -> bool {
        policy
            .selector()
            .is_none_or(|selector| selects(selector, self.labels))
    }

    fn handles(&self, target: &PolicyTargetReference, namespace: &str, registry: Registry) -> bool {
        self.services.iter().any(|service| {
            let attributes = &service.attributes;
            let object = &attributes.object_name;
            let name = if object.is_empty() {
                &attributes.name
            } else {
                object
            };
            **name == *target.name
                && *attributes.namespace == *namespace
                && attributes.registry == registry
        })
    }
}

/// Objects of one kind by namespace, each list in creation order.
#[derive(Debug)]
pub(crate) struct ByNamespace<T>(OrdMap<Arc<str>, List<T>>);

/// Objects in creation order.
type List<T> = Arc<[Arc<Config<T>>]>;

impl<T> Clone for ByNamespace<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for ByNamespace<T> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<T: PartialEq> ByNamespace<T> {
    pub(crate) fn build(table: &Table<T>) -> Self {
        Self::default().next(&Table::new(), table)
    }

    /// Brings the lists from `old` to `new`; untouched namespaces are shared.
    pub(crate) fn next(&self, old: &Table<T>, new: &Table<T>) -> Self {
        self.next_of(old, new, |_| true)
    }

    /// The same for an index of only `some`; changes of others touch nothing.
    pub(crate) fn next_of(
        &self,
        old: &Table<T>,
        new: &Table<T>,
        some: impl Fn(&T) -> bool,
    ) -> Self {
        let dirty = diff::changes(old, new)
            .filter(|change| change.sides().any(|object| some(&object.spec)))
            .map(|change| change.key().namespace.clone())
            .collect();
        self.rebuild(dirty, |namespace| {
            let objects = of_namespace(new, namespace);
            objects.filter(|o| some(&o.spec)).cloned().collect()
        })
    }

    /// Replaces the lists of some namespaces by what `list` makes of them.
    pub(crate) fn rebuild(
        &self,
        namespaces: BTreeSet<Arc<str>>,
        list: impl Fn(&str) -> Vec<Arc<Config<T>>>,
    ) -> Self {
        let mut index = self.clone();
        for namespace in namespaces {
            let mut list = list(&namespace);
            list.sort_by(|a, b| a.by_creation(b));
            if list.is_empty() {
                index.0.remove(&namespace);
            } else {
                index.0.insert(namespace, list.into());
            }
        }
        index
    }

    /// The objects of one namespace, in creation order.
    pub(crate) fn of(&self, namespace: &str) -> &[Arc<Config<T>>] {
        self.0.get(namespace).map_or(&[], |list| list)
    }

    /// Lists the objects of several namespaces in the order given, each namespace once.
    pub(crate) fn of_all<'s, 'n>(
        &'s self,
        namespaces: impl IntoIterator<Item = &'n str>,
    ) -> impl Iterator<Item = &'s Arc<Config<T>>> {
        let mut seen = BTreeSet::new();
        namespaces
            .into_iter()
            .filter(move |namespace| seen.insert(*namespace))
            .flat_map(|namespace| self.of(namespace))
    }

    /// All lists.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &[Arc<Config<T>>])> {
        self.0.iter().map(|(namespace, list)| (namespace, &**list))
    }
}

/// Lists the objects of one namespace, by name.
pub(crate) fn of_namespace<'a, T>(
    table: &'a Table<T>,
    namespace: &'a str,
) -> impl Iterator<Item = &'a Arc<Config<T>>> {
    table
        .range(NamespacedName::new(namespace, "")..)
        .take_while(move |(name, _)| *name.namespace == *namespace)
        .map(|(_, object)| object)
}
