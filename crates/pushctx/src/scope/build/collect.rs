//! Services of a scope, one per host name (config-model §13.4).

use std::sync::Arc;

use model::Service;
use rustc_hash::FxHashMap;

/// Services in the order in which their host names came.
#[derive(Default)]
pub(in crate::scope) struct Collector {
    services: Vec<Arc<Service>>,
    places: FxHashMap<Arc<str>, usize>,
}

impl Collector {
    /// Adds a service, or what it brings to the one with its host name that is there already.
    pub(in crate::scope) fn add(&mut self, new: &Arc<Service>) {
        let Some(&at) = self.places.get(&new.hostname) else {
            self.places
                .insert(new.hostname.clone(), self.services.len());
            self.services.push(new.clone());
            return;
        };
        let present = &mut self.services[at];
        match (present.is_kubernetes(), new.is_kubernetes()) {
            (true, false) => {}
            (false, true) => *present = new.clone(),
            _ if Arc::ptr_eq(present, new) || present.ports == new.ports => {}
            _ if !are_parts_of_one(present, new) => {}
            _ => {
                let mut joined = Service::clone(present);
                for port in &new.ports {
                    if joined.port(port.port).is_none() {
                        joined.ports.push(port.clone());
                    }
                }
                *present = joined.seal();
            }
        }
    }

    pub(in crate::scope) fn into_services(self) -> Vec<Arc<Service>> {
        self.services
    }
}

fn are_parts_of_one(a: &Service, b: &Service) -> bool {
    let (x, y) = (&a.attributes, &b.attributes);
    a.resolution == b.resolution
        && x.namespace == y.namespace
        && x.registry == y.registry
        && x.labels == y.labels
        && x.selector == y.selector
        && x.export_to == y.export_to
}
