//! One endpoint as Envoy gets it (clusters-endpoints §19.4).

use std::collections::HashMap;

use envoy_types::pb::{
    envoy::config::{
        core::v3::{
            Address, EnvoyInternalAddress, HealthStatus, Metadata, address,
            envoy_internal_address::AddressNameSpecifier,
        },
        endpoint::v3::{Endpoint as EnvoyEndpoint, LbEndpoint, endpoint, lb_endpoint},
    },
    google::protobuf::{Struct, Value, value::Kind},
};
use model::{Endpoint, Health, Labels, api::common::ClientTlsMode, service::Registry};

use super::{
    assignment::{AssignmentInputs, Purpose},
    group::{Member, Source},
    view::EndpointView,
};
use crate::{
    convert,
    mtls::{MtlsMode, NamespacePolicies},
    names, policy,
};

/// Metadata that a cluster's socket matches look at.
const SOCKET_MATCH: &str = "envoy.transport_socket_match";
/// Label of workloads that can be reached through tunnels.
const TUNNEL_LABEL: &str = "networking.istio.io/tunnel";

/// Judges whether endpoints are reached by mutual TLS.
#[derive(Debug)]
pub(super) struct MtlsJudge<'a> {
    mode: Option<ClientTlsMode>,
    policies: &'a NamespacePolicies,
}

impl<'a> MtlsJudge<'a> {
    /// Reads the rule's mode for the port and subset.
    pub(crate) fn new(inputs: &'a AssignmentInputs) -> Self {
        let mode = inputs
            .spec()
            .and_then(|rule| policy::endpoint_tls_mode(rule, &inputs.subset, inputs.port));
        Self {
            mode,
            policies: &inputs.peer_authentications,
        }
    }

    /// Tells whether an endpoint is marked with its TLS mode.
    fn marks(&self, endpoint: &Endpoint) -> bool {
        if endpoint.tls_mode.is_empty() || &*endpoint.tls_mode == "disabled" {
            return false;
        }
        match self.mode {
            Some(mode) => mode == ClientTlsMode::IstioMutual,
            None => {
                &*endpoint.tls_mode == "istio"
                    && self.policies.mode(&endpoint.labels, endpoint.port) != MtlsMode::Disable
            }
        }
    }
}

/// Health of an endpoint: what its label says, else what the registry found.
pub(super) fn health(endpoint: &Endpoint, view: &EndpointView) -> Health {
    if endpoint
        .labels
        .get(&view.draining_label)
        .is_some_and(|v| !v.is_empty())
    {
        return Health::Draining;
    }
    endpoint.health
}

/// Makes the member for an endpoint.
pub(super) fn member<'a>(
    inputs: &AssignmentInputs,
    endpoint: &'a Endpoint,
    judge: &MtlsJudge<'_>,
) -> Member<'a> {
    let view = &inputs.view;
    let mtls = judge.marks(endpoint);
    let tunnelled = view.hbone && tunnels(endpoint) && (view.prefer_hbone || !mtls);
    let mut metadata = HashMap::with_capacity(2);
    let host = if tunnelled {
        let target = format!("{}:{}", endpoint.address(), endpoint.port);
        if inputs.purpose != Purpose::Handled {
            metadata.insert(SOCKET_MATCH.to_owned(), one_field("tunnel", "http"));
        }
        metadata.insert(
            "envoy.filters.listener.original_dst".to_owned(),
            one_field("local", &target),
        );
        internal_address(names::CONNECT_ORIGINATE, target)
    } else {
        if mtls {
            metadata.insert(
                SOCKET_MATCH.to_owned(),
                one_field("tlsMode", &endpoint.tls_mode),
            );
        }
        address(endpoint.address(), endpoint.port)
    };
    if view.telemetry {
        metadata.insert(
            "istio".to_owned(),
            one_field("workload", &workload(inputs, endpoint)),
        );
    }
    let additional = endpoint
        .addresses
        .iter()
        .skip(1)
        .filter(|_| view.dual_stack && !tunnelled);
    let additional_addresses = additional
        .map(|a| endpoint::AdditionalAddress {
            address: Some(address(a, endpoint.port)),
        })
        .collect();
    let status = match health(endpoint, view) {
        Health::Healthy => HealthStatus::Healthy,
        Health::Unhealthy => HealthStatus::Unhealthy,
        Health::Draining => HealthStatus::Draining,
        Health::Terminating | Health::Unknown => HealthStatus::Unknown,
    };
    Member {
        message: LbEndpoint {
            health_status: status.into(),
            host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(EnvoyEndpoint {
                address: Some(host),
                additional_addresses,
                ..EnvoyEndpoint::default()
            })),
            ..with_metadata(metadata)
        },
        weight: endpoint.weight.max(1),
        mtls: mtls && &*endpoint.tls_mode == "istio",
        source: Source::Endpoint(endpoint),
    }
}

