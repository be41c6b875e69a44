//! Listeners of Gateways and `ListenerSet`s as Istio Gateways.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, MeshState, Meta, NamespacedName,
    api::{
        self,
        gateway::{Port, Server, ServerTlsMode, ServerTlsSettings},
        gateway_api::{
            AllowedRoutes, FromNamespaces, FrontendTls, FrontendValidation, FrontendValidationMode,
            Gateway, Listener, ListenerTlsMode, RouteGroupKind, SecretReference,
        },
    },
};

use super::{GROUP, INFIX, PARENTS, Reference, admits};
use crate::report::{
    self, DeployedPort, Deployment, GatewayReport, ListenerReport, ListenerSetReport, Refusal,
    Reports, Verdict,
};

/// Controller of gateways between networks, whose resources are named like the gateway.
const EAST_WEST: &str = "istio.io/eastwest-controller";
/// The longest name of a service's port.
const PORT_NAME: usize = 63;
/// The port of a gateway's service that tells whether it is ready.
const STATUS_PORT: &str = "status-port";
/// Controller of waypoints, which no listener here makes anything for.
const WAYPOINT: &str = "istio.io/mesh-controller";
/// Controller of gateways that somebody else runs: their class is known, nothing is made for them.
const UNMANAGED: &str = "istio.io/unmanaged-gateway";
/// Label that says which control plane a Gateway is for.
const REVISION: &str = "istio.io/rev";
const GATEWAY_SERVICE: &str = "internal.istio.io/gateway-service";
const PARENT_NAMESPACE: &str = "internal.istio.io/parent-namespace";
const SEMANTICS: &str = "internal.istio.io/gateway-semantics";
const SERVICE_ACCOUNT: &str = "internal.istio.io/service-account-name";
/// Names the certificate that is presented to backends. Not one of Istio's annotations.
const CLIENT_CERTIFICATE: &str = "internal.istio.io/backend-client-certificate";
const NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
const ACCOUNT_OVERRIDE: &str = "gateway.istio.io/service-account";
const NETWORK: &str = "topology.istio.io/network";
const GATEWAY_PORT: &str = "networking.istio.io/gatewayPort";
const LISTENER_PROTOCOL: &str = "gateway.istio.io/listener-protocol";
/// The workload's own certificate as a credential.
const BUILTIN: &str = "builtin://";
/// Certificates that a listener may have.
const CERTIFICATES: usize = 2;
const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";

/// A listener that routes may attach to.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// Kind, namespace and name of the object that holds it.
    pub kind: &'static str,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Its place among the listeners of that object.
    pub place: usize,
    /// The Gateway.
    pub gateway: NamespacedName,
    /// Whether proxies serve it. Routes attach to the others too, and wait.
    pub served: bool,
    /// The listener as written.
    pub listener: Listener,
}

impl Bound {
    /// Name of the Istio Gateway.
    pub(super) fn gateway_name(&self) -> String {
        format!("{}~{INFIX}~{}", self.name, self.listener.name)
    }

    /// Tells whether routes of a kind and namespace may attach.
    pub(super) fn admits(&self, state: &MeshState, kind: &str, namespace: &str) -> bool {
        let allowed = self.listener.allowed_routes.as_ref();
        kinds(&self.listener).0.contains(&kind)
            && route_namespaces(allowed, |from, selector| {
                admits(state, from, selector, &self.namespace, namespace)
            })
    }
}

/// The kinds of routes that may attach to a listener, and whether it lists no others.
fn kinds(listener: &Listener) -> (Vec<&'static str>, Verdict) {
    let by_default: &[&'static str] = match listener.protocol.as_str() {
        "HTTP" | "HTTPS" => &["HTTPRoute", "GRPCRoute"],
        "TCP" => &["TCPRoute"],
        "TLS" => match listener.tls.as_ref().and_then(|tls| tls.mode) {
            Some(ListenerTlsMode::Passthrough) => &["TLSRoute"],
            _ => &["TLSRoute", "TCPRoute"],
        },
        _ => &[],
    };
    let allowed = listener.allowed_routes.as_ref();
    let listed = allowed.map_or(&[][..], |allowed| &allowed.kinds);
    if listed.is_empty() {
        return (by_default.to_vec(), Ok(()));
    }
    let is = |listed: &RouteGroupKind, kind: &str| {
        listed.kind == kind && listed.group.as_deref().is_none_or(|group| group == GROUP)
    };
    let known = by_default.iter().copied();
    let kinds = known.filter(|kind| listed.iter().any(|listed| is(listed, kind)));
    let other = listed
        .iter()
        .find(|listed| !by_default.iter().any(|kind| is(listed, kind)));
    let verdict = other.map_or(Ok(()), |other| {
        let (kind, protocol) = (&other.kind, &listener.protocol);
        let message = format!("routes of kind {kind} cannot attach to a listener of {protocol}");
        Err(Refusal::new("InvalidRouteKinds", message))
    });
    (kinds.collect(), verdict)
}

