//! Istio Gateways: which apply to a router, and their servers merged by port (config-model §12,
//! gateways §2-§6).

mod credential;
mod merge;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::OrdSet;
use model::{
    Config, Labels, NamespacedName, Protocol, ServiceTarget, Table,
    api::{
        Gateway,
        gateway::{Server, ServerTlsMode},
    },
    fingerprint, selects,
};

use crate::{PushContext, diff, order::InOrder};

pub use credential::CredentialReference;

/// Host names of the services that a Gateway made from Gateway API is for.
const GATEWAY_SERVICE: &str = "internal.istio.io/gateway-service";
/// The namespace that owns a Gateway made for an object of another one.
pub(crate) const PARENT_NAMESPACE: &str = "internal.istio.io/parent-namespace";
/// Says which translator made a Gateway.
const SEMANTICS: &str = "internal.istio.io/gateway-semantics";
/// The service account of a managed gateway.
pub(crate) const SERVICE_ACCOUNT: &str = "internal.istio.io/service-account-name";
/// Services with this label do not translate ports of Gateways.
const DISABLE_TRANSLATION: &str = "experimental.istio.io/disable-gateway-port-translation";

/// All Gateways in creation order.
#[derive(Clone, Default, Debug)]
pub(crate) struct GatewayIndex(OrdSet<InOrder<Config<Gateway>>>);

impl GatewayIndex {
    pub(crate) fn build(table: &Table<Gateway>) -> Self {
        Self(table.values().cloned().map(InOrder).collect())
    }

    pub(crate) fn next(&self, old: &Table<Gateway>, new: &Table<Gateway>) -> Self {
        let mut index = self.clone();
        for change in diff::changes(old, new) {
            let (before, after) = change.both();
            if let Some(gateway) = before {
                index.0.remove(&InOrder(gateway.clone()));
            }
            if let Some(gateway) = after {
                index.0.insert(InOrder(gateway.clone()));
            }
        }
        index
    }
}

/// A listener of a router: resolved port, protocol as written, bind address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServerPort {
    /// The port that is listened on.
    pub number: u16,
    /// The protocol as written.
    pub protocol: String,
    /// Address or `unix://` path; empty means all addresses.
    pub bind: String,
}

/// One server of a Gateway on one resolved port.
#[derive(Clone, PartialEq, Debug)]
pub struct GatewayServer {
    /// The server, its hosts normalised: `./h` names its namespace, `*/h` is `h`, `*/*` makes the
    /// whole list `*`.
    pub server: Server,
    /// The Gateway that it belongs to.
    pub gateway: NamespacedName,
    /// The Gateway's annotations, which translators use.
    pub annotations: Arc<Labels>,
    /// The resolved port.
    pub port: u16,
    /// Name of its route configuration; empty for servers without HTTP routes.
    pub route_name: String,
    /// Server names of a server with `tls`: its hosts without namespaces, sorted.
    pub sni_hosts: Vec<String>,
}

/// The servers of one listener, in order.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct MergedServers {
    /// The servers.
    pub servers: Vec<Arc<GatewayServer>>,
    /// The route configuration of the plaintext servers, or of the last TLS server that was first on
    /// its listener.
    pub route_name: String,
}

/// Everything that the Gateways of a router say.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct MergedGateway {
    /// Listeners in order, with their servers.
    pub ports: Vec<(ServerPort, MergedServers)>,
    /// Listeners that are offered over QUIC too, with the servers that are.
    pub quic: Vec<(ServerPort, MergedServers)>,
    /// Servers by the name of their route configuration.
    pub routes: BTreeMap<String, Vec<Arc<GatewayServer>>>,
    /// Port of a route configuration's name to the port numbers that its servers were written with.
    pub target_ports: BTreeMap<u16, BTreeSet<u32>>,
    /// Some server is `AUTO_PASSTHROUGH`.
    pub auto_passthrough: bool,
    /// Server names of all `AUTO_PASSTHROUGH` servers.
    pub auto_passthrough_hosts: BTreeSet<String>,
    /// Secrets that servers refer to, each with who may have it.
    pub credentials: Vec<CredentialReference>,
    /// The secret with the certificate that is presented to backends whose policy verifies them; `None`
    /// for none.
    pub client_certificate: Option<Arc<str>>,
    /// Servers that could not be merged, with the reason.
    pub rejected: Vec<(NamespacedName, String)>,
    /// The Gateways that apply, in order.
    pub gateways: Vec<NamespacedName>,
    /// Content hash.
    pub fingerprint: u64,
}

impl MergedGateway {
    /// Finds the servers of a listener.
    pub fn servers(&self, port: &ServerPort) -> Option<&MergedServers> {
        self.ports
            .iter()
            .find(|(key, _)| key == port)
            .map(|(_, servers)| servers)
    }
}

/// HTTP without TLS, or with TLS that is terminated.
pub(crate) fn is_http_server(server: &Server) -> bool {
    let protocol = protocol(server);
    protocol.is_http() || (protocol == Protocol::Https && !is_passthrough(server))
}

/// TLS of any kind; an HTTP server whose `tls` only redirects is none.
pub(crate) fn is_tls_server(server: &Server) -> bool {
    server.tls.is_some() && !protocol(server).is_http()
}

/// HTTPS that is terminated.
pub(crate) fn is_https_terminated(server: &Server) -> bool {
    protocol(server) == Protocol::Https && !is_passthrough(server)
}

