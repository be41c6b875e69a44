//! Merging of servers by port (gateways §6).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Config, Labels, Protocol,
    api::{
        Gateway,
        gateway::{Server, ServerTlsMode},
    },
};

use super::{
    Applied, GatewayServer, MergedGateway, MergedServers, ServerPort, credential, is_http_server,
    is_https_terminated, is_tls_server,
};

/// Merges the servers of all Gateways, in order.
pub(super) fn merge(applied: &[Applied<'_>], quic: bool) -> MergedGateway {
    let mut state = Merging::default();
    for applied in applied {
        let config = applied.gateway;
        let annotations = Arc::new(config.meta.annotations.clone());
        state.merged.gateways.push(config.meta.namespaced_name());
        if let Some(certificate) = credential::of_client(config) {
            let name = certificate.name.as_str().into();
            state.merged.client_certificate.get_or_insert(name);
            state.merged.credentials.push(certificate);
        }
        for server in &config.spec.servers {
            let Some(port) = &server.port else { continue };
            let written = port.number;
            let with_quic = quic && is_https_terminated(server) && applied.has_udp(written);
            let server = normalise(server, &config.meta.namespace);
            state
                .merged
                .credentials
                .extend(credential::of_server(&server, config));
            for port in applied.resolve(written) {
                let server = prepare(&server, config, &annotations, port);
                if let Err(reason) = state.add(&server, with_quic) {
                    let name = config.meta.namespaced_name();
                    tracing::debug!(config = %name, port, reason, "server of a gateway is left out");
                    state.merged.rejected.push((name, reason));
                }
            }
        }
    }
    state.finish()
}

/// Rewrites the namespaces of a server's hosts.
fn normalise(server: &Server, namespace: &str) -> Server {
    let mut server = server.clone();
    if server.hosts.iter().any(|host| host == "*/*") {
        server.hosts = vec!["*".to_owned()];
        return server;
    }
    for host in &mut server.hosts {
        if let Some(rest) = host.strip_prefix("./") {
            *host = format!("{namespace}/{rest}");
        } else if let Some(rest) = host.strip_prefix("*/") {
            *host = rest.to_owned();
        }
    }
    server
}

fn prepare(
    server: &Server,
    config: &Config<Gateway>,
    annotations: &Arc<Labels>,
    port: u16,
) -> Arc<GatewayServer> {
    let names = server
        .hosts
        .iter()
        .map(|h| h.split_once('/').map_or(h.as_str(), |(_, n)| n));
    let sni_hosts: BTreeSet<String> = match server.tls {
        Some(_) => names.map(str::to_owned).collect(),
        None => BTreeSet::new(),
    };
    Arc::new(GatewayServer {
        route_name: route_name(server, config, port),
        server: server.clone(),
        gateway: config.meta.namespaced_name(),
        annotations: annotations.clone(),
        port,
        sni_hosts: sni_hosts.into_iter().collect(),
    })
}

/// Names the route configuration of a server: by the resolved port for plaintext, by what was
/// written for HTTPS; empty for all others (gateways §5).
fn route_name(server: &Server, config: &Config<Gateway>, resolved: u16) -> String {
    let Some(port) = &server.port else {
        return String::new();
    };
    let mut name = if Protocol::parse(&port.protocol).is_http() {
        format!("http.{resolved}")
    } else if is_https_terminated(server) {
        let meta = &config.meta;
        format!(
            "https.{}.{}.{}.{}",
            port.number, port.name, meta.name, meta.namespace
        )
    } else {
        return String::new();
    };
    if !server.bind.is_empty() {
        name.push('.');
        name.push_str(&server.bind);
    }
    name
}

#[derive(Default)]
struct Merging {
    merged: MergedGateway,
    places: BTreeMap<ServerPort, usize>,
    seen: BTreeSet<u16>,
    /// The listener of each port that was last registered for plaintext.
    plain: BTreeMap<u16, ServerPort>,
    /// For each port, the hosts of servers with TLS and the address that they were last bound to.
    hosts: BTreeMap<u16, BTreeMap<String, String>>,
}

impl Merging {
    /// Finds a place for a server on its port, or says why there is none.
    fn add(&mut self, server: &Arc<GatewayServer>, quic: bool) -> Result<(), String> {
        let spec = &server.server;
        let key = ServerPort {
            number: server.port,
            protocol: spec.port.as_ref().map_or("", |p| &p.protocol).to_owned(),
            bind: spec.bind.clone(),
        };
        if let Some(tls) = &spec.tls {
            self.claim_hosts(server)?;
            if tls.mode == ServerTlsMode::AutoPassthrough {
                self.merged.auto_passthrough = true;
                let hosts = &mut self.merged.auto_passthrough_hosts;
                hosts.extend(server.sni_hosts.iter().cloned());
            }
        }
        if self.seen.insert(server.port) {
            self.register(key.clone(), server);
        } else if let Some(current) = self.plain.get(&server.port).cloned() {
            self.join_plain(&key, &current, server)?;
        } else if is_tls_server(spec) {
            self.join_tls(&key, server)?;
        } else {
            self.register(key.clone(), server);
        }
        if quic {
            let list = &mut self.merged.quic;
            let at = list.iter().position(|(k, _)| *k == key).unwrap_or_else(|| {
                list.push((key, MergedServers::default()));
                list.len() - 1
            });
            list[at].1.servers.push(server.clone());
            list[at].1.route_name.clone_from(&server.route_name);
        }
        Ok(())
    }

    /// Server names tell TLS servers of a port apart: none may be there twice on one address.
    fn claim_hosts(&mut self, server: &GatewayServer) -> Result<(), String> {
        let spec = &server.server;
        let table = self.hosts.entry(server.port).or_default();
        if let Some(host) = spec
            .hosts
            .iter()
            .find(|host| table.get(*host) == Some(&spec.bind))
        {
            return Err(format!(
                "host {host} is already registered on port {}",
                server.port
            ));
        }
        table.extend(
            spec.hosts
                .iter()
                .map(|host| (host.clone(), spec.bind.clone())),
        );
        Ok(())
    }

    /// Gives a server a listener of its own.
    fn register(&mut self, key: ServerPort, server: &Arc<GatewayServer>) {
        if !is_tls_server(&server.server) {
            self.plain.insert(server.port, key.clone());
        }
        if is_http_server(&server.server) {
            let list = vec![server.clone()];
            self.merged.routes.insert(server.route_name.clone(), list);
        }
        let listener = self.listener(key);
        listener.servers = vec![server.clone()];
        listener.route_name.clone_from(&server.route_name);
    }

    /// Adds a server to a port that has a plaintext listener.
    fn join_plain(
        &mut self,
        key: &ServerPort,
        current: &ServerPort,
        server: &Arc<GatewayServer>,
    ) -> Result<(), String> {
        if current.bind == key.bind {
            let is_http = |key: &ServerPort| Protocol::parse(&key.protocol).is_http();
            if !(is_http(key) && is_http(current)) || server.route_name.is_empty() {
                return Err(format!(
                    "{} does not merge with {} on port {}",
                    key.protocol, current.protocol, key.number
                ));
            }
            self.listener(current.clone()).servers.push(server.clone());
        } else if self.places.contains_key(key) {
            let listener = self.listener(key.clone());
            listener.servers.push(server.clone());
            listener.route_name.clone_from(&server.route_name);
        } else {
            self.register(key.clone(), server);
            return Ok(());
        }
        self.merged
            .routes
            .entry(server.route_name.clone())
            .or_default()
            .push(server.clone());
        Ok(())
    }

    /// Adds a server with TLS to a port that has TLS listeners only.
    fn join_tls(&mut self, key: &ServerPort, server: &Arc<GatewayServer>) -> Result<(), String> {
        if is_http_server(&server.server) {
            if self.merged.routes.contains_key(&server.route_name) {
                return Err(format!("route name {} is taken", server.route_name));
            }
            self.merged
                .routes
                .insert(server.route_name.clone(), vec![server.clone()]);
        }
        let listener = self.listener(key.clone());
        listener.servers.push(server.clone());
        if listener.route_name.is_empty() {
            listener.route_name.clone_from(&server.route_name);
        }
        Ok(())
    }

    fn listener(&mut self, key: ServerPort) -> &mut MergedServers {
        let ports = &mut self.merged.ports;
        let at = *self.places.entry(key).or_insert_with_key(|key| {
            ports.push((key.clone(), MergedServers::default()));
            ports.len() - 1
        });
        &mut ports[at].1
    }

    fn finish(mut self) -> MergedGateway {
        let merged = &mut self.merged;
        for (name, servers) in &merged.routes {
            let written = servers
                .iter()
                .filter_map(|s| Some(s.server.port.as_ref()?.number));
            merged
                .target_ports
                .entry(port_of_route(name))
                .or_default()
                .extend(written);
        }
        let mut credentials = std::mem::take(&mut merged.credentials);
        credentials.sort_unstable();
        credentials.dedup();
        merged.credentials = credentials;
        self.merged
    }
}

/// Reads the port off a route configuration's name; 0 when the name has another form.
fn port_of_route(name: &str) -> u16 {
    if let Some(port) = name.strip_prefix("http.") {
        return port.parse().unwrap_or_default();
    }
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["https", port, _, _, _] => port.parse().unwrap_or_default(),
        _ => 0,
    }
}
