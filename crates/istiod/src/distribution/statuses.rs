//! How far objects are distributed, written into their status: a condition `Reconciled` with
//! `distributed: n/m`, where n of the m proxies that must have it do.
//!
//! The leader writes it, for objects that have changed since it leads; a few at a time, and each only
//! when its numbers have changed. When everybody has answered an object is left alone.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use controllers::{
    pods,
    wishes::Wishes,
    writer::{Part, Resource, Target, Wanted},
};
use model::Kind;
use serde_json::json;
use tokio::{sync::watch, time::sleep};

use super::{
    Distribution, Key,
    answer::{ConfigAnswer, Counts, Stage},
    api, ask,
};

/// Objects that are looked at in one go; at most so many are written in one interval.
const AT_ONCE: usize = 50;
/// Objects whose last word is repeated, in case that it is not written yet.
const KEPT: usize = 500;
/// The part of the process, as [`Wishes`] knows it.
const PART: &str = "distribution";

/// Who writes how far objects are distributed.
pub(crate) struct Clerk {
    pub(crate) distribution: Distribution,
    pub(crate) wishes: Wishes,
    /// Whether this replica leads.
    pub(crate) leads: watch::Receiver<bool>,
    /// Time between two looks.
    pub(crate) interval: Duration,
    pub(crate) clock: fn() -> SystemTime,
}

/// What is remembered of one time of leading.
#[derive(Default)]
struct Desk {
    /// Objects that not everybody has answered.
    open: BTreeSet<Key>,
    /// The one that was looked at last.
    last: Option<Key>,
    /// What was said of objects, and in which order: the oldest word first.
    said: BTreeMap<Key, (u64, Said)>,
    number: u64,
}

/// What is said of an object.
#[derive(Clone, PartialEq, Debug)]
struct Said {
    holds: bool,
    reason: &'static str,
    message: String,
    generation: i64,
    since: String,
}

impl Clerk {
    /// Does that whenever this replica leads, until nobody says any more whether it does.
    pub(crate) async fn run(mut self) {
        loop {
            if self.leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            // What changed before is not this one's.
            self.distribution.take_changed();
            let mut desk = Desk::default();
            while *self.leads.borrow() {
                tokio::select! {
                    changed = self.leads.changed() => if changed.is_err() { return },
                    () = sleep(self.interval) => {
                        if self.look(&mut desk).await {
                            self.wishes.set(PART, desk.wanted());
                        }
                    }
                }
            }
            self.wishes.set(PART, Vec::new());
        }
    }

    /// Looks at some objects; tells whether there is anything new to be said.
    async fn look(&self, desk: &mut Desk) -> bool {
        let changed = self.distribution.take_changed();
        desk.open
            .extend(changed.into_iter().filter(|key| resource(key).is_some()));
        let mut news = false;
        for key in desk.next() {
            let Some((counts, generation, whole)) = self.distribution.count(&key).await else {
                // Deleted, or nobody can say: the next change tells more.
                desk.open.remove(&key);
                news |= desk.said.remove(&key).is_some();
                continue;
            };
            if whole && counts.has + counts.refused >= counts.required && counts.undecided == 0 {
                desk.open.remove(&key);
            }
            news |= desk.say(key, said(counts, generation, whole), (self.clock)());
        }
        news
    }
}

impl Desk {
    /// The objects to look at next, in turn.
    fn next(&mut self) -> Vec<Key> {
        let after = self.last.take();
        let later = self
            .open
            .iter()
            .filter(|key| after.as_ref().is_none_or(|last| *key > last));
        let earlier = self
            .open
            .iter()
            .filter(|key| after.as_ref().is_some_and(|last| *key <= last));
        let next: Vec<Key> = later.chain(earlier).take(AT_ONCE).cloned().collect();
        self.last = next.last().cloned();
        next
    }

