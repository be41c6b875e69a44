//! What led from one snapshot to the next.

use std::{collections::BTreeSet, sync::Arc};

use model::{Kind, MeshState, host::is_wildcard};

use crate::{PushContext, diff, scope::Changes};

/// Kinds of objects that reach clusters and load assignments through services, their endpoints and
/// their rules alone, for a class that stays the same: routes decide which services a class sees.
const BY_SERVICE: [Kind; 12] = [
    Kind::DestinationRule,
    Kind::EndpointSlice,
    Kind::GrpcRoute,
    Kind::HttpRoute,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::ServiceEntry,
    Kind::TcpRoute,
    Kind::TlsRoute,
    Kind::VirtualService,
    Kind::WorkloadEntry,
];

/// The step from one snapshot to the next.
#[derive(Debug)]
pub(crate) struct Step {
    /// The snapshot before.
    from: Arc<()>,
    hosts: Option<BTreeSet<Arc<str>>>,
}

impl Step {
    pub(crate) fn new(changes: &Changes<'_>) -> Self {
        Self {
            from: changes.old.id.clone(),
            hosts: hosts(changes),
        }
    }
}

impl PushContext {
    /// Lists the host names of services that may look different than in `earlier`, by themselves, by
    /// their endpoints or by the rules for them, or may be seen by others, as a VirtualService leads to
    /// them.
    ///
    /// `None` when more than that differs, or when this is not the snapshot that follows `earlier`.
    pub fn hosts_changed_since(&self, earlier: &Self) -> Option<&BTreeSet<Arc<str>>> {
        let step = self.step.as_ref()?;
        Arc::ptr_eq(&step.from, &earlier.id)
            .then_some(step.hosts.as_ref())
            .flatten()
    }
}

fn hosts(changes: &Changes<'_>) -> Option<BTreeSet<Arc<str>>> {
    let (old, new): (&MeshState, &MeshState) = (changes.old.state(), changes.new.state());
    let mut kinds = new.objects.kinds_that_differ(&old.objects);
    let known = kinds.all(|kind| BY_SERVICE.contains(&kind));
    let rules = &changes.destination_rules;
    if !known
        || !Arc::ptr_eq(&old.gateways, &new.gateways)
        || rules.iter().any(|(_, host)| is_wildcard(host))
    {
        return None;
    }
    let services = changes.services.iter().map(|key| key.hostname.clone());
    let rules = rules.iter().map(|(_, host)| host.clone());
    let endpoints = diff::changes(&old.endpoints, &new.endpoints);
    let endpoints = endpoints.map(|change| change.key().hostname.clone());
    let mut hosts: BTreeSet<Arc<str>> = services.chain(rules).chain(endpoints).collect();
    for index in [changes.old, changes.new].map(PushContext::virtual_services) {
        for route in changes
            .virtual_services
            .iter()
            .filter_map(|name| index.get(name))
        {
            hosts.extend(route.destination_hosts().map(Arc::from));
        }
    }
    Some(hosts)
}
