//! The answers, as JSON says them. `docs/distribution-api.json` describes them for others.

use serde::{Deserialize, Serialize};

/// How a client stands to a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It has rejected it.
    Refused,
    /// It has yet to accept it.
    Pending,
    /// What it ought to hold is being worked out; the change may not matter to it.
    Undecided,
    /// It left, and has not come back.
    Disconnected,
    /// It has accepted it.
    Has,
}

/// How far a change is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// What was asked for has not arrived.
    Missing,
    /// It has arrived and waits: for the throttle, the debounce, or the build.
    Waiting,
    /// It is published.
    Published,
    /// It was asked for in an older content than the published one.
    Superseded,
}

/// Who has a configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ConfigAnswer {
    /// What was asked about.
    pub config: ConfigName,
    /// How far it is.
    pub stage: Stage,
    /// The content that was asked for; the newest that has arrived when none was named. `None` when
    /// the object is deleted, or has not arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The generation of the newest object that has arrived; 0 when it has none.
    pub generation: i64,
    /// The root of the published state.
    pub root: String,
    /// Seconds since it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_seconds_ago: Option<f64>,
    /// How many clients stand how.
    pub counts: Counts,
    /// The replicas that answered, the asked one first.
    pub replicas: Vec<Replica>,
    /// The replicas that could not be asked: their clients are missing above.
    pub unreachable: Vec<Unreachable>,
    /// The clients that were asked for.
    pub proxies: Vec<ProxyState>,
}

/// What was asked about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfigName {
    /// The kind.
    pub kind: String,
    /// The namespace; empty for what has none.
    pub namespace: String,
    /// The name; for endpoints the host name.
    pub name: String,
}

/// How many clients stand how.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counts {
    /// Those that must have it: the sum of `has`, `pending` and `refused`.
    pub required: usize,
    /// Those that have it.
    pub has: usize,
    /// Those that have yet to accept it.
    pub pending: usize,
    /// Those that have rejected it.
    pub refused: usize,
    /// Those to which it may matter: that is being worked out.
    pub undecided: usize,
    /// Those that needed it, left, and have not come back.
    pub disconnected: usize,
}

impl Counts {
    /// Counts clients.
    pub fn of<'a>(proxies: impl IntoIterator<Item = &'a ProxyState>) -> Self {
        let mut counts = Self::default();
        for proxy in proxies {
            let count = match proxy.state {
                Standing::Has => &mut counts.has,
                Standing::Pending => &mut counts.pending,
                Standing::Refused => &mut counts.refused,
                Standing::Undecided => &mut counts.undecided,
                Standing::Disconnected => &mut counts.disconnected,
            };
            *count += 1;
        }
        counts.required = counts.has + counts.pending + counts.refused;
        counts
    }
}

/// A replica of the control plane that answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// The connections that it has.
    pub connected: usize,
    /// The root of the state that it has published.
    pub root: String,
    /// It started so recently that clients may be about to come back to it.
    pub settling: bool,
}

/// A replica that could not be asked.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Unreachable {
    /// Its address, or the name that could not be resolved.
    pub replica: String,
    /// Why.
    pub error: String,
}

/// How one client stands to a configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProxyState {
    /// The id of its node.
    pub proxy: String,
    /// How it stands.
    pub state: Standing,
    /// The replica that it is, or was, connected to.
    pub replica: String,
    /// Seconds that it has stood so, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The types of which it lacks something, or the one that it rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub types: Vec<String>,
    /// The content that it has instead, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The root that it acknowledged last, or rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// Why it rejected it, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The resources that it rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
}

/// What one client has and lacks, of all types.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProxiesAnswer {
    /// The clients whose ids match.
    pub proxies: Vec<ProxyAnswer>,
    /// The replicas that answered.
    pub replicas: Vec<Replica>,
    /// The replicas that could not be asked.
    pub unreachable: Vec<Unreachable>,
}

/// What one client has and lacks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProxyAnswer {
    /// The id of its node.
    pub proxy: String,
    /// The replica that it is connected to.
    pub replica: String,
    /// The variant of the protocol that it speaks.
    pub protocol: String,
    /// It has everything that it ought to have.
    pub current: bool,
    /// The types that it asked for, in the order in which they are pushed.
    pub types: Vec<TypeAnswer>,
}

/// What one client has and lacks, of one type.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TypeAnswer {
    /// The type URL.
    #[serde(rename = "type")]
    pub type_url: String,
    /// It has everything that it ought to have.
    pub current: bool,
    /// How many resources it ought to have.
    pub resources: usize,
    /// The root that it acknowledged last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// How many resources it lacks, or has in another version.
    pub lacking: usize,
    /// The names of some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
    /// The configurations that it lacks: those that changed since its root and are in what it lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<String>,
    /// Resources that it ought to drop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub obsolete: Vec<String>,
    /// Seconds that a response waits for its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_seconds: Option<f64>,
    /// What it rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
}

