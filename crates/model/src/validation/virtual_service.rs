//! VirtualService (config-model.md §5.1).

mod http;
mod unreachable;

use super::selectors::{self, Exported};
use super::text;
use super::{Scope, names};
use crate::Meta;
use crate::api::common::{Destination, Labels};
use crate::api::virtual_service::{RouteDestination, TcpRoute, TlsRoute, VirtualService};
use crate::host;

/// Annotation that marks what translators made; such objects may break rules on names.
pub(super) const ROUTE_SEMANTICS: &str = "internal.istio.io/route-semantics";

/// Start of the names of header matches on claims of a token.
const CLAIM_PREFIX: &str = "@request.auth.claims";

/// The gateway that stands for sidecars.
const MESH: &str = "mesh";

/// What the checks of single routes need to know of the whole.
struct Whole<'a> {
    spec: &'a VirtualService,
    is_delegate: bool,
    /// Made by the translator of Gateway API.
    is_generated: bool,
}

pub(super) fn validate(spec: &VirtualService, meta: &Meta, scope: &Scope<'_>) {
    let whole = Whole {
        spec,
        is_delegate: spec.hosts.is_empty(),
        is_generated: meta
            .annotations
            .get(ROUTE_SEMANTICS)
            .is_some_and(|value| value == "gateway"),
    };
    if whole.is_delegate {
        delegate(spec, scope);
    } else {
        gateways(&scope.field("gateways"), &spec.gateways, whole.is_generated);
        let for_mesh = spec.gateways.is_empty() || spec.gateways.iter().any(|name| name == MESH);
        if for_mesh {
            claims(spec, scope);
        }
        hosts(spec, scope, for_mesh);
    }
    if spec.http.is_empty() && spec.tls.is_empty() && spec.tcp.is_empty() {
        scope.error("there are no http, tls or tcp routes");
    }
    scope.each("http", &spec.http, |scope, route| {
        http::validate(route, &whole, scope);
    });
    scope.each("tls", &spec.tls, |scope, route| {
        tls_route(route, &whole, scope);
    });
    scope.each("tcp", &spec.tcp, |scope, route| {
        tcp_route(route, &whole, scope);
    });
    selectors::export_to(scope, &spec.export_to, &meta.namespace, Exported::Other);
    unreachable::warn(spec, scope);
}

fn delegate(spec: &VirtualService, scope: &Scope<'_>) {
    let reason = "a virtual service without hosts is a delegate, which cannot have this field";
    if !spec.gateways.is_empty() {
        scope.field("gateways").error(reason);
    }
    if !spec.tls.is_empty() {
        scope.field("tls").error(reason);
    }
    if !spec.tcp.is_empty() {
        scope.field("tcp").error(reason);
    }
}

fn hosts(spec: &VirtualService, scope: &Scope<'_>, for_mesh: bool) {
    let mut all_valid = true;
    scope.each("hosts", &spec.hosts, |scope, host| {
        let verdict = match names::wildcard_domain(host) {
            Err(reason) if !names::is_ip(host) => Err(reason),
            _ if for_mesh && host == "*" => {
                Err("the host \"*\" is not allowed for sidecars, only for gateways".to_owned())
            }
            _ => Ok(()),
        };
        all_valid &= verdict.is_ok();
        scope.check(verdict);
    });
    if !all_valid {
        return;
    }
    for (index, host) in spec.hosts.iter().enumerate() {
        if let Some(other) = spec.hosts[..index]
            .iter()
            .find(|other| host::matches(host, other))
        {
            scope
                .field("hosts")
                .index(index)
                .error(format_args!("{host:?} overlaps with {other:?}"));
        }
    }
}

/// Checks references to gateways: `mesh`, `namespace/name` or a name of the own namespace.
fn gateways(scope: &Scope<'_>, gateways: &[String], is_generated: bool) {
    for (index, gateway) in gateways.iter().enumerate() {
        let scope = scope.index(index);
        let Some((namespace, name)) = gateway.split_once('/') else {
            let mut parts = gateway.split('.');
            if let (Some(name), Some(namespace)) = (parts.next(), parts.next()) {
                scope.warning(format_args!(
                    "write {namespace}/{name} instead of {gateway:?}"
                ));
            }
            scope.check(names::fqdn(gateway));
            continue;
        };
        if !names::is_dns_label(namespace) {
            scope.error(format_args!(
                "{gateway:?}: {namespace:?} is not a namespace, the form is namespace/name or name"
            ));
        }
        if !is_generated && !names::is_dns_label(name) {
            scope.error(format_args!(
                "{gateway:?}: {name:?} is not the name of a gateway"
            ));
        }
    }
}

fn is_claim(header: &str) -> bool {
    header
        .get(..CLAIM_PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(CLAIM_PREFIX))
        && header[CLAIM_PREFIX.len()..].starts_with(['.', '['])
}

/// Matches on claims need the token to have been checked, which sidecars do later.
fn claims(spec: &VirtualService, scope: &Scope<'_>) {
    scope.each("http", &spec.http, |scope, route| {
        scope.each("match", &route.r#match, |scope, request| {
            for (key, headers) in [
                ("headers", &request.headers),
                ("withoutHeaders", &request.without_headers),
            ] {
                scope.entries(key, headers, |scope, name, _| {
                    if is_claim(name) {
                        scope.error(
                            "claims can be matched at gateways only, this one is for sidecars",
                        );
                    }
                });
            }
        });
    });
}

/// Conditions that all kinds of matches share.
struct Conditions<'a> {
    port: u32,
    source_labels: &'a Labels,
    gateways: &'a [String],
    source_namespace: &'a str,
}