fn route_namespaces<R>(
    allowed: Option<&AllowedRoutes>,
    with: impl FnOnce(FromNamespaces, Option<&api::common::LabelSelector>) -> R,
) -> R {
    let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
    let from = namespaces
        .and_then(|n| n.from)
        .unwrap_or(FromNamespaces::Same);
    with(from, namespaces.and_then(|n| n.selector.as_ref()))
}

/// Lists the classes that we serve.
pub(super) fn classes(state: &MeshState, reports: &mut Reports) {
    let ours = [
        &*state.features.gateway_controller,
        EAST_WEST,
        WAYPOINT,
        UNMANAGED,
    ];
    let classes = state.objects.gateway_classes.iter();
    let classes = classes.filter(|(_, class)| ours.contains(&&*class.spec.controller_name));
    reports.classes = classes.map(|(name, _)| name.clone()).collect();
}

/// Makes an Istio Gateway of every valid listener, and lists what routes may attach to.
pub(super) fn translate(
    state: &MeshState,
    output: &mut Vec<Config<api::Gateway>>,
    reports: &mut Reports,
) -> Vec<Bound> {
    let mut bound = Vec::new();
    for gateway in state.objects.kubernetes_gateways.values() {
        if let Some(shared) = Shared::of(state, gateway) {
            shared.translate(output, &mut bound, reports);
        }
    }
    bound
}

/// What the listeners of one Gateway have in common.
struct Shared<'a> {
    state: &'a MeshState,
    gateway: &'a Config<Gateway>,
    /// Host names of the services that it is reached by.
    services: Vec<String>,
    service_account: String,
    /// Name of what is deployed for it, if anything is.
    deployed: Option<String>,
    is_waypoint: bool,
    /// The certificate that is presented to backends, if the Gateway names one.
    client_certificate: Option<Result<String, Refusal>>,
}

/// What earlier listeners have taken, by port: their protocols and host names.
type Taken = BTreeMap<u32, Vec<(String, String)>>;

/// How a listener is served.
struct Served {
    /// `None` without TLS.
    tls: Option<ServerTlsSettings>,
}

