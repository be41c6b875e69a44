//! The decoder: a serde deserializer over JSON values that follows proto JSON.

use std::cell::RefCell;
use std::fmt::Display;

use serde::Deserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde_json::Value;

use super::Path;

/// What [`decode`] returns: the object, and the fields that nothing reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded<T> {
    /// The typed object.
    pub value: T,
    /// Paths of unknown fields, in the order of the input: `spec.http[0].rout`.
    pub unknown: Vec<String>,
}

/// Why a value is not an object of the wanted type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct DecodeError {
    /// The field, such as `spec.http[0].timeout`; keys of maps that are not plain words are quoted:
    /// `spec.selector["a/b"]`.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
    located: bool,
}

impl DecodeError {
    fn at(mut self, path: &Path<'_>) -> Self {
        if !self.located {
            self.path = path.to_string();
            self.located = true;
        }
        self
    }
}

impl de::Error for DecodeError {
    fn custom<T: Display>(message: T) -> Self {
        Self {
            path: String::new(),
            reason: message.to_string(),
            located: false,
        }
    }
}

/// Decodes a whole object or message by the rules of proto JSON (config-model.md §2).
///
/// Names may be camel or snake case, `null` means absent (in lists: the empty value), numbers may
/// be strings, enums may be numbers. Unknown fields are reported, not refused; `apiVersion`, `kind`
/// and `metadata` of a whole object are known.
///
/// # Errors
/// [`DecodeError`] with the path of the first value that does not fit its field.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<Decoded<T>, DecodeError> {
    decode_at("", value)
}

/// Decodes like [`decode`]; paths of errors and unknown fields start with `root`, such as `spec`.
///
/// # Errors
/// [`DecodeError`] with the path of the first value that does not fit its field.
pub fn decode_at<T: DeserializeOwned>(
    root: &str,
    value: &Value,
) -> Result<Decoded<T>, DecodeError> {
    let unknown = RefCell::new(Vec::new());
    let path = Path::Root(root);
    let node = Node {
        value,
        path: &path,
        unknown: &unknown,
    };
    let value = T::deserialize(node).map_err(|error| error.at(&path))?;
    Ok(Decoded {
        value,
        unknown: unknown.into_inner(),
    })
}

/// One value of the input, on its way into a typed field.
#[derive(Clone, Copy)]
struct Node<'a> {
    value: &'a Value,
    path: &'a Path<'a>,
    unknown: &'a RefCell<Vec<String>>,
}

impl Node<'_> {
    fn mismatch<T>(&self, expected: &dyn de::Expected) -> Result<T, DecodeError> {
        let found = match self.value {
            Value::Null => "null".to_owned(),
            Value::Bool(flag) => format!("the boolean {flag}"),
            Value::Number(number) => format!("the number {number}"),
            Value::String(text) => format!("the string {text:?}"),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
        };
        Err(de::Error::custom(format_args!(
            "found {found}, expected {expected}"
        )))
    }

    /// Reads a whole number: a JSON number without fraction, or such a number in a string.
    fn integer(&self) -> Option<i128> {
        let float = |float: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "checked to be whole and small"
            )]
            (float.fract() == 0.0 && float.abs() < 9.1e18).then_some(float as i128)
        };
        match self.value {
            Value::Null => Some(0),
            Value::Number(number) => number
                .as_i64()
                .map(i128::from)
                .or_else(|| number.as_u64().map(i128::from))
                .or_else(|| number.as_f64().and_then(float)),
            Value::String(text) => text
                .parse()
                .ok()
                .or_else(|| text.parse().ok().and_then(float)),
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self.value {
            Value::Null => Some(0.0),
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        }
    }
}

