//! Lists of services that share what scopes have in common.

use std::{collections::BTreeMap, slice, sync::Arc};

use model::Service;

use crate::{order::InOrder, service::List, sorted};

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
