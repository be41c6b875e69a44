//! `networking.istio.io` `ProxyConfig`, the custom resource (config-model.md §3.9).

use std::collections::BTreeMap;

use super::codec::message;
use super::common::WorkloadSelector;

message! {
    /// Settings of proxies that are laid over the mesh's `defaultConfig`.
    pub struct ProxyConfig {
        /// Workloads it is for; absent means all in scope.
        selector: Option<WorkloadSelector>,
        /// Worker threads; zero means all cores.
        concurrency: Option<i32>,
        /// Environment of the proxy.
        environment_variables: BTreeMap<String, String>,
        /// Image of the proxy.
        image: Option<ProxyImage>,
    }

    /// Image of the proxy.
    pub struct ProxyImage {
        /// `default`, `debug` or `distroless`.
        image_type: String,
    }
}
