//! Tracing of connection managers (telemetry-extensions §10, §11).

mod choose;
mod provider;

use std::sync::Arc;

use envoy_types::pb::{
    envoy::{
        extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing,
        r#type::{
            metadata::v3::{
                MetadataKey, MetadataKind,
                metadata_key::{PathSegment, path_segment},
                metadata_kind,
            },
            tracing::v3::{CustomTag, custom_tag},
        },
    },
    google::protobuf::UInt32Value,
};
use model::{
    Config, Labels, ProxyType,
    api::{self, Telemetry, common::WorkloadMode},
    proxy::{IstioVersion, NodeMetadata},
};
use pushctx::{ProxyClass, PushContext};

use crate::convert;

/// What is known of a peer: names of tags, and of fields.
const PEER_FIELDS: [(&str, &str); 9] = [
    ("workload", "workload"),
    ("namespace", "namespace"),
    ("cluster_id", "cluster"),
    ("canonical_service", "service"),
    ("canonical_revision", "revision"),
    ("app", "app"),
    ("app_version", "version"),
    ("workload_type", "type"),
    ("instance_name", "name"),
];
const RBAC: &str = "envoy.filters.http.rbac";

/// Tracing of managers on one side.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Resolved {
    /// The managers' setting; `None` means off.
    pub tracing: Option<Tracing>,
    /// Requests are sampled by their id.
    pub sample_by_request_id: bool,
}

/// Resolves the tracing of a class on one side: as its Telemetry objects or the mesh's providers say,
/// else by the mesh's older settings.
pub(super) fn resolve(
    context: &PushContext,
    class: &ProxyClass,
    layers: &[Arc<Config<Telemetry>>],
    mode: WorkloadMode,
) -> Resolved {
    let defaults = &context.mesh().default_providers.tracing;
    let known = |name: &str| super::provider::find(context, name).is_some();
    let Some(chosen) = choose::choose(layers, defaults, mode, known) else {
        return Resolved {
            tracing: of_mesh(context, class),
            sample_by_request_id: true,
        };
    };
    let off = Resolved {
        tracing: None,
        sample_by_request_id: true,
    };
    if chosen.disabled {
        return off;
    }
    let found = chosen
        .provider
        .as_deref()
        .and_then(|name| super::provider::find(context, name));
    let proxy = &class.proxy;
    let Some(tracer) = found.and_then(|p| provider::of(context, p, proxy, &class.labels)) else {
        return off;
    };
    let config = proxy_settings(context, class);
    let mut tags = peer_tags(proxy.proxy_type);
    if chosen.istio_tags {
        tags.extend(istio_tags(&class.labels, &proxy.metadata));
    }
    if chosen.custom_tags.is_empty() {
        tags.extend(config.into_iter().flat_map(proxy_tags));
    } else {
        tags.extend(
            chosen
                .custom_tags
                .iter()
                .filter_map(|(tag, value)| telemetry_tag(tag, value, proxy.version)),
        );
    }
    let sampled = if tracer.samples {
        Some(100.0)
    } else {
        chosen.sampling
    };
    let sampling = sampled
        .or_else(|| sampling(config))
        .unwrap_or(context.features().trace_sampling.0);
    let path_length = match tracer.max_path_length {
        0 => config.map_or(0, |t| t.max_path_tag_length),
        length => length,
    };
    let upstream_span = tracer.upstream_span || proxy.is_router();
    let tracing = Tracing {
        provider: Some(tracer.provider),
        spawn_upstream_span: upstream_span.then(|| convert::bool_value(true)).flatten(),
        no_context_propagation: chosen.no_propagation && proxy.version >= IstioVersion(1, 30, 0),
        ..base(sampling, path_length, tags)
    };
    Resolved {
        tracing: Some(tracing),
        sample_by_request_id: chosen.sample_by_request_id,
    }
}

