//! Values for tests of builders.

use std::sync::Arc;

use model::{
    Config, ConfigKey, ExportTo, Kind, Labels, Meta, Port, Protocol, Resolution, Service,
    Timestamp, TrafficDistribution,
    service::{Attributes, Registry, ServiceType},
};
use pushctx::ConsolidatedRule;
use serde_json::Value;

pub(crate) mod flips;

/// A rule of `default/r` that nothing was merged into.
#[track_caller]
pub(crate) fn consolidated(spec: Value) -> ConsolidatedRule {
    let config = Config {
        meta: Meta {
            name: "r".into(),
            namespace: "default".into(),
            ..Meta::default()
        },
        spec: serde_json::from_value(spec).unwrap(),
    };
    ConsolidatedRule {
        config: Arc::new(config),
        export_to: ExportTo::default(),
        sources: Vec::new(),
        fingerprint: 1,
    }
}

/// `reviews.default`, or a ServiceEntry of host `api.example.com`.
pub(crate) fn service(
    registry: Registry,
    resolution: Resolution,
    ports: &[(&str, u16, Protocol)],
) -> Service {
    let external = registry == Registry::External;
    let hostname = if external {
        "api.example.com"
    } else {
        "reviews.default.svc.cluster.local"
    };
    Service {
        hostname: hostname.into(),
        ports: ports
            .iter()
            .map(|(name, port, protocol)| Port {
                name: (*name).into(),
                port: *port,
                protocol: *protocol,
            })
            .collect(),
        cluster_vips: std::collections::BTreeMap::default(),
        default_address: "0.0.0.0".into(),
        auto_allocated_v4: "".into(),
        auto_allocated_v6: "".into(),
        resolution,
        mesh_external: external,
        service_accounts: Vec::new(),
        created: Timestamp::default(),
        resource_version: String::new(),
        attributes: Attributes {
            registry,
            name: if external {
                hostname.into()
            } else {
                "reviews".into()
            },
            namespace: "default".into(),
            labels: Labels::new(),
            selector: Labels::new(),
            export_to: ExportTo::default(),
            aliases: Vec::new(),
            cluster_external_addresses: std::collections::BTreeMap::default(),
            cluster_external_ports: std::collections::BTreeMap::default(),
            passthrough_target_ports: std::collections::BTreeMap::default(),
            service_type: ServiceType::ClusterIp,
            external_name: "".into(),
            node_local: false,
            traffic_distribution: TrafficDistribution::Any,
            object_name: "".into(),
            race_first_connect: false,
            publish_not_ready_addresses: false,
        },
        source: ConfigKey::new(Kind::Service, "default", "reviews").into(),
        fingerprint: 0,
    }
}
