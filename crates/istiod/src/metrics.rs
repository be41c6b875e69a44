//! Metrics under the names that Istio's dashboards know (observability §3).

use std::{sync::Arc, time::Duration};

use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use tonic::{Code, Status};
use xds::{Delivered, Observer, Rejected, StreamInfo, type_url};

mod certificates;
mod distribution;
mod recent;

pub(crate) use self::certificates::{CertificateMetrics, Unsigned};
use self::distribution::DistributionMetrics;
pub(crate) use self::recent::{Publication, Recent};
use crate::{patch_status::PatchStatus, tables::TableMetrics};

/// Upper bounds of times, in seconds.
const SECONDS: [f64; 8] = [0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
/// Upper bounds of short times, in seconds.
const SHORT_SECONDS: [f64; 9] = [0.01, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 20.0, 30.0];
/// Upper bounds of sizes, in bytes.
const BYTES: [f64; 6] = [1.0, 1e4, 1e6, 4e6, 1e7, 4e7];

/// All metrics of the process. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    streams: IntGauge,
    pushes: IntCounterVec,
    push_time: HistogramVec,
    config_size: HistogramVec,
    convergence: Histogram,
    queue: Histogram,
    debounce: Histogram,
    push_context: Histogram,
    triggers: IntCounterVec,
    rejects: IntCounterVec,
    rejected: [(&'static str, GaugeVec); 4],
    expired_nonces: IntCounterVec,
    keys_good: IntCounter,
    keys_bad: IntCounter,
    internal_errors: IntCounter,
    virtual_services: IntGauge,
    services: IntGauge,
    uptime: Gauge,
    inbound: IntCounterVec,
    throttled_events: IntCounterVec,
    throttle_active: IntGaugeVec,
    /// What became of EnvoyFilters.
    pub(crate) patches: PatchStatus,
    /// What is read of clusters.
    pub(crate) tables: TableMetrics,
    /// How changes reach their proxies.
    pub(crate) distribution: DistributionMetrics,
    /// The authority and what it issues.
    pub(crate) certificates: CertificateMetrics,
    /// The last publications.
    pub(crate) recent: Recent,
}

impl Metrics {
    /// Makes and registers the metrics.
    ///
    /// # Errors
    /// When two metrics have one name.
    pub(crate) fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let gauge = |name: &str, help: &str| {
            let metric = IntGauge::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let metric = Histogram::with_opts(options)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let histograms = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let metric = HistogramVec::new(options, &["type"])?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let reject = |short: &'static str| {
            let name = format!("pilot_xds_{short}_reject");
            let metric = GaugeVec::new(
                Opts::new(name, "Resources that a proxy rejected."),
                &["node", "err"],
            )?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>((short, metric))
        };
        let info = GaugeVec::new(
            Opts::new("pilot_info", "The control plane's version."),
            &["version"],
        )?;
        registry.register(Box::new(info.clone()))?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1.0);
        let uptime = Gauge::with_opts(Opts::new("istiod_uptime_seconds", "Time since the start."))?;
        registry.register(Box::new(uptime.clone()))?;
        let internal_errors = IntCounter::with_opts(Opts::new(
            "pilot_total_xds_internal_errors",
            "Streams that ended with an error nobody expects.",
        ))?;
        registry.register(Box::new(internal_errors.clone()))?;
        let key_fetches = |outcome: &str| {
            let name = format!("pilot_jwks_resolver_network_fetch_{outcome}_total");
            let metric = IntCounter::new(name, "Fetches of the keys of token issuers.")?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let throttle_active = IntGaugeVec::new(
            Opts::new(
                "pilot_namespace_throttle_active",
                "1 while events of the namespace are throttled.",
            ),
            &["namespace"],
        )?;
        registry.register(Box::new(throttle_active.clone()))?;
        Ok(Self {
            keys_good: key_fetches("success")?,
            keys_bad: key_fetches("fail")?,
            streams: gauge("pilot_xds", "Connected proxies.")?,
            pushes: counter("pilot_xds_pushes", "Responses, by type.", &["type"])?,
            push_time: histograms(
                "pilot_xds_push_time",
                "Time to generate one type.",
                &SHORT_SECONDS,
            )?,
            config_size: histograms("pilot_xds_config_size_bytes", "Size of responses.", &BYTES)?,
            convergence: histogram(
                "pilot_proxy_convergence_time",
                "From the publication of a change to its last response to one proxy.",
                &SECONDS,
            )?,
            queue: histogram(
                "pilot_proxy_queue_time",
                "Time that a push waited.",
                &SECONDS,
            )?,
            debounce: histogram(
                "pilot_debounce_time",
                "Time that changes were gathered.",
                &SHORT_SECONDS,
            )?,
            push_context: histogram(
                "pilot_pushcontext_init_seconds",
                "Time to build a snapshot.",
                &SHORT_SECONDS[..6],
            )?,
            triggers: counter("pilot_push_triggers", "Pushes, by reason.", &["type"])?,
            rejects: counter(
                "pilot_total_xds_rejects",
                "Rejected responses, by type.",
                &["type"],
            )?,
            rejected: [
                reject("cds")?,
                reject("eds")?,
                reject("lds")?,
                reject("rds")?,
            ],
            expired_nonces: counter("pilot_xds_expired_nonce", "Outdated requests.", &["type"])?,
            internal_errors,
            virtual_services: gauge("pilot_virt_services", "VirtualServices.")?,
            services: gauge("pilot_services", "Services.")?,
            uptime,
            throttled_events: counter(
                "pilot_namespace_throttle_events_total",
                "Events held by the namespace throttle.",
                &["namespace"],
            )?,
            throttle_active,
            patches: PatchStatus::register(&registry)?,
            tables: TableMetrics::register(&registry)?,
            distribution: DistributionMetrics::register(&registry)?,
            certificates: CertificateMetrics::register(&registry)?,
            recent: Recent::default(),
            inbound: counter("pilot_inbound_updates", "Changes that arrived.", &["type"])?,
            registry,
        })
    }

    /// Writes all metrics in the text format.
    ///
    /// # Errors
    /// When a metric is malformed.
    pub(crate) fn text(&self, uptime: Duration) -> prometheus::Result<String> {
        self.uptime.set(uptime.as_secs_f64());
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }

    /// Hears that changes of one kind arrived.
    pub(crate) fn arrived(&self, kind: &str, count: u64) {
        self.inbound.with_label_values(&[kind]).inc_by(count);
    }

    /// Hears that a batch of changes was published.
    pub(crate) fn published(&self, gathered: Duration, built: Duration) {
        self.debounce.observe(gathered.as_secs_f64());
        self.push_context.observe(built.as_secs_f64());
    }

    /// Hears what a snapshot has, the first one included.
    pub(crate) fn holds(&self, state: &model::MeshState) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.services.set(count(state.services.len()));
        let rules = state.objects.virtual_services.len();
        self.virtual_services.set(count(rules));
    }

    /// Hears how a fetch of a token issuer's keys ended.
    pub(crate) fn fetched_keys(&self, good: bool) {
        let counter = if good {
            &self.keys_good
        } else {
            &self.keys_bad
        };
        counter.inc();
    }

    /// Hears why changes were published.
    pub(crate) fn triggered(&self, reason: &str, count: u32) {
        self.triggers
            .with_label_values(&[reason])
            .inc_by(u64::from(count));
    }
}

