//! Mesh configuration and networks (config-model.md §5.1, at the end).

mod providers;
mod proxy;

use super::names::{self, Verdict};
use super::{Scope, destination_rule, traffic};
use crate::api::Duration;
use crate::api::common::LocalityLbSetting;
use crate::api::mesh::{MeshConfig, MeshNetworks};

/// Longest connect timeout.
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(3600);

pub(super) fn validate(config: &MeshConfig, scope: &Scope<'_>) {
    for (key, number, optional) in [
        ("proxyListenPort", config.proxy_listen_port, false),
        (
            "proxyInboundListenPort",
            config.proxy_inbound_listen_port,
            false,
        ),
        ("proxyHttpPort", config.proxy_http_port, true),
    ] {
        if !(optional && number == 0) {
            scope.field(key).check(signed_port(number));
        }
    }
    connect_timeout(config.connect_timeout, scope);
    if let Some(keepalive) = &config.tcp_keepalive {
        traffic::tcp_keepalive(&scope.field("tcpKeepalive"), keepalive);
    }
    proxy::validate(&config.default_config, &scope.field("defaultConfig"));
    // The default says no more than that the setting is in force.
    if let Some(setting) = config
        .locality_lb_setting
        .as_ref()
        .filter(|s| **s != LocalityLbSetting::default())
    {
        traffic::locality(&scope.field("localityLbSetting"), setting, None);
    }
    if let Some(setting) = &config.zone_aware_lb_setting {
        traffic::zone_aware(&scope.field("zoneAwareLbSetting"), setting, None);
    }
    scope.each(
        "serviceSettings",
        &config.service_settings,
        |scope, settings| {
            scope.each("hosts", &settings.hosts, |scope, host| {
                scope.check(names::wildcard_domain(host));
            });
        },
    );
    scope
        .field("trustDomain")
        .check(trust_domain(&config.trust_domain));
    scope.each(
        "trustDomainAliases",
        &config.trust_domain_aliases,
        |scope, alias| {
            scope.check(trust_domain(alias));
        },
    );
    if config
        .mesh_mtls
        .as_ref()
        .is_some_and(|tls| !tls.ecdh_curves.is_empty())
    {
        scope
            .field("meshMTLS")
            .field("ecdhCurves")
            .error("not supported, use tlsDefaults");
    }
    if let Some(policy) = &config.default_traffic_policy {
        let scope = scope.field("defaultTrafficPolicy");
        if let Some(pool) = &policy.connection_pool {
            traffic::connection_pool(&scope.field("connectionPool"), pool);
        }
        if let Some(outlier) = &policy.outlier_detection {
            traffic::outlier_detection(&scope.field("outlierDetection"), outlier);
        }
    }
    if let Some(retry) = &config.default_http_retry_policy {
        traffic::retries(&scope.field("defaultHttpRetryPolicy"), retry);
    }
    if let Some(retry) = &config.default_inbound_http_retry_policy {
        traffic::retries(&scope.field("defaultInboundHttpRetryPolicy"), retry);
    }
    if let Some(tls) = &config.outbound_traffic_policy.tls {
        let scope = scope.field("outboundTrafficPolicy");
        destination_rule::tls(&scope.field("tls"), tls, &config.root_namespace);
    }
    providers::validate(&config.extension_providers, scope);
}

fn connect_timeout(timeout: Duration, scope: &Scope<'_>) {
    let scope = scope.field("connectTimeout");
    scope.check(names::duration(timeout));
    if timeout > MAX_CONNECT_TIMEOUT {
        scope.error(format_args!(
            "{timeout} is too long, at most {MAX_CONNECT_TIMEOUT} is allowed"
        ));
    }
}

fn signed_port(number: i32) -> Verdict {
    match u32::try_from(number) {
        Ok(number) => names::port(number),
        Err(_) => Err(format!(
            "port {number} is out of range, allowed are 1 to 65535"
        )),
    }
}

/// Checks a trust domain: dot-separated DNS labels.
fn trust_domain(domain: &str) -> Verdict {
    let domain = domain.strip_prefix("spiffe://").unwrap_or(domain);
    let labels = domain.strip_suffix('.').unwrap_or(domain);
    labels
        .split('.')
        .try_for_each(names::dns_label)
        .map_err(|reason| format!("{domain:?} is not a trust domain: {reason}"))
}