fn is_passthrough(server: &Server) -> bool {
    server.tls.as_ref().is_some_and(|tls| {
        matches!(
            tls.mode,
            ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough
        )
    })
}

fn protocol(server: &Server) -> Protocol {
    Protocol::parse(server.port.as_ref().map_or("", |port| &port.protocol))
}

/// A Gateway that applies to a router, and how the ports of its servers resolve.
struct Applied<'a> {
    gateway: &'a Arc<Config<Gateway>>,
    targets: Vec<&'a ServiceTarget>,
    /// Chosen by selector: a port that no service has stands for itself.
    by_selector: bool,
}

impl Applied<'_> {
    /// Lists the ports that a server's port leads to.
    fn resolve(&self, number: u32) -> Vec<u16> {
        let Ok(number) = u16::try_from(number) else {
            return Vec::new();
        };
        if !self.by_selector {
            let ports: BTreeSet<u16> = self
                .targets
                .iter()
                .filter(|t| t.port.port == number)
                .map(|t| t.target_port)
                .collect();
            return ports.into_iter().collect();
        }
        let translated = self.targets.iter().find(|t| {
            t.port.port == number
                && !t
                    .service
                    .attributes
                    .labels
                    .contains_key(DISABLE_TRANSLATION)
        });
        vec![translated.map_or(number, |t| t.target_port)]
    }

    /// Tells whether some service has this port for UDP.
    fn has_udp(&self, number: u32) -> bool {
        self.targets
            .iter()
            .any(|t| u32::from(t.port.port) == number && t.port.protocol == Protocol::Udp)
    }
}

impl PushContext {
    /// Merges the Gateways of a router; `None` when there is none.
    pub fn merged_gateway(
        &self,
        namespace: &str,
        labels: &Labels,
        targets: &[ServiceTarget],
    ) -> Option<MergedGateway> {
        let mut applied: Vec<Applied<'_>> = self
            .gateways
            .0
            .iter()
            .map(|gateway| &gateway.0)
            .filter(|g| {
                !self.features().scope_gateway_to_namespace || *g.meta.namespace == *namespace
            })
            .filter_map(|gateway| applies(gateway, labels, targets))
            .collect();
        if self.features().strict_gateway_merging {
            keep_managed(&mut applied);
        }
        if applied.is_empty() {
            return None;
        }
        let mut merged = merge::merge(&applied, self.features().quic_listeners);
        merged.fingerprint = fingerprint_of(&merged);
        Some(merged)
    }
}

/// Tells whether a Gateway applies, and which services count for its ports.
fn applies<'a>(
    gateway: &'a Arc<Config<Gateway>>,
    labels: &Labels,
    targets: &'a [ServiceTarget],
) -> Option<Applied<'a>> {
    let annotations = &gateway.meta.annotations;
    if let Some(hosts) = annotations.get(GATEWAY_SERVICE) {
        let owner = annotations.get(PARENT_NAMESPACE).map(String::as_str);
        let namespace = owner.unwrap_or(&gateway.meta.namespace);
        let of_service = |t: &&ServiceTarget| {
            *t.service.attributes.namespace == *namespace
                && hosts.split(',').any(|host| host == &*t.service.hostname)
        };
        let targets: Vec<_> = targets.iter().filter(of_service).collect();
        return (!targets.is_empty()).then_some(Applied {
            gateway,
            targets,
            by_selector: false,
        });
    }
    let selected = selects(&gateway.spec.selector, labels);
    selected.then(|| Applied {
        gateway,
        targets: targets.iter().collect(),
        by_selector: true,
    })
}

/// Where a managed Gateway applies, drops those of users that are not in a managed one's namespace:
/// they would take its ports over.
fn keep_managed(applied: &mut Vec<Applied<'_>>) {
    let is_derived = |a: &Applied<'_>| {
        a.gateway
            .meta
            .annotations
            .get(SEMANTICS)
            .is_some_and(|v| v == "gateway")
    };
    let managed: BTreeSet<Arc<str>> = applied
        .iter()
        .filter(|a| {
            let account = a.gateway.meta.annotations.get(SERVICE_ACCOUNT);
            is_derived(a) && account.is_some_and(|v| !v.is_empty())
        })
        .map(|a| a.gateway.meta.namespace.clone())
        .collect();
    if !managed.is_empty() {
        applied.retain(|a| is_derived(a) || managed.contains(&a.gateway.meta.namespace));
    }
}

fn fingerprint_of(merged: &MergedGateway) -> u64 {
    let listener = |(port, servers): &(ServerPort, MergedServers)| {
        let of_server = |server: &Arc<GatewayServer>| {
            let GatewayServer {
                server,
                gateway,
                annotations,
                port,
                route_name,
                sni_hosts,
            } = &**server;
            let content = fingerprint::of_json(server);
            fingerprint::of(&(content, gateway, annotations, port, route_name, sni_hosts))
        };
        let hashes: Vec<u64> = servers.servers.iter().map(of_server).collect();
        fingerprint::of(&(port, hashes, &servers.route_name))
    };
    let ports: Vec<u64> = merged.ports.iter().map(listener).collect();
    let quic: Vec<u64> = merged.quic.iter().map(listener).collect();
    // Routes, hosts and target ports follow from the servers; credentials do not quite.
    let credentials = (&merged.credentials, &merged.client_certificate);
    fingerprint::of(&(ports, quic, credentials, &merged.gateways))
}

#[cfg(test)]
mod tests;
