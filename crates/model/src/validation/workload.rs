//! WorkloadEntry and `WorkloadGroup` (config-model.md §5.1).

use super::gateway::UNIX;
use super::text;
use super::{Scope, names};
use crate::api::service_entry::{ReadinessProbe, WorkloadEntry, WorkloadGroup};

pub(super) fn entry(spec: &WorkloadEntry, scope: &Scope<'_>) {
    address(spec, scope);
    ports_and_labels(spec, scope);
}

fn address(spec: &WorkloadEntry, scope: &Scope<'_>) {
    let scope = scope.field("address");
    if spec.address.is_empty() {
        if spec.network.is_empty() {
            scope.error("must be set, unless the network is");
        } else {
            scope.warning(
                "without an address the workload is reached through gateways of its network only",
            );
        }
    } else if let Some(path) = spec.address.strip_prefix(UNIX) {
        scope.check(names::unix_path(path));
    } else if !names::is_ip(&spec.address) && names::fqdn(&spec.address).is_err() {
        scope.error(format_args!(
            "{:?} is neither an IP address nor a domain name",
            spec.address
        ));
    }
}

fn ports_and_labels(spec: &WorkloadEntry, scope: &Scope<'_>) {
    if spec.address.starts_with(UNIX) && !spec.ports.is_empty() {
        scope.field("ports").error("a unix socket has no ports");
    }
    scope.entries("ports", &spec.ports, |scope, name, number| {
        scope.check(names::dns_label(name));
        scope.check(names::port(*number));
    });
    endpoint_labels(scope, spec);
}

/// Checks the labels of an endpoint.
pub(super) fn endpoint_labels(scope: &Scope<'_>, spec: &WorkloadEntry) {
    scope.field("labels").check(names::labels(&spec.labels));
}

pub(super) fn group(spec: &WorkloadGroup, scope: &Scope<'_>) {
    if let Some(metadata) = &spec.metadata {
        scope
            .field("metadata")
            .field("labels")
            .check(names::labels(&metadata.labels));
    }
    match &spec.template {
        None => scope.field("template").error("must be set"),
        // The address comes from the workload itself.
        Some(template) => {
            let scope = scope.field("template");
            ports_and_labels(template, &scope);
        }
    }
    if let Some(check) = &spec.probe {
        probe(&scope.field("probe"), check);
    }
}

/// Checks a health check.
pub(super) fn probe(scope: &Scope<'_>, probe: &ReadinessProbe) {
    for (key, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        scope.field(key).check(names::not_negative(value));
    }
    if let Some(check) = &probe.http_get {
        let scope = scope.field("httpGet");
        scope.field("port").check(names::port(check.port));
        if !matches!(
            check.scheme.as_str(),
            "" | "http" | "https" | "HTTP" | "HTTPS"
        ) {
            scope.field("scheme").error(format_args!(
                "{:?} is not a scheme, allowed are http and https",
                check.scheme
            ));
        }
        scope.each("httpHeaders", &check.http_headers, |scope, header| {
            scope.field("name").check(text::header_name(&header.name));
        });
    } else if let Some(check) = &probe.tcp_socket {
        scope
            .field("tcpSocket")
            .field("port")
            .check(names::port(check.port));
    } else if let Some(check) = &probe.exec {
        if check.command.is_empty() {
            scope
                .field("exec")
                .field("command")
                .error("the command is empty");
        }
    } else {
        // The reference knows the grpc method in the schema but not in its checks.
        scope.error("one of httpGet, tcpSocket and exec must be set");
    }
}
