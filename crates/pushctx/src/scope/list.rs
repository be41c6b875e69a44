//! Lists of services that share what scopes have in common.

use std::{collections::BTreeMap, slice, sync::Arc};

use model::Service;

use crate::{
    order::InOrder,
    service::List,
    sorted::{self, Chunk},
};

/// How many services a piece of a list of its own has.
const PIECE: usize = 128;

/// Services in order.
#[derive(Clone, Debug)]
pub struct ServiceList(Repr);

#[derive(Clone, Debug)]
enum Repr {
    /// A list of its own.
    Own(Vec<Arc<Service>>),
    /// What the snapshot's index lists for a namespace, with a few changes.
    View(Box<View>),
}

/// What a namespace sees, with a few changes.
#[derive(Clone, Default, Debug)]
pub(super) struct View {
    pub(super) exported: List,
    pub(super) public: List,
    /// Services to leave out, or to replace.
    pub(super) changed: BTreeMap<InOrder<Service>, Option<Arc<Service>>>,
    /// Services that come last.
    pub(super) more: Vec<Arc<Service>>,
}

impl ServiceList {
    pub(super) fn view(view: View) -> Self {
        Self(Repr::View(Box::new(view)))
    }

    /// Lists the services.
    pub fn iter(&self) -> ServiceIter<'_> {
        match &self.0 {
            Repr::Own(list) => ServiceIter {
                lists: [sorted::Iter::default(), sorted::Iter::default()],
                changed: None,
                rest: list.iter(),
            },
            Repr::View(view) => ServiceIter {
                lists: [view.exported.iter(), view.public.iter()],
                changed: Some(&view.changed).filter(|changed| !changed.is_empty()),
                rest: view.more.iter(),
            },
        }
    }

    /// Counts the services.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Own(list) => list.len(),
            Repr::View(view) => {
                let dropped = view
                    .changed
                    .values()
                    .filter(|change| change.is_none())
                    .count();
                view.exported.len() + view.public.len() + view.more.len() - dropped
            }
        }
    }

    /// Tells whether there is none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }
}

/// Some services of a list, next to each other.
///
/// How a list is divided depends on how it came about, so nothing that is sent may depend on it. Lists
/// that have much in common have most of their pieces in common.
#[derive(Clone, Debug)]
pub struct ServicePiece<'a> {
    services: Services<'a>,
    fingerprint: u64,
}

#[derive(Clone, Debug)]
enum Services<'a> {
    Indexed(&'a [InOrder<Service>]),
    Own(Vec<Arc<Service>>),
}

impl<'a> ServicePiece<'a> {
    fn indexed(chunk: &'a Chunk<InOrder<Service>>) -> Self {
        Self {
            services: Services::Indexed(chunk.elements()),
            fingerprint: chunk.sum(),
        }
    }

    fn own(services: Vec<Arc<Service>>) -> Self {
        Self {
            fingerprint: sorted::sum(services.iter().map(|service| service.fingerprint)),
            services: Services::Own(services),
        }
    }

    /// The services, in the order of the list.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        let (indexed, own) = match &self.services {
            Services::Indexed(services) => (*services, &[][..]),
            Services::Own(services) => (&[][..], &services[..]),
        };
        indexed.iter().map(|service| &service.0).chain(own)
    }

    /// A hash of which services there are and what they are like.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl ServiceList {
    /// Divides the list; the pieces, one after the other, are what [`ServiceList::iter`] lists.
    pub fn pieces(&self) -> Vec<ServicePiece<'_>> {
        let own = |list: &[Arc<Service>]| ServicePiece::own(list.to_vec());
        let view = match &self.0 {
            Repr::Own(list) => return list.chunks(PIECE).map(own).collect(),
            Repr::View(view) => view,
        };
        let chunks = view.exported.chunks().iter().chain(view.public.chunks());
        let indexed = chunks.map(|chunk| {
            let (Some(first), Some(last)) = (chunk.elements().first(), chunk.elements().last())
            else {
                return ServicePiece::indexed(chunk);
            };
            if view.changed.range(first..=last).next().is_none() {
                return ServicePiece::indexed(chunk);
            }
            let kept = chunk.elements().iter().filter_map(|service| {
                let changed = view.changed.get(service);
                changed.map_or_else(|| Some(service.0.clone()), Clone::clone)
            });
            ServicePiece::own(kept.collect())
        });
        indexed.chain(view.more.chunks(PIECE).map(own)).collect()
    }
}

impl Default for ServiceList {
    fn default() -> Self {
        Self(Repr::Own(Vec::new()))
    }
}

impl From<Vec<Arc<Service>>> for ServiceList {
    fn from(list: Vec<Arc<Service>>) -> Self {
        Self(Repr::Own(list))
    }
}

impl<'a> IntoIterator for &'a ServiceList {
    type Item = &'a Arc<Service>;
    type IntoIter = ServiceIter<'a>;

    fn into_iter(self) -> ServiceIter<'a> {
        self.iter()
    }
}

/// Iterates over a [`ServiceList`].
#[derive(Clone, Debug)]
pub struct ServiceIter<'a> {
    lists: [sorted::Iter<'a, InOrder<Service>>; 2],
    changed: Option<&'a BTreeMap<InOrder<Service>, Option<Arc<Service>>>>,
    rest: slice::Iter<'a, Arc<Service>>,
}

impl<'a> Iterator for ServiceIter<'a> {
    type Item = &'a Arc<Service>;

    fn next(&mut self) -> Option<&'a Arc<Service>> {
        let [exported, public] = &mut self.lists;
        while let Some(service) = exported.next().or_else(|| public.next()) {
            match self.changed.and_then(|changed| changed.get(service)) {
                None => return Some(&service.0),
                Some(Some(replacement)) => return Some(replacement),
                Some(None) => {}
            }
        }
        self.rest.next()
    }
}
