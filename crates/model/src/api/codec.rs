//! Proto JSON: the decoder, and the macros that declare messages and enums.

mod decode;
mod path;

#[cfg(test)]
mod tests;

use std::fmt::{self, Display};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use decode::camel_case;
pub use decode::{DecodeError, Decoded, decode, decode_at};
pub(crate) use path::Path;

/// Declares plain structs of the API: public fields, camel case JSON names, absent fields take
/// their default, default values are not written.
macro_rules! message {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident { $( $(#[$field_meta:meta])* $field:ident : $type:ty, )* }
    )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(skip_serializing_if = "crate::api::codec::is_default")]
                pub $field: $type,
            )*
        }
    )+ };
}

/// Declares proto enums: `Variant = number "NAME"`, the first one is the default. They are read by
/// name or by number and written by name.
macro_rules! proto_enum {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(#[$first_meta:meta])* $first:ident = $first_number:literal $first_text:literal,
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal $text:literal, )*
        }
    )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(#[$first_meta])* #[default] $first,
            $( $(#[$variant_meta])* $variant, )*
        }

        impl $name {
            /// Every value with its proto number and name, in proto order.
            pub const ALL: &'static [(i64, &'static str, Self)] = &[
                ($first_number, $first_text, Self::$first),
                $( ($number, $text, Self::$variant), )*
            ];

            /// Returns the proto name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    Self::$first => $first_text,
                    $( Self::$variant => $text, )*
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::api::codec::EnumVisitor(Self::ALL))
            }
        }
    )+ };
}

pub(crate) use {message, proto_enum};

/// Tells whether `value` is what an absent field decodes to.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads a proto enum from its table of numbers and names.
pub(crate) struct EnumVisitor<T: 'static>(pub(crate) &'static [(i64, &'static str, T)]);

impl<T: Copy + Default> EnumVisitor<T> {
    fn by_number<E: de::Error>(&self, number: Option<i64>, shown: &dyn Display) -> Result<T, E> {
        self.0
            .iter()
            .find(|entry| Some(entry.0) == number)
            .map(|entry| entry.2)
            .ok_or_else(|| self.unknown(&shown))
    }

    fn unknown<E: de::Error>(&self, shown: &dyn Display) -> E {
        let names: Vec<&str> = self.0.iter().map(|entry| entry.1).collect();
        E::custom(format_args!(
            "unknown value {shown}, expected one of {}",
            names.join(", ")
        ))
    }
}

impl<T: Copy + Default> Visitor<'_> for EnumVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an enum value")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<T, E> {
        self.0
            .iter()
            .find(|entry| entry.1 == name)
            .map(|entry| entry.2)
            .ok_or_else(|| self.unknown(&format_args!("{name:?}")))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.by_number(i64::try_from(number).ok(), &number)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.by_number(Some(number), &number)
    }

    fn visit_unit<E: de::Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

/// Binary data, base64 in JSON (standard or URL alphabet, with or without padding).
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Base64(pub Vec<u8>);

impl fmt::Debug for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::encode(&self.0, serializer)
    }
}

impl Base64 {
    /// Writes bytes in their JSON form.
    pub(crate) fn encode<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bare: String = text
            .chars()
            .filter(|c| !matches!(c, '=' | '\n' | '\r'))
            .collect();
        STANDARD_NO_PAD
            .decode(&bare)
            .or_else(|_| URL_SAFE_NO_PAD.decode(&bare))
            .map(Self)
            .map_err(|error| de::Error::custom(format_args!("not base64: {error}")))
    }
}
