//! When a pod may go, and when a new one may be called ready: by what proxies have accepted, not by
//! what was sent.
//!
//! A pod that is deleted is held (by a finalizer) until every proxy that knew its endpoint has
//! accepted a set without it; a new pod is not ready (by a readiness gate) until every proxy that
//! needs its endpoint has it. Both end after a maximum time whatever happens, and that time is
//! counted from what the API server stores (the time of the deletion, of the containers' readiness),
//! not from when this process first saw it: a control plane that crashes, and one that never comes to
//! know better, blocks nobody for ever.
//!
//! Decisions are functions of what is so; who finds that out is elsewhere. What a pod's endpoint is
//! while it waits: [`model::turn`].

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use k8s_openapi::jiff::Timestamp;
use model::{
    Config, Labels, NamespacedName,
    api::kubernetes::Pod,
    turn::{FINALIZER, GATE},
};
use serde_json::{Value, json};

use crate::writer::{Part, Resource, Target, Wanted};

/// The label by which a pod, or a namespace for all its pods, opts in to be held: `true` or `false`;
/// that of the pod wins.
pub const LABEL: &str = "istio.io/await-distribution";

/// The kind of what is written.
pub const POD: Resource = Resource {
    group: "",
    version: "v1",
    kind: "Pod",
    plural: "pods",
};

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

/// What the API server says of a pod.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PodFacts {
    /// Which one it is, of all that ever had its name.
    pub uid: String,
    /// The version of the object.
    pub version: String,
    /// It is to be held when it is deleted.
    pub wanted: bool,
    /// When it was deleted; `None` while nobody has.
    pub deleted: Option<SystemTime>,
    /// Whether it has the finalizer.
    pub held: bool,
    /// When its containers became ready; `None` while they are not.
    pub started: Option<SystemTime>,
    /// Whether its readiness gate is true, or it has none.
    pub gate: bool,
}

impl PodFacts {
    /// Reads a pod, in a namespace with these labels. `None` when it has nothing to do with any of this.
    pub fn of(pod: &Config<Pod>, namespace: Option<&Labels>) -> Option<Self> {
        let Config { meta, spec } = pod;
        let held = spec
            .metadata
            .finalizers
            .iter()
            .any(|name| name == FINALIZER);
        let label = meta.labels.get(LABEL);
        let label = label.or_else(|| namespace.and_then(|labels| labels.get(LABEL)));
        // The address of a node belongs to all of its pods: nobody can tell when this one is out.
        let wanted = label.is_some_and(|value| value == "true") && !spec.spec.host_network;
        let mut gates = spec.spec.readiness_gates.iter();
        let gated = gates.any(|gate| gate.condition_type == GATE);
        if !held && !wanted && !gated {
            return None;
        }
        let holds = |condition: &str| {
            let mut conditions = spec.status.conditions.iter();
            conditions.find(|c| c.r#type == condition && c.status == "True")
        };
        let grace = spec.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        // It says when the grace period ends.
        let ends = || time(&spec.metadata.deletion_timestamp);
        let deleted = || ends().checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
        Some(Self {
            uid: meta.uid.clone(),
            version: meta.resource_version.clone(),
            wanted,
            deleted: meta.deleting.then(deleted),
            held,
            started: holds("ContainersReady").map(|c| time(&c.last_transition_time)),
            gate: !gated || holds(GATE).is_some(),
        })
    }
}

/// Reads a time. One that cannot be read was long ago: nothing waits for it.
fn time(text: &str) -> SystemTime {
    let read = text.parse::<Timestamp>().map(SystemTime::from);
    read.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// What a state has of the endpoint of a pod.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Presence {
    /// It is nowhere.
    #[default]
    Absent,
    /// It is somewhere, marked as unhealthy or as draining: it may get requests.
    Listed,
    /// It is somewhere, as one that gets traffic.
    Serving,
}

/// How the endpoint of a pod is distributed. Every number is of proxies.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Spread {
    /// The publication of the last change of the endpoint has been sent on its way: what the
    /// registry says of the endpoint is what was published.
    pub published: bool,
    /// What the published state has of it.
    pub presence: Presence,
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
    /// It does not opt in any more.
    OptedOut,
}

