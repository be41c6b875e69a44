//! AuthorizationPolicy (security-policy.md §16).

mod condition;
mod path;

use serde_json::Value;

use super::names::{self, Verdict};
use super::{Scope, selectors};
use crate::api::security::{AuthorizationAction, AuthorizationPolicy, Operation, Rule, Source};

/// Most rules of one policy.
const MAX_RULES: usize = 512;
/// Most service accounts of one source.
const MAX_ACCOUNTS: usize = 16;
/// Longest service account.
const MAX_ACCOUNT: usize = 320;

pub(super) fn validate(spec: &AuthorizationPolicy, raw: Option<&Value>, scope: &Scope<'_>) {
    selectors::one_target(
        scope,
        spec.selector.as_ref(),
        spec.target_ref.as_ref(),
        &spec.target_refs,
    );
    action(spec, scope);
    if spec.rules.len() > MAX_RULES {
        scope.field("rules").error(format_args!(
            "{} rules, at most {MAX_RULES} are allowed",
            spec.rules.len()
        ));
    }
    let raw_rules = raw.and_then(|raw| raw.get("rules"));
    let mut index = 0;
    scope.each("rules", &spec.rules, |scope, rule| {
        let raw = raw_rules.and_then(|rules| rules.get(index));
        index += 1;
        if raw.is_some_and(Value::is_null) {
            return scope.error("the rule is null; write {} to match everything");
        }
        validate_rule(rule, raw, scope);
        if spec.action == AuthorizationAction::Custom {
            identities(rule, scope);
        }
        if spec.action == AuthorizationAction::Deny && only_http(rule) {
            scope.warning(
                "only HTTP attributes are tested: on TCP ports all traffic is denied; name the ports to avoid that",
            );
        }
    });
}

fn action(spec: &AuthorizationPolicy, scope: &Scope<'_>) {
    match spec.action {
        AuthorizationAction::Custom => {
            if spec.rules.is_empty() {
                scope
                    .field("rules")
                    .error("action CUSTOM needs at least one rule");
            }
            if spec
                .provider
                .as_ref()
                .is_none_or(|provider| provider.name.is_empty())
            {
                scope
                    .field("provider")
                    .field("name")
                    .error("must be set for action CUSTOM");
            }
        }
        AuthorizationAction::Deny if spec.rules.is_empty() => {
            scope.field("rules").error(
                "action DENY without rules has no effect; write {} as a rule to deny everything",
            );
        }
        AuthorizationAction::Allow | AuthorizationAction::Deny | AuthorizationAction::Audit => {}
    }
    if spec.action != AuthorizationAction::Custom && spec.provider.is_some() {
        scope.field("provider").error(format_args!(
            "only allowed for action CUSTOM, not {}",
            spec.action
        ));
    }
}

/// Tells whether a list was given with no elements, which is not the same as leaving it out.
fn given_empty(raw: Option<&Value>, key: &str) -> bool {
    raw.and_then(|raw| raw.get(key))
        .and_then(Value::as_array)
        .is_some_and(Vec::is_empty)
}

fn validate_rule(rule: &Rule, raw: Option<&Value>, scope: &Scope<'_>) {
    for key in ["from", "to"] {
        if given_empty(raw, key) {
            scope
                .field(key)
                .error("the list is empty; leave it out to match everything");
        }
    }
    scope.each("from", &rule.from, |scope, from| {
        let scope = scope.field("source");
        match &from.source {
            Some(source) if *source != Source::default() => validate_source(source, &scope),
            _ => scope.error("must be set and not empty"),
        }
    });
    scope.each("to", &rule.to, |scope, to| {
        let scope = scope.field("operation");
        match &to.operation {
            Some(operation) if *operation != Operation::default() => {
                validate_operation(operation, &scope);
            }
            _ => scope.error("must be set and not empty"),
        }
    });
    scope.each("when", &rule.when, |scope, when| {
        condition::validate(when, scope);
    });
}

