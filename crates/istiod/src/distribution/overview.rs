//! The mesh at a glance.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{
    Distribution,
    answer::{MeshAnswer, RefusedAnswer, SetAsideAnswer},
};

impl Distribution {
    /// Describes what this replica sees of the mesh.
    pub(crate) fn mesh(&self) -> MeshAnswer {
        let mut refused: BTreeMap<(String, String, String), usize> = BTreeMap::new();
        let summary = self.0.server.summary(|type_url, held_back| {
            if let Some(refusal) = &held_back.refusal {
                let resource = held_back.name.to_string();
                let key = (type_url.to_owned(), resource, refusal.message.to_string());
                *refused.entry(key).or_default() += 1;
            }
        });
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
            pending: tracker.pending(&self.0.replica, Instant::now().into_std()),
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
        }
    }
}
