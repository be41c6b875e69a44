//! Model values as Envoy's protos write them.

use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            Address, Pipe, SocketAddress, TransportSocket, TypedExtensionConfig, address,
            socket_address::PortSpecifier, transport_socket,
        },
        r#type::v3::Percent,
    },
    google::protobuf::{Any, BoolValue, DoubleValue, Duration, UInt32Value, UInt64Value},
};
use model::api;

/// A duration of the API.
pub fn duration(value: api::Duration) -> Duration {
    Duration {
        seconds: value.seconds(),
        nanos: value.subsec_nanos(),
    }
}

/// A duration of whole seconds.
pub const fn seconds(seconds: i64) -> Duration {
    Duration { seconds, nanos: 0 }
}

/// A duration of the standard library; one beyond proto's range is cut off.
pub fn std_duration(value: std::time::Duration) -> Duration {
    duration(api::Duration::from(value))
}

/// A wrapped number.
pub const fn u32_value(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

/// A wrapped 64-bit number.
pub const fn u64_value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

/// A wrapped boolean.
pub const fn bool_value(value: bool) -> Option<BoolValue> {
    Some(BoolValue { value })
}

/// A wrapped double.
pub const fn double_value(value: f64) -> Option<DoubleValue> {
    Some(DoubleValue { value })
}

/// A wrapped number when it is positive; the API's "zero means unset".
pub fn positive(value: i32) -> Option<UInt32Value> {
    u32::try_from(value)
        .ok()
        .filter(|v| *v > 0)
        .and_then(u32_value)
}

/// A percentage.
pub const fn percent(value: f64) -> Option<Percent> {
    Some(Percent { value })
}

/// An IP address and a port as the bare message.
pub fn socket(address: impl Into<String>, port: u16) -> SocketAddress {
    SocketAddress {
        address: address.into(),
        port_specifier: Some(PortSpecifier::PortValue(port.into())),
        ..SocketAddress::default()
    }
}

/// An IP address and a port.
pub fn socket_address(address: impl Into<String>, port: u16) -> Address {
    Address {
        address: Some(address::Address::SocketAddress(socket(address, port))),
    }
}

/// A Unix domain socket.
pub fn pipe_address(path: impl Into<String>) -> Address {
    Address {
        address: Some(address::Address::Pipe(Pipe {
            path: path.into(),
            mode: 0,
        })),
    }
}

/// An extension with its packed config.
pub fn extension(name: impl Into<String>, typed_config: Any) -> TypedExtensionConfig {
    TypedExtensionConfig {
        name: name.into(),
        typed_config: Some(typed_config),
    }
}

/// A transport socket with its packed config.
pub fn transport_socket(name: impl Into<String>, typed_config: Any) -> TransportSocket {
    TransportSocket {
        name: name.into(),
        config_type: Some(transport_socket::ConfigType::TypedConfig(typed_config)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_sign_and_fraction() {
        let parse = |text: &str| duration(text.parse().unwrap());
        assert_eq!(
            parse("1.5s"),
            Duration {
                seconds: 1,
                nanos: 500_000_000
            }
        );
        assert_eq!(
            parse("-0.5s"),
            Duration {
                seconds: 0,
                nanos: -500_000_000
            }
        );
    }

    #[test]
    fn only_positive_numbers_are_set() {
        assert_eq!(positive(0), None);
        assert_eq!(positive(-1), None);
        assert_eq!(positive(5), u32_value(5));
    }
}
