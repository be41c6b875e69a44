//! Writes to the cluster: one at a time for each object, the newest that is wanted, and nothing twice.
//!
//! Controllers say what an object should be ([`Writes::want`]) as often as they like. What is waiting is
//! replaced by what is newer; what was written is not written again unless the object has changed since.
//! [`Writes`] decides, [`driver::run`] applies, by server-side apply as the owner of the fields named,
//! or, of metadata, by a patch.

pub mod driver;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// The first wait after a failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// The first rest of a status after a write. Each is three times the one before while there is something
/// to be written at its end: whatever changes for `t` seconds is written about log₃ `t` times.
const FIRST_REST: Duration = Duration::from_secs(1);
/// So many forgotten targets are looked through for those whose rest is over.
const FORGOTTEN: usize = 1024;
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// A kind of object, as paths of the API name it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Resource {
    /// The group; empty for the core group.
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// Its plural.
    pub plural: &'static str,
}

/// The part of an object that is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Part {
    /// The object, which is made if it is not there.
    Whole,
    /// The status of an object that is there.
    Status,
    /// The conditions in the status of an object that is there, apart from what else is written of it.
    Conditions,
    /// A condition in the status of an object that is there, which somebody waits for: it does not rest.
    Gate,
    /// The metadata of an object that is there, as a strategic merge patch: what others have put into its
    /// lists stays.
    Metadata,
}

impl Part {
    /// Whether it is left alone for a while after each write.
    fn rests(self) -> bool {
        match self {
            Self::Status | Self::Conditions => true,
            Self::Whole | Self::Gate | Self::Metadata => false,
        }
    }
}

/// What is written to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Target {
    /// The kind.
    pub resource: Resource,
    /// Which part.
    pub part: Part,
    /// The namespace; empty for kinds without.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Target {
    /// The path by which the API knows it.
    pub fn path(&self) -> String {
        let Resource {
            group,
            version,
            plural,
            ..
        } = self.resource;
        let root = match group {
            "" => format!("/api/{version}"),
            _ => format!("/apis/{group}/{version}"),
        };
        let scope = match self.namespace.as_str() {
            "" => String::new(),
            namespace => format!("/namespaces/{namespace}"),
        };
        let part = match self.part {
            Part::Whole | Part::Metadata => "",
            Part::Status | Part::Conditions | Part::Gate => "/status",
        };
        format!("{root}{scope}/{plural}/{}{part}", self.name)
    }

    /// The object that is applied: these fields, and what tells which object it is. With a version, only
    /// if the object is still of that version.
    fn object(&self, fields: &Value, version: Option<&str>) -> Value {
        if self.part == Part::Metadata {
            let mut patch = fields.clone();
            if let Some(version) = version {
                patch["metadata"]["resourceVersion"] = json!(version);
            }
            return patch;
        }
        let Resource {
            group,
            version: api,
            kind,
            ..
        } = self.resource;
        let mut object = fields.clone();
        object["apiVersion"] = match group {
            "" => json!(api),
            _ => json!(format!("{group}/{api}")),
        };
        object["kind"] = json!(kind);
        object["metadata"]["name"] = json!(self.name);
        if !self.namespace.is_empty() {
            object["metadata"]["namespace"] = json!(self.namespace);
        }
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = json!(version);
        }
        object
    }
}

/// What an object should be.
#[derive(Clone, PartialEq, Debug)]
pub struct Wanted {
    /// What is written to.
    pub target: Target,
    /// The fields, and nothing else; for instance `{"status": {…}}`.
    pub fields: Value,
    /// The version of the object that this was decided by; `None` if there is none.
    pub seen: Option<String>,
    /// It is written only if the object is still of that version. For what is decided by reading the
    /// object itself.
    pub strict: bool,
}

/// How a write ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is written.
    Done,
    /// The object is of another version, or gone: whoever wants something will say so again, when the
    /// change arrives.
    Overtaken,
    /// It may work later.
    Failed,
}

/// A write that is to be done.
#[derive(Clone, PartialEq, Debug)]
pub struct Write {
    /// What is written to.
    pub target: Target,
    /// The object to apply.
    pub object: Value,
}

/// What was written, by which version of the object.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Written {
    hash: u64,
    seen: Option<String>,
}

#[derive(Debug, Default)]
struct Slot {
    /// What is to be written next.
    next: Option<Wanted>,
    /// What is being written.
    flying: Option<Written>,
    /// What was written last.
    written: Option<Written>,
    /// When it may be tried again, after so many failures.
    hold: Option<(Instant, u32)>,
    /// Of statuses: until when they are left alone after a write, and for how long in all.
    rest: Option<(Instant, Duration)>,
}

impl Slot {
    /// When a write may begin; any time if there is no such moment.
    fn due(&self) -> Option<Instant> {
        let hold = self.hold.map(|(until, _)| until);
        hold.max(self.rest.map(|(until, _)| until))
    }

    /// Whether there is nothing left to be known of it.
    fn is_done(&self, now: Instant) -> bool {
        self.next.is_none()
            && self.flying.is_none()
            && self.written.is_none()
            && self
                .rest
                .is_none_or(|(until, length)| until + length <= now)
    }
}

/// The writes of one leader. Without I/O.
#[derive(Debug)]
pub struct Writes {
    slots: BTreeMap<Target, Slot>,
    /// Targets that have something to be written and nothing that is being written.
    waiting: BTreeSet<Target>,
    /// The one that was begun last.
    last: Option<Target>,
    flying: usize,
    limit: usize,
    /// Targets forgotten of which something may still be known.
    forgotten: usize,
}

