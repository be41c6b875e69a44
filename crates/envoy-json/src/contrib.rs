//! Messages of Envoy's contrib extensions that we build, as `proto/contrib` describes them.

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

crate::istio::name!("envoy.extensions.filters.network.mysql_proxy.v3", MySqlProxy => "MySQLProxy");
