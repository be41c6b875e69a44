//! What one client was sent of one type, what it is believed to hold, and what it rejected.
//!
//! The server is optimistic: what is on its way counts as held, so that nothing is sent twice. A
//! rejection takes that back. The resources that caused it are held back, the client's last good
//! version standing in for them, until their content changes. When the message names no resource,
//! the suspects are tried in halves until the guilty one stands alone; everything else flows on.

mod rejection;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nonce::Nonce;
use crate::observer::Protocol;
use crate::registry::Removal;
use crate::{Diff, Interest, Refusal, Resource, ResourceSet, TypeFacts, Version};

/// How many responses of one type wait for an answer at most; the oldest are then taken as read.
/// Each costs a pointer to the set it completed. A client is not this far behind unless it never
/// answers.
const WAITING_RESPONSES: usize = 32;

/// One type's traffic to one client.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    form: Form,
    /// What the client is believed to hold, counting what is on its way.
    held: Arc<ResourceSet>,
    /// What the client last said yes to.
    good: Arc<ResourceSet>,
    /// Responses without an answer, oldest first.
    waiting: VecDeque<Sent>,
    /// The nonce of the last response.
    last: Option<Nonce>,
    /// The nonce of the last response that was acknowledged.
    acked: Option<Nonce>,
    /// Names to send although they are held.
    again: BTreeSet<Arc<str>>,
    /// Versions that are not sent again.
    rejected: BTreeMap<Arc<str>, HeldBack>,
    /// Suspects of a rejection that wait for their trial.
    parked: VecDeque<BTreeMap<Arc<str>, HeldBack>>,
    /// The last publication whose whole content the client has accepted, and when it did.
    settled: Settled,
    /// Rejections since the last acknowledgement.
    rejections: u32,
    /// Whether a response is owed even if there is nothing to say.
    owed: bool,
}

/// How far a client is, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The last publication whose whole content it has accepted; 0 when there is none.
    pub(crate) seq: u64,
    /// When it accepted what it has; `None` when it stated it.
    pub(crate) at: Option<Instant>,
    /// The root of that publication while it has accepted nothing else since.
    pub(crate) root: Option<Arc<str>>,
}

/// Versions of one resource that are not sent.
#[derive(Clone, Debug)]
pub(crate) struct HeldBack {
    /// Oldest first; a few, since the content may go to and fro before one is accepted.
    pub(super) versions: Vec<Version>,
    /// What the client said of the newest one, once it is known to be the cause.
    pub(crate) refusal: Option<Arc<Refusal>>,
    /// The version that the client accepted, if it ever did.
    pub(crate) instead: Option<Arc<Resource>>,
}

/// What responses can say, by protocol and type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// SotW, of types that can be asked for as a whole: all there is; what is absent is gone.
    Whole,
    /// SotW, of other types: what is new or changed.
    Additions,
    /// Delta: what is new, changed or gone.
    #[default]
    Changes,
    /// Delta, of types whose removals clients do not want to hear of.
    ChangesButRemovals,
}

impl Form {
    /// Returns whether responses say what is gone. Otherwise the client keeps it.
    fn tells_removals(self) -> bool {
        match self {
            Self::Whole | Self::Changes => true,
            Self::Additions | Self::ChangesButRemovals => false,
        }
    }
}

/// A response that waits for an answer.
#[derive(Debug)]
struct Sent {
    nonce: Nonce,
    root: Arc<str>,
    at: Instant,
    /// What it carried that the client did not have.
    cargo: Arc<Diff>,
    /// What the client holds once it accepts.
    set: Arc<ResourceSet>,
    /// The publication whose whole content that is; 0 when it is of none.
    seq: u64,
    /// The root of that publication.
    settles: Option<Arc<str>>,
    /// Whether it states the whole set, also what the client already has.
    whole: bool,
    /// Whether it was on its way when another was rejected. If it is whole, it has what was
    /// rejected in it, and its own rejection says nothing new.
    tainted: bool,
}

/// An acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acked {
    /// The root that the acknowledged response carried.
    pub(crate) root: Arc<str>,
    /// The time from sending to acknowledging.
    pub(crate) after: Duration,
}

/// What a response says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cargo {
    /// All resources of the type; what is absent is gone.
    Whole(Arc<ResourceSet>),
    /// What is new, changed or gone. SotW responses cannot say what is gone.
    Part(Arc<Diff>),
}