pub(super) fn networks(spec: &MeshNetworks, resolve_names: bool, scope: &Scope<'_>) {
    scope.entries("networks", &spec.networks, |scope, _, network| {
        scope.each("endpoints", &network.endpoints, |scope, endpoints| {
            match (&endpoints.from_cidr, &endpoints.from_registry) {
                (Some(range), None) => {
                    if range.parse::<ipnet::IpNet>().is_err() {
                        scope.field("fromCidr").error(format_args!(
                            "{range:?} is not a CIDR range such as 10.0.0.0/8"
                        ));
                    }
                }
                (None, Some(registry)) => {
                    scope
                        .field("fromRegistry")
                        .check(names::dns_label(registry));
                }
                _ => scope.error("exactly one of fromCidr and fromRegistry must be set"),
            }
        });
        scope.each("gateways", &network.gateways, |scope, gateway| {
            match (&gateway.registry_service_name, &gateway.address) {
                (Some(service), None) => {
                    scope
                        .field("registryServiceName")
                        .check(names::fqdn(service));
                }
                (None, Some(address)) => {
                    let name = resolve_names && names::fqdn(address).is_ok();
                    if !names::is_ip(address) && !name {
                        scope.field("address").error(format_args!(
                            "{address:?} is neither an IP address nor a domain name"
                        ));
                    }
                }
                _ => scope.error("exactly one of registryServiceName and address must be set"),
            }
            scope.field("port").check(names::port(gateway.port));
        });
    });
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(source: &Value, expected: &[&str]) {
        let config = MeshConfig::default().overlay(source).unwrap().value;
        let issues = RefCell::new(Vec::new());
        validate(&config, &Scope::new("", &issues));
        let paths: Vec<String> = issues
            .into_inner()
            .into_iter()
            .map(|issue| issue.path)
            .collect();
        assert_eq!(paths, expected, "{source}");
    }

    #[test]
    fn defaults_are_sound() {
        check(&json!({}), &[]);
    }

    #[test]
    fn limits() {
        check(&json!({"proxyListenPort": 0}), &["proxyListenPort"]);
        check(&json!({"connectTimeout": "2h"}), &["connectTimeout"]);
        check(&json!({"trustDomain": "a b"}), &["trustDomain"]);
        check(
            &json!({"meshMTLS": {"ecdhCurves": ["P-256"]}}),
            &["meshMTLS.ecdhCurves"],
        );
        check(
            &json!({"defaultConfig": {"discoveryAddress": "x"}}),
            &["defaultConfig.discoveryAddress"],
        );
        check(
            &json!({"defaultConfig": {"drainDuration": "1.5s"}}),
            &["defaultConfig.drainDuration"],
        );
        check(
            &json!({"extensionProviders": [{"name": "a", "zipkin": {"service": "x y", "port": 0}}]}),
            &[
                "extensionProviders[3].zipkin.service",
                "extensionProviders[3].zipkin.port",
            ],
        );
    }

    #[test]
    fn networks_name_ranges_and_gateways() {
        let decode = |value: Value| crate::api::decode::<MeshNetworks>(&value).unwrap().value;
        let run = |value: Value| {
            let issues = RefCell::new(Vec::new());
            networks(&decode(value), true, &Scope::new("", &issues));
            issues
                .into_inner()
                .into_iter()
                .map(|issue| issue.path)
                .collect::<Vec<_>>()
        };
        let good = json!({"networks": {"n": {
            "endpoints": [{"fromCidr": "10.0.0.0/8"}, {"fromRegistry": "c1"}],
            "gateways": [{"address": "1.2.3.4", "port": 15443}],
        }}});
        assert_eq!(run(good), Vec::<String>::new());
        let bad = json!({"networks": {"n": {
            "endpoints": [{"fromCidr": "10.0.0.0"}, {}],
            "gateways": [{"address": "a b", "port": 0}],
        }}});
        assert_eq!(
            run(bad),
            [
                "networks.n.endpoints[0].fromCidr",
                "networks.n.endpoints[1]",
                "networks.n.gateways[0].address",
                "networks.n.gateways[0].port",
            ]
        );
    }
}
