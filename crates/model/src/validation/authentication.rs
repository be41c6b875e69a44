//! PeerAuthentication and RequestAuthentication (security-policy.md §16).

use serde_json::Value;

use super::selectors;
use super::{Scope, names, text, traffic};
use crate::api::security::{JwtRule, PeerAuthentication, RequestAuthentication};

/// Most rules of one object.
const MAX_RULES: usize = 4096;
/// Most claims that are lists separated by spaces.
const MAX_CLAIMS: usize = 64;

pub(super) fn peer(spec: &PeerAuthentication, raw: Option<&Value>, scope: &Scope<'_>) {
    selectors::match_labels(&scope.field("selector"), spec.selector.as_ref());
    let ports = scope.field("portLevelMtls");
    let is_empty_map = raw.is_some_and(|raw| {
        ["portLevelMtls", "port_level_mtls"].iter().any(|key| {
            raw.get(key)
                .and_then(Value::as_object)
                .is_some_and(serde_json::Map::is_empty)
        })
    });
    if is_empty_map {
        ports.error("the map is empty; leave it out or name a port");
    }
    if spec.port_level_mtls.is_empty() {
        return;
    }
    if spec
        .selector
        .as_ref()
        .is_none_or(|selector| selector.match_labels.is_empty())
    {
        ports.error("only allowed with a selector that has labels");
    }
    for port in spec.port_level_mtls.keys() {
        ports.field(&port.to_string()).check(names::port(*port));
    }
}

pub(super) fn request(spec: &RequestAuthentication, scope: &Scope<'_>) {
    selectors::one_target(
        scope,
        spec.selector.as_ref(),
        spec.target_ref.as_ref(),
        &spec.target_refs,
    );
    if spec.jwt_rules.len() > MAX_RULES {
        scope.field("jwtRules").error(format_args!(
            "{} rules, at most {MAX_RULES} are allowed",
            spec.jwt_rules.len()
        ));
    }
    scope.each("jwtRules", &spec.jwt_rules, jwt_rule);
}

fn jwt_rule(scope: &Scope<'_>, rule: &JwtRule) {
    if rule.issuer.is_empty() && rule.jwks_uri.is_empty() {
        scope.error("one of issuer and jwksUri must be set");
    }
    scope.each("audiences", &rule.audiences, |scope, audience| {
        if audience.is_empty() {
            scope.error("the audience is empty");
        }
    });
    if !rule.jwks_uri.is_empty() {
        scope.field("jwksUri").check(keys_address(&rule.jwks_uri));
        if !rule.jwks.is_empty() {
            scope.field("jwks").error("cannot be combined with jwksUri");
        }
    }
    if !rule.jwks.is_empty() {
        keys(&rule.jwks, &scope.field("jwks"));
    }
    scope.each("fromHeaders", &rule.from_headers, |scope, header| {
        scope.field("name").check(text::header_name(&header.name));
    });
    for (key, list) in [
        ("fromParams", &rule.from_params),
        ("fromCookies", &rule.from_cookies),
    ] {
        scope.each(key, list, |scope, name| {
            if name.is_empty() {
                scope.error("the name is empty");
            }
        });
    }
    scope.each(
        "outputClaimToHeaders",
        &rule.output_claim_to_headers,
        |scope, output| {
            let strict = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if output.header.is_empty() || !output.header.chars().all(strict) {
                scope.field("header").error(format_args!(
                    "{:?} is not a header name of letters, digits, \"-\" and \"_\"",
                    output.header
                ));
            }
            if output.claim.is_empty() {
                scope.field("claim").error("the claim is empty");
            }
        },
    );
    if rule.space_delimited_claims.len() > MAX_CLAIMS {
        scope.field("spaceDelimitedClaims").error(format_args!(
            "{} claims, at most {MAX_CLAIMS} are allowed",
            rule.space_delimited_claims.len()
        ));
    }
    scope.each(
        "spaceDelimitedClaims",
        &rule.space_delimited_claims,
        |scope, claim| {
            if claim.is_empty() {
                scope.error("the claim is empty");
            }
        },
    );
    traffic::optional_duration(scope, "timeout", rule.timeout);
}

fn keys_address(address: &str) -> names::Verdict {
    let url = text::url(address)?;
    if !matches!(url.scheme, "http" | "https") {
        return Err(format!(
            "{address:?} has the scheme {:?}, allowed are http and https",
            url.scheme
        ));
    }
    if url.host.is_empty() {
        return Err(format!("{address:?} has no host"));
    }
    Ok(())
}

/// Checks a set of JSON web keys, or a single one.
fn keys(text: &str, scope: &Scope<'_>) {
    let parsed = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(parsed)) => parsed,
        Ok(_) => return scope.error("not a JSON web key set: it is no JSON object"),
        Err(error) => return scope.error(format_args!("not a JSON web key set: {error}")),
    };
    match parsed.get("keys") {
        None => key(&Value::Object(parsed), "the key", scope),
        Some(Value::Array(keys)) => {
            for (index, value) in keys.iter().enumerate() {
                key(value, &format!("key {index}"), scope);
            }
        }
        Some(_) => scope.error("not a JSON web key set: keys is no list"),
    }
}

fn key(key: &Value, which: &str, scope: &Scope<'_>) {
    let text = |member: &str| key.get(member).and_then(Value::as_str);
    let needed: &[&str] = match text("kty") {
        Some("RSA") => &["n", "e"],
        Some("EC") => &["crv", "x", "y"],
        Some("OKP") => &["crv", "x"],
        Some("oct") => &["k"],
        Some(other) => {
            return scope.error(format_args!(
                "{which} has the type {other:?}, allowed are RSA, EC, OKP and oct"
            ));
        }
        None => return scope.error(format_args!("{which} has no type (kty)")),
    };
    for member in needed {
        if text(member).is_none_or(str::is_empty) {
            scope.error(format_args!("{which} has no {member:?}"));
        }
    }
    if key.get("d").is_some() || text("kty") == Some("oct") {
        scope.warning(format_args!(
            "{which} holds a private key, which everybody who reads the object learns"
        ));
    }
}
