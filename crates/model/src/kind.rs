//! Every kind of object that is read, and the typed tables that hold them.

use std::{fmt, sync::Arc};

use imbl::OrdMap;

use crate::{
    api,
    config::{Config, ConfigKey, Labels, Meta, NamespacedName},
    fingerprint,
};

/// A table of one kind: (namespace, name) to object, persistent, so that a copy is cheap and shares.
pub type Table<T> = OrdMap<NamespacedName, Arc<Config<T>>>;

/// Writes, from one list of kinds, the `Kind` enum, the `Object` enum and the `Tables` struct.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident, $table:ident: $ty:ty = $name:literal in $group:literal [$($version:literal)*];)*) => {
        /// The kind of a configuration object (config-model §1).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind { $($(#[$doc])* $variant,)* }

        impl Kind {
            /// Every kind, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The kind's name in the API, for example `VirtualService`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The API group; empty for the core group.
            pub const fn group(self) -> &'static str {
                match self { $(Self::$variant => $group,)* }
            }

            /// Versions that are read; all have one schema.
            pub const fn versions(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($version),*],)* }
            }
        }

        /// An object of any kind.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Object { $($(#[$doc])* $variant(Arc<Config<$ty>>),)* }

        impl Object {
            /// The object's kind.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$variant(_) => Kind::$variant,)* }
            }

            /// The object's metadata.
            pub fn meta(&self) -> &Meta {
                match self { $(Self::$variant(o) => &o.meta,)* }
            }

            /// Tells whether two objects of one kind have the same content, whatever their metadata.
            pub fn same_spec(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$variant(a), Self::$variant(b)) => Arc::ptr_eq(a, b) || a.spec == b.spec,)*
                    _ => false,
                }
            }

            /// Hashes the content: what the object says, and of its labels and annotations as much as
            /// anybody reads. Not its name, its age, or how often it was edited.
            pub fn content_hash(&self) -> u64 {
                let meta = self.meta();
                let ours = |labels: &Labels| labels.keys().any(|key| key.contains("istio.io"));
                // Those of Istio's own kinds count only with one of Istio's among them.
                let count = !self.kind().group().ends_with("istio.io")
                    || ours(&meta.labels)
                    || ours(&meta.annotations);
                let labels = count.then_some((&meta.labels, &meta.annotations));
                match self {
                    $(Self::$variant(o) => fingerprint::of_json(&(labels, &o.spec)),)*
                }
            }

            /// Decodes an object of `kind` from its whole JSON form; returns it with the paths of
            /// unknown fields. Of kinds with a `spec` alone that is read, of others everything.
            ///
            /// # Errors
            /// The field's path and the reason when a field has the wrong type.
            pub fn decode(
                kind: Kind,
                meta: Meta,
                object: &serde_json::Value,
            ) -> Result<(Self, Vec<String>), api::DecodeError> {
                let (root, content) = if kind.is_custom() {
                    ("spec", object.get("spec").unwrap_or(&serde_json::Value::Null))
                } else {
                    ("", object)
                };
                let empty = serde_json::Value::Object(serde_json::Map::new());
                let content = if content.is_null() { &empty } else { content };
                match kind {
                    $(Kind::$variant => {
                        let mut meta = meta;
                        if kind.has_written_status() {
                            let status = object.get("status").filter(|status| !status.is_null());
                            meta.status = status.cloned().map(Arc::new);
                        }
                        let decoded = api::decode_at::<$ty>(root, content)?;
                        let typed = Self::$variant(Arc::new(Config { meta, spec: decoded.value }));
                        Ok((typed.with_status(object)?, decoded.unknown))
                    })*
                }
            }
        }

        /// Tables of all kinds: one immutable state of the configuration store.
        ///
        /// Cloning is cheap: the tables are persistent and share what did not change.
        #[derive(Clone, Default, Debug)]
        pub struct Tables { $($(#[$doc])* pub $table: Table<$ty>,)* }

        impl Tables {
            /// Adds or replaces an object; returns the one that was there.
            pub fn insert(&mut self, object: Object) -> Option<Object> {
                match object {
                    $(Object::$variant(o) => {
                        self.$table.insert(o.meta.namespaced_name(), o).map(Object::$variant)
                    })*
                }
            }

            /// Removes an object; returns it if it was there.
            pub fn remove(&mut self, key: &ConfigKey) -> Option<Object> {
                let name = NamespacedName {
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                };
                match key.kind {
                    $(Kind::$variant => self.$table.remove(&name).map(Object::$variant),)*
                }
            }

            /// Finds an object.
            pub fn get(&self, key: &ConfigKey) -> Option<Object> {
                let name = NamespacedName { namespace: key.namespace.clone(), name: key.name.clone() };
                match key.kind {
                    $(Kind::$variant => self.$table.get(&name).cloned().map(Object::$variant),)*
                }
            }

            /// Lists the kinds whose tables are not those of `earlier`, though they may hold the same.
            pub fn kinds_that_differ<'a>(
                &'a self,
                earlier: &'a Self,
            ) -> impl Iterator<Item = Kind> + 'a {
                let differ = [$((Kind::$variant, !self.$table.ptr_eq(&earlier.$table))),*];
                differ.into_iter().filter(|(_, differ)| *differ).map(|(kind, _)| kind)
            }

            /// Lists every object, by kind, namespace, name.
            pub fn iter(&self) -> impl Iterator<Item = Object> + '_ {
                std::iter::empty()$(.chain(self.$table.values().cloned().map(Object::$variant)))*
            }
        }
    };
}

