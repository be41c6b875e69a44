//! What of a proxy stays in its class: everything that some output depends on, and no more.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use model::{
    Labels, Locality, MeshState, Proxy, ServiceTarget,
    api::{
        self,
        common::{LocalityLbSetting, ZoneAwareLbSetting},
        destination_rule::LoadBalancer,
        mesh::ServiceAttributeEnrichment,
    },
    proxy::{InterceptionMode, ProxyType},
};

use super::{ClassKey, identity};
use crate::{PushContext, attach::Attachable, workload::HOSTNAME};

/// Labels whose values differ between the replicas of one workload, or between its revisions.
const PER_REPLICA: [&str; 10] = [
    HOSTNAME,
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "controller-revision-hash",
    "controller-uid",
    "pod-template-generation",
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];

/// Node metadata that outputs read by its raw name, besides what EnvoyFilters name.
const RAW_METADATA: [&str; 4] = ["APP_CONTAINERS", "credential", "file-credential", "role"];

/// Names of labels and metadata that some object of the mesh refers to.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Named {
    /// Those of [`PER_REPLICA`] that something selects by.
    labels: BTreeSet<&'static str>,
    /// Keys of node metadata that an EnvoyFilter compares.
    metadata: BTreeSet<String>,
}

impl Named {
    pub(crate) fn build(state: &MeshState) -> Self {
        let mut named = Self::default();
        named.collect(state);
        named
    }

