//! All endpoints of the mesh, as `istioctl` and people read them (observability §8.4).

use model::{Endpoint, MeshState, ServiceEndpoints, service::Registry};
use serde_json::{Map, Value, json};

/// The endpoints by host, namespace and shard.
pub(crate) fn endpoint_shards(state: &MeshState) -> Value {
    let mut hosts: Map<String, Value> = Map::new();
    for (key, endpoints) in &state.endpoints {
        let host = hosts.entry(key.hostname.to_string());
        let namespaces = host.or_insert_with(|| json!({}));
        namespaces[&*key.namespace] = of_service(endpoints);
    }
    Value::Object(hosts)
}

fn of_service(endpoints: &ServiceEndpoints) -> Value {
    let shards = endpoints.shards.iter().map(|(shard, list)| {
        let provider = match shard.registry {
            Registry::Kubernetes => "Kubernetes",
            Registry::External => "External",
        };
        let list: Value = list.iter().map(|e| of_endpoint(e)).collect();
        (format!("{provider}/{}", shard.cluster), list)
    });
    let accounts = endpoints.service_accounts.iter();
    let accounts = accounts.map(|account| (account.to_string(), json!({})));
    json!({
        "Shards": shards.collect::<Map<_, _>>(),
        "ServiceAccounts": accounts.collect::<Map<_, _>>(),
    })
}

fn of_endpoint(endpoint: &Endpoint) -> Value {
    let addresses: Vec<&str> = endpoint.addresses.iter().map(|a| &**a).collect();
    json!({
        "Labels": *endpoint.labels,
        "Addresses": addresses,
        "ServicePortName": &*endpoint.service_port_name,
        "ServiceAccount": &*endpoint.service_account,
        "Network": &*endpoint.network,
        "Locality": {
            "Label": endpoint.locality.to_string(),
            "ClusterID": &*endpoint.cluster,
        },
        "EndpointPort": endpoint.port,
        "LbWeight": endpoint.weight,
        "TLSMode": &*endpoint.tls_mode,
        "Namespace": &*endpoint.namespace,
        "WorkloadName": &*endpoint.workload_name,
        "HostName": &*endpoint.hostname,
        "SubDomain": &*endpoint.subdomain,
        "HealthStatus": endpoint.health as u8,
        "SendUnhealthyEndpoints": endpoint.send_unhealthy,
        "NodeName": &*endpoint.node_name,
        "LegacyClusterPortKey": endpoint.legacy_port_key,
    })
}