kinds! {
    /// A namespace: discovery selectors, network and visibility labels.
    Namespace, namespaces: api::kubernetes::Namespace = "Namespace" in "" ["v1"];
    /// A node: locality of its pods.
    Node, nodes: api::kubernetes::Node = "Node" in "" ["v1"];
    /// A pod: workload labels, identity, readiness.
    Pod, pods: api::kubernetes::Pod = "Pod" in "" ["v1"];
    /// A Kubernetes service.
    Service, services: api::kubernetes::Service = "Service" in "" ["v1"];
    /// Endpoints of a Kubernetes service.
    EndpointSlice, endpoint_slices: api::kubernetes::EndpointSlice = "EndpointSlice" in "discovery.k8s.io" ["v1"];
    /// A secret: TLS credentials, remote clusters.
    Secret, secrets: api::kubernetes::Secret = "Secret" in "" ["v1"];
    /// A config map: mesh configuration, CA roots.
    ConfigMap, config_maps: api::kubernetes::ConfigMap = "ConfigMap" in "" ["v1"];
    /// A Kubernetes ingress.
    Ingress, ingresses: api::kubernetes::Ingress = "Ingress" in "networking.k8s.io" ["v1"];
    /// The class of ingresses.
    IngressClass, ingress_classes: api::kubernetes::IngressClass = "IngressClass" in "networking.k8s.io" ["v1"];
    /// A service outside the registry of Kubernetes.
    ServiceEntry, service_entries: api::ServiceEntry = "ServiceEntry" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// A workload that is not a pod.
    WorkloadEntry, workload_entries: api::WorkloadEntry = "WorkloadEntry" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// A template of workload entries.
    WorkloadGroup, workload_groups: api::WorkloadGroup = "WorkloadGroup" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// Routing rules of hosts.
    VirtualService, virtual_services: api::VirtualService = "VirtualService" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// Client policy of a host.
    DestinationRule, destination_rules: api::DestinationRule = "DestinationRule" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// An Istio gateway.
    Gateway, gateways: api::Gateway = "Gateway" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// What a sidecar imports and exposes.
    Sidecar, sidecars: api::Sidecar = "Sidecar" in "networking.istio.io" ["v1" "v1beta1" "v1alpha3"];
    /// Patches of generated Envoy resources.
    EnvoyFilter, envoy_filters: api::EnvoyFilter = "EnvoyFilter" in "networking.istio.io" ["v1alpha3"];
    /// Proxy settings of workloads.
    ProxyConfig, proxy_configs: api::ProxyConfigResource = "ProxyConfig" in "networking.istio.io" ["v1beta1"];
    /// Mutual TLS mode of workloads.
    PeerAuthentication, peer_authentications: api::PeerAuthentication = "PeerAuthentication" in "security.istio.io" ["v1" "v1beta1"];
    /// Accepted JSON web tokens.
    RequestAuthentication, request_authentications: api::RequestAuthentication = "RequestAuthentication" in "security.istio.io" ["v1" "v1beta1"];
    /// Access rules.
    AuthorizationPolicy, authorization_policies: api::AuthorizationPolicy = "AuthorizationPolicy" in "security.istio.io" ["v1" "v1beta1"];
    /// Logs, metrics and traces of workloads.
    Telemetry, telemetries: api::Telemetry = "Telemetry" in "telemetry.istio.io" ["v1" "v1alpha1"];
    /// A Wasm filter.
    WasmPlugin, wasm_plugins: api::WasmPlugin = "WasmPlugin" in "extensions.istio.io" ["v1alpha1"];
    /// A Wasm or Lua filter.
    TrafficExtension, traffic_extensions: api::TrafficExtension = "TrafficExtension" in "extensions.istio.io" ["v1alpha1"];
    /// A class of Gateway API gateways.
    GatewayClass, gateway_classes: api::gateway_api::GatewayClass = "GatewayClass" in "gateway.networking.k8s.io" ["v1" "v1beta1"];
    /// A Gateway API gateway.
    KubernetesGateway, kubernetes_gateways: api::gateway_api::Gateway = "Gateway" in "gateway.networking.k8s.io" ["v1" "v1beta1"];
    /// Further listeners of a Gateway API gateway.
    ListenerSet, listener_sets: api::gateway_api::ListenerSet = "ListenerSet" in "gateway.networking.k8s.io" ["v1"];
    /// A Gateway API HTTP route.
    HttpRoute, http_routes: api::gateway_api::HttpRoute = "HTTPRoute" in "gateway.networking.k8s.io" ["v1" "v1beta1"];
    /// A Gateway API gRPC route.
    GrpcRoute, grpc_routes: api::gateway_api::GrpcRoute = "GRPCRoute" in "gateway.networking.k8s.io" ["v1" "v1alpha2"];
    /// A Gateway API TCP route.
    TcpRoute, tcp_routes: api::gateway_api::TcpRoute = "TCPRoute" in "gateway.networking.k8s.io" ["v1" "v1alpha2"];
    /// A Gateway API TLS route.
    TlsRoute, tls_routes: api::gateway_api::TlsRoute = "TLSRoute" in "gateway.networking.k8s.io" ["v1" "v1alpha3" "v1alpha2"];
    /// Leave to refer across namespaces.
    ReferenceGrant, reference_grants: api::gateway_api::ReferenceGrant = "ReferenceGrant" in "gateway.networking.k8s.io" ["v1" "v1beta1" "v1alpha2"];
    /// TLS towards the backends of a service.
    BackendTlsPolicy, backend_tls_policies: api::gateway_api::BackendTlsPolicy = "BackendTLSPolicy" in "gateway.networking.k8s.io" ["v1" "v1alpha3"];
}

