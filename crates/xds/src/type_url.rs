//! Type URLs of Envoy's own resource types.
//!
//! Applications define the URLs of their own types. A test compares these constants with
//! `prost::Name::type_url`.

/// Clusters (CDS).
pub const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// Endpoints of clusters (EDS).
pub const ENDPOINT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Listeners (LDS).
pub const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
/// Route configurations (RDS).
pub const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
/// Secrets (SDS).
pub const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
/// Extension configurations (ECDS).
pub const EXTENSION: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";
/// Runtime layers (RTDS).
pub const RUNTIME: &str = "type.googleapis.com/envoy.service.runtime.v3.Runtime";

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config as envoy;
    use prost::Name;

    #[test]
    fn constants_match_the_generated_names() {
        assert_eq!(super::CLUSTER, envoy::cluster::v3::Cluster::type_url());
        assert_eq!(
            super::ENDPOINT,
            envoy::endpoint::v3::ClusterLoadAssignment::type_url()
        );
        assert_eq!(super::LISTENER, envoy::listener::v3::Listener::type_url());
        assert_eq!(
            super::ROUTE,
            envoy::route::v3::RouteConfiguration::type_url()
        );
        assert_eq!(
            super::EXTENSION,
            envoy::core::v3::TypedExtensionConfig::type_url()
        );
        assert_eq!(
            super::SECRET,
            envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::Secret::type_url()
        );
        assert_eq!(
            super::RUNTIME,
            envoy_types::pb::envoy::service::runtime::v3::Runtime::type_url()
        );
    }
}
