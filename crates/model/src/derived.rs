//! What a reader of an object makes of it, kept beside the object.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
};

/// A value that a crate above derives from the object that holds this: made once, gone with the
/// object.
///
/// It is no part of the object: any two are equal, a copy is empty, and none is read or written.
#[derive(Default)]
pub struct Derived(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Derived {
    /// Returns the value. The first who asks makes it, and everybody after gets the same one; whoever
    /// derives a value of another type than the first one did keeps it themselves.
    pub fn get_or_init<T: Send + Sync + 'static>(&self, make: impl Fn() -> T) -> Arc<T> {
        let held = self.0.get_or_init(|| Arc::new(make())).clone();
        held.downcast().unwrap_or_else(|_| Arc::new(make()))
    }

    /// Takes over what an equal object holds, unless there is a value already.
    pub fn adopt(&self, other: &Self) {
        if let Some(value) = other.0.get() {
            self.0.get_or_init(|| value.clone());
        }
    }
}

impl Clone for Derived {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Derived {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.0.get().is_some() {
            "made"
        } else {
            "empty"
        };
        f.write_str(state)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_value_is_made_once_and_a_copy_makes_its_own() {
        let made = Cell::new(0);
        let make = || {
            made.set(made.get() + 1);
            made.get()
        };
        let derived = Derived::default();
        assert_eq!(*derived.get_or_init(make), 1);
        assert_eq!(*derived.get_or_init(make), 1);
        let copy = derived.clone();
        assert_eq!(copy, derived);
        assert_eq!(*copy.get_or_init(make), 2);
        assert_eq!(*derived.get_or_init(make), 1);
        let other = Derived::default();
        other.adopt(&Derived::default());
        other.adopt(&copy);
        assert_eq!(*other.get_or_init(make), 2);
        derived.adopt(&copy);
        assert_eq!(*derived.get_or_init(make), 1);
    }

    #[test]
    fn a_value_of_another_type_is_not_kept() {
        let derived = Derived::default();
        assert_eq!(*derived.get_or_init(|| 1), 1);
        assert_eq!(*derived.get_or_init(|| "other"), "other");
        assert_eq!(*derived.get_or_init(|| 2), 1);
    }
}
