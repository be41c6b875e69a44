//! Who has what: questions about the distribution of a change.
//!
//! A [`Survey`] is one look at all connections. Those that stand alike (the same sets, the same
//! accepted content) are one group, so that a question is answered once for each group, not once for
//! each connection. What is kept while nobody asks is an index from objects to the resources that are
//! built from them; it is brought up to date when sets are built, at the cost of what changed.
//!
//! The answers are about content, not about traffic. A client has a change when it has accepted the
//! whole content of a publication that has the change in it, or when what it has accepted equals, in
//! everything that is built from the changed object, what it ought to hold. It is never said to
//! have what is only on its way.

mod gone;
mod provenance;
mod simulated;
mod standing;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::class::{ClassCell, SharedSet};
use crate::observer::StreamInfo;
use crate::server::{Hub, Link};
use crate::status::{HeldBackResource, Refusal};
use crate::{ResourceSet, Server, Source, World};

pub use gone::Departed;
pub(crate) use gone::Gone;
pub(crate) use provenance::Provenance;
pub use simulated::Simulated;
pub use standing::{ProxyStanding, Summary, TypeStanding};

/// What a question is about.
pub enum Matter<'a, W: World> {
    /// Objects that resources name as their sources: it matters to clients that hold, or ought to
    /// hold, a resource that is built from any of them.
    Objects(&'a [Source]),
    /// Something that resources do not name: it matters to these clients, with all that they hold.
    Clients(&'a (dyn Fn(&W::Client) -> bool + Sync)),
    /// Something that decides what a class sees, and is named by no resource: it matters to the
    /// clients of these classes, with all that they hold.
    Classes(&'a (dyn Fn(&W::Class) -> Concern + Sync)),
}

/// Whether something matters to a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Concern {
    /// It does not, and never did.
    None,
    /// It does not, but may have: what its clients are yet to accept may be the end of it. They are
    /// undecided until they have accepted everything.
    Former,
    /// It does.
    Present,
}

/// A question about the distribution of a change.
pub struct Question<'a, W: World> {
    /// What was changed.
    pub matter: Matter<'a, W>,
    /// The number of the publication that has the change in it. Content is from that one or newer.
    pub since: u64,
}

/// How a client stands to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has accepted it.
    Has {
        /// When it accepted what it has now; `None` when it had it when it came.
        since: Option<Instant>,
    },
    /// It has yet to accept it.
    Pending {
        /// Since when a response waits for its answer; `None` when none was sent yet.
        since: Option<Instant>,
        /// The types of which it lacks something.
        types: Vec<Arc<str>>,
    },
    /// What it ought to hold has not been worked out yet: the change may not matter to it.
    Undecided,
    /// It has rejected it.
    Refused {
        /// The type of what was rejected.
        type_url: Arc<str>,
        /// The names of the resources that it does without.
        resources: Vec<Arc<str>>,
        /// What it said; `None` when another client of its class did and the object is set aside for
        /// the class.
        refusal: Option<Arc<Refusal>>,
        /// The message alone.
        message: Arc<str>,
    },
}

/// One client to which a change matters.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Standing {
    /// Its stream.
    pub stream: StreamInfo,
    /// How it stands.
    pub state: State,
    /// The root of the state of the world that it acknowledged last, of the type that it lacks
    /// something of; `None` when it lacks nothing or has acknowledged nothing.
    pub root: Option<Arc<str>>,
    /// The roots of the states of the world whose content it holds for certain, of each type that it
    /// lacks something of. Empty when that is not known: something else is on its way, or what it
    /// holds was built without an object that is aside.
    pub holds: Vec<Arc<str>>,
}

/// How many clients stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Clients that have the change.
    pub has: usize,
    /// Clients that have yet to accept it.
    pub pending: usize,
    /// Clients to which it may matter.
    pub undecided: usize,
    /// Clients that have rejected it.
    pub refused: usize,
    /// When the last of those that have it accepted what they have now.
    pub last: Option<Instant>,
}

impl Tally {
    /// Returns the number of clients to which the change is known to matter.
    pub fn required(&self) -> usize {
        self.has + self.pending + self.refused
    }

