//! The rules of proto JSON, on messages made up for them.

#![expect(unreachable_pub, reason = "the macros make what they declare public")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Base64, decode, decode_at};
use crate::api::Duration;

message! {
    /// A message with a field of every shape.
    pub struct Everything {
        /// Text.
        some_text: String,
        /// A number.
        number: i32,
        /// A large number.
        size: u64,
        /// A fraction.
        ratio: f64,
        /// A switch.
        flag: bool,
        /// A wrapper.
        maybe: Option<u32>,
        /// A span.
        timeout: Option<Duration>,
        /// An enum.
        mode: Mode,
        /// A message.
        inner: Option<Box<Everything>>,
        /// Messages.
        list: Vec<Everything>,
        /// Texts.
        names: Vec<String>,
        /// Messages by port.
        by_port: BTreeMap<u32, Everything>,
        /// Bytes.
        data: Base64,
        /// Anything.
        any: Option<Value>,
    }
}

proto_enum! {
    /// An enum.
    pub enum Mode {
        /// Zero.
        Zero = 0 "ZERO",
        /// Three.
        Three = 3 "THREE",
    }
}

use super::{message, proto_enum};

/// Checks that two spellings decode to the same, without unknown fields.
#[track_caller]
fn same(one: &Value, other: &Value) {
    let decode = |value: &Value| {
        let decoded = decode::<Everything>(value).unwrap();
        assert_eq!(decoded.unknown, [""; 0], "{value}");
        decoded.value
    };
    assert_eq!(decode(one), decode(other), "{one} and {other}");
}

/// Checks that a value is refused at `path`.
#[track_caller]
fn refused(value: &Value, path: &str) {
    assert_eq!(
        decode::<Everything>(value).unwrap_err().path,
        path,
        "{value}"
    );
}

#[test]
fn names_may_be_snake_case() {
    same(&json!({"some_text": "a"}), &json!({"someText": "a"}));
    // Given both ways, the camel case one counts, and the other is reported.
    let decoded = decode::<Everything>(&json!({"some_text": "a", "someText": "b"})).unwrap();
    assert_eq!(decoded.value.some_text, "b");
    assert_eq!(decoded.unknown, ["some_text"]);
}

#[test]
fn null_is_absent() {
    let nulls = json!({"someText": null, "number": null, "flag": null, "maybe": null, "mode": null,
        "inner": null, "list": null, "byPort": null, "any": null});
    same(&nulls, &json!({}));
    same(
        &json!({"list": [null, {}], "names": [null]}),
        &json!({"list": [{}, {}], "names": [""]}),
    );
    same(&Value::Null, &json!({}));
}

#[test]
fn numbers_may_be_strings() {
    same(
        &json!({"number": "-5", "size": "18446744073709551615", "ratio": "0.5", "maybe": 1.0}),
        &json!({"number": -5, "size": u64::MAX, "ratio": 0.5, "maybe": 1}),
    );
}

#[test]
fn enums_by_name_or_number() {
    same(&json!({"mode": "THREE"}), &json!({"mode": 3}));
    same(&json!({"mode": "ZERO"}), &json!({}));
    refused(&json!({"mode": "three"}), "mode");
    refused(&json!({"mode": 1}), "mode");
}

#[test]
fn wrappers_and_messages_tell_zero_from_absent() {
    let decoded = decode::<Everything>(&json!({"maybe": 0, "inner": {}}))
        .unwrap()
        .value;
    assert_eq!(decoded.maybe, Some(0));
    assert_eq!(decoded.inner, Some(Box::default()));
}

#[test]
fn bytes_in_either_alphabet() {
    same(&json!({"data": "+/8="}), &json!({"data": "-_8"}));
    refused(&json!({"data": "!"}), "data");
}

#[test]
fn errors_name_the_place() {
    refused(&json!({"someText": 1}), "someText");
    refused(&json!({"flag": "true"}), "flag");
    refused(&json!({"number": 1.5}), "number");
    refused(&json!({"number": 3_000_000_000_u32}), "number");
    refused(
        &json!({"inner": {"list": [{}, {"timeout": "soon"}]}}),
        "inner.list[1].timeout",
    );
    refused(
        &json!({"byPort": {"80": {"names": "a"}}}),
        "byPort.80.names",
    );
    refused(&json!({"byPort": {"http": {}}}), "byPort");
    refused(&json!([]), "");
    let error = decode_at::<Everything>("spec", &json!({"flag": 1})).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.flag: found the number 1, expected true or false"
    );
}

#[test]
fn unknown_fields_are_reported() {
    let value = json!({"list": [{"nope": 1}], "a.b": 2, "kind": "X", "any": {"free": 1}});
    let decoded = decode::<Everything>(&value).unwrap();
    assert_eq!(decoded.unknown, ["[\"a.b\"]", "list[0].nope"]);
    // Only whole objects have an envelope.
    assert_eq!(
        decode_at::<Everything>("spec", &json!({"kind": "X"}))
            .unwrap()
            .unknown,
        ["spec.kind"]
    );
}

#[test]
fn what_is_written_is_read_back() {
    let value = json!({"someText": "a", "maybe": 0, "timeout": "1.500s", "mode": "THREE", "data": "/w==",
        "byPort": {"80": {"flag": true}}, "list": [{}], "any": {"x": null}});
    let decoded = decode::<Everything>(&value).unwrap().value;
    let written = serde_json::to_value(&decoded).unwrap();
    assert_eq!(written, value);
}
