//! One resource: a name, a content hash, the encoded bytes, and what it was built from.

use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::{Body, Sources};

/// The content hash of a resource.
///
/// Equal bytes have equal versions, on every replica and after every restart, so that a client
/// that says what it has is told only what differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(u64);

impl Version {
    /// The version of what a client may have in any version, or not at all.
    pub(crate) const UNKNOWN: Self = Self(u64::MAX);

    /// Hashes an encoded resource.
    pub fn of(body: &[u8]) -> Self {
        Self(xxh3_64(body))
    }

    /// Hashes an encoded resource, however it is divided into parts.
    fn of_parts(body: &Body) -> Self {
        if let [whole] = body.parts() {
            return Self::of(whole);
        }
        let mut hash = Xxh3Default::new();
        for part in body.parts() {
            hash.update(part);
        }
        Self(hash.digest())
    }

    /// Reads the form that [`Display`](fmt::Display) writes. `None` for anything else, such as
    /// the version of another control plane.
    pub fn parse(text: &str) -> Option<Self> {
        let canonical = !text.is_empty() && text.len() <= 16 && !text.contains(['+', '-']);
        let value = canonical
            .then(|| u64::from_str_radix(text, 16).ok())
            .flatten()?;
        (Self(value).to_string() == text).then_some(Self(value))
    }

    /// Returns the form that [`Display`](fmt::Display) writes, as ASCII, without allocating.
    pub(crate) fn text(self) -> VersionText {
        let mut digits = [0; 16];
        let len = 16 - (self.0 | 1).leading_zeros() as usize / 4;
        for (place, digit) in digits.iter_mut().take(len).enumerate() {
            let nibble = (self.0 >> (4 * (len - 1 - place))) & 0xf;
            *digit = b"0123456789abcdef"[nibble as usize];
        }
        VersionText { digits, len }
    }

    /// Returns the hash itself.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

/// The text of a [`Version`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionText {
    digits: [u8; 16],
    len: usize,
}

impl VersionText {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.digits.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One encoded resource, shared by everything that sends it.
#[derive(Clone)]
pub struct Resource {
    name: Arc<str>,
    version: Version,
    body: Body,
    aliases: Arc<[Arc<str>]>,
    sources: Sources,
    warms: Option<Arc<str>>,
    /// Whether the body is here; otherwise a client stated that it has this version.
    complete: bool,
}

impl Resource {
    /// Creates a resource from its name and its canonically encoded message (the value of the
    /// `Any`, not the `Any`). The type URL is that of the set it goes into.
    pub fn new(name: impl Into<Arc<str>>, body: impl Into<Body>) -> Self {
        let body = body.into();
        Self {
            name: name.into(),
            version: Version::of_parts(&body),
            body,
            aliases: Arc::default(),
            sources: Sources::default(),
            warms: None,
            complete: true,
        }
    }

    /// Creates a resource of which only name and version are known, because a client stated them.
    pub(crate) fn stated(name: Arc<str>, version: Version) -> Self {
        Self {
            version,
            complete: false,
            ..Self::new(name, &b""[..])
        }
    }

    /// Names the configuration objects this resource was built from, for reports on rejection and
    /// on distribution.
    #[must_use]
    pub fn with_sources(mut self, sources: impl Into<Sources>) -> Self {
        self.sources = sources.into();
        self
    }

    /// Adds names under which a client may also have asked for this resource (delta `aliases`).
    #[must_use]
    pub fn with_aliases(mut self, aliases: impl Into<Arc<[Arc<str>]>>) -> Self {
        self.aliases = aliases.into();
        self
    }

    /// Names the resource of the warmed type (see [`TypeFacts::warms`](crate::TypeFacts::warms))
    /// that a client waits for after it received this one. Unset means the one of the same name.
    /// For a cluster that is the name of its load assignment.
    #[must_use]
    pub fn with_warmed(mut self, name: impl Into<Arc<str>>) -> Self {
        self.warms = Some(name.into());
        self
    }

    /// Returns the resource name; empty for types whose single resource has none.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the content hash of [`body`](Self::body).
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the encoded message.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Returns the names under which clients may also have asked for it.
    pub fn aliases(&self) -> &Arc<[Arc<str>]> {
        &self.aliases
    }

    /// Returns the configuration objects it was built from.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Returns whether it can be sent.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the name of the resource that a client waits for after it received this one.
    pub fn warmed(&self) -> &Arc<str> {
        self.warms.as_ref().unwrap_or(&self.name)
    }
}

/// Equality of name and content; sources do not reach the client and do not count.
impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.name == other.name
    }
}

impl Eq for Resource {}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{} ({} bytes)",
            self.name,
            self.version,
            self.body.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[track_caller]
    fn check_parse(text: &str, expected: Option<u64>) {
        assert_eq!(
            Version::parse(text).map(Version::as_u64),
            expected,
            "{text:?}"
        );
    }

    #[test]
    fn versions_are_read_only_in_the_form_they_are_written() {
        check_parse("0", Some(0));
        check_parse("5d0e4c7719ab02f6", Some(0x5d0e_4c77_19ab_02f6));
        check_parse("", None);
        check_parse("+5", None);
        check_parse("05", None);
        check_parse("5D", None);
        check_parse("15d0e4c7719ab02f6", None);
        check_parse("2026-08-01T10:00:00Z/7", None);
    }

    #[test]
    fn both_ways_to_write_a_version_agree() {
        for value in [0, 1, 0xf, 0x10, 0x5d0e_4c77_19ab_02f6, u64::MAX] {
            let version = Version(value);
            assert_eq!(version.to_string().as_bytes(), version.text().as_bytes());
        }
    }

    #[test]
    fn parts_have_the_version_of_the_whole() {
        let parts: Vec<Bytes> = (0..=255).map(|n| Bytes::from(vec![n; n.into()])).collect();
        let whole = Resource::new("a", parts.concat());
        let joined = Resource::new("a", parts.into_iter().collect::<Body>());
        assert_eq!(joined, whole);
        assert_eq!(joined.body().len(), whole.body().len());
        assert_eq!(joined.body().to_bytes(), whole.body().to_bytes());
    }

    #[test]
    fn the_version_depends_on_the_bytes_alone() {
        let a = Resource::new("a", &b"x"[..]);
        let b = Resource::new("b", &b"x"[..]).with_sources(["Kind/ns/name".into()]);
        assert_eq!(a.version(), b.version());
        assert_ne!(a.version(), Resource::new("a", &b"y"[..]).version());
        assert_eq!(Version::parse(&a.version().to_string()), Some(a.version()));
    }
}
