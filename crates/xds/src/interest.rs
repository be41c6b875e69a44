//! What is asked for of one type: everything, or resources by name.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// An immutable, sorted set of resource names, cheap to clone and to share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Names(Arc<[Arc<str>]>);

impl Names {
    /// Returns whether `name` is in the set.
    pub fn contains(&self, name: &str) -> bool {
        self.0.binary_search_by(|probe| (**probe).cmp(name)).is_ok()
    }

    /// Iterates in order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<str>> {
        self.0.iter()
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no name is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of `self` that `other` lacks.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        self.iter()
            .filter(|name| !other.contains(name))
            .cloned()
            .collect()
    }

    /// Returns whether `other` has every name of `self`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.len() <= other.len() && self.iter().all(|name| other.contains(name))
    }
}

impl Names {
    /// Returns a handle that does not keep the names.
    pub(crate) fn downgrade(&self) -> WeakNames {
        WeakNames(Arc::downgrade(&self.0))
    }
}

/// [`Names`], as long as somebody has them.
#[derive(Debug)]
pub(crate) struct WeakNames(Weak<[Arc<str>]>);

impl WeakNames {
    /// Returns the names; `None` when nobody has them any more.
    pub(crate) fn upgrade(&self) -> Option<Names> {
        self.0.upgrade().map(Names)
    }
}

impl Default for Names {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl<N: Into<Arc<str>>> FromIterator<N> for Names {
    fn from_iter<I: IntoIterator<Item = N>>(names: I) -> Self {
        let sorted: BTreeSet<Arc<str>> = names.into_iter().map(Into::into).collect();
        Self(sorted.into_iter().collect())
    }
}

/// What a generator is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Interest {
    /// Every resource of the type that the class has.
    Everything,
    /// These resources only. Names that do not exist are left out of the answer.
    Named(Names),
}

impl Interest {
    /// Builds an interest in resources by name.
    pub fn named<N: Into<Arc<str>>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Named(names.into_iter().collect())
    }

    /// Returns whether both ask for the same. Fast when they share their names.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Named(a), Self::Named(b)) => Arc::ptr_eq(&a.0, &b.0) || a == b,
            (a, b) => a == b,
        }
    }

    /// Returns whether `name` is asked for.
    pub fn wants(&self, name: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Named(names) => names.contains(name),
        }
    }

    /// Returns the names asked for; `None` means everything.
    pub fn names(&self) -> Option<&Names> {
        match self {
            Self::Everything => None,
            Self::Named(names) => Some(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_distinct() {
        let names: Names = ["b", "a", "b"].into_iter().collect();
        assert_eq!(names.iter().map(|n| &**n).collect::<Vec<_>>(), ["a", "b"]);
        assert!(names.contains("a") && !names.contains("c"));
        assert_eq!(
            names.difference(&["a"].into_iter().collect()),
            ["b"].into_iter().collect()
        );
        assert!(names.is_subset(&["a", "b", "c"].into_iter().collect()));
        assert!(!names.is_subset(&["a", "c", "d"].into_iter().collect()));
    }
}
