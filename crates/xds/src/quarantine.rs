//! Finding the object behind a rejected resource, and setting it aside for one class.
//!
//! Holding a rejected version back protects one resource, but an object that reaches into many
//! resources would hold them all back, and with them every later change. So the objects that the
//! resource was built from are tried one after the other: the class is built without the suspect.
//! If that gives the version that the client had accepted before, or one that it accepts now, the
//! suspect is proved to be the cause and stays aside until it changes. If the client rejects that
//! too, the suspect is innocent and comes back.
//!
//! A class is the widest that one client's word reaches: what a hostile proxy can have set aside,
//! it loses itself. Which kinds of objects may be set aside at all, the world decides.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::{Resource, ResourceSet, Source, Version};

/// How many suspects a class tries between two publications. Each trial builds the class anew, and
/// a client that rejects everything must not keep the server busy.
const TRIALS: usize = 8;

/// How many rejected resources wait for the trial that is going on. More of the same push most
/// likely have the same cause.
const WAITING_CASES: usize = 8;

/// What one class sets aside, and the trial that is going on.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    proved: BTreeMap<Source, SetAside>,
    trial: Option<Trial>,
    waiting: VecDeque<Case>,
    trials: usize,
    /// What is aside has changed, and the class is not yet built so.
    behind: bool,
    /// The publication from which on the class is built with what is aside now.
    since: u64,
    /// The last publication in which something came back by itself.
    back: u64,
}

/// An object that was proved to be the cause of a rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetAside {
    /// The object.
    pub source: Source,
    /// The type of the resource that was rejected because of it.
    pub type_url: Arc<str>,
    /// The name of that resource.
    pub resource: Arc<str>,
    /// What the client said of it.
    pub message: Arc<str>,
}

/// A rejected resource whose cause is not known.
#[derive(Debug)]
struct Case {
    type_url: Arc<str>,
    name: Arc<str>,
    message: Arc<str>,
    rejected: Version,
    suspects: VecDeque<Source>,
}

/// One suspect is aside, to see what happens.
#[derive(Debug)]
struct Trial {
    case: Case,
    suspect: Source,
    phase: Phase,
}

/// How far a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The class has to be built without the suspect.
    Ordered,
    /// From this publication on it is.
    Building { since: u64 },
    /// Without the suspect the resource has this version, and the client has not said what it
    /// thinks of it.
    Asked { version: Version },
}

/// What has to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Next {
    /// Nothing.
    Nothing,
    /// What is aside has changed: the class must be built again, see [`Quarantine::rebuilt`].
    Rebuild,
    /// An object is proved to be the cause. Nothing has to be built.
    Proved(SetAside),
}

impl Quarantine {
    /// Returns what is aside, proved or on trial.
    pub(crate) fn aside(&self) -> BTreeSet<Source> {
        let trial = self.trial.as_ref().map(|trial| &trial.suspect);
        self.proved.keys().chain(trial).cloned().collect()
    }

    /// Returns what is proved.
    pub(crate) fn proved(&self) -> impl Iterator<Item = &SetAside> {
        self.proved.values()
    }

    /// Returns what is aside to see what happens.
    pub(crate) fn suspect(&self) -> Option<&Source> {
        self.trial.as_ref().map(|trial| &trial.suspect)
    }

    /// Returns the publication from which on the class is built with what is aside now: sets of before
    /// lack something else. `None` until it is.
    pub(crate) fn since(&self) -> Option<u64> {
        (!self.behind).then_some(self.since)
    }

    /// Returns the publication from which on the class is built with everything there is. `None` while
    /// something is aside.
    pub(crate) fn whole_since(&self) -> Option<u64> {
        let nothing_aside = self.proved.is_empty() && self.trial.is_none();
        let since = self.since().filter(|_| nothing_aside);
        since.map(|since| since.max(self.back))
    }

