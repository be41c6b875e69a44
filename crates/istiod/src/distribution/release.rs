//! When a pod may go, and when a new one may be called ready: by what proxies have accepted, not by
//! what was sent.
//!
//! A pod that is deleted is held (by a finalizer) until every proxy that knew its endpoint has
//! accepted a set without it; a new pod is not ready (by a readiness gate) until every proxy that
//! needs its endpoint has it. Both end after a maximum time whatever happens, and that time is
//! counted from what the API server stores (the time of the deletion, of the pod's start), not from
//! when this process first saw it: a control plane that crashes, and one that never comes to know
//! better, blocks nobody for ever.
//!
//! Plain state machines: told what is so, they say what to do. Who tells and who does it is elsewhere.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use model::NamespacedName;

/// How long pods are held, and kept from being ready, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// From the deletion of a pod to the release of its finalizer (default 60 s).
    pub release: Duration,
    /// From the moment that a pod's containers are ready to its gate (default 60 s).
    pub ready: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            release: Duration::from_mins(1),
            ready: Duration::from_mins(1),
        }
    }
}

/// What the API server says of a pod that opted in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodFacts {
    /// When it was deleted; `None` while nobody has.
    pub deleted: Option<SystemTime>,
    /// Whether it has the finalizer.
    pub held: bool,
    /// When its containers became ready; `None` while they are not.
    pub started: Option<SystemTime>,
    /// Whether its readiness gate is true.
    pub gate: bool,
}

/// How the endpoint of a pod is distributed. Every number is of proxies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The publication of the last change of the endpoint has been sent on its way: what the
    /// registry says of the endpoint is what was published.
    pub published: bool,
    /// The published state has the endpoint as one that gets traffic.
    pub present: bool,
    /// Proxies that have not accepted the published state of the endpoint.
    pub behind: usize,
    /// Replicas of the control plane that could not be asked: their proxies are not known.
    pub unknown: usize,
}

impl Spread {
    /// Tells whether every proxy is known to have what is published.
    fn is_settled(self) -> bool {
        self.published && self.behind == 0 && self.unknown == 0
    }
}

/// Something to do about a pod.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// Put the finalizer on it.
    Hold,
    /// Take the finalizer off: the pod may go.
    Release(Reason),
    /// Make its gate true: it may get traffic.
    OpenGate(Reason),
}

/// Why something is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// Every proxy has accepted it.
    Distributed,
    /// The maximum time has passed.
    TimedOut,
}

/// What to do about a pod, at `now`. Without state: a control plane that starts in the middle of
/// everything does the same as one that was there all the time.
pub fn decide(pod: &PodFacts, spread: Spread, limits: Limits, now: SystemTime) -> Vec<Action> {
    let mut actions = Vec::new();
    let passed = |since: SystemTime, limit: Duration| {
        // A clock that was set back must not block for ever, one that jumps must not panic.
        now.duration_since(since).is_ok_and(|age| age >= limit)
    };
    match pod.deleted {
        None if !pod.held => actions.push(Action::Hold),
        Some(deleted) if pod.held => {
            if spread.is_settled() && !spread.present {
                actions.push(Action::Release(Reason::Distributed));
            } else if passed(deleted, limits.release) {
                actions.push(Action::Release(Reason::TimedOut));
            }
        }
        None | Some(_) => {}
    }
    if let (None, Some(started), false) = (pod.deleted, pod.started, pod.gate) {
        if spread.is_settled() && spread.present {
            actions.push(Action::OpenGate(Reason::Distributed));
        } else if passed(started, limits.ready) {
            actions.push(Action::OpenGate(Reason::TimedOut));
        }
    }
    actions
}

/// The pods that wait for something, and when to look again if nothing is heard.
#[derive(Clone, Default, Debug)]
pub struct Waiting {
    pods: BTreeMap<NamespacedName, PodFacts>,
}

impl Waiting {
    /// Takes in what the API server says of a pod; `None` when it is gone, or no longer opts in.
    pub fn on_pod(&mut self, name: NamespacedName, facts: Option<PodFacts>) {
        match facts {
            Some(facts) => self.pods.insert(name, facts),
            None => self.pods.remove(&name),
        };
    }

    /// Says what to do about each pod, in order of names. What is done is heard back by
    /// [`on_pod`](Self::on_pod); until then it is said again, so that a failed write is repeated.
    pub fn look(
        &self,
        spread: impl Fn(&NamespacedName) -> Spread,
        limits: Limits,
        now: SystemTime,
    ) -> Vec<(NamespacedName, Action)> {
        let mut actions = Vec::new();
        for (name, pod) in self.pods.iter().filter(|(_, pod)| is_waiting(pod)) {
            let decided = decide(pod, spread(name), limits, now);
            actions.extend(decided.into_iter().map(|action| (name.clone(), action)));
        }
        actions
    }