    /// Returns whether every client has said yes or no.
    pub fn is_complete(&self) -> bool {
        self.pending == 0 && self.undecided == 0
    }
}

/// One look at all connections.
pub struct Survey<W: World> {
    hub: Arc<Hub<W>>,
    groups: Vec<Group<W>>,
    connected: usize,
}

/// Connections that stand alike.
struct Group<W: World> {
    cell: Arc<ClassCell<W>>,
    /// What they follow is not (yet) that of the class they belong to.
    moved: bool,
    types: Vec<Followed<W>>,
    members: Vec<Arc<Link<W>>>,
}

/// One type that a group follows.
struct Followed<W: World> {
    type_url: Arc<str>,
    set: Arc<SharedSet<W>>,
    good: Arc<ResourceSet>,
    /// What they may hold instead.
    unsure: Vec<Arc<ResourceSet>>,
    /// The last publication whose whole content was accepted.
    settled: u64,
    /// The root of that publication while nothing else was accepted since.
    root: Option<Arc<str>>,
    tells_removals: bool,
    held_back: Vec<HeldBackResource>,
}

/// How a group stands, and the places of the types that decided it.
enum Verdict {
    Nothing,
    Has,
    Undecided,
    Pending(Vec<usize>),
    Refused(usize, State),
}

impl<W: World> Server<W> {
    /// Looks at all connections.
    pub fn survey(&self) -> Survey<W> {
        Survey::of(self.hub())
    }
}

impl<W: World> Survey<W> {
    fn of(hub: &Arc<Hub<W>>) -> Self {
        let links: Vec<Arc<Link<W>>> = hub.links.lock().values().cloned().collect();
        let connected = links.len();
        let mut groups: Vec<Group<W>> = Vec::new();
        let mut known: HashMap<Box<[usize]>, usize> = HashMap::new();
        let mut key = Vec::new();
        for link in links {
            let state = link.state.lock();
            key.clear();
            key.push(Arc::as_ptr(&state.cell).addr());
            for (set, status) in followed(hub, &state.sets, &state.subscriptions) {
                let standing = &status.standing;
                let settled = settled(set, status);
                key.extend([
                    Arc::as_ptr(set).addr(),
                    Arc::as_ptr(&standing.good).addr(),
                    usize::try_from(settled).unwrap_or(usize::MAX),
                    usize::from(standing.tells_removals),
                    usize::from(standing.settled.root.is_some()),
                ]);
                let unsure = standing.unsure.iter();
                key.extend(unsure.map(|set| Arc::as_ptr(set).addr()));
                if !status.held_back.is_empty() {
                    // It has a story of its own.
                    key.push(Arc::as_ptr(&link).addr());
                }
            }
            let at = known.get(&key[..]).copied().unwrap_or_else(|| {
                let types = followed(hub, &state.sets, &state.subscriptions);
                let group = Group {
                    cell: Arc::clone(&state.cell),
                    moved: state
                        .sets
                        .iter()
                        .any(|set| !Arc::ptr_eq(set.cell(), &state.cell)),
                    types: types
                        .map(|(set, status)| Followed {
                            type_url: Arc::clone(&status.type_url),
                            set: Arc::clone(set),
                            good: Arc::clone(&status.standing.good),
                            unsure: status.standing.unsure.clone(),
                            settled: settled(set, status),
                            root: status.standing.settled.root.clone(),
                            tells_removals: status.standing.tells_removals,
                            held_back: status.held_back.clone(),
                        })
                        .collect(),
                    members: Vec::new(),
                };
                groups.push(group);
                known.insert(key.as_slice().into(), groups.len() - 1);
                groups.len() - 1
            });
            drop(state);
            if let Some(group) = groups.get_mut(at) {
                group.members.push(link);
            }
        }
        hub.provenance.lock().update(&hub.classes.live());
        Self {
            hub: Arc::clone(hub),
            groups,
            connected,
        }
    }

    /// Returns the number of connections.
    pub fn connected(&self) -> usize {
        self.connected
    }