    /// Says something of an object; tells whether that is new.
    fn say(&mut self, key: Key, mut said: Said, now: SystemTime) -> bool {
        let earlier = self.said.get(&key).map(|(_, said)| said);
        said.since = match earlier.filter(|earlier| earlier.holds == said.holds) {
            Some(earlier) => earlier.since.clone(),
            None => pods::rfc3339(now),
        };
        if earlier == Some(&said) {
            return false;
        }
        self.number += 1;
        self.said.insert(key, (self.number, said));
        while self.said.len() > KEPT + self.open.len() {
            let done = self
                .said
                .iter()
                .filter(|(key, _)| !self.open.contains(*key));
            let oldest = done.min_by_key(|(_, (number, _))| *number);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.said.remove(&oldest);
        }
        true
    }

    fn wanted(&self) -> Vec<Wanted> {
        let said = self.said.iter();
        said.filter_map(|(key, (_, said))| wanted(key, said))
            .collect()
    }
}

/// What is to be said of an object. `whole` tells whether everybody could be asked, and everything is
/// published.
fn said(counts: Counts, generation: i64, whole: bool) -> Said {
    let Counts {
        required,
        has,
        refused,
        undecided,
        ..
    } = counts;
    let holds = whole && has == required && undecided == 0;
    Said {
        holds,
        reason: if holds {
            "Distributed"
        } else if refused > 0 {
            "Refused"
        } else {
            "Pending"
        },
        message: format!("distributed: {has}/{required}"),
        generation,
        since: String::new(),
    }
}

fn wanted(key: &Key, said: &Said) -> Option<Wanted> {
    let condition = json!({
        "type": "Reconciled",
        "status": if said.holds { "True" } else { "False" },
        "reason": said.reason,
        "message": said.message,
        "lastTransitionTime": said.since,
    });
    let target = Target {
        resource: resource(key)?,
        part: Part::Conditions,
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
    };
    Some(Wanted {
        target,
        fields: json!({"status": {
            "conditions": [condition],
            "observedGeneration": said.generation,
        }}),
        seen: None,
        strict: false,
    })
}

/// The kind of a key, if its objects have such a status.
fn resource(key: &Key) -> Option<Resource> {
    let Key::Config(key) = key else {
        return None;
    };
    let plural = match key.kind {
        Kind::ServiceEntry => "serviceentries",
        Kind::WorkloadEntry => "workloadentries",
        Kind::VirtualService => "virtualservices",
        Kind::DestinationRule => "destinationrules",
        Kind::Gateway => "gateways",
        Kind::Sidecar => "sidecars",
        Kind::EnvoyFilter => "envoyfilters",
        Kind::PeerAuthentication => "peerauthentications",
        Kind::RequestAuthentication => "requestauthentications",
        Kind::AuthorizationPolicy => "authorizationpolicies",
        Kind::Telemetry => "telemetries",
        Kind::WasmPlugin => "wasmplugins",
        Kind::TrafficExtension => "trafficextensions",
        // Nobody who is connected has to have these; the others are not Istio's.
        Kind::ProxyConfig
        | Kind::WorkloadGroup
        | Kind::Namespace
        | Kind::Node
        | Kind::Pod
        | Kind::Service
        | Kind::EndpointSlice
        | Kind::Secret
        | Kind::ConfigMap
        | Kind::Ingress
        | Kind::IngressClass
        | Kind::GatewayClass
        | Kind::KubernetesGateway
        | Kind::ListenerSet
        | Kind::HttpRoute
        | Kind::GrpcRoute
        | Kind::TcpRoute
        | Kind::TlsRoute
        | Kind::ReferenceGrant
        | Kind::BackendTlsPolicy => return None,
    };
    Some(Resource {
        group: key.kind.group(),
        version: key.kind.versions().first().copied()?,
        kind: key.kind.name(),
        plural,
    })
}

impl Distribution {
    /// Has what changes noted, for [`take_changed`](Self::take_changed).
    pub(crate) fn note_changes(&self) {
        self.0.changed.lock().get_or_insert_default();
    }

