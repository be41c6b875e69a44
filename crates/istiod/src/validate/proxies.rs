//! The proxies of a mesh, as far as its objects tell: nobody is connected while files are checked.

use model::{
    Config, Labels, MeshState, Node, Proxy,
    api::{EnvoyFilter, envoy_filter::PatchContext},
    selects,
};
use serde_json::json;

/// The version that proxies are assumed to have.
pub(super) const VERSION: &str = "1.32.0";
/// The label that names the Gateway API gateway of a workload.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The class of gateways that are waypoints.
const WAYPOINT_CLASS: &str = "istio-waypoint";

/// One proxy: its kind and the workload that it is for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Workload {
    kind: &'static str,
    namespace: String,
    name: String,
    labels: Labels,
    address: String,
    account: String,
}

/// Lists the proxies of pods and WorkloadEntries, in a fixed order.
pub(super) fn of_workloads(state: &MeshState) -> Vec<Proxy> {
    let pods = state.objects.pods.values().map(|pod| Workload {
        kind: kind_of(state, &pod.meta.namespace, &pod.meta.labels),
        namespace: pod.meta.namespace.to_string(),
        name: pod.meta.name.to_string(),
        labels: pod.meta.labels.clone(),
        address: pod.spec.status.pod_ip.clone(),
        account: pod.spec.spec.service_account_name.clone(),
    });
    let entries = state.objects.workload_entries.values();
    let entries = entries.map(|entry| {
        let labels: Labels = entry
            .meta
            .labels
            .iter()
            .chain(&entry.spec.labels)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        Workload {
            kind: kind_of(state, &entry.meta.namespace, &labels),
            namespace: entry.meta.namespace.to_string(),
            name: entry.meta.name.to_string(),
            labels,
            address: entry.spec.address.clone(),
            account: entry.spec.service_account.clone(),
        }
    });
    let all: Vec<Workload> = pods.chain(entries).collect();
    all.iter().filter_map(proxy).collect()
}

/// Assumes proxies for a filter that attaches to none of the workloads: those that its selector and
/// targets name, of the kinds that its contexts are for.
pub(super) fn assumed(state: &MeshState, filter: &Config<EnvoyFilter>) -> Vec<Proxy> {
    let workload = |kind: &'static str, labels: Labels| Workload {
        kind,
        namespace: filter.meta.namespace.to_string(),
        name: "assumed".to_owned(),
        labels,
        address: String::new(),
        account: "default".to_owned(),
    };
    let spec = &filter.spec;
    let mut workloads = Vec::new();
    for target in spec.target_refs.iter().filter(|t| t.kind == "Gateway") {
        let labels = Labels::from([(GATEWAY_NAME.to_owned(), target.name.clone())]);
        let kind = kind_of(state, &filter.meta.namespace, &labels);
        workloads.push(workload(kind, labels));
    }
    if spec.target_refs.is_empty() {
        let labels = spec.workload_selector.as_ref();
        let labels = labels.map(|s| s.labels.clone()).unwrap_or_default();
        let contexts = || {
            let matches = spec.config_patches.iter();
            matches.map(|p| p.r#match.as_ref().map(|m| m.context).unwrap_or_default())
        };
        if contexts().any(|c| c != PatchContext::Gateway) {
            workloads.push(workload("sidecar", labels.clone()));
        }
        if contexts().any(|c| c == PatchContext::Gateway) {
            workloads.push(workload("router", labels));
        }
    }
    workloads.iter().filter_map(proxy).collect()
}

/// What runs beside a workload, or instead of it.
fn kind_of(state: &MeshState, namespace: &str, labels: &Labels) -> &'static str {
    let gateways = &state.objects.gateways;
    if let Some(name) = labels.get(GATEWAY_NAME) {
        let gateways = &state.objects.kubernetes_gateways;
        let gateway = gateways
            .values()
            .find(|g| *g.meta.name == *name.as_str() && *g.meta.namespace == *namespace);
        let is_waypoint = gateway.is_some_and(|g| g.spec.gateway_class_name == WAYPOINT_CLASS);
        return if is_waypoint { "waypoint" } else { "router" };
    }
    let selected = |gateway: &Labels| !gateway.is_empty() && selects(gateway, labels);
    if gateways.values().any(|g| selected(&g.spec.selector)) {
        "router"
    } else {
        "sidecar"
    }
}

fn proxy(workload: &Workload) -> Option<Proxy> {
    let Workload {
        kind,
        namespace,
        name,
        labels,
        address,
        account,
    } = workload;
    let address = if address.parse::<std::net::IpAddr>().is_ok() {
        address.as_str()
    } else {
        "0.0.0.0"
    };
    let metadata = json!({
        "NAMESPACE": namespace,
        "NAME": name,
        "INSTANCE_IPS": address,
        "SERVICE_ACCOUNT": account,
        "ISTIO_VERSION": VERSION,
        "LABELS": labels,
    });
    let node = Node {
        id: format!("{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"),
        cluster: format!("{name}.{namespace}"),
        metadata: metadata.as_object().cloned().unwrap_or_default(),
        ..Node::default()
    };
    Proxy::parse(&node).ok()
}
