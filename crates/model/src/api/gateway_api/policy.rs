//! `ReferenceGrant` and `BackendTLSPolicy`.

use std::collections::BTreeMap;

use super::LocalReference;
use crate::api::codec::{message, proto_enum};

message! {
    /// Allows references from other namespaces.
    pub struct ReferenceGrant {
        /// From where.
        from: Vec<ReferenceGrantFrom>,
        /// To what.
        to: Vec<ReferenceGrantTo>,
    }

    /// Objects that may refer.
    pub struct ReferenceGrantFrom {
        /// API group; empty is the core group.
        group: String,
        /// Kind.
        kind: String,
        /// Namespace.
        namespace: String,
    }

    /// Objects that may be referred to.
    pub struct ReferenceGrantTo {
        /// API group; empty is the core group.
        group: String,
        /// Kind.
        kind: String,
        /// Name; unset means all.
        name: Option<String>,
    }

    /// TLS from gateways and waypoints to a service.
    pub struct BackendTlsPolicy {
        /// The services.
        target_refs: Vec<BackendTlsTarget>,
        /// How their certificates are verified.
        validation: BackendTlsValidation,
        /// Settings of the implementation.
        options: BTreeMap<String, String>,
    }

    /// A service that a policy is for.
    pub struct BackendTlsTarget {
        /// API group; empty is the core group.
        group: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Port name; unset means all.
        section_name: Option<String>,
    }

    /// How a backend's certificate is verified.
    pub struct BackendTlsValidation {
        /// Certificates that verify it.
        ca_certificate_refs: Vec<LocalReference>,
        /// `System` for those of the platform; excludes the references.
        #[serde(rename = "wellKnownCACertificates")]
        well_known_ca_certificates: Option<String>,
        /// Server name that is sent and expected.
        hostname: String,
        /// Names of which the certificate must have one; empty means the host name.
        subject_alt_names: Vec<BackendTlsSubjectAltName>,
    }

    /// A name of a certificate.
    pub struct BackendTlsSubjectAltName {
        /// Kind of name.
        r#type: SubjectAltNameType,
        /// Host name.
        hostname: Option<String>,
        /// URI.
        uri: Option<String>,
    }
}

proto_enum! {
    /// Kind of a certificate's name.
    pub enum SubjectAltNameType {
        /// Host name.
        Hostname = 0 "Hostname",
        /// URI.
        Uri = 1 "URI",
    }
}
