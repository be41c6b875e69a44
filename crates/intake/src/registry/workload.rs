//! Pods and WorkloadEntries as endpoints see them (service-registry §6, §12.3).

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, Endpoint, Health, Labels, Locality, Meta, Timestamp,
    api::{WorkloadEntry, kubernetes},
    turn::{Turn, turn},
};

use super::settings::{NETWORK_LABEL, Settings};

const CLUSTER_LABEL: &str = "topology.istio.io/cluster";
const REGION_LABEL: &str = "topology.kubernetes.io/region";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const SUBZONE_LABEL: &str = "topology.istio.io/subzone";
const OLD_REGION_LABEL: &str = "failure-domain.beta.kubernetes.io/region";
const OLD_ZONE_LABEL: &str = "failure-domain.beta.kubernetes.io/zone";
const NODE_LABEL: &str = "kubernetes.io/hostname";
const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";
const WORKLOAD_NAME_LABEL: &str = "service.istio.io/workload-name";
const HEALTH_CHECKS_ANNOTATION: &str = "proxy.istio.io/health-checks-enabled";
const REGISTRATION_ANNOTATION: &str = "istio.io/autoRegistrationGroup";
/// Annotation of pods whose traffic the proxy of the node takes; what is deployed on nodes writes it.
const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";
/// Label of endpoints that can be reached through tunnels, with their kinds.
const TUNNEL_LABEL: &str = "networking.istio.io/tunnel";
const UNIX_PREFIX: &str = "unix://";

/// Everything an endpoint takes from the workload behind it.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct Workload {
    /// Addresses, the first one first. Of a WorkloadEntry the one it states, even an empty one.
    pub(crate) addresses: Vec<Arc<str>>,
    /// The workload's labels with topology labels.
    pub(crate) labels: Arc<Labels>,
    /// SPIFFE identity, or empty.
    pub(crate) identity: Arc<str>,
    /// Network of the first address, or empty.
    pub(crate) network: Arc<str>,
    /// The workload itself states its network.
    states_network: bool,
    pub(crate) locality: Locality,
    pub(crate) weight: u32,
    pub(crate) tls_mode: Arc<str>,
    pub(crate) namespace: Arc<str>,
    /// Name of the Deployment and the like.
    pub(crate) name: Arc<str>,
    pub(crate) hostname: Arc<str>,
    pub(crate) subdomain: Arc<str>,
    pub(crate) node_name: Arc<str>,
    /// Ports by name: of a pod the named container ports, of a WorkloadEntry its `ports`.
    pub(crate) ports: BTreeMap<String, u16>,
    /// Selectors select it: a pod that is ready, a WorkloadEntry that is not unhealthy.
    pub(crate) selectable: bool,
    /// A host name or Unix path, of use for entries with DNS resolution only.
    pub(crate) dns_only: bool,
    /// The pod shares the addresses of its node.
    pub(crate) host_network: bool,
    /// The pod is on its way out: its address may have been given away.
    pub(crate) leaving: bool,
    /// Whether what slices say of it counts.
    pub(crate) turn: Turn,
    /// Health of endpoints that no slice describes: known of a pod that is selected, because it is
    /// ready, not of other workloads.
    health: Health,
    /// Creation time of the object.
    pub(crate) created: Timestamp,
}

