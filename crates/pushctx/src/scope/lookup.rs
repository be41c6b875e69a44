//! Services and rules of a scope by host name.

use std::{collections::BTreeMap, sync::Arc};

use model::Service;
use rustc_hash::FxHashMap;

use crate::{
    DestinationRuleIndex, ServiceIndex,
    destination_rule::{FoundRules, RuleList},
};

/// How a scope finds what it has for a host name.
#[derive(Clone, Debug)]
pub(super) enum Lookup {
    /// It has its own tables.
    Own(FxHashMap<Arc<str>, (Arc<Service>, RuleList)>),
    /// It imports everything: it looks into the snapshot's indexes.
    View(Box<Indexes>),
}

/// The indexes of a snapshot, and what differs from them.
#[derive(Clone, Debug)]
pub(super) struct Indexes {
    pub(super) services: Arc<ServiceIndex>,
    pub(super) rules: Arc<DestinationRuleIndex>,
    pub(super) special: BTreeMap<Arc<str>, Option<Arc<Service>>>,
}

impl Lookup {
    pub(super) fn service(&self, hostname: &str, namespace: &str) -> Option<&Arc<Service>> {
        match self {
            Self::Own(table) => table.get(hostname).map(|(service, _)| service),
            Self::View(indexes) => {
                if let Some(special) = indexes.special.get(hostname) {
                    return special.as_ref();
                }
                let mut owners = indexes.services.by_host(hostname);
                owners
                    .next()
                    .filter(|s| indexes.services.is_listed(s, namespace))
            }
        }
    }

    pub(super) fn rules<'a>(&'a self, hostname: &str, namespace: &'a str) -> FoundRules<'a> {
        match self {
            Self::Own(table) => {
                let list = table.get(hostname).map_or(&[][..], |(_, rules)| rules);
                FoundRules { list, client: None }
            }
            Self::View(indexes) if indexes.rules.is_empty() => FoundRules::default(),
            Self::View(indexes) => match self.service(hostname, namespace) {
                Some(service) => {
                    let owner = &service.attributes.namespace;
                    indexes.rules.find(namespace, owner, hostname)
                }
                None => FoundRules::default(),
            },
        }
    }
}
