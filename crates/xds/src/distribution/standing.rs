//! What one client has and what it lacks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Followed, Group, Survey, root_of};
use crate::observer::StreamInfo;
use crate::status::HeldBackResource;
use crate::{Resource, Server, World};

/// What one client has and what it lacks.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProxyStanding {
    /// Its stream.
    pub stream: StreamInfo,
    /// The types that it asked for, in push order.
    pub types: Vec<TypeStanding>,
}

/// What one client has and lacks of one type.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TypeStanding {
    /// The type URL.
    pub type_url: Arc<str>,
    /// The root of the state of the world that it acknowledged last.
    pub root: Option<Arc<str>>,
    /// How many resources it ought to hold.
    pub resources: usize,
    /// Whether what it ought to hold is being worked out.
    pub undecided: bool,
    /// The resources that it ought to hold and has not accepted, or only in another version, in order
    /// of names.
    pub lacks: Vec<Arc<Resource>>,
    /// Names of the resources that it has accepted and ought to drop.
    pub obsolete: Vec<Arc<str>>,
    /// Resources that it rejected, or that are suspected to be why it rejected a response.
    pub held_back: Vec<HeldBackResource>,
    /// Since when a response waits for its answer.
    pub waits_since: Option<Instant>,
    /// When it accepted what it has.
    pub accepted_at: Option<Instant>,
}

impl TypeStanding {
    /// Returns whether it has all that it ought to hold.
    pub fn is_current(&self) -> bool {
        !self.undecided && self.lacks.is_empty() && self.obsolete.is_empty()
    }
}

/// All clients in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Connected clients.
    pub connected: usize,
    /// Those that have accepted everything that they ought to hold.
    pub current: usize,
}

impl<W: World> Server<W> {
    /// Counts the clients, of all classes and of each that has any, which `class` is shown; shows
    /// `refused` every resource that a client does without, with its type.
    pub fn summary(
        &self,
        mut refused: impl FnMut(&str, &HeldBackResource),
        mut class: impl FnMut(&W::Class, Summary),
    ) -> Summary {
        let survey: Survey<W> = self.survey();
        let seq = self.hub().current().map_or(0, |published| published.seq);
        let mut all = Summary::default();
        let mut classes: BTreeMap<usize, (&Group<W>, Summary)> = BTreeMap::new();
        for group in &survey.groups {
            let connected = group.members.len();
            let current = if group.is_current(seq) { connected } else { 0 };
            let at = Arc::as_ptr(&group.cell).addr();
            let (_, of_class) = classes.entry(at).or_insert((group, Summary::default()));
            for sum in [&mut all, of_class] {
                sum.connected += connected;
                sum.current += current;
            }
            for followed in &group.types {
                let members = group.members.iter().flat_map(|_| &followed.held_back);
                members.for_each(|held_back| refused(&followed.type_url, held_back));
            }
        }
        for (group, sum) in classes.into_values() {
            class(group.cell.class(), sum);
        }
        all
    }

    /// Returns what the clients whose node id `wanted` accepts have and lack, in order of stream
    /// numbers.
    pub fn proxies(&self, wanted: impl Fn(&str) -> bool) -> Vec<ProxyStanding> {
        let survey: Survey<W> = self.survey();
        // The newest publication: what was published when the survey was made, or later.
        let seq = self.hub().current().map_or(0, |published| published.seq);
        let mut proxies = Vec::new();
        for group in &survey.groups {
            let members = group.members.iter();
            for link in members.filter(|link| wanted(&link.info.node)) {
                let types = group.types.iter();
                proxies.push(ProxyStanding {
                    stream: link.info.clone(),
                    types: types
                        .map(|followed| {
                            let mut standing = followed.standing(seq, group.moved);
                            let (root, waits_since) = root_of(link, &followed.type_url);
                            standing.root = root;
                            standing.waits_since = waits_since;
                            let state = link.state.lock();
                            let status = state.subscriptions.iter();
                            standing.accepted_at = status
                                .filter(|status| status.type_url == followed.type_url)
                                .find_map(|status| status.standing.settled.at);
                            standing
                        })
                        .collect(),
                });
            }
        }
        proxies.sort_by_key(|proxy| proxy.stream.id);
        proxies
    }
}

impl<W: World> Group<W> {
    /// Returns whether its members have accepted everything that they ought to hold.
    fn is_current(&self, seq: u64) -> bool {
        let mut types = self.types.iter();
        !self.moved && !self.types.is_empty() && types.all(|followed| followed.is_current(seq))
    }
}

impl<W: World> Followed<W> {
    /// Returns whether all that is asked for is there.
    fn is_current(&self, seq: u64) -> bool {
        let newest = self.set.newest(seq);
        newest.is_some_and(|(target, covers)| covers && !self.lacks(&target, |_| true))
    }

    fn standing(&self, seq: u64, moved: bool) -> TypeStanding {
        let newest = self.set.newest(seq);
        let undecided = moved || newest.as_ref().is_none_or(|(_, covers)| !covers);
        let target = newest.map(|(set, _)| set).unwrap_or_default();
        let diff = target.diff_from(&self.good);
        let mut lacks: Vec<Arc<Resource>> = diff.upserts().cloned().collect();
        lacks.sort_by(|a, b| a.name().cmp(b.name()));
        let dropped = diff.removed.iter();
        let dropped = dropped.filter(|name| self.tells_removals && self.set.interest().wants(name));
        TypeStanding {
            type_url: Arc::clone(&self.type_url),
            root: None,
            resources: target.len(),
            undecided,
            lacks,
            obsolete: dropped.cloned().collect(),
            held_back: self.held_back.clone(),
            waits_since: None,
            accepted_at: None,
        }
    }
}