fn conditions(scope: &Scope<'_>, conditions: &Conditions<'_>, whole: &Whole<'_>) {
    if conditions.port != 0 {
        scope.field("port").check(names::port(conditions.port));
    }
    scope
        .field("sourceLabels")
        .check(names::labels(conditions.source_labels));
    gateways(
        &scope.field("gateways"),
        conditions.gateways,
        whole.is_generated,
    );
    if !conditions.source_namespace.is_empty() {
        scope
            .field("sourceNamespace")
            .check(names::dns_label(conditions.source_namespace));
    }
}

fn tls_route(route: &TlsRoute, whole: &Whole<'_>, scope: &Scope<'_>) {
    if route.r#match.is_empty() {
        scope
            .field("match")
            .error("a tls route needs at least one match");
    }
    scope.each("match", &route.r#match, |scope, attributes| {
        if attributes.sni_hosts.is_empty() {
            scope
                .field("sniHosts")
                .error("at least one server name is needed");
        }
        scope.each("sniHosts", &attributes.sni_hosts, |scope, name| {
            sni_host(name, whole, scope);
        });
        scope.each(
            "destinationSubnets",
            &attributes.destination_subnets,
            |scope, subnet| {
                scope.check(names::ip_subnet(subnet));
            },
        );
        let shared = Conditions {
            port: attributes.port,
            source_labels: &attributes.source_labels,
            gateways: &attributes.gateways,
            source_namespace: &attributes.source_namespace,
        };
        conditions(scope, &shared, whole);
    });
    if route.route.is_empty() {
        scope
            .field("route")
            .error("a tls route needs a destination");
    }
    destinations(scope, &route.route, whole);
}

fn sni_host(name: &str, whole: &Whole<'_>, scope: &Scope<'_>) {
    match names::wildcard_domain(name) {
        Err(_) if names::is_ip(name) => {
            scope.warning(format_args!(
                "{name:?}: clients do not send IP addresses as server name"
            ));
        }
        Err(reason) => return scope.error(reason),
        Ok(()) => {}
    }
    if !whole
        .spec
        .hosts
        .iter()
        .any(|host| host::subset_of(name, host))
    {
        scope.error(format_args!(
            "{name:?} is not covered by any of the hosts: {}",
            whole.spec.hosts.join(", ")
        ));
    }
}

fn tcp_route(route: &TcpRoute, whole: &Whole<'_>, scope: &Scope<'_>) {
    scope.each("match", &route.r#match, |scope, attributes| {
        scope.each(
            "destinationSubnets",
            &attributes.destination_subnets,
            |scope, subnet| {
                scope.check(names::ip_subnet(subnet));
            },
        );
        let shared = Conditions {
            port: attributes.port,
            source_labels: &attributes.source_labels,
            gateways: &attributes.gateways,
            source_namespace: &attributes.source_namespace,
        };
        conditions(scope, &shared, whole);
    });
    if route.route.is_empty() {
        scope
            .field("route")
            .error("a tcp route needs a destination");
    }
    destinations(scope, &route.route, whole);
}

fn destinations(scope: &Scope<'_>, routes: &[RouteDestination], whole: &Whole<'_>) {
    scope.each("route", routes, |scope, route| {
        required_destination(scope, route.destination.as_ref(), whole);
    });
    weights(
        &scope.field("route"),
        routes.iter().map(|route| route.weight),
    );
}

fn required_destination(scope: &Scope<'_>, target: Option<&Destination>, whole: &Whole<'_>) {
    match target {
        None => scope.field("destination").error("must be set"),
        Some(target) => destination(&scope.field("destination"), target, whole),
    }
}

/// Checks the weights of destinations: not negative, and not all zero when there are several.
fn weights(scope: &Scope<'_>, weights: impl Iterator<Item = i32>) {
    let (mut count, mut total) = (0_usize, 0_i64);
    for (index, weight) in weights.enumerate() {
        scope
            .index(index)
            .field("weight")
            .check(names::not_negative(weight));
        count += 1;
        total += i64::from(weight);
    }
    if count > 1 && total == 0 {
        scope.error("the weights of all destinations are zero");
    }
}

fn destination(scope: &Scope<'_>, target: &Destination, whole: &Whole<'_>) {
    let host = scope.field("host");
    if target.host == "*" {
        host.error("\"*\" is not a destination");
    } else if !whole.is_generated || !target.host.is_empty() {
        host.check(names::wildcard_domain(&target.host));
    }
    if !target.subset.is_empty() {
        scope
            .field("subset")
            .check(names::dns_label(&target.subset));
    }
    if let Some(port) = &target.port {
        scope
            .field("port")
            .field("number")
            .check(names::port(port.number));
    }
}

/// Checks header operations of a route or of one of its destinations.
fn header_operations(scope: &Scope<'_>, headers: Option<&crate::api::common::Headers>) {
    let Some(headers) = headers else { return };
    let sides = [
        (
            "request",
            &headers.request,
            text::settable_header as fn(&str) -> names::Verdict,
        ),
        ("response", &headers.response, text::removable_header),
    ];
    for (key, operations, settable) in sides {
        let Some(operations) = operations else {
            continue;
        };
        let scope = scope.field(key);
        for (key, values) in [("set", &operations.set), ("add", &operations.add)] {
            scope.entries(key, values, |scope, name, value| {
                scope.check(settable(name));
                scope.check(text::header_value(value));
            });
        }
        scope.each("remove", &operations.remove, |scope, name| {
            scope.check(text::removable_header(name));
        });
    }
}