    /// Returns whether a trial is going on.
    pub(crate) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Takes in that a client rejected a version of a resource. `accepted` is the version that it
    /// had accepted before, `message` what it said.
    pub(crate) fn on_rejected(
        &mut self,
        type_url: &Arc<str>,
        rejected: &Resource,
        accepted: Option<&Resource>,
        message: &Arc<str>,
    ) -> Next {
        let next = self.try_rejected(type_url, rejected, accepted, message);
        self.note(next)
    }

    fn note(&mut self, next: Next) -> Next {
        self.behind |= next == Next::Rebuild;
        next
    }

    fn try_rejected(
        &mut self,
        type_url: &Arc<str>,
        rejected: &Resource,
        accepted: Option<&Resource>,
        message: &Arc<str>,
    ) -> Next {
        if let Some(trial) = &self.trial {
            let about = trial.case.type_url == *type_url && trial.case.name == *rejected.name();
            return match trial.phase {
                Phase::Asked { version } if about && version == rejected.version() => {
                    self.next_suspect()
                }
                _ => {
                    if !about && self.waiting.len() < WAITING_CASES {
                        self.waiting
                            .push_back(Case::new(type_url, rejected, accepted, message));
                    }
                    Next::Nothing
                }
            };
        }
        self.waiting
            .push_back(Case::new(type_url, rejected, accepted, message));
        self.next_case()
    }

    /// Takes in that the class is built with what is aside now, from this publication on.
    pub(crate) fn rebuilt(&mut self, since: u64) {
        self.behind = false;
        self.since = since;
        if let Some(Trial {
            phase: phase @ Phase::Ordered,
            ..
        }) = &mut self.trial
        {
            *phase = Phase::Building { since };
        }
    }

    /// Takes in what the class has of a type in publication `seq`. `accepted` tells which version
    /// of a resource the client has accepted.
    pub(crate) fn on_built(
        &mut self,
        type_url: &str,
        seq: u64,
        set: &ResourceSet,
        accepted: impl FnOnce(&str) -> Option<Version>,
    ) -> Next {
        let Some(trial) = self
            .trial
            .as_mut()
            .filter(|trial| *trial.case.type_url == *type_url)
        else {
            return Next::Nothing;
        };
        match trial.phase {
            Phase::Building { since } if since <= seq => {}
            _ => return Next::Nothing,
        }
        match set.get(&trial.case.name).map(|resource| resource.version()) {
            Some(version) if accepted(&trial.case.name) == Some(version) => {
                let next = self.prove();
                self.note(next)
            }
            Some(version) if version != trial.case.rejected => {
                trial.phase = Phase::Asked { version };
                Next::Nothing
            }
            // It makes no difference, or the resource goes with it: then nothing is gained.
            Some(_) | None => {
                let next = self.next_suspect();
                self.note(next)
            }
        }
    }

    /// Takes in that a client accepted a response of a type; `accepted` as above.
    pub(crate) fn on_accepted(
        &mut self,
        type_url: &str,
        accepted: impl FnOnce(&str) -> Option<Version>,
    ) -> Next {
        match &self.trial {
            Some(Trial {
                case,
                phase: Phase::Asked { version },
                ..
            }) if *case.type_url == *type_url && accepted(&case.name) == Some(*version) => {
                let next = self.prove();
                self.note(next)
            }
            _ => Next::Nothing,
        }
    }

    /// Takes in publication `seq`: what `changed` is no longer aside, and suspects can be tried again.
    /// Returns whether anything came back.
    pub(crate) fn on_published(&mut self, seq: u64, changed: impl Fn(&Source) -> bool) -> bool {
        self.trials = 0;
        let before = self.proved.len();
        self.proved.retain(|source, _| !changed(source));
        let trial = self.trial.take_if(|trial| changed(&trial.suspect));
        let back = before != self.proved.len() || trial.is_some();
        if back {
            self.back = seq;
        }
        back
    }