impl Writes {
    /// At most so many writes at once.
    pub fn new(limit: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            waiting: BTreeSet::new(),
            last: None,
            flying: 0,
            limit,
            forgotten: 0,
        }
    }

    /// Takes in what an object should be. Returns whether there is anything to be done about it.
    pub fn want(&mut self, wanted: Wanted) -> bool {
        let slot = self.slots.entry(wanted.target.clone()).or_default();
        let written = Written::of(&wanted);
        if let Some(flying) = &slot.flying {
            let new = *flying != written;
            // The same is kept too: it may fail.
            slot.next = Some(wanted);
            return new;
        }
        if slot.written.as_ref() == Some(&written) {
            slot.next = None;
            self.waiting.remove(&wanted.target);
            return false;
        }
        self.waiting.insert(wanted.target.clone());
        slot.next = Some(wanted);
        true
    }

    /// Forgets what an object should be: what waits for it is not written.
    pub fn forget(&mut self, target: &Target) {
        self.waiting.remove(target);
        match self.slots.get_mut(target) {
            // It rests after its last write all the same: what is wanted may change to and fro.
            Some(slot) if slot.flying.is_some() || slot.rest.is_some() => {
                self.forgotten += 1;
                *slot = Slot {
                    flying: slot.flying.take(),
                    rest: slot.rest,
                    ..Slot::default()
                }
            }
            _ => drop(self.slots.remove(target)),
        }
    }

    /// Forgets everything that is not being written.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.slots.retain(|_, slot| slot.flying.is_some());
        for slot in self.slots.values_mut() {
            (slot.next, slot.written, slot.hold) = (None, None, None);
        }
    }

    /// The next write that may begin now, if there is one.
    pub fn begin(&mut self, now: Instant) -> Option<Write> {
        if self.flying >= self.limit {
            return None;
        }
        let due = |target: &&Target| {
            let due = self.slots.get(*target).and_then(Slot::due);
            due.is_none_or(|due| due <= now)
        };
        // In turn, so that objects that change all the time do not keep others from being written.
        let last = self.last.take();
        let after = (
            last.as_ref().map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let rest = self.waiting.range::<Target, _>(after);
        let target = rest.chain(&self.waiting).find(due).cloned();
        self.last = target.clone().or(last);
        let target = target?;
        self.waiting.remove(&target);
        let slot = self.slots.get_mut(&target)?;
        let wanted = slot.next.take()?;
        slot.flying = Some(Written::of(&wanted));
        self.flying += 1;
        let version = wanted.seen.as_deref().filter(|_| wanted.strict);
        let object = target.object(&wanted.fields, version);
        // For a second attempt, unless something newer is wanted until then.
        slot.next = Some(wanted);
        Some(Write { target, object })
    }

    /// Takes in how a write ended that [`Writes::begin`] returned.
    pub fn end(&mut self, now: Instant, target: &Target, outcome: &Outcome) {
        self.flying = self.flying.saturating_sub(1);
        if self.forgotten > FORGOTTEN {
            self.forgotten = 0;
            self.slots.retain(|_, slot| !slot.is_done(now));
        }
        let Some(slot) = self.slots.get_mut(target) else {
            return;
        };
        let ended = slot.flying.take();
        let same = slot.next.as_ref().map(Written::of) == ended;
        match outcome {
            Outcome::Done | Outcome::Overtaken => {
                slot.hold = None;
                if *outcome == Outcome::Done && target.part.rests() {
                    slot.rest = Some(rest(slot.rest, now));
                }
                slot.written = ended.filter(|_| *outcome == Outcome::Done);
                if same {
                    slot.next = None;
                }
            }
            Outcome::Failed => {
                let failures = slot.hold.map_or(0, |(_, failures)| failures);
                let wait = FIRST_WAIT
                    .saturating_mul(1 << failures.min(16))
                    .min(LONGEST_WAIT);
                slot.hold = Some((now + jittered(wait, target), failures + 1));
            }
        }
        if slot.next.is_some() {
            self.waiting.insert(target.clone());
        } else if slot.written.is_none() && slot.rest.is_none() {
            self.slots.remove(target);
        }
    }

    /// When [`Writes::begin`] has something again, if nothing else happens.
    pub fn wake(&self) -> Option<Instant> {
        if self.flying >= self.limit {
            return None;
        }
        let holds = self
            .waiting
            .iter()
            .filter_map(|target| self.slots.get(target)?.due());
        holds.min()
    }

    /// How many writes wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Written {
    fn of(wanted: &Wanted) -> Self {
        Self {
            hash: xxh3_64(wanted.fields.to_string().as_bytes()),
            seen: wanted.seen.clone(),
        }
    }
}

/// How long a status is left alone after a write `now`: longer, unless it was quiet since the last rest.
fn rest(last: Option<(Instant, Duration)>, now: Instant) -> (Instant, Duration) {
    let length = match last {
        Some((until, length)) if now < until + length => length.saturating_mul(3).min(LONGEST_REST),
        _ => FIRST_REST,
    };
    (now + length, length)
}

/// Between three quarters of a time and all of it, always the same for one object: what fails together is
/// not tried again at one moment.
fn jittered(wait: Duration, target: &Target) -> Duration {
    let share = xxh3_64(target.path().as_bytes()) % 256;
    wait.saturating_sub(wait / 1024 * u32::try_from(share).unwrap_or_default())
}

#[cfg(test)]
mod tests;
