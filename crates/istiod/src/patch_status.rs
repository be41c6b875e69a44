//! The metric on EnvoyFilters, under the name that Istio's dashboards know (envoyfilter §18).

use std::{collections::BTreeSet, sync::Arc};

use model::{ConfigKey, Kind, PushRequest, api::envoy_filter::ApplyTo};
use parking_lot::Mutex;
use prometheus::{GaugeVec, Opts, Registry};
use pushctx::PatchOutcomes;

/// `pilot_envoy_filter_status`: 1 for each filter and kind of patch that failed, and, where applied
/// patches are tracked, that took effect. A series lasts until its filter changes.
///
/// The reference keeps the name of the filter to itself when a patch fails; whoever has to find the
/// filter needs it.
#[derive(Clone, Debug)]
pub(crate) struct PatchStatus {
    gauge: GaugeVec,
    series: Arc<Mutex<BTreeSet<Series>>>,
}

/// Filter, kind of patch, result.
type Series = (ConfigKey, &'static str, &'static str);

impl PatchStatus {
    /// Makes and registers the metric.
    ///
    /// # Errors
    /// When another metric has the name.
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = GaugeVec::new(
            Opts::new(
                "pilot_envoy_filter_status",
                "1 for EnvoyFilters whose patches of a kind were applied or failed.",
            ),
            &["name", "patch", "result"],
        )?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(Self {
            gauge,
            series: Arc::default(),
        })
    }

    /// Takes over what became of patches since the last time.
    pub(crate) fn collect(&self, outcomes: &PatchOutcomes) {
        let mut series = self.series.lock();
        for (patch, outcome) in outcomes.take() {
            let results = [
                ("applied", outcome.resources > 0),
                ("error", !outcome.failures.is_empty()),
            ];
            for (result, _) in results.iter().filter(|(_, holds)| *holds) {
                let one = (patch.filter.clone(), kind(patch.apply_to), *result);
                self.with(&one).set(1.0);
                series.insert(one);
            }
        }
    }

    /// Forgets the filters that a change touches: what holds of them now shows when they are applied.
    pub(crate) fn changed(&self, request: &PushRequest) {
        let mut series = self.series.lock();
        series.retain(|one| {
            let key = &one.0;
            debug_assert_eq!(key.kind, Kind::EnvoyFilter);
            let stays = !request.forced && !request.changed.contains(key);
            if !stays {
                self.forget(one);
            }
            stays
        });
    }

    fn with(&self, (filter, kind, result): &Series) -> prometheus::Gauge {
        let name = format!("{}/{}", filter.namespace, filter.name);
        self.gauge.with_label_values(&[name.as_str(), kind, result])
    }

    fn forget(&self, (filter, kind, result): &Series) {
        let name = format!("{}/{}", filter.namespace, filter.name);
        // It is there: it was set when the series was noted.
        self.gauge
            .remove_label_values(&[name.as_str(), kind, result])
            .ok();
    }
}

/// The kind of patch in labels.
const fn kind(apply_to: ApplyTo) -> &'static str {
    match apply_to {
        ApplyTo::Listener => "listener",
        ApplyTo::ListenerFilter => "listenerfilter",
        ApplyTo::FilterChain => "filterchain",
        ApplyTo::NetworkFilter => "networkfilter",
        ApplyTo::HttpFilter => "httpfilter",
        ApplyTo::RouteConfiguration | ApplyTo::HttpRoute => "route",
        ApplyTo::VirtualHost => "vhost",
        ApplyTo::Cluster => "cluster",
        ApplyTo::ExtensionConfig => "extensionconfig",
        ApplyTo::Bootstrap | ApplyTo::Invalid => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use pushctx::PatchId;

    use super::*;

    fn patch(name: &str) -> PatchId {
        PatchId {
            filter: ConfigKey::new(Kind::EnvoyFilter, "ns", name),
            index: 0,
            apply_to: ApplyTo::HttpFilter,
        }
    }

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap()
    }

    #[test]
    fn a_series_lasts_until_its_filter_changes() {
        let registry = Registry::new();
        let status = PatchStatus::register(&registry).unwrap();
        let outcomes = PatchOutcomes::default();
        outcomes.track(true);
        outcomes.applied(1, [patch("a")]);
        outcomes.failed(patch("b"), "no value");
        status.collect(&outcomes);
        let applied =
            r#"pilot_envoy_filter_status{name="ns/a",patch="httpfilter",result="applied"} 1"#;
        let failed =
            r#"pilot_envoy_filter_status{name="ns/b",patch="httpfilter",result="error"} 1"#;
        for line in [applied, failed] {
            assert!(text(&registry).contains(line), "{}", text(&registry));
        }
        let request = PushRequest {
            changed: [patch("b").filter].into(),
            ..PushRequest::default()
        };
        status.changed(&request);
        status.collect(&outcomes);
        assert!(text(&registry).contains(applied));
        assert!(!text(&registry).contains(failed));
    }
}
