//! Law 3: every field of what a resource is built from counts in its fingerprint.

use std::{collections::BTreeMap, collections::BTreeSet, sync::Arc};

use envoy_types::pb::google::protobuf::Any;
use model::{Service, ServiceEndpoints, SmallMap, Timestamp};
use pushctx::ConsolidatedRule;

use crate::inputs::{Sealed, Shared};

/// A value that can be made another one.
pub(crate) trait Flip {
    fn flip(&mut self);
}

/// Checks that another value of any field gives another fingerprint. A field without a value of its own
/// is flipped. All fields are named, as the compiler sees to: a new one has to be added here.
macro_rules! check_fields {
    ($sample:expr, $type:ident { $($fields:tt)* }) => {
        check_fields!($sample, |inputs: &$type| model::fingerprint::of(inputs), $type { $($fields)* })
    };
    ($sample:expr, $fingerprint:expr, $type:ident { $($field:ident $(: $other:expr)?),* $(,)? }) => {{
        let (sample, fingerprint) = ($sample, $fingerprint);
        let first = sample();
        let $type { $($field: _),* } = &first;
        let before = fingerprint(&first);
        assert_eq!(fingerprint(&sample()), before, "equal inputs have equal fingerprints");
        $({
            let mut changed = sample();
            check_fields!(@ changed.$field $(, $other)?);
            let field = concat!(stringify!($type), ".", stringify!($field));
            assert_ne!(fingerprint(&changed), before, "{field} does not count");
        })*
    }};
    (@ $place:expr) => { $crate::testing::flips::Flip::flip(&mut $place) };
    (@ $place:expr, $other:expr) => { $place = $other };
}
pub(crate) use check_fields;

impl Flip for bool {
    fn flip(&mut self) {
        *self = !*self;
    }
}

macro_rules! flip_numbers {
    ($($number:ty),*) => {
        $(impl Flip for $number {
            fn flip(&mut self) {
                *self = self.wrapping_add(1);
            }
        })*
    };
}
flip_numbers!(u16, u32, u64, usize);

impl Flip for String {
    fn flip(&mut self) {
        self.push('!');
    }
}

impl Flip for Arc<str> {
    fn flip(&mut self) {
        *self = format!("{self}!").into();
    }
}

impl Flip for std::time::Duration {
    fn flip(&mut self) {
        *self += Self::from_secs(1);
    }
}

impl Flip for Any {
    fn flip(&mut self) {
        self.type_url.flip();
    }
}

/// Samples have something of everything, so that it can go.
impl<T> Flip for Option<T> {
    fn flip(&mut self) {
        assert!(self.take().is_some(), "the sample has it");
    }
}

impl<T> Flip for Vec<T> {
    fn flip(&mut self) {
        assert!(self.pop().is_some(), "the sample has one");
    }
}

impl<T> Flip for Arc<[T]> {
    fn flip(&mut self) {
        assert!(!self.is_empty(), "the sample has one");
        *self = Self::from([]);
    }
}

impl<K: Ord, V> Flip for BTreeMap<K, V> {
    fn flip(&mut self) {
        assert!(self.pop_first().is_some(), "the sample has one");
    }
}

impl<K: Ord + Clone, V> Flip for SmallMap<K, V> {
    fn flip(&mut self) {
        let first = self.first().map(|(key, _)| key.clone());
        self.remove(&first.expect("the sample has one"));
    }
}

impl<T: Ord> Flip for BTreeSet<T> {
    fn flip(&mut self) {
        assert!(self.pop_first().is_some(), "the sample has one");
    }
}

impl<T: Flip, const N: usize> Flip for [T; N] {
    fn flip(&mut self) {
        self[N - 1].flip();
    }
}

/// Counts by its content.
impl Flip for Shared<Service> {
    fn flip(&mut self) {
        let mut other = Service::clone(self);
        other.hostname.flip();
        *self = Self::new(&other.seal());
    }
}

impl Flip for Shared<ServiceEndpoints> {
    fn flip(&mut self) {
        *self = Self::new(&Arc::default());
    }
}

impl Flip for Shared<ConsolidatedRule> {
    fn flip(&mut self) {
        let mut other = ConsolidatedRule::clone(self);
        other.fingerprint.flip();
        *self = Self::new(&Arc::new(other));
    }
}

impl<T: Flip + Clone + std::hash::Hash> Flip for Shared<Sealed<T>> {
    fn flip(&mut self) {
        let mut other = T::clone(self);
        other.flip();
        *self = Sealed::share(other);
    }
}

#[test]
fn what_a_service_shows_counts_and_what_it_does_not_show_does_not() {
    let sample = || {
        let ports = [("http", 80, model::Protocol::Http)];
        let mut service = super::service(
            model::service::Registry::Kubernetes,
            model::Resolution::ClientSideLb,
            &ports,
        );
        service.cluster_vips = [("c".into(), vec!["10.0.0.1".into()])].into();
        service.service_accounts = vec!["spiffe://td/ns/a/sa/b".into()];
        service
    };
    let before = sample().seal().fingerprint;
    let visible: [fn(&mut Service); 10] = [
        |s| s.hostname.flip(),
        |s| s.ports.flip(),
        |s| s.cluster_vips.flip(),
        |s| s.default_address.flip(),
        |s| s.auto_allocated_v4.flip(),
        |s| s.auto_allocated_v6.flip(),
        |s| s.resolution = model::Resolution::Passthrough,
        |s| s.mesh_external.flip(),
        |s| s.service_accounts.flip(),
        |s| s.attributes.node_local.flip(),
    ];
    for (at, change) in visible.into_iter().enumerate() {
        let mut changed = sample();
        change(&mut changed);
        assert_ne!(changed.seal().fingerprint, before, "change {at}");
    }
    let mut same = sample();
    same.created = Timestamp(7);
    same.resource_version.flip();
    assert_eq!(same.seal().fingerprint, before);
}
