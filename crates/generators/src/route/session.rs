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
use crate::convert;

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
    session_state(service, labels).map(per_route)
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
        return Some(by_cookie(Cookie {
            name: name.to_owned(),
            path: path.to_owned(),
            ..Cookie::default()
        }));
    }
    label(&labels.header).map(|name| by_header(name))
}

/// The session state of a rule's own session.
fn of_rule(session: &api::virtual_service::RuleSession) -> TypedExtensionConfig {
    if session.by_header {
        return by_header(&session.name);
    }
    by_cookie(Cookie {
        name: session.name.clone(),
        path: "/".to_owned(),
        ttl: session.lifetime.map(convert::duration),
        ..Cookie::default()
    })
}

fn by_cookie(cookie: Cookie) -> TypedExtensionConfig {
    TypedExtensionConfig {
        name: "envoy.http.stateful_session.cookie".to_owned(),
        typed_config: Some(envoy_json::encode::any(&CookieBasedSessionState {
            cookie: Some(cookie),
        })),
    }
}

fn by_header(name: &str) -> TypedExtensionConfig {
    TypedExtensionConfig {
        name: "envoy.http.stateful_session.header".to_owned(),
        typed_config: Some(envoy_json::encode::any(&HeaderBasedSessionState {
            name: name.to_owned(),
        })),
    }
}

fn per_route(state: TypedExtensionConfig) -> Any {
    envoy_json::encode::any(&StatefulSessionPerRoute {
        r#override: Some(Override::StatefulSession(StatefulSession {
            session_state: Some(state),
            ..StatefulSession::default()
        })),
    })
}

/// Adds the session of a rule to its route: its own, else that of its destinations: each destination's replaces the one
/// before, until one has a value while another is held: that one stays.
pub(super) fn apply(
    rule: &api::virtual_service::HttpRoute,
    labels: &SessionLabels,
    ctx: &RouteContext<'_>,
    route: &mut Route,
) {
    if let Some(session) = &rule.session {
        let config = per_route(of_rule(session));
        route
            .typed_per_filter_config
            .insert(FILTER.to_owned(), config);
        return;
    }
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

#[cfg(test)]
mod tests {
    use api::virtual_service::{HttpRoute, RuleSession};
    use model::Labels;
    use serde_json::{Value, json};

    use super::*;

    /// The state of the session that a rule asks for itself.
    #[track_caller]
    fn check(session: RuleSession, expected: &Value) {
        let rule = HttpRoute {
            session: Some(session),
            ..HttpRoute::default()
        };
        let labels = SessionLabels {
            cookie: "c".to_owned(),
            header: "h".to_owned(),
        };
        let ctx = RouteContext {
            listener_port: 80,
            gateways: &std::collections::BTreeSet::new(),
            labels: &Labels::new(),
            namespace: "",
            service: &|_| None,
            rule: &|_| None,
            mesh_retry: None,
            forwarded_host: false,
            tls_server: false,
            plain_shadow_host: false,
            session: Some(&labels),
            handles: None,
        };
        let mut route = Route::default();
        apply(&rule, &labels, &ctx, &mut route);
        let config = &route.typed_per_filter_config[FILTER];
        let config = envoy_json::to_json(&config.type_url, &config.value).unwrap();
        let state = &config["statefulSession"]["sessionState"]["typedConfig"];
        assert_eq!(&state["cookie"], &expected["cookie"]);
        assert_eq!(state.get("name"), expected.get("name"));
    }

    #[test]
    fn rules_have_sessions_of_their_own() {
        let session = RuleSession {
            name: "s".to_owned(),
            by_header: false,
            lifetime: Some(std::time::Duration::from_mins(1).into()),
        };
        check(
            session.clone(),
            &json!({"cookie": {"name": "s", "path": "/", "ttl": "60s"}}),
        );
        let by_header = RuleSession {
            by_header: true,
            ..session
        };
        check(by_header, &json!({"name": "s"}));
    }
}
