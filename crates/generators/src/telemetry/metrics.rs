//! Metrics: the objects of a workload, merged for each provider (telemetry-extensions §7).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use envoy_json::istio::stats::MetricConfig;
use model::{
    Config,
    api::{
        Duration, Telemetry,
        common::WorkloadMode,
        telemetry::{IstioMetric, Metrics, MetricsOverride, TagOperation, TagOverride},
    },
};

/// What is changed of one metric.
#[derive(Clone, Default, PartialEq, Debug)]
struct Change {
    disabled: Option<bool>,
    tags: BTreeMap<String, TagOverride>,
}

/// What is changed on one side of a provider.
#[derive(Clone, Default, PartialEq, Debug)]
struct Side {
    all_off: bool,
    changes: BTreeMap<String, Change>,
}

/// What one provider reports.
#[derive(Clone, Default, PartialEq, Debug)]
struct Reported {
    client: Side,
    server: Side,
    interval: Option<Duration>,
}

/// The metrics of one provider on one side.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Chosen {
    /// The name that the provider was referred to by.
    pub name: String,
    /// Changes of metrics, in order.
    pub metrics: Vec<MetricConfig>,
    /// Time between reports of a connection.
    pub interval: Option<Duration>,
}

/// Merges the objects of a workload for one side; providers in order of their names.
pub(super) fn choose(
    layers: &[Arc<Config<Telemetry>>],
    defaults: &[String],
    mode: WorkloadMode,
) -> Vec<Chosen> {
    let entries: Vec<&Metrics> = layers
        .iter()
        .flat_map(|layer| &layer.spec.metrics)
        .collect();
    let defaults: Vec<&str> = defaults.iter().map(String::as_str).collect();
    let mut reported: BTreeMap<&str, Reported> = BTreeMap::new();
    if entries.is_empty() {
        reported.extend(defaults.iter().map(|name| (*name, Reported::default())));
    }
    let named = |entry: &&&Metrics| !entry.providers.is_empty();
    let in_scope: BTreeSet<&str> = match entries.iter().rev().find(named) {
        Some(entry) => names(entry).collect(),
        None => defaults.iter().copied().collect(),
    };
    let mut previous = defaults;
    for entry in entries {
        if !entry.providers.is_empty() {
            previous = names(entry).collect();
        }
        for name in previous.iter().filter(|name| in_scope.contains(*name)) {
            reported.entry(name).or_default().apply(entry);
        }
    }
    reported
        .into_iter()
        .filter_map(|(name, reported)| {
            let side = match mode {
                WorkloadMode::Server => reported.server,
                WorkloadMode::Client | WorkloadMode::ClientAndServer => reported.client,
            };
            (!side.all_off).then(|| Chosen {
                name: name.to_owned(),
                metrics: side
                    .changes
                    .into_iter()
                    .map(|(name, c)| c.config(&name))
                    .collect(),
                interval: reported.interval,
            })
        })
        .collect()
}

fn names(entry: &Metrics) -> impl Iterator<Item = &str> {
    entry
        .providers
        .iter()
        .map(|provider| provider.name.as_str())
}

impl Reported {
    fn apply(&mut self, entry: &Metrics) {
        self.interval = entry.reporting_interval.or(self.interval);
        for change in &entry.overrides {
            let mode = change.r#match.as_ref().map(|m| m.mode).unwrap_or_default();
            if mode != WorkloadMode::Server {
                self.client.apply(change);
            }
            if mode != WorkloadMode::Client {
                self.server.apply(change);
            }
        }
    }
}

impl Side {
    fn apply(&mut self, change: &MetricsOverride) {
        let metrics = matched(change);
        self.all_off = metrics.is_none() && change.disabled == Some(true);
        if self.all_off {
            return;
        }
        let all = || {
            IstioMetric::ALL
                .iter()
                .skip(1)
                .map(|(_, name, _)| (*name).to_owned())
        };
        let metrics: Vec<String> = metrics.map_or_else(|| all().collect(), |one| vec![one]);
        for metric in metrics {
            let own = self.changes.entry(metric).or_default();
            own.disabled = change.disabled.or(own.disabled);
            own.tags.extend(
                change
                    .tag_overrides
                    .iter()
                    .map(|(t, o)| (t.clone(), o.clone())),
            );
        }
    }
}

/// The one metric that an override means, by its proto or custom name; `None` means all.
fn matched(change: &MetricsOverride) -> Option<String> {
    let selector = change.r#match.as_ref()?;
    if let Some(custom) = &selector.custom_metric {
        return Some(custom.clone());
    }
    match selector.metric {
        None | Some(IstioMetric::AllMetrics) => None,
        Some(metric) => Some(metric.as_str().to_owned()),
    }
}

impl Change {
    fn config(&self, metric: &str) -> MetricConfig {
        let mut config = MetricConfig {
            name: reported_name(metric).to_owned(),
            drop: self.disabled == Some(true),
            dimensions: HashMap::new(),
            ..MetricConfig::default()
        };
        for (tag, change) in &self.tags {
            match change.operation {
                TagOperation::Upsert => {
                    config.dimensions.insert(tag.clone(), change.value.clone());
                }
                TagOperation::Remove => config.tags_to_remove.push(tag.clone()),
            }
        }
        config
    }
}

/// The name of a metric as the proxy reports it; custom names are their own.
fn reported_name(metric: &str) -> &str {
    match metric {
        "REQUEST_COUNT" => "requests_total",
        "REQUEST_DURATION" => "request_duration_milliseconds",
        "REQUEST_SIZE" => "request_bytes",
        "RESPONSE_SIZE" => "response_bytes",
        "TCP_OPENED_CONNECTIONS" => "tcp_connections_opened_total",
        "TCP_CLOSED_CONNECTIONS" => "tcp_connections_closed_total",
        "TCP_SENT_BYTES" => "tcp_sent_bytes_total",
        "TCP_RECEIVED_BYTES" => "tcp_received_bytes_total",
        "GRPC_REQUEST_MESSAGES" => "request_messages_total",
        "GRPC_RESPONSE_MESSAGES" => "response_messages_total",
        custom => custom,
    }
}
