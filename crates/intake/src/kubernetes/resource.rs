//! Where the objects of a kind are, and which of them.

use model::Kind;

/// How the objects of one kind are listed.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    /// The name in paths.
    pub(super) plural: String,
    /// Versions to try, the best one first. The first that is served is read; all hold the same.
    pub(super) versions: Vec<&'static str>,
    /// Objects that are of no use to anybody, left out by the API server.
    field_selector: Option<&'static str>,
}

impl Resource {
    pub(super) fn of(kind: Kind) -> Self {
        Self {
            kind,
            plural: plural(kind),
            versions: versions(kind),
            field_selector: field_selector(kind),
        }
    }

    /// The path of all objects, and the start of its query.
    pub(super) fn path(&self, version: &str) -> String {
        let group = self.kind.group();
        let root = if group.is_empty() {
            format!("/api/{version}")
        } else {
            format!("/apis/{group}/{version}")
        };
        let selector = match self.field_selector {
            Some(selector) => format!("fieldSelector={}", encode(selector)),
            None => String::new(),
        };
        format!("{root}/{}?{selector}", self.plural)
    }

    /// `apiVersion` of the objects.
    pub(super) fn api_version(&self, version: &str) -> String {
        match self.kind.group() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        }
    }

    /// The name of the kind's definition; `None` when the API server itself has the kind.
    pub(super) fn definition(&self) -> Option<String> {
        self.kind
            .is_custom()
            .then(|| format!("{}.{}", self.plural, self.kind.group()))
    }
}

/// The plural of a kind's name, by Kubernetes' rules.
fn plural(kind: Kind) -> String {
    let singular = kind.name().to_ascii_lowercase();
    if let Some(stem) = singular.strip_suffix('y').filter(|s| !s.ends_with('a')) {
        format!("{stem}ies")
    } else if singular.ends_with('s') {
        format!("{singular}es")
    } else {
        format!("{singular}s")
    }
}

/// Versions that are read (config-model §1.1, §1.2). The Gateway API has changed between its versions:
/// only stable ones are read, which also leaves out releases that are too old (§1.3).
fn versions(kind: Kind) -> Vec<&'static str> {
    let known = kind.versions().iter().copied();
    if kind.group() != "gateway.networking.k8s.io" {
        return known.collect();
    }
    let stable = |version: &&str| {
        *version == "v1" || (kind == Kind::ReferenceGrant && *version == "v1beta1")
    };
    known.filter(stable).collect()
}

/// What nothing reads need not be sent (service-registry §6.7).
const fn field_selector(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Pod => Some("status.phase!=Failed"),
        Kind::Secret => Some(
            "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token,\
             type!=bootstrap.kubernetes.io/token,type!=kubernetes.io/basic-auth,\
             type!=kubernetes.io/ssh-auth",
        ),
        Kind::ConfigMap => Some("metadata.name!=kube-root-ca.crt"),
        _ => None,
    }
}

/// Writes a text as a value of a query.
pub(super) fn encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            write!(encoded, "%{byte:02X}").ok();
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: Kind, version: &str, path: &str) {
        let resource = Resource::of(kind);
        assert!(resource.versions.contains(&version));
        assert_eq!(resource.path(version), path);
    }

    #[test]
    fn paths() {
        check(Kind::Service, "v1", "/api/v1/services?");
        check(
            Kind::Pod,
            "v1",
            "/api/v1/pods?fieldSelector=status.phase%21%3DFailed",
        );
        check(
            Kind::EndpointSlice,
            "v1",
            "/apis/discovery.k8s.io/v1/endpointslices?",
        );
        check(
            Kind::ServiceEntry,
            "v1beta1",
            "/apis/networking.istio.io/v1beta1/serviceentries?",
        );
        check(
            Kind::KubernetesGateway,
            "v1",
            "/apis/gateway.networking.k8s.io/v1/gateways?",
        );
        check(
            Kind::IngressClass,
            "v1",
            "/apis/networking.k8s.io/v1/ingressclasses?",
        );
    }

    #[test]
    fn plurals() {
        let plurals = |kinds: &[Kind]| kinds.iter().copied().map(plural).collect::<Vec<_>>();
        assert_eq!(
            plurals(&[
                Kind::AuthorizationPolicy,
                Kind::Telemetry,
                Kind::ProxyConfig,
                Kind::Gateway,
                Kind::BackendTlsPolicy,
                Kind::Ingress,
                Kind::GatewayClass,
            ]),
            [
                "authorizationpolicies",
                "telemetries",
                "proxyconfigs",
                "gateways",
                "backendtlspolicies",
                "ingresses",
                "gatewayclasses",
            ]
        );
    }

    #[test]
    fn every_kind_has_a_version() {
        for kind in Kind::ALL {
            assert!(!Resource::of(*kind).versions.is_empty(), "{kind}");
        }
    }
}
