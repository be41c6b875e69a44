//! What load assignments depend on besides services, rules and endpoints.

use std::sync::Arc;

use model::{Features, Labels, Locality, Proxy, ProxyType, api::mesh::MeshConfig, proxy::IpMode};

use crate::{inputs::ByJson, locality::MeshLocality};

/// Label of the node's name.
pub(crate) const NODE_LABEL: &str = "kubernetes.io/hostname";

/// The facts of a class that endpoints are filtered and written by, wherever the proxy is.
#[derive(Clone, Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct EndpointView {
    /// What kind of proxy it is.
    pub proxy_type: ProxyType,
    /// Its address families.
    pub ip_mode: IpMode,
    /// Its cluster; empty when it states none.
    pub cluster: Arc<str>,
    /// Its network; empty when it states none.
    pub network: Arc<str>,
    /// Networks that it wants endpoints of; empty means all.
    pub network_view: Vec<String>,
    /// It can send through HBONE tunnels.
    pub hbone: bool,
    /// Settings of the mesh where no rule says.
    pub locality: ByJson<MeshLocality>,
    /// Flag: all addresses of an endpoint are written.
    pub dual_stack: bool,
    /// Flag: tunnels are preferred to mutual TLS.
    pub prefer_hbone: bool,
    /// Flag: unhealthy endpoints are sent to everyone.
    pub send_unhealthy: bool,
    /// Flag: unhealthy endpoints are sent unless a rule wants healthy ones.
    pub auto_send_unhealthy: bool,
    /// Flag: endpoints name their workload.
    pub telemetry: bool,
    /// Flag: external endpoints bear the canonical name of their service.
    pub canonical_external: bool,
    /// Label of services with sessions by cookie.
    pub session_label: String,
    /// Label of endpoints that drain.
    pub draining_label: String,
}

impl EndpointView {
    /// Collects the facts.
    pub(crate) fn new(proxy: &Proxy, mesh: &MeshConfig, features: &Features) -> Self {
        let metadata = &proxy.metadata;
        Self {
            proxy_type: proxy.proxy_type,
            ip_mode: proxy.ip_mode,
            cluster: metadata.cluster_id.as_str().into(),
            network: metadata.network.as_str().into(),
            network_view: metadata.requested_network_view.clone(),
            hbone: ((features.ambient && features.sending_hbone)
                || proxy.proxy_type == ProxyType::Waypoint)
                && !metadata.disable_hbone_send,
            locality: ByJson(MeshLocality {
                locality: mesh.locality_lb_setting.clone(),
                zone_aware: mesh.zone_aware_lb_setting.clone(),
            }),
            dual_stack: features.dual_stack,
            prefer_hbone: features.prefer_sending_hbone,
            send_unhealthy: features.send_unhealthy_endpoints,
            auto_send_unhealthy: features.auto_send_unhealthy_endpoints,
            telemetry: features.telemetry_label && features.endpoint_telemetry_label,
            canonical_external: features.canonical_external_services,
            session_label: features.persistent_session_label.clone(),
            draining_label: features.draining_label.clone(),
        }
    }

    /// Tells whether endpoints of `network` are wanted.
    pub(crate) fn wants_network(&self, network: &str) -> bool {
        self.network_view.is_empty()
            || network.is_empty()
            || self.network_view.iter().any(|n| n == network)
    }
}

/// Where a proxy is. Part of the inputs only where locality, labels or the node matter, so that
/// other assignments are shared by proxies everywhere.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Place {
    /// The proxy's locality.
    pub locality: Locality,
    /// Its labels with topology; empty when nothing is known of it.
    pub labels: Labels,
}

impl Place {
    /// Name of the proxy's node; empty when unknown.
    pub(crate) fn node(&self) -> &str {
        self.labels.get(NODE_LABEL).map_or("", String::as_str)
    }
}
