//! ServiceEntry to services and endpoints (service-registry §12).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use model::{
    Config, ConfigKey, Endpoint, ExportTo, Kind, Labels, Meta, NamespacedName, Port, Protocol,
    Resolution, Service, ServiceId, ServiceInstance, Table,
    api::{
        ServiceEntry,
        service_entry::{self, Location},
    },
    host, selects,
    service::{Attributes, Registry, ServiceType, UNSPECIFIED_ADDRESS},
};
use rustc_hash::FxHashMap;

use super::{
    Entry,
    foreign::selects_foreign,
    kubernetes::traffic_distribution,
    settings::Settings,
    vip::LegacyAddresses,
    workload::{Workload, unix_path},
};
use crate::few::Few;

const AUTO_ALLOCATE_LABEL: &str = "networking.istio.io/enable-autoallocate-ip";
const CONNECT_STRATEGY_ANNOTATION: &str = "istio.io/connect-strategy";
const CANONICAL_NAME_LABEL: &str = "service.istio.io/canonical-name";
const CANONICAL_REVISION_LABEL: &str = "service.istio.io/canonical-revision";

/// Tells whether an entry without addresses gets one per host, and may use those in its status
/// (service-registry §13.1).
pub(crate) fn is_auto_allocated(entry: &Config<ServiceEntry>, settings: &Settings) -> bool {
    let opted_out = entry
        .meta
        .labels
        .get(AUTO_ALLOCATE_LABEL)
        .is_some_and(|v| v.eq_ignore_ascii_case("false"));
    settings.features.ip_autoallocate
        && entry.spec.resolution != service_entry::Resolution::None
        && entry.spec.addresses.is_empty()
        && !opted_out
}

/// Derives the services of an entry: one per host and address.
pub(crate) fn services(
    entry: &Config<ServiceEntry>,
    namespace: Option<&Meta>,
    legacy: &LegacyAddresses,
    settings: &Settings,
) -> Vec<Arc<Service>> {
    let Config { meta, spec } = entry;
    let hosts = unique(spec.hosts.iter().map(|h| h.as_str().into()));
    let addresses = if spec.addresses.is_empty() {
        vec![UNSPECIFIED_ADDRESS.into()]
    } else {
        unique(spec.addresses.iter().filter_map(|a| address(a)))
    };
    let ports: Vec<Port> = spec.ports.iter().filter_map(port).collect();
    let resolution = match spec.resolution {
        service_entry::Resolution::None => Resolution::Passthrough,
        service_entry::Resolution::Static => Resolution::ClientSideLb,
        service_entry::Resolution::Dns => Resolution::DnsLb,
        service_entry::Resolution::DnsRoundRobin => Resolution::DnsRoundRobinLb,
        service_entry::Resolution::DynamicDns => Resolution::DynamicDns,
    };
    let mesh_external = spec.location == Location::MeshExternal;
    let mut attributes = Some(Attributes {
        registry: Registry::External,
        name: settings.words.empty.clone(),
        namespace: meta.namespace.clone(),
        labels: labels(meta, mesh_external, settings),
        selector: spec
            .workload_selector
            .as_ref()
            .map(|s| s.labels.clone())
            .unwrap_or_default(),
        export_to: ExportTo::new(&spec.export_to),
        aliases: Vec::new(),
        cluster_external_addresses: BTreeMap::new(),
        cluster_external_ports: BTreeMap::new(),
        passthrough_target_ports: passthrough_target_ports(spec),
        service_type: ServiceType::ClusterIp,
        external_name: settings.words.empty.clone(),
        node_local: false,
        traffic_distribution: traffic_distribution(&meta.annotations, namespace),
        object_name: meta.name.clone(),
        race_first_connect: meta
            .annotations
            .get(CONNECT_STRATEGY_ANNOTATION)
            .is_some_and(|v| v.eq_ignore_ascii_case("RACE_FIRST_TCP_CONNECT")),
        publish_not_ready_addresses: false,
    });
    let mut services = Vec::with_capacity(hosts.len() * addresses.len());
    let mut left = hosts.len() * addresses.len();
    for hostname in hosts {
        let (v4, v6) = allocated(entry, &hostname, legacy, settings);
        for address in &addresses {
            left -= 1;
            // The last service takes what the others copy.
            let own = if left == 0 {
                attributes.take()
            } else {
                attributes.clone()
            };
            let Some(own) = own else { continue };
            let service = Service {
                hostname: hostname.clone(),
                ports: ports.clone(),
                cluster_vips: BTreeMap::new(),
                default_address: address.clone(),
                auto_allocated_v4: v4.clone(),
                auto_allocated_v6: v6.clone(),
                resolution,
                mesh_external,
                service_accounts: spec
                    .subject_alt_names
                    .iter()
                    .map(|s| s.as_str().into())
                    .collect(),
                created: meta.created,
                resource_version: meta.resource_version.clone(),
                attributes: Attributes {
                    name: hostname.clone(),
                    ..own
                },
                source: ConfigKey {
                    kind: Kind::ServiceEntry,
                    namespace: meta.namespace.clone(),
                    name: meta.name.clone(),
                }
                .into(),
                fingerprint: 0,
            };
            services.push(service.seal());
        }
    }
    services
}

