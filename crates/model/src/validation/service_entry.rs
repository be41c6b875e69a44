//! ServiceEntry (config-model.md §5.1).

use super::gateway::{UNIX, host_part, unknown_protocol};
use super::selectors::{self, Exported};
use super::workload::endpoint_labels;
use super::{Scope, names};
use crate::api::service_entry::{Location, Resolution, ServiceEntry, WorkloadEntry};
use crate::{Meta, Protocol};

/// Most hosts, and most addresses.
const MAX_HOSTS: usize = 256;
/// Most endpoints.
const MAX_ENDPOINTS: usize = 4096;
/// Label that names the waypoint of a service.
const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label that opts out of the allocation of addresses.
const AUTO_ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";

pub(super) fn validate(spec: &ServiceEntry, meta: &Meta, scope: &Scope<'_>) {
    selectors::labels(
        &scope.field("workloadSelector"),
        spec.workload_selector.as_ref(),
    );
    if spec.workload_selector.is_some() && !spec.endpoints.is_empty() {
        scope
            .field("endpoints")
            .error("cannot be combined with workloadSelector");
    }
    hosts(spec, scope);
    addresses(spec, scope);
    ports(spec, scope);
    if spec.endpoints.len() > MAX_ENDPOINTS {
        scope.field("endpoints").error(format_args!(
            "{} endpoints, at most {MAX_ENDPOINTS} are allowed",
            spec.endpoints.len()
        ));
    }
    match spec.resolution {
        Resolution::None => {
            if !spec.endpoints.is_empty() {
                scope
                    .field("endpoints")
                    .error("not allowed for resolution NONE");
            }
            if spec.workload_selector.is_some() {
                scope
                    .field("workloadSelector")
                    .warning("has no effect for resolution NONE");
            }
        }
        Resolution::Static => fixed(spec, scope),
        Resolution::Dns | Resolution::DnsRoundRobin => dns(spec, scope),
        Resolution::DynamicDns => dynamic_dns(spec, meta, scope),
    }
    indistinguishable_hosts(spec, meta, scope);
    selectors::export_to(
        scope,
        &spec.export_to,
        &meta.namespace,
        Exported::ServiceEntry,
    );
}

fn hosts(spec: &ServiceEntry, scope: &Scope<'_>) {
    if spec.hosts.is_empty() {
        scope
            .field("hosts")
            .error("a service entry needs at least one host");
    }
    if spec.hosts.len() > MAX_HOSTS {
        scope.field("hosts").error(format_args!(
            "{} hosts, at most {MAX_HOSTS} are allowed",
            spec.hosts.len()
        ));
    }
    scope.each("hosts", &spec.hosts, |scope, host| {
        if host == "*" {
            return scope.error("\"*\" is not allowed");
        }
        match names::wildcard_domain(host) {
            Err(reason) => scope.error(reason),
            Ok(()) => {
                if let Err(reason) = host_part(host, true, true) {
                    scope.warning(reason);
                }
            }
        }
    });
}

fn addresses(spec: &ServiceEntry, scope: &Scope<'_>) {
    if spec.addresses.len() > MAX_HOSTS {
        scope.field("addresses").error(format_args!(
            "{} addresses, at most {MAX_HOSTS} are allowed",
            spec.addresses.len()
        ));
    }
    let ranges_allowed = matches!(spec.resolution, Resolution::None | Resolution::Static);
    scope.each("addresses", &spec.addresses, |scope, address| {
        scope.check(names::ip_subnet(address));
        if address.contains('/') && !ranges_allowed {
            scope.error(format_args!(
                "the range {address:?} is only allowed for resolution NONE and STATIC, not {}",
                spec.resolution
            ));
        }
    });
}

fn ports(spec: &ServiceEntry, scope: &Scope<'_>) {
    for (index, port) in spec.ports.iter().enumerate() {
        let field = scope.field("ports");
        let scope = field.index(index);
        scope.field("name").check(names::dns_label(&port.name));
        scope.field("number").check(names::port(port.number));
        if port.target_port != 0 {
            scope
                .field("targetPort")
                .check(names::port(port.target_port));
        }
        if !port.protocol.is_empty() && Protocol::parse(&port.protocol).is_unsupported() {
            scope
                .field("protocol")
                .error(unknown_protocol(&port.protocol));
        }
        let before = &spec.ports[..index];
        if before.iter().any(|other| other.name == port.name) {
            scope
                .field("name")
                .error(format_args!("another port has the name {:?}", port.name));
        }
        if before.iter().any(|other| other.number == port.number) {
            scope
                .field("number")
                .error(format_args!("another port has the number {}", port.number));
        }
    }
}

