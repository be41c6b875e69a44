//! The virtual host for everything that no other one knows (routes §8).

#![expect(
    deprecated,
    reason = "proxies of the mesh are told `max_grpc_timeout`, as they always were"
)]

use envoy_types::pb::envoy::config::route::v3::{
    DirectResponseAction, Route, RouteAction, RouteMatch, VirtualHost, route,
    route_action::ClusterSpecifier, route_match::PathSpecifier,
};
use model::api;

use super::inputs::{ClientView, Unknown};
use crate::{convert, names};

/// Builds the last virtual host of an outbound configuration.
pub(crate) fn virtual_host(client: &ClientView) -> VirtualHost {
    let forward = |cluster: &str| {
        route::Action::Route(RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_owned())),
            timeout: Some(convert::duration(api::Duration::ZERO)),
            max_grpc_timeout: Some(convert::duration(api::Duration::ZERO)),
            append_x_forwarded_host: client.forwarded_host,
            ..RouteAction::default()
        })
    };
    let (name, action) = match &client.unknown {
        Unknown::Allow(cluster) => ("allow_any", forward(cluster)),
        Unknown::DynamicDns => (
            "allow_any_dynamic_dns",
            forward(names::ALLOW_ANY_DYNAMIC_DNS),
        ),
        Unknown::Block => (
            "block_all",
            route::Action::DirectResponse(DirectResponseAction {
                status: 502,
                ..DirectResponseAction::default()
            }),
        ),
    };
    VirtualHost {
        name: name.to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![Route {
            name: name.to_owned(),
            r#match: Some(RouteMatch {
                path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
                ..RouteMatch::default()
            }),
            action: Some(action),
            ..Route::default()
        }],
        include_request_attempt_count: client.attempt_count,
        ..VirtualHost::default()
    }
}
