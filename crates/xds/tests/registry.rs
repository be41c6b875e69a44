//! Registration of generators at link time, from another crate than the one with the slice.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use linkme::distributed_slice;
use tonic::Status;
use xds::{
    Interest, Peer, Registration, Registry, RegistryError, ResourceSet, TypeFacts, World,
    XDS_GENERATORS, boxed, type_url,
};

#[derive(Debug)]
struct Words;

#[derive(Debug)]
struct OtherWords;

macro_rules! world {
    ($name:ty) => {
        impl World for $name {
            type Snapshot = ();
            type Client = ();
            type Class = ();
            type Update = ();

            async fn admit(&self, (): &(), _node: &Node, _peer: &Peer) -> Result<(), Status> {
                Ok(())
            }

            fn classify(&self, (): &(), (): &()) {}

            fn root(&self, (): &()) -> Arc<str> {
                "root".into()
            }
        }
    };
}

world!(Words);
world!(OtherWords);

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form of a generator")]
fn nothing((): &(), (): &(), _interest: &Interest) -> ResourceSet {
    ResourceSet::default()
}

#[distributed_slice(XDS_GENERATORS)]
static LDS: Registration =
    Registration::new(type_url::LISTENER, "lds", TypeFacts::LISTENERS, || {
        boxed::<Words>(nothing)
    });

#[distributed_slice(XDS_GENERATORS)]
static CDS: Registration = Registration::new(type_url::CLUSTER, "cds", TypeFacts::CLUSTERS, || {
    boxed::<Words>(nothing)
});

#[distributed_slice(XDS_GENERATORS)]
static NAMES: Registration =
    Registration::new("example.org/A", "names", TypeFacts::WILDCARD, || {
        boxed::<Words>(nothing)
    });

#[test]
fn linked_generators_come_in_push_order() {
    let registry = Registry::<Words>::new(XDS_GENERATORS.iter().copied()).unwrap();
    let urls: Vec<&str> = registry
        .types()
        .iter()
        .map(xds::ServedType::type_url)
        .collect();
    assert_eq!(
        urls,
        [type_url::CLUSTER, type_url::LISTENER, "example.org/A"]
    );
    assert_eq!(registry.get(type_url::LISTENER).unwrap().module(), "lds");
    assert!(registry.get(type_url::ROUTE).is_none());
}

#[test]
fn two_modules_for_one_type_are_refused_by_name() {
    let again = Registration::new(type_url::CLUSTER, "again", TypeFacts::CLUSTERS, || {
        boxed::<Words>(nothing)
    });
    assert_eq!(
        Registry::<Words>::new(XDS_GENERATORS.iter().copied().chain([again])).unwrap_err(),
        RegistryError::Duplicate {
            type_url: type_url::CLUSTER,
            first: "again",
            second: "cds"
        },
    );
}

#[test]
fn a_generator_of_another_world_is_refused() {
    assert_eq!(
        Registry::<OtherWords>::new([LDS]).unwrap_err(),
        RegistryError::OtherWorld {
            type_url: type_url::LISTENER,
            module: "lds"
        },
    );
}
