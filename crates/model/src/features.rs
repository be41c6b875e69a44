//! Feature flags that change what is derived and generated.
//!
//! Names and defaults are Istio's environment variables. Nothing here reads the environment: the
//! binary's settings (or a test) pass a lookup function.

/// Writes the `Features` struct and its lookup from one table.
macro_rules! features {
    ($($(#[$doc:meta])* $variable:literal $field:ident: $ty:ty = $default:expr;)*) => {
        /// Flags by field; each documents its variable's meaning. Defaults are Istio's.
        #[derive(Clone, PartialEq, Debug)]
        pub struct Features { $($(#[$doc])* #[doc = concat!("\n\nVariable `", $variable, "`.")] pub $field: $ty,)* }

        impl Default for Features {
            fn default() -> Self { Self { $($field: $default,)* } }
        }

        impl Features {
            /// Names of all variables that are read.
            pub const VARIABLES: &'static [&'static str] = &[$($variable),*];

            /// Reads the flags through `lookup`; every bad value is reported and leaves its default.
            pub fn resolve(lookup: impl Fn(&str) -> Option<String>) -> (Self, Vec<FeatureError>) {
                let mut flags = Self::default();
                let mut errors = Vec::new();
                $(if let Some(text) = lookup($variable).filter(|t| !t.is_empty()) {
                    match <$ty as Flag>::parse(&text) {
                        Ok(value) => flags.$field = value,
                        Err(expected) => errors.push(FeatureError { variable: $variable, value: text, expected }),
                    }
                })*
                (flags, errors)
            }
        }
    };
}

/// A variable whose value cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{variable}: {value:?} is not {expected}")]
pub struct FeatureError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What it may be.
    pub expected: &'static str,
}

/// A type that a variable's text can be read as.
trait Flag: Sized {
    fn parse(text: &str) -> Result<Self, &'static str>;
}

impl Flag for bool {
    fn parse(text: &str) -> Result<Self, &'static str> {
        match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
            _ => Err("true or false"),
        }
    }
}

impl Flag for String {
    fn parse(text: &str) -> Result<Self, &'static str> {
        Ok(text.to_owned())
    }
}

impl Flag for u32 {
    fn parse(text: &str) -> Result<Self, &'static str> {
        text.parse().map_err(|_| "a whole number")
    }
}

impl Flag for std::time::Duration {
    fn parse(text: &str) -> Result<Self, &'static str> {
        text.parse::<crate::api::Duration>()
            .map(crate::api::Duration::to_std)
            .map_err(|_| "a duration such as 100ms or 1m30s")
    }
}

/// A share in percent; what lies outside of 0 to 100 counts as 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct Percentage(pub f64);

impl Flag for Percentage {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let value: f64 = text.parse().map_err(|_| "a number")?;
        Ok(Self(if (0.0..=100.0).contains(&value) {
            value
        } else {
            1.0
        }))
    }
}

