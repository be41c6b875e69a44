//! Sidecar (config-model.md §5.1).

use super::gateway::{UNIX, host_part, server_tls, unknown_protocol};
use super::names::Verdict;
use super::{Scope, names, selectors, text, traffic};
use crate::api::gateway::{ServerTlsMode, ServerTlsSettings};
use crate::api::sidecar::{
    EgressListener, IngressListener, OutboundTrafficMode, OutboundTrafficPolicy, Sidecar,
    SidecarPort,
};
use crate::{Protocol, host};

pub(super) fn validate(spec: &Sidecar, scope: &Scope<'_>) {
    selectors::labels(
        &scope.field("workloadSelector"),
        spec.workload_selector.as_ref(),
    );
    let is_empty = spec.egress.is_empty()
        && spec.ingress.is_empty()
        && spec.outbound_traffic_policy.is_none()
        && spec.inbound_connection_pool.is_none();
    if is_empty {
        scope.error(
            "one of ingress, egress, inboundConnectionPool and outboundTrafficPolicy must be set",
        );
    }
    for (index, listener) in spec.ingress.iter().enumerate() {
        let field = scope.field("ingress");
        ingress(listener, &spec.ingress[..index], &field.index(index));
    }
    for (index, listener) in spec.egress.iter().enumerate() {
        let field = scope.field("egress");
        egress(
            listener,
            &spec.egress[..index],
            index + 1 == spec.egress.len(),
            &field.index(index),
        );
    }
    if let Some(pool) = &spec.inbound_connection_pool {
        traffic::connection_pool(&scope.field("inboundConnectionPool"), pool);
    }
    if let Some(policy) = &spec.outbound_traffic_policy {
        outbound(policy, &scope.field("outboundTrafficPolicy"));
    }
}

fn ingress(listener: &IngressListener, before: &[IngressListener], scope: &Scope<'_>) {
    match &listener.port {
        None => scope.field("port").error("must be set"),
        Some(port) => {
            sidecar_port(port, false, &scope.field("port"));
            let taken = |other: &IngressListener| {
                other
                    .port
                    .as_ref()
                    .is_some_and(|other| other.number == port.number)
            };
            if before.iter().any(taken) {
                scope.field("port").field("number").error(format_args!(
                    "another ingress listener has the port {}",
                    port.number
                ));
            }
        }
    }
    if !listener.bind.is_empty() {
        scope.field("bind").check(names::ip(&listener.bind));
    }
    scope
        .field("defaultEndpoint")
        .check(default_endpoint(&listener.default_endpoint));
    let protocol = listener
        .port
        .as_ref()
        .map(|port| Protocol::parse(&port.protocol));
    if let Some(tls) = &listener.tls {
        ingress_tls(tls, protocol, &scope.field("tls"));
    }
    if let Some(pool) = &listener.connection_pool {
        let scope = scope.field("connectionPool");
        traffic::connection_pool(&scope, pool);
        if pool.http.is_some() && protocol.is_some_and(|protocol| !protocol.is_http()) {
            scope
                .field("http")
                .warning("has no effect on a port that is not HTTP");
        }
    }
}

fn ingress_tls(tls: &ServerTlsSettings, protocol: Option<Protocol>, scope: &Scope<'_>) {
    server_tls(scope, tls);
    let forbidden = [
        ("subjectAltNames", !tls.subject_alt_names.is_empty()),
        ("httpsRedirect", tls.https_redirect),
        ("credentialName", !tls.credential_name.is_empty()),
        ("credentialNames", !tls.credential_names.is_empty()),
    ];
    for (key, _) in forbidden.iter().filter(|(_, given)| *given) {
        scope.field(key).error("not supported in sidecars");
    }
    if matches!(
        tls.mode,
        ServerTlsMode::IstioMutual | ServerTlsMode::AutoPassthrough
    ) {
        scope
            .field("mode")
            .error(format_args!("{} is not supported in sidecars", tls.mode));
    }
    if let Some(protocol) = protocol.filter(|protocol| !protocol.is_tls()) {
        scope.error(format_args!(
            "only allowed for HTTPS and TLS, not for protocol {protocol}"
        ));
    }
}

/// Checks the address of the application: loopback, the workload's own, or a Unix socket.
fn default_endpoint(endpoint: &str) -> Verdict {
    if endpoint.is_empty() {
        return Ok(());
    }
    if let Some(path) = endpoint.strip_prefix(UNIX) {
        return names::unix_path(path);
    }
    let form = || {
        format!(
            "{endpoint:?} is not of the form 127.0.0.1:port, 0.0.0.0:port, [::1]:port, [::]:port, :port or unix://path"
        )
    };
    let (address, port) = text::split_host_port(endpoint).ok_or_else(form)?;
    if !matches!(address, "" | "127.0.0.1" | "0.0.0.0" | "::1" | "::") {
        return Err(form());
    }
    names::port(port.parse().map_err(|_| form())?)
}

