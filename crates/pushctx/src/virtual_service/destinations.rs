//! Where VirtualServices send traffic.

use std::collections::{BTreeMap, BTreeSet};

use model::api::{VirtualService, common::Destination, virtual_service::HttpRoute};

/// Lists the destination hosts of a VirtualService with their ports; 0 stands for "no port given".
/// Of the HTTP routes only the `wanted` ones count.
pub(crate) fn destinations<'a>(
    spec: &'a VirtualService,
    wanted: impl Fn(&HttpRoute) -> bool,
) -> BTreeMap<&'a str, BTreeSet<u32>> {
    let mut result: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let mut add = |destination: Option<&'a Destination>| {
        if let Some(d) = destination {
            let port = d.port.as_ref().map_or(0, |p| p.number);
            result.entry(&d.host).or_default().insert(port);
        }
    };
    for route in spec.http.iter().filter(|route| wanted(route)) {
        route.route.iter().for_each(|r| add(r.destination.as_ref()));
        add(route.mirror.as_ref());
        route
            .mirrors
            .iter()
            .for_each(|m| add(m.destination.as_ref()));
    }
    let tls = spec.tls.iter().flat_map(|route| &route.route);
    let tcp = spec.tcp.iter().flat_map(|route| &route.route);
    tls.chain(tcp).for_each(|r| add(r.destination.as_ref()));
    result
}

/// Tells whether a route is for callers of a namespace: no match names a source namespace, or some
/// match names this one.
pub(crate) fn is_for_callers_in(route: &HttpRoute, namespace: &str) -> bool {
    let mut named = route
        .r#match
        .iter()
        .map(|m| &*m.source_namespace)
        .filter(|n| !n.is_empty());
    named.clone().next().is_none() || named.any(|n| n == namespace)
}
