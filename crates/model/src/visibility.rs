//! `exportTo` sets (config-model §8).

use std::collections::BTreeSet;

/// A set of `exportTo` entries: `.`, `*`, `~` or namespace names. Empty means "not declared".
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExportTo(pub BTreeSet<String>);

impl ExportTo {
    /// Collects the entries of a list.
    pub fn new<S: AsRef<str>>(entries: impl IntoIterator<Item = S>) -> Self {
        Self(
            entries
                .into_iter()
                .map(|e| e.as_ref().trim().to_owned())
                .collect(),
        )
    }

    /// Exported to every namespace.
    pub fn everywhere() -> Self {
        Self::new(["*"])
    }

    /// Tells whether nothing was declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells whether `entry` is in the set, literally.
    pub fn contains(&self, entry: &str) -> bool {
        self.0.contains(entry)
    }

    /// Tells whether an object of namespace `own` is visible to namespace `client`.
    pub fn visible_to(&self, own: &str, client: &str) -> bool {
        self.contains("*") || (self.contains(".") && own == client) || self.contains(client)
    }

    /// Tells whether the set is exactly `{entry}`.
    pub fn is_only(&self, entry: &str) -> bool {
        self.0.len() == 1 && self.contains(entry)
    }
}
