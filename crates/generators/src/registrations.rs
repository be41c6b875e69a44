//! The generators of this crate, by type URL.

use std::sync::Arc;

use linkme::distributed_slice;
use model::Features;
use pushctx::{ClassKey, PushContext};
use xds::{
    Interest, PushOrder, Registration, ResourceSet, TypeFacts, XDS_GENERATORS, boxed, type_url,
};

use crate::{cds::Cds, ecds::Ecds, eds::Eds, lds::Lds, nds::Nds, rds::Rds, sds, world::Mesh};

/// Type URL of the name table.
pub const NAME_TABLE: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";

#[distributed_slice(XDS_GENERATORS)]
static CDS: Registration = Registration::new(
    type_url::CLUSTER,
    module_path!(),
    TypeFacts::CLUSTERS,
    || {
        let cds = Cds::with_features(&Features::default());
        boxed::<Mesh>(
            move |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                cds.generate(context, &context.resolve(key), interest)
            },
        )
    },
);

#[distributed_slice(XDS_GENERATORS)]
static EDS: Registration = Registration::new(
    type_url::ENDPOINT,
    module_path!(),
    TypeFacts::ENDPOINTS,
    || {
        let eds = Eds::with_features(&Features::default());
        boxed::<Mesh>(
            move |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                eds.generate(context, &context.resolve(key), interest)
            },
        )
    },
);

#[distributed_slice(XDS_GENERATORS)]
static LDS: Registration = Registration::new(
    type_url::LISTENER,
    module_path!(),
    TypeFacts::LISTENERS,
    || {
        let lds = Lds::default();
        boxed::<Mesh>(
            move |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                wanted(lds.generate(context, &context.resolve(key)), interest)
            },
        )
    },
);

#[distributed_slice(XDS_GENERATORS)]
static RDS: Registration =
    Registration::new(type_url::ROUTE, module_path!(), TypeFacts::ROUTES, || {
        let rds = Rds::default();
        boxed::<Mesh>(
            move |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                rds.generate(context, &context.resolve(key), interest)
            },
        )
    });

#[distributed_slice(XDS_GENERATORS)]
static SDS: Registration =
    Registration::new(type_url::SECRET, module_path!(), TypeFacts::SECRETS, || {
        boxed::<Mesh>(
            |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                sds::generate(context, &context.resolve(key), interest)
            },
        )
    });

#[distributed_slice(XDS_GENERATORS)]
static ECDS: Registration = Registration::new(
    type_url::EXTENSION,
    module_path!(),
    TypeFacts::EXTENSIONS,
    || {
        let ecds = Ecds::default();
        boxed::<Mesh>(
            move |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                ecds.generate(context, &context.resolve(key), interest)
            },
        )
    },
);

#[distributed_slice(XDS_GENERATORS)]
static NDS: Registration = Registration::new(
    NAME_TABLE,
    module_path!(),
    TypeFacts::WILDCARD.at(PushOrder::Other(0)),
    || {
        let nds = Nds::default();
        boxed::<Mesh>(
            move |context: &PushContext, key: &Arc<ClassKey>, interest: &Interest| {
                wanted(nds.generate(context, &context.resolve(key)), interest)
            },
        )
    },
);

/// Keeps the resources that were asked for.
fn wanted(set: ResourceSet, interest: &Interest) -> ResourceSet {
    match interest {
        Interest::Everything => set,
        Interest::Named(_) => set
            .iter()
            .filter(|r| interest.wants(r.name()))
            .cloned()
            .collect(),
    }
}