/// The proxy's own settings of tracing, else the mesh's.
fn proxy_settings<'a>(
    context: &'a PushContext,
    class: &'a ProxyClass,
) -> Option<&'a api::mesh::ProxyTracing> {
    crate::proxy_config::of(context, class).tracing.as_ref()
}

/// A tag of a Telemetry object; `None` for what the proxy's version does not know.
fn telemetry_tag(
    tag: &str,
    value: &api::telemetry::CustomTag,
    version: IstioVersion,
) -> Option<CustomTag> {
    if let Some(text) = &value.literal {
        return Some(literal(tag, &text.value));
    }
    if let Some(variable) = &value.environment {
        return Some(environment(tag, variable));
    }
    if let Some(header) = &value.header {
        return Some(request_header(tag, header));
    }
    if let Some(format) = &value.formatter {
        return (version >= IstioVersion(1, 29, 0))
            .then(|| custom(tag, custom_tag::Type::Value(format.value.clone())));
    }
    Some(CustomTag {
        tag: tag.to_owned(),
        r#type: None,
    })
}

/// Tracing without a provider of its own: the tracer is the bootstrap's. `None` when the mesh traces
/// nothing.
fn of_mesh(snapshot: &PushContext, class: &ProxyClass) -> Option<Tracing> {
    let mesh = snapshot.mesh();
    if !mesh.enable_tracing {
        return None;
    }
    let tracing = proxy_settings(snapshot, class);
    let mut tags = peer_tags(class.proxy.proxy_type);
    if tracing.and_then(|t| t.enable_istio_tags).unwrap_or(true) {
        tags.extend(istio_tags(&class.labels, &class.proxy.metadata));
    }
    tags.extend(tracing.into_iter().flat_map(proxy_tags));
    let sampling = sampling(tracing).unwrap_or(snapshot.features().trace_sampling.0);
    let path_length = tracing.map_or(0, |t| t.max_path_tag_length);
    Some(base(sampling, path_length, tags))
}

/// The fields that every form of tracing has; tags are put in order of their names.
fn base(sampling: f64, max_path_length: u32, mut tags: Vec<CustomTag>) -> Tracing {
    tags.sort_by(|a, b| a.tag.cmp(&b.tag));
    Tracing {
        client_sampling: convert::percent(100.0),
        random_sampling: convert::percent(sampling),
        overall_sampling: convert::percent(100.0),
        max_path_tag_length: (max_path_length != 0).then_some(UInt32Value {
            value: max_path_length,
        }),
        custom_tags: tags,
        ..Tracing::default()
    }
}

/// The sampling that the proxy's settings ask for; more than everything counts as 1 %, as Istio has
/// it. `None` when they ask for nothing.
fn sampling(tracing: Option<&api::mesh::ProxyTracing>) -> Option<f64> {
    let sampling = tracing.map(|t| t.sampling).filter(|s| *s != 0.0)?;
    Some(if sampling > 100.0 { 1.0 } else { sampling })
}

/// The tags that tell the workload, and the results of policies that are on trial.
fn istio_tags(labels: &Labels, metadata: &NodeMetadata) -> Vec<CustomTag> {
    let label = |name: &str| labels.get(name).map_or("", String::as_str);
    let mut tags: Vec<CustomTag> = [
        (
            "istio.canonical_revision",
            label("service.istio.io/canonical-revision"),
            "latest",
        ),
        (
            "istio.canonical_service",
            label("service.istio.io/canonical-name"),
            "unknown",
        ),
        ("istio.mesh_id", &metadata.mesh_id, "unknown"),
        ("istio.namespace", &metadata.namespace, "default"),
        ("istio.cluster_id", &metadata.cluster_id, "unknown"),
    ]
    .into_iter()
    .map(|(tag, value, fallback)| literal(tag, if value.is_empty() { fallback } else { value }))
    .collect();
    for action in ["allow", "deny"] {
        for (part, key) in [
            ("name", "shadow_effective_policy_id"),
            ("result", "shadow_engine_result"),
        ] {
            tags.push(request_metadata(
                &format!("istio.authorization.dry_run.{action}_policy.{part}"),
                &format!("istio_dry_run_{action}_{key}"),
            ));
        }
    }
    tags
}

