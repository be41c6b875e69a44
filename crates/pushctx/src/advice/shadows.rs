//! VirtualServices that sidecars never use, because another one of the host comes first.

use std::{collections::BTreeMap, sync::Arc};

use super::{Advice, is_for_all_of_the_mesh, key, name, resolved};
use crate::{PushContext, ResolvedVirtualService, RouteSemantics};

pub(super) fn check(context: &PushContext, advice: &mut Vec<Advice>) {
    let mut seen: BTreeMap<Arc<str>, Firsts> = BTreeMap::new();
    for vs in resolved(context) {
        if vs.semantics != RouteSemantics::Istio
            || vs.config.spec.http.is_empty()
            || !vs.gateways().any(|gateway| gateway == "mesh")
        {
            continue;
        }
        let Some(namespace) = audience(vs) else {
            continue;
        };
        let firsts = seen.entry(namespace.clone()).or_insert_with(|| {
            Firsts::of(context.virtual_services().for_gateway(&namespace, "mesh"))
        });
        for (at, host) in vs.config.spec.hosts.iter().enumerate() {
            let Some(first) = firsts.before(vs, host) else {
                continue;
            };
            advice.push(Advice {
                object: key(&vs.config),
                field: format!("spec.hosts[{at}]"),
                reason: format!(
                    "sidecars never use these HTTP rules for {host}: {} has the host too and comes \
                     first, and rules of several are not merged",
                    name(&key(&first.config))
                ),
            });
        }
    }
}

/// A namespace whose sidecars see a VirtualService: its own when they do.
fn audience(vs: &ResolvedVirtualService) -> Option<Arc<str>> {
    let own = &vs.config.meta.namespace;
    if vs.export_to.contains("*") {
        return Some(own.clone());
    }
    if vs.export_to.contains("~") {
        return None;
    }
    let mut namespaces = vs.export_to.0.iter();
    if namespaces.clone().any(|namespace| **namespace == **own) {
        return Some(own.clone());
    }
    namespaces.next().map(|namespace| namespace.as_str().into())
}

/// For each host, the first VirtualService that has HTTP rules for every client, with its place in
/// the order.
struct Firsts {
    by_host: BTreeMap<String, (usize, Arc<ResolvedVirtualService>)>,
    order: Vec<Arc<ResolvedVirtualService>>,
}

impl Firsts {
    fn of(order: Vec<Arc<ResolvedVirtualService>>) -> Self {
        let mut by_host = BTreeMap::new();
        for (at, vs) in order.iter().enumerate() {
            let spec = &vs.config.spec;
            if vs.semantics == RouteSemantics::Istio && spec.http.iter().any(is_for_all_of_the_mesh)
            {
                for host in &spec.hosts {
                    let entry = by_host.entry(host.to_ascii_lowercase());
                    entry.or_insert_with(|| (at, vs.clone()));
                }
            }
        }
        Self { by_host, order }
    }

    /// The first of a host, if it comes before this one.
    fn before(
        &self,
        vs: &ResolvedVirtualService,
        host: &str,
    ) -> Option<&Arc<ResolvedVirtualService>> {
        let (place, first) = self.by_host.get(&host.to_ascii_lowercase())?;
        let own =
            |other: &&Arc<ResolvedVirtualService>| other.sources.first() == vs.sources.first();
        let is_before = !self.order.iter().take(place + 1).any(|other| own(&other));
        is_before.then_some(first)
    }
}