/// The lists of a source with their names.
fn source_lists(source: &Source) -> [(&'static str, &Vec<String>); 14] {
    [
        ("principals", &source.principals),
        ("notPrincipals", &source.not_principals),
        ("requestPrincipals", &source.request_principals),
        ("notRequestPrincipals", &source.not_request_principals),
        ("namespaces", &source.namespaces),
        ("notNamespaces", &source.not_namespaces),
        ("ipBlocks", &source.ip_blocks),
        ("notIpBlocks", &source.not_ip_blocks),
        ("remoteIpBlocks", &source.remote_ip_blocks),
        ("notRemoteIpBlocks", &source.not_remote_ip_blocks),
        ("serviceAccounts", &source.service_accounts),
        ("notServiceAccounts", &source.not_service_accounts),
        ("trustDomains", &source.trust_domains),
        ("notTrustDomains", &source.not_trust_domains),
    ]
}

fn not_empty(value: &str) -> Verdict {
    if value.is_empty() {
        Err("the value is empty".to_owned())
    } else {
        Ok(())
    }
}

fn validate_source(source: &Source, scope: &Scope<'_>) {
    for (key, list) in source_lists(source) {
        let check: fn(&str) -> Verdict = match key {
            "ipBlocks" | "notIpBlocks" | "remoteIpBlocks" | "notRemoteIpBlocks" => names::ip_subnet,
            "serviceAccounts" | "notServiceAccounts" => service_account,
            "trustDomains" | "notTrustDomains" => trust_domain,
            _ => not_empty,
        };
        scope.each(key, list, |scope, value| {
            scope.check(not_empty(value).and_then(|()| check(value)));
        });
    }
    let accounts = [
        ("serviceAccounts", &source.service_accounts),
        ("notServiceAccounts", &source.not_service_accounts),
    ];
    for (key, list) in accounts {
        if list.len() > MAX_ACCOUNTS {
            scope.field(key).error(format_args!(
                "{} service accounts, at most {MAX_ACCOUNTS} are allowed",
                list.len()
            ));
        }
    }
    let has_accounts = accounts.iter().any(|(_, list)| !list.is_empty());
    let conflicting = ["principals", "notPrincipals", "namespaces", "notNamespaces"];
    if has_accounts {
        for (key, _) in source_lists(source)
            .iter()
            .filter(|(key, list)| conflicting.contains(key) && !list.is_empty())
        {
            scope
                .field(key)
                .error("cannot be combined with serviceAccounts or notServiceAccounts");
        }
    }
}

/// Checks `account` or `namespace/account`.
pub(super) fn service_account(value: &str) -> Verdict {
    if value.len() > MAX_ACCOUNT {
        return Err(format!(
            "{} characters, at most {MAX_ACCOUNT} are allowed",
            value.len()
        ));
    }
    if value.contains('*') {
        return Err(format!("{value:?}: wildcards are not supported"));
    }
    if value.matches('/').count() > 1 {
        return Err(format!(
            "{value:?} is not of the form namespace/account or account"
        ));
    }
    Ok(())
}

/// Checks a trust domain with at most one wildcard, at an end.
pub(super) fn trust_domain(value: &str) -> Verdict {
    not_empty(value)?;
    if value.contains('/') {
        return Err(format!("{value:?} is not a trust domain: it has a slash"));
    }
    let wildcards = value.matches('*').count();
    if wildcards > 1 || (wildcards == 1 && !value.starts_with('*') && !value.ends_with('*')) {
        return Err(format!(
            "{value:?}: only one wildcard is allowed, at the start or end"
        ));
    }
    Ok(())
}

/// Checks a port number in text.
pub(super) fn port(value: &str) -> Verdict {
    let number = value.parse::<u32>().ok().filter(|number| *number <= 65535);
    if number.is_some() && !value.starts_with('+') {
        return Ok(());
    }
    Err(format!("{value:?} is not a port, allowed are 0 to 65535"))
}

/// The lists of an operation with their names.
fn operation_lists(operation: &Operation) -> [(&'static str, &Vec<String>); 8] {
    [
        ("hosts", &operation.hosts),
        ("notHosts", &operation.not_hosts),
        ("ports", &operation.ports),
        ("notPorts", &operation.not_ports),
        ("methods", &operation.methods),
        ("notMethods", &operation.not_methods),
        ("paths", &operation.paths),
        ("notPaths", &operation.not_paths),
    ]
}

fn validate_operation(operation: &Operation, scope: &Scope<'_>) {
    for (key, list) in operation_lists(operation) {
        let check: fn(&str) -> Verdict = match key {
            "ports" | "notPorts" => port,
            "paths" | "notPaths" => path::validate,
            _ => not_empty,
        };
        scope.each(key, list, |scope, value| {
            scope.check(not_empty(value).and_then(|()| check(value)));
        });
    }
}

/// Reports what an external authorizer cannot be asked about: identities, which it checks itself.
fn identities(rule: &Rule, scope: &Scope<'_>) {
    const FORBIDDEN: [&str; 10] = [
        "principals",
        "notPrincipals",
        "requestPrincipals",
        "notRequestPrincipals",
        "namespaces",
        "notNamespaces",
        "serviceAccounts",
        "notServiceAccounts",
        "trustDomains",
        "notTrustDomains",
    ];
    scope.each("from", &rule.from, |scope, from| {
        let Some(source) = &from.source else { return };
        for (key, _) in source_lists(source)
            .iter()
            .filter(|(key, list)| FORBIDDEN.contains(key) && !list.is_empty())
        {
            scope
                .field("source")
                .field(key)
                .error("not supported for action CUSTOM");
        }
    });
    scope.each("when", &rule.when, |scope, when| {
        if condition::is_identity(&when.key) {
            scope.field("key").error(format_args!(
                "{:?} is not supported for action CUSTOM",
                when.key
            ));
        }
    });
}

/// Tells whether a rule tests HTTP attributes but no port, so that on TCP nothing is left to test.
fn only_http(rule: &Rule) -> bool {
    let has_http = rule.to.iter().any(|to| {
        to.operation.as_ref().is_some_and(|operation| {
            operation_lists(operation)
                .iter()
                .any(|(key, list)| !key.to_ascii_lowercase().ends_with("ports") && !list.is_empty())
        })
    }) || rule.from.iter().any(|from| {
        from.source.as_ref().is_some_and(|source| {
            !source.request_principals.is_empty() || !source.not_request_principals.is_empty()
        })
    }) || rule
        .when
        .iter()
        .any(|when| when.key.starts_with("request."));
    let has_port = rule.to.iter().any(|to| {
        to.operation
            .as_ref()
            .is_some_and(|operation| !operation.ports.is_empty() || !operation.not_ports.is_empty())
    }) || rule.when.iter().any(|when| when.key == "destination.port");
    has_http && !has_port
}
