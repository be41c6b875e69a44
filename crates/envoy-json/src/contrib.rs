//! Messages of Envoy's contrib extensions that we build, as `proto/contrib` describes them.
//!
//! That folder describes some more, which only occur in EnvoyFilters.

use envoy_types::pb::{envoy::config::core::v3::DataSource, google::protobuf::Duration};

/// Config of the network filter `envoy.filters.network.mysql_proxy`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MySqlProxy {
    /// Prefix of the statistics.
    #[prost(string, tag = "1")]
    pub stat_prefix: String,
    /// File of the access log; empty means none.
    #[prost(string, tag = "2")]
    pub access_log: String,
}

/// Config of the private key provider `cryptomb`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CryptoMbPrivateKeyMethodConfig {
    /// The key, in PEM.
    #[prost(message, optional, tag = "1")]
    pub private_key: Option<DataSource>,
    /// How long operations may wait for each other.
    #[prost(message, optional, tag = "2")]
    pub poll_delay: Option<Duration>,
}

/// Config of the private key provider `qat`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct QatPrivateKeyMethodConfig {
    /// The key, in PEM.
    #[prost(message, optional, tag = "1")]
    pub private_key: Option<DataSource>,
    /// How long to wait before the accelerator is asked for its result.
    #[prost(message, optional, tag = "2")]
    pub poll_delay: Option<Duration>,
}

crate::istio::name!("envoy.extensions.filters.network.mysql_proxy.v3", MySqlProxy => "MySQLProxy");
crate::istio::name!("envoy.extensions.private_key_providers.cryptomb.v3alpha",
    CryptoMbPrivateKeyMethodConfig => "CryptoMbPrivateKeyMethodConfig",
);
crate::istio::name!("envoy.extensions.private_key_providers.qat.v3alpha",
    QatPrivateKeyMethodConfig => "QatPrivateKeyMethodConfig",
);
