//! What a client rejected: finding the resources at fault, and holding them back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Delivery, Form, HeldBack, Sent};
use crate::nonce::Nonce;
use crate::{Interest, Refusal, Resource, ResourceSet, Version};

/// How many rejections in a row are answered by trying parts. Halving 200 000 suspects takes 18;
/// a client that goes on rejecting after that would reject anything.
const REJECTIONS_IN_A_ROW: u32 = 24;

/// How many rejected versions of one resource are remembered until another one is accepted.
const REJECTED_VERSIONS: usize = 4;

impl Delivery {
    /// Returns what stands for `target` while some versions are held back.
    pub(super) fn effective(&self, target: &Arc<ResourceSet>) -> Arc<ResourceSet> {
        if self.rejected.is_empty() && self.parked.is_empty() {
            return Arc::clone(target);
        }
        target.revise(|resource| match self.held_back(resource) {
            None => Some(Arc::clone(resource)),
            Some(held_back) if self.form == Form::Whole => held_back.instead.clone(),
            // Nothing is said about it.
            Some(_) => self.held.get(resource.name()).cloned(),
        })
    }

    /// Returns the reason why this version is not sent: it was rejected, or waits for its trial.
    pub(crate) fn held_back(&self, resource: &Resource) -> Option<&HeldBack> {
        let groups = std::iter::once(&self.rejected).chain(&self.parked);
        let mut same_name = groups.filter_map(|group| group.get(resource.name()));
        same_name.find(|held_back| held_back.versions.contains(&resource.version()))
    }

    /// Takes note of what the client has accepted.
    pub(super) fn take_as_good(&mut self, set: &ResourceSet) {
        let accepted = |name: &str| set.get(name).map(|resource| resource.version());
        self.rejected.retain(|name, held_back| {
            !accepted(name).is_some_and(|version| held_back.versions.contains(&version))
        });
        for (name, held_back) in self
            .rejected
            .iter_mut()
            .chain(self.parked.iter_mut().flatten())
        {
            // Once known it stays: what stands for the rejected version must not change with every
            // response that is still on its way.
            if held_back.instead.is_none() {
                held_back.instead = set.get(name).filter(|r| r.is_complete()).cloned();
            }
        }
    }

    fn hold_back(&self, resource: &Resource) -> (Arc<str>, HeldBack) {
        let name = Arc::clone(resource.name());
        let known = self
            .rejected
            .get(&name)
            .or_else(|| self.held_back(resource));
        let mut versions = known
            .map(|known| known.versions.clone())
            .unwrap_or_default();
        versions.retain(|version| *version != resource.version());
        versions.push(resource.version());
        if versions.len() > REJECTED_VERSIONS {
            versions.remove(0);
        }
        let instead = known.and_then(|known| known.instead.clone());
        let instead = instead.or_else(|| self.good.get(&name).cloned());
        let held_back = HeldBack {
            versions,
            refusal: None,
            instead,
        };
        (name, held_back)
    }

    /// Returns `goal`, and below it what the client holds and the target no longer has.
    pub(super) fn kept_under(&self, goal: &ResourceSet, target: &ResourceSet) -> Arc<ResourceSet> {
        let gone = self.held.iter().filter(|r| target.get(r.name()).is_none());
        let kept = gone.filter_map(|resource| match self.held_back(resource) {
            _ if self.form != Form::Whole => Some(resource),
            None => Some(resource).filter(|r| r.is_complete()),
            Some(held_back) => held_back.instead.as_ref().filter(|r| r.is_complete()),
        });
        Arc::new(goal.iter().chain(kept).cloned().collect())
    }

