//! `GatewayClass`, Gateway and `ListenerSet`.

use std::collections::BTreeMap;

use crate::api::codec::{message, proto_enum};
use crate::api::common::{LabelSelector, Labels};

message! {
    /// A class of gateways.
    pub struct GatewayClass {
        /// Who serves it.
        controller_name: String,
        /// Parameters of the class.
        parameters_ref: Option<ParametersReference>,
        /// Description.
        description: Option<String>,
    }

    /// Parameters of a class or gateway.
    pub struct ParametersReference {
        /// API group.
        group: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Namespace.
        namespace: Option<String>,
    }

    /// A gateway.
    pub struct Gateway {
        /// Its class.
        gateway_class_name: String,
        /// Its listeners.
        listeners: Vec<Listener>,
        /// Where it is reached; empty means by its own Service.
        addresses: Vec<GatewayAddress>,
        /// Settings of its deployment.
        infrastructure: Option<Infrastructure>,
        /// Listener sets that may attach.
        allowed_listeners: Option<AllowedListeners>,
        /// TLS of clients and backends.
        tls: Option<GatewayTls>,
        /// The object's status, which stands beside its spec.
        #[serde(skip)]
        status: GatewayStatus,
    }

    /// What is there of a gateway.
    pub struct GatewayStatus {
        /// Where it is reached.
        addresses: Vec<GatewayAddress>,
    }

    /// An address of a gateway.
    pub struct GatewayAddress {
        /// `IPAddress` (also when unset), `Hostname` or a name with a domain.
        r#type: Option<String>,
        /// The address.
        value: Option<String>,
    }

    /// Settings of a gateway's deployment.
    pub struct Infrastructure {
        /// Labels of its objects.
        labels: Labels,
        /// Annotations of its objects.
        annotations: Labels,
        /// Parameters.
        parameters_ref: Option<ParametersReference>,
    }

    /// Listener sets that may attach to a gateway.
    pub struct AllowedListeners {
        /// From which namespaces.
        namespaces: Option<ListenerNamespaces>,
    }

    /// Namespaces of listener sets.
    pub struct ListenerNamespaces {
        /// Which ones; unset means none.
        from: Option<FromNamespaces>,
        /// By label, with [`FromNamespaces::Selector`].
        selector: Option<LabelSelector>,
    }

    /// TLS of a gateway's clients and backends.
    pub struct GatewayTls {
        /// Towards backends.
        backend: Option<GatewayBackendTls>,
        /// Towards clients.
        frontend: Option<FrontendTls>,
    }

    /// TLS towards backends.
    pub struct GatewayBackendTls {
        /// Certificate that is presented.
        client_certificate_ref: Option<SecretReference>,
    }

    /// TLS towards clients.
    pub struct FrontendTls {
        /// For all ports without their own.
        default: FrontendTlsConfig,
        /// For single ports.
        per_port: Vec<FrontendTlsPort>,
    }

    /// TLS towards the clients of one port.
    pub struct FrontendTlsPort {
        /// The port.
        port: u32,
        /// The settings.
        tls: FrontendTlsConfig,
    }

    /// TLS settings towards clients.
    pub struct FrontendTlsConfig {
        /// How their certificates are verified; absent means not at all.
        validation: Option<FrontendValidation>,
    }

    /// How clients' certificates are verified.
    pub struct FrontendValidation {
        /// Certificates that verify them.
        ca_certificate_refs: Vec<ObjectReference>,
        /// What happens without a valid certificate; unset means refused.
        mode: Option<FrontendValidationMode>,
    }

    /// A listener.
    pub struct Listener {
        /// Its name.
        name: String,
        /// Host; unset means all.
        hostname: Option<String>,
        /// Port.
        port: u32,
        /// `HTTP`, `HTTPS`, `TLS`, `TCP`, `UDP` or a name with a domain.
        protocol: String,
        /// TLS.
        tls: Option<ListenerTls>,
        /// Routes that may attach.
        allowed_routes: Option<AllowedRoutes>,
    }

    /// TLS of a listener.
    pub struct ListenerTls {
        /// Whether it is terminated; unset means so.
        mode: Option<ListenerTlsMode>,
        /// Certificates that are presented.
        certificate_refs: Vec<SecretReference>,
        /// Settings of the implementation.
        options: BTreeMap<String, String>,
    }

    /// Names a certificate.
    pub struct SecretReference {
        /// API group; unset is the core group.
        group: Option<String>,
        /// Kind; unset is `Secret`.
        kind: Option<String>,
        /// Name.
        name: String,
        /// Namespace; unset is that of the referring object.
        namespace: Option<String>,
    }

    /// Names an object of any kind.
    pub struct ObjectReference {
        /// API group; empty is the core group.
        group: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
        /// Namespace; unset is that of the referring object.
        namespace: Option<String>,
    }

    /// Routes that may attach to a listener.
    pub struct AllowedRoutes {
        /// From which namespaces; absent means the same.
        namespaces: Option<RouteNamespaces>,
        /// Of which kinds; empty means those of the protocol.
        kinds: Vec<RouteGroupKind>,
    }

    /// Namespaces of routes.
    pub struct RouteNamespaces {
        /// Which ones; unset means the same.
        from: Option<FromNamespaces>,
        /// By label, with [`FromNamespaces::Selector`].
        selector: Option<LabelSelector>,
    }

    /// A kind of routes.
    pub struct RouteGroupKind {
        /// API group; unset is `gateway.networking.k8s.io`.
        group: Option<String>,
        /// Kind.
        kind: String,
    }

    /// Further listeners of a gateway.
    pub struct ListenerSet {
        /// The gateway.
        parent_ref: ParentGatewayReference,
        /// The listeners.
        listeners: Vec<Listener>,
    }

    /// The gateway of a listener set.
    pub struct ParentGatewayReference {
        /// API group; unset is `gateway.networking.k8s.io`.
        group: Option<String>,
        /// Kind; unset is `Gateway`.
        kind: Option<String>,
        /// Name.
        name: String,
        /// Namespace; unset is that of the listener set.
        namespace: Option<String>,
    }
}

proto_enum! {
    /// Namespaces from which objects may attach.
    pub enum FromNamespaces {
        /// The same.
        Same = 0 "Same",
        /// All.
        All = 1 "All",
        /// By label.
        Selector = 2 "Selector",
        /// None.
        None = 3 "None",
    }

    /// Whether a listener terminates TLS.
    pub enum ListenerTlsMode {
        /// It does.
        Terminate = 0 "Terminate",
        /// It does not.
        Passthrough = 1 "Passthrough",
    }

    /// What happens to clients without a valid certificate.
    pub enum FrontendValidationMode {
        /// They are refused.
        AllowValidOnly = 0 "AllowValidOnly",
        /// They are accepted.
        AllowInsecureFallback = 1 "AllowInsecureFallback",
    }
}
