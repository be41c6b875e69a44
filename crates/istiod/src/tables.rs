//! How the tables of clusters are, as metrics and for people.

use intake::kubernetes::{Phase, TableStatus};
use prometheus::{IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Metrics of what is read of clusters; most are set when somebody asks for them.
#[derive(Clone, Debug)]
pub(crate) struct TableMetrics {
    states: IntGaugeVec,
    objects: IntGaugeVec,
    errors: IntCounterVec,
    clusters: IntGaugeVec,
    remotes: IntGaugeVec,
    parked: IntGauge,
}

impl TableMetrics {
    /// Makes and registers the metrics.
    ///
    /// # Errors
    /// When two metrics have one name.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok::<_, prometheus::Error>(metric)
        };
        let errors = IntCounterVec::new(
            Opts::new(
                "controller_sync_errors_total",
                "Lists and watches that failed.",
            ),
            &["cluster"],
        )?;
        registry.register(Box::new(errors.clone()))?;
        let parked = IntGauge::new(
            "pilot_k8s_endpoints_pending_pod",
            "Addresses of slices whose pods are not known.",
        )?;
        registry.register(Box::new(parked.clone()))?;
        Ok(Self {
            states: gauges(
                "istiod_source_table_state",
                "1 for the state that the table of a kind is in.",
                &["cluster", "kind", "state"],
            )?,
            objects: gauges(
                "istiod_source_objects",
                "Objects of a kind.",
                &["cluster", "kind"],
            )?,
            errors,
            clusters: gauges(
                "istiod_managed_clusters",
                "Clusters that are read.",
                &["cluster_type"],
            )?,
            remotes: gauges(
                "istiod_remote_cluster_sync_status",
                "1 for the state that a remote cluster is in.",
                &["cluster", "cluster_type", "status"],
            )?,
            parked,
        })
    }

    /// Hears how many addresses wait for their pods.
    pub(crate) fn parked(&self, addresses: usize) {
        self.parked.set(whole(addresses));
    }

    /// Looks at the tables.
    pub(crate) fn collect(&self, cluster: &Cluster) {
        // Tables of clusters that are gone shall not stay.
        self.states.reset();
        self.objects.reset();
        self.remotes.reset();
        let mut errors = std::collections::BTreeMap::new();
        for table in cluster.tables.list() {
            let (of, kind) = (&*table.cluster, table.kind.name());
            for phase in Phase::ALL {
                let metric = self.states.with_label_values(&[of, kind, phase.as_str()]);
                metric.set(i64::from(phase == table.phase));
            }
            let objects = self.objects.with_label_values(&[of, kind]);
            // Kinds of one name (both Gateways) share a series.
            objects.add(whole(table.objects));
            *errors.entry(table.cluster).or_insert(0) += table.errors;
        }
        for (of, total) in errors {
            let metric = self.errors.with_label_values(&[&*of]);
            metric.inc_by(total.saturating_sub(metric.get()));
        }
        let remotes = cluster.remotes.list();
        let count = |kind: &str| self.clusters.with_label_values(&[kind]);
        count("local").set(1);
        count("remote").set(whole(remotes.len()));
        for (of, read) in remotes {
            let status = |status: &str| self.remotes.with_label_values(&[&*of, "remote", status]);
            status("synced").set(i64::from(read));
            status("syncing").set(i64::from(!read));
        }
    }
}

fn whole(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The tables, for people.
pub(crate) fn sourcez(cluster: Option<&Cluster>) -> Value {
    let tables = cluster.map(|c| c.tables.list()).unwrap_or_default();
    let entry = |table: &TableStatus| {
        json!({
            "cluster": &*table.cluster,
            "group": table.kind.group(),
            "kind": table.kind.name(),
            "state": table.phase.as_str(),
            "seconds": table.since.as_secs(),
            "objects": table.objects,
            "refused": table.refused,
            "lists": table.lists,
            "events": table.events,
            "errors": table.errors,
            "error": table.error,
        })
    };
    tables.iter().map(entry).collect()
}

/// The remote clusters, for `istioctl`.
pub(crate) fn clusterz(cluster: Option<&Cluster>) -> Value {
    let remotes = cluster.map(|c| c.remotes.list()).unwrap_or_default();
    let entry = |(id, read): &(std::sync::Arc<str>, bool)| json!({"id": &**id, "syncStatus": if *read { "synced" } else { "syncing" }});
    remotes.iter().map(entry).collect()
}
