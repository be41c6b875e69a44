//! Releases of the Gateway API, which the definitions of its kinds name.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::Kind;

/// Annotation of a definition with the release that it is of.
pub const ANNOTATION: &str = "gateway.networking.k8s.io/bundle-version";

/// The API group of the kinds that are released together.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// First release whose kinds are read at all: earlier ones have no `v1`.
const FIRST: BundleVersion = BundleVersion::new(1, 0, 0);

/// Last release that this control plane was made for. Later ones are read as far as they say the same.
const LAST: BundleVersion = BundleVersion::new(1, 6, 0);

/// What the definitions that a cluster has of the kinds of the Gateway API say of their release; `None`
/// of those that do not say it. Empty when nobody has told.
pub type Bundles = BTreeMap<Kind, Option<Arc<str>>>;

/// The release of a definition, without what stands behind the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BundleVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl BundleVersion {
    const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// Reads a version such as `v1.4.0-rc.1`, which counts as 1.4.0. Numbers at the end may be missing.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let numbers = text.split(['-', '+']).next()?;
        let mut read = [0; 3];
        for (index, number) in numbers.split('.').enumerate() {
            *read.get_mut(index)? = number.parse().ok()?;
        }
        Some(Self::new(read[0], read[1], read[2]))
    }

    /// The first release whose definition of a kind is used (config-model §1.3); `None` when the served
    /// versions alone decide.
    pub const fn needed(kind: Kind) -> Option<Self> {
        match kind {
            Kind::GrpcRoute => Some(Self::new(1, 1, 0)),
            Kind::BackendTlsPolicy => Some(Self::new(1, 4, 0)),
            Kind::TlsRoute => Some(Self::new(1, 5, 0)),
            Kind::TcpRoute => Some(Self::new(1, 6, 0)),
            _ => None,
        }
    }
}

impl fmt::Display for BundleVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why a definition is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooOld {
    /// The release that it names; `None` when it names none.
    pub installed: Option<Arc<str>>,
    /// The first release that would do.
    pub needed: BundleVersion,
}

impl fmt::Display for TooOld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.installed {
            Some(installed) => write!(f, "its definition is of Gateway API {installed}")?,
            None => write!(f, "its definition has no annotation {ANNOTATION}")?,
        }
        write!(f, ", {} or later is needed", self.needed)
    }
}

/// Tells whether the definition of a kind is used, which says that it is of release `installed`
/// (config-model §1.3).
///
/// # Errors
/// [`TooOld`] when objects of the kind count as if there were none.
pub fn check(kind: Kind, installed: Option<&Arc<str>>) -> Result<(), TooOld> {
    let Some(needed) = BundleVersion::needed(kind) else {
        return Ok(());
    };
    let version = installed.and_then(|text| BundleVersion::parse(text));
    if version.is_some_and(|version| version >= needed) {
        return Ok(());
    }
    Err(TooOld {
        installed: installed.cloned(),
        needed,
    })
}

/// Says which definitions are of a release that is not supported; `None` when all are, or nothing is
/// known.
pub fn unsupported(bundles: &Bundles) -> Option<String> {
    let strange = bundles.iter().filter(|(kind, installed)| {
        let first = BundleVersion::needed(**kind).unwrap_or(FIRST);
        let version = installed.as_deref().and_then(BundleVersion::parse);
        // A patch of a known release changes nothing.
        !version.is_some_and(|v| v >= first && (v.major, v.minor) <= (LAST.major, LAST.minor))
    });
    let mut installed: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
    for (kind, version) in strange {
        let kinds = installed.entry(version.as_deref()).or_default();
        kinds.push(kind.name());
    }
    if installed.is_empty() {
        return None;
    }
    let installed: Vec<_> = installed
        .into_iter()
        .map(|(version, kinds)| {
            format!("{} ({})", version.unwrap_or("no version"), kinds.join(", "))
        })
        .collect();
    let later: Vec<_> = bundles
        .keys()
        .filter_map(|kind| Some(format!("{} {}", kind.name(), BundleVersion::needed(*kind)?)))
        .collect();
    let from = if later.is_empty() {
        String::new()
    } else {
        format!(" (from {})", later.join(", "))
    };
    let BundleVersion { major, minor, .. } = LAST;
    Some(format!(
        "Installed of the Gateway API: {}; recognised are {FIRST} to v{major}.{minor}{from}",
        installed.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn used(kind: Kind, installed: Option<&str>, expected: bool) {
        assert_eq!(
            check(kind, installed.map(Into::into).as_ref()).is_ok(),
            expected
        );
    }

    #[test]
    fn four_kinds_need_a_release() {
        for (kind, before, first) in [
            (Kind::GrpcRoute, "v1.0.9", "v1.1.0"),
            (Kind::BackendTlsPolicy, "v1.3.0", "v1.4.0"),
            (Kind::TlsRoute, "v1.4.1", "v1.5.0"),
            (Kind::TcpRoute, "v1.5.9", "v1.6.0"),
        ] {
            used(kind, Some(before), false);
            used(kind, Some(first), true);
            used(kind, None, false);
            used(kind, Some("main"), false);
        }
        for kind in [
            Kind::HttpRoute,
            Kind::KubernetesGateway,
            Kind::ReferenceGrant,
        ] {
            used(kind, Some("v0.8.0"), true);
            used(kind, None, true);
        }
    }

    #[test]
    fn what_stands_behind_the_numbers_does_not_count() {
        used(Kind::TlsRoute, Some("v1.5.0-rc.1"), true);
        used(Kind::TlsRoute, Some("1.5.0+build"), true);
        used(Kind::TlsRoute, Some("v1.5"), true);
        used(Kind::TlsRoute, Some("v1.10.0"), true);
        used(Kind::TlsRoute, Some("v1.5.0.1"), false);
        used(Kind::TlsRoute, Some("v2.0.0"), true);
    }

    #[track_caller]
    fn judged(bundles: &[(Kind, Option<&str>)], expected: Option<&str>) {
        let bundles = bundles
            .iter()
            .map(|(kind, version)| (*kind, version.map(Into::into)))
            .collect();
        assert_eq!(unsupported(&bundles).as_deref(), expected);
    }

    #[test]
    fn releases_that_are_not_known_are_told() {
        judged(&[], None);
        judged(&[(Kind::GatewayClass, Some("v1.0.0"))], None);
        judged(
            &[
                (Kind::GatewayClass, Some("v1.6.3")),
                (Kind::TlsRoute, Some("v1.5.0-rc.2")),
            ],
            None,
        );
        judged(
            &[(Kind::GatewayClass, Some("v1.7.0"))],
            Some(
                "Installed of the Gateway API: v1.7.0 (GatewayClass); recognised are v1.0.0 to v1.6",
            ),
        );
        judged(
            &[
                (Kind::GatewayClass, Some("v1.2.0")),
                (Kind::HttpRoute, None),
                (Kind::TlsRoute, Some("v1.2.0")),
                (Kind::BackendTlsPolicy, Some("v1.2.0")),
            ],
            Some(
                "Installed of the Gateway API: no version (HTTPRoute), v1.2.0 (TLSRoute, BackendTLSPolicy); \
                 recognised are v1.0.0 to v1.6 (from TLSRoute v1.5.0, BackendTLSPolicy v1.4.0)",
            ),
        );
    }
}
