//! Where in an object a check stands, and where it reports.

use std::cell::RefCell;
use std::fmt::Display;

use super::{Issue, Severity};
use crate::api::codec::Path;

/// A place in an object; findings at that place go to one shared list.
///
/// Places form a chain on the stack, so a sound object costs no allocation.
pub(crate) struct Scope<'a> {
    path: Path<'a>,
    issues: &'a RefCell<Vec<Issue>>,
    /// How much errors matter: those that somebody else judges are warnings.
    errors: Severity,
}

impl<'a> Scope<'a> {
    /// Makes the outermost place, such as `spec`.
    pub(crate) fn new(root: &'a str, issues: &'a RefCell<Vec<Issue>>) -> Self {
        Self {
            path: Path::Root(root),
            issues,
            errors: Severity::Error,
        }
    }

    /// Goes to another part of the object, such as `metadata`.
    pub(crate) fn root<'s>(&'s self, root: &'s str) -> Scope<'s> {
        Scope {
            path: Path::Root(root),
            issues: self.issues,
            errors: self.errors,
        }
    }

    /// Stays at the place, but reports errors as warnings.
    pub(crate) fn lenient(&self) -> Scope<'_> {
        let path = Path::Same(&self.path);
        Scope {
            path,
            issues: self.issues,
            errors: Severity::Warning,
        }
    }

    /// Goes to a field or map key.
    pub(crate) fn field<'s>(&'s self, key: &'s str) -> Scope<'s> {
        Scope {
            path: Path::Key {
                parent: &self.path,
                key,
            },
            issues: self.issues,
            errors: self.errors,
        }
    }

    /// Goes to an element of a list.
    pub(crate) fn index(&self, index: usize) -> Scope<'_> {
        Scope {
            path: Path::Index {
                parent: &self.path,
                index,
            },
            issues: self.issues,
            errors: self.errors,
        }
    }

    /// Visits the elements of the list in field `key`.
    pub(crate) fn each<'l, T>(
        &self,
        key: &str,
        list: &'l [T],
        mut visit: impl FnMut(&Scope<'_>, &'l T),
    ) {
        let field = self.field(key);
        for (index, element) in list.iter().enumerate() {
            visit(&field.index(index), element);
        }
    }

    /// Visits the entries of the map in field `key`.
    pub(crate) fn entries<'m, V: 'm>(
        &self,
        key: &str,
        map: impl IntoIterator<Item = (&'m String, &'m V)>,
        mut visit: impl FnMut(&Scope<'_>, &'m str, &'m V),
    ) {
        let field = self.field(key);
        for (key, value) in map {
            visit(&field.field(key), key, value);
        }
    }

    /// Reports that the object cannot be accepted.
    pub(crate) fn error(&self, reason: impl Display) {
        self.report(self.errors, reason);
    }

    /// Reports something that is accepted but hardly meant.
    pub(crate) fn warning(&self, reason: impl Display) {
        self.report(Severity::Warning, reason);
    }

    /// Reports an error if `result` is one.
    pub(crate) fn check(&self, result: Result<(), String>) {
        if let Err(reason) = result {
            self.error(reason);
        }
    }

    fn report(&self, severity: Severity, reason: impl Display) {
        self.issues.borrow_mut().push(Issue {
            severity,
            path: self.path.to_string(),
            reason: reason.to_string(),
        });
    }
}