impl Reason {
    /// The name, as conditions and metrics give it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Distributed => "Distributed",
            Self::TimedOut => "TimedOut",
            Self::OptedOut => "OptedOut",
        }
    }
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
        None if pod.wanted && !pod.held => actions.push(Action::Hold),
        None | Some(_) if pod.held && !pod.wanted => {
            actions.push(Action::Release(Reason::OptedOut));
        }
        Some(deleted) if pod.held => {
            if spread.is_settled() && spread.presence == Presence::Absent {
                actions.push(Action::Release(Reason::Distributed));
            } else if passed(deleted, limits.release) {
                actions.push(Action::Release(Reason::TimedOut));
            }
        }
        None | Some(_) => {}
    }
    if let (None, Some(started), false) = (pod.deleted, pod.started, pod.gate) {
        if spread.is_settled() && spread.presence == Presence::Serving {
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
    /// Takes in what the API server says of a pod; `None` when it is gone, or nothing is to be done for it.
    pub fn on_pod(&mut self, name: NamespacedName, facts: Option<PodFacts>) {
        match facts {
            Some(facts) => self.pods.insert(name, facts),
            None => self.pods.remove(&name),
        };
    }

    /// The pods about which something is to be done, sooner or later, in order of names.
    pub fn waiting(&self) -> impl Iterator<Item = (&NamespacedName, &PodFacts)> {
        self.pods.iter().filter(|(_, pod)| is_waiting(pod))
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
        for (name, pod) in self.waiting() {
            let decided = decide(pod, spread(name), limits, now);
            actions.extend(decided.into_iter().map(|action| (name.clone(), action)));
        }
        actions
    }
}

/// Tells whether anything is to be done about a pod, sooner or later.
fn is_waiting(pod: &PodFacts) -> bool {
    match pod.deleted {
        Some(_) => pod.held,
        None => pod.held != pod.wanted || (pod.started.is_some() && !pod.gate),
    }
}

/// What is to be written for an action.
pub fn wanted(name: &NamespacedName, pod: &PodFacts, action: Action, now: SystemTime) -> Wanted {
    let (part, fields) = match action {
        Action::Hold => (
            Part::Metadata,
            json!({"metadata": {"finalizers": [FINALIZER]}}),
        ),
        // Whoever put it there, it goes; those of others stay.
        Action::Release(_) => (
            Part::Metadata,
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}}),
        ),
        Action::OpenGate(reason) => (Part::Gate, condition(reason, now)),
    };
    let mut fields = fields;
    // Another pod may have got the name.
    fields["metadata"]["uid"] = json!(pod.uid);
    Wanted {
        target: Target {
            resource: POD,
            part,
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
        },
        fields,
        seen: Some(pod.version.clone()),
        // Others write to a pod all the time, and to other parts of it.
        strict: false,
    }
}

/// Writes a time as conditions have it: in whole seconds.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or_default();
    let time = Timestamp::from_second(seconds).unwrap_or_default();
    time.to_string()
}

