//! What a request does (security-policy §9.2).

use envoy_types::pb::envoy::{
    config::{
        core::v3::TypedExtensionConfig,
        rbac::v3::{Permission, permission::Rule},
    },
    extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig,
    r#type::matcher::v3::{PathMatcher, path_matcher},
};
use model::api::security::{Condition, Operation};

use super::{
    matcher::{self, Unusable},
    rule::{Conjunction, RuleContext},
};

const EXPERIMENTAL: &str = "experimental.envoy.filters.";

/// Wraps a rule.
pub(super) const fn of(rule: Rule) -> Permission {
    Permission { rule: Some(rule) }
}

/// Tells whether a condition's attribute belongs to the request's destination.
pub(super) fn is_key(key: &str) -> bool {
    matches!(
        key,
        "destination.ip" | "destination.port" | "connection.sni"
    ) || key.starts_with(EXPERIMENTAL)
}

/// Compiles one `to` element with the rule's conditions.
pub(super) fn compile(
    operation: &Operation,
    conditions: &[&Condition],
    ctx: &RuleContext<'_>,
) -> Result<Permission, Unusable> {
    let mut all = Conjunction::new(*ctx);
    all.field(&operation.hosts, &operation.not_hosts, |v| {
        ctx.http_only("hosts")?;
        Ok(of(Rule::Header(matcher::header(":authority", v, v != "*"))))
    })?;
    all.field(&operation.methods, &operation.not_methods, |v| {
        ctx.http_only("methods")?;
        Ok(of(Rule::Header(matcher::header(":method", v, false))))
    })?;
    all.field(&operation.paths, &operation.not_paths, |v| {
        ctx.http_only("paths")?;
        Ok(path(v))
    })?;
    all.field(&operation.ports, &operation.not_ports, port)?;
    for condition in conditions {
        let (values, not_values) = (&condition.values, &condition.not_values);
        match condition.key.as_str() {
            "destination.ip" => all.field(values, not_values, |v| {
                Ok(of(Rule::DestinationIp(matcher::cidr(v)?)))
            })?,
            "destination.port" => all.field(values, not_values, port)?,
            "connection.sni" => all.field(values, not_values, |v| {
                Ok(of(Rule::RequestedServerName(matcher::plain(v))))
            })?,
            key => all.together(values, not_values, |values| experimental(key, values))?,
        }
    }
    Ok(all.finish())
}

fn port(value: &str) -> Result<Permission, Unusable> {
    Ok(of(Rule::DestinationPort(matcher::port(value)?)))
}

fn path(value: &str) -> Permission {
    if value.contains("{*}") || value.contains("{**}") {
        let template = value.replace("{**}", "**").replace("{*}", "*");
        return of(Rule::UriTemplate(TypedExtensionConfig {
            name: "uri-template".to_owned(),
            typed_config: Some(envoy_json::encode::any(&UriTemplateMatchConfig {
                path_template: template,
            })),
        }));
    }
    of(Rule::UrlPath(PathMatcher {
        rule: Some(path_matcher::Rule::Path(matcher::plain(value))),
    }))
}

/// Metadata that some filter wrote: `experimental.envoy.filters.<filter>[<key>]`.
#[expect(deprecated, reason = "Istio matches metadata by this form")]
fn experimental(key: &str, values: &[String]) -> Result<Permission, Unusable> {
    let text = key.strip_prefix("experimental.").unwrap_or(key);
    let text = text.strip_suffix(']').unwrap_or(text);
    let (filter, name) = text
        .split_once('[')
        .ok_or_else(|| Unusable::Key(key.to_owned()))?;
    let value = |v: &String| {
        if v.starts_with('[') && v.ends_with(']') {
            let element = v.trim_matches(['[', ']']);
            matcher::list_with(matcher::string_value(matcher::plain(element)))
        } else {
            matcher::string_value(matcher::plain(v))
        }
    };
    let value = matcher::any_value(values.iter().map(value).collect());
    Ok(of(Rule::Metadata(matcher::metadata(filter, [name], value))))
}
