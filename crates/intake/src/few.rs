//! A set that mostly has one element.

use std::{borrow::Borrow, collections::BTreeSet};

/// A sorted set; up to one element costs no allocation. Most hosts have one entry, most labels one
/// workload, most addresses one pod.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) enum Few<T> {
    #[default]
    None,
    One(T),
    Many(BTreeSet<T>),
}

impl<T: Ord> Few<T> {
    /// Adds an element.
    pub(crate) fn insert(&mut self, element: T) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(element),
            Self::One(one) if one == element => Self::One(one),
            Self::One(one) => Self::Many(BTreeSet::from([one, element])),
            Self::Many(mut many) => {
                many.insert(element);
                Self::Many(many)
            }
        };
    }

    /// Takes an element out.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, element: &Q)
    where
        T: Borrow<Q>,
    {
        match self {
            Self::One(one) if (*one).borrow() == element => *self = Self::None,
            Self::Many(many) => {
                many.remove(element);
                if many.is_empty() {
                    *self = Self::None;
                }
            }
            Self::None | Self::One(_) => {}
        }
    }

    /// Tells whether an element is in the set.
    pub(crate) fn contains<Q: Ord + ?Sized>(&self, element: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        match self {
            Self::None => false,
            Self::One(one) => one.borrow() == element,
            Self::Many(many) => many.contains(element),
        }
    }

    /// Tells whether there is no element.
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Lists the elements in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(one) => (Some(one), None),
            Self::Many(many) => (None, Some(many)),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_a_set() {
        let mut few = Few::default();
        let mut set = BTreeSet::new();
        for (insert, element) in [
            (true, 2),
            (true, 2),
            (true, 1),
            (false, 3),
            (false, 2),
            (true, 5),
            (false, 1),
            (false, 5),
            (false, 5),
        ] {
            if insert {
                few.insert(element);
                set.insert(element);
            } else {
                few.remove(&element);
                set.remove(&element);
            }
            assert_eq!(
                few.iter().collect::<Vec<_>>(),
                set.iter().collect::<Vec<_>>()
            );
            assert_eq!(few.is_empty(), set.is_empty());
        }
    }
}