/// The tags with which a waypoint tells both sides of a request; other proxies are one of the two.
fn peer_tags(proxy: ProxyType) -> Vec<CustomTag> {
    if proxy != ProxyType::Waypoint {
        return Vec::new();
    }
    let mut tags = Vec::with_capacity(2 * PEER_FIELDS.len());
    for (side, peer) in [
        ("source", "downstream_peer_obj"),
        ("destination", "upstream_peer_obj"),
    ] {
        for (tag, field) in PEER_FIELDS {
            let value = format!("%FILTER_STATE({peer}:FIELD:{field})%");
            tags.push(custom(
                &format!("istio.{side}_{tag}"),
                custom_tag::Type::Value(value),
            ));
        }
    }
    tags
}

/// The tags of the proxy's own settings.
fn proxy_tags(tracing: &api::mesh::ProxyTracing) -> Vec<CustomTag> {
    tracing
        .custom_tags
        .iter()
        .filter_map(|(tag, value)| {
            if let Some(text) = &value.literal {
                Some(literal(tag, &text.value))
            } else if let Some(variable) = &value.environment {
                Some(environment(tag, variable))
            } else {
                value
                    .header
                    .as_ref()
                    .map(|header| request_header(tag, header))
            }
        })
        .collect()
}

/// A tag with a fixed text.
fn literal(tag: &str, value: &str) -> CustomTag {
    let literal = custom_tag::Literal {
        value: value.to_owned(),
    };
    custom(tag, custom_tag::Type::Literal(literal))
}

/// A tag from the proxy's environment.
fn environment(tag: &str, variable: &api::telemetry::NamedTag) -> CustomTag {
    custom(
        tag,
        custom_tag::Type::Environment(custom_tag::Environment {
            name: variable.name.clone(),
            default_value: variable.default_value.clone(),
        }),
    )
}

/// A tag from a request header.
fn request_header(tag: &str, header: &api::telemetry::NamedTag) -> CustomTag {
    custom(
        tag,
        custom_tag::Type::RequestHeader(custom_tag::Header {
            name: header.name.clone(),
            default_value: header.default_value.clone(),
        }),
    )
}

fn request_metadata(tag: &str, key: &str) -> CustomTag {
    custom(
        tag,
        custom_tag::Type::Metadata(custom_tag::Metadata {
            kind: Some(MetadataKind {
                kind: Some(metadata_kind::Kind::Request(metadata_kind::Request {})),
            }),
            metadata_key: Some(MetadataKey {
                key: RBAC.to_owned(),
                path: vec![PathSegment {
                    segment: Some(path_segment::Segment::Key(key.to_owned())),
                }],
            }),
            default_value: String::new(),
        }),
    )
}

fn custom(tag: &str, value: custom_tag::Type) -> CustomTag {
    CustomTag {
        tag: tag.to_owned(),
        r#type: Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sampling_percent: f64, expected: Option<f64>) {
        let tracing = api::mesh::ProxyTracing {
            sampling: sampling_percent,
            ..api::mesh::ProxyTracing::default()
        };
        assert_eq!(sampling(Some(&tracing)), expected);
    }

    #[test]
    fn impossible_sampling_counts_as_one_percent() {
        check(0.0, None);
        check(50.0, Some(50.0));
        check(101.0, Some(1.0));
    }

    #[test]
    fn tags_are_sorted() {
        let tags = istio_tags(&Labels::new(), &NodeMetadata::default());
        let sorted = base(1.0, 0, tags).custom_tags;
        let names: Vec<&str> = sorted.iter().map(|t| t.tag.as_str()).collect();
        assert!(names.is_sorted());
        assert_eq!(names.len(), 9);
        assert_eq!(names[0], "istio.authorization.dry_run.allow_policy.name");
    }
}