    /// Counts the clients that stand so or so to a change.
    pub fn tally(&self, question: &Question<'_, W>) -> Tally {
        let mut tally = Tally::default();
        let named = self.named(question);
        for group in &self.groups {
            let concerned = group.concerned(question);
            if concerned.is_empty() {
                continue;
            }
            let count = concerned.len();
            match group.judge(question, &named) {
                Verdict::Nothing => {}
                Verdict::Undecided => tally.undecided += count,
                Verdict::Pending(_) => tally.pending += count,
                Verdict::Refused(..) => tally.refused += count,
                Verdict::Has => {
                    tally.has += count;
                    let last = concerned.iter().filter_map(|link| accepted_at(link)).max();
                    tally.last = tally.last.max(last);
                }
            }
        }
        tally
    }

    /// Returns the clients to which a change matters or may matter, in order of stream numbers.
    pub fn standings(&self, question: &Question<'_, W>) -> Vec<Standing> {
        let mut standings = Vec::new();
        let named = self.named(question);
        for group in &self.groups {
            let concerned = group.concerned(question);
            let verdict = match concerned.first() {
                None => Verdict::Nothing,
                Some(_) => group.judge(question, &named),
            };
            if matches!(verdict, Verdict::Nothing) {
                continue;
            }
            for link in concerned {
                standings.push(group.standing_of(link, &verdict));
            }
        }
        standings.sort_by_key(|standing| standing.stream.id);
        standings
    }

    /// Returns the resources that are built from the objects of a question, for each type.
    fn named(&self, question: &Question<'_, W>) -> provenance::Found {
        match question.matter {
            Matter::Objects(objects) => self.hub.provenance.lock().find(objects),
            Matter::Clients(_) | Matter::Classes(_) => provenance::Found::default(),
        }
    }
}

/// Pairs the sets that a connection follows with what it said about them.
fn followed<'a, W: World>(
    hub: &Hub<W>,
    sets: &'a [Arc<SharedSet<W>>],
    statuses: &'a [crate::SubscriptionStatus],
) -> impl Iterator<Item = (&'a Arc<SharedSet<W>>, &'a crate::SubscriptionStatus)> {
    let types = hub.registry.types();
    let mut at = 0;
    sets.iter().filter_map(move |set| {
        let type_url = types.get(set.type_index())?.type_url();
        // Both are in push order; a type that nobody serves has no set.
        let mut rest = statuses.get(at..)?.iter();
        let ahead = rest.position(|status| *status.type_url == *type_url)?;
        at += ahead + 1;
        Some((set, statuses.get(at - 1)?))
    })
}

/// Returns the last publication whose whole content was accepted, as far as it was asked for.
fn settled<W: World>(set: &SharedSet<W>, status: &crate::SubscriptionStatus) -> u64 {
    if set.interest().is_same(&status.interest) {
        status.standing.settled.seq
    } else {
        0
    }
}

/// Returns when a client accepted what it has, of the type that came last.
fn accepted_at<W: World>(link: &Link<W>) -> Option<Instant> {
    let state = link.state.lock();
    let times = state.subscriptions.iter();
    times.filter_map(|s| s.standing.settled.at).max()
}

/// How one type of a group stands to a change.
enum Part {
    Nothing,
    Has,
    Undecided,
    Lacks,
    Refused(State),
}

impl<W: World> Group<W> {
    /// Returns the members that a question can be about.
    fn concerned(&self, question: &Question<'_, W>) -> Vec<&Arc<Link<W>>> {
        let members = self.members.iter();
        match question.matter {
            Matter::Objects(_) | Matter::Classes(_) => members.collect(),
            Matter::Clients(concerns) => members.filter(|link| concerns(&link.client)).collect(),
        }
    }

    fn judge(&self, question: &Question<'_, W>, named: &provenance::Found) -> Verdict {
        let concern = match question.matter {
            Matter::Classes(concerns) => concerns(self.cell.class()),
            Matter::Objects(_) | Matter::Clients(_) => Concern::Present,
        };
        if concern == Concern::None {
            return Verdict::Nothing;
        }
        let verdict = self.judge_present(question, named);
        match verdict {
            Verdict::Pending(_) | Verdict::Undecided if concern == Concern::Former => {
                Verdict::Undecided
            }
            _ if concern == Concern::Former => Verdict::Nothing,
            verdict => verdict,
        }
    }