/// Checks the ports and labels of an endpoint.
fn endpoint(spec: &ServiceEntry, endpoint: &WorkloadEntry, scope: &Scope<'_>) {
    scope.entries("ports", &endpoint.ports, |scope, name, number| {
        if !spec.ports.iter().any(|port| port.name == name) {
            scope.error(format_args!("the service entry has no port named {name:?}"));
        }
        scope.check(names::port(*number));
    });
    endpoint_labels(scope, endpoint);
}

fn fixed(spec: &ServiceEntry, scope: &Scope<'_>) {
    let mut has_socket = false;
    scope.each("endpoints", &spec.endpoints, |scope, workload| {
        if let Some(path) = workload.address.strip_prefix(UNIX) {
            has_socket = true;
            scope.field("address").check(names::unix_path(path));
            if !workload.ports.is_empty() {
                scope.field("ports").error("a unix socket has no ports");
            }
            endpoint_labels(scope, workload);
            return;
        }
        if !workload.address.is_empty() || workload.network.is_empty() {
            scope.field("address").check(names::ip(&workload.address));
        }
        endpoint(spec, workload, scope);
    });
    if has_socket && spec.ports.len() != 1 {
        scope.field("ports").error(format_args!(
            "{} ports, with unix sockets there must be exactly one",
            spec.ports.len()
        ));
    }
}

fn dns(spec: &ServiceEntry, scope: &Scope<'_>) {
    if spec.endpoints.is_empty() {
        scope.each("hosts", &spec.hosts, |scope, host| {
            if names::fqdn(host).is_err() {
                scope.error(format_args!(
                    "{host:?} is not a whole domain name, which resolution {} without endpoints looks up",
                    spec.resolution
                ));
            }
        });
    }
    if spec.resolution == Resolution::DnsRoundRobin && spec.endpoints.len() > 1 {
        scope.field("endpoints").error(format_args!(
            "{} endpoints, at most one is allowed for resolution DNS_ROUND_ROBIN",
            spec.endpoints.len()
        ));
    }
    scope.each("endpoints", &spec.endpoints, |scope, workload| {
        let address = &workload.address;
        let absent = address.is_empty() && !workload.network.is_empty();
        if !absent && names::fqdn(address).is_err() && !names::is_ip(address) {
            scope.field("address").error(format_args!(
                "{address:?} is neither a domain name nor an IP address"
            ));
        }
        endpoint(spec, workload, scope);
    });
}

fn dynamic_dns(spec: &ServiceEntry, meta: &Meta, scope: &Scope<'_>) {
    scope.each("hosts", &spec.hosts, |scope, host| {
        if !host.starts_with('*') {
            scope.error(format_args!(
                "{host:?} is no wildcard, which resolution DYNAMIC_DNS needs"
            ));
        }
    });
    for (key, present) in [
        ("addresses", !spec.addresses.is_empty()),
        ("endpoints", !spec.endpoints.is_empty()),
    ] {
        if present {
            scope
                .field(key)
                .error("not allowed for resolution DYNAMIC_DNS");
        }
    }
    scope.each("ports", &spec.ports, |scope, port| {
        let protocol = Protocol::parse(&port.protocol);
        if !matches!(
            protocol,
            Protocol::Http | Protocol::Http2 | Protocol::Grpc | Protocol::Tls
        ) {
            scope.field("protocol").error(format_args!(
                "{:?} is not allowed for resolution DYNAMIC_DNS, only HTTP, HTTP2, GRPC and TLS",
                port.protocol
            ));
        }
    });
    if spec.location == Location::MeshInternal && meta.labels.contains_key(USE_WAYPOINT) {
        scope.field("location").error(format_args!(
            "MESH_INTERNAL is not allowed for resolution DYNAMIC_DNS with {USE_WAYPOINT}"
        ));
    }
}

/// Plain TCP carries no name: with it, hosts are told apart by their addresses alone.
fn indistinguishable_hosts(spec: &ServiceEntry, meta: &Meta, scope: &Scope<'_>) {
    let nameless = spec.ports.iter().position(|port| {
        let protocol = Protocol::parse(&port.protocol);
        !protocol.is_http() && !protocol.is_tls()
    });
    let Some(index) = nameless else { return };
    let protocol = &spec.ports[index].protocol;
    if spec.hosts.len() > 1 && spec.resolution != Resolution::None {
        scope.field("hosts").error(format_args!(
            "several hosts cannot be told apart on ports[{index}] with protocol {protocol:?}, \
             only HTTP and TLS name the host"
        ));
    }
    let allocated = meta
        .labels
        .get(AUTO_ALLOCATE)
        .is_none_or(|value| value != "false")
        && spec.resolution != Resolution::None;
    if spec.addresses.is_empty() && !allocated {
        scope.field("addresses").warning(format_args!(
            "without an address, ports[{index}] takes all traffic to its port number"
        ));
    }
}
