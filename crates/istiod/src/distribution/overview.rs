//! The mesh at a glance.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::ProxyType;
use pushctx::ClassKey;
use tokio::time::{Instant, timeout};
use xds::{HeldBackResource, Summary};

use super::{
    Distribution,
    answer::{ClassAnswer, MeshAnswer, PushAnswer, RefusedAnswer, SetAsideAnswer, ThrottledAnswer},
    api::{self, Refusal},
};
use crate::{discovery::Gate, metrics::Publication};

/// How long the throttle may take to answer: it answers after the changes that came before.
const PATIENCE: Duration = Duration::from_secs(1);

impl Distribution {
    /// Describes what all replicas see of the mesh.
    ///
    /// # Errors
    /// When this one stops.
    pub(super) async fn whole_mesh(&self, throttle: &Gate) -> Result<MeshAnswer, Refusal> {
        let mut answer = self.own_mesh(throttle).await?;
        let path = format!("{}?", api::BASE);
        answer.merge(self.peers().ask(&self.0.replica, &path).await);
        Ok(answer)
    }

    /// Describes what this replica sees of the mesh.
    ///
    /// # Errors
    /// When it stops.
    pub(super) async fn own_mesh(&self, throttle: &Gate) -> Result<MeshAnswer, Refusal> {
        let mut answer = api::on_pool(self.clone(), Self::counted).await?;
        answer.throttled = self.throttled(throttle).await;
        Ok(answer)
    }

    async fn throttled(&self, throttle: &Gate) -> Vec<ThrottledAnswer> {
        let status = timeout(PATIENCE, throttle.status()).await;
        let Ok(Some(status)) = status else {
            return Vec::new();
        };
        let throttled = status.throttled.into_iter().map(|tenant| ThrottledAnswer {
            namespace: tenant.tenant.to_string(),
            replica: self.0.replica.clone(),
            seconds: tenant.throttled_for.as_secs_f64(),
            held: tenant.held,
            delay_seconds: tenant.report.delay.as_secs_f64(),
            noisiest: tenant
                .noisiest
                .first()
                .map(|(object, _)| object.to_string()),
        });
        throttled.collect()
    }

    fn pushes(&self, now: std::time::Instant) -> Vec<PushAnswer> {
        let pushes = self.0.metrics.recent.list().into_iter();
        let answer = |push: Publication| PushAnswer {
            replica: self.0.replica.clone(),
            seconds_ago: now.saturating_duration_since(push.at).as_secs_f64(),
            reasons: push.reasons.into_iter().map(str::to_owned).collect(),
            changes: push.changes,
            changed: push.named,
            events: push.events,
            build_seconds: push.built.as_secs_f64(),
            responses: push.responses,
            bytes: push.bytes,
        };
        pushes.map(answer).collect()
    }

    /// Counts, without the throttle.
    fn counted(&self) -> MeshAnswer {
        let now = Instant::now().into_std();
        let mut refused: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        let refuse = |type_url: &str, held_back: &HeldBackResource| {
            if let Some(refusal) = &held_back.refusal {
                let resource = held_back.name.to_string();
                let key = (type_url.to_owned(), resource, refusal.message.to_string());
                *refused.entry(key).or_default() += 1;
            }
        };
        let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        let count = |class: &Arc<ClassKey>, summary: Summary| {
            let (proxies, current) = counts.entry(named(class)).or_default();
            *proxies += summary.connected;
            *current += summary.current;
        };
        let summary = self.0.server.summary(refuse, count);
        let set_aside = self.0.server.set_aside().into_iter();
        let stats = self.0.books.lock().stats();
        let tracker = self.0.tracker.lock();
        MeshAnswer {
            replicas: vec![self.replica(summary.connected)],
            unreachable: Vec::new(),
            connected: summary.connected,
            current: summary.current,
            configs: stats.keys,
            states: stats.states,
            kinds: tracker.kinds(),
            pending: tracker.pending(&self.0.replica, now),
            refused: refused
                .into_iter()
                .map(|((type_url, resource, error), proxies)| RefusedAnswer {
                    type_url,
                    resource,
                    error,
                    proxies,
                })
                .collect(),
            set_aside: set_aside
                .map(|(aside, classes)| SetAsideAnswer {
                    object: aside.source.to_string(),
                    type_url: aside.type_url.to_string(),
                    resource: aside.resource.to_string(),
                    error: aside.message.to_string(),
                    classes,
                })
                .collect(),
            classes: classes(counts),
            throttled: Vec::new(),
            pushes: self.pushes(now),
        }
    }
}

/// The clients by what they are, the most numerous first.
fn classes(counts: BTreeMap<String, (usize, usize)>) -> Vec<ClassAnswer> {
    let counts = counts.into_iter();
    let classes = counts.map(|(class, (proxies, current))| ClassAnswer {
        class,
        proxies,
        current,
    });
    let mut classes: Vec<_> = classes.collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.proxies));
    classes
}

/// Type, namespace and labels, as people know a workload.
fn named(class: &ClassKey) -> String {
    let kind = match class.proxy.proxy_type {
        ProxyType::Sidecar => "sidecar",
        ProxyType::Router => "router",
        ProxyType::Waypoint => "waypoint",
        ProxyType::Ztunnel => "ztunnel",
    };
    let mut name = format!("{kind} {}", class.proxy.namespace);
    let labels = class.labels.iter();
    // Where it runs is not what it is.
    let labels = labels.filter(|(key, _)| !key.contains("topology"));
    for (index, (key, value)) in labels.enumerate() {
        name.push_str(if index == 0 { " " } else { "," });
        name.push_str(key);
        name.push('=');
        name.push_str(value);
    }
    name
}
