//! Messages of the `udpa` packages that `envoy-types` lacks, as `proto/udpa` describes them.

use envoy_types::pb::google::protobuf::Struct;

/// A config given as a `Struct` beside the URL of its type (`udpa.type.v1.TypedStruct`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct TypedStruct {
    /// URL of the type that `value` is JSON of.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The config.
    #[prost(message, optional, tag = "2")]
    pub value: Option<Struct>,
}

crate::istio::name!("udpa.type.v1", TypedStruct => "TypedStruct");
