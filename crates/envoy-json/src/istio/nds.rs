//! The DNS name table that the agent beside a proxy asks for (NDS).

use std::collections::HashMap;

/// Names that the agent answers itself (`istio.networking.nds.v1.NameTable`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct NameTable {
    /// Host name to what is known of it.
    #[prost(map = "string, message", tag = "1")]
    pub table: HashMap<String, NameInfo>,
}

/// What is known of one host name.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct NameInfo {
    /// Addresses to answer with.
    #[prost(string, repeated, tag = "1")]
    pub ips: Vec<String>,
    /// The registry that the name comes from: `Kubernetes`, `External`.
    #[prost(string, tag = "2")]
    pub registry: String,
    /// Name of the Kubernetes service; empty for others.
    #[prost(string, tag = "3")]
    pub shortname: String,
    /// Namespace of the Kubernetes service; empty for others.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// Further names; never sent by now.
    #[prost(string, repeated, tag = "5")]
    pub alt_hosts: Vec<String>,
}

super::name!("istio.networking.nds.v1",
    NameTable => "NameTable",
    NameInfo => "NameTable.NameInfo",
);
