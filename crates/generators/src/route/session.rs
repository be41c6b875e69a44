//! Persistent sessions (routes §15.4).

use envoy_types::pb::envoy::{
    config::{core::v3::TypedExtensionConfig, route::v3::Route},
    extensions::{
        filters::http::stateful_session::v3::{
            StatefulSession, StatefulSessionPerRoute, stateful_session_per_route::Override,
        },
        http::stateful_session::{
            cookie::v3::CookieBasedSessionState, header::v3::HeaderBasedSessionState,
        },
    },
    r#type::http::v3::Cookie,
};
use envoy_types::pb::google::protobuf::Any;
use model::{Features, Service, api};

use super::RouteContext;

/// The filter's name, also the key of its per-route configuration.
pub(crate) const FILTER: &str = "envoy.filters.http.stateful_session";

/// Service labels that ask for persistent sessions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SessionLabels {
    /// Label with `<cookie>[:<path>]`.
    pub cookie: String,
    /// Label with a header's name.
    pub header: String,
}

impl SessionLabels {
    /// The labels, when persistent sessions are switched on.
    pub(crate) fn of(features: &Features) -> Option<Self> {
        features.persistent_session.then(|| Self {
            cookie: features.persistent_session_label.clone(),
            header: features.persistent_session_header_label.clone(),
        })
    }
}

/// The per-route configuration that a service's labels ask for.
pub(crate) fn of_service(service: &Service, labels: &SessionLabels) -> Option<Any> {
    session_state(service, labels).map(|state| {
        envoy_json::encode::any(&StatefulSessionPerRoute {
            r#override: Some(Override::StatefulSession(StatefulSession {
                session_state: Some(state),
                ..StatefulSession::default()
            })),
        })
    })
}

/// The session state that a service's labels ask for: a cookie, else a header.
pub(crate) fn session_state(
    service: &Service,
    labels: &SessionLabels,
) -> Option<TypedExtensionConfig> {
    let label = |name: &str| {
        service
            .attributes
            .labels
            .get(name)
            .filter(|v| !v.is_empty())
    };
    if let Some(value) = label(&labels.cookie) {
        let (name, path) = value.split_once(':').unwrap_or((value, ""));
        let path = if path.is_empty() { "/" } else { path };
        let cookie = Cookie {
            name: name.to_owned(),
            path: path.to_owned(),
            ..Cookie::default()
        };
        return Some(TypedExtensionConfig {
            name: "envoy.http.stateful_session.cookie".to_owned(),
            typed_config: Some(envoy_json::encode::any(&CookieBasedSessionState {
                cookie: Some(cookie),
            })),
        });
    }
    label(&labels.header).map(|name| TypedExtensionConfig {
        name: "envoy.http.stateful_session.header".to_owned(),
        typed_config: Some(envoy_json::encode::any(&HeaderBasedSessionState {
            name: name.clone(),
        })),
    })
}

/// Adds the session of a rule's destinations to its route: each destination's replaces the one
/// before, until one has a value while another is held: that one stays.
pub(super) fn apply(
    rule: &api::virtual_service::HttpRoute,
    labels: &SessionLabels,
    ctx: &RouteContext<'_>,
    route: &mut Route,
) {
    let mut held = None;
    for destination in rule.route.iter().filter_map(|d| d.destination.as_ref()) {
        let found = (ctx.service)(&destination.host).and_then(|s| of_service(&s, labels));
        if found.is_some() && held.is_some() {
            break;
        }
        held = found;
    }
    if let Some(config) = held {
        route
            .typed_per_filter_config
            .insert(FILTER.to_owned(), config);
    }
}
