//! What one client was sent of one type, what it is believed to hold, and what it rejected.
//!
//! The server is optimistic: what is on its way counts as held, so that nothing is sent twice. A
//! rejection takes that back. The resources that caused it are held back, the client's last good
//! version standing in for them, until their content changes. When the message names no resource,
//! the suspects are tried in halves until the guilty one stands alone; everything else flows on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::nonce::Nonce;
use crate::observer::Protocol;
use crate::registry::Removal;
use crate::{Diff, Interest, Resource, ResourceSet, TypeFacts, Version};

/// How many responses of one type wait for an answer at most; the oldest are then taken as read.
/// Each costs a pointer to the set it completed. A client is not this far behind unless it never
/// answers.
const WAITING_RESPONSES: usize = 32;

/// How many rejections in a row are answered by trying parts. Halving 200 000 suspects takes 18;
/// a client that goes on rejecting after that would reject anything.
const REJECTIONS_IN_A_ROW: u32 = 24;

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
    rejected: BTreeMap<Arc<str>, Version>,
    /// Suspects of a rejection that wait for their trial.
    parked: VecDeque<Vec<(Arc<str>, Version)>>,
    /// Rejections since the last acknowledgement.
    rejections: u32,
    /// Whether a response is owed even if there is nothing to say.
    owed: bool,
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
    pub(crate) fn into_rejected(self) -> BTreeMap<Arc<str>, Version> {
        self.rejected
    }

    /// Takes over what the client rejected when it had asked for the same type before.
    pub(crate) fn remember(&mut self, rejected: BTreeMap<Arc<str>, Version>) {
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

    /// Returns what the client is believed to hold.
    pub(crate) fn held(&self) -> &Arc<ResourceSet> {
        &self.held
    }

    /// Returns the versions that are held back.
    pub(crate) fn rejected(&self) -> &BTreeMap<Arc<str>, Version> {
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

    /// Returns what stands for `target` while some versions are held back.
    fn effective(&self, target: &Arc<ResourceSet>) -> Arc<ResourceSet> {
        if self.rejected.is_empty() && self.parked.is_empty() {
            return Arc::clone(target);
        }
        target.revise(|resource| {
            let name = resource.name();
            if !self.is_held_back(resource) {
                Some(Arc::clone(resource))
            } else if self.form == Form::Whole {
                self.good.get(name).cloned()
            } else {
                // Nothing is said about it.
                self.held.get(name).cloned()
            }
        })
    }

    /// Returns whether this version was rejected, or waits for its trial.
    fn is_held_back(&self, resource: &Resource) -> bool {
        let (name, version) = (resource.name(), resource.version());
        self.rejected.get(name) == Some(&version)
            || self
                .parked
                .iter()
                .flatten()
                .any(|(n, v)| n == name && *v == version)
    }

    /// Returns `goal`, and below it what the client holds and the target no longer has.
    fn kept_under(&self, goal: &ResourceSet, target: &ResourceSet) -> Arc<ResourceSet> {
        let kept = self
            .held
            .iter()
            .filter(|r| target.get(r.name()).is_none())
            .filter_map(|r| {
                let said = self.form == Form::Whole;
                let kept = if said && self.is_held_back(r) {
                    self.good.get(r.name())?
                } else {
                    r
                };
                (!said || kept.is_complete()).then_some(kept)
            });
        Arc::new(goal.iter().chain(kept).cloned().collect())
    }

    /// Returns whether [`compose`](Self::compose) may have something to say.
    pub(crate) fn has_news(&self, target: &Arc<ResourceSet>) -> bool {
        self.owed
            || !self.again.is_empty()
            || !self.parked.is_empty() && self.waiting.is_empty()
            || self.differs(&self.effective(target))
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
        self.rejected
            .retain(|name, version| match setting.target.get(name) {
                Some(resource) => resource.version() == *version,
                // It may be asked for again.
                None => !setting.interest.wants(name),
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
        self.again.clear();
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
            let resource = answer.filter(|resource| !self.is_held_back(resource))?;
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
            whole,
            tainted: false,
        });
    }

    /// Takes in an acknowledgement. `None` when no such response waits.
    pub(crate) fn acknowledge(&mut self, nonce: &Nonce, now: Instant) -> Option<Acked> {
        let index = self.waiting.iter().position(|sent| sent.nonce == *nonce)?;
        // Answers come in order: the responses before this one were read as well.
        let sent = self.waiting.drain(..=index).next_back()?;
        let accepted = |(name, version): (&Arc<str>, &mut Version)| {
            sent.set
                .get(name)
                .is_some_and(|resource| resource.version() == *version)
        };
        self.rejected
            .retain(|name, version| !accepted((name, version)));
        self.good = sent.set;
        self.acked = Some(sent.nonce);
        self.rejections = 0;
        self.parked.pop_front();
        Some(Acked {
            root: sent.root,
            after: now.saturating_duration_since(sent.at),
        })
    }

    /// Takes in a rejection and returns the resources that are held back because of it: none while
    /// the cause is still being looked for. `None` when no such response waits.
    pub(crate) fn reject(
        &mut self,
        nonce: &Nonce,
        message: &str,
        interest: &Interest,
    ) -> Option<Vec<Arc<Resource>>> {
        let index = self.waiting.iter().position(|sent| sent.nonce == *nonce)?;
        let sent = self.waiting.drain(..=index).next_back()?;
        let tainted = sent.whole && sent.tainted;
        for later in &mut self.waiting {
            later.tainted |= !tainted;
        }
        // What was accepted before is not at fault now.
        let unproved = |r: &&Arc<Resource>| self.good.get(r.name()) != Some(*r);
        let suspects: Vec<Arc<Resource>> = if sent.whole {
            sent.set.iter().filter(unproved).cloned().collect()
        } else {
            sent.cargo.upserts().filter(unproved).cloned().collect()
        };
        if suspects.is_empty() {
            // Nothing in it could be held back; saying it again would only be rejected again.
            return Some(Vec::new());
        }
        let named: Vec<Arc<Resource>> = suspects
            .iter()
            .filter(|r| mentions(message, r.name()))
            .cloned()
            .collect();
        let culprits = if !named.is_empty() {
            named
        } else if tainted {
            Vec::new()
        } else {
            self.rejections = self.rejections.saturating_add(1);
            if suspects.len() == 1 || self.rejections > REJECTIONS_IN_A_ROW {
                suspects.clone()
            } else {
                let half = suspects.iter().skip(suspects.len() / 2);
                self.parked
                    .push_front(half.map(|r| (Arc::clone(r.name()), r.version())).collect());
                Vec::new()
            }
        };
        for culprit in &culprits {
            self.rejected
                .insert(Arc::clone(culprit.name()), culprit.version());
        }
        self.take_back(&sent, &suspects, interest);
        // What a client has from an earlier stream goes with the first response that it accepts.
        self.owed |= self.form == Form::Whole && self.acked.is_none();
        Some(culprits)
    }

    /// Takes back the belief that the client holds what it rejected, unless it was sent more of
    /// the same since.
    ///
    /// It has its last good version of what is held back. Of the rest it may have either version:
    /// Envoy applies what is fine in a response that it rejects.
    fn take_back(&mut self, sent: &Sent, suspects: &[Arc<Resource>], interest: &Interest) {
        // Also what it had before: it was sent again because the client waits for it.
        let carried = suspects
            .iter()
            .chain(sent.cargo.upserts())
            .map(|r| r.name());
        let mut names: BTreeSet<Arc<str>> = carried.chain(&sent.cargo.removed).cloned().collect();
        let believed = |name: &Arc<str>| {
            if self.rejected.contains_key(name) {
                self.good.get(name).cloned()
            } else {
                Some(Arc::new(Resource::stated(
                    Arc::clone(name),
                    Version::UNKNOWN,
                )))
            }
        };
        let revise = |set: &ResourceSet, names: &BTreeSet<Arc<str>>| {
            let kept = set.iter().filter(|r| !names.contains(r.name())).cloned();
            Arc::new(
                names
                    .iter()
                    .filter_map(believed)
                    .chain(kept)
                    .collect::<ResourceSet>(),
            )
        };
        if !sent.whole {
            for later in &mut self.waiting {
                for resource in later.cargo.upserts() {
                    names.remove(resource.name());
                }
                for name in &later.cargo.removed {
                    names.remove(name);
                }
                later.set = revise(&later.set, &names);
            }
            names.retain(|name| interest.wants(name));
            self.held = revise(&self.held, &names);
        } else if self.waiting.is_empty() {
            // A later response would state everything anew.
            self.held = revise(&self.good, &names);
        }
    }
}

/// Returns whether an error message speaks of this name, as a word of its own.
fn mentions(message: &str, name: &str) -> bool {
    if name.is_empty() {
        return false;
    }
    message.match_indices(name).any(|(at, _)| {
        let before = message.get(..at).and_then(|text| text.chars().next_back());
        let mut after = message.get(at + name.len()..).unwrap_or_default().chars();
        let ends = |c: Option<char>| c.is_none_or(|c| c.is_whitespace() || ")]}'\"`,;".contains(c));
        let starts = before.is_none_or(|c| c.is_whitespace() || "([{'\"`,;=".contains(c));
        starts
            && match after.next() {
                Some('.' | ':') => ends(after.next()),
                other => ends(other),
            }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_mentions(message: &str, name: &str, expected: bool) {
        assert_eq!(mentions(message, name), expected, "{name:?} in {message:?}");
    }

    #[test]
    fn a_message_blames_whole_names_only() {
        let message =
            "Error adding/updating cluster(s) outbound|80||a.b: no such host, 'x y': bad.";
        check_mentions(message, "outbound|80||a.b", true);
        check_mentions(message, "outbound|80||a", false);
        check_mentions(message, "a.b", false);
        check_mentions(message, "x y", true);
        check_mentions(message, "bad", true);
        check_mentions(message, "cluster", false);
        check_mentions(message, "", false);
        check_mentions("0.0.0.0_80: rejected", "0.0.0.0_80", true);
        check_mentions("10.0.0.0_80: rejected", "0.0.0.0_80", false);
    }
}
