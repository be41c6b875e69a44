//! What a source says about its input: what was refused, what looks wrong, what is not read.

use std::fmt;

use model::config::Origin;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The object or document was not loaded.
    Error,
    /// The object was loaded, but something in it is not as its author will have meant.
    Warning,
    /// Nothing reads objects of this kind.
    Ignored,
}

impl Severity {
    /// The word in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Ignored => "ignored",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing to say about one document or object.
///
/// Ordered by source, line, then field, as a reader meets them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The object's kind as written; empty when the document is no object.
    pub kind: String,
    /// The object's namespace; empty when it has none.
    pub namespace: String,
    /// The object's name; empty when unknown.
    pub name: String,
    /// The file as the user gave it, and the line of the field, or of the document's start.
    pub origin: Origin,
    /// Path of the field, for example `spec.http[0].timeout`; empty for the whole object.
    pub field: String,
    /// What is wrong, in words.
    pub reason: String,
    /// What became of the object.
    pub severity: Severity,
}

impl Finding {
    /// The sort key of reports.
    pub fn order(&self) -> (&str, u32, &str, &str) {
        (
            &self.origin.source,
            self.origin.line,
            &self.field,
            &self.reason,
        )
    }
}

impl fmt::Display for Finding {
    /// Writes `file:line: severity: Kind namespace/name: field: reason`, without what is empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin.source)?;
        if self.origin.line > 0 {
            write!(f, ":{}", self.origin.line)?;
        }
        write!(f, ": {}: ", self.severity)?;
        if !self.kind.is_empty() {
            f.write_str(&self.kind)?;
            if !self.name.is_empty() {
                f.write_str(" ")?;
                if !self.namespace.is_empty() {
                    write!(f, "{}/", self.namespace)?;
                }
                f.write_str(&self.name)?;
            }
            f.write_str(": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.reason)
    }
}