impl Cargo {
    /// Returns one of the resources to send, by its index.
    pub(crate) fn resource(&self, index: usize) -> Option<&Arc<Resource>> {
        match self {
            Self::Whole(set) => set.nth(index),
            Self::Part(diff) => {
                let changed = index.checked_sub(diff.added.len());
                changed.map_or_else(|| diff.added.get(index), |index| diff.changed.get(index))
            }
        }
    }
}

/// What to say next, and what it carries that is new to the client.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) cargo: Cargo,
    pub(crate) news: Arc<Diff>,
    /// What the client holds before the next part.
    before: Arc<ResourceSet>,
}

/// The circumstances of one composition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    /// What the client asks for.
    pub(crate) interest: &'a Interest,
    /// What the client ought to hold.
    pub(crate) target: &'a Arc<ResourceSet>,
    /// Whether removals have to wait.
    pub(crate) keep_removed: bool,
}

impl Delivery {
    /// Starts for a client that states what it holds.
    pub(crate) fn new(protocol: Protocol, facts: &TypeFacts, holds: Arc<ResourceSet>) -> Self {
        let form = match (protocol, facts.removal) {
            (Protocol::Sotw, _) if facts.wildcard => Form::Whole,
            (Protocol::Sotw, _) => Form::Additions,
            (Protocol::Delta, Removal::Reported) => Form::Changes,
            (Protocol::Delta, Removal::Never) => Form::ChangesButRemovals,
        };
        Self {
            form,
            held: Arc::clone(&holds),
            good: holds,
            ..Self::default()
        }
    }

    /// Starts again for a client that asks from the beginning on a running stream. What it
    /// rejected stays rejected.
    pub(crate) fn restart(&mut self) {
        let old = std::mem::take(self);
        self.form = old.form;
        self.good = old.good;
        self.rejected = old.rejected;
    }

    /// Returns what the client rejected.
    pub(crate) fn into_rejected(self) -> BTreeMap<Arc<str>, HeldBack> {
        self.rejected
    }

    /// Takes over what the client rejected when it had asked for the same type before.
    pub(crate) fn remember(&mut self, rejected: BTreeMap<Arc<str>, HeldBack>) {
        self.rejected = rejected;
    }

    /// Returns the nonce of the last response.
    pub(crate) fn last(&self) -> Option<&Nonce> {
        self.last.as_ref()
    }

    /// Returns the nonce of the last response that was acknowledged.
    pub(crate) fn acked(&self) -> Option<&Nonce> {
        self.acked.as_ref()
    }

    /// Returns whether a response with this nonce waits for an answer.
    pub(crate) fn waits_for(&self, nonce: &Nonce) -> bool {
        self.waiting.iter().any(|sent| sent.nonce == *nonce)
    }

    /// Returns whether any response waits for an answer.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns what the client last said yes to, or stated when it came.
    pub(crate) fn good(&self) -> &Arc<ResourceSet> {
        &self.good
    }

    /// Returns what the client may hold instead of what it said yes to: it has not said yet, or
    /// said no and may have applied a part.
    pub(crate) fn unsure(&self) -> Vec<Arc<ResourceSet>> {
        let sent = self.waiting.iter().map(|sent| &sent.set);
        let mut unsure: Vec<Arc<ResourceSet>> = sent.cloned().collect();
        let last = unsure.last().unwrap_or(&self.good);
        if last.fingerprint() != self.held.fingerprint() {
            unsure.push(Arc::clone(&self.held));
        }
        unsure
    }

    /// Returns how far the client is.
    pub(crate) fn settled(&self) -> &Settled {
        &self.settled
    }

