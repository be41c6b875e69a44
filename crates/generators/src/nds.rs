//! The name table that the agent beside a sidecar answers DNS from (listeners §21).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use envoy_json::{
    canonical,
    istio::nds::{NameInfo, NameTable},
};
use model::{
    AddressView, Endpoint, Health, Resolution, Service, fingerprint,
    service::{Registry, UNSPECIFIED_ADDRESS},
};
use pushctx::{ProxyClass, PushContext};
use xds::{Resource, ResourceSet, Source};

use crate::cache::Cache;

/// Suffix of host names of multi-cluster services, which have no short forms.
const CLUSTERSET: &str = ".clusterset.local";

/// Tables that are kept, one for each class; a mesh of 1 000 services and 10 classes has 10.
const CACHED_TABLES: usize = 1_000;

/// Builds name tables. A table whose names did not change is not built again.
#[derive(Debug)]
pub struct Nds {
    cache: Cache<Arc<Resource>>,
}

impl Default for Nds {
    fn default() -> Self {
        Self {
            cache: Cache::new(CACHED_TABLES),
        }
    }
}

impl Nds {
    /// Returns the name table of a class: one resource without a name.
    pub fn generate(&self, snapshot: &PushContext, class: &ProxyClass) -> ResourceSet {
        let names = Names::of(snapshot, class);
        let key = fingerprint::of(&(&names.entries, &names.sources));
        let table = self.cache.get_or_build(key, || Arc::new(names.build()));
        ResourceSet::from_iter([table])
    }
}

/// One name under construction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry {
    addresses: Vec<Arc<str>>,
    registry: Registry,
    short_name: String,
    namespace: Arc<str>,
    /// The addresses come from the proxy's own cluster; those of others are left out then.
    same_cluster: bool,
}

impl Entry {
    fn info(self) -> NameInfo {
        NameInfo {
            ips: self.addresses.iter().map(ToString::to_string).collect(),
            registry: match self.registry {
                Registry::Kubernetes => "Kubernetes".to_owned(),
                Registry::External => "External".to_owned(),
            },
            shortname: self.short_name,
            namespace: self.namespace.to_string(),
            alt_hosts: Vec::new(),
        }
    }
}

struct Names<'a> {
    snapshot: &'a PushContext,
    class: &'a ProxyClass,
    view: AddressView,
    entries: BTreeMap<String, Entry>,
    sources: BTreeSet<String>,
}

impl<'a> Names<'a> {
    fn of(snapshot: &'a PushContext, class: &'a ProxyClass) -> Self {
        let mut names = Self {
            snapshot,
            class,
            view: AddressView::of(&class.proxy, snapshot.features()),
            entries: BTreeMap::new(),
            sources: BTreeSet::new(),
        };
        for egress in &class.scope.egress {
            for service in &egress.services {
                names.add(service);
            }
        }
        names
    }

    /// Builds the table of these names.
    fn build(self) -> Resource {
        let entries = self.entries.into_iter();
        let message = NameTable {
            table: entries.map(|(name, entry)| (name, entry.info())).collect(),
        };
        let sources: Vec<Source> = self.sources.into_iter().map(Source::from).collect();
        Resource::new("", canonical(&message)).with_sources(sources)
    }

    fn add(&mut self, service: &Service) {
        let mut addresses = Vec::new();
        let mut headless = false;
        for address in service.addresses_for(&self.view) {
            if &*address == UNSPECIFIED_ADDRESS {
                headless = true;
                break;
            }
            if is_ip(&address) {
                addresses.push(address);
            }
        }
        let ours = headless && service.resolution == Resolution::Passthrough;
        if ours && !service.ports.is_empty() {
            addresses.extend(self.add_pods(service));
        }
        if !addresses.is_empty() {
            self.sources.insert(service.source.key().to_string());
            self.insert(service, addresses);
        }
    }

    /// Adds the names of a headless service's pods; returns the addresses of the service itself.
    fn add_pods(&mut self, service: &Service) -> Vec<Arc<str>> {
        let Some(endpoints) = self.snapshot.endpoints_of(service) else {
            return Vec::new();
        };
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for endpoint in endpoints.iter() {
            let usable = matches!(endpoint.health, Health::Healthy | Health::Unknown)
                || service.attributes.publish_not_ready_addresses;
            let literal =
                !endpoint.addresses.is_empty() && endpoint.addresses.iter().all(|a| is_ip(a));
            if !usable || !literal || !seen.insert(endpoint.address().to_owned()) {
                continue;
            }
            if !self.on_own_network(endpoint) {
                continue;
            }
            self.add_pod(service, endpoint);
            let own_cluster = *endpoint.cluster == self.class.proxy.metadata.cluster_id;
            if self.snapshot.features().multicluster_headless || own_cluster {
                all.extend(endpoint.addresses.iter().cloned());
            }
        }
        all
    }

    fn on_own_network(&self, endpoint: &Endpoint) -> bool {
        let own = self.class.proxy.metadata.network.as_str();
        own.is_empty() || endpoint.network.is_empty() || &*endpoint.network == own
    }

    fn add_pod(&mut self, service: &Service, endpoint: &Endpoint) {
        if endpoint.subdomain.is_empty() {
            return;
        }
        let Some((_, parent)) = service.hostname.split_once('.') else {
            return;
        };
        let short_name = format!("{}.{}", endpoint.hostname, endpoint.subdomain);
        let name = format!("{short_name}.{parent}");
        let same_cluster = *endpoint.cluster == self.class.proxy.metadata.cluster_id;
        match self.entries.get_mut(&name) {
            None => {
                self.entries.insert(
                    name,
                    Entry {
                        addresses: endpoint.addresses.clone(),
                        registry: service.attributes.registry,
                        short_name,
                        namespace: service.attributes.namespace.clone(),
                        same_cluster,
                    },
                );
            }
            Some(known) if known.same_cluster == same_cluster => {
                known.addresses.extend(endpoint.addresses.iter().cloned());
            }
            Some(known) if same_cluster => {
                known.addresses.clone_from(&endpoint.addresses);
                known.same_cluster = true;
            }
            Some(_) => {}
        }
    }

    fn insert(&mut self, service: &Service, addresses: Vec<Arc<str>>) {
        let kubernetes = service.is_kubernetes();
        let (short_name, namespace) = if kubernetes && !service.hostname.ends_with(CLUSTERSET) {
            (
                service.attributes.name.to_string(),
                service.attributes.namespace.clone(),
            )
        } else {
            (String::new(), Arc::from(""))
        };
        let entry = Entry {
            addresses,
            registry: service.attributes.registry,
            short_name,
            namespace,
            same_cluster: false,
        };
        match self.entries.get_mut(&*service.hostname) {
            None => {
                self.entries.insert(service.hostname.to_string(), entry);
            }
            Some(known) if known.registry == Registry::Kubernetes => {}
            Some(known) if kubernetes => *known = entry,
            Some(known) => known.addresses.extend(entry.addresses),
        }
    }
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}