    fn prove(&mut self) -> Next {
        let Some(Trial { case, suspect, .. }) = self.trial.take() else {
            return Next::Nothing;
        };
        let proved = SetAside {
            source: Arc::clone(&suspect),
            type_url: case.type_url,
            resource: case.name,
            message: case.message,
        };
        self.proved.insert(suspect, proved.clone());
        // Most likely they were rejected for the same reason; if not, they will be again.
        self.waiting.clear();
        Next::Proved(proved)
    }

    /// The suspect is innocent: the next one of the case, or the next case.
    fn next_suspect(&mut self) -> Next {
        if let Some(trial) = self.trial.take() {
            self.waiting.push_front(trial.case);
        }
        match self.next_case() {
            // The innocent one has to come back.
            Next::Nothing => Next::Rebuild,
            next => next,
        }
    }

    fn next_case(&mut self) -> Next {
        while let Some(mut case) = self.waiting.pop_front() {
            if self.trials >= TRIALS {
                self.waiting.clear();
                break;
            }
            let suspect = std::iter::from_fn(|| case.suspects.pop_front())
                .find(|suspect| !self.proved.contains_key(suspect));
            if let Some(suspect) = suspect {
                self.trials += 1;
                self.trial = Some(Trial {
                    case,
                    suspect,
                    phase: Phase::Ordered,
                });
                return Next::Rebuild;
            }
        }
        Next::Nothing
    }
}

