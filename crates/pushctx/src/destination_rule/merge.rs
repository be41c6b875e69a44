//! Merging of DestinationRules of one host (config-model §11.2, §11.3).

use std::sync::Arc;

use model::{
    Config, ExportTo,
    api::{
        DestinationRule,
        destination_rule::{PortTrafficPolicy, TrafficPolicy},
    },
    fingerprint,
};

use super::{ConsolidatedRule, RuleList};

/// Marks rules that were made from backend policies of Gateway API.
const PARENTS: &str = "internal.istio.io/parents";

/// One consolidated rule while it grows.
struct Entry {
    config: Arc<Config<DestinationRule>>,
    export_to: ExportTo,
    sources: Vec<model::NamespacedName>,
}

/// Consolidates `rules`, all of one `host` and in order. With `by_export`, rules merge only when
/// their export sets fit.
pub(super) fn consolidate<'a>(
    host: &str,
    rules: impl Iterator<Item = (&'a Arc<Config<DestinationRule>>, ExportTo)>,
    by_export: bool,
) -> RuleList {
    let mut entries: Vec<Entry> = Vec::new();
    for (rule, export_to) in rules {
        if add(&mut entries, rule, &export_to, by_export) {
            let mut config = rule.clone();
            if config.spec.host != host {
                host.clone_into(&mut Arc::make_mut(&mut config).spec.host);
            }
            entries.push(Entry {
                config,
                export_to,
                sources: vec![rule.meta.namespaced_name()],
            });
        }
    }
    entries
        .into_iter()
        .map(|entry| Arc::new(entry.seal()))
        .collect()
}

impl Entry {
    fn seal(self) -> ConsolidatedRule {
        let meta = &self.config.meta;
        let fingerprint = fingerprint::of(&(
            (&meta.namespace, &meta.name, meta.annotations.get(PARENTS)),
            (&self.export_to, &self.sources),
            fingerprint::of_json(&self.config.spec),
        ));
        let Self {
            config,
            export_to,
            sources,
        } = self;
        ConsolidatedRule {
            config,
            export_to,
            sources,
            fingerprint,
        }
    }
}

/// Merges a rule into every entry that it fits; tells whether it needs an entry of its own. The
/// last entry that is looked at decides.
fn add(
    entries: &mut [Entry],
    rule: &Arc<Config<DestinationRule>>,
    export_to: &ExportTo,
    by_export: bool,
) -> bool {
    let mut append = true;
    for entry in entries {
        if by_export {
            if *export_to == entry.export_to {
                append = false;
            } else if !entry.export_to.is_empty() && export_to.0.is_superset(&entry.export_to.0) {
                append = true;
            } else {
                append = true;
                continue;
            }
        }
        match (
            &entry.config.spec.workload_selector,
            &rule.spec.workload_selector,
        ) {
            (Some(existing), Some(new)) if existing.match_labels != new.match_labels => {
                append = true;
                continue;
            }
            (None, None) | (Some(_), Some(_)) => append = false,
            _ => {}
        }
        entry.sources.push(rule.meta.namespaced_name());
        merge(Arc::make_mut(&mut entry.config), rule);
    }
    append
}

/// Merges a rule into another: subsets with new names, and the traffic policy.
fn merge(existing: &mut Config<DestinationRule>, rule: &Config<DestinationRule>) {
    for subset in &rule.spec.subsets {
        if existing.spec.subsets.iter().all(|s| s.name != subset.name) {
            existing.spec.subsets.push(subset.clone());
        }
    }
    let is_derived = |c: &Config<DestinationRule>| c.meta.annotations.contains_key(PARENTS);
    let mine = existing.spec.traffic_policy.take();
    let theirs = rule.spec.traffic_policy.clone();
    existing.spec.traffic_policy = match (is_derived(existing), is_derived(rule)) {
        (false, true) => overlay(mine, theirs),
        (true, false) => overlay(theirs, mine),
        _ => mine.or(theirs),
    };
}

/// Lays a user's policy over a derived one, field by field.
fn overlay(user: Option<TrafficPolicy>, derived: Option<TrafficPolicy>) -> Option<TrafficPolicy> {
    let (user, derived) = match (user, derived) {
        (Some(user), Some(derived)) => (user, derived),
        (user, derived) => return user.or(derived),
    };
    Some(TrafficPolicy {
        port_level_settings: overlay_ports(user.port_level_settings, derived.port_level_settings),
        load_balancer: user.load_balancer.or(derived.load_balancer),
        connection_pool: user.connection_pool.or(derived.connection_pool),
        outlier_detection: user.outlier_detection.or(derived.outlier_detection),
        tls: user.tls.or(derived.tls),
        tunnel: user.tunnel.or(derived.tunnel),
        proxy_protocol: user.proxy_protocol.or(derived.proxy_protocol),
        retry_budget: user.retry_budget.or(derived.retry_budget),
    })
}

fn overlay_ports(
    user: Vec<PortTrafficPolicy>,
    derived: Vec<PortTrafficPolicy>,
) -> Vec<PortTrafficPolicy> {
    let mut ports = user;
    for entry in derived {
        let Some(same) = ports.iter_mut().find(|p| p.port == entry.port) else {
            ports.push(entry);
            continue;
        };
        same.load_balancer = same.load_balancer.take().or(entry.load_balancer);
        same.connection_pool = same.connection_pool.take().or(entry.connection_pool);
        same.outlier_detection = same.outlier_detection.take().or(entry.outlier_detection);
        same.tls = same.tls.take().or(entry.tls);
    }
    ports
}
