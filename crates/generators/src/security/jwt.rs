//! `RequestAuthentication`s as the filter that verifies tokens (security-policy §5, §6).

use envoy_types::pb::{
    envoy::{
        config::{
            core::v3::{DataSource, HttpUri, data_source, http_uri::HttpUpstreamType},
            route::v3::{RouteMatch, route_match::PathSpecifier},
        },
        extensions::filters::http::jwt_authn::v3::{
            JwtAuthentication, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement,
            JwtRequirementAndList, JwtRequirementOrList, RemoteJwks, RequirementRule,
            jwt_provider::{JwksSourceSpecifier, NormalizePayload},
            jwt_requirement::RequiresType,
            requirement_rule::RequirementType,
        },
        extensions::filters::network::http_connection_manager::v3::{HttpFilter, http_filter},
    },
    google::protobuf::Empty,
};
use model::api::{Duration, security::JwtRule};
use pushctx::PushContext;

use crate::{convert, names, provider};

const FILTER: &str = "envoy.filters.http.jwt_authn";

const DEFAULT_TIMEOUT_SECONDS: u32 = 5;
const CACHE_SECONDS: i64 = 300;
/// Claims that hold several values in one string.
const SPACE_DELIMITED: [&str; 2] = ["permission", "scope"];

/// A key set whose private key nobody has: no token passes. Stands in for one that is not there.
const NOBODY: &str = r#"{
  "keys": [
    {
      "kty": "RSA",
      "e": "AQAB",
      "n": "0xObjM0UvS_oaazjpEYlAbwctEJ4L8pH3OuTb7qth7gUwqet-EzQB4dgFdvSdMgrLnSncQGRjpEYz3F3viIbH-3EN3TxSlPNviHxeOdyiBVfumN8dMxbLvVJUpfNOnvmMxJcl-8NNjAwcOjk4otSALaYgYYyOPyvKtgVdrQr-FoubWX4yrjxW-MJ2-7OBeepUUNOsVwGV23YX03sVkkyvY3otRflkBcY3_HKpBxJl9wk2GyOShN4_PNUF9-vwfnvOXMbCDX-w4PTef4geeb_GiT40YCKHTKMSPVanGRn5GExIWmki-mmqh94-mPTJyBR74ShspL3BxPZitDL574T1w"
    }
  ]
}"#;

/// Where the keys of a rule come from.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Keys {
    /// Stated in the filter.
    Local(String),
    /// Fetched by the proxy through this cluster.
    Remote(String),
}

/// Builds the filter from the rules that apply, sorted by issuer; `None` when there are none.
/// `clear_route_cache` makes routes see the claims (gateways).
pub(crate) fn filter(
    context: &PushContext,
    rules: &[JwtRule],
    clear_route_cache: bool,
) -> Option<HttpFilter> {
    if rules.is_empty() {
        return None;
    }
    let mut sorted: Vec<&JwtRule> = rules.iter().collect();
    sorted.sort_by(|a, b| a.issuer.cmp(&b.issuer));
    let providers = sorted
        .iter()
        .enumerate()
        .map(|(i, rule)| {
            (
                provider_name(i),
                jwt_provider(context, rule, clear_route_cache),
            )
        })
        .collect();
    let config = envoy_json::any(&JwtAuthentication {
        providers,
        rules: vec![RequirementRule {
            r#match: Some(RouteMatch {
                path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
                ..RouteMatch::default()
            }),
            requirement_type: Some(RequirementType::Requires(requirement(sorted.len()))),
        }],
        bypass_cors_preflight: true,
        ..JwtAuthentication::default()
    });
    Some(HttpFilter {
        name: FILTER.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    })
}

fn provider_name(index: usize) -> String {
    format!("origins-{index}")
}

/// A token of one provider, or no token at all.
fn requirement(count: usize) -> JwtRequirement {
    let one = |requires_type| JwtRequirement {
        requires_type: Some(requires_type),
    };
    let any = |requirements| {
        one(RequiresType::RequiresAny(JwtRequirementOrList {
            requirements,
        }))
    };
    let provider = |i| one(RequiresType::ProviderName(provider_name(i)));
    let missing = || one(RequiresType::AllowMissing(Empty {}));
    if count == 1 {
        return any(vec![provider(0), missing()]);
    }
    let all_missing = (0..count)
        .map(|i| any(vec![provider(i), missing()]))
        .collect();
    let all = one(RequiresType::RequiresAll(JwtRequirementAndList {
        requirements: all_missing,
    }));
    any((0..count).map(provider).chain([all]).collect())
}