/// Drops repetitions.
fn unique(names: impl Iterator<Item = Arc<str>>) -> Vec<Arc<str>> {
    let mut seen = Few::None;
    let mut unique = Vec::with_capacity(names.size_hint().1.unwrap_or_default());
    for name in names {
        if !seen.contains(&name) {
            seen.insert(name.clone());
            unique.push(name);
        }
    }
    unique
}

fn port(port: &service_entry::ServicePort) -> Option<Port> {
    Some(Port {
        name: port.name.as_str().into(),
        port: u16::try_from(port.number).ok()?,
        protocol: Protocol::parse(&port.protocol),
    })
}

/// Reads an address: an IP, or a CIDR, of which a full-length prefix is the plain IP.
fn address(text: &str) -> Option<Arc<str>> {
    if text.parse::<IpAddr>().is_ok() {
        return Some(text.into());
    }
    let range: IpNet = text.parse().ok()?;
    if range.prefix_len() == range.max_prefix_len() {
        return Some(range.addr().to_string().into());
    }
    Some(text.into())
}

fn labels(meta: &Meta, mesh_external: bool, settings: &Settings) -> Labels {
    let mut labels = meta.labels.clone();
    if !mesh_external
        || !settings.features.canonical_external_services
        || labels.contains_key(CANONICAL_NAME_LABEL)
    {
        return labels;
    }
    let first = |keys: &[&str], otherwise: &str| {
        keys.iter()
            .find_map(|k| meta.labels.get(*k))
            .map_or(otherwise, String::as_str)
            .to_owned()
    };
    let name = first(&["app.kubernetes.io/name", "app"], &meta.name);
    let revision = first(
        &[
            CANONICAL_REVISION_LABEL,
            "app.kubernetes.io/version",
            "version",
        ],
        "latest",
    );
    labels.insert(CANONICAL_NAME_LABEL.to_owned(), name);
    labels.insert(CANONICAL_REVISION_LABEL.to_owned(), revision);
    labels
}

fn passthrough_target_ports(spec: &ServiceEntry) -> BTreeMap<u16, u16> {
    if spec.resolution != service_entry::Resolution::None {
        return BTreeMap::new();
    }
    let ports = spec.ports.iter().filter(|p| p.target_port != 0);
    ports
        .filter_map(|p| {
            Some((
                u16::try_from(p.number).ok()?,
                u16::try_from(p.target_port).ok()?,
            ))
        })
        .collect()
}

/// The addresses allocated for a host, IPv4 and IPv6; the last of each family counts.
fn allocated(
    entry: &Config<ServiceEntry>,
    hostname: &Arc<str>,
    legacy: &LegacyAddresses,
    settings: &Settings,
) -> (Arc<str>, Arc<str>) {
    let mut addresses = (settings.words.empty.clone(), settings.words.empty.clone());
    if is_auto_allocated(entry, settings) {
        for stated in entry
            .spec
            .status
            .addresses
            .iter()
            .filter(|a| *a.host == **hostname)
        {
            match stated.value.parse() {
                Ok(IpAddr::V4(_)) => addresses.0 = stated.value.as_str().into(),
                Ok(IpAddr::V6(_)) => addresses.1 = stated.value.as_str().into(),
                Err(_) => {}
            }
        }
    } else if let Some((v4, v6)) = legacy.find(&entry.meta.namespace, hostname)
        && is_legacy_allocated(entry, hostname, settings)
    {
        addresses = (v4.clone(), v6.clone());
    }
    addresses
}

/// Tells whether a host of an entry gets an address by hashing (service-registry §13.3).
pub(crate) fn is_legacy_allocated(
    entry: &Config<ServiceEntry>,
    hostname: &str,
    settings: &Settings,
) -> bool {
    !settings.features.ip_autoallocate
        && entry.spec.resolution != service_entry::Resolution::None
        && entry.spec.addresses.is_empty()
        && !host::is_wildcard(hostname)
}

/// What the endpoints of hosts are derived from.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) entries: &'a Table<ServiceEntry>,
    pub(super) derived: &'a FxHashMap<NamespacedName, Entry>,
    /// Where workloads are: in the own cluster, then in others.
    pub(super) clusters: &'a [&'a super::Registry],
}