/// The name of a type in labels: the short one where there is one.
fn short(url: &str) -> &str {
    match url {
        type_url::CLUSTER => "cds",
        type_url::ENDPOINT => "eds",
        type_url::LISTENER => "lds",
        type_url::ROUTE => "rds",
        type_url::SECRET => "sds",
        type_url::EXTENSION => "ecds",
        generators::NAME_TABLE => "nds",
        other => other,
    }
}

impl Observer for Metrics {
    fn connected(&self, stream: &StreamInfo) {
        self.streams.inc();
        tracing::info!(proxy = %stream.node, stream = stream.id, protocol = %stream.protocol, "proxy connected");
    }

    fn disconnected(&self, stream: &StreamInfo) {
        self.streams.dec();
        tracing::info!(proxy = %stream.node, stream = stream.id, "proxy disconnected");
    }

    fn refused(&self, status: &Status) {
        tracing::warn!(code = ?status.code(), reason = status.message(), "stream refused");
    }

    fn failed(&self, stream: &StreamInfo, status: &Status) {
        self.internal_errors.inc();
        tracing::warn!(proxy = %stream.node, stream = stream.id, error = %status, "stream failed");
    }

    fn sent(&self, stream: &StreamInfo, delivered: &Delivered<'_>) {
        let kind = short(delivered.type_url);
        self.pushes.with_label_values(&[kind]).inc();
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
        self.config_size
            .with_label_values(&[delivered.type_url])
            .observe(delivered.bytes as f64);
        if !delivered.answers_request {
            self.recent.pushed(delivered.root, delivered.bytes);
        }
        tracing::info!(
            proxy = %stream.node,
            type_url = kind,
            nonce = delivered.nonce,
            resources = delivered.resources,
            removed = delivered.removed,
            bytes = delivered.bytes,
            "{}",
            if delivered.answers_request { "answered" } else { "pushed" }
        );
    }

