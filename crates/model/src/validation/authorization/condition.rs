//! Conditions (`when`) of an AuthorizationPolicy.

use super::{Scope, Verdict, names, port, service_account, trust_domain};
use crate::api::security::Condition;

/// What a key tests.
enum Attribute {
    Ip,
    Port,
    ServiceAccount,
    TrustDomain,
    Text,
}

/// Keys of former versions.
const FORMER: [&str; 4] = [
    "destination.name",
    "destination.namespace",
    "destination.user",
    "destination.labels",
];

/// Checks a condition.
pub(super) fn validate(condition: &Condition, scope: &Scope<'_>) {
    if condition.values.is_empty() && condition.not_values.is_empty() {
        scope.error("one of values and notValues must be set");
    }
    let attribute = match attribute(&condition.key) {
        Ok(attribute) => attribute,
        Err(reason) => return scope.field("key").error(reason),
    };
    let check: fn(&str) -> Verdict = match attribute {
        Attribute::Ip => names::ip_subnet,
        Attribute::Port => port,
        Attribute::ServiceAccount => service_account,
        Attribute::TrustDomain => trust_domain,
        Attribute::Text => |_| Ok(()),
    };
    for (key, values) in [
        ("values", &condition.values),
        ("notValues", &condition.not_values),
    ] {
        scope.each(key, values, |scope, value| {
            scope.check(check(value));
        });
    }
}

/// Tells whether a key tests an identity.
pub(super) fn is_identity(key: &str) -> bool {
    matches!(
        key,
        "source.namespace" | "source.serviceAccount" | "source.trustDomain" | "source.principal"
    ) || key.starts_with("request.auth.")
}

fn attribute(key: &str) -> Result<Attribute, String> {
    for prefix in [
        "request.headers",
        "request.auth.claims",
        "experimental.envoy.filters.",
    ] {
        if let Some(rest) = key.strip_prefix(prefix) {
            if rest.contains('[') && rest.ends_with(']') {
                return Ok(Attribute::Text);
            }
            return Err(format!(
                "{key:?} must have its name in brackets: {prefix}[name]"
            ));
        }
    }
    match key {
        "source.ip" | "remote.ip" | "destination.ip" => Ok(Attribute::Ip),
        "destination.port" => Ok(Attribute::Port),
        "source.serviceAccount" => Ok(Attribute::ServiceAccount),
        "source.trustDomain" => Ok(Attribute::TrustDomain),
        "source.namespace"
        | "source.principal"
        | "request.auth.principal"
        | "request.auth.audiences"
        | "request.auth.presenter"
        | "connection.sni" => Ok(Attribute::Text),
        _ if FORMER.iter().any(|former| key.starts_with(former)) => {
            Err(format!("{key:?} is no longer supported"))
        }
        _ => Err(format!(
            "{key:?} is not an attribute; allowed are request.headers[…], request.auth.principal, \
             request.auth.audiences, request.auth.presenter, request.auth.claims[…], source.ip, remote.ip, \
             source.namespace, source.principal, source.serviceAccount, source.trustDomain, destination.ip, \
             destination.port, connection.sni, experimental.envoy.filters.…[…]"
        )),
    }
}
