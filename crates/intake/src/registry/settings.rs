//! What every derivation may read besides its own objects.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use model::{Features, Labels, MeshState, ServiceKey};

/// The network of a workload, a namespace or a gateway.
pub(crate) const NETWORK_LABEL: &str = "topology.istio.io/network";

/// Facts of the mesh and of this cluster, in the form that derivations need them.
///
/// Equal settings give equal derivations: when they change, everything is derived anew.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settings {
    /// Domain of Kubernetes services.
    pub(crate) domain: Arc<str>,
    /// This cluster's id.
    pub(crate) cluster: Arc<str>,
    /// Trust domain, in the spelling of identities.
    pub(crate) trust_domain: String,
    /// Feature flags.
    pub(crate) features: Arc<Features>,
    /// Network of every workload that states none.
    cluster_network: Option<Arc<str>>,
    /// Networks by address range, longest prefix first.
    ranges: Vec<(IpNet, Arc<str>)>,
    /// Often used strings.
    pub(crate) words: Words,
}

/// Strings that very many endpoints share.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Words {
    pub(crate) empty: Arc<str>,
    pub(crate) istio: Arc<str>,
    pub(crate) disabled: Arc<str>,
}

impl Settings {
    /// Reads the settings off a state.
    pub(crate) fn of(state: &MeshState) -> Self {
        let cluster = state.identity.cluster.clone();
        let system = &state.identity.system_namespace;
        let of_system = state
            .objects
            .namespaces
            .get(&model::NamespacedName::new("", system.clone()))
            .and_then(|n| n.meta.labels.get(NETWORK_LABEL))
            .filter(|n| !n.is_empty());
        let endpoints = || {
            state
                .networks
                .networks
                .iter()
                .flat_map(|(name, network)| network.endpoints.iter().map(move |e| (name, e)))
        };
        let of_registry = endpoints()
            .find(|(_, e)| e.from_registry.as_deref() == Some(&*cluster))
            .map(|(name, _)| name);
        let mut ranges: Vec<(IpNet, Arc<str>)> = endpoints()
            .filter_map(|(name, e)| {
                Some((e.from_cidr.as_ref()?.parse().ok()?, name.as_str().into()))
            })
            .collect();
        ranges.sort_by_key(|(range, _)| std::cmp::Reverse(range.prefix_len()));
        Self {
            domain: state.identity.domain.clone(),
            trust_domain: state.mesh.trust_domain.replace('@', "."),
            features: state.features.clone(),
            cluster_network: of_system.or(of_registry).map(|n| n.as_str().into()),
            ranges,
            words: Words {
                empty: "".into(),
                istio: "istio".into(),
                disabled: "disabled".into(),
            },
            cluster,
        }
    }

    /// The identity of a service account.
    pub(crate) fn identity(&self, namespace: &str, account: &str) -> Arc<str> {
        format!("spiffe://{}/ns/{namespace}/sa/{account}", self.trust_domain).into()
    }

    /// The network of a workload with these labels of its own at an address (service-registry §6.3).
    pub(crate) fn network(&self, labels: &Labels, address: &str) -> Arc<str> {
        match labels.get(NETWORK_LABEL) {
            Some(own) if !own.is_empty() => own.as_str().into(),
            _ => self.network_of_address(address),
        }
    }

    /// The network of a workload that states none.
    pub(crate) fn network_of_address(&self, address: &str) -> Arc<str> {
        if let Some(network) = &self.cluster_network {
            return network.clone();
        }
        if self.ranges.is_empty() {
            return self.words.empty.clone();
        }
        let Ok(address) = address.parse::<IpAddr>() else {
            return self.words.empty.clone();
        };
        let network = self
            .ranges
            .iter()
            .find(|(range, _)| range.contains(&address));
        network.map_or_else(|| self.words.empty.clone(), |(_, network)| network.clone())
    }

    /// Tells whether two addresses of one workload can be in different networks.
    pub(crate) fn network_depends_on_address(&self) -> bool {
        self.cluster_network.is_none() && !self.ranges.is_empty()
    }

    /// The key of a Kubernetes service, whether the Service exists or not.
    pub(crate) fn service_key(&self, namespace: &Arc<str>, name: &str) -> ServiceKey {
        let hostname = format!("{name}.{namespace}.svc.{}", self.domain);
        ServiceKey {
            namespace: namespace.clone(),
            hostname: hostname.into(),
        }
    }
}
