//! One answer out of those of all replicas.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{
    ClassAnswer, ConfigAnswer, Counts, KindAnswer, MeshAnswer, ProxiesAnswer, RefusedAnswer,
    SetAsideAnswer, Stage, Standing, Unreachable,
};

/// What another replica said: an answer, that it does not know what was asked about, or nothing.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Heard<A> {
    /// The answers.
    pub answers: Vec<A>,
    /// Those that could not be asked.
    pub unreachable: Vec<Unreachable>,
}

impl<A> Default for Heard<A> {
    fn default() -> Self {
        Self {
            answers: Vec::new(),
            unreachable: Vec::new(),
        }
    }
}

impl ConfigAnswer {
    /// Adds what the other replicas say. A client that left one replica and is connected to another is
    /// not disconnected; one that several replicas believe to have counts once, as it stands worst.
    pub(crate) fn merge(&mut self, heard: Heard<Self>) {
        for other in heard.answers {
            self.replicas.extend(other.replicas);
            self.proxies.extend(other.proxies);
            self.generation = self.generation.max(other.generation);
            if other.stage != Stage::Published && self.stage == Stage::Published {
                self.stage = other.stage;
            }
        }
        self.unreachable.extend(heard.unreachable);
        self.unreachable.sort();
        self.unreachable.dedup();
        let connected: BTreeSet<String> = self
            .proxies
            .iter()
            .filter(|proxy| proxy.state != Standing::Disconnected)
            .map(|proxy| proxy.proxy.clone())
            .collect();
        self.proxies
            .retain(|p| p.state != Standing::Disconnected || !connected.contains(&p.proxy));
        self.proxies
            .sort_by(|a, b| (&a.proxy, a.state).cmp(&(&b.proxy, b.state)));
        self.proxies
            .dedup_by(|later, kept| later.proxy == kept.proxy);
        self.counts = Counts::of(&self.proxies);
    }
}

impl ProxiesAnswer {
    /// Adds what the other replicas say.
    pub(crate) fn merge(&mut self, heard: Heard<Self>) {
        for other in heard.answers {
            self.replicas.extend(other.replicas);
            self.proxies.extend(other.proxies);
        }
        self.unreachable.extend(heard.unreachable);
        self.proxies
            .sort_by(|a, b| (&a.proxy, &a.replica).cmp(&(&b.proxy, &b.replica)));
    }
}

impl MeshAnswer {
    /// Adds what the other replicas say.
    pub(crate) fn merge(&mut self, heard: Heard<Self>) {
        for other in heard.answers {
            self.replicas.extend(other.replicas);
            self.connected += other.connected;
            self.current += other.current;
            self.configs = self.configs.max(other.configs);
            self.states = self.states.max(other.states);
            self.kinds = merge_kinds(&self.kinds, &other.kinds);
            self.pending.extend(other.pending);
            self.refused = merge_refused(&self.refused, &other.refused);
            self.set_aside = merge_aside(&self.set_aside, &other.set_aside);
            self.classes = merge_classes(&self.classes, &other.classes);
            self.throttled.extend(other.throttled);
            self.pushes.extend(other.pushes);
        }
        self.throttled
            .sort_by(|a, b| (&a.namespace, &a.replica).cmp(&(&b.namespace, &b.replica)));
        self.pushes
            .sort_by(|a, b| a.seconds_ago.total_cmp(&b.seconds_ago));
        self.pending.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        self.unreachable.extend(heard.unreachable);
    }
}

fn merge_kinds(ours: &[KindAnswer], theirs: &[KindAnswer]) -> Vec<KindAnswer> {
    let mut merged: BTreeMap<String, KindAnswer> = BTreeMap::new();
    for kind in ours.iter().chain(theirs) {
        let Some(sum) = merged.get_mut(&kind.kind) else {
            merged.insert(kind.kind.clone(), kind.clone());
            continue;
        };
        #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
        let (before, more) = (sum.changes as f64, kind.changes as f64);
        let total = sum.mean_seconds * before + kind.mean_seconds * more;
        sum.mean_seconds = total / (before + more).max(1.0);
        sum.max_seconds = sum.max_seconds.max(kind.max_seconds);
        // Every replica counts every change.
        sum.changes = sum.changes.max(kind.changes);
        sum.accepted += kind.accepted;
        sum.refused += kind.refused;
        sum.success = success(sum.accepted, sum.refused);
    }
    merged.into_values().collect()
}

/// The share of acceptances.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
pub(super) fn success(accepted: u64, refused: u64) -> f64 {
    match accepted + refused {
        0 => 1.0,
        all => accepted as f64 / all as f64,
    }
}