macro_rules! deserialize_integers {
    ($( $method:ident $visit:ident $type:ty ),+ $(,)?) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            match self.integer().map(<$type>::try_from) {
                Some(Ok(number)) => visitor.$visit(number),
                Some(Err(_)) => self.mismatch(&concat!("a number that fits ", stringify!($type))),
                None => self.mismatch(&"a whole number"),
            }
        }
    )+ };
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_str(text),
            Value::Array(_) => self.deserialize_seq(visitor),
            Value::Object(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_bool(false),
            Value::Bool(flag) => visitor.visit_bool(*flag),
            _ => self.mismatch(&"true or false"),
        }
    }

    deserialize_integers!(
        deserialize_i8 visit_i8 i8,
        deserialize_i16 visit_i16 i16,
        deserialize_i32 visit_i32 i32,
        deserialize_i64 visit_i64 i64,
        deserialize_u8 visit_u8 u8,
        deserialize_u16 visit_u16 u16,
        deserialize_u32 visit_u32 u32,
        deserialize_u64 visit_u64 u64,
    );

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.float() {
            Some(number) => visitor.visit_f64(number),
            None => self.mismatch(&"a number"),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_str(""),
            Value::String(text) => visitor.visit_str(text),
            _ => self.mismatch(&"a string"),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.value.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_seq(Elements {
                node: self,
                values: [].iter(),
                index: 0,
            }),
            Value::Array(values) => visitor.visit_seq(Elements {
                node: self,
                values: values.iter(),
                index: 0,
            }),
            _ => self.mismatch(&"a list"),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Null => visitor.visit_map(de::value::MapDeserializer::new(std::iter::empty::<(
                &str,
                &str,
            )>())),
            Value::Object(map) => visitor.visit_map(Entries {
                node: self,
                map,
                rest: map.iter(),
                fields: None,
                next: None,
            }),
            _ => self.mismatch(&"an object"),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.value {
            Value::Object(map) => visitor.visit_map(Entries {
                node: self,
                map,
                rest: map.iter(),
                fields: Some(fields),
                next: None,
            }),
            _ => self.deserialize_map(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

/// The elements of a list.
struct Elements<'a> {
    node: Node<'a>,
    values: std::slice::Iter<'a, Value>,
    index: usize,
}

impl<'de> de::SeqAccess<'de> for Elements<'_> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        let Some(value) = self.values.next() else {
            return Ok(None);
        };
        let path = Path::Index {
            parent: self.node.path,
            index: self.index,
        };
        self.index += 1;
        let node = Node {
            value,
            path: &path,
            unknown: self.node.unknown,
        };
        seed.deserialize(node)
            .map(Some)
            .map_err(|error| error.at(&path))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.values.len())
    }
}

/// The entries of a map, or of a struct with the given fields.
struct Entries<'a> {
    node: Node<'a>,
    map: &'a serde_json::Map<String, Value>,
    rest: serde_json::map::Iter<'a>,
    fields: Option<&'static [&'static str]>,
    next: Option<(&'a str, &'a Value)>,
}

impl Entries<'_> {
    /// Finds the field that `key` names: itself, or its camel case form unless that is given too.
    fn field(&self, fields: &[&'static str], key: &str) -> Option<&'static str> {
        if let Some(field) = fields.iter().find(|field| **field == key) {
            return Some(field);
        }
        if !key.contains('_') {
            return None;
        }
        let camel = camel_case(key);
        let field = fields.iter().find(|field| **field == camel)?;
        (!self.map.contains_key(&camel)).then_some(field)
    }

    fn is_envelope(&self, key: &str) -> bool {
        matches!(self.node.path, Path::Root(""))
            && matches!(key, "apiVersion" | "kind" | "metadata")
    }
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, DecodeError> {
        while let Some((key, value)) = self.rest.next() {
            let Some(fields) = self.fields else {
                self.next = Some((key, value));
                return seed.deserialize(Key(key)).map(Some);
            };
            if let Some(field) = self.field(fields, key) {
                if value.is_null() {
                    continue;
                }
                self.next = Some((key, value));
                return seed.deserialize(field.into_deserializer()).map(Some);
            }
            if !self.is_envelope(key) {
                let path = Path::Key {
                    parent: self.node.path,
                    key,
                };
                self.node.unknown.borrow_mut().push(path.to_string());
            }
        }
        Ok(None)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<T::Value, DecodeError> {
        let Some((key, value)) = self.next.take() else {
            return Err(de::Error::custom("value asked for before its key"));
        };
        let path = Path::Key {
            parent: self.node.path,
            key,
        };
        let node = Node {
            value,
            path: &path,
            unknown: self.node.unknown,
        };
        seed.deserialize(node).map_err(|error| error.at(&path))
    }
}

/// A key of a map; numeric keys are numbers in strings.
struct Key<'a>(&'a str);

impl<'de> Deserializer<'de> for Key<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_str(self.0)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.0.parse() {
            Ok(number) => visitor.visit_u32(number),
            Err(_) => Err(de::Error::custom(format_args!(
                "the key {:?} is not a number from 0 to {}",
                self.0,
                u32::MAX
            ))),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Turns `per_try_timeout` into `perTryTimeout`, as protoc names JSON fields.
pub(crate) fn camel_case(snake: &str) -> String {
    let mut camel = String::with_capacity(snake.len());
    let mut upper = false;
    for c in snake.chars() {
        if c == '_' {
            upper = true;
        } else if upper {
            camel.push(c.to_ascii_uppercase());
            upper = false;
        } else {
            camel.push(c);
        }
    }
    camel
}
