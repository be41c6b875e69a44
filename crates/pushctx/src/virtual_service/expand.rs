//! Expansion of short names in a VirtualService (config-model §7, §10.1).

use std::borrow::Cow;

use model::{
    api::{VirtualService, common::Destination},
    host,
};

/// Expands every host and gateway that `spec`, an object of `namespace`, names.
pub(crate) fn expand(spec: &mut VirtualService, namespace: &str, domain: &str) {
    let host = |name: &mut String| replace(name, |n| host::expand(n, namespace, domain));
    let gateway = |name: &mut String| replace(name, |n| host::expand_gateway(n, namespace));
    let destination = |d: Option<&mut Destination>| {
        if let Some(d) = d {
            replace(&mut d.host, |n| host::expand(n, namespace, domain));
        }
    };
    spec.hosts.iter_mut().for_each(host);
    spec.gateways.iter_mut().for_each(gateway);
    for route in &mut spec.http {
        route
            .r#match
            .iter_mut()
            .flat_map(|m| &mut m.gateways)
            .for_each(gateway);
        route
            .route
            .iter_mut()
            .for_each(|r| destination(r.destination.as_mut()));
        destination(route.mirror.as_mut());
        route
            .mirrors
            .iter_mut()
            .for_each(|m| destination(m.destination.as_mut()));
    }
    for route in &mut spec.tls {
        route
            .r#match
            .iter_mut()
            .flat_map(|m| &mut m.gateways)
            .for_each(gateway);
        route
            .route
            .iter_mut()
            .for_each(|r| destination(r.destination.as_mut()));
    }
    for route in &mut spec.tcp {
        route
            .r#match
            .iter_mut()
            .flat_map(|m| &mut m.gateways)
            .for_each(gateway);
        route
            .route
            .iter_mut()
            .for_each(|r| destination(r.destination.as_mut()));
    }
}

/// Tells whether [`expand`] would change anything.
pub(super) fn has_short_names(spec: &VirtualService, namespace: &str, domain: &str) -> bool {
    let host = |name: &String| matches!(host::expand(name, namespace, domain), Cow::Owned(_));
    let gateway = |name: &String| matches!(host::expand_gateway(name, namespace), Cow::Owned(_));
    let destination = |d: Option<&Destination>| d.is_some_and(|d| host(&d.host));
    spec.hosts.iter().any(host)
        || spec.gateways.iter().any(gateway)
        || spec.http.iter().any(|route| {
            route.r#match.iter().flat_map(|m| &m.gateways).any(gateway)
                || route
                    .route
                    .iter()
                    .any(|r| destination(r.destination.as_ref()))
                || destination(route.mirror.as_ref())
                || route
                    .mirrors
                    .iter()
                    .any(|m| destination(m.destination.as_ref()))
        })
        || spec.tls.iter().any(|route| {
            route.r#match.iter().flat_map(|m| &m.gateways).any(gateway)
                || route
                    .route
                    .iter()
                    .any(|r| destination(r.destination.as_ref()))
        })
        || spec.tcp.iter().any(|route| {
            route.r#match.iter().flat_map(|m| &m.gateways).any(gateway)
                || route
                    .route
                    .iter()
                    .any(|r| destination(r.destination.as_ref()))
        })
}

fn replace(name: &mut String, expand: impl FnOnce(&str) -> Cow<'_, str>) {
    let expanded = match expand(name) {
        Cow::Borrowed(_) => return,
        Cow::Owned(expanded) => expanded,
    };
    *name = expanded;
}