impl<'a> Shared<'a> {
    /// `None` when the Gateway is not for routers that this control plane configures.
    fn of(state: &'a MeshState, gateway: &'a Config<Gateway>) -> Option<Self> {
        let own = &*state.identity.revision;
        let wanted = gateway.meta.labels.get(REVISION);
        if !own.is_empty() && wanted.is_some_and(|wanted| wanted != own) {
            return None;
        }
        let class = &gateway.spec.gateway_class_name;
        let object = state
            .objects
            .gateway_classes
            .get(&NamespacedName::new("", class.as_str()));
        let features = &state.features;
        let controller = match (object, class.as_str()) {
            (Some(object), _) => object.spec.controller_name.as_str(),
            (None, name) if name == features.default_gateway_class => &*features.gateway_controller,
            (None, "istio-east-west") => EAST_WEST,
            (None, "istio-waypoint") => WAYPOINT,
            _ => return None,
        };
        let for_routers = controller == features.gateway_controller;
        let is_waypoint = controller == WAYPOINT;
        if !for_routers && !is_waypoint && controller != EAST_WEST {
            return None;
        }
        let meta = &gateway.meta;
        let addresses = &gateway.spec.addresses;
        let is_ip = |kind: Option<&str>| kind.is_none_or(|kind| kind == "IPAddress");
        let is_managed = match &addresses[..] {
            _ if !features.gateway_api_manual_deployment => true,
            [] => true,
            [only] => is_ip(only.r#type.as_deref()),
            _ => false,
        };
        let default_name = if for_routers {
            format!("{}-{class}", meta.name)
        } else {
            meta.name.to_string()
        };
        let named = |annotation: &str| {
            let found = meta.annotations.get(annotation);
            found.cloned().unwrap_or_else(|| default_name.clone())
        };
        let services: Vec<String> = if is_managed {
            vec![crate::service_host(
                state,
                &named(NAME_OVERRIDE),
                &meta.namespace,
            )]
        } else {
            addresses
                .iter()
                .filter(|address| {
                    address
                        .r#type
                        .as_deref()
                        .is_none_or(|kind| kind == "Hostname")
                })
                .filter_map(|address| address.value.as_deref())
                .map(|host| {
                    if host.contains('.') {
                        host.to_owned()
                    } else {
                        crate::service_host(state, host, &meta.namespace)
                    }
                })
                .collect()
        };
        let service_account = if is_managed {
            named(ACCOUNT_OVERRIDE)
        } else {
            String::new()
        };
        let mut shared = Self {
            state,
            gateway,
            services,
            service_account,
            deployed: is_managed.then(|| named(NAME_OVERRIDE)),
            is_waypoint,
            client_certificate: None,
        };
        shared.client_certificate = shared.find_client_certificate();
        Some(shared)
    }

    fn translate(
        &self,
        output: &mut Vec<Config<api::Gateway>>,
        bound: &mut Vec<Bound>,
        reports: &mut Reports,
    ) {
        let mut taken = Taken::new();
        let meta = &self.gateway.meta;
        let all = |kind,
                   holder,
                   listeners: &[Listener],
                   taken: &mut Taken,
                   output: &mut Vec<_>,
                   bound: &mut Vec<_>| {
            let listeners = listeners.iter().enumerate();
            listeners
                .map(|listener| self.add(kind, holder, listener, taken, output, bound))
                .collect::<Vec<_>>()
        };
        let own = &self.gateway.spec.listeners;
        let listeners = all("Gateway", meta, own, &mut taken, output, bound);
        let mut sets: Vec<_> = self
            .state
            .objects
            .listener_sets
            .values()
            .filter(|set| self.is_parent(&set.meta, &set.spec.parent_ref))
            .collect();
        sets.sort_by_key(|set| {
            let (meta, path) = (&set.meta, |meta: &Meta| {
                format!("{}/{}", meta.namespace, meta.name)
            });
            (meta.created, path(meta))
        });
        let mut attached = 0;
        let mut ports = Vec::new();
        open(&mut ports, own);
        for set in sets {
            let accepted = self.admits_set(&set.meta);
            let own = &set.spec.listeners;
            let listeners = if accepted.is_ok() {
                attached += 1;
                open(&mut ports, own);
                all("ListenerSet", &set.meta, own, &mut taken, output, bound)
            } else {
                Vec::new()
            };
            let report = ListenerSetReport {
                generation: set.meta.generation,
                accepted,
                listeners,
            };
            let name = set.meta.namespaced_name();
            reports.listener_sets.insert(name, Arc::new(report));
        }
        let deployment = self.deployed.as_ref().map(|name| Deployment {
            template: if self.is_waypoint {
                "waypoint"
            } else {
                "kube-gateway"
            },
            name: name.clone(),
            service_account: self.service_account.clone(),
            ports,
        });
        let report = GatewayReport {
            generation: meta.generation,
            deployment,
            accepted: if self.services.is_empty() {
                let message = "only host names of services are supported as addresses";
                Err(Refusal::new("UnsupportedAddress", message))
            } else {
                Ok(())
            },
            resolved: self
                .client_certificate
                .as_ref()
                .map(|found| found.as_ref().map(|_| ()).map_err(Clone::clone)),
            services: self.services.clone(),
            by_address: self.is_waypoint,
            listeners,
            listener_sets: attached,
        };
        let name = meta.namespaced_name();
        reports.gateways.insert(name, Arc::new(report));
    }

    /// Tells whether a `ListenerSet` names this Gateway.
    fn is_parent(&self, set: &Meta, parent: &api::gateway_api::ParentGatewayReference) -> bool {
        let meta = &self.gateway.meta;
        parent.group.as_deref().is_none_or(|group| group == GROUP)
            && parent.kind.as_deref().is_none_or(|kind| kind == "Gateway")
            && *parent.name == *meta.name
            && parent.namespace.as_deref().unwrap_or(&set.namespace) == &*meta.namespace
    }

    /// Says whether the Gateway takes listeners of a `ListenerSet`'s namespace.
    fn admits_set(&self, set: &Meta) -> Verdict {
        let meta = &self.gateway.meta;
        let allowed = self.gateway.spec.allowed_listeners.as_ref();
        let namespaces = allowed.and_then(|allowed| allowed.namespaces.as_ref());
        let from = namespaces
            .and_then(|n| n.from)
            .unwrap_or(FromNamespaces::None);
        let selector = namespaces.and_then(|n| n.selector.as_ref());
        if admits(self.state, from, selector, &meta.namespace, &set.namespace) {
            return Ok(());
        }
        let name = meta.namespaced_name();
        let message = format!("the gateway {name} takes no listeners of this namespace");
        Err(Refusal::new("NotAllowed", message))
    }

    /// Adds a listener, as far as it is valid, and says what became of it.
    fn add(
        &self,
        kind: &'static str,
        holder: &Meta,
        (place, listener): (usize, &Listener),
        taken: &mut Taken,
        output: &mut Vec<Config<api::Gateway>>,
        bound: &mut Vec<Bound>,
    ) -> ListenerReport {
        let (kinds, only_known) = kinds(listener);
        let mut report = ListenerReport {
            name: listener.name.clone(),
            port: listener.port,
            kinds,
            accepted: Ok(()),
            alone: Ok(()),
            resolved: only_known,
            served: false,
            attached: 0,
        };
        let tls = self.check(kind, holder, listener, taken, &mut report);
        report.served = tls.is_some() && !self.services.is_empty();
        let listener = Bound {
            kind,
            namespace: holder.namespace.clone(),
            name: holder.name.clone(),
            place,
            gateway: self.gateway.meta.namespaced_name(),
            served: report.served && !self.is_waypoint,
            listener: listener.clone(),
        };
        if let Some(Served { tls }) = tls.filter(|_| listener.served) {
            output.push(self.gateway_of(holder, &listener, tls));
        }
        bound.push(listener);
        report
    }

    /// Looks whether a listener can be served, and how.
    fn check(
        &self,
        kind: &'static str,
        holder: &Meta,
        listener: &Listener,
        taken: &mut Taken,
        report: &mut ListenerReport,
    ) -> Option<Served> {
        let alone = claim(taken, listener);
        if !is_served(&listener.protocol, self.is_waypoint) {
            let message = format!("the protocol {} is not supported", listener.protocol);
            report.accepted = Err(Refusal::new("UnsupportedProtocol", message));
            return None;
        }
        if let Err(refusal) = alone {
            tracing::debug!(gateway = %holder.name, listener = %listener.name, "listener conflicts");
            report.accepted = Err(refusal.clone());
            report.alone = Err(refusal);
            return None;
        }
        match self.tls(kind, holder, listener, &mut report.resolved) {
            Ok(tls) => Some(Served { tls }),
            Err(refusal) => {
                let reason = &refusal.message;
                tracing::debug!(gateway = %holder.name, listener = %listener.name, reason, "listener is invalid");
                report.resolved = Err(refusal);
                None
            }
        }
    }

    /// Makes the Istio Gateway of a listener.
    fn gateway_of(
        &self,
        holder: &Meta,
        bound: &Bound,
        tls: Option<ServerTlsSettings>,
    ) -> Config<api::Gateway> {
        let (kind, listener) = (bound.kind, &bound.listener);
        let server = Server {
            port: Some(Port {
                number: listener.port,
                protocol: listener.protocol.clone(),
                name: "default".to_owned(),
                ..Port::default()
            }),
            hosts: self.hosts(holder, listener),
            tls,
            ..Server::default()
        };
        let spec = api::Gateway {
            servers: vec![server],
            ..api::Gateway::default()
        };
        crate::config(
            &holder.namespace,
            &bound.gateway_name(),
            holder,
            spec,
            |meta| {
                meta.created = self.gateway.meta.created;
                let parent = format!(
                    "{kind}/{}/{}.{}",
                    holder.name, listener.name, holder.namespace
                );
                crate::annotate(meta, PARENTS, parent);
                crate::annotate(meta, GATEWAY_SERVICE, self.services.join(","));
                crate::annotate(meta, SEMANTICS, "gateway");
                crate::annotate(meta, SERVICE_ACCOUNT, self.service_account.clone());
                if let Some(Ok(name)) = &self.client_certificate {
                    crate::annotate(meta, CLIENT_CERTIFICATE, name.clone());
                }
                if holder.namespace != self.gateway.meta.namespace {
                    crate::annotate(meta, PARENT_NAMESPACE, &*self.gateway.meta.namespace);
                }
            },
        )
    }

    /// Lists the hosts of a listener's server, each with the namespaces whose routes may attach.
    fn hosts(&self, holder: &Meta, listener: &Listener) -> Vec<String> {
        let host = hostname(listener);
        let namespaces: Vec<String> = route_namespaces(
            listener.allowed_routes.as_ref(),
            |from, selector| match from {
                FromNamespaces::All => vec!["*".to_owned()],
                FromNamespaces::None => Vec::new(),
                FromNamespaces::Same => vec![holder.namespace.to_string()],
                FromNamespaces::Selector => {
                    let all = self.state.objects.namespaces.values().map(|n| &n.meta.name);
                    all.filter(|n| admits(self.state, from, selector, &holder.namespace, n))
                        .map(ToString::to_string)
                        .collect()
                }
            },
        );
        if namespaces.is_empty() {
            return vec![format!("~/{host}")];
        }
        namespaces
            .iter()
            .map(|namespace| format!("{namespace}/{host}"))
            .collect()
    }

    fn tls(
        &self,
        kind: &'static str,
        holder: &Meta,
        listener: &Listener,
        resolved: &mut Verdict,
    ) -> Result<Option<ServerTlsSettings>, Refusal> {
        if !matches!(listener.protocol.as_str(), "HTTPS" | "TLS") {
            return Ok(None);
        }
        let Some(tls) = &listener.tls else {
            return Err(invalid("it has no TLS settings"));
        };
        let mut settings = ServerTlsSettings::default();
        if tls.mode == Some(ListenerTlsMode::Passthrough) {
            settings.mode = if self.is_auto_passthrough(listener) {
                ServerTlsMode::AutoPassthrough
            } else {
                ServerTlsMode::Passthrough
            };
            return Ok(Some(settings));
        }
        settings.mode = match tls.options.get(TERMINATE_MODE).map(String::as_str) {
            Some("MUTUAL") => ServerTlsMode::Mutual,
            Some("OPTIONAL_MUTUAL") => ServerTlsMode::OptionalMutual,
            Some("ISTIO_MUTUAL") => {
                settings.mode = ServerTlsMode::IstioMutual;
                return Ok(Some(settings));
            }
            Some("ISTIO_SIMPLE") => {
                settings.mode = ServerTlsMode::Simple;
                BUILTIN.clone_into(&mut settings.credential_name);
                return Ok(Some(settings));
            }
            _ => ServerTlsMode::Simple,
        };
        if tls.certificate_refs.len() > CERTIFICATES {
            let message = format!("it names more than {CERTIFICATES} certificates");
            return Err(invalid(message));
        }
        let found: Vec<_> = tls
            .certificate_refs
            .iter()
            .map(|reference| self.certificate(kind, holder, reference))
            .collect();
        if !found.iter().any(Result::is_ok) {
            let reason = found.into_iter().find_map(Result::err);
            return Err(reason.unwrap_or_else(|| invalid("it names no certificate")));
        }
        for refusal in found.iter().filter_map(|found| found.as_ref().err()) {
            report::note(resolved, Err(refusal.clone()));
        }
        // With the first one invalid the listener stays, and presents the mesh's certificate.
        if found[0].is_ok() {
            let names: Vec<String> = found.into_iter().flatten().collect();
            match &names[..] {
                [only] => settings.credential_name.clone_from(only),
                _ => settings.credential_names = names,
            }
        }
        if let Some(frontend) = self
            .gateway
            .spec
            .tls
            .as_ref()
            .and_then(|t| t.frontend.as_ref())
            && let Some(validation) = validation(frontend, listener.port)
        {
            self.verify_clients(validation, &mut settings)?;
        }
        Ok(Some(settings))
    }

    fn is_auto_passthrough(&self, listener: &Listener) -> bool {
        let options = listener.tls.as_ref().map(|tls| &tls.options);
        if options
            .and_then(|o| o.get(LISTENER_PROTOCOL))
            .is_some_and(|v| v == "auto-passthrough")
        {
            return true;
        }
        let meta = &self.gateway.meta;
        let port = meta
            .labels
            .get(GATEWAY_PORT)
            .map_or("15443", String::as_str);
        meta.labels.contains_key(NETWORK) && listener.port.to_string() == port
    }

    /// The certificate that the Gateway presents to backends (`spec.tls.backend`).
    fn find_client_certificate(&self) -> Option<Result<String, Refusal>> {
        let tls = self.gateway.spec.tls.as_ref()?;
        let reference = tls.backend.as_ref()?.client_certificate_ref.as_ref()?;
        let found = self.certificate("Gateway", &self.gateway.meta, reference);
        Some(found.map_err(|refusal| match refusal.reason {
            "InvalidCertificateRef" => Refusal::new("InvalidClientCertificateRef", refusal.message),
            _ => refusal,
        }))
    }

    fn certificate(
        &self,
        kind: &str,
        holder: &Meta,
        reference: &SecretReference,
    ) -> Result<String, Refusal> {
        let name = &reference.name;
        if reference.group.as_deref().is_some_and(|g| !g.is_empty())
            || reference.kind.as_deref().is_some_and(|k| k != "Secret")
        {
            return Err(invalid(format!("{name} is not a Secret")));
        }
        let namespace = reference.namespace.as_deref().unwrap_or(&holder.namespace);
        let asked = Reference {
            from_kind: kind,
            from_namespace: &holder.namespace,
            to_group: "",
            to_kind: "Secret",
            to_namespace: namespace,
            to_name: name,
        };
        if !asked.is_allowed(self.state) {
            let own = &holder.namespace;
            let message = format!(
                "certificateRef {namespace}/{name} not accessible to a {kind} in namespace {own:?} \
                 (missing a ReferenceGrant?)"
            );
            return Err(Refusal::new("RefNotPermitted", message));
        }
        let key = NamespacedName::new(namespace, name.as_str());
        let secret = self.state.objects.secrets.get(&key);
        let missing = || invalid(format!("secret {namespace}/{name} does not exist"));
        let secret = secret.ok_or_else(missing)?;
        let has = |fields: [&str; 2], marker: &[u8]| {
            fields.iter().any(|field| {
                let value = secret.spec.value(field);
                value.is_some_and(|v| v.windows(marker.len()).any(|part| part == marker))
            })
        };
        if !has(["tls.crt", "cert"], b"-----BEGIN CERTIFICATE-----")
            || !has(["tls.key", "key"], b"PRIVATE KEY-----")
        {
            return Err(invalid(format!(
                "secret {namespace}/{name} holds no certificate with key"
            )));
        }
        Ok(format!("kubernetes-gateway://{namespace}/{name}"))
    }

    /// Asks clients for certificates.
    fn verify_clients(
        &self,
        validation: &FrontendValidation,
        settings: &mut ServerTlsSettings,
    ) -> Verdict {
        let own = &self.gateway.meta.namespace;
        let objects = &self.state.objects;
        let mut refusal = Refusal::new(
            "InvalidCACertificateRef",
            "it names no certificates for clients",
        );
        for reference in &validation.ca_certificate_refs {
            let namespace = reference.namespace.as_deref().unwrap_or(own);
            let key = NamespacedName::new(namespace, reference.name.as_str());
            let (scheme, exists) = match reference.kind.as_str() {
                "ConfigMap" => ("configmap", objects.config_maps.contains_key(&key)),
                "Secret" => ("kubernetes-gateway", objects.secrets.contains_key(&key)),
                _ => ("", false),
            };
            // Grants by name name the resource of the certificates, not the object.
            let resource = format!("{}-cacert", reference.name);
            let asked = Reference {
                from_kind: "Gateway",
                from_namespace: own,
                to_group: &reference.group,
                to_kind: &reference.kind,
                to_namespace: namespace,
                to_name: &resource,
            };
            if !exists || !asked.is_allowed(self.state) {
                refusal.reason = match scheme {
                    "" => "InvalidCACertificateKind",
                    _ if exists => "RefNotPermitted",
                    _ => "InvalidCACertificateRef",
                };
                refusal.message = format!("{} {key} cannot be used", reference.kind);
                continue;
            }
            settings.ca_cert_credential_name = format!("{scheme}://{key}-cacert");
            if validation.mode == Some(FrontendValidationMode::AllowInsecureFallback) {
                settings.mode = ServerTlsMode::OptionalMutual;
                settings.insecure_skip_verify = Some(true);
            } else {
                settings.mode = ServerTlsMode::Mutual;
            }
            return Ok(());
        }
        Err(refusal)
    }
}

/// Adds the ports of listeners to those of a service, each once.
fn open(ports: &mut Vec<DeployedPort>, listeners: &[Listener]) {
    for listener in listeners {
        if ports.iter().any(|known| known.port == listener.port) {
            continue;
        }
        let protocol = listener.protocol.to_ascii_lowercase();
        // Names of ports are shorter than those of listeners, and have no dots.
        let name = listener.name.replace('.', "-");
        let taken = ports.iter().any(|known| known.name == name);
        let fits = !name.is_empty() && name.len() <= PORT_NAME && name != STATUS_PORT && !taken;
        ports.push(DeployedPort {
            name: if fits {
                name
            } else {
                format!(
                    "{}-{}",
                    protocol.get(..5).unwrap_or(&protocol),
                    listener.port
                )
            },
            port: listener.port,
            protocol,
        });
    }
}

/// A certificate that cannot be presented.
fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new("InvalidCertificateRef", message)
}