/// Derives the endpoints of one host of one namespace: those of all its entries, by creation time,
/// then name, once per address of the entry.
pub(crate) fn endpoints(
    namespace: &Arc<str>,
    hostname: &str,
    entries: &Few<Arc<str>>,
    inputs: Inputs<'_>,
) -> Vec<ServiceInstance> {
    let mut found: Vec<(&Config<ServiceEntry>, &[Arc<Service>])> = entries
        .iter()
        .filter_map(|name| {
            let key = NamespacedName {
                namespace: namespace.clone(),
                name: name.clone(),
            };
            let entry: &Config<ServiceEntry> = inputs.entries.get(&key)?;
            Some((entry, inputs.derived.get(&key)?.services.as_slice()))
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| {
        (a.meta.created, &a.meta.name).cmp(&(b.meta.created, &b.meta.name))
    });
    let mut instances = Vec::new();
    let mut taken = BTreeSet::new();
    for (entry, services) in found {
        let mut of_entry: Option<Vec<(u16, Arc<Endpoint>)>> = None;
        for service in services.iter().filter(|s| *s.hostname == *hostname) {
            let of_entry = of_entry.get_or_insert_with(|| entry_endpoints(entry, service, inputs));
            let id: ServiceId = service.id();
            for (port, endpoint) in of_entry.iter() {
                if service.resolution == Resolution::DnsRoundRobinLb && !taken.insert(*port) {
                    continue;
                }
                instances.push(ServiceInstance {
                    service: id.clone(),
                    service_port: *port,
                    endpoint: endpoint.clone(),
                });
            }
        }
    }
    instances
}

/// Derives the endpoints of an entry, with the service port that each serves.
fn entry_endpoints(
    entry: &Config<ServiceEntry>,
    service: &Service,
    inputs: Inputs<'_>,
) -> Vec<(u16, Arc<Endpoint>)> {
    let Config { meta, spec } = entry;
    let settings = inputs.settings;
    let is_dns = matches!(
        service.resolution,
        Resolution::DnsLb | Resolution::DnsRoundRobinLb
    );
    let mut endpoints = Vec::new();
    let mut add = |workload: &Workload, settings: &Settings| {
        for (spec, port) in spec
            .ports
            .iter()
            .filter_map(|p| Some((p, service.port(u16::try_from(p.number).ok()?)?)))
        {
            let endpoint = endpoint(workload, spec, port, settings);
            endpoints.push((port.port, Arc::new(endpoint)));
        }
    };
    if let Some(selector) = &spec.workload_selector {
        for (workload, settings) in selected(&meta.namespace, &selector.labels, inputs) {
            if is_dns || !workload.dns_only {
                add(workload, settings);
            }
        }
    } else if !spec.endpoints.is_empty() {
        for (index, inline) in spec.endpoints.iter().enumerate() {
            let name = format!("{}-{index}", meta.name);
            let workload = Workload::of_inline(inline, &meta.namespace, &name, settings);
            add(&workload, settings);
        }
    } else if is_dns {
        let mut workload = Workload::of_inline(
            &model::api::WorkloadEntry {
                address: service.hostname.to_string(),
                ..Default::default()
            },
            &meta.namespace,
            &meta.name,
            settings,
        );
        workload.labels = Arc::new(Labels::new());
        add(&workload, settings);
    }
    endpoints
}

/// Lists the workloads that an entry selects, with the settings of their clusters: pods, then
/// WorkloadEntries, each by name, the own cluster's before others'.
fn selected<'a>(
    namespace: &Arc<str>,
    selector: &Labels,
    inputs: Inputs<'a>,
) -> Vec<(&'a Workload, &'a Settings)> {
    let mut all = Vec::new();
    for kind in [Kind::Pod, Kind::WorkloadEntry] {
        let mut of_kind = Vec::new();
        for (at, cluster) in inputs.clusters.iter().enumerate() {
            let (table, labels, counts) = match kind {
                Kind::Pod => (
                    &cluster.pods,
                    &cluster.pod_labels,
                    inputs.settings.features.service_entry_select_pods,
                ),
                _ => (
                    &cluster.workload_entries,
                    &cluster.workload_entry_labels,
                    at == 0 || selects_foreign(kind, inputs.settings),
                ),
            };
            if !counts {
                continue;
            }
            for name in labels.candidates(namespace, selector) {
                let key = NamespacedName {
                    namespace: namespace.clone(),
                    name: name.clone(),
                };
                let found = table.get(&key);
                let found = found.filter(|w| w.selectable && selects(selector, &w.labels));
                of_kind.extend(found.map(|w| (name, (&**w, &cluster.settings))));
            }
        }
        // Stable: those of one cluster are sorted, and equal names stay in the order of clusters.
        if inputs.clusters.len() > 1 {
            of_kind.sort_by_key(|(name, _)| *name);
        }
        all.extend(of_kind.into_iter().map(|(_, workload)| workload));
    }
    all
}

fn endpoint(
    workload: &Workload,
    spec: &service_entry::ServicePort,
    port: &Port,
    settings: &Settings,
) -> Endpoint {
    let stated = workload.addresses.first();
    let (addresses, number) = if let Some(path) = stated.and_then(|a| unix_path(a)) {
        (vec![path.into()], 0)
    } else {
        let mapped = workload.ports.get(&spec.name).copied().filter(|p| *p != 0);
        let target = u16::try_from(spec.target_port).ok().filter(|p| *p != 0);
        (
            stated.cloned().into_iter().collect(),
            mapped.or(target).unwrap_or(port.port),
        )
    };
    let mut endpoint = workload.endpoint(addresses, number, port.name.clone(), settings);
    endpoint.legacy_port_key = port.port;
    endpoint
}
