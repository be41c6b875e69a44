//! AuthorizationPolicies as RBAC and external-authorization filters (security-policy §7–§13).

mod custom;
mod matcher;
mod permission;
mod principal;
mod provider;
mod rule;
mod trust_domain;

use std::{collections::HashMap, sync::Arc};

use envoy_types::pb::{
    envoy::{
        config::{
            listener::v3::{Filter, filter},
            rbac::v3::{Policy, Rbac, rbac::Action},
        },
        extensions::filters::{
            http::rbac::v3::Rbac as HttpRbac,
            network::{
                http_connection_manager::v3::{HttpFilter, http_filter},
                rbac::v3::Rbac as NetworkRbac,
            },
        },
    },
    google::protobuf::Any,
};
use model::{
    Config,
    api::security::{AuthorizationAction, AuthorizationPolicy},
};

use provider::Providers;
pub(super) use provider::resolve as providers;
use rule::RuleContext;

const HTTP_RBAC: &str = "envoy.filters.http.rbac";
const NETWORK_RBAC: &str = "envoy.filters.network.rbac";
const DRY_RUN: &str = "istio.io/dry-run";

/// What the filters of one workload are built from.
#[derive(Clone, Debug)]
pub(super) struct AuthzInputs {
    /// Policies that apply, in the order of their evaluation within one action.
    pub policies: Vec<Arc<Config<AuthorizationPolicy>>>,
    /// The mesh's trust domain and its aliases.
    pub trust_domains: Vec<String>,
    /// External authorizers of the mesh configuration.
    pub providers: Providers,
    /// One workload may have several of them.
    pub several_providers: bool,
    /// Peers are known from the filter state of an outer connection.
    pub filter_state: bool,
}

/// Filters of one kind of chain.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct AuthzFilters<F> {
    /// Shadow RBAC and external authorization, a pair for each provider.
    pub custom: Vec<F>,
    /// AUDIT, DENY and ALLOW, as far as there are policies.
    pub rbac: Vec<F>,
}

/// Whether rules are compiled for requests or for connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    /// Requests: everything can be matched.
    Http,
    /// Connections: what belongs to requests cannot be matched.
    Tcp,
}

/// Builds the filters of HTTP chains.
pub(super) fn http(inputs: &AuthzInputs) -> AuthzFilters<HttpFilter> {
    build(inputs, Layer::Http, http_rbac, custom::http)
}

/// Builds the filters of TCP chains.
pub(super) fn tcp(inputs: &AuthzInputs) -> AuthzFilters<Filter> {
    build(inputs, Layer::Tcp, network_rbac, custom::tcp)
}

/// Builds the filters of HTTP chains that carry connections: rules can match what belongs to
/// connections, and nothing is asked elsewhere.
pub(super) fn connections_over_http(inputs: &AuthzInputs) -> Vec<HttpFilter> {
    build(inputs, Layer::Tcp, http_rbac, |_| Vec::new()).rbac
}

fn build<F>(
    inputs: &AuthzInputs,
    layer: Layer,
    rbac: impl Fn(RbacRules) -> F,
    custom: impl Fn(&AuthzInputs) -> Vec<F>,
) -> AuthzFilters<F> {
    let actions = [
        (AuthorizationAction::Audit, Action::Log),
        (AuthorizationAction::Deny, Action::Deny),
        (AuthorizationAction::Allow, Action::Allow),
    ];
    let rbac = actions
        .into_iter()
        .filter_map(|(action, envoy)| partition(inputs, layer, action, envoy))
        .map(rbac)
        .collect();
    AuthzFilters {
        custom: custom(inputs),
        rbac,
    }
}

/// Enforced and shadow rules of one filter.
#[derive(Clone, Default, Debug)]
struct RbacRules {
    enforced: Option<Rbac>,
    shadow: Option<Rbac>,
    shadow_prefix: String,
}

/// Compiles the policies of one action; `None` when there are none.
fn partition(
    inputs: &AuthzInputs,
    layer: Layer,
    action: AuthorizationAction,
    envoy: Action,
) -> Option<RbacRules> {
    let mut enforced = None;
    let mut shadow = None;
    for policy in inputs.policies.iter().filter(|p| p.spec.action == action) {
        let rules = if is_dry_run(policy) {
            &mut shadow
        } else {
            &mut enforced
        };
        let compiled = compile(inputs, layer, policy, "", "");
        rules
            .get_or_insert_with(|| rbac(envoy))
            .policies
            .extend(compiled);
    }
    if enforced.is_none() && shadow.is_none() {
        return None;
    }
    let shadow_prefix = match (&shadow, envoy) {
        (None, _) | (Some(_), Action::Allow) => "istio_dry_run_allow_",
        (Some(_), Action::Deny) => "istio_dry_run_deny_",
        (Some(_), Action::Log) => "",
    };
    Some(RbacRules {
        enforced,
        shadow,
        shadow_prefix: shadow_prefix.to_owned(),
    })
}

/// Rules without policies.
fn rbac(action: Action) -> Rbac {
    Rbac {
        action: action.into(),
        ..Rbac::default()
    }
}

/// Compiles one policy: its name to permissions and principals, one for each usable rule.
fn compile(
    inputs: &AuthzInputs,
    layer: Layer,
    policy: &Config<AuthorizationPolicy>,
    prefix: &str,
    suffix: &str,
) -> HashMap<String, Policy> {
    let name = |index: usize| {
        format!(
            "{prefix}ns[{}]-policy[{}]-rule[{index}]{suffix}",
            policy.meta.namespace, policy.meta.name
        )
    };
    if policy.spec.rules.is_empty() {
        return HashMap::from([(name(0), rule::never())]);
    }
    let ctx = RuleContext {
        layer,
        allow: policy.spec.action == AuthorizationAction::Allow,
        namespace: &policy.meta.namespace,
        trust_domains: &inputs.trust_domains,
        filter_state: inputs.filter_state && policy.spec.action != AuthorizationAction::Custom,
    };
    policy
        .spec
        .rules
        .iter()
        .enumerate()
        .filter_map(|(index, rule)| match rule::compile(rule, &ctx) {
            Ok(compiled) => Some((name(index), compiled)),
            Err(error) => {
                tracing::debug!(policy = %policy.meta.namespaced_name(), index, %error, "rule skipped");
                None
            }
        })
        .collect()
}

fn is_dry_run(policy: &Config<AuthorizationPolicy>) -> bool {
    policy
        .meta
        .annotations
        .get(DRY_RUN)
        .is_some_and(|v| matches!(v.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True"))
}

fn http_rbac(rules: RbacRules) -> HttpFilter {
    http_filter(
        HTTP_RBAC,
        envoy_json::encode::any(&HttpRbac {
            rules: rules.enforced,
            shadow_rules: rules.shadow,
            shadow_rules_stat_prefix: rules.shadow_prefix,
            ..HttpRbac::default()
        }),
    )
}

fn network_rbac(rules: RbacRules) -> Filter {
    network_filter(
        NETWORK_RBAC,
        envoy_json::encode::any(&NetworkRbac {
            rules: rules.enforced,
            shadow_rules: rules.shadow,
            shadow_rules_stat_prefix: rules.shadow_prefix,
            stat_prefix: "tcp.".to_owned(),
            ..NetworkRbac::default()
        }),
    )
}

fn http_filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    }
}

fn network_filter(name: &str, config: Any) -> Filter {
    Filter {
        name: name.to_owned(),
        config_type: Some(filter::ConfigType::TypedConfig(config)),
    }
}
