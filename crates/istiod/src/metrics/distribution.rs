//! How changes reach their proxies.

use std::time::Duration;

use prometheus::{Gauge, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

/// Bounds of convergence times, in seconds.
const SECONDS: [f64; 12] = [
    0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// How changes reach their proxies, by the kind of what changed.
#[derive(Clone, Debug)]
pub(crate) struct DistributionMetrics {
    convergence: HistogramVec,
    deliveries: IntCounterVec,
    pending: IntGauge,
    refused: IntGauge,
    oldest: Gauge,
    pods: IntCounterVec,
    waiting: IntGauge,
}

impl DistributionMetrics {
    /// Registers them.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let convergence = HistogramVec::new(
            HistogramOpts::new(
                "pilot_distribution_convergence_seconds",
                "From the arrival of a change to the last acknowledgement of those that need it.",
            )
            .buckets(SECONDS.to_vec()),
            &["kind"],
        )?;
        registry.register(Box::new(convergence.clone()))?;
        let deliveries = IntCounterVec::new(
            Opts::new(
                "pilot_distribution_deliveries_total",
                "Answers of proxies to changes, by kind and outcome.",
            ),
            &["kind", "outcome"],
        )?;
        registry.register(Box::new(deliveries.clone()))?;
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let oldest = Gauge::new(
            "pilot_distribution_oldest_pending_seconds",
            "Age of the oldest change that a proxy has yet to answer.",
        )?;
        registry.register(Box::new(oldest.clone()))?;
        let pods = IntCounterVec::new(
            Opts::new(
                "pilot_distribution_pods_total",
                "Pods that were held, released and made ready, and why.",
            ),
            &["event", "reason"],
        )?;
        registry.register(Box::new(pods.clone()))?;
        Ok(Self {
            pods,
            waiting: gauge(
                "pilot_distribution_pods_waiting",
                "Pods that wait for proxies: to be ready, or to be gone.",
            )?,
            convergence,
            deliveries,
            pending: gauge(
                "pilot_distribution_pending_changes",
                "Changes that a proxy has yet to answer.",
            )?,
            refused: gauge(
                "pilot_distribution_refused",
                "Resources that proxies do without because they rejected them.",
            )?,
            oldest,
        })
    }

    /// Hears that everybody has answered a change, after `took` unless nobody had to.
    pub(crate) fn done(&self, kind: &str, took: Option<Duration>, accepted: usize, refused: usize) {
        if let Some(took) = took {
            let histogram = self.convergence.with_label_values(&[kind]);
            histogram.observe(took.as_secs_f64());
        }
        for (outcome, count) in [("accepted", accepted), ("refused", refused)] {
            let counter = self.deliveries.with_label_values(&[kind, outcome]);
            counter.inc_by(count as u64);
        }
    }

    /// Hears what is open.
    pub(crate) fn open(&self, pending: usize, refused: usize, oldest: Duration) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.pending.set(count(pending));
        self.refused.set(count(refused));
        self.oldest.set(oldest.as_secs_f64());
    }

    /// Hears that something was done about a pod.
    pub(crate) fn pod(&self, event: &str, reason: &str) {
        self.pods.with_label_values(&[event, reason]).inc();
    }

    /// Hears how many pods wait.
    pub(crate) fn pods_wait(&self, pods: usize) {
        self.waiting.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }
}
