//! Gateways between networks (service-registry §16).

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use model::{
    Config, Labels, MeshState, NetworkGateway, NetworkGateways, Service,
    api::gateway_api::{Gateway, Listener},
};

use super::settings::{NETWORK_LABEL, Settings};

const GATEWAY_PORT_LABEL: &str = "networking.istio.io/gatewayPort";
const LISTENER_PROTOCOL_OPTION: &str = "gateway.istio.io/listener-protocol";
const SERVICE_ACCOUNT_ANNOTATION: &str = "gateway.istio.io/service-account";
const REMOTE_CLASS: &str = "istio-remote";

/// Port for mutual TLS with automatic passthrough, unless a gateway says otherwise.
const DEFAULT_GATEWAY_PORT: u16 = 15443;

/// Port for HBONE.
const HBONE_PORT: u16 = 15008;

/// Tells whether a change of a service may change gateways.
pub(super) fn concerns(old: Option<&Service>, new: Option<&Service>, state: &MeshState) -> bool {
    [old, new].into_iter().flatten().any(|s| {
        s.attributes.labels.contains_key(NETWORK_LABEL)
            || registry_names(state).any(|(_, name, _)| name == &*s.hostname)
    })
}

/// Services that the mesh networks name as gateways of networks: network, host name, port.
fn registry_names(state: &MeshState) -> impl Iterator<Item = (&str, &str, u16)> {
    state
        .networks
        .networks
        .iter()
        .flat_map(|(network, config)| {
            config.gateways.iter().filter_map(move |g| {
                let name = g.registry_service_name.as_deref()?;
                Some((network.as_str(), name, u16::try_from(g.port).ok()?))
            })
        })
}

/// Collects the gateways of all sources. `addresses` are those of host names; a gateway whose name has
/// none yet is left out.
pub(super) fn gateways(
    state: &MeshState,
    addresses: &BTreeMap<Arc<str>, Vec<Arc<str>>>,
    settings: &Settings,
) -> NetworkGateways {
    let mut unresolved = Vec::new();
    from_mesh_networks(state, settings, &mut unresolved);
    for service in state.services.values().filter(|s| s.is_kubernetes()) {
        from_service(service, state, settings, &mut unresolved);
    }
    if settings.features.multi_network_discover_gateway_api {
        for gateway in state.objects.kubernetes_gateways.values() {
            from_gateway(gateway, settings, &mut unresolved);
        }
    }
    NetworkGateways::sort(&mut unresolved);
    let mut resolved = Vec::with_capacity(unresolved.len());
    for gateway in &unresolved {
        if gateway.address.parse::<IpAddr>().is_ok() {
            resolved.push(gateway.clone());
            continue;
        }
        let addresses = addresses.get(&gateway.address).into_iter().flatten();
        resolved.extend(addresses.map(|address| NetworkGateway {
            address: address.clone(),
            ..gateway.clone()
        }));
    }
    NetworkGateways::sort(&mut resolved);
    NetworkGateways {
        resolved,
        unresolved,
    }
}

fn from_mesh_networks(state: &MeshState, settings: &Settings, found: &mut Vec<NetworkGateway>) {
    for (network, config) in &state.networks.networks {
        for gateway in &config.gateways {
            let Some(address) = gateway.address.as_deref().filter(|a| !a.is_empty()) else {
                continue;
            };
            let Ok(port) = u16::try_from(gateway.port) else {
                continue;
            };
            found.push(NetworkGateway {
                network: network.as_str().into(),
                cluster: settings.words.empty.clone(),
                address: address.into(),
                port,
                hbone_port: 0,
                service_account: settings.words.empty.clone(),
            });
        }
    }
}

fn from_service(
    service: &Service,
    state: &MeshState,
    settings: &Settings,
    found: &mut Vec<NetworkGateway>,
) {
    let labels = &service.attributes.labels;
    let mut add = |network: &str, port: u16, hbone_port: u16| {
        let addresses = service
            .attributes
            .cluster_external_addresses
            .get(&settings.cluster);
        for address in addresses.into_iter().flatten() {
            found.push(NetworkGateway {
                network: network.into(),
                cluster: settings.cluster.clone(),
                address: address.clone(),
                port: node_port(service, port, settings),
                hbone_port: node_port(service, hbone_port, settings),
                service_account: settings.words.empty.clone(),
            });
        }
    };
    if let Some(network) = labels.get(NETWORK_LABEL).filter(|n| !n.is_empty()) {
        let stated = labels.get(GATEWAY_PORT_LABEL).and_then(|p| p.parse().ok());
        let exposed = |port: u16| {
            if service.port(port).is_some() {
                port
            } else {
                0
            }
        };
        let (port, hbone_port) = (
            exposed(stated.unwrap_or(DEFAULT_GATEWAY_PORT)),
            exposed(HBONE_PORT),
        );
        if port != 0 || hbone_port != 0 {
            add(network, port, hbone_port);
        }
        return;
    }
    let cluster = Some(&*settings.cluster);
    for (network, name, port) in registry_names(state) {
        let here = state.networks.networks.get(network).is_some_and(|n| {
            n.endpoints
                .iter()
                .any(|e| e.from_registry.as_deref() == cluster)
        });
        if here && name == &*service.hostname {
            add(network, port, 0);
        }
    }
}

/// The node port behind a service port, for services that are reached at nodes.
fn node_port(service: &Service, port: u16, settings: &Settings) -> u16 {
    let ports = service
        .attributes
        .cluster_external_ports
        .get(&settings.cluster);
    ports.and_then(|p| p.get(&port)).copied().unwrap_or(port)
}

fn from_gateway(gateway: &Config<Gateway>, settings: &Settings, found: &mut Vec<NetworkGateway>) {
    let Config { meta, spec } = gateway;
    let Some(network) = meta.labels.get(NETWORK_LABEL).filter(|n| !n.is_empty()) else {
        return;
    };
    let account = match meta.annotations.get(SERVICE_ACCOUNT_ANNOTATION) {
        Some(account) => account.clone(),
        None if spec.gateway_class_name == REMOTE_CLASS => format!("{}-{REMOTE_CLASS}", meta.name),
        None => meta.name.to_string(),
    };
    let addresses = spec
        .addresses
        .iter()
        .filter(|a| matches!(a.r#type.as_deref(), Some("IPAddress" | "Hostname")));
    for address in addresses
        .filter_map(|a| a.value.as_deref())
        .filter(|a| !a.is_empty())
    {
        for listener in &spec.listeners {
            let Ok(port) = u16::try_from(listener.port) else {
                continue;
            };
            let is_hbone = listener.protocol == "HBONE";
            if is_hbone || is_auto_passthrough(listener, &meta.labels) {
                found.push(NetworkGateway {
                    network: network.as_str().into(),
                    cluster: settings.cluster.clone(),
                    address: address.into(),
                    port,
                    hbone_port: if is_hbone { port } else { 0 },
                    service_account: format!("{}/{account}", meta.namespace).into(),
                });
            }
        }
    }
}

/// Tells whether a listener forwards by server name to services of the mesh.
fn is_auto_passthrough(listener: &Listener, labels: &Labels) -> bool {
    let Some(tls) = &listener.tls else {
        return false;
    };
    if tls
        .options
        .get(LISTENER_PROTOCOL_OPTION)
        .is_some_and(|p| p == "auto-passthrough")
    {
        return true;
    }
    let port = labels.get(GATEWAY_PORT_LABEL).and_then(|p| p.parse().ok());
    listener.port == u32::from(port.unwrap_or(DEFAULT_GATEWAY_PORT))
}