    /// What has been published since the last call, if that is noted.
    fn take_changed(&self) -> BTreeSet<Key> {
        let mut changed = self.0.changed.lock();
        changed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Counts the proxies of all replicas, the generation that is meant, and whether all is known and
    /// published. `None` when the object is gone.
    async fn count(&self, key: &Key) -> Option<(Counts, i64, bool)> {
        let asked = key.clone();
        let wanted = ask::Wanted::default();
        let own = api::on_pool(self.clone(), move |d| d.config(&asked, &wanted)).await;
        let own = own.ok()?.ok()?;
        let hash = own.hash.clone()?;
        let path = format!("{}?proxies=none&hash={hash}", api::path_of(key));
        let heard = self
            .peers()
            .ask::<ConfigAnswer>(&self.0.replica, &path)
            .await;
        let mut counts = own.counts;
        let mut whole = own.stage == Stage::Published && heard.unreachable.is_empty();
        for other in &heard.answers {
            whole &= other.stage == Stage::Published;
            counts.required += other.counts.required;
            counts.has += other.counts.has;
            counts.pending += other.counts.pending;
            counts.refused += other.counts.refused;
            counts.undecided += other.counts.undecided;
        }
        Some((counts, own.generation, whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("VirtualService", "ns", name).unwrap()
    }

    fn counts(has: usize, pending: usize, refused: usize) -> Counts {
        Counts {
            required: has + pending + refused,
            has,
            pending,
            refused,
            ..Counts::default()
        }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[track_caller]
    fn check(counts: Counts, whole: bool, expected: (bool, &str, &str)) {
        let said = said(counts, 7, whole);
        assert_eq!((said.holds, said.reason, &*said.message), expected);
    }

    #[test]
    fn the_numbers_are_told() {
        check(
            counts(3, 0, 0),
            true,
            (true, "Distributed", "distributed: 3/3"),
        );
        check(
            counts(3, 1, 0),
            true,
            (false, "Pending", "distributed: 3/4"),
        );
        check(
            counts(3, 1, 1),
            true,
            (false, "Refused", "distributed: 3/5"),
        );
        check(
            counts(3, 0, 0),
            false,
            (false, "Pending", "distributed: 3/3"),
        );
        check(
            counts(0, 0, 0),
            true,
            (true, "Distributed", "distributed: 0/0"),
        );
    }

    #[test]
    fn the_same_is_not_said_again_and_a_change_of_numbers_is_no_transition() {
        let mut desk = Desk::default();
        assert!(desk.say(key("a"), said(counts(0, 2, 0), 1, true), at(0)));
        assert!(!desk.say(key("a"), said(counts(0, 2, 0), 1, true), at(1)));
        assert!(desk.say(key("a"), said(counts(1, 1, 0), 1, true), at(2)));
        let since = |desk: &Desk| desk.said[&key("a")].1.since.clone();
        assert_eq!(since(&desk), "1970-01-01T00:00:00Z");
        assert!(desk.say(key("a"), said(counts(2, 0, 0), 1, true), at(3)));
        assert_eq!(since(&desk), "1970-01-01T00:00:03Z");
        let wanted = &desk.wanted()[0];
        let path = "/apis/networking.istio.io/v1/namespaces/ns/virtualservices/a/status";
        assert_eq!(wanted.target.path(), path);
        assert_eq!(wanted.fields["status"]["conditions"][0]["status"], "True");
    }

    #[test]
    fn all_get_their_turn_and_old_words_are_forgotten() {
        let open = (0..=2 * AT_ONCE).map(|n| key(&format!("{n:03}")));
        let mut desk = Desk {
            open: open.collect(),
            ..Desk::default()
        };
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            seen.extend(desk.next());
        }
        assert_eq!(seen, desk.open);
        desk.open.clear();
        for number in 0..=KEPT {
            let key = key(&format!("{number:04}"));
            desk.say(key, said(counts(1, 0, 0), 1, true), at(0));
        }
        assert_eq!(desk.said.len(), KEPT);
        assert!(!desk.said.contains_key(&key("0000")));
    }

    #[test]
    fn every_kind_of_istio_that_matters_to_proxies_is_written() {
        for kind in Kind::ALL {
            let istio = kind.group().ends_with("istio.io");
            let none = matches!(kind, Kind::ProxyConfig | Kind::WorkloadGroup);
            let key = Key::Config(model::ConfigKey::new(*kind, "ns", "a"));
            assert_eq!(resource(&key).is_some(), istio && !none, "{kind}");
        }
    }
}
