//! Config of the filters `istio.stats` (HTTP and network).

use std::collections::HashMap;

use envoy_types::pb::google::protobuf::Duration;

/// Says which metrics are reported and how (`stats.PluginConfig`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginConfig {
    /// Whether the Host header must not stand in for an unknown destination service.
    #[prost(bool, tag = "6")]
    pub disable_host_header_fallback: bool,
    /// Time between reports of one TCP connection; unset means 5 s.
    #[prost(message, optional, tag = "7")]
    pub tcp_reporting_duration: Option<Duration>,
    /// Changes to existing metrics, in order.
    #[prost(message, repeated, tag = "8")]
    pub metrics: Vec<MetricConfig>,
    /// New metrics.
    #[prost(message, repeated, tag = "9")]
    pub definitions: Vec<MetricDefinition>,
    /// Who reports; [`Reporter::Unspecified`] lets the proxy infer it.
    #[prost(enumeration = "Reporter", tag = "10")]
    pub reporter: i32,
    /// Time between rotations of the metric scope; unset means never.
    #[prost(message, optional, tag = "11")]
    pub rotation_interval: Option<Duration>,
    /// How long metrics of a rotated scope stay; unset means 5 minutes.
    #[prost(message, optional, tag = "12")]
    pub graceful_deletion_interval: Option<Duration>,
}

/// A change to one metric, or to all.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetricConfig {
    /// Tags to set: name to CEL expression.
    #[prost(map = "string, string", tag = "1")]
    pub dimensions: HashMap<String, String>,
    /// The metric; empty means all.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Tags to leave out.
    #[prost(string, repeated, tag = "3")]
    pub tags_to_remove: Vec<String>,
    /// A condition; not implemented by the proxy.
    #[prost(string, tag = "4")]
    pub r#match: String,
    /// Whether the metric is not reported at all.
    #[prost(bool, tag = "5")]
    pub drop: bool,
}

/// A new metric.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MetricDefinition {
    /// Name of the metric.
    #[prost(string, tag = "1")]
    pub name: String,
    /// CEL expression of the value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// Kind of the metric.
    #[prost(enumeration = "MetricType", tag = "3")]
    pub r#type: i32,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum MetricType {
    /// A sum.
    Counter = 0,
    /// A current value.
    Gauge = 1,
    /// A distribution.
    Histogram = 2,
}

/// Who reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Reporter {
    /// Client or server sidecar, by the direction of the listener.
    Unspecified = 0,
    /// A shared gateway of servers: a waypoint.
    ServerGateway = 1,
}

super::name!("stats",
    PluginConfig => "PluginConfig",
    MetricConfig => "MetricConfig",
    MetricDefinition => "MetricDefinition",
);