    /// Returns when the oldest response without an answer was sent.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.waiting.front().map(|sent| sent.at)
    }

    /// Returns whether the client hears of what is gone; otherwise it keeps it until it no longer
    /// needs it.
    pub(crate) fn tells_removals(&self) -> bool {
        self.form.tells_removals()
    }

    /// Notes that the client ought to hold `target` in publication `seq` with this root, and is sent
    /// nothing more for it.
    pub(crate) fn settle(&mut self, seq: u64, root: &Arc<str>, target: &Arc<ResourceSet>) {
        let same = |set: &ResourceSet| set.fingerprint() == target.fingerprint();
        match self.waiting.back_mut() {
            Some(last) if same(&last.set) => {
                (last.seq, last.settles) = (seq, Some(Arc::clone(root)));
            }
            None if same(&self.good) => {
                self.settled.seq = self.settled.seq.max(seq);
                self.settled.root = Some(Arc::clone(root));
                // What it stated when it came is a set of its own, of the same content.
                for own in [&mut self.good, &mut self.held] {
                    if same(own) {
                        *own = Arc::clone(target);
                    }
                }
            }
            Some(_) | None => {}
        }
    }

    /// Notes that the client asks for something else: nobody knows yet whether it has all of it.
    pub(crate) fn unsettle(&mut self) {
        self.settled = Settled::default();
        for sent in &mut self.waiting {
            (sent.seq, sent.settles) = (0, None);
        }
    }

    /// Returns what the client is believed to hold.
    pub(crate) fn held(&self) -> &Arc<ResourceSet> {
        &self.held
    }

    /// Returns the version of a resource that the client accepted last.
    pub(crate) fn accepted(&self, name: &str) -> Option<Version> {
        self.good.get(name).map(|resource| resource.version())
    }

    /// Returns the versions that are held back.
    pub(crate) fn rejected(&self) -> &BTreeMap<Arc<str>, HeldBack> {
        &self.rejected
    }

    /// Owes the client a response, even one without content.
    pub(crate) fn owe(&mut self) {
        self.owed = true;
    }

    /// Owes the client everything, held or not.
    pub(crate) fn owe_everything(&mut self) {
        self.owed = true;
        self.held = Arc::default();
    }

    /// Owes the client these names, held or not.
    pub(crate) fn send_again(&mut self, names: impl IntoIterator<Item = Arc<str>>) {
        self.again.extend(names);
    }

    /// Notes that the client no longer holds what it no longer asks for.
    pub(crate) fn forget_unless(&mut self, wanted: &Interest) {
        self.held = self.held.restrict(wanted);
        self.again.retain(|name| wanted.wants(name));
    }

    /// Notes that the client dropped these names.
    pub(crate) fn forget(&mut self, names: &BTreeSet<Arc<str>>) {
        if !names.is_empty() {
            self.held = self
                .held
                .revise(|r| (!names.contains(r.name())).then(|| Arc::clone(r)));
            self.again.retain(|name| !names.contains(name));
        }
    }

    /// Returns whether [`compose`](Self::compose) may have something to say.
    pub(crate) fn has_news(&self, target: &Arc<ResourceSet>) -> bool {
        self.owed
            || self.again.iter().any(|name| self.can_answer(name, target))
            || !self.parked.is_empty() && self.waiting.is_empty()
            || self.differs(&self.effective(target))
    }

    /// Returns whether anything can be said about a name now.
    fn can_answer(&self, name: &str, target: &ResourceSet) -> bool {
        match target.find(name) {
            Some(resource) if self.held_back(resource).is_some() => {
                // What the client accepted before stands for it.
                let stand_in = self.held.get(resource.name());
                stand_in.is_some_and(|r| r.is_complete() && self.held_back(r).is_none())
            }
            Some(_) => true,
            None => self.form.tells_removals(),
        }
    }

    /// Returns whether a client that holds what it is believed to hold can be told of `goal`.
    fn differs(&self, goal: &Arc<ResourceSet>) -> bool {
        let diff = goal.diff_from(&self.held);
        diff.upserts().next().is_some() || (self.form.tells_removals() && !diff.removed.is_empty())
    }

    /// Returns what to send now so that the client comes to hold the target, if anything.
    ///
    /// The caller must send it and [`record`](Self::record) it.
    pub(crate) fn compose(&mut self, setting: &Setting<'_>) -> Option<Composed> {
        let composed = loop {
            let composed = self.compose_once(setting);
            // A group on trial that turns out to be nothing new must not hold up the next one.
            if composed.is_some() || self.waits() || self.parked.pop_front().is_none() {
                break composed;
            }
        };
        let (target, good) = (setting.target, &self.good);
        self.rejected.retain(|name, _| match target.get(name) {
            // It may be asked for again.
            None => !setting.interest.wants(name),
            // Once its present content is accepted, what it was before is history.
            Some(resource) => good.get(name) != Some(resource),
        });
        composed
    }

    fn compose_once(&mut self, setting: &Setting<'_>) -> Option<Composed> {
        let target = setting.target;
        let mut goal = self.effective(target);
        let stays = setting.keep_removed || !self.form.tells_removals();
        if stays && !goal.diff_from(&self.held).removed.is_empty() {
            goal = self.kept_under(&goal, target);
        }
        let news = self.news(&goal, setting);
        let owed = std::mem::take(&mut self.owed);
        let mut again = std::mem::take(&mut self.again);
        again.retain(|name| !self.can_answer(name, target));
        self.again = again;
        let before = std::mem::replace(&mut self.held, Arc::clone(&goal));
        // Where responses cannot say what is gone, nothing can be said about what does not exist.
        let silent = news.is_empty() && !(owed && self.form != Form::Additions);
        if silent {
            return None;
        }
        let cargo = if self.form == Form::Whole {
            Cargo::Whole(goal)
        } else {
            Cargo::Part(Arc::clone(&news))
        };
        Some(Composed {
            cargo,
            news,
            before,
        })
    }

    /// Returns what of `goal` the client has to be told.
    fn news(&self, goal: &Arc<ResourceSet>, setting: &Setting<'_>) -> Arc<Diff> {
        let diff = goal.diff_from(&self.held);
        if self.again.is_empty() && diff.upserts().all(|resource| resource.is_complete()) {
            return diff;
        }
        let repeated = self.again.iter().filter_map(|name| {
            // What is only kept for a while is no answer; its removal will be.
            let answer = goal
                .find(name)
                .filter(|_| setting.target.find(name).is_some());
            let resource = answer.filter(|resource| self.held_back(resource).is_none())?;
            let new = diff.upserts_name(resource.name());
            (!new).then(|| Arc::clone(resource))
        });
        let changed: BTreeMap<Arc<str>, Arc<Resource>> = diff
            .changed
            .iter()
            .cloned()
            .chain(repeated)
            .filter(|resource| resource.is_complete())
            .map(|resource| (Arc::clone(resource.name()), resource))
            .collect();
        let mut removed: BTreeSet<Arc<str>> = BTreeSet::new();
        if self.form.tells_removals() {
            removed.extend(diff.removed.iter().cloned());
            // What is held back exists, so it is not reported as gone.
            let missing =
                |name: &&Arc<str>| setting.target.find(name).is_none() && goal.find(name).is_none();
            removed.extend(self.again.iter().filter(missing).cloned());
        }
        Arc::new(Diff {
            added: diff
                .added
                .iter()
                .filter(|r| r.is_complete())
                .cloned()
                .collect(),
            changed: changed.into_values().collect(),
            removed: removed.into_iter().collect(),
        })
    }

    /// Notes that a part of what was composed is on its way. `last` tells whether it is the last.
    pub(crate) fn record(
        &mut self,
        nonce: Nonce,
        root: Arc<str>,
        at: Instant,
        composed: &mut Composed,
        part: Arc<Diff>,
        last: bool,
    ) {
        let set = if last {
            Arc::clone(&self.held)
        } else {
            composed.before.overlay(part.upserts())
        };
        composed.before = Arc::clone(&set);
        if self.waiting.len() >= WAITING_RESPONSES {
            self.waiting.pop_front();
        }
        self.last = Some(nonce.clone());
        let whole = matches!(composed.cargo, Cargo::Whole(_));
        self.waiting.push_back(Sent {
            nonce,
            root,
            at,
            cargo: part,
            set,
            seq: 0,
            settles: None,
            whole,
            tainted: false,
        });
    }

    /// Takes in an acknowledgement. `None` when no such response waits.
    pub(crate) fn acknowledge(&mut self, nonce: &Nonce, now: Instant) -> Option<Acked> {
        let index = self.waiting.iter().position(|sent| sent.nonce == *nonce)?;
        // Answers come in order: the responses before this one were read as well.
        let sent = self.waiting.drain(..=index).next_back()?;
        self.take_as_good(&sent.set);
        self.good = sent.set;
        self.settled = Settled {
            seq: self.settled.seq.max(sent.seq),
            at: Some(now),
            root: sent.settles,
        };
        self.acked = Some(sent.nonce);
        self.rejections = 0;
        self.parked.pop_front();
        Some(Acked {
            root: sent.root,
            after: now.saturating_duration_since(sent.at),
        })
    }
}