fn jwt_provider(context: &PushContext, rule: &JwtRule, clear_route_cache: bool) -> JwtProvider {
    let mut delimited: Vec<String> = SPACE_DELIMITED.map(str::to_owned).into();
    if !rule.space_delimited_claims.is_empty() {
        delimited.extend(rule.space_delimited_claims.iter().cloned());
        delimited.sort();
        delimited.dedup();
    }
    JwtProvider {
        issuer: rule.issuer.clone(),
        audiences: rule.audiences.clone(),
        forward: rule.forward_original_token,
        forward_payload_header: rule.output_payload_to_header.clone(),
        claim_to_headers: rule
            .output_claim_to_headers
            .iter()
            .map(|c| JwtClaimToHeader {
                header_name: c.header.clone(),
                claim_name: c.claim.clone(),
                ..JwtClaimToHeader::default()
            })
            .collect(),
        from_headers: rule
            .from_headers
            .iter()
            .map(|h| JwtHeader {
                name: h.name.clone(),
                value_prefix: h.prefix.clone(),
            })
            .collect(),
        from_params: rule.from_params.clone(),
        from_cookies: rule.from_cookies.clone(),
        payload_in_metadata: "payload".to_owned(),
        normalize_payload_in_metadata: Some(NormalizePayload {
            space_delimited_claims: delimited,
        }),
        clear_route_cache,
        jwks_source_specifier: Some(key_source(rule, keys(context, rule))),
        ..JwtProvider::default()
    }
}

fn key_source(rule: &JwtRule, keys: Keys) -> JwksSourceSpecifier {
    match keys {
        Keys::Local(text) => JwksSourceSpecifier::LocalJwks(DataSource {
            specifier: Some(data_source::Specifier::InlineString(text)),
            ..DataSource::default()
        }),
        Keys::Remote(cluster) => {
            let timeout = rule
                .timeout
                .unwrap_or(Duration::from_secs(DEFAULT_TIMEOUT_SECONDS));
            JwksSourceSpecifier::RemoteJwks(RemoteJwks {
                http_uri: Some(HttpUri {
                    uri: rule.jwks_uri.clone(),
                    timeout: Some(convert::duration(timeout)),
                    http_upstream_type: Some(HttpUpstreamType::Cluster(cluster)),
                }),
                cache_duration: Some(convert::seconds(CACHE_SECONDS)),
                ..RemoteJwks::default()
            })
        }
    }
}

/// Decides where the keys of a rule come from, by the mode of `PILOT_JWT_ENABLE_REMOTE_JWKS`.
fn keys(context: &PushContext, rule: &JwtRule) -> Keys {
    let envoy = context.features().remote_jwks == "envoy";
    let remote = envoy || matches!(context.features().remote_jwks.as_str(), "hybrid" | "true");
    if remote && !rule.jwks_uri.is_empty() {
        let (host, port) = host_and_port(&rule.jwks_uri).unwrap_or_default();
        if let Some(service) = provider::service(context, &host) {
            return Keys::Remote(names::outbound(port, "", &service.hostname));
        }
        if envoy {
            return Keys::Remote(names::outbound(port, "", &host));
        }
    }
    let stated = (!rule.jwks.is_empty()).then(|| rule.jwks.clone());
    Keys::Local(stated.unwrap_or_else(|| NOBODY.to_owned()))
}

/// The host that a rule's keys are fetched from.
pub(crate) fn jwks_host(rule: &JwtRule) -> Option<String> {
    host_and_port(&rule.jwks_uri).map(|(host, _)| host)
}

/// Host and port of an HTTP URI.
fn host_and_port(uri: &str) -> Option<(String, u16)> {
    let (scheme, rest) = uri.split_once("://")?;
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let bracketed = authority.strip_prefix('[').and_then(|a| a.split_once(']'));
    let (host, port) = match bracketed {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        Some(text) => text.parse().ok()?,
        None => default,
    };
    Some((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_host_and_port() {
        for (uri, expected) in [
            (
                "https://idp.example.com/keys",
                Some(("idp.example.com", 443)),
            ),
            (
                "http://idp.ns.svc:8080/keys?x=1",
                Some(("idp.ns.svc", 8080)),
            ),
            ("https://[::1]:8443/", Some(("::1", 8443))),
            ("ftp://host/", None),
            ("idp", None),
        ] {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(host_and_port(uri), expected, "{uri}");
        }
    }
}
