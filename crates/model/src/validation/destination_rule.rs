//! DestinationRule (config-model.md §5.1).

mod load_balancer;

use super::selectors::{self, Exported};
use super::traffic;
use super::{Scope, names};
use crate::Meta;
use crate::api::common::{ClientTlsMode, ClientTlsSettings};
use crate::api::destination_rule::{
    DestinationRule, PortTrafficPolicy, RetryBudget, TrafficPolicy, TunnelSettings,
};

/// Most policies for single ports.
const MAX_PORTS: usize = 4096;

pub(super) fn validate(spec: &DestinationRule, meta: &Meta, scope: &Scope<'_>) {
    scope
        .field("host")
        .check(names::wildcard_domain(&spec.host));
    if let Some(policy) = &spec.traffic_policy {
        traffic_policy(&scope.field("trafficPolicy"), policy, &meta.namespace);
    }
    scope.each("subsets", &spec.subsets, |scope, subset| {
        scope.field("name").check(names::dns_label(&subset.name));
        scope.field("labels").check(names::labels(&subset.labels));
        if let Some(policy) = &subset.traffic_policy {
            traffic_policy(&scope.field("trafficPolicy"), policy, &meta.namespace);
        }
    });
    for (index, subset) in spec.subsets.iter().enumerate() {
        if spec.subsets[..index]
            .iter()
            .any(|other| other.name == subset.name)
        {
            scope
                .field("subsets")
                .index(index)
                .field("name")
                .error(format_args!(
                    "another subset has the name {:?}",
                    subset.name
                ));
        }
    }
    selectors::match_labels(
        &scope.field("workloadSelector"),
        spec.workload_selector.as_ref(),
    );
    let kind = match spec.workload_selector {
        Some(_) => Exported::SelectingRule,
        None => Exported::Other,
    };
    selectors::export_to(scope, &spec.export_to, &meta.namespace, kind);
}

fn traffic_policy(scope: &Scope<'_>, policy: &TrafficPolicy, namespace: &str) {
    if *policy == TrafficPolicy::default() {
        scope.error("the traffic policy is empty");
    }
    if policy.tunnel.is_some() && policy.proxy_protocol.is_some() {
        scope
            .field("tunnel")
            .error("cannot be combined with proxyProtocol");
    }
    let has_outlier = policy.outlier_detection.is_some();
    if let Some(outlier) = &policy.outlier_detection {
        traffic::outlier_detection(&scope.field("outlierDetection"), outlier);
    }
    if let Some(pool) = &policy.connection_pool {
        traffic::connection_pool(&scope.field("connectionPool"), pool);
    }
    if let Some(balancer) = &policy.load_balancer {
        load_balancer::validate(&scope.field("loadBalancer"), balancer, has_outlier);
    }
    if let Some(settings) = &policy.tls {
        tls(&scope.field("tls"), settings, namespace);
    }
    if policy.port_level_settings.len() > MAX_PORTS {
        scope.field("portLevelSettings").error(format_args!(
            "{} ports, at most {MAX_PORTS} are allowed",
            policy.port_level_settings.len()
        ));
    }
    scope.each(
        "portLevelSettings",
        &policy.port_level_settings,
        |scope, port| {
            port_policy(scope, port, namespace);
        },
    );
    if let Some(settings) = &policy.tunnel {
        tunnel(&scope.field("tunnel"), settings);
    }
    if let Some(budget) = &policy.retry_budget {
        retry_budget(&scope.field("retryBudget"), budget);
    }
}

fn port_policy(scope: &Scope<'_>, policy: &PortTrafficPolicy, namespace: &str) {
    match &policy.port {
        None => scope.field("port").error("must be set"),
        Some(port) => scope
            .field("port")
            .field("number")
            .check(names::port(port.number)),
    }
    if *policy
        == (PortTrafficPolicy {
            port: policy.port.clone(),
            ..Default::default()
        })
    {
        scope.error("the traffic policy is empty");
    }
    if let Some(outlier) = &policy.outlier_detection {
        traffic::outlier_detection(&scope.field("outlierDetection"), outlier);
    }
    if let Some(pool) = &policy.connection_pool {
        traffic::connection_pool(&scope.field("connectionPool"), pool);
    }
    if let Some(balancer) = &policy.load_balancer {
        let has_outlier = policy.outlier_detection.is_some();
        load_balancer::validate(&scope.field("loadBalancer"), balancer, has_outlier);
    }
    if let Some(settings) = &policy.tls {
        tls(&scope.field("tls"), settings, namespace);
    }
}

fn tunnel(scope: &Scope<'_>, tunnel: &TunnelSettings) {
    if !matches!(tunnel.protocol.as_str(), "" | "CONNECT" | "POST") {
        scope.field("protocol").error(format_args!(
            "{:?} is not a tunnel protocol, allowed are CONNECT and POST",
            tunnel.protocol
        ));
    }
    if names::fqdn(&tunnel.target_host).is_err() && !names::is_ip(&tunnel.target_host) {
        scope.field("targetHost").error(format_args!(
            "{:?} is neither a domain name nor an IP address",
            tunnel.target_host
        ));
    }
    scope
        .field("targetPort")
        .check(names::port(tunnel.target_port));
}

fn retry_budget(scope: &Scope<'_>, budget: &RetryBudget) {
    if let Some(percent) = budget.percent
        && !(0.0..=100.0).contains(&percent)
    {
        scope.field("percent").error(format_args!(
            "{percent} is not a percentage, allowed are 0 to 100"
        ));
    }
    traffic::optional_duration(scope, "budgetInterval", budget.budget_interval);
}

/// Checks TLS towards an upstream. Certificates come from files or from a credential, not both.
pub(super) fn tls(scope: &Scope<'_>, tls: &ClientTlsSettings, namespace: &str) {
    let (simple, mutual) = (
        tls.mode == ClientTlsMode::Simple,
        tls.mode == ClientTlsMode::Mutual,
    );
    if tls.insecure_skip_verify == Some(true) && (simple || mutual) {
        let forbidden = [
            ("caCertificates", !tls.ca_certificates.is_empty()),
            ("subjectAltNames", !tls.subject_alt_names.is_empty()),
            ("credentialName", simple && !tls.credential_name.is_empty()),
        ];
        for (key, _) in forbidden.iter().filter(|(_, present)| *present) {
            scope
                .field(key)
                .error("cannot be combined with insecureSkipVerify: true");
        }
    }
    let credential = &tls.credential_name;
    if let Some(reference) = credential.strip_prefix("configmap://")
        && let Some((other, _)) = reference.split_once('/')
        && other != namespace
    {
        scope.field("credentialName").error(format_args!(
            "{credential:?} is in another namespace, only {namespace:?} is allowed"
        ));
    }
    if (simple || mutual) && !credential.is_empty() {
        for (key, file) in [
            ("clientCertificate", &tls.client_certificate),
            ("privateKey", &tls.private_key),
            ("caCertificates", &tls.ca_certificates),
            ("caCrl", &tls.ca_crl),
        ] {
            if !file.is_empty() {
                scope
                    .field(key)
                    .error("cannot be combined with credentialName");
            }
        }
    } else if mutual {
        for (key, file) in [
            ("clientCertificate", &tls.client_certificate),
            ("privateKey", &tls.private_key),
        ] {
            if file.is_empty() {
                scope
                    .field(key)
                    .error("must be set for mode MUTUAL without credentialName");
            }
        }
    }
}
