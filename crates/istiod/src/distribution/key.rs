//! What can be asked about.

use std::{fmt, str::FromStr, sync::Arc};

use model::{ConfigKey, Kind, ServiceKey};

/// Something that is published: an object, the endpoints of a service, or the mesh configuration.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    /// The settings of the mesh.
    Mesh,
    /// A configuration object.
    Config(ConfigKey),
    /// The endpoints of a service, by namespace and host name.
    Endpoints(ServiceKey),
}

impl Key {
    /// Makes a key. Kinds are found by their names, whatever their case, and by their short plural
    /// forms as `kubectl` knows them. Istio's `Gateway` is meant unless the kind is
    /// `gateway.networking.k8s.io/Gateway` or `KubernetesGateway`.
    ///
    /// # Errors
    /// When no such kind is read.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Result<Self, UnknownKind> {
        let lower = kind.to_lowercase();
        match &*lower {
            "endpoints" => return Ok(Self::Endpoints(ServiceKey::new(namespace, name))),
            "meshconfig" => return Ok(Self::Mesh),
            "kubernetesgateway" | "gateway.networking.k8s.io/gateway" => {
                return Ok(Self::config(Kind::KubernetesGateway, namespace, name));
            }
            _ => {}
        }
        let short = match &*lower {
            "vs" => "virtualservice",
            "dr" => "destinationrule",
            "se" => "serviceentry",
            "we" => "workloadentry",
            "gw" => "gateway",
            "svc" => "service",
            "pa" => "peerauthentication",
            "ra" => "requestauthentication",
            "ap" => "authorizationpolicy",
            other => other.rsplit('/').next().unwrap_or(other),
        };
        let kind = Kind::ALL.iter().copied().find(|known| {
            let name = known.name().to_lowercase();
            *known != Kind::KubernetesGateway && (name == short || format!("{name}s") == short)
        });
        let kind = kind.ok_or_else(|| UnknownKind(short.to_owned()))?;
        Ok(Self::config(kind, namespace, name))
    }

    fn config(kind: Kind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.is_cluster_scoped() {
            ""
        } else {
            namespace
        };
        Self::Config(ConfigKey::new(kind, namespace, name))
    }

    /// The kind, as metrics and answers name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Mesh => "MeshConfig",
            Self::Config(key) if key.kind == Kind::KubernetesGateway => "KubernetesGateway",
            Self::Config(key) => key.kind.name(),
            Self::Endpoints(_) => "Endpoints",
        }
    }

    /// The namespace; empty for what has none.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Mesh => "",
            Self::Config(key) => &key.namespace,
            Self::Endpoints(key) => &key.namespace,
        }
    }

    /// The name; for endpoints the host name.
    pub fn name(&self) -> &str {
        match self {
            Self::Mesh => "mesh",
            Self::Config(key) => &key.name,
            Self::Endpoints(key) => &key.hostname,
        }
    }

    /// Writes the key for the ledger.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        for part in [self.kind(), "/", self.namespace(), "/", self.name()] {
            bytes.extend_from_slice(part.as_bytes());
        }
    }

    /// The key as resources name their sources.
    pub(super) fn source(&self) -> Arc<str> {
        match self {
            Self::Config(key) => key.to_string().into(),
            Self::Mesh | Self::Endpoints(_) => self.to_string().into(),
        }
    }
}

/// `KIND/NAMESPACE/NAME`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind(), self.namespace(), self.name())
    }
}

/// Reads `KIND/NAME.NAMESPACE`, as commands take it. The namespace is what follows the last dot, so
/// that names may have dots; of endpoints it stands before a slash: `Endpoints/NAMESPACE/HOST`.
impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bad = || KeyError::Form(text.to_owned());
        let (kind, name) = text.split_once('/').ok_or_else(bad)?;
        if kind.eq_ignore_ascii_case("endpoints") {
            let (namespace, host) = name.split_once('/').ok_or_else(bad)?;
            return Ok(Self::new(kind, namespace, host)?);
        }
        if kind.eq_ignore_ascii_case("meshconfig") {
            return Ok(Self::Mesh);
        }
        if name.is_empty() {
            return Err(bad());
        }
        match name.rsplit_once('.') {
            Some((name, namespace)) if !name.is_empty() && !namespace.is_empty() => {
                Ok(Self::new(kind, namespace, name)?)
            }
            _ => match Self::new(kind, "", name)? {
                Self::Config(key) if !key.kind.is_cluster_scoped() => Err(bad()),
                key => Ok(key),
            },
        }
    }
}

/// No such kind is read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown kind {0:?}")]
pub struct UnknownKind(String);

/// A text is no key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// It has another form.
    #[error("{0:?} is not KIND/NAME.NAMESPACE")]
    Form(String),
    /// It names a kind that is not read.
    #[error(transparent)]
    Kind(#[from] UnknownKind),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let found = text.parse::<Key>().map(|key| key.to_string());
        assert_eq!(found.as_deref().ok(), expected, "{text}");
    }

    #[test]
    fn commands_name_objects_by_kind_name_and_namespace() {
        check(
            "VirtualService/reviews.default",
            Some("VirtualService/default/reviews"),
        );
        check(
            "virtualservices/a.b.default",
            Some("VirtualService/default/a.b"),
        );
        check("vs/reviews.default", Some("VirtualService/default/reviews"));
        check("HTTPRoute/r.edge", Some("HTTPRoute/edge/r"));
        check("Gateway/g.edge", Some("Gateway/edge/g"));
        check("KubernetesGateway/g.edge", Some("KubernetesGateway/edge/g"));
        check("Namespace/edge", Some("Namespace//edge"));
        check(
            "Endpoints/default/a.example.com",
            Some("Endpoints/default/a.example.com"),
        );
        check("MeshConfig/", Some("MeshConfig//mesh"));
        for bad in [
            "VirtualService",
            "VirtualService/reviews",
            "Unknown/a.b",
            "vs/",
            "vs/.b",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn the_two_gateways_have_different_keys() {
        let bytes = |text: &str| {
            let mut bytes = Vec::new();
            text.parse::<Key>().unwrap().encode(&mut bytes);
            bytes
        };
        assert_ne!(bytes("Gateway/g.edge"), bytes("KubernetesGateway/g.edge"));
    }
}