/// A resource that a client rejected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refused {
    /// Its name.
    pub resource: String,
    /// What the client said; `None` while it is one of several suspects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The root of the state that was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
}

/// The mesh at a glance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MeshAnswer {
    /// The replicas that answered.
    pub replicas: Vec<Replica>,
    /// The replicas that could not be asked.
    pub unreachable: Vec<Unreachable>,
    /// Connected clients.
    pub connected: usize,
    /// Those of them that have everything they ought to have.
    pub current: usize,
    /// Keys of the ledger.
    pub configs: usize,
    /// States that are kept.
    pub states: usize,
    /// What became of the changes since the start, by kind.
    pub kinds: Vec<KindAnswer>,
    /// Changes that not everybody has answered, the oldest first.
    pub pending: Vec<PendingAnswer>,
    /// Resources that clients rejected, with the reasons.
    pub refused: Vec<RefusedAnswer>,
    /// Objects that are set aside because clients rejected what is built from them.
    pub set_aside: Vec<SetAsideAnswer>,
    /// The connected clients by what they are, the most numerous first.
    #[serde(default)]
    pub classes: Vec<ClassAnswer>,
    /// Namespaces whose changes are held back because there are too many of them.
    #[serde(default)]
    pub throttled: Vec<ThrottledAnswer>,
    /// The last publications, the newest first.
    #[serde(default)]
    pub pushes: Vec<PushAnswer>,
}

/// The connected clients that are served alike.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClassAnswer {
    /// What they are: type, namespace and labels. Classes that differ otherwise count together.
    pub class: String,
    /// How many there are.
    pub proxies: usize,
    /// How many of them have everything that they ought to have.
    pub current: usize,
}

/// A namespace that is throttled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ThrottledAnswer {
    /// The namespace.
    pub namespace: String,
    /// The replica that throttles it.
    pub replica: String,
    /// Seconds that it has been throttled.
    pub seconds: f64,
    /// Changes that were held in that time.
    pub held: u64,
    /// Seconds that a change waits now, at most.
    pub delay_seconds: f64,
    /// The object that changed most often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noisiest: Option<String>,
}

/// What was published, why, and what it cost.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PushAnswer {
    /// The replica that published it.
    pub replica: String,
    /// Seconds since then.
    pub seconds_ago: f64,
    /// Why: the labels of `pilot_push_triggers`.
    pub reasons: Vec<String>,
    /// How many objects and services' endpoints changed.
    pub changes: usize,
    /// Some of them.
    pub changed: Vec<String>,
    /// How many events were merged into it.
    pub events: u64,
    /// Seconds that the snapshot took to build.
    pub build_seconds: f64,
    /// Responses that were pushed for it.
    pub responses: u64,
    /// The sizes of the resources in them, summed up.
    pub bytes: u64,
}

/// What became of the changes of one kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KindAnswer {
    /// The kind.
    pub kind: String,
    /// Changes that every client has answered.
    pub changes: u64,
    /// How often a client accepted a change.
    pub accepted: u64,
    /// How often a client rejected one.
    pub refused: u64,
    /// The share of accepted ones, from 0 to 1; 1 when there were none.
    pub success: f64,
    /// Seconds from the arrival of a change to its last answer, on average.
    pub mean_seconds: f64,
    /// The longest of them.
    pub max_seconds: f64,
}

/// A change that not everybody has answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PendingAnswer {
    /// What changed.
    pub config: ConfigName,
    /// Seconds since it was published.
    pub seconds: f64,
    /// Clients that have yet to answer.
    pub pending: usize,
    /// The replica that counts them.
    pub replica: String,
}

/// A resource that clients rejected for a reason.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RefusedAnswer {
    /// The type URL.
    #[serde(rename = "type")]
    pub type_url: String,
    /// Its name.
    pub resource: String,
    /// The reason, in the words of one of them.
    pub error: String,
    /// How many clients do without it.
    pub proxies: usize,
}

/// An object that is set aside.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetAsideAnswer {
    /// The object: kind, namespace, name.
    pub object: String,
    /// The type of the resource that was rejected because of it.
    #[serde(rename = "type")]
    pub type_url: String,
    /// The name of that resource.
    pub resource: String,
    /// What the client said.
    pub error: String,
    /// Classes of clients that do without it.
    pub classes: usize,
}

/// The proof that the published state says something of a configuration, for who keeps its root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProofAnswer {
    /// The root of the published state.
    pub root: String,
    /// The key whose hash leads through the trie: kind, namespace, name.
    pub key: String,
    /// What the state says of it.
    pub hash: String,
    /// The branches from the top to the leaf.
    pub steps: Vec<ProofStep>,
}

/// One branch of a proof.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProofStep {
    /// The ways that lead on, as bits.
    pub bitmap: u16,
    /// The hashes of the other ways, in order.
    pub siblings: Vec<String>,
}
