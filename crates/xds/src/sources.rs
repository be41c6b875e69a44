//! The configuration objects that a resource was built from, in lists that resources share.

use std::{fmt, sync::Arc};

/// The id of a configuration object that a resource was built from, for example
/// `VirtualService/default/reviews`. Opaque to this crate.
pub type Source = Arc<str>;

/// The objects behind one resource.
///
/// A resource with tens of thousands of them has most of them in common with the resource that it
/// replaces, and keeps them in lists that both have. An object may be in several lists of one resource.
#[derive(Clone)]
pub struct Sources(Repr);

#[derive(Clone)]
enum Repr {
    One(Arc<[Source]>),
    Many(Arc<[Arc<[Source]>]>),
}

impl Sources {
    /// Returns the lists, each in ascending order.
    pub fn lists(&self) -> &[Arc<[Source]>] {
        match &self.0 {
            Repr::One(list) => std::slice::from_ref(list),
            Repr::Many(lists) => lists,
        }
    }

    /// Iterates over all lists, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = &Source> {
        self.lists().iter().flat_map(|list| list.iter())
    }

    /// Returns whether an object is among them.
    pub fn contains(&self, object: &str) -> bool {
        let has =
            |list: &Arc<[Source]>| list.binary_search_by(|probe| (**probe).cmp(object)).is_ok();
        self.lists().iter().any(has)
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Default for Sources {
    fn default() -> Self {
        Self(Repr::One(Arc::default()))
    }
}

/// Sorts the list where it is not.
impl From<Arc<[Source]>> for Sources {
    fn from(mut list: Arc<[Source]>) -> Self {
        if !list.is_sorted() {
            let mut sorted = list.to_vec();
            sorted.sort_unstable();
            list = sorted.into();
        }
        Self(Repr::One(list))
    }
}

impl From<Vec<Source>> for Sources {
    fn from(list: Vec<Source>) -> Self {
        Arc::<[Source]>::from(list).into()
    }
}

impl<const N: usize> From<[Source; N]> for Sources {
    fn from(list: [Source; N]) -> Self {
        Vec::from(list).into()
    }
}

/// Joins lists, each in ascending order.
impl FromIterator<Arc<[Source]>> for Sources {
    fn from_iter<I: IntoIterator<Item = Arc<[Source]>>>(lists: I) -> Self {
        let lists: Arc<[Arc<[Source]>]> = lists.into_iter().collect();
        debug_assert!(
            lists.iter().all(|list| list.is_sorted()),
            "lists are in ascending order"
        );
        Self(Repr::Many(lists))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ids: &[&str]) -> Arc<[Source]> {
        ids.iter().map(|id| Source::from(*id)).collect()
    }

    #[track_caller]
    fn check(sources: &Sources, there: &[&str], not_there: &str) {
        assert!(there.iter().all(|source| sources.contains(source)));
        assert!(!sources.contains(not_there));
        assert_eq!(
            sources.iter().map(|source| &**source).collect::<Vec<_>>(),
            there
        );
    }

    #[test]
    fn sources_are_found_in_one_list_whatever_its_order_and_in_many() {
        check(&list(&["b", "a", "c"]).into(), &["a", "b", "c"], "d");
        let joined = [list(&["b", "d"]), list(&["a", "c"])].into_iter().collect();
        check(&joined, &["b", "d", "a", "c"], "e");
        check(&Sources::default(), &[], "a");
    }
}