    /// When the next maximum time passes; `None` when nobody waits.
    pub fn deadline(&self, limits: Limits) -> Option<SystemTime> {
        let deadlines = self.pods.values().filter_map(|pod| match pod.deleted {
            Some(deleted) => pod.held.then(|| deleted + limits.release),
            None => pod
                .started
                .filter(|_| !pod.gate)
                .map(|at| at + limits.ready),
        });
        deadlines.min()
    }
}

/// Tells whether anything is to be done about a pod, sooner or later.
fn is_waiting(pod: &PodFacts) -> bool {
    match pod.deleted {
        Some(_) => pod.held,
        None => !pod.held || (pod.started.is_some() && !pod.gate),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    fn deleted(seconds: u64) -> PodFacts {
        PodFacts {
            deleted: Some(at(seconds)),
            held: true,
            started: Some(at(0)),
            gate: true,
        }
    }

    fn fresh() -> PodFacts {
        PodFacts {
            deleted: None,
            held: true,
            started: Some(at(0)),
            gate: false,
        }
    }

    const GONE: Spread = Spread {
        published: true,
        present: false,
        behind: 0,
        unknown: 0,
    };
    const THERE: Spread = Spread {
        present: true,
        ..GONE
    };

    #[track_caller]
    fn check(pod: &PodFacts, spread: Spread, now: u64, expected: &[Action]) {
        assert_eq!(decide(pod, spread, Limits::default(), at(now)), expected);
    }

    #[test]
    fn a_pod_goes_when_every_proxy_is_without_it() {
        let release = [Action::Release(Reason::Distributed)];
        check(&deleted(10), GONE, 11, &release);
        check(&deleted(10), Spread { behind: 1, ..GONE }, 11, &[]);
        check(&deleted(10), Spread { unknown: 1, ..GONE }, 11, &[]);
        // The deletion has not got through to the endpoints, or to the proxies.
        check(&deleted(10), THERE, 11, &[]);
        check(
            &deleted(10),
            Spread {
                published: false,
                ..GONE
            },
            11,
            &[],
        );
    }

    #[test]
    fn no_pod_is_held_longer_than_the_limit() {
        let stuck = Spread {
            behind: 7,
            unknown: 1,
            ..THERE
        };
        check(&deleted(10), stuck, 69, &[]);
        check(
            &deleted(10),
            stuck,
            70,
            &[Action::Release(Reason::TimedOut)],
        );
    }

    #[test]
    fn a_pod_is_ready_when_every_proxy_has_it() {
        check(&fresh(), Spread { behind: 1, ..THERE }, 1, &[]);
        check(&fresh(), GONE, 1, &[]);
        check(&fresh(), THERE, 1, &[Action::OpenGate(Reason::Distributed)]);
        check(&fresh(), GONE, 60, &[Action::OpenGate(Reason::TimedOut)]);
        let mut starting = fresh();
        starting.started = None;
        check(&starting, THERE, 1000, &[]);
    }

    #[test]
    fn a_new_pod_is_held_from_the_start_and_a_deleted_one_never_again() {
        let mut pod = fresh();
        (pod.held, pod.gate) = (false, true);
        check(&pod, THERE, 1, &[Action::Hold]);
        pod.deleted = Some(at(1));
        check(&pod, THERE, 2, &[]);
    }

    #[test]
    fn a_failed_write_is_repeated_and_a_done_one_is_not() {
        let mut waiting = Waiting::default();
        let name = NamespacedName::new("ns", "a");
        waiting.on_pod(name.clone(), Some(deleted(10)));
        assert_eq!(waiting.deadline(Limits::default()), Some(at(70)));
        let look = |waiting: &Waiting| waiting.look(|_| GONE, Limits::default(), at(11)).len();
        assert_eq!((look(&waiting), look(&waiting)), (1, 1));
        let mut released = deleted(10);
        released.held = false;
        waiting.on_pod(name.clone(), Some(released));
        assert_eq!(look(&waiting), 0);
        assert_eq!(waiting.deadline(Limits::default()), None);
        waiting.on_pod(name, None);
        assert!(waiting.pods.is_empty());
    }

    proptest! {
        /// Whatever happens to the proxies, the replicas and the clock of others: a deleted pod goes by
        /// the limit, and before it only when nobody has it.
        #[test]
        fn released_in_time_and_never_too_early(
            published: bool, present: bool, behind in 0..3_usize, unknown in 0..2_usize,
            age in 0..200_u64,
        ) {
            let spread = Spread { published, present, behind, unknown };
            let actions = decide(&deleted(0), spread, Limits::default(), at(age));
            let safe = published && !present && behind == 0 && unknown == 0;
            prop_assert_eq!(!actions.is_empty(), safe || age >= 60);
        }
    }
}