fn validation(frontend: &FrontendTls, port: u32) -> Option<&FrontendValidation> {
    let of_port = frontend.per_port.iter().find(|p| p.port == port);
    of_port
        .map_or(&frontend.default, |p| &p.tls)
        .validation
        .as_ref()
}

/// The host of a listener; `*` when it has none.
pub(super) fn hostname(listener: &Listener) -> &str {
    listener
        .hostname
        .as_deref()
        .filter(|h| !h.is_empty())
        .unwrap_or("*")
}

/// Tells whether listeners of a protocol are served.
fn is_served(protocol: &str, is_waypoint: bool) -> bool {
    match protocol {
        "HTTP" | "HTTPS" | "TLS" | "TCP" => true,
        "HBONE" => is_waypoint,
        _ => false,
    }
}

/// Takes the port and host of a listener, unless it conflicts with an earlier one that has taken
/// something.
///
/// # Errors
/// When an earlier one has the port for itself, or the host.
fn claim(taken: &mut Taken, listener: &Listener) -> Verdict {
    let port = listener.port;
    let (protocol, host) = (listener.protocol.as_str(), hostname(listener));
    let there = taken.entry(port).or_default();
    let other = there
        .iter()
        .find(|(known, name)| !go_together((known.as_str(), name.as_str()), (protocol, host)));
    let Some((known, _)) = other else {
        there.push((protocol.to_owned(), host.to_owned()));
        return Ok(());
    };
    if known != protocol || is_opaque(protocol) {
        let message = format!("another listener of port {port} has protocol {known}");
        return Err(Refusal::new("ProtocolConflict", message));
    }
    let message = format!("another listener of port {port} has the host {host}");
    Err(Refusal::new("HostnameConflict", message))
}

/// Protocols whose connections say nothing of a host.
fn is_opaque(protocol: &str) -> bool {
    matches!(protocol, "TCP" | "UDP")
}

/// Tells whether two listeners, each a protocol and a host, may share a port: whoever reads hosts goes
/// together with another host, whatever its protocol.
fn go_together(a: (&str, &str), b: (&str, &str)) -> bool {
    let reads_hosts = |protocol: &str| matches!(protocol, "HTTP" | "HTTPS" | "TLS");
    let ((first, host), (second, other)) = (a, b);
    match (reads_hosts(first), reads_hosts(second)) {
        (true, true) => host != other,
        (false, false) => first != second && !(is_opaque(first) && is_opaque(second)),
        (true, false) => !is_opaque(second),
        (false, true) => !is_opaque(first),
    }
}