impl Workload {
    /// Derives the workload of a pod. `None` for one that has failed or finished: its address is free for
    /// others, whatever a slice still says.
    pub(crate) fn of_pod(
        pod: &Config<kubernetes::Pod>,
        node: Option<&Config<kubernetes::Node>>,
        settings: &Settings,
    ) -> Option<Self> {
        let Config {
            meta,
            spec: kubernetes::Pod { spec, status, .. },
        } = pod;
        if matches!(status.phase.as_str(), "Failed" | "Succeeded") {
            return None;
        }
        let mut addresses: Vec<Arc<str>> = status
            .pod_ips
            .iter()
            .filter(|p| !p.ip.is_empty())
            .map(|p| p.ip.as_str().into())
            .collect();
        if !status.pod_ip.is_empty() && !addresses.iter().any(|a| **a == status.pod_ip) {
            addresses.insert(0, status.pod_ip.as_str().into());
        }
        let locality = stated_locality(&meta.labels).unwrap_or_else(|| {
            node.map(|n| node_locality(&n.meta.labels))
                .unwrap_or_default()
        });
        let first = addresses.first().map_or("", |a| &**a);
        let network = settings.network(&meta.labels, first);
        let mut labels =
            with_topology(&meta.labels, &locality, settings, &spec.node_name, &network);
        if settings.features.ambient && is_redirected(meta) {
            labels.insert(TUNNEL_LABEL.to_owned(), "http".to_owned());
        }
        let ready = status
            .conditions
            .iter()
            .any(|c| c.r#type == "Ready" && c.status == "True");
        let leaving = meta.deleting;
        let turn = if settings.features.pod_distribution {
            turn(pod)
        } else {
            Turn::Listed
        };
        let (hostname, subdomain) = if spec.subdomain.is_empty() {
            (settings.words.empty.clone(), settings.words.empty.clone())
        } else if spec.hostname.is_empty() {
            (meta.name.clone(), spec.subdomain.as_str().into())
        } else {
            (
                spec.hostname.as_str().into(),
                spec.subdomain.as_str().into(),
            )
        };
        Some(Self {
            selectable: (ready || turn == Turn::Coming) && !leaving && !addresses.is_empty(),
            addresses,
            labels: Arc::new(labels),
            identity: settings.identity(&meta.namespace, &spec.service_account_name),
            network,
            states_network: meta.labels.contains_key(NETWORK_LABEL),
            locality,
            weight: 0,
            tls_mode: tls_mode(&meta.labels, settings)
                .unwrap_or_else(|| settings.words.disabled.clone()),
            namespace: meta.namespace.clone(),
            name: pod_workload_name(meta),
            hostname,
            subdomain,
            node_name: spec.node_name.as_str().into(),
            ports: container_ports(spec),
            dns_only: false,
            host_network: spec.host_network,
            leaving,
            turn,
            health: Health::Healthy,
            created: meta.created,
        })
    }

    /// Derives the workload of a WorkloadEntry.
    pub(crate) fn of_entry(entry: &Config<WorkloadEntry>, settings: &Settings) -> Self {
        let Config { meta, spec } = entry;
        let mut labels = spec.labels.clone();
        labels.extend(meta.labels.iter().map(|(k, v)| (k.clone(), v.clone())));
        let name = match (
            meta.annotations.get(REGISTRATION_ANNOTATION),
            meta.labels.get(WORKLOAD_NAME_LABEL),
        ) {
            (Some(group), _) => group.as_str().into(),
            (None, Some(label)) => label.as_str().into(),
            (None, None) => meta.name.clone(),
        };
        let checked = settings.features.workload_entry_health_checks
            && meta
                .annotations
                .get(HEALTH_CHECKS_ANNOTATION)
                .is_some_and(|a| is_true(a));
        let healthy = spec
            .status
            .conditions
            .iter()
            .any(|c| c.r#type == "Healthy" && c.status == "True");
        Self {
            selectable: !checked || healthy,
            created: meta.created,
            ..Self::of_address(spec, &labels, &meta.namespace, name, settings)
        }
    }

    /// Derives the workload of an endpoint that a ServiceEntry lists itself.
    pub(crate) fn of_inline(
        endpoint: &WorkloadEntry,
        namespace: &Arc<str>,
        name: &str,
        settings: &Settings,
    ) -> Self {
        // The label for workload names does not count here, unlike on a WorkloadEntry.
        Self::of_address(endpoint, &endpoint.labels, namespace, name.into(), settings)
    }

    fn of_address(
        entry: &WorkloadEntry,
        labels: &Labels,
        namespace: &Arc<str>,
        name: Arc<str>,
        settings: &Settings,
    ) -> Self {
        let locality = if entry.locality.is_empty() {
            stated_locality(labels).unwrap_or_default()
        } else {
            Locality::parse(&entry.locality)
        };
        let network: Arc<str> = entry.network.as_str().into();
        let has_account = !entry.service_account.is_empty();
        let tls_mode = tls_mode(labels, settings).unwrap_or_else(|| {
            if has_account {
                settings.words.istio.clone()
            } else {
                settings.words.disabled.clone()
            }
        });
        let address = &entry.address;
        Self {
            addresses: vec![address.as_str().into()],
            labels: Arc::new(with_topology(labels, &locality, settings, "", &network)),
            identity: if has_account {
                settings.identity(namespace, &entry.service_account)
            } else {
                settings.words.empty.clone()
            },
            network,
            states_network: true,
            locality,
            weight: entry.weight,
            tls_mode,
            namespace: namespace.clone(),
            name,
            hostname: settings.words.empty.clone(),
            subdomain: settings.words.empty.clone(),
            node_name: settings.words.empty.clone(),
            ports: entry
                .ports
                .iter()
                .filter_map(|(name, port)| Some((name.clone(), u16::try_from(*port).ok()?)))
                .collect(),
            selectable: true,
            dns_only: !address.is_empty() && address.parse::<std::net::IpAddr>().is_err(),
            host_network: false,
            leaving: false,
            turn: Turn::Listed,
            health: Health::Unknown,
            created: Timestamp::default(),
        }
    }

    /// Makes the endpoint of this workload at some of its addresses.
    pub(crate) fn endpoint(
        &self,
        addresses: Vec<Arc<str>>,
        port: u16,
        service_port_name: Arc<str>,
        settings: &Settings,
    ) -> Endpoint {
        let first = addresses.first().map_or("", |a| &**a);
        let same = self.states_network
            || !settings.network_depends_on_address()
            || self.addresses.first().is_some_and(|a| &**a == first);
        let network = if same {
            self.network.clone()
        } else {
            settings.network_of_address(first)
        };
        let labels = if network == self.network {
            self.labels.clone()
        } else {
            let mut labels = Labels::clone(&self.labels);
            labels.insert(NETWORK_LABEL.to_owned(), network.to_string());
            Arc::new(labels)
        };
        Endpoint {
            addresses,
            port,
            service_port_name,
            legacy_port_key: 0,
            labels,
            service_account: self.identity.clone(),
            network,
            locality: self.locality.clone(),
            cluster: settings.cluster.clone(),
            weight: self.weight,
            tls_mode: self.tls_mode.clone(),
            namespace: self.namespace.clone(),
            workload_name: self.name.clone(),
            hostname: self.hostname.clone(),
            subdomain: self.subdomain.clone(),
            same_cluster_only: false,
            health: self.health,
            send_unhealthy: false,
            node_name: self.node_name.clone(),
        }
    }

    /// Tells whether this pod has taken over the addresses that `other` still claims.
    pub(crate) fn supersedes(&self, other: &Self) -> bool {
        if self.host_network || other.host_network {
            return false;
        }
        match (self.leaving, other.leaving) {
            (false, true) => true,
            (true, false) => false,
            (true, true) | (false, false) => self.created > other.created,
        }
    }
}

/// Makes the endpoint of an address that no pod is behind.
pub(crate) fn bare_endpoint(
    address: Arc<str>,
    port: u16,
    service_port_name: Arc<str>,
    settings: &Settings,
) -> Endpoint {
    let network = settings.network_of_address(&address);
    let empty = &settings.words.empty;
    Endpoint {
        addresses: vec![address],
        port,
        service_port_name,
        legacy_port_key: 0,
        labels: Arc::new(with_topology(
            &Labels::new(),
            &Locality::default(),
            settings,
            "",
            &network,
        )),
        service_account: empty.clone(),
        network,
        locality: Locality::default(),
        cluster: settings.cluster.clone(),
        weight: 0,
        tls_mode: settings.words.disabled.clone(),
        namespace: empty.clone(),
        workload_name: empty.clone(),
        hostname: empty.clone(),
        subdomain: empty.clone(),
        same_cluster_only: false,
        health: Health::Unknown,
        send_unhealthy: false,
        node_name: empty.clone(),
    }
}

/// The path in a `unix://` address.
pub(crate) fn unix_path(address: &str) -> Option<&str> {
    address.strip_prefix(UNIX_PREFIX)
}

/// Tells whether a pod's traffic goes through the proxy of its node, which takes tunnels for it.
fn is_redirected(meta: &Meta) -> bool {
    let state = meta.annotations.get(REDIRECTION_ANNOTATION);
    state.is_some_and(|state| state == "enabled")
}

/// Lays topology labels over a workload's own (service-registry §6.1).
fn with_topology(
    own: &Labels,
    locality: &Locality,
    settings: &Settings,
    node: &str,
    network: &str,
) -> Labels {
    let topology = [
        (REGION_LABEL, &*locality.region),
        (ZONE_LABEL, &locality.zone),
        (SUBZONE_LABEL, &locality.subzone),
        (CLUSTER_LABEL, &settings.cluster),
        (NODE_LABEL, node),
    ];
    let topology = topology.iter().filter(|(_, value)| !value.is_empty());
    let mut labels = Labels::with_capacity(own.len() + topology.clone().count() + 1);
    labels.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
    labels.extend(topology.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    labels
        .entry(NETWORK_LABEL.to_owned())
        .or_insert_with(|| network.to_owned());
    labels
}

/// The locality in a workload's labels; `None` when it is left to the node.
fn stated_locality(labels: &Labels) -> Option<Locality> {
    let value = ["topology.istio.io/locality", "istio-locality"]
        .iter()
        .find_map(|k| labels.get(*k))?;
    if value.is_empty() {
        return None;
    }
    if value.contains('/') {
        return Some(Locality::parse(value));
    }
    Some(Locality::parse(&value.replace('.', "/")))
}

/// The locality of a node.
fn node_locality(labels: &Labels) -> Locality {
    let first = |keys: &[&str]| -> Arc<str> {
        keys.iter()
            .find_map(|k| labels.get(*k))
            .map_or("", String::as_str)
            .into()
    };
    Locality {
        region: first(&[REGION_LABEL, OLD_REGION_LABEL]),
        zone: first(&[ZONE_LABEL, OLD_ZONE_LABEL]),
        subzone: first(&[SUBZONE_LABEL]),
    }
}

fn tls_mode(labels: &Labels, settings: &Settings) -> Option<Arc<str>> {
    match labels.get(TLS_MODE_LABEL)?.as_str() {
        "istio" => Some(settings.words.istio.clone()),
        "disabled" => Some(settings.words.disabled.clone()),
        other => Some(other.into()),
    }
}

/// The name of what a pod belongs to (service-registry §6.5).
fn pod_workload_name(meta: &Meta) -> Arc<str> {
    if let Some(name) = meta.labels.get(WORKLOAD_NAME_LABEL) {
        return name.as_str().into();
    }
    let Some(owner) = meta.controller.as_ref().filter(|_| meta.generated_name) else {
        return meta.name.clone();
    };
    let name = owner.name.as_str();
    let without_hash = |label| {
        let hash = meta.labels.get(label)?;
        name.strip_suffix(hash.as_str())?.strip_suffix('-')
    };
    let refined = match owner.kind.as_str() {
        "ReplicaSet" => {
            without_hash("pod-template-hash").or_else(|| without_hash("rollouts-pod-template-hash"))
        }
        "ReplicationController" => meta.labels.get("deploymentconfig").map(String::as_str),
        "Job" => name.rsplit_once('-').and_then(|(job, run)| {
            let is_run = (8..=10).contains(&run.len()) && run.bytes().all(|b| b.is_ascii_digit());
            is_run.then_some(job)
        }),
        _ => None,
    };
    refined.unwrap_or(name).into()
}

/// Named TCP ports of a pod's containers, native sidecars among them; the first of a name wins.
fn container_ports(spec: &kubernetes::PodSpec) -> BTreeMap<String, u16> {
    let sidecars = spec
        .init_containers
        .iter()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut ports = BTreeMap::new();
    for port in spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| &c.ports)
    {
        let tcp = matches!(port.protocol.as_str(), "" | "TCP");
        if let (true, false, Ok(number)) = (
            tcp,
            port.name.is_empty(),
            u16::try_from(port.container_port),
        ) {
            ports.entry(port.name.clone()).or_insert(number);
        }
    }
    ports
}

fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::config::Owner;

    #[track_caller]
    fn check_name(kind: &str, owner: &str, labels: &[(&str, &str)], expected: &str) {
        let meta = Meta {
            name: "pod".into(),
            generated_name: true,
            controller: Some(Box::new(Owner {
                kind: kind.to_owned(),
                name: owner.to_owned(),
            })),
            labels: labels
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            ..Meta::default()
        };
        assert_eq!(&*pod_workload_name(&meta), expected);
    }

    #[test]
    fn workload_names() {
        check_name(
            "ReplicaSet",
            "web-6b7",
            &[("pod-template-hash", "6b7")],
            "web",
        );
        check_name(
            "ReplicaSet",
            "web-6b7",
            &[("pod-template-hash", "777")],
            "web-6b7",
        );
        check_name(
            "ReplicaSet",
            "web-abc",
            &[("rollouts-pod-template-hash", "abc")],
            "web",
        );
        check_name("StatefulSet", "db", &[], "db");
        check_name("Job", "nightly-28123456", &[], "nightly");
        check_name("Job", "nightly-1", &[], "nightly-1");
        check_name(
            "ReplicationController",
            "x-1",
            &[("deploymentconfig", "x")],
            "x",
        );
        check_name(
            "ReplicaSet",
            "web-6b7",
            &[(WORKLOAD_NAME_LABEL, "named")],
            "named",
        );
    }

    #[test]
    fn localities_in_labels() {
        let parse = |v: &str| {
            stated_locality(&Labels::from([("istio-locality".to_owned(), v.to_owned())]))
                .map(|l| l.to_string())
        };
        assert_eq!(parse("us.east.1").as_deref(), Some("us/east/1"));
        assert_eq!(parse("us/east.1").as_deref(), Some("us/east.1"));
        assert_eq!(parse(""), None);
    }
}
