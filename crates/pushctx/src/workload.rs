//! Labels and locality of a connected proxy's workload (xds-server §4.4, service-registry §6).

use std::sync::Arc;

use model::{
    Config, Labels, Locality, NamespacedName, Proxy,
    api::kubernetes::{Node, Pod},
};

use crate::PushContext;

const REGION: &str = "topology.kubernetes.io/region";
const LEGACY_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const ZONE: &str = "topology.kubernetes.io/zone";
const LEGACY_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const SUBZONE: &str = "topology.istio.io/subzone";
const CLUSTER: &str = "topology.istio.io/cluster";
const NETWORK: &str = "topology.istio.io/network";
/// The label with the name of the workload's node.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
/// Labels that state the whole locality, the first one present counts.
const LOCALITY: [&str; 2] = ["topology.istio.io/locality", "istio-locality"];
/// A pod that stands for a virtual machine in tests: its own metadata is believed.
const TEST_VM: &str = "istio.io/test-vm";

impl PushContext {
    /// Finds the labels and the locality of a proxy's workload.
    pub(crate) fn labels_and_locality(&self, proxy: &Proxy) -> (Labels, Locality) {
        let metadata = &proxy.metadata;
        let registered = if is_vm(proxy) {
            None
        } else {
            self.registered_labels(proxy)
        };
        let mut labels = match registered.filter(|labels| !labels.is_empty()) {
            Some(registered) => {
                let mut labels = metadata.static_labels.clone();
                labels.extend(registered);
                labels
            }
            None => metadata.labels.clone(),
        };
        let locality = locality_of_labels(&labels).unwrap_or_else(|| proxy.locality.clone());
        let node = &metadata.node_name;
        augment(
            &mut labels,
            &locality,
            &metadata.cluster_id,
            node,
            &metadata.network,
        );
        (labels, locality)
    }

    /// What the registries know of the workload: the pod's labels, or those of a ServiceEntry's
    /// instance at one of its addresses.
    fn registered_labels(&self, proxy: &Proxy) -> Option<Labels> {
        if let Some(pod) = self.pod_of(proxy) {
            let mut labels = pod.meta.labels.clone();
            let stated = &proxy.metadata.node_name;
            let node = if stated.is_empty() {
                &pod.spec.spec.node_name
            } else {
                stated
            };
            let locality = self.locality_of_pod(pod);
            augment(
                &mut labels,
                &locality,
                &self.identity().cluster,
                node,
                self.own_network(),
            );
            return Some(labels);
        }
        let namespace = &*proxy.metadata.namespace;
        proxy
            .addresses
            .iter()
            .map(ToString::to_string)
            .flat_map(|ip| self.state().instances_at(&ip).cloned().collect::<Vec<_>>())
            .filter(|i| namespace.is_empty() || *i.service.key.namespace == *namespace)
            .map(|instance| instance.endpoint.labels.clone())
            .find(|labels| !labels.is_empty())
            .map(|labels| Labels::clone(&labels))
    }

    /// Finds the proxy's pod, when it is one of our own cluster.
    pub(crate) fn pod_of(&self, proxy: &Proxy) -> Option<&Arc<Config<Pod>>> {
        if !self.is_of_own_cluster(proxy) {
            return None;
        }
        let (name, namespace) = proxy.id.rsplit_once('.')?;
        if namespace != proxy.metadata.namespace {
            return None;
        }
        self.state()
            .objects
            .pods
            .get(&NamespacedName::new(namespace, name))
    }

    /// Tells whether the Kubernetes registry of our own cluster answers for a proxy.
    pub(crate) fn is_of_own_cluster(&self, proxy: &Proxy) -> bool {
        let cluster = &*proxy.metadata.cluster_id;
        cluster.is_empty() || *self.identity().cluster == *cluster
    }

    /// The locality of a pod: its label, else that of its node (service-registry §6.2).
    fn locality_of_pod(&self, pod: &Config<Pod>) -> Locality {
        let stated = LOCALITY.iter().find_map(|key| pod.meta.labels.get(*key));
        // An empty label hides an older one, and leaves the locality to the node.
        if let Some(stated) = stated.filter(|text| !text.is_empty()) {
            return if stated.contains('/') {
                Locality::parse(stated)
            } else {
                Locality::parse(&stated.replace('.', "/"))
            };
        }
        let name = NamespacedName::new("", &*pod.spec.spec.node_name);
        self.state()
            .objects
            .nodes
            .get(&name)
            .map(|node| locality_of_node(node))
            .unwrap_or_default()
    }

    /// The network of our own cluster: label of the system namespace, else the mesh networks'
    /// entry for the cluster; empty when neither says.
    fn own_network(&self) -> &str {
        let system = NamespacedName::new("", self.identity().system_namespace.clone());
        let namespace = self.state().objects.namespaces.get(&system);
        if let Some(network) = namespace.and_then(|n| n.meta.labels.get(NETWORK)) {
            return network;
        }
        let cluster = &*self.identity().cluster;
        let ours = |endpoints: &[model::api::mesh::NetworkEndpoints]| {
            endpoints
                .iter()
                .any(|e| e.from_registry.as_deref() == Some(cluster))
        };
        self.networks()
            .networks
            .iter()
            .find(|(_, network)| ours(&network.endpoints))
            .map_or("", |(name, _)| name)
    }
}

/// Tells whether the proxy says that it is a virtual machine.
pub(crate) fn is_vm(proxy: &Proxy) -> bool {
    proxy
        .metadata
        .labels
        .get(TEST_VM)
        .is_some_and(|v| !v.is_empty())
}

fn locality_of_node(node: &Config<Node>) -> Locality {
    let label = |keys: &[&str]| -> Arc<str> {
        keys.iter()
            .find_map(|key| node.meta.labels.get(*key))
            .map_or("", String::as_str)
            .into()
    };
    Locality {
        region: label(&[REGION, LEGACY_REGION]),
        zone: label(&[ZONE, LEGACY_ZONE]),
        subzone: label(&[SUBZONE]),
    }
}

/// The locality that labels state; `None` when they state none.
fn locality_of_labels(labels: &Labels) -> Option<Locality> {
    let part = |key: &str| labels.get(key).map(String::as_str);
    let (region, zone, subzone) = (part(REGION), part(ZONE), part(SUBZONE));
    if region.is_some() || zone.is_some() || subzone.is_some() {
        let text = |part: Option<&str>| Arc::from(part.unwrap_or_default());
        return Some(Locality {
            region: text(region),
            zone: text(zone),
            subzone: text(subzone),
        });
    }
    LOCALITY
        .iter()
        .find_map(|key| labels.get(*key))
        .map(|text| Locality::parse(text))
}

/// Adds topology labels; empty values add nothing, and a network that is there stays.
fn augment(labels: &mut Labels, locality: &Locality, cluster: &str, node: &str, network: &str) {
    for (key, value) in [
        (REGION, &*locality.region),
        (ZONE, &*locality.zone),
        (SUBZONE, &*locality.subzone),
        (CLUSTER, cluster),
        (HOSTNAME, node),
    ] {
        if !value.is_empty() {
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
    if !network.is_empty() {
        labels
            .entry(NETWORK.to_owned())
            .or_insert_with(|| network.to_owned());
    }
}
