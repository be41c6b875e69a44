//! Where a value stands in an object.

use std::fmt::{self, Display, Write as _};

/// Where a value stands; a list on the stack, printed only when it is needed.
pub(crate) enum Path<'a> {
    Root(&'a str),
    /// The same place, borrowed for a shorter time.
    Same(&'a Self),
    Key {
        parent: &'a Self,
        key: &'a str,
    },
    Index {
        parent: &'a Self,
        index: usize,
    },
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(root) => f.write_str(root),
            Self::Same(path) => path.fmt(f),
            Self::Index { parent, index } => write!(f, "{parent}[{index}]"),
            Self::Key { parent, key } => {
                let mut text = parent.to_string();
                push_key(&mut text, key);
                f.write_str(&text)
            }
        }
    }
}

/// Appends a field or map key to a path; keys that are not plain words are quoted in brackets.
fn push_key(path: &mut String, key: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if key.is_empty() || !key.chars().all(plain) {
        // Writing to a String cannot fail.
        let _ = write!(path, "[{key:?}]");
    } else {
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
    }
}