    fn rejected(&self, stream: &StreamInfo, rejected: &Rejected<'_>) {
        let kind = short(rejected.type_url);
        self.rejects.with_label_values(&[kind]).inc();
        if let Some((_, gauge)) = self.rejected.iter().find(|(name, _)| *name == kind) {
            let code = format!("{:?}", Code::from_i32(rejected.code));
            gauge.with_label_values(&[&*stream.node, &code]).set(1.0);
        }
        tracing::warn!(
            proxy = %stream.node,
            type_url = kind,
            nonce = rejected.nonce,
            error = rejected.message,
            held_back = ?rejected.held_back,
            "proxy rejected a response"
        );
    }

    fn stale(&self, stream: &StreamInfo, type_url: &str) {
        self.expired_nonces
            .with_label_values(&[short(type_url)])
            .inc();
        tracing::debug!(proxy = %stream.node, type_url, "outdated request");
    }

    fn unserved(&self, stream: &StreamInfo, type_url: &str) {
        tracing::warn!(proxy = %stream.node, type_url, "nobody serves this type");
    }

    fn push_started(&self, _stream: &StreamInfo, queued: Duration) {
        self.queue.observe(queued.as_secs_f64());
    }

    fn push_finished(&self, _stream: &StreamInfo, since_published: Duration) {
        self.convergence.observe(since_published.as_secs_f64());
    }

    fn generated(&self, type_url: &str, resources: usize, elapsed: Duration) {
        self.push_time
            .with_label_values(&[short(type_url)])
            .observe(elapsed.as_secs_f64());
        tracing::debug!(type_url, resources, ?elapsed, "generated");
    }

    fn generator_failed(&self, type_url: &str) {
        self.internal_errors.inc();
        tracing::error!(type_url, "a generator failed; proxies keep what they have");
    }
}

/// A namespace has series from its first held event until it has been quiet for a window.
impl throttle::Observer<Arc<str>> for Metrics {
    fn held(&mut self, namespace: &Arc<str>) {
        self.throttled_events
            .with_label_values(&[&**namespace])
            .inc();
    }

    fn active(&mut self, namespace: &Arc<str>, active: bool) {
        let gauge = self.throttle_active.with_label_values(&[&**namespace]);
        gauge.set(i64::from(active));
    }

    fn forgotten(&mut self, namespace: &Arc<str>) {
        // Either may be gone already.
        self.throttled_events
            .remove_label_values(&[&**namespace])
            .ok();
        self.throttle_active
            .remove_label_values(&[&**namespace])
            .ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exported_as_they_are() {
        let metrics = Metrics::new().unwrap();
        metrics.triggered("config", 2);
        let text = metrics.text(Duration::from_secs(3)).unwrap();
        assert!(
            text.contains("pilot_push_triggers{type=\"config\"} 2\n"),
            "{text}"
        );
        assert!(text.contains("istiod_uptime_seconds 3\n"), "{text}");
    }

    #[test]
    fn series_of_a_throttled_namespace_go_when_it_is_forgotten() {
        use throttle::Observer as _;
        let mut metrics = Metrics::new().unwrap();
        let shop: Arc<str> = "shop".into();
        metrics.held(&shop);
        metrics.held(&shop);
        metrics.active(&shop, true);
        let text = metrics.text(Duration::ZERO).unwrap();
        for line in [
            "pilot_namespace_throttle_events_total{namespace=\"shop\"} 2\n",
            "pilot_namespace_throttle_active{namespace=\"shop\"} 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        metrics.forgotten(&shop);
        assert!(!metrics.text(Duration::ZERO).unwrap().contains("shop"));
    }
}
