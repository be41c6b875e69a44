//! CUSTOM policies: a shadow RBAC filter that marks requests, and the filter that asks about marked
//! ones (security-policy §13).

use std::{collections::BTreeMap, sync::Arc};

use envoy_types::pb::envoy::{
    config::{
        core::v3::{
            ApiVersion, GrpcService, HeaderValue, HttpUri, grpc_service, http_uri::HttpUpstreamType,
        },
        listener::v3::Filter,
        rbac::v3::{Rbac, rbac::Action},
    },
    extensions::filters::{
        http::ext_authz::v3::{
            AuthorizationRequest, AuthorizationResponse, BufferSettings, ExtAuthz, HttpService,
            ext_authz::Services,
        },
        network::{
            ext_authz::v3::ExtAuthz as NetworkExtAuthz, http_connection_manager::v3::HttpFilter,
        },
    },
    r#type::{
        matcher::v3::{
            ListStringMatcher, MetadataMatcher, StringMatcher, string_matcher::MatchPattern,
        },
        v3::HttpStatus,
    },
};
use model::{
    Config,
    api::{
        Duration,
        mesh::RequestBodyInCheck,
        security::{AuthorizationAction, AuthorizationPolicy},
    },
};

use super::{
    AuthzInputs, HTTP_RBAC, Layer, NETWORK_RBAC, RbacRules, compile, http_filter, http_rbac,
    is_dry_run, matcher, network_filter, network_rbac,
    provider::{Provider, ProviderKind},
    rbac,
};
use crate::convert;

const KEY_PREFIX: &str = "istio-ext-authz";
const SHADOW_PREFIX: &str = "istio_ext_authz_";
const SHADOW_POLICY: &str = "istio_ext_authz_shadow_effective_policy_id";
const BAD_ACTION: &str = "-deny-due-to-bad-CUSTOM-action";
const DEFAULT_TIMEOUT_SECONDS: u32 = 600;

/// Builds the filters of HTTP chains.
pub(super) fn http(inputs: &AuthzInputs) -> Vec<HttpFilter> {
    let mut filters = Vec::new();
    for (name, plan) in plans(inputs, Layer::Http) {
        match plan {
            Plan::Deny(rules) => filters.push(http_rbac(rules)),
            Plan::Ask(rules, provider) => {
                filters.push(http_rbac(rules));
                let check = ext_authz(provider, marked(HTTP_RBAC, &name));
                filters.push(http_filter(
                    "envoy.filters.http.ext_authz",
                    envoy_json::encode::any(&check),
                ));
            }
        }
    }
    filters
}

/// Builds the filters of TCP chains. Providers that speak HTTP cannot be asked there.
pub(super) fn tcp(inputs: &AuthzInputs) -> Vec<Filter> {
    let mut filters = Vec::new();
    for (name, plan) in plans(inputs, Layer::Tcp) {
        match plan {
            Plan::Deny(rules) => filters.push(network_rbac(rules)),
            Plan::Ask(rules, provider) => {
                let ProviderKind::Grpc(grpc) = &provider.kind else {
                    continue;
                };
                filters.push(network_rbac(rules));
                let check = NetworkExtAuthz {
                    stat_prefix: "tcp.".to_owned(),
                    grpc_service: Some(grpc_service(provider, grpc.timeout)),
                    failure_mode_allow: grpc.fail_open,
                    transport_api_version: ApiVersion::V3.into(),
                    filter_enabled_metadata: Some(marked(NETWORK_RBAC, &name)),
                    ..NetworkExtAuthz::default()
                };
                filters.push(network_filter(
                    "envoy.filters.network.ext_authz",
                    envoy_json::encode::any(&check),
                ));
            }
        }
    }
    filters
}

/// What is done about the policies of one provider.
enum Plan<'a> {
    /// The provider cannot be asked: what the policies match is denied.
    Deny(RbacRules),
    /// What the policies match is marked, and asked about.
    Ask(RbacRules, &'a Provider),
}

/// Plans by provider name.
fn plans(inputs: &AuthzInputs, layer: Layer) -> Vec<(String, Plan<'_>)> {
    let mut by_provider: BTreeMap<&str, Vec<&Arc<Config<AuthorizationPolicy>>>> = BTreeMap::new();
    let custom = |p: &&Arc<Config<AuthorizationPolicy>>| {
        p.spec.action == AuthorizationAction::Custom && !is_dry_run(p)
    };
    for policy in inputs.policies.iter().filter(custom) {
        let name = policy
            .spec
            .provider
            .as_ref()
            .map_or("", |p| p.name.as_str());
        by_provider.entry(name).or_default().push(policy);
    }
    let too_many = by_provider.len() > 1 && !inputs.several_providers;
    by_provider
        .into_iter()
        .map(|(name, policies)| {
            let usable = inputs.providers.get(name).and_then(Option::as_ref);
            let plan = match usable.filter(|_| !too_many) {
                Some(provider) => Plan::Ask(
                    RbacRules {
                        enforced: None,
                        shadow: Some(rules(inputs, layer, name, &policies, "")),
                        shadow_prefix: SHADOW_PREFIX.to_owned(),
                    },
                    provider,
                ),
                None => Plan::Deny(RbacRules {
                    enforced: Some(rules(inputs, layer, name, &policies, BAD_ACTION)),
                    ..RbacRules::default()
                }),
            };
            (name.to_owned(), plan)
        })
        .collect()
}

