//! VirtualServices with names expanded and delegates merged, by gateway (config-model §10).

use std::{collections::BTreeMap, sync::Arc};

use model::{Config, ConfigKey, ExportTo, api};

/// Which translator wrote a VirtualService; changes how its hosts match.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RouteSemantics {
    /// A user's VirtualService.
    #[default]
    Istio,
    /// Made from a Kubernetes Ingress.
    Ingress,
    /// Made from Gateway API routes.
    Gateway,
}

/// A VirtualService ready for use: short names expanded, delegates merged in.
#[derive(Clone, PartialEq, Debug)]
pub struct ResolvedVirtualService {
    /// Metadata of the root object and the resolved content.
    pub config: Config<api::VirtualService>,
    /// Effective export set; `.` is rewritten to the namespace.
    pub export_to: ExportTo,
    /// Who wrote it.
    pub semantics: RouteSemantics,
    /// The root and every delegate that went in.
    pub sources: Vec<ConfigKey>,
    /// Content hash.
    pub fingerprint: u64,
}

/// VirtualServices by gateway (`mesh` or `ns/name`) and visibility, in creation order.
#[derive(Clone, Default, Debug)]
pub struct VirtualServiceIndex {
    pub(crate) private: BTreeMap<(Arc<str>, String), Vec<Arc<ResolvedVirtualService>>>,
    pub(crate) exported: BTreeMap<(Arc<str>, String), Vec<Arc<ResolvedVirtualService>>>,
    pub(crate) public: BTreeMap<String, Vec<Arc<ResolvedVirtualService>>>,
}

impl VirtualServiceIndex {
    /// Lists the VirtualServices of one gateway (or `mesh`) for a gateway proxy of `namespace`
    /// (config-model §10.4).
    pub fn for_gateway(&self, namespace: &str, gateway: &str) -> Vec<Arc<ResolvedVirtualService>> {
        let own = |list: &BTreeMap<(Arc<str>, String), Vec<Arc<ResolvedVirtualService>>>| {
            list.get(&(Arc::from(namespace), gateway.to_owned()))
                .cloned()
                .unwrap_or_default()
        };
        let public = self
            .public
            .get(gateway)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let gateway_api_here = |vs: &Arc<ResolvedVirtualService>| {
            vs.semantics == RouteSemantics::Gateway && &*vs.config.meta.namespace == namespace
        };
        let mut result = own(&self.private);
        result.extend(own(&self.exported));
        result.extend(public.iter().filter(|vs| gateway_api_here(vs)).cloned());
        result.extend(public.iter().filter(|vs| !gateway_api_here(vs)).cloned());
        result
    }
}