/// The status with the gate.
fn condition(reason: Reason, now: SystemTime) -> Value {
    let message = match reason {
        Reason::Distributed => "every proxy that needs the endpoint has it",
        Reason::TimedOut | Reason::OptedOut => "not every proxy has the endpoint in time",
    };
    let gate = json!({
        "type": GATE,
        "status": "True",
        "reason": reason.as_str(),
        "message": message,
        "lastTransitionTime": rfc3339(now),
    });
    json!({"status": {"conditions": [gate]}})
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
            uid: "u".to_owned(),
            version: "1".to_owned(),
            wanted: true,
            deleted: Some(at(seconds)),
            held: true,
            started: Some(at(0)),
            gate: true,
        }
    }

    fn fresh() -> PodFacts {
        PodFacts {
            uid: "u".to_owned(),
            version: "1".to_owned(),
            wanted: true,
            deleted: None,
            held: true,
            started: Some(at(0)),
            gate: false,
        }
    }

    const GONE: Spread = Spread {
        published: true,
        presence: Presence::Absent,
        behind: 0,
        unknown: 0,
    };
    const THERE: Spread = Spread {
        presence: Presence::Serving,
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
    fn who_opts_out_is_let_go_at_once() {
        let release = [Action::Release(Reason::OptedOut)];
        let (mut pod, mut gone) = (fresh(), deleted(10));
        (pod.wanted, pod.gate, gone.wanted) = (false, true, false);
        check(&pod, THERE, 1, &release);
        check(&gone, THERE, 11, &release);
        pod.held = false;
        check(&pod, THERE, 1, &[]);
    }

    #[test]
    fn an_endpoint_that_is_marked_may_still_get_requests() {
        let listed = Spread {
            presence: Presence::Listed,
            ..GONE
        };
        check(&deleted(10), listed, 11, &[]);
        check(&fresh(), listed, 1, &[]);
    }

    /// A pod as the API server sends it, but for what changes.
    fn read(label: Option<&str>, of_namespace: Option<&str>, more: &Value) -> Option<PodFacts> {
        let mut object = json!({
            "metadata": {"finalizers": [FINALIZER]},
            "spec": {"readinessGates": [{"conditionType": GATE}]},
            "status": {"conditions": [{
                "type": "ContainersReady", "status": "True",
                "lastTransitionTime": "1970-01-12T13:46:40Z",
            }]},
        });
        for (part, fields) in more.as_object().into_iter().flatten() {
            for (field, value) in fields.as_object().into_iter().flatten() {
                object[part][field] = value.clone();
            }
        }
        let labels = |value: Option<&str>| -> Labels {
            let value = value.map(|value| (LABEL.to_owned(), value.to_owned()));
            value.into_iter().collect()
        };
        let meta = model::Meta {
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
            labels: labels(label),
            deleting: !object["metadata"]["deletionTimestamp"].is_null(),
            ..model::Meta::default()
        };
        let spec = serde_json::from_value(object).unwrap();
        PodFacts::of(&Config { meta, spec }, Some(&labels(of_namespace)))
    }

    #[test]
    fn pods_say_what_they_want() {
        let yes = Some("true");
        assert_eq!(read(yes, None, &json!({})), Some(fresh()));
        assert_eq!(read(None, yes, &json!({})), Some(fresh()));
        let opted_out = read(Some("false"), yes, &json!({})).unwrap();
        assert!(opted_out.held && !opted_out.wanted);
        let none = json!({"metadata": {"finalizers": []}, "spec": {"readinessGates": []}});
        assert_eq!(read(None, None, &none), None);
        let host = read(yes, None, &json!({"spec": {"hostNetwork": true}})).unwrap();
        assert!(!host.wanted);
    }

    #[test]
    fn the_time_of_a_deletion_is_that_of_the_request() {
        let deleting = json!({"metadata": {
            "deletionTimestamp": "1970-01-12T13:47:20Z", "deletionGracePeriodSeconds": 30,
        }});
        let facts = read(Some("true"), None, &deleting).unwrap();
        assert_eq!(facts.deleted, Some(at(10)));
        let unreadable = json!({"metadata": {"deletionTimestamp": "soon"}});
        let facts = read(Some("true"), None, &unreadable).unwrap();
        let actions = decide(&facts, THERE, Limits::default(), at(0));
        assert_eq!(
            actions,
            [Action::Release(Reason::TimedOut)],
            "it blocks nobody"
        );
    }

    #[test]
    fn a_write_is_for_one_pod_and_leaves_what_others_wrote() {
        let name = NamespacedName::new("ns", "a");
        let write = |action| wanted(&name, &fresh(), action, at(0));
        let hold = write(Action::Hold);
        assert_eq!(hold.target.path(), "/api/v1/namespaces/ns/pods/a");
        let expected = json!({"metadata": {"uid": "u", "finalizers": [FINALIZER]}});
        assert_eq!(hold.fields, expected);
        let gate = write(Action::OpenGate(Reason::Distributed));
        assert_eq!(gate.target.path(), "/api/v1/namespaces/ns/pods/a/status");
        let condition = &gate.fields["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "1970-01-12T13:46:40Z");
    }

    #[test]
    fn a_failed_write_is_repeated_and_a_done_one_is_not() {
        let mut waiting = Waiting::default();
        let name = NamespacedName::new("ns", "a");
        waiting.on_pod(name.clone(), Some(deleted(10)));
        let look = |waiting: &Waiting| waiting.look(|_| GONE, Limits::default(), at(11)).len();
        assert_eq!((look(&waiting), look(&waiting)), (1, 1));
        let mut released = deleted(10);
        released.held = false;
        waiting.on_pod(name.clone(), Some(released));
        assert_eq!(look(&waiting), 0);
        assert_eq!(waiting.waiting().count(), 0);
        waiting.on_pod(name, None);
        assert!(waiting.pods.is_empty());
    }

    proptest! {
        /// Whatever happens to the proxies, the replicas and the clock of others: a deleted pod goes by
        /// the limit, and before it only when nobody has it.
        #[test]
        fn released_in_time_and_never_too_early(
            published: bool, absent: bool, behind in 0..3_usize, unknown in 0..2_usize,
            age in 0..200_u64,
        ) {
            let presence = if absent { Presence::Absent } else { Presence::Listed };
            let spread = Spread { published, presence, behind, unknown };
            let actions = decide(&deleted(0), spread, Limits::default(), at(age));
            let safe = published && absent && behind == 0 && unknown == 0;
            prop_assert_eq!(!actions.is_empty(), safe || age >= 60);
        }
    }
}