    /// Takes in a rejection and returns the resources that are held back because of it: none while
    /// the cause is still being looked for. `None` when no such response waits.
    pub(crate) fn reject(
        &mut self,
        nonce: &Nonce,
        message: &str,
        interest: &Interest,
        now: Instant,
    ) -> Option<Vec<Arc<Resource>>> {
        let index = self.waiting.iter().position(|sent| sent.nonce == *nonce)?;
        let sent = self.waiting.drain(..=index).next_back()?;
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
        } else if sent.tainted {
            Vec::new()
        } else {
            self.rejections = self.rejections.saturating_add(1);
            if suspects.len() == 1 || self.rejections > REJECTIONS_IN_A_ROW {
                suspects
            } else {
                let half = suspects.iter().skip(suspects.len() / 2);
                let half = half.map(|r| self.hold_back(r)).collect();
                self.parked.push_front(half);
                Vec::new()
            }
        };
        let refusal = Arc::new(Refusal {
            message: message.into(),
            root: Arc::clone(&sent.root),
            at: now,
        });
        let held_back: Vec<_> = culprits
            .iter()
            .map(|r| {
                let (name, mut held_back) = self.hold_back(r);
                held_back.refusal = Some(Arc::clone(&refusal));
                (name, held_back)
            })
            .collect();
        self.rejected.extend(held_back);
        if sent.whole {
            self.take_back_whole(&sent);
        } else {
            self.take_back_part(&sent, interest);
        }
        Some(culprits)
    }

    /// Takes back the belief that the client holds what a partial response carried, unless it was
    /// sent more of the same since.
    fn take_back_part(&mut self, sent: &Sent, interest: &Interest) {
        // Also what it had before: it was sent again because the client waits for it.
        let mut doubts: BTreeMap<Arc<str>, Doubt> = self.doubts(sent.cargo.upserts());
        doubts.extend(
            sent.cargo
                .removed
                .iter()
                .map(|name| (Arc::clone(name), Doubt::Unknown)),
        );
        let mut waiting = std::mem::take(&mut self.waiting);
        for later in &mut waiting {
            for resource in later.cargo.upserts() {
                doubts.remove(resource.name());
            }
            for name in &later.cargo.removed {
                doubts.remove(name);
            }
            later.set = unsure(&later.set, &doubts);
        }
        self.waiting = waiting;
        doubts.retain(|name, _| interest.wants(name));
        self.held = unsure(&self.held, &doubts);
    }

    /// Takes back the belief that the client holds what a whole response stated, unless a later one
    /// without anything that is held back is on its way.
    fn take_back_whole(&mut self, sent: &Sent) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for later in &mut waiting {
            later.tainted |= later
                .set
                .iter()
                .any(|resource| self.held_back(resource).is_some());
        }
        self.waiting = waiting;
        if self.waiting.back().is_none_or(|last| last.tainted) {
            let stated = self
                .waiting
                .iter()
                .map(|later| &later.set)
                .chain([&sent.set]);
            let unproved = |r: &&Arc<Resource>| self.good.get(r.name()) != Some(*r);
            let doubts = self.doubts(stated.flat_map(|set| set.iter().filter(unproved)));
            self.held = unsure(&self.good, &doubts);
            // What a client has from an earlier stream goes with the first response that it
            // accepts.
            self.owed |= self.acked.is_none();
        }
    }

    /// Returns what is not known of resources that were rejected together.
    ///
    /// The client has its last good version of what is held back. Of the rest it may have either
    /// version: Envoy applies what is fine in a response that it rejects.
    fn doubts<'a>(
        &self,
        resources: impl Iterator<Item = &'a Arc<Resource>>,
    ) -> BTreeMap<Arc<str>, Doubt> {
        let doubt = |resource: &Arc<Resource>| match self.rejected.get(resource.name()) {
            Some(held_back) if held_back.versions.contains(&resource.version()) => {
                Doubt::StandIn(held_back.instead.clone())
            }
            _ => Doubt::Unknown,
        };
        resources
            .map(|resource| (Arc::clone(resource.name()), doubt(resource)))
            .collect()
    }
}

/// Returns `set` with what is not known.
fn unsure(set: &ResourceSet, doubts: &BTreeMap<Arc<str>, Doubt>) -> Arc<ResourceSet> {
    let believed = doubts.iter().filter_map(|(name, doubt)| match doubt {
        Doubt::StandIn(resource) => resource.clone(),
        Doubt::Unknown => Some(Arc::new(Resource::stated(
            Arc::clone(name),
            Version::UNKNOWN,
        ))),
    });
    let kept = set
        .iter()
        .filter(|r| !doubts.contains_key(r.name()))
        .cloned();
    Arc::new(believed.chain(kept).collect())
}

/// What a client holds instead of a resource that it was sent in vain.
#[derive(Debug)]
enum Doubt {
    /// What it had accepted before, if anything.
    StandIn(Option<Arc<Resource>>),
    /// Any version, or none.
    Unknown,
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
