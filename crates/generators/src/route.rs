//! VirtualService rules to Envoy routes; shared by sidecars and gateways (routes §9–16).

mod action;
mod default;
mod filters;
mod headers;
mod matching;
mod redirect;
mod retry;
mod session;

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::envoy::config::{
    core::v3::Metadata,
    route::v3::{Decorator, Route, route, route_action::ClusterSpecifier},
};
use model::{Labels, Service, api, selects};
use pushctx::{ConsolidatedRule, ResolvedVirtualService, RouteSemantics};

pub(crate) use action::{quote, waypoint_cluster};
pub(crate) use default::{default_route, default_route_to};
pub(crate) use matching::is_catch_all;
pub(crate) use retry::inbound_retry;
pub(crate) use session::{
    FILTER as SESSION_FILTER, SessionLabels, of_service as session_of_service,
};

/// What a route's translation may look at, besides the rules themselves.
pub(crate) struct RouteContext<'a> {
    /// The listener's port; 0 when routes of all ports are asked for.
    pub listener_port: u16,
    /// Gateways in force; `{"mesh"}` for sidecars.
    pub gateways: &'a BTreeSet<String>,
    /// Labels of the proxy's workload.
    pub labels: &'a Labels,
    /// The proxy's namespace.
    pub namespace: &'a str,
    /// Finds the service behind a destination host.
    pub service: &'a dyn Fn(&str) -> Option<Arc<Service>>,
    /// Finds the rule that the proxy applies to a destination host.
    pub rule: &'a dyn Fn(&str) -> Option<Arc<ConsolidatedRule>>,
    /// The mesh's default retry policy.
    pub mesh_retry: Option<&'a api::common::HttpRetry>,
    /// Rewrites append `x-forwarded-host`.
    pub forwarded_host: bool,
    /// The server terminates TLS: redirects default to https.
    pub tls_server: bool,
    /// Mirrors keep the host as it is.
    pub plain_shadow_host: bool,
    /// Labels that ask for persistent sessions; `None` when the feature is off.
    pub session: Option<&'a SessionLabels>,
    /// Tells which hosts a waypoint handles itself; `None` for other proxies.
    pub handles: Option<&'a dyn Fn(&str) -> bool>,
}

/// Translates the HTTP rules of a VirtualService in order (routes §10). Empty when no rule applies
/// to the port and the proxy.
pub(crate) fn translate(vs: &ResolvedVirtualService, ctx: &RouteContext<'_>) -> Vec<Route> {
    let mut routes = Vec::new();
    for rule in &vs.config.spec.http {
        if rule.r#match.is_empty() {
            routes.push(translate_rule(vs, rule, None, ctx));
            return routes;
        }
        for matched in &rule.r#match {
            if !applies(matched, ctx) {
                continue;
            }
            let route = translate_rule(vs, rule, Some(matched), ctx);
            let last = is_catch_all(&route);
            routes.push(route);
            if last {
                return routes;
            }
        }
    }
    routes
}

/// Tells whether a match concerns this proxy and port (routes §10).
fn applies(matched: &api::virtual_service::HttpMatchRequest, ctx: &RouteContext<'_>) -> bool {
    if matched.port != 0 && matched.port != u32::from(ctx.listener_port) {
        return false;
    }
    // A waypoint does not know the labels of those who ask.
    if ctx.handles.is_some() && !matched.source_labels.is_empty() {
        return false;
    }
    if !matched.gateways.is_empty() {
        return matched.gateways.iter().any(|g| ctx.gateways.contains(g));
    }
    selects(&matched.source_labels, ctx.labels)
        && (matched.source_namespace.is_empty() || matched.source_namespace == ctx.namespace)
}

fn translate_rule(
    vs: &ResolvedVirtualService,
    rule: &api::virtual_service::HttpRoute,
    matched: Option<&api::virtual_service::HttpMatchRequest>,
    ctx: &RouteContext<'_>,
) -> Route {
    let mut name = rule.name.clone();
    if let Some(matched) = matched.filter(|m| !m.name.is_empty()) {
        name.push('.');
        name.push_str(&matched.name);
    }
    let mut route = Route {
        name,
        r#match: Some(matching::route_match(matched, vs.semantics)),
        metadata: Some(config_metadata("virtual-service", &vs.config.meta)),
        stat_prefix: matched.map(|m| m.stat_prefix.clone()).unwrap_or_default(),
        ..Route::default()
    };
    let authority = headers::apply(rule.headers.as_ref(), &mut route);
    if let Some(redirect) = &rule.redirect {
        route.action = redirect::redirect(redirect, ctx).map(route::Action::Redirect);
    } else if let Some(response) = &rule.direct_response {
        route.action = Some(route::Action::DirectResponse(redirect::direct_response(
            response,
        )));
    } else {
        action::apply(rule, vs.semantics, authority, ctx, &mut route);
    }
    route.decorator = Some(Decorator {
        operation: operation(&route, &vs.config.meta.name, ctx.listener_port),
        propagate: None,
    });
    filters::apply(rule, &mut route);
    if let Some(labels) = ctx.session {
        session::apply(rule, labels, ctx, &mut route);
    }
    route
}

/// The port that a destination states; 0 when it states none, or no possible one.
pub(crate) fn destination_port(destination: &api::common::Destination) -> u16 {
    let number = destination.port.as_ref().map_or(0, |p| p.number);
    u16::try_from(number).unwrap_or_default()
}

/// Names the configuration object behind an Envoy resource (routes §11).
pub(crate) fn config_metadata(kind: &str, meta: &model::Meta) -> Metadata {
    let path = format!(
        "/apis/networking.istio.io/v1/namespaces/{}/{kind}/{}",
        meta.namespace, meta.name
    );
    Metadata {
        filter_metadata: [(
            "istio".to_owned(),
            envoy_json::encode::struct_value(serde_json::json!({ "config": path })),
        )]
        .into(),
        ..Metadata::default()
    }
}

/// The operation's name in traces (routes §11.2).
fn operation(route: &Route, name: &str, port: u16) -> String {
    let path = matching::operation_path(route);
    if let Some(route::Action::Route(action)) = &route.action
        && let Some(ClusterSpecifier::Cluster(cluster)) = &action.cluster_specifier
    {
        let parts: Vec<&str> = cluster.split('|').collect();
        if let [_, port, _, host] = parts[..] {
            return format!("{host}:{port}{path}");
        }
    }
    format!("{name}:{port}{path}")
}

/// Tells how hosts and prefixes of a translator's VirtualServices are read.
pub(crate) const fn uses_path_segments(semantics: RouteSemantics) -> bool {
    matches!(semantics, RouteSemantics::Gateway | RouteSemantics::Ingress)
}
