use std::collections::HashMap;

use envoy_types::pb::{
    envoy::config::{
        cluster::v3::{Cluster, cluster::ClusterDiscoveryType},
        core::v3::Metadata,
        route::v3::{ClusterSpecifierPlugin, RouteAction, route_action::ClusterSpecifier},
    },
    google::protobuf::Struct,
};
use proptest::prelude::*;
use prost::Message as _;
use serde_json::json;

use super::*;
use crate::istio::nds;

/// A JSON value of any shape, its objects listed as pairs so that a test can insert them in any order.
#[derive(Clone, Debug)]
enum Json {
    Leaf(i32),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        prop::num::i32::ANY.prop_map(Json::Leaf),
        "[a-c]{0,3}".prop_map(Json::Text)
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::List),
            prop::collection::btree_map("[a-z]{0,3}", inner, 0..6)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

impl Json {
    fn value(&self, reversed: bool) -> Value {
        let kind = match self {
            Self::Leaf(number) => Kind::NumberValue(f64::from(*number)),
            Self::Text(text) => Kind::StringValue(text.clone()),
            Self::List(values) => Kind::ListValue(ListValue {
                values: values.iter().map(|value| value.value(reversed)).collect(),
            }),
            Self::Object(_) => Kind::StructValue(self.object(reversed)),
        };
        Value { kind: Some(kind) }
    }

    fn object(&self, reversed: bool) -> Struct {
        let Self::Object(pairs) = self else {
            return Struct::default();
        };
        let pair = |(key, value): &(String, Self)| (key.clone(), value.value(reversed));
        // Each HashMap has its own seed, so even the same order of insertion gives another order of buckets.
        let fields: HashMap<_, _> = if reversed {
            pairs.iter().rev().map(pair).collect()
        } else {
            pairs.iter().map(pair).collect()
        };
        Struct { fields }
    }
}

fn cluster(metadata: &Json, reversed: bool) -> Cluster {
    let packed = udpa::TypedStruct {
        type_url: "x/y".to_owned(),
        value: Some(metadata.object(reversed)),
    };
    // Packed by prost, in whatever order.
    let packed = Any {
        type_url: "type.googleapis.com/udpa.type.v1.TypedStruct".to_owned(),
        value: packed.encode_to_vec(),
    };
    let options = ["b", "a", "c"].map(|key| (key.to_owned(), packed.clone()));
    Cluster {
        name: "c".to_owned(),
        typed_extension_protocol_options: options.into_iter().collect(),
        metadata: Some(Metadata {
            filter_metadata: [("m".to_owned(), metadata.object(reversed))].into(),
            typed_filter_metadata: HashMap::new(),
        }),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(3)),
        ..Cluster::default()
    }
}

proptest! {
    #[test]
    fn equal_messages_give_equal_bytes(metadata in any_json()) {
        let one = cluster(&metadata, false);
        let other = cluster(&metadata, true);
        let bytes = canonical(&one);
        prop_assert_eq!(&bytes, &canonical(&other));
        prop_assert_eq!(bytes.len(), one.encoded_len());
        // Decoding gives the message back: the packed bytes are reordered, so compare what they mean.
        let decoded = Cluster::decode(bytes.clone()).unwrap();
        prop_assert_eq!(&decoded.metadata, &one.metadata);
        prop_assert_eq!(decoded.typed_extension_protocol_options.len(), 3);
        for key in ["a", "b", "c"] {
            let packed = &decoded.typed_extension_protocol_options[key];
            let packed = udpa::TypedStruct::decode(packed.value.as_slice()).unwrap();
            prop_assert_eq!(packed.value.unwrap(), metadata.object(false));
        }
        // And it is a fixed point.
        prop_assert_eq!(&bytes, &canonical(&decoded));
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(mut bytes in prop::collection::vec(prop::num::u8::ANY, 0..200)) {
        let mut before = bytes.clone();
        canonicalize("envoy.config.cluster.v3.Cluster", &mut bytes);
        before.sort_unstable();
        bytes.sort_unstable();
        prop_assert_eq!(before, bytes);
    }
}

#[test]
fn map_entries_are_sorted_by_key() {
    let table = ["b", "", "a", "ab"].map(|key| (key.to_owned(), nds::NameInfo::default()));
    let bytes = canonical(&nds::NameTable {
        table: table.into(),
    });
    assert_eq!(
        &bytes[..],
        b"\x0a\x00\x0a\x03\x0a\x01a\x0a\x04\x0a\x02ab\x0a\x03\x0a\x01b"
    );
}

#[test]
fn oneof_members_stand_where_their_number_belongs() {
    // prost writes `inline_cluster_specifier_plugin` (39) first, with the lowest member of its oneof.
    let action = RouteAction {
        append_x_forwarded_host: true,
        cluster_specifier: Some(ClusterSpecifier::InlineClusterSpecifierPlugin(
            ClusterSpecifierPlugin::default(),
        )),
        ..RouteAction::default()
    };
    let plain = action.encode_to_vec();
    let dynamic = DynamicMessage::decode(
        crate::descriptors::message("envoy.config.route.v3.RouteAction").unwrap(),
        plain.as_slice(),
    )
    .unwrap();
    assert_ne!(plain, canonical_vec(&action));
    assert_eq!(canonical_dynamic(&dynamic), canonical_vec(&action));
    assert_eq!(RouteAction::decode(canonical(&action)).unwrap(), action);
}

#[test]
fn typed_structs_are_packed_in_order() {
    let value = json!({"b": 1, "a": {"d": [null, true], "c": "x"}});
    let packed = typed_struct(
        "envoy.tcp.metadataexchange.config.MetadataExchange",
        value.clone(),
    );
    assert_eq!(
        packed,
        typed_struct("envoy.tcp.metadataexchange.config.MetadataExchange", value)
    );
    assert_eq!(
        packed.type_url,
        "type.googleapis.com/udpa.type.v1.TypedStruct"
    );
    let decoded = udpa::TypedStruct::decode(packed.value.as_slice()).unwrap();
    assert!(
        decoded
            .type_url
            .starts_with("type.googleapis.com/envoy.tcp.")
    );
}