    /// Judges what matters to the class.
    fn judge_present(&self, question: &Question<'_, W>, named: &provenance::Found) -> Verdict {
        if let Some(aside) = self.aside(question) {
            return aside;
        }
        let (mut has, mut undecided) = (false, self.moved);
        let mut lacking = Vec::new();
        for (at, followed) in self.types.iter().enumerate() {
            match followed.judge(question, named) {
                Part::Nothing => {}
                Part::Has => has = true,
                Part::Undecided => undecided = true,
                Part::Lacks => lacking.push(at),
                Part::Refused(state) => return Verdict::Refused(at, state),
            }
        }
        match question.matter {
            _ if !lacking.is_empty() => Verdict::Pending(lacking),
            // What it has of one type does not tell what the others are going to be.
            _ if undecided && has => Verdict::Pending(Vec::new()),
            Matter::Clients(_) | Matter::Classes(_) if undecided => Verdict::Pending(Vec::new()),
            Matter::Objects(_) if undecided => Verdict::Undecided,
            Matter::Objects(_) if has => Verdict::Has,
            Matter::Objects(_) => Verdict::Nothing,
            Matter::Clients(_) | Matter::Classes(_) => Verdict::Has,
        }
    }

    /// Returns how the class stands to an object that it does without, for good or to see what happens.
    fn aside(&self, question: &Question<'_, W>) -> Option<Verdict> {
        let Matter::Objects(objects) = question.matter else {
            return None;
        };
        let quarantine = self.cell.quarantine.lock();
        let mut proved = quarantine.proved();
        let Some(proved) = proved.find(|aside| objects.contains(&aside.source)) else {
            // One that is on trial may come back.
            let on_trial = quarantine.suspect().filter(|s| objects.contains(s));
            // And until the class is built with what is aside now, it is not known what it lacks.
            let open = on_trial.is_some() || quarantine.since().is_none();
            return open.then(|| Verdict::Pending(Vec::new()));
        };
        let state = State::Refused {
            type_url: Arc::clone(&proved.type_url),
            resources: vec![Arc::clone(&proved.resource)],
            refusal: None,
            message: Arc::clone(&proved.message),
        };
        Some(Verdict::Refused(0, state))
    }

    fn standing_of(&self, link: &Link<W>, verdict: &Verdict) -> Standing {
        let mut holds = Vec::new();
        let (state, root) = match verdict {
            Verdict::Nothing | Verdict::Undecided => (State::Undecided, None),
            Verdict::Has => (
                State::Has {
                    since: accepted_at(link),
                },
                None,
            ),
            Verdict::Refused(at, state) => {
                let type_url = self.types.get(*at).map(|followed| &followed.type_url);
                (state.clone(), type_url.and_then(|url| root_of(link, url).0))
            }
            Verdict::Pending(lacking) => {
                let lacking = lacking.iter().filter_map(|at| self.types.get(*at));
                let certain: Option<Vec<_>> = lacking.clone().map(Followed::certain).collect();
                holds = certain.unwrap_or_default();
                let types: Vec<Arc<str>> = lacking.map(|f| Arc::clone(&f.type_url)).collect();
                let roots = types.iter().map(|url| root_of(link, url));
                let (roots, since): (Vec<_>, Vec<_>) = roots.unzip();
                let since = since.into_iter().flatten().min();
                let root = roots.into_iter().next().flatten();
                (State::Pending { since, types }, root)
            }
        };
        Standing {
            stream: link.info.clone(),
            state,
            root,
            holds,
        }
    }
}

/// Returns the root that a client acknowledged last, of a type, and since when it owes an answer.
fn root_of<W: World>(link: &Link<W>, type_url: &str) -> (Option<Arc<str>>, Option<Instant>) {
    let state = link.state.lock();
    let status = state.subscriptions.iter();
    let status = status.filter(|s| *s.type_url == *type_url);
    let mut both = status.map(|s| (s.root_acked(), s.standing.waits_since));
    both.next().unwrap_or_default()
}