features! {
    /// Scope gateways to workloads of their own namespace.
    "PILOT_SCOPE_GATEWAY_TO_NAMESPACE" scope_gateway_to_namespace: bool = false;
    /// Send gateways only the clusters that their routes use.
    "PILOT_FILTER_GATEWAY_CLUSTER_CONFIG" filter_gateway_cluster_config: bool = false;
    /// Drop Istio Gateways that would take over a managed gateway.
    "PILOT_ENABLE_STRICT_GATEWAY_MERGING" strict_gateway_merging: bool = true;
    /// Merge DestinationRules of one host only when their `exportTo` sets fit.
    "ENABLE_ENHANCED_DESTINATIONRULE_MERGE" enhanced_destination_rule_merge: bool = true;
    /// Prefer Kubernetes services and Gateway API routes in sidecar scopes.
    "PILOT_UNIFIED_SIDECAR_SCOPE" unified_sidecar_scope: bool = true;
    /// Pick the best namespace for a destination that several define.
    "PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE" sidecar_pick_best_service_namespace: bool = true;
    /// Selector policies apply to Gateway API gateways too.
    "ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY" selector_based_gateway_policy: bool = true;
    /// Listen with QUIC for HTTPS servers that have a UDP port.
    "PILOT_ENABLE_QUIC_LISTENERS" quic_listeners: bool = false;
    /// Namespace of the gateway that serves Ingresses, and of what is derived from them.
    "K8S_INGRESS_NS" ingress_namespace: String = "istio-system".to_owned();
    /// Name of the built-in class of gateways.
    "PILOT_GATEWAY_API_DEFAULT_GATEWAYCLASS_NAME" default_gateway_class: String = "istio".to_owned();
    /// Controller of the built-in class of gateways.
    "PILOT_GATEWAY_API_CONTROLLER_NAME" gateway_controller: String = "istio.io/gateway-controller".to_owned();
    /// Gateway API objects are translated.
    "PILOT_ENABLE_GATEWAY_API" gateway_api: bool = true;
    /// Gateways that name a host as their address are served by a workload of their owner; without, all
    /// are deployed.
    "ENABLE_GATEWAY_API_MANUAL_DEPLOYMENT" gateway_api_manual_deployment: bool = true;
    /// What is deployed for a Gateway that says nothing for it has the labels and annotations of the Gateway.
    "PILOT_ENABLE_GATEWAY_API_COPY_LABELS_ANNOTATIONS" gateway_api_copy_metadata: bool = true;
    /// Alpha kinds of Gateway API are translated.
    "PILOT_ENABLE_ALPHA_GATEWAY_API" alpha_gateway_api: bool = false;
    /// ServiceEntries without addresses get one.
    "PILOT_ENABLE_IP_AUTOALLOCATE" ip_autoallocate: bool = true;
    /// Pods that ask for it wait for the distribution of their endpoints: to be ready, and to be gone. Not a
    /// variable of the Go istiod.
    "PILOT_ENABLE_POD_DISTRIBUTION" pod_distribution: bool = false;
    /// Where key sets of tokens are fetched.
    "PILOT_JWT_ENABLE_REMOTE_JWKS" remote_jwks: String = "istiod".to_owned();
    /// Ambient mode.
    "PILOT_ENABLE_AMBIENT" ambient: bool = false;
    /// Proxies start HBONE tunnels; only in ambient mode.
    "PILOT_ENABLE_SENDING_HBONE" sending_hbone: bool = true;
    /// Dual-stack listeners and endpoints.
    "ISTIO_DUAL_STACK" dual_stack: bool = false;
    /// Unhealthy endpoints are sent, marked as such.
    "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS" auto_send_unhealthy_endpoints: bool = true;
    /// Unhealthy endpoints are sent, and the panic threshold is off.
    "PILOT_SEND_UNHEALTHY_ENDPOINTS" send_unhealthy_endpoints: bool = false;
    /// Label of services whose sessions stick to a pod by cookie.
    "PILOT_PERSISTENT_SESSION_LABEL" persistent_session_label: String = "istio.io/persistent-session".to_owned();
    /// Label of services whose sessions stick to a pod by header.
    "PILOT_PERSISTENT_SESSION_HEADER_LABEL" persistent_session_header_label: String = "istio.io/persistent-session-header".to_owned();
    /// Kubernetes Services select WorkloadEntries.
    "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES" kubernetes_select_workload_entries: bool = true;
    /// ServiceEntries select pods.
    "PILOT_ENABLE_SERVICEENTRY_SELECT_PODS" service_entry_select_pods: bool = true;
    /// ServiceEntries select WorkloadEntries of other clusters.
    "PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY" cross_cluster_workload_entries: bool = true;
    /// WorkloadEntries with health checks are endpoints only while healthy.
    "PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS" workload_entry_health_checks: bool = true;
    /// External ServiceEntries carry canonical service labels.
    "LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES" canonical_external_services: bool = false;
    /// Host names of network gateways are resolved; otherwise such gateways are dropped.
    "RESOLVE_HOSTNAME_GATEWAYS" resolve_hostname_gateways: bool = true;
    /// Gateway API gateways with a network label are network gateways.
    "PILOT_MULTI_NETWORK_DISCOVER_GATEWAY_API" multi_network_discover_gateway_api: bool = true;
    /// Proxies exchange peer metadata.
    "PILOT_ENABLE_METADATA_EXCHANGE" metadata_exchange: bool = true;
    /// Clients do not offer the metadata exchange by ALPN.
    "PILOT_DISABLE_MX_ALPN" disable_mx_alpn: bool = false;
    /// Further workload labels to exchange, separated by commas.
    "PILOT_MX_ADDITIONAL_LABELS" mx_additional_labels: String = String::new();
    /// Clusters and endpoints name services and workloads in metadata.
    "PILOT_ENABLE_TELEMETRY_LABEL" telemetry_label: bool = true;
    /// Endpoints name their workload in metadata.
    "PILOT_ENDPOINT_TELEMETRY_LABEL" endpoint_telemetry_label: bool = true;
    /// Headless Kubernetes services are EDS clusters for sidecars too.
    "PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES" eds_for_headless: bool = false;
    /// Sidecars with ingress listeners also keep the service ports that no listener names.
    "PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE" sidecar_inbound_merge: bool = false;
    /// UDP queries of the DNS resolver before its socket is renewed.
    "PILOT_DNS_CARES_UDP_MAX_QUERIES" dns_cares_udp_max_queries: u32 = 100;
    /// Jitter of DNS refreshes.
    "PILOT_DNS_JITTER_DURATION" dns_jitter: std::time::Duration = std::time::Duration::from_millis(100);
    /// Circuit breakers do not report what remains.
    "DISABLE_TRACK_REMAINING_CB_METRICS" disable_track_remaining: bool = true;
    /// Locality weights count on every cluster.
    "ENABLE_LOCALITY_WEIGHTED_LB_CONFIG" locality_weighted_lb: bool = false;
    /// Redis ports have a Redis filter.
    "PILOT_ENABLE_REDIS_FILTER" redis_filter: bool = false;
    /// IPv6-only workloads may reach IPv4 addresses.
    "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS" v4_outbound_for_v6: bool = false;
    /// TLS of rules for external hosts beats certificates of the node's metadata.
    "PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES" prefer_rule_tls_for_external: bool = true;
    /// Label of endpoints that drain.
    "PILOT_DRAINING_LABEL" draining_label: String = "istio.io/draining".to_owned();
    /// Hosts that the cache of the dynamic DNS mode holds.
    "PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS" dynamic_dns_max_hosts: u32 = 1024;
    /// The metric on EnvoyFilters tells of applied patches too, not only of those that fail.
    "PILOT_ENVOY_FILTER_STATS" envoy_filter_stats: bool = false;
    /// Built resources that are kept, for each type.
    "PILOT_XDS_CACHE_SIZE" xds_cache_size: u32 = 60_000;
    /// Restriction of TLS parameters: `fips-140-2`, `fips-140-3` or `pqc`.
    "COMPLIANCE_POLICY" compliance_policy: String = String::new();
    /// Tunnels are preferred to mutual TLS where both are possible.
    "PILOT_PREFER_SENDING_HBONE" prefer_sending_hbone: bool = false;
    /// Host names of routes get an absolute form with a trailing dot.
    "PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN" absolute_fqdn_vhost_domain: bool = true;
    /// Mirrored requests keep their host as it is.
    "DISABLE_SHADOW_HOST_SUFFIX" disable_shadow_host_suffix: bool = true;
    /// Services may ask for persistent sessions by label.
    "PILOT_ENABLE_PERSISTENT_SESSION_FILTER" persistent_session: bool = false;
    /// Outbound HTTP offers Istio's ALPN protocols.
    "PILOT_ENABLE_ALPN_FILTER" alpn_filter: bool = true;
    /// Mongo ports have a Mongo filter.
    "PILOT_ENABLE_MONGO_FILTER" mongo_filter: bool = true;
    /// `MySQL` ports have a `MySQL` filter.
    "PILOT_ENABLE_MYSQL_FILTER" mysql_filter: bool = false;
    /// HTTP/1.0 is accepted.
    "PILOT_HTTP10" http10: bool = false;
    /// Outbound managers of sidecars take the client's address from the connection.
    "PILOT_SIDECAR_USE_REMOTE_ADDRESS" sidecar_use_remote_address: bool = false;
    /// Ranges of the mesh's networks count as internal addresses.
    "ENABLE_HCM_INTERNAL_NETWORKS" hcm_internal_networks: bool = false;
    /// `100-continue` is left to the upstream.
    "ENABLE_100_CONTINUE_HEADERS" continue_headers: bool = true;
    /// Trust domains of peers are not checked.
    "PILOT_SKIP_VALIDATE_TRUST_DOMAIN" skip_validate_trust_domain: bool = false;
    /// Ingress listeners of Sidecars may have TLS settings.
    "ENABLE_TLS_ON_SIDECAR_INGRESS" tls_on_sidecar_ingress: bool = false;
    /// TCP ports of headless services are chains of one listener, rather than a listener each.
    "PILOT_ENABLE_HEADLESS_FILTER_CHAIN_LISTENER" headless_filter_chain_listener: bool = false;
    /// Connections that a bound listener accepts at a time; 0 means without limit.
    "MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP" max_connections_per_socket_event: u32 = 1;
    /// How long chains wait for their transport socket; 0 means without limit.
    "PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT" transport_socket_connect_timeout: std::time::Duration = std::time::Duration::from_secs(15);
    /// Requests that are traced where nothing else is said, percent.
    "PILOT_TRACE_SAMPLING" trace_sampling: Percentage = Percentage(1.0);
    /// Name tables list endpoints of headless services in other clusters.
    "ENABLE_MULTICLUSTER_HEADLESS" multicluster_headless: bool = true;
    /// Tunnels tell who is at their ends by the baggage header; only in ambient mode.
    "AMBIENT_ENABLE_BAGGAGE" ambient_baggage: bool = false;
    /// Policies that select a waypoint are enforced where its tunnels end.
    "ENABLE_LAYERED_WAYPOINT_AUTHORIZATION_POLICIES" layered_waypoint_policies: bool = false;
    /// Bytes that a peer may send ahead on one stream of HTTP/2 that carries a tunnel; 0 leaves it to the proxy.
    "PILOT_HBONE_INITIAL_STREAM_WINDOW_SIZE" hbone_stream_window: u32 = 0;
    /// The same for a whole connection.
    "PILOT_HBONE_INITIAL_CONNECTION_WINDOW_SIZE" hbone_connection_window: u32 = 0;
    /// Waypoints resolve wildcard hosts by the server name of TLS, which clients may choose freely.
    "ENABLE_WILDCARD_HOST_SERVICE_ENTRIES_FOR_TLS" wildcard_tls_entries: bool = false;
    /// Sidecars end HBONE tunnels; only in ambient mode.
    "PILOT_ENABLE_SIDECAR_LISTENING_HBONE" sidecar_listening_hbone: bool = true;
    /// One workload may have several external authorizers.
    "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS" multiple_custom_authz_providers: bool = false;
    /// Virtual hosts of gateways that have the same routes become one.
    "PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION" route_collapse: bool = true;
}
