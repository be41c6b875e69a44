//! The node message of a discovery request, to and from the model's.

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::{
    envoy::config::core::v3::{Locality as EnvoyLocality, Node as EnvoyNode},
    google::protobuf::{Struct, Value as ProtoValue, value::Kind},
};
use model::{Locality, Node};
use serde_json::{Map, Number, Value};

/// Understands a node message.
pub fn from_envoy(node: &EnvoyNode) -> Node {
    let locality = node.locality.clone().unwrap_or_default();
    let extensions = node
        .extensions
        .iter()
        .map(|e| e.name.clone())
        .collect::<BTreeSet<_>>();
    Node {
        id: node.id.clone(),
        cluster: node.cluster.clone(),
        locality: Locality {
            region: Arc::from(locality.region),
            zone: Arc::from(locality.zone),
            subzone: Arc::from(locality.sub_zone),
        },
        metadata: node.metadata.as_ref().map(object).unwrap_or_default(),
        extensions: (!extensions.is_empty()).then_some(extensions),
    }
}

/// Writes a node message.
pub fn to_envoy(node: &Node) -> EnvoyNode {
    EnvoyNode {
        id: node.id.clone(),
        cluster: node.cluster.clone(),
        locality: (!node.locality.is_empty()).then(|| EnvoyLocality {
            region: node.locality.region.to_string(),
            zone: node.locality.zone.to_string(),
            sub_zone: node.locality.subzone.to_string(),
        }),
        metadata: Some(envoy_json::encode::struct_value(Value::Object(
            node.metadata.clone(),
        ))),
        ..EnvoyNode::default()
    }
}

fn object(fields: &Struct) -> Map<String, Value> {
    // A JSON map is ordered by its keys, whatever the order here.
    fields
        .fields
        .iter()
        .map(|(key, value)| (key.clone(), json(value)))
        .collect()
}

fn json(value: &ProtoValue) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(b)) => Value::Bool(*b),
        Some(Kind::NumberValue(n)) => number(*n),
        Some(Kind::StringValue(s)) => Value::String(s.clone()),
        Some(Kind::StructValue(fields)) => Value::Object(object(fields)),
        Some(Kind::ListValue(list)) => Value::Array(list.values.iter().map(json).collect()),
    }
}

/// Whole numbers stay whole, as JSON readers expect.
fn number(value: f64) -> Value {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked: the value is a whole number in range"
    )]
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Value::Number((value as i64).into());
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}