impl<W: World> Followed<W> {
    fn judge(&self, question: &Question<'_, W>, named: &provenance::Found) -> Part {
        let aside_since = self.set.cell().quarantine.lock().since();
        let since = question.since.max(aside_since.unwrap_or_default());
        let settled = self.settled >= since;
        let Some((target, covers)) = self.set.newest(since) else {
            return Part::Undecided;
        };
        let objects = match question.matter {
            Matter::Objects(objects) => objects,
            Matter::Clients(_) | Matter::Classes(_) => {
                return match self.held_back.iter().find(|r| r.refusal.is_some()) {
                    Some(first) => Part::Refused(self.refused(&[first])),
                    None if settled => Part::Has,
                    None if !covers => Part::Undecided,
                    None if self.lacks(&target, |_| true) => Part::Lacks,
                    None => Part::Has,
                };
            }
        };
        let from =
            |resource: &crate::Resource| objects.iter().any(|o| resource.sources().contains(o));
        let refused: Vec<&HeldBackResource> = self
            .held_back
            .iter()
            .filter(|r| r.refusal.is_some() && target.get(&r.name).is_some_and(|r| from(r)))
            .collect();
        let relevant = || {
            let names = named.of_type(self.set.type_index());
            names
                .filter_map(|name| target.get(name))
                .any(|resource| from(resource))
        };
        if !refused.is_empty() {
            Part::Refused(self.refused(&refused))
        } else if settled {
            if relevant() { Part::Has } else { Part::Nothing }
        } else if !covers {
            if relevant() {
                Part::Lacks
            } else {
                Part::Undecided
            }
        } else if self.lacks(&target, from) {
            Part::Lacks
        } else if relevant() {
            Part::Has
        } else {
            Part::Nothing
        }
    }

    /// Returns whether what was accepted, or may be held instead, differs from `target` in a
    /// resource that counts.
    fn lacks(&self, target: &Arc<ResourceSet>, counts: impl Fn(&crate::Resource) -> bool) -> bool {
        let gone = |name: &str| self.tells_removals && self.set.interest().wants(name);
        let differs = |held: &Arc<ResourceSet>| {
            let diff = target.diff_from(held);
            // Of what a client stated only the version is known; what stands there now tells more.
            let counted = |name: &str| {
                let sets = [held, &self.good].into_iter();
                sets.filter_map(|set| set.get(name)).any(|r| counts(r))
            };
            diff.upserts().any(|new| counts(new) || counted(new.name()))
                || diff.removed.iter().any(|name| gone(name) && counted(name))
        };
        std::iter::once(&self.good).chain(&self.unsure).any(differs)
    }

    /// Returns the root of the state of the world whose content is held, if that is certain.
    fn certain(&self) -> Option<Arc<str>> {
        let whole_since = self.set.cell().quarantine.lock().whole_since();
        let is_whole = whole_since.is_some_and(|since| self.settled >= since);
        let is_whole = is_whole && self.settled > 0 && self.unsure.is_empty();
        self.root.clone().filter(|_| is_whole)
    }

    fn refused(&self, resources: &[&HeldBackResource]) -> State {
        let refusal = resources.iter().find_map(|r| r.refusal.clone());
        State::Refused {
            type_url: Arc::clone(&self.type_url),
            resources: resources.iter().map(|r| Arc::clone(&r.name)).collect(),
            message: refusal
                .as_ref()
                .map(|refusal| Arc::clone(&refusal.message))
                .unwrap_or_default(),
            refusal,
        }
    }
}

impl<W: World> fmt::Debug for Matter<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects(objects) => f.debug_tuple("Objects").field(objects).finish(),
            Self::Clients(_) => f.write_str("Clients"),
            Self::Classes(_) => f.write_str("Classes"),
        }
    }
}

impl<W: World> fmt::Debug for Question<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question")
            .field("matter", &self.matter)
            .field("since", &self.since)
            .finish()
    }
}

impl<W: World> fmt::Debug for Survey<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survey")
            .field("connected", &self.connected)
            .field("groups", &self.groups.len())
            .finish_non_exhaustive()
    }
}