/// Makes the message for a gateway that leads to endpoints of another network.
pub(super) fn gateway(host: &str, port: u16, cluster: &str, telemetry: bool) -> LbEndpoint {
    let mut metadata = HashMap::from([(SOCKET_MATCH.to_owned(), one_field("tlsMode", "istio"))]);
    if telemetry {
        metadata.insert(
            "istio".to_owned(),
            one_field("workload", &format!(";;;;{cluster}")),
        );
    }
    LbEndpoint {
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(address(host, port)),
            ..EnvoyEndpoint::default()
        })),
        ..with_metadata(metadata)
    }
}

fn with_metadata(filter_metadata: HashMap<String, Struct>) -> LbEndpoint {
    LbEndpoint {
        metadata: (!filter_metadata.is_empty()).then(|| Metadata {
            filter_metadata,
            ..Metadata::default()
        }),
        ..LbEndpoint::default()
    }
}

/// Tells whether a workload can be reached through HBONE tunnels.
pub(crate) fn tunnels(endpoint: &Endpoint) -> bool {
    endpoint
        .labels
        .get(TUNNEL_LABEL)
        .is_some_and(|tunnels| tunnels.split(',').any(|tunnel| tunnel == "http"))
}

/// An IP address with its port, or a Unix socket (port 0).
fn address(text: &str, port: u16) -> Address {
    if port == 0 {
        return convert::pipe_address(text.strip_prefix("unix://").unwrap_or(text));
    }
    convert::socket_address(text, port)
}

/// A listener inside the proxy; `id` tells endpoints of one listener apart.
pub(crate) fn internal_address(listener: &str, id: String) -> Address {
    Address {
        address: Some(address::Address::EnvoyInternalAddress(
            EnvoyInternalAddress {
                endpoint_id: id,
                address_name_specifier: Some(AddressNameSpecifier::ServerListenerName(
                    listener.to_owned(),
                )),
            },
        )),
    }
}

/// `<workload>;<namespace>;<canonical name>;<canonical revision>;<cluster>`.
fn workload(inputs: &AssignmentInputs, endpoint: &Endpoint) -> String {
    let service = &inputs.service;
    let of_service = inputs.view.canonical_external
        && service.mesh_external
        && service.attributes.registry == Registry::External;
    let (labels, namespace): (&Labels, &str) = if of_service {
        (&service.attributes.labels, &service.attributes.namespace)
    } else {
        (&endpoint.labels, &endpoint.namespace)
    };
    let name = canonical_name(labels).unwrap_or(&endpoint.workload_name);
    let revision = canonical_revision(labels);
    let (workload, cluster) = (&endpoint.workload_name, &endpoint.cluster);
    [workload, namespace, name, revision, cluster].join(";")
}

fn first<'a>(labels: &'a Labels, keys: &[&str]) -> Option<&'a str> {
    keys.iter()
        .find_map(|key| labels.get(*key))
        .map(String::as_str)
}

fn canonical_name(labels: &Labels) -> Option<&str> {
    first(
        labels,
        &[
            "service.istio.io/canonical-name",
            "app.kubernetes.io/name",
            "app",
        ],
    )
}

/// The revision of a workload; `latest`, the default, is written as nothing.
fn canonical_revision(labels: &Labels) -> &str {
    let keys = [
        "service.istio.io/canonical-revision",
        "app.kubernetes.io/version",
        "version",
    ];
    first(labels, &keys)
        .filter(|revision| *revision != "latest")
        .unwrap_or_default()
}

fn one_field(key: &str, value: &str) -> Struct {
    let value = Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    };
    Struct {
        fields: HashMap::from([(key.to_owned(), value)]),
    }
}
