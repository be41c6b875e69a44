//! The hand-written messages agree with their descriptors.

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use super::{alpn, metadata_exchange, nds, peer_metadata, stats};
use crate::{contrib, descriptors, encode, udpa, xds};

/// Messages that together set every field of `descriptor` to something else than its default: one, or as many as
/// its largest oneof has members.
fn filled(descriptor: &MessageDescriptor, depth: usize) -> Vec<DynamicMessage> {
    let members = descriptor
        .oneofs()
        .map(|oneof| oneof.fields().len())
        .max()
        .unwrap_or(1);
    (0..members)
        .map(|member| {
            let mut message = DynamicMessage::new(descriptor.clone());
            for field in descriptor.fields() {
                let skipped = field.containing_oneof().is_some_and(|oneof| {
                    oneof.fields().position(|other| other == field) != Some(member)
                });
                if !skipped {
                    fill(&mut message, &field, depth);
                }
            }
            message
        })
        .collect()
}

fn fill(message: &mut DynamicMessage, field: &FieldDescriptor, depth: usize) {
    let values = |kind: &Kind| -> Vec<Value> {
        match kind {
            // Messages contain themselves: stop somewhere.
            Kind::Message(_) if depth == 0 => Vec::new(),
            Kind::Message(child) => filled(child, depth - 1)
                .into_iter()
                .map(Value::Message)
                .collect(),
            Kind::Bool => vec![Value::Bool(true)],
            Kind::String => vec![Value::String(field.name().to_owned())],
            Kind::Bytes => vec![Value::Bytes(vec![1].into())],
            Kind::Enum(_) => vec![Value::EnumNumber(1)],
            Kind::Int32 => vec![Value::I32(-1)],
            Kind::Int64 => vec![Value::I64(-1)],
            Kind::Uint32 => vec![Value::U32(1)],
            Kind::Double => vec![Value::F64(1.5)],
            other => panic!("a field of kind {other:?}: add it here"),
        }
    };
    let kind = field.kind();
    if let (true, Kind::Message(entry)) = (field.is_map(), &kind) {
        let values = values(&entry.map_entry_value_field().kind());
        let keys = (0..).map(|number| MapKey::String(format!("key{number}")));
        message.set_field(field, Value::Map(keys.zip(values).collect()));
    } else if field.is_list() {
        message.set_field(field, Value::List(values(&kind)));
    } else if let Some(value) = values(&kind).into_iter().next() {
        message.set_field(field, value);
    }
}

/// Whatever the descriptor can say survives a decoding by the Rust type.
#[track_caller]
fn check<M: Message + Name + Default>() {
    let descriptor = descriptors::message(&M::full_name()).unwrap();
    assert_eq!(
        M::type_url(),
        format!("type.googleapis.com/{}", descriptor.full_name())
    );
    for message in filled(&descriptor, 5) {
        let bytes = encode::canonical_dynamic(&message);
        let typed = M::decode(bytes.as_slice()).unwrap();
        assert_eq!(encode::canonical_vec(&typed), bytes, "{message:?}");
    }
}

#[test]
fn messages_agree_with_their_descriptors() {
    check::<alpn::FilterConfig>();
    check::<alpn::AlpnOverride>();
    check::<stats::PluginConfig>();
    check::<stats::MetricConfig>();
    check::<stats::MetricDefinition>();
    check::<nds::NameTable>();
    check::<nds::NameInfo>();
    check::<metadata_exchange::MetadataExchange>();
    check::<peer_metadata::Config>();
    check::<peer_metadata::DiscoveryMethod>();
    check::<peer_metadata::PropagationMethod>();
    check::<peer_metadata::Baggage>();
    check::<peer_metadata::WorkloadDiscovery>();
    check::<peer_metadata::IstioHeaders>();
    check::<contrib::MySqlProxy>();
    check::<contrib::CryptoMbPrivateKeyMethodConfig>();
    check::<contrib::QatPrivateKeyMethodConfig>();
    check::<udpa::TypedStruct>();
    check::<xds::IpMatcher>();
    check::<xds::IpRangeMatcher>();
}

#[test]
fn enums_agree_with_their_descriptors() {
    let number = |name: &str, value: &str| {
        let descriptor = descriptors::pool().get_enum_by_name(name).unwrap();
        descriptor.get_value_by_name(value).unwrap().number()
    };
    let protocol = "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig.Protocol";
    assert_eq!(
        number(protocol, "HTTP11"),
        i32::from(alpn::Protocol::Http11)
    );
    assert_eq!(number(protocol, "HTTP2"), i32::from(alpn::Protocol::Http2));
    assert_eq!(
        number("stats.Reporter", "SERVER_GATEWAY"),
        i32::from(stats::Reporter::ServerGateway)
    );
    assert_eq!(
        number("stats.MetricType", "HISTOGRAM"),
        i32::from(stats::MetricType::Histogram)
    );
}