fn merge_refused(ours: &[RefusedAnswer], theirs: &[RefusedAnswer]) -> Vec<RefusedAnswer> {
    let mut merged: Vec<RefusedAnswer> = ours.to_vec();
    for other in theirs {
        let same = |r: &&mut RefusedAnswer| {
            (&r.type_url, &r.resource, &r.error) == (&other.type_url, &other.resource, &other.error)
        };
        match merged.iter_mut().find(same) {
            Some(known) => known.proxies += other.proxies,
            None => merged.push(other.clone()),
        }
    }
    merged
}

fn merge_aside(ours: &[SetAsideAnswer], theirs: &[SetAsideAnswer]) -> Vec<SetAsideAnswer> {
    let mut merged = ours.to_vec();
    for other in theirs {
        match merged.iter_mut().find(|known| known.object == other.object) {
            Some(known) => known.classes += other.classes,
            None => merged.push(other.clone()),
        }
    }
    merged
}

fn merge_classes(ours: &[ClassAnswer], theirs: &[ClassAnswer]) -> Vec<ClassAnswer> {
    let mut merged: BTreeMap<&str, ClassAnswer> = BTreeMap::new();
    for class in ours.iter().chain(theirs) {
        let sum = merged.entry(&class.class).or_insert_with(|| ClassAnswer {
            proxies: 0,
            current: 0,
            ..class.clone()
        });
        sum.proxies += class.proxies;
        sum.current += class.current;
    }
    let mut classes: Vec<_> = merged.into_values().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.proxies));
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::answer::{ConfigName, ProxyState, Replica};

    fn answer(replica: &str, proxies: &[(&str, Standing)]) -> ConfigAnswer {
        let proxies: Vec<ProxyState> = proxies
            .iter()
            .map(|(proxy, state)| ProxyState {
                proxy: (*proxy).to_owned(),
                state: *state,
                replica: replica.to_owned(),
                seconds: None,
                types: Vec::new(),
                hash: None,
                root: None,
                error: None,
                resources: Vec::new(),
            })
            .collect();
        ConfigAnswer {
            config: ConfigName {
                kind: "VirtualService".into(),
                namespace: "ns".into(),
                name: "a".into(),
            },
            stage: Stage::Published,
            hash: None,
            generation: 0,
            root: String::new(),
            published_seconds_ago: None,
            counts: Counts::of(&proxies),
            replicas: vec![Replica {
                name: replica.to_owned(),
                connected: proxies.len(),
                root: String::new(),
                settling: false,
            }],
            unreachable: Vec::new(),
            proxies,
        }
    }

    #[test]
    fn a_client_that_moved_to_another_replica_is_not_disconnected() {
        let mut one = answer(
            "one",
            &[("a", Standing::Disconnected), ("b", Standing::Disconnected)],
        );
        let two = answer("two", &[("a", Standing::Pending)]);
        one.merge(Heard {
            answers: vec![two],
            unreachable: Vec::new(),
        });
        let found: Vec<_> = one.proxies.iter().map(|p| (&*p.proxy, p.state)).collect();
        let expected = [("a", Standing::Pending), ("b", Standing::Disconnected)];
        assert_eq!(found, expected);
        assert_eq!((one.counts.required, one.counts.disconnected), (1, 1));
        assert_eq!(one.replicas.len(), 2);
    }

    #[test]
    fn a_client_on_two_replicas_counts_once_and_as_it_stands_worst() {
        let mut one = answer("one", &[("a", Standing::Has)]);
        one.merge(Heard {
            answers: vec![answer("two", &[("a", Standing::Pending)])],
            unreachable: Vec::new(),
        });
        assert_eq!((one.counts.has, one.counts.pending), (0, 1));
    }

    #[test]
    fn who_cannot_be_asked_is_named() {
        let mut one = answer("one", &[]);
        let unreachable = vec![Unreachable {
            replica: "10.0.0.2:15014".into(),
            error: "refused".into(),
        }];
        one.merge(Heard {
            answers: Vec::new(),
            unreachable: unreachable.clone(),
        });
        assert_eq!(one.unreachable, unreachable);
    }

    #[test]
    fn a_replica_that_has_not_published_it_speaks_for_all() {
        let mut one = answer("one", &[("a", Standing::Has)]);
        let mut two = answer("two", &[("b", Standing::Pending)]);
        two.stage = Stage::Missing;
        one.merge(Heard {
            answers: vec![two],
            unreachable: Vec::new(),
        });
        assert_eq!(one.stage, Stage::Missing);
    }
}
