//! An Envoy bootstrap that connects a proxy to this control plane.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context as _;

use model::Node;
use serde_json::{Value, json};

use generators::node;

use crate::certificate;

/// The cluster that carries xDS.
const XDS_CLUSTER: &str = "xds-grpc";
/// The cluster of the agent's secret service, which Istio's listeners refer to by name.
const SDS_CLUSTER: &str = "sds-grpc";
/// What two ends of a connection inside the proxy hold for each other, as in Istio's own bootstrap.
const INTERNAL_BUFFER_KIB: u32 = 64;
/// Where Istio's agent serves secrets.
pub(crate) const SDS_SOCKET: &str = "./var/run/secrets/workload-spiffe-uds/socket";

/// Host and port of a control plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPort {
    host: String,
    port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not HOST:PORT");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port: port.parse().map_err(|_| wrong())?,
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// How the proxy asks for configuration.
#[derive(Clone, Debug)]
pub struct BootstrapOptions {
    /// Where the control plane is.
    pub xds: HostPort,
    /// Ask for differences (delta) instead of the state of the world.
    pub delta: bool,
    /// How xDS is secured; `None` for plaintext.
    pub secure: Option<Secure>,
    /// Where secrets are served to the proxy.
    pub sds_socket: String,
    /// Where the proxy's admin interface listens; `None` switches it off.
    pub admin: Option<HostPort>,
}

/// Mutual TLS with the control plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Secure {
    folder: PathBuf,
    server_name: String,
}

impl Secure {
    /// Mutual TLS with the certificates in a folder that `istiod certificate` keeps fresh, to a control
    /// plane that has a name in its certificate.
    ///
    /// # Errors
    /// When the working folder, which relative paths start from, is not known.
    pub fn new(folder: &Path, server_name: &str) -> anyhow::Result<Self> {
        // The proxy may run elsewhere.
        let folder = std::path::absolute(folder).context("find the folder of certificates")?;
        Ok(Self {
            folder,
            server_name: server_name.to_owned(),
        })
    }

    /// The transport socket. Envoy watches the files, and takes over what is moved to their names.
    fn transport_socket(&self) -> Value {
        let secret = |name: &str| {
            let path = self.folder.join(certificate::secret_file(name));
            json!({"name": name, "sdsConfig": {
                "pathConfigSource": {"path": path, "watchedDirectory": {"path": self.folder}},
                "resourceApiVersion": "V3",
            }})
        };
        json!({
            "name": "envoy.transport_sockets.tls",
            "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": self.server_name,
                "commonTlsContext": {
                    "alpnProtocols": ["h2"],
                    "tlsParams": {"tlsMinimumProtocolVersion": "TLSv1_2", "tlsMaximumProtocolVersion": "TLSv1_3"},
                    "tlsCertificateSdsSecretConfigs": [secret(certificate::CERTIFICATE)],
                    "combinedValidationContext": {
                        "defaultValidationContext": {"matchTypedSubjectAltNames": [
                            {"sanType": "DNS", "matcher": {"exact": self.server_name}},
                        ]},
                        "validationContextSdsSecretConfig": secret(certificate::ROOT),
                    },
                },
            },
        })
    }
}

/// Writes the bootstrap of a node as protobuf JSON. It works with a stock Envoy.
pub fn bootstrap(proxy: &Node, options: &BootstrapOptions) -> Value {
    let node = node::to_envoy(proxy);
    let node = envoy_json::json::typed_to_json(&node).unwrap_or(Value::Null);
    let source = json!({"ads": {}, "initialFetchTimeout": "0s", "resourceApiVersion": "V3"});
    let mut bootstrap = json!({
        "node": node,
        "layeredRuntime": {"layers": [{"name": "static", "staticLayer": {
            "envoy.restart_features.use_eds_cache_for_ads": true,
        }}]},
        // Tunnels end in one listener and go on in another; without this there are none of the second kind.
        "bootstrapExtensions": [{
            "name": "envoy.bootstrap.internal_listener",
            "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener",
                "bufferSizeKb": INTERNAL_BUFFER_KIB,
            },
        }],
        "dynamicResources": {
            "ldsConfig": source,
            "cdsConfig": source,
            "adsConfig": {
                "apiType": if options.delta { "DELTA_GRPC" } else { "GRPC" },
                "setNodeOnFirstMessageOnly": true,
                "transportApiVersion": "V3",
                "grpcServices": [{"envoyGrpc": {"clusterName": XDS_CLUSTER}}],
            },
        },
        "staticResources": {"clusters": [
            cluster(XDS_CLUSTER, &address(&options.xds), options.xds.host.parse::<std::net::IpAddr>().is_ok()),
            cluster(SDS_CLUSTER, &json!({"pipe": {"path": options.sds_socket}}), true),
        ]},
    });
    if let Some(secure) = &options.secure {
        bootstrap["staticResources"]["clusters"][0]["transportSocket"] = secure.transport_socket();
    }
    if let Some(admin) = &options.admin {
        bootstrap["admin"] = json!({"address": address(admin)});
    }
    bootstrap
}

fn address(target: &HostPort) -> Value {
    json!({"socketAddress": {"address": target.host, "portValue": target.port}})
}

/// A static gRPC cluster with one endpoint, resolved by name unless the address is literal.
fn cluster(name: &str, address: &Value, literal: bool) -> Value {
    json!({
        "name": name,
        "type": if literal { "STATIC" } else { "STRICT_DNS" },
        "connectTimeout": "1s",
        "typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicitHttpConfig": {"http2ProtocolOptions": {
                "connectionKeepalive": {"interval": "30s", "timeout": "10s"},
            }},
        }},
        "loadAssignment": {"clusterName": name, "endpoints": [{"lbEndpoints": [
            {"endpoint": {"address": address}},
        ]}]},
    })
}