fn rules(
    inputs: &AuthzInputs,
    layer: Layer,
    provider: &str,
    policies: &[&Arc<Config<AuthorizationPolicy>>],
    suffix: &str,
) -> Rbac {
    let prefix = format!("{}-", key(provider));
    let mut result = rbac(Action::Deny);
    for policy in policies {
        result
            .policies
            .extend(compile(inputs, layer, policy, &prefix, suffix));
    }
    result
}

fn key(provider: &str) -> String {
    if provider.is_empty() {
        KEY_PREFIX.to_owned()
    } else {
        format!("{KEY_PREFIX}-{provider}")
    }
}

/// Matches requests that a policy of the provider marked.
fn marked(filter: &str, provider: &str) -> MetadataMatcher {
    let value = matcher::string(MatchPattern::Prefix(key(provider)));
    matcher::metadata(filter, [SHADOW_POLICY], matcher::string_value(value))
}

fn ext_authz(provider: &Provider, marked: MetadataMatcher) -> ExtAuthz {
    let mut check = ExtAuthz {
        transport_api_version: ApiVersion::V3.into(),
        status_on_error: provider.status_on_error.map(|code| HttpStatus {
            code: i32::try_from(code).unwrap_or_default(),
        }),
        filter_enabled_metadata: Some(marked),
        ..ExtAuthz::default()
    };
    match &provider.kind {
        ProviderKind::Grpc(grpc) => {
            check.failure_mode_allow = grpc.fail_open;
            check.with_request_body = body(grpc.include_request_body_in_check.as_ref());
            check.services = Some(Services::GrpcService(grpc_service(provider, grpc.timeout)));
        }
        ProviderKind::Http(http) => {
            let included = if http.include_request_headers_in_check.is_empty() {
                &http.include_headers_in_check
            } else {
                &http.include_request_headers_in_check
            };
            check.failure_mode_allow = http.fail_open;
            check.with_request_body = body(http.include_request_body_in_check.as_ref());
            check.allowed_headers = header_list(included);
            check.services = Some(Services::HttpService(HttpService {
                server_uri: Some(HttpUri {
                    uri: format!("http://{}", provider.host),
                    timeout: Some(timeout(http.timeout)),
                    http_upstream_type: Some(HttpUpstreamType::Cluster(provider.cluster.clone())),
                }),
                path_prefix: http.path_prefix.clone(),
                authorization_request: request_changes(&http.include_additional_headers_in_check),
                authorization_response: response_changes(
                    &http.headers_to_upstream_on_allow,
                    &http.headers_to_downstream_on_deny,
                    &http.headers_to_downstream_on_allow,
                ),
                ..HttpService::default()
            }));
        }
    }
    check
}

fn grpc_service(provider: &Provider, wait: Option<Duration>) -> GrpcService {
    GrpcService {
        timeout: Some(timeout(wait)),
        target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(
            grpc_service::EnvoyGrpc {
                cluster_name: provider.cluster.clone(),
                authority: provider.host.clone(),
                ..grpc_service::EnvoyGrpc::default()
            },
        )),
        ..GrpcService::default()
    }
}

fn timeout(wait: Option<Duration>) -> envoy_types::pb::google::protobuf::Duration {
    convert::duration(wait.unwrap_or(Duration::from_secs(DEFAULT_TIMEOUT_SECONDS)))
}

fn body(settings: Option<&RequestBodyInCheck>) -> Option<BufferSettings> {
    settings.map(|s| BufferSettings {
        max_request_bytes: s.max_request_bytes,
        allow_partial_message: s.allow_partial_message,
        pack_as_bytes: s.pack_as_bytes,
    })
}

fn request_changes(headers: &BTreeMap<String, String>) -> Option<AuthorizationRequest> {
    let added = |(key, value): (&String, &String)| HeaderValue {
        key: key.clone(),
        value: value.clone(),
        ..HeaderValue::default()
    };
    (!headers.is_empty()).then(|| AuthorizationRequest {
        headers_to_add: headers.iter().map(added).collect(),
        ..AuthorizationRequest::default()
    })
}

fn response_changes(
    upstream: &[String],
    denied: &[String],
    allowed: &[String],
) -> Option<AuthorizationResponse> {
    if upstream.is_empty() && denied.is_empty() && allowed.is_empty() {
        return None;
    }
    Some(AuthorizationResponse {
        allowed_upstream_headers: header_list(upstream),
        allowed_client_headers: header_list(denied),
        allowed_client_headers_on_success: header_list(allowed),
        ..AuthorizationResponse::default()
    })
}

/// Header names, compared without case; `*` may stand at one end.
fn header_list(names: &[String]) -> Option<ListStringMatcher> {
    let patterns = names
        .iter()
        .map(|name| {
            let pattern = if let Some(suffix) = name.strip_prefix('*') {
                MatchPattern::Suffix(suffix.to_owned())
            } else if let Some(prefix) = name.strip_suffix('*') {
                MatchPattern::Prefix(prefix.to_owned())
            } else {
                MatchPattern::Exact(name.clone())
            };
            StringMatcher {
                ignore_case: true,
                ..matcher::string(pattern)
            }
        })
        .collect();
    (!names.is_empty()).then_some(ListStringMatcher { patterns })
}
