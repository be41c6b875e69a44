//! Runs of virtual hosts: put in order, looked through for competitors, joined.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use rayon::prelude::*;
use xds::Body;
use xxhash_rust::xxh3::xxh3_64;

use super::{HostOfPart, Part};
use crate::rds::domains;

/// The bits of a hash that choose its slot.
const SLOT_BITS: u64 = 0xffff_ffff;
/// Slots for each virtual host in the search for equal domains: 16 to 32 for each domain, mostly.
const SLOTS_OF_DOMAIN: usize = 32;

/// Virtual hosts of a configuration next to each other, with all the domains that they would like to
/// have.
#[derive(Clone)]
pub(super) enum Run<'a> {
    /// Some of a part, by their places; never none.
    Plain(&'a Arc<Part>, Range<usize>),
    /// One of a VirtualService.
    Routed(&'a VirtualHost),
}

impl<'a> Run<'a> {
    /// All of a part; `None` when it has none.
    pub(super) fn whole(part: &'a Arc<Part>) -> Option<Self> {
        (!part.hosts.is_empty()).then(|| Self::Plain(part, 0..part.hosts.len()))
    }

    /// What is between those that are left out.
    pub(super) fn without(
        part: &'a Arc<Part>,
        left_out: impl Fn(&HostOfPart) -> bool,
    ) -> impl Iterator<Item = Self> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let kept = |place: &usize| part.hosts.get(*place).is_some_and(|host| !left_out(host));
            let start = (next..part.hosts.len()).find(kept)?;
            let end = (start..part.hosts.len()).find(|place| !kept(place));
            next = end.unwrap_or(part.hosts.len());
            Some(Self::Plain(part, start..next))
        })
    }

    /// The virtual hosts one by one.
    fn singly(self) -> impl Iterator<Item = Self> {
        (0..self.count()).map(move |at| match &self {
            Self::Plain(part, hosts) => Self::Plain(part, hosts.start + at..hosts.start + at + 1),
            Self::Routed(host) => Self::Routed(host),
        })
    }

    fn count(&self) -> usize {
        match self {
            Self::Plain(_, hosts) => hosts.len(),
            Self::Routed(_) => 1,
        }
    }

    /// Tells whether names are in ascending order, each once.
    fn is_in_order(&self) -> bool {
        match self {
            Self::Plain(part, hosts) => part.in_order || hosts.len() == 1,
            Self::Routed(_) => true,
        }
    }

    /// The names of the first and of the last one.
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Plain(part, hosts) => (
                &part.hosts[hosts.start].name,
                &part.hosts[hosts.end - 1].name,
            ),
            Self::Routed(host) => (&host.name, &host.name),
        }
    }

    /// Visits the hashes of all domains.
    fn for_domains(&self, visit: impl FnMut(u64)) {
        match self {
            Self::Plain(part, hosts) => {
                let (first, last) = (&part.hosts[hosts.start], &part.hosts[hosts.end - 1]);
                let domains = &part.domains[first.domains.start..last.domains.end];
                domains.iter().copied().for_each(visit);
            }
            Self::Routed(host) => hashes(host).for_each(visit),
        }
    }
}

/// Puts virtual hosts in the order of their names; `None` when two have one name.
pub(super) fn in_order(mut runs: Vec<Run<'_>>) -> Option<Vec<Run<'_>>> {
    let apart = |runs: &[Run<'_>]| {
        let mut pairs = runs.windows(2);
        pairs.all(|pair| pair[0].names().1 < pair[1].names().0)
    };
    let by_first = |a: &Run<'_>, b: &Run<'_>| a.names().0.cmp(b.names().0);
    if runs.iter().all(Run::is_in_order) {
        runs.sort_by(by_first);
        if apart(&runs) {
            return Some(runs);
        }
    }
    let mut single: Vec<Run<'_>> = runs.into_iter().flat_map(Run::singly).collect();
    single.par_sort_unstable_by(by_first);
    apart(&single).then_some(single)
}

/// Hashes of the domains of a virtual host.
pub(super) fn hashes(host: &VirtualHost) -> impl Iterator<Item = u64> + '_ {
    host.domains
        .iter()
        .map(|domain| xxh3_64(domains::lowercase(domain).as_bytes()))
}

/// Tells whether two virtual hosts want the same domain. That two different domains have one hash is as
/// good a reason to look closer.
pub(super) fn compete(runs: &[Run<'_>]) -> bool {
    // Nearly all have a slot to themselves; only those that share one are compared.
    let count: usize = runs.iter().map(Run::count).sum();
    let slots = SLOTS_OF_DOMAIN * count.next_power_of_two();
    let [mut taken, mut shared] = [Bits::new(slots), Bits::new(slots)];
    for run in runs {
        run.for_domains(|domain| {
            if taken.set(domain) {
                shared.set(domain);
            }
        });
    }
    let mut compared = Vec::new();
    for run in runs {
        run.for_domains(|domain| {
            if shared.has(domain) {
                compared.push(domain);
            }
        });
    }
    compared.sort_unstable();
    compared.windows(2).any(|pair| pair[0] == pair[1])
}

/// A set of slots, which hashes choose.
struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// `slots` is a power of two.
    fn new(slots: usize) -> Self {
        Self {
            words: vec![0; slots.div_ceil(64)],
        }
    }

    fn place(&self, hash: u64) -> (usize, u64) {
        let slot = usize::try_from(hash & SLOT_BITS).unwrap_or_default();
        ((slot / 64) & (self.words.len() - 1), 1 << (slot % 64))
    }

    /// Takes a slot; returns whether it was taken.
    fn set(&mut self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        let taken = self.words[word] & bit != 0;
        self.words[word] |= bit;
        taken
    }

    fn has(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        self.words[word] & bit != 0
    }
}

/// Bytes that are being joined. Neighbours in a part stay together.
#[derive(Default)]
pub(super) struct Joined<'a> {
    done: Vec<Bytes>,
    run: Option<(&'a Arc<Part>, Range<usize>)>,
}

impl<'a> Joined<'a> {
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        self.end_run();
        self.done.push(bytes.into());
    }

    /// Adds some virtual hosts of a part, by their places.
    pub(super) fn extend(&mut self, part: &'a Arc<Part>, hosts: &Range<usize>) {
        let place = part.hosts[hosts.start].place.start..part.hosts[hosts.end - 1].place.end;
        match &mut self.run {
            Some((last, run)) if Arc::ptr_eq(last, part) && run.end == place.start => {
                run.end = place.end;
            }
            _ => {
                self.end_run();
                self.run = Some((part, place));
            }
        }
    }

    fn end_run(&mut self) {
        if let Some((part, run)) = self.run.take() {
            self.done.push(part.bytes.slice(run));
        }
    }

    pub(super) fn finish(mut self) -> Body {
        self.end_run();
        self.done.into_iter().collect()
    }
}
