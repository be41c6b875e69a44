//! Values that are not for every eye: key material.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::Base64;

/// Confidential bytes, base64 in JSON.
///
/// Their debug form says only how many there are, and they are overwritten when they go.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConfidentialBytes(Zeroizing<Vec<u8>>);

impl ConfidentialBytes {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for ConfidentialBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }
}

impl fmt::Debug for ConfidentialBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

impl Serialize for ConfidentialBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Base64::encode(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for ConfidentialBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Base64::deserialize(deserializer).map(|bytes| Self::from(bytes.0))
    }
}

/// Confidential text.
///
/// Its debug form says only how long it is, and it is overwritten when it goes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConfidentialText(Zeroizing<String>);

impl ConfidentialText {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ConfidentialText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl fmt::Debug for ConfidentialText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

impl Serialize for ConfidentialText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ConfidentialText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::kubernetes::Secret;

    #[test]
    fn nothing_of_a_secret_is_in_its_debug_form() {
        let json = r#"{"data": {"key": "aHVzaA=="}, "stringData": {"other": "hush too"}}"#;
        let secret: Secret = serde_json::from_str(json).unwrap();
        assert_eq!(secret.value("key"), Some(&b"hush"[..]));
        assert_eq!(secret.value("other"), Some(&b"hush too"[..]));
        let shown = format!("{secret:?}");
        assert!(
            shown.contains("key") && shown.contains("(4 bytes)"),
            "{shown}"
        );
        // Neither as text nor as numbers.
        assert!(!shown.contains("hush") && !shown.contains("104"), "{shown}");
    }
}