fn sidecar_port(port: &SidecarPort, is_socket: bool, scope: &Scope<'_>) {
    if !(is_socket && port.number == 0) {
        scope.field("number").check(names::port(port.number));
    }
    if port.target_port != 0 {
        scope
            .field("targetPort")
            .warning("has no effect in sidecars");
    }
    if !port.protocol.is_empty() && Protocol::parse(&port.protocol).is_unsupported() {
        scope
            .field("protocol")
            .error(unknown_protocol(&port.protocol));
    }
}

fn egress(listener: &EgressListener, before: &[EgressListener], is_last: bool, scope: &Scope<'_>) {
    match &listener.port {
        None => {
            if before.iter().any(|other| other.port.is_none()) {
                scope.error("another egress listener has no port, only one may be without");
            }
            if !is_last {
                scope.error("an egress listener without port must be the last one");
            }
        }
        Some(port) => egress_place(listener, port, before, scope),
    }
    if listener.hosts.is_empty() {
        scope
            .field("hosts")
            .error("an egress listener needs at least one host");
    }
    let mut all_valid = true;
    scope.each("hosts", &listener.hosts, |scope, host| {
        let verdict = egress_host(host);
        all_valid &= verdict.is_ok();
        scope.check(verdict);
    });
    if all_valid {
        overlaps(&listener.hosts, &scope.field("hosts"));
    }
}

/// Checks where a listener with a port listens: an address of its own, or a Unix socket.
fn egress_place(
    listener: &EgressListener,
    port: &SidecarPort,
    before: &[EgressListener],
    scope: &Scope<'_>,
) {
    let socket = listener.bind.strip_prefix(UNIX);
    sidecar_port(port, socket.is_some(), &scope.field("port"));
    let bind = scope.field("bind");
    match socket {
        Some(path) => {
            bind.check(names::unix_path(path));
            if port.number != 0 {
                bind.error(format_args!(
                    "a unix socket has no port, but the number is {}",
                    port.number
                ));
            }
        }
        None if !listener.bind.is_empty() => bind.check(names::ip(&listener.bind)),
        None => {}
    }
    let same_place = |other: &EgressListener| {
        other
            .port
            .as_ref()
            .is_some_and(|other| other.number == port.number)
            && (port.number != 0 || other.bind == listener.bind)
    };
    if before.iter().any(same_place) {
        scope
            .field("port")
            .error("another egress listener has the same port or socket");
    }
}

/// Checks `namespace/host`; a `~` before the namespace excludes.
fn egress_host(text: &str) -> Verdict {
    let Some((namespace, host)) = text.split_once('/') else {
        return Err(format!("{text:?} is not of the form namespace/host"));
    };
    let included = namespace.strip_prefix('~').unwrap_or(namespace);
    let valid = matches!(included, "*" | ".")
        || names::is_dns_label(included)
        || (included.is_empty() && namespace == "~");
    if !valid {
        return Err(format!(
            "{text:?}: {namespace:?} is not a namespace, \"*\", \".\" or \"~\""
        ));
    }
    host_part(host, false, false)
}

fn overlaps(hosts: &[String], scope: &Scope<'_>) {
    for (index, text) in hosts.iter().enumerate() {
        let scope = scope.index(index);
        if text == "*/*" && hosts.len() > 1 {
            scope.warning("\"*/*\" makes the other hosts superfluous");
        }
        let Some((namespace, name)) = text.split_once('/') else {
            continue;
        };
        let overlapping = hosts[..index].iter().find(|other| {
            other
                .split_once('/')
                .is_some_and(|(other_namespace, other_name)| {
                    other_namespace == namespace && host::matches(name, other_name)
                })
        });
        if let Some(other) = overlapping.filter(|other| *other != "*/*") {
            scope.warning(format_args!("{text:?} overlaps with {other:?}"));
        }
    }
}

fn outbound(policy: &OutboundTrafficPolicy, scope: &Scope<'_>) {
    if policy.mode == OutboundTrafficMode::AllowAnyDynamicDns {
        scope.field("mode").error(format_args!(
            "{} is only allowed in the mesh configuration",
            policy.mode
        ));
    }
    let Some(proxy) = &policy.egress_proxy else {
        return;
    };
    let scope = scope.field("egressProxy");
    if policy.mode != OutboundTrafficMode::AllowAny {
        scope.error(format_args!(
            "only allowed with mode ALLOW_ANY, not {}",
            policy.mode
        ));
    }
    scope.field("host").check(names::fqdn(&proxy.host));
    if !proxy.subset.is_empty() {
        scope.field("subset").check(names::dns_label(&proxy.subset));
    }
    match &proxy.port {
        None => scope.field("port").error("must be set"),
        Some(port) => scope
            .field("port")
            .field("number")
            .check(names::port(port.number)),
    }
}
