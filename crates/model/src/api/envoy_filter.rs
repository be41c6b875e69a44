//! `networking.istio.io` EnvoyFilter (envoyfilter.md §1).

use serde_json::Value;
use std::collections::BTreeMap;

use super::codec::{message, proto_enum};
use super::common::{LabelsSelector, PolicyTargetReference};
use crate::Derived;

message! {
    /// Patches of generated Envoy configuration.
    pub struct EnvoyFilter {
        /// Workloads it is for; absent means all in scope.
        workload_selector: Option<LabelsSelector>,
        /// Resources it attaches to; excludes `workload_selector`.
        target_refs: Vec<PolicyTargetReference>,
        /// The patches, applied in order for each target type.
        config_patches: Vec<ConfigPatch>,
        /// Smaller runs earlier.
        priority: i32,
        /// What the patches were compiled to; no field of the API.
        #[serde(skip)]
        compiled: Derived,
    }

    /// One patch.
    pub struct ConfigPatch {
        /// What it changes.
        apply_to: ApplyTo,
        /// Which of them; absent means all.
        r#match: Option<ConfigMatch>,
        /// The change.
        patch: Option<Patch>,
    }

    /// A change.
    pub struct Patch {
        /// What is done.
        operation: Operation,
        /// Proto JSON of the patched type, verbatim.
        value: Option<Value>,
        /// Accepted, never read.
        filter_class: FilterClass,
    }

    /// What a patch applies to; at most one of the last four members is set.
    pub struct ConfigMatch {
        /// Side of the traffic.
        context: PatchContext,
        /// The proxy.
        proxy: Option<ProxyMatch>,
        /// A listener.
        listener: Option<ListenerMatch>,
        /// A route configuration.
        route_configuration: Option<RouteConfigurationMatch>,
        /// A cluster.
        cluster: Option<ClusterMatch>,
        /// A waypoint; never evaluated.
        waypoint: Option<WaypointMatch>,
    }

    /// Conditions on the proxy.
    pub struct ProxyMatch {
        /// RE2 expression searched in the proxy's version.
        proxy_version: String,
        /// Node metadata that must be equal.
        metadata: BTreeMap<String, String>,
    }

    /// Conditions on a cluster; empty members are not tested.
    pub struct ClusterMatch {
        /// Service port.
        port_number: u32,
        /// Service host.
        service: String,
        /// Subset.
        subset: String,
        /// Cluster name.
        name: String,
    }

    /// Conditions on a route configuration; empty members are not tested.
    pub struct RouteConfigurationMatch {
        /// Port.
        port_number: u32,
        /// Port name, on gateways.
        port_name: String,
        /// `namespace/name` of the gateway.
        gateway: String,
        /// A virtual host.
        vhost: Option<VirtualHostMatch>,
        /// Route configuration name.
        name: String,
    }

    /// Conditions on a virtual host.
    pub struct VirtualHostMatch {
        /// Its name.
        name: String,
        /// One of its domains.
        domain_name: String,
        /// A route.
        route: Option<RouteMatch>,
    }

    /// Conditions on a route.
    pub struct RouteMatch {
        /// Its name.
        name: String,
        /// Its action.
        action: RouteAction,
    }

    /// Conditions on a listener; empty members are not tested.
    pub struct ListenerMatch {
        /// Port.
        port_number: u32,
        /// Without effect.
        port_name: String,
        /// A filter chain.
        filter_chain: Option<FilterChainMatch>,
        /// A listener filter.
        listener_filter: String,
        /// Listener name.
        name: String,
    }

    /// Conditions on a filter chain; empty members are not tested.
    pub struct FilterChainMatch {
        /// Its name.
        name: String,
        /// A server name.
        sni: String,
        /// Transport protocol.
        transport_protocol: String,
        /// Comma list of application protocols.
        application_protocols: String,
        /// Without effect.
        transport_socket: String,
        /// A network filter.
        filter: Option<FilterMatch>,
        /// Destination port.
        destination_port: u32,
    }

    /// A filter by name.
    pub struct FilterMatch {
        /// Its name.
        name: String,
        /// A filter inside it.
        sub_filter: Option<SubFilterMatch>,
    }

    /// An HTTP filter by name.
    pub struct SubFilterMatch {
        /// Its name.
        name: String,
    }

    /// Conditions on a waypoint.
    pub struct WaypointMatch {
        /// Port.
        port_number: u32,
        /// A filter.
        filter: Option<FilterMatch>,
        /// A route.
        route: Option<WaypointRouteMatch>,
    }

    /// A waypoint's route by name.
    pub struct WaypointRouteMatch {
        /// Its name.
        name: String,
    }
}

proto_enum! {
    /// What a patch changes.
    pub enum ApplyTo {
        /// Not given.
        Invalid = 0 "INVALID",
        /// Listeners.
        Listener = 1 "LISTENER",
        /// Filter chains.
        FilterChain = 2 "FILTER_CHAIN",
        /// Network filters.
        NetworkFilter = 3 "NETWORK_FILTER",
        /// HTTP filters.
        HttpFilter = 4 "HTTP_FILTER",
        /// Route configurations.
        RouteConfiguration = 5 "ROUTE_CONFIGURATION",
        /// Virtual hosts.
        VirtualHost = 6 "VIRTUAL_HOST",
        /// Routes.
        HttpRoute = 7 "HTTP_ROUTE",
        /// Clusters.
        Cluster = 8 "CLUSTER",
        /// Extension configurations.
        ExtensionConfig = 9 "EXTENSION_CONFIG",
        /// The bootstrap.
        Bootstrap = 10 "BOOTSTRAP",
        /// Listener filters.
        ListenerFilter = 11 "LISTENER_FILTER",
    }

    /// What a patch does.
    pub enum Operation {
        /// Not given.
        Invalid = 0 "INVALID",
        /// Merges the value in.
        Merge = 1 "MERGE",
        /// Adds the value.
        Add = 2 "ADD",
        /// Removes what matched.
        Remove = 3 "REMOVE",
        /// Adds before what matched.
        InsertBefore = 4 "INSERT_BEFORE",
        /// Adds after what matched.
        InsertAfter = 5 "INSERT_AFTER",
        /// Adds at the front.
        InsertFirst = 6 "INSERT_FIRST",
        /// Replaces what matched.
        Replace = 7 "REPLACE",
        /// Merges the value in, replacing lists.
        MergeAndReplaceList = 8 "MERGE_AND_REPLACE_LIST",
    }

    /// Side of the traffic.
    pub enum PatchContext {
        /// All.
        Any = 0 "ANY",
        /// Inbound of sidecars.
        SidecarInbound = 1 "SIDECAR_INBOUND",
        /// Outbound of sidecars.
        SidecarOutbound = 2 "SIDECAR_OUTBOUND",
        /// Gateways.
        Gateway = 3 "GATEWAY",
        /// Waypoints.
        Waypoint = 4 "WAYPOINT",
    }

    /// Place of an inserted filter; never read.
    pub enum FilterClass {
        /// Anywhere.
        Unspecified = 0 "UNSPECIFIED",
        /// After authentication.
        Authn = 1 "AUTHN",
        /// After authorization.
        Authz = 2 "AUTHZ",
        /// Before statistics.
        Stats = 3 "STATS",
    }

    /// Action of a route.
    pub enum RouteAction {
        /// Any.
        Any = 0 "ANY",
        /// Forwards.
        Route = 1 "ROUTE",
        /// Redirects.
        Redirect = 2 "REDIRECT",
        /// Answers directly.
        DirectResponse = 3 "DIRECT_RESPONSE",
    }
}