impl Kind {
    /// Finds a kind by API group, version and name. `None` when that object is not read.
    pub fn find(group: &str, version: &str, name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|k| k.group() == group && k.name() == name && k.versions().contains(&version))
    }

    /// Tells whether objects of this kind carry their content in `spec` alone.
    pub fn is_custom(self) -> bool {
        self.group().ends_with("istio.io") || self.group() == "gateway.networking.k8s.io"
    }

    /// Tells whether the control plane writes statuses of this kind, and decides them by what is there.
    pub const fn has_written_status(self) -> bool {
        matches!(
            self,
            Self::Ingress
                | Self::GatewayClass
                | Self::KubernetesGateway
                | Self::ListenerSet
                | Self::HttpRoute
                | Self::GrpcRoute
                | Self::TcpRoute
                | Self::TlsRoute
                | Self::BackendTlsPolicy
        )
    }

    /// Tells whether objects of this kind have no namespace.
    pub const fn is_cluster_scoped(self) -> bool {
        matches!(
            self,
            Self::Namespace | Self::Node | Self::IngressClass | Self::GatewayClass
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Object {
    /// Reads what stands beside the spec: allocated addresses of ServiceEntries, health of
    /// WorkloadEntries, addresses of Gateway API gateways.
    fn with_status(mut self, object: &serde_json::Value) -> Result<Self, api::DecodeError> {
        let Some(status) = object.get("status").filter(|status| !status.is_null()) else {
            return Ok(self);
        };
        match &mut self {
            Self::ServiceEntry(entry) => {
                Arc::make_mut(entry).spec.status = api::decode_at("status", status)?.value;
            }
            Self::WorkloadEntry(entry) => {
                Arc::make_mut(entry).spec.status = api::decode_at("status", status)?.value;
            }
            Self::KubernetesGateway(gateway) => {
                Arc::make_mut(gateway).spec.status = api::decode_at("status", status)?.value;
            }
            _ => {}
        }
        Ok(self)
    }

    /// The object's key.
    pub fn key(&self) -> ConfigKey {
        let meta = self.meta();
        ConfigKey {
            kind: self.kind(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        }
    }
}
