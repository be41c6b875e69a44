//! What is asked of Envoy's API when an `EnvoyFilter` arrives: whether the values of its patches decode,
//! and to what.

use envoy_json::json::{self, Unknown};
use model::{
    Config,
    api::{EnvoyFilter, envoy_filter::ApplyTo},
    validation::Severity,
};
use prost_reflect::DynamicMessage;
use serde_json::Value;

use crate::patch::PreparedFilter;

/// Returns the full name of the message that patches of a target hold (envoyfilter.md §4).
pub const fn patched_message(apply_to: ApplyTo) -> Option<&'static str> {
    Some(match apply_to {
        ApplyTo::Invalid => return None,
        ApplyTo::Cluster => "envoy.config.cluster.v3.Cluster",
        ApplyTo::Listener => "envoy.config.listener.v3.Listener",
        ApplyTo::FilterChain => "envoy.config.listener.v3.FilterChain",
        ApplyTo::NetworkFilter => "envoy.config.listener.v3.Filter",
        ApplyTo::ListenerFilter => "envoy.config.listener.v3.ListenerFilter",
        ApplyTo::HttpFilter => {
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter"
        }
        ApplyTo::RouteConfiguration => "envoy.config.route.v3.RouteConfiguration",
        ApplyTo::VirtualHost => "envoy.config.route.v3.VirtualHost",
        ApplyTo::HttpRoute => "envoy.config.route.v3.Route",
        ApplyTo::ExtensionConfig => "envoy.config.core.v3.TypedExtensionConfig",
        ApplyTo::Bootstrap => "envoy.config.bootstrap.v3.Bootstrap",
    })
}

/// Compiles the patches of a filter, which keeps the result; so no class that is built later has to.
/// What cannot be compiled is reported when it is needed.
pub fn compile(filter: &Config<EnvoyFilter>) {
    PreparedFilter::of(filter);
}

/// Checks the value of a patch, for [`model::validation::validate_object`] (envoyfilter.md §2, checks
/// 20, 21 and 23): an error when it does not decode, warnings for fields that Envoy does not know
/// and for filters without configuration.
pub fn check_patch(apply_to: ApplyTo, value: &Value) -> Vec<(Severity, String)> {
    let Some(message) = patched_message(apply_to) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let strict = json::from_json(message, value, Unknown::Refuse);
    let decoded = strict.or_else(|unknown| {
        findings.push((Severity::Warning, unknown.to_string()));
        json::from_json(message, value, Unknown::Ignore)
    });
    let decoded = match decoded {
        Ok(decoded) => decoded,
        Err(error) => return vec![(Severity::Error, undecodable(&error))],
    };
    if lacks_configuration(&decoded) {
        findings.push((
            Severity::Warning,
            "has neither typedConfig nor configDiscovery; extensions are found by the type of their configuration, not by name".to_owned(),
        ));
    }
    findings
}

/// Tells whether an extension, at any depth of single messages, is not configured by type.
fn lacks_configuration(message: &DynamicMessage) -> bool {
    let extensible = message.get_field_by_name("typed_config").is_some();
    let configured = |field: &str| message.has_field_by_name(field);
    (extensible && !configured("typed_config") && !configured("config_discovery"))
        || message
            .fields()
            .any(|(_, value)| value.as_message().is_some_and(lacks_configuration))
}

fn undecodable(error: &json::Error) -> String {
    match error {
        json::Error::UnknownType { type_url, .. } if type_url.contains(".v2.") => {
            format!("{error}; types of the v2 API are gone, use v3")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(apply_to: ApplyTo, value: &Value, expected: &[Severity]) {
        let severities: Vec<Severity> = check_patch(apply_to, value)
            .into_iter()
            .map(|finding| finding.0)
            .collect();
        assert_eq!(severities, expected, "{value}");
    }

    #[test]
    fn values_must_decode() {
        use Severity::{Error, Warning};
        check(
            ApplyTo::Cluster,
            &json!({"name": "a", "connect_timeout": "1s"}),
            &[],
        );
        check(ApplyTo::Cluster, &json!({"name": true}), &[Error]);
        check(ApplyTo::Cluster, &json!({"nope": true}), &[Warning]);
        check(ApplyTo::HttpFilter, &json!({"name": "a"}), &[Warning]);
        let unknown = json!({"name": "a", "typed_config": {"@type": "type.googleapis.com/a.v2.B"}});
        check(ApplyTo::HttpFilter, &unknown, &[Error]);
    }
}
