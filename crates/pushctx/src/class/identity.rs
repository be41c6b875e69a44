//! The fingerprint of a class key.

use model::{Proxy, fingerprint, proxy::NodeMetadata};

use super::ClassKey;

/// Hashes all content of a key. The patterns name every field, so that a new one cannot be
/// forgotten.
pub(super) fn fingerprint(key: &ClassKey) -> u64 {
    let ClassKey {
        proxy,
        addresses,
        labels,
        locality,
        targets,
        fingerprint: _,
    } = key;
    fingerprint::of(&(of_proxy(proxy), addresses, labels, locality, targets))
}

fn of_proxy(proxy: &Proxy) -> u64 {
    let Proxy {
        id,
        service_cluster,
        proxy_type,
        addresses,
        dns_domain,
        namespace,
        ip_mode,
        version,
        locality,
        metadata,
        raw_metadata,
        extensions,
        identity,
    } = proxy;
    fingerprint::of(&(
        (
            id,
            service_cluster,
            proxy_type,
            addresses,
            dns_domain,
            namespace,
            ip_mode,
            version,
            locality,
        ),
        (
            of_metadata(metadata),
            fingerprint::of_json(raw_metadata),
            extensions,
            identity,
        ),
    ))
}

fn of_metadata(metadata: &NodeMetadata) -> u64 {
    let NodeMetadata {
        namespace,
        cluster_id,
        network,
        requested_network_view,
        labels,
        static_labels,
        annotations,
        istio_version,
        proxy_config,
        interception_mode,
        idle_timeout,
        http10,
        http_proxy_port,
        service_account,
        workload_name,
        mesh_id,
        node_name,
        pod_ports,
        generator,
        dns_capture,
        dns_auto_allocate,
        dns_proxy_addr,
        enable_hbone,
        disable_hbone_send,
        enable_self_discovery,
        unprivileged_pod,
        tls_server_cert_chain,
        tls_server_key,
        tls_server_root_cert,
        tls_client_cert_chain,
        tls_client_key,
        tls_client_root_cert,
        reserved_ports,
        inbound_exact_balance,
        outbound_exact_balance,
    } = metadata;
    let proxy_config = proxy_config.as_ref().map(fingerprint::of_json);
    fingerprint::of(&(
        (
            namespace,
            cluster_id,
            network,
            requested_network_view,
            labels,
            static_labels,
            annotations,
        ),
        (
            istio_version,
            proxy_config,
            *interception_mode as u8,
            idle_timeout,
            http10,
        ),
        (
            http_proxy_port,
            service_account,
            workload_name,
            mesh_id,
            node_name,
            pod_ports,
        ),
        (
            generator,
            dns_capture,
            dns_auto_allocate,
            dns_proxy_addr,
            enable_hbone,
        ),
        (disable_hbone_send, enable_self_discovery, unprivileged_pod),
        (tls_server_cert_chain, tls_server_key, tls_server_root_cert),
        (tls_client_cert_chain, tls_client_key, tls_client_root_cert),
        (
            reserved_ports,
            inbound_exact_balance,
            outbound_exact_balance,
        ),
    ))
}
