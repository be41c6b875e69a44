//! The route of a service without VirtualService (routes §16).

#![expect(
    deprecated,
    reason = "proxies of the mesh are told `max_grpc_timeout`, as they always were"
)]

use envoy_types::pb::envoy::config::route::v3::{
    Decorator, Route, RouteAction, RouteMatch, route, route_action::ClusterSpecifier,
    route_match::PathSpecifier,
};
use model::{Service, api};
use pushctx::ConsolidatedRule;

use super::{action, retry};
use crate::{convert, names};

/// Builds the default route of one service port.
pub(crate) fn default_route(
    service: &Service,
    port: u16,
    rule: Option<&ConsolidatedRule>,
    mesh_retry: Option<&api::common::HttpRetry>,
) -> Route {
    let cluster = names::outbound(port, "", &service.hostname);
    default_route_to(cluster, (&service.hostname, port), rule, mesh_retry)
}

/// Builds the default route to a cluster, which traces call by this host name and port.
pub(crate) fn default_route_to(
    cluster: String,
    (hostname, port): (&str, u16),
    rule: Option<&ConsolidatedRule>,
    mesh_retry: Option<&api::common::HttpRetry>,
) -> Route {
    let hash = rule
        .and_then(|r| r.config.spec.traffic_policy.as_ref())
        .and_then(|policy| action::policy_hash(policy, Some(u32::from(port))));
    Route {
        name: "default".to_owned(),
        r#match: Some(RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::Route(RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(cluster)),
            timeout: Some(convert::duration(api::Duration::ZERO)),
            max_grpc_timeout: Some(convert::duration(api::Duration::ZERO)),
            retry_policy: retry::retry_policy(mesh_retry, false),
            hash_policy: hash.and_then(action::hash_policy).into_iter().collect(),
            ..RouteAction::default()
        })),
        decorator: Some(Decorator {
            operation: format!("{hostname}:{port}/*"),
            propagate: None,
        }),
        ..Route::default()
    }
}