    fn collect(&mut self, state: &MeshState) {
        let objects = &state.objects;
        self.all(
            objects
                .peer_authentications
                .values()
                .map(|o| o.spec.selector()),
        );
        self.all(
            objects
                .request_authentications
                .values()
                .map(|o| o.spec.selector()),
        );
        self.all(
            objects
                .authorization_policies
                .values()
                .map(|o| o.spec.selector()),
        );
        self.all(objects.telemetries.values().map(|o| o.spec.selector()));
        self.all(
            objects
                .traffic_extensions
                .values()
                .map(|o| o.spec.selector()),
        );
        self.all(
            objects
                .wasm_plugins
                .values()
                .map(|o| o.spec.selector.as_ref().map(|s| &s.match_labels)),
        );
        self.all(
            objects
                .proxy_configs
                .values()
                .map(|o| o.spec.selector.as_ref().map(|s| &s.match_labels)),
        );
        self.all(
            objects
                .sidecars
                .values()
                .map(|o| o.spec.workload_selector.as_ref().map(|s| &s.labels)),
        );
        self.all(objects.gateways.values().map(|o| Some(&o.spec.selector)));
        for filter in objects.envoy_filters.values() {
            self.selector(filter.spec.selector());
            let patches = filter.spec.config_patches.iter();
            for proxy in patches.filter_map(|p| p.r#match.as_ref()?.proxy.as_ref()) {
                self.metadata.extend(proxy.metadata.keys().cloned());
            }
        }
        for vs in objects.virtual_services.values().map(|o| &o.spec) {
            let http = vs
                .http
                .iter()
                .flat_map(|r| &r.r#match)
                .map(|m| &m.source_labels);
            let tls = vs
                .tls
                .iter()
                .flat_map(|r| &r.r#match)
                .map(|m| &m.source_labels);
            let tcp = vs
                .tcp
                .iter()
                .flat_map(|r| &r.r#match)
                .map(|m| &m.source_labels);
            http.chain(tls)
                .chain(tcp)
                .for_each(|labels| self.selector(Some(labels)));
        }
        for rule in objects.destination_rules.values().map(|o| &o.spec) {
            self.selector(rule.workload_selector.as_ref().map(|s| &s.match_labels));
            let subsets = rule
                .subsets
                .iter()
                .filter_map(|s| s.traffic_policy.as_ref());
            for policy in rule.traffic_policy.iter().chain(subsets) {
                let ports = policy.port_level_settings.iter().map(|p| &p.load_balancer);
                ports
                    .chain([&policy.load_balancer])
                    .flatten()
                    .for_each(|lb| self.balancer(lb));
            }
        }
        let mesh = &state.mesh;
        self.localities(
            mesh.locality_lb_setting.as_ref(),
            mesh.zone_aware_lb_setting.as_ref(),
        );
    }

    fn all<'a>(&mut self, selectors: impl Iterator<Item = Option<&'a Labels>>) {
        selectors.for_each(|selector| self.selector(selector));
    }

    fn selector(&mut self, selector: Option<&Labels>) {
        selector
            .into_iter()
            .flat_map(Labels::keys)
            .for_each(|key| self.label(key));
    }

    fn label(&mut self, key: &str) {
        self.labels
            .extend(PER_REPLICA.iter().filter(|known| **known == key));
    }

    fn balancer(&mut self, lb: &LoadBalancer) {
        self.localities(
            lb.locality_lb_setting.as_ref(),
            lb.zone_aware_lb_setting.as_ref(),
        );
    }

    fn localities(&mut self, lb: Option<&LocalityLbSetting>, zones: Option<&ZoneAwareLbSetting>) {
        let lb = lb.into_iter().flat_map(|s| &s.failover_priority);
        let zones = zones.into_iter().flat_map(|s| &s.failover_priority);
        for entry in lb.chain(zones) {
            self.label(entry.split_once('=').map_or(entry.as_str(), |(key, _)| key));
        }
    }
}

impl PushContext {
    /// Drops what tells replicas apart and matters to nobody.
    pub(super) fn class_key(
        &self,
        proxy: &Proxy,
        mut labels: Labels,
        locality: Locality,
        targets: &[ServiceTarget],
    ) -> ClassKey {
        let named = self.named.get_or_init(|| Named::build(self.state()));
        let node_matters = self.services().node_matters_to(&proxy.namespace);
        let drop_labels = |labels: &mut Labels| {
            for key in PER_REPLICA {
                let kept = named.labels.contains(key) || (node_matters && key == HOSTNAME);
                if !kept {
                    labels.remove(key);
                }
            }
        };
        drop_labels(&mut labels);

        let binds_addresses = proxy.metadata.interception_mode == InterceptionMode::None
            || (self.features().ambient && proxy.metadata.enable_hbone)
            || self.names_addresses(proxy, &labels);
        let is_headless = targets.iter().any(|t| t.service.is_passthrough());
        let addresses = (binds_addresses || is_headless).then(|| proxy.addresses.clone().into());

        let mut shared = proxy.clone();
        if !self.id_matters(proxy) {
            shared.id.clear();
        }
        shared.addresses = families(&proxy.addresses);
        shared.locality = Locality::default();
        shared.metadata.pod_ports.clear();
        if !node_matters {
            shared.metadata.node_name.clear();
        }
        drop_labels(&mut shared.metadata.labels);
        drop_labels(&mut shared.metadata.static_labels);
        shared.metadata.annotations.retain(|key, _| is_read(key));
        shared
            .raw_metadata
            .retain(|key, _| RAW_METADATA.contains(&key.as_str()) || named.metadata.contains(key));
        let mut key = ClassKey {
            proxy: Arc::new(shared),
            addresses,
            labels,
            locality,
            targets: targets
                .iter()
                .map(|t| {
                    let port = (t.port.port, t.port.name.clone());
                    (t.service.id(), port, t.target_port)
                })
                .collect(),
            fingerprint: 0,
        };
        key.fingerprint = identity::fingerprint(&key);
        key
    }

    /// Tells whether inbound listeners are named after the proxy's own address: the Sidecar has an
    /// ingress listener without bind (listeners §11.1).
    fn names_addresses(&self, proxy: &Proxy, labels: &Labels) -> bool {
        let unbound = |sidecar: &api::Sidecar| sidecar.ingress.iter().any(|l| l.bind.is_empty());
        proxy.proxy_type == ProxyType::Sidecar
            && self
                .scope(proxy.proxy_type, &proxy.namespace, labels)
                .sidecar()
                .is_some_and(|sidecar| unbound(&sidecar.spec))
    }

    /// Tells whether traces name the workload after the proxy's id (telemetry-extensions §12).
    fn id_matters(&self, proxy: &Proxy) -> bool {
        let by_convention = ServiceAttributeEnrichment::OtelSemanticConventions;
        proxy.metadata.workload_name.is_empty()
            && self.mesh().extension_providers.iter().any(|provider| {
                let otel = provider.opentelemetry.as_ref();
                otel.is_some_and(|o| o.service_attribute_enrichment == by_convention)
            })
    }
}

/// Annotations of a workload that outputs may read.
fn is_read(annotation: &str) -> bool {
    annotation.starts_with("resource.opentelemetry.io/")
        || (annotation.contains("istio.io/") && annotation != "sidecar.istio.io/status")
}

/// One unspecified address per family, in order.
fn families(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let mut families = Vec::new();
    for address in addresses {
        let family = match address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}