impl Case {
    fn new(
        type_url: &Arc<str>,
        rejected: &Resource,
        accepted: Option<&Resource>,
        message: &Arc<str>,
    ) -> Self {
        // What was not there when the client accepted it comes first.
        let old: BTreeSet<&Source> = accepted.iter().flat_map(|r| r.sources().iter()).collect();
        let (known, new): (Vec<&Source>, Vec<&Source>) = rejected
            .sources()
            .iter()
            .partition(|source| old.contains(source));
        Self {
            type_url: Arc::clone(type_url),
            name: Arc::clone(rejected.name()),
            message: Arc::clone(message),
            rejected: rejected.version(),
            suspects: new.into_iter().chain(known).cloned().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LDS: &str = "lds";

    fn resource(body: &str, sources: &[&str]) -> Resource {
        let sources: Vec<Source> = sources.iter().map(|source| Source::from(*source)).collect();
        Resource::new("l", body.as_bytes().to_vec()).with_sources(sources)
    }

    fn set(resource: &Resource) -> ResourceSet {
        std::iter::once(resource.clone()).collect()
    }

    fn aside(quarantine: &Quarantine) -> Vec<String> {
        quarantine.aside().iter().map(ToString::to_string).collect()
    }

    fn proved(source: &str) -> Next {
        let (type_url, resource) = (LDS.into(), "l".into());
        Next::Proved(SetAside {
            source: source.into(),
            type_url,
            resource,
            message: "bad".into(),
        })
    }

    /// Starts with a client that accepted `l1` of listener `l` and rejected `l2`.
    fn rejected() -> (Quarantine, Resource) {
        let mut quarantine = Quarantine::default();
        let good = resource("l1", &["L", "A"]);
        let bad = resource("l2", &["A", "F", "L"]);
        assert_eq!(
            quarantine.on_rejected(&LDS.into(), &bad, Some(&good), &"bad".into()),
            Next::Rebuild
        );
        (quarantine, good)
    }

    #[test]
    fn what_is_new_is_suspected_first_and_proved_by_the_accepted_version() {
        let (mut quarantine, good) = rejected();
        assert_eq!(aside(&quarantine), ["F"]);
        quarantine.rebuilt(7);
        let accepted = |_: &str| Some(good.version());
        assert_eq!(
            quarantine.on_built(LDS, 6, &set(&good), accepted),
            Next::Nothing
        );
        assert_eq!(
            quarantine.on_built("cds", 7, &set(&good), accepted),
            Next::Nothing
        );
        assert_eq!(
            quarantine.on_built(LDS, 7, &set(&good), accepted),
            proved("F")
        );
        assert_eq!(aside(&quarantine), ["F"]);
    }

    #[test]
    fn sets_of_before_are_known_to_lack_something_else() {
        assert_eq!(Quarantine::default().since(), Some(0));
        let (mut quarantine, good) = rejected();
        assert_eq!(quarantine.since(), None, "F is aside, and not yet out");
        quarantine.rebuilt(7);
        assert_eq!(quarantine.since(), Some(7));
        let old = |_: &str| Some(good.version());
        let same = resource("l2", &["A", "F", "L"]);
        let next = quarantine.on_built(LDS, 7, &set(&same), old);
        assert_eq!(next, Next::Rebuild);
        assert_eq!(quarantine.since(), None, "F comes back, A goes");
        quarantine.rebuilt(8);
        let next = quarantine.on_built(LDS, 8, &set(&good), old);
        assert_eq!(next, proved("A"));
        assert_eq!(quarantine.since(), Some(8), "A stays aside");
    }

    #[test]
    fn a_new_version_is_put_to_the_client() {
        let (mut quarantine, good) = rejected();
        quarantine.rebuilt(7);
        let without = resource("l3", &["A", "L"]);
        let old = |_: &str| Some(good.version());
        assert_eq!(
            quarantine.on_built(LDS, 7, &set(&without), old),
            Next::Nothing
        );
        assert_eq!(quarantine.on_accepted(LDS, old), Next::Nothing);
        let new = |_: &str| Some(without.version());
        assert_eq!(quarantine.on_accepted(LDS, new), proved("F"));
    }

    #[test]
    fn the_innocent_come_back() {
        let (mut quarantine, good) = rejected();
        let old = |_: &str| Some(good.version());
        quarantine.rebuilt(7);
        let without_f = resource("l3", &["A", "L"]);
        assert_eq!(
            quarantine.on_built(LDS, 7, &set(&without_f), old),
            Next::Nothing
        );
        let next = quarantine.on_rejected(&LDS.into(), &without_f, Some(&good), &"bad".into());
        assert_eq!(
            (next, aside(&quarantine)),
            (Next::Rebuild, vec!["A".to_owned()])
        );
        // Without A nothing changes, and without L there is no listener.
        quarantine.rebuilt(8);
        let same = resource("l2", &["A", "F", "L"]);
        let next = quarantine.on_built(LDS, 8, &set(&same), old);
        assert_eq!(
            (next, aside(&quarantine)),
            (Next::Rebuild, vec!["L".to_owned()])
        );
        quarantine.rebuilt(9);
        let next = quarantine.on_built(LDS, 9, &ResourceSet::default(), old);
        assert_eq!((next, aside(&quarantine)), (Next::Rebuild, Vec::new()));
        assert!(!quarantine.is_trying());
    }

    #[test]
    fn what_changes_is_no_longer_aside() {
        let (mut quarantine, good) = rejected();
        quarantine.rebuilt(7);
        let old = |_: &str| Some(good.version());
        assert_eq!(quarantine.on_built(LDS, 7, &set(&good), old), proved("F"));
        assert!(!quarantine.on_published(8, |source| &**source == "A"));
        assert_eq!(quarantine.whole_since(), None);
        assert!(quarantine.on_published(9, |source| &**source == "F"));
        assert!(aside(&quarantine).is_empty());
        assert_eq!(quarantine.whole_since(), Some(9), "before it lacked F");
    }

    #[test]
    fn endless_rejection_is_not_answered_by_endless_trials() {
        let mut quarantine = Quarantine::default();
        let mut rebuilds = 0;
        for number in 0..100 {
            let bad = resource(&format!("l{number}"), &["A", "B", "C"]);
            let mut next = quarantine.on_rejected(&LDS.into(), &bad, None, &"bad".into());
            while next == Next::Rebuild {
                rebuilds += 1;
                quarantine.rebuilt(rebuilds);
                next = quarantine.on_built(LDS, rebuilds, &set(&bad), |_| None);
            }
        }
        assert!(rebuilds < 12, "{rebuilds}");
    }
}
