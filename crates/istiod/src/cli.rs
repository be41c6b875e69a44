//! The command line.

use std::{collections::BTreeSet, net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    bootstrap::{self, HostPort},
    certificate::CertificateArgs,
    distribution::client::{StatusArgs, WaitArgs},
    generate::ResourceType,
    tls::SecureArgs,
};

/// The control plane of an Istio mesh.
#[derive(Debug, Parser)]
#[command(name = "istiod", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// A file with settings, which win over the environment: a YAML mapping of variables to values.
    /// `discovery` takes over changes of throttle and debounce settings while it runs.
    #[arg(long, global = true, value_name = "FILE")]
    pub settings: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve xDS to the proxies of a mesh.
    Discovery(DiscoveryArgs),
    /// Print what one proxy would receive.
    Generate(GenerateArgs),
    /// Check configuration: print every refusal and warning.
    Validate(ValidateArgs),
    /// Print an Envoy bootstrap that connects a proxy to a control plane.
    Bootstrap(BootstrapArgs),
    /// Keep the certificate of a workload fresh in a folder.
    Certificate(CertificateArgs),
    /// Print which proxies have a configuration, what a proxy has, or how the mesh is.
    Status(StatusArgs),
    /// Wait until the proxies have a configuration. Exit status: 0 they have it, 1 not in time, 2
    /// nobody could be asked, 3 they never will.
    Wait(WaitArgs),
}

/// Where configuration is read.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// Files or folders of YAML or JSON: Kubernetes, Istio and Gateway API objects.
    #[arg(long = "config", value_name = "PATH", num_args = 1.., required = true)]
    pub config: Vec<PathBuf>,
    /// Settings of the whole mesh.
    #[command(flatten)]
    pub mesh: MeshArgs,
}

/// Where `discovery` reads the mesh: in files, in a cluster, or in both.
#[derive(Clone, Debug, Args)]
pub struct SourceArgs {
    /// Files or folders of YAML or JSON: Kubernetes, Istio and Gateway API objects. Without any, a
    /// cluster is read.
    #[arg(long = "config", value_name = "PATH", num_args = 1..)]
    pub config: Vec<PathBuf>,
    /// The cluster of a kubeconfig's current context is read, beside files if there are any. By default
    /// it is the cluster that this process is a pod of.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Registries of services that are read even if there are files.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub registries: Vec<RegistryName>,
    /// Settings of the whole mesh.
    #[command(flatten)]
    pub mesh: MeshArgs,
}

impl SourceArgs {
    /// The files.
    pub fn files(&self) -> ConfigArgs {
        ConfigArgs {
            config: self.config.clone(),
            mesh: self.mesh.clone(),
        }
    }
}

/// A registry of services.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum RegistryName {
    /// A Kubernetes cluster.
    #[value(name = "Kubernetes", alias = "kubernetes")]
    Kubernetes,
}

/// Settings of the whole mesh.
#[derive(Clone, Debug, Args)]
pub struct MeshArgs {
    /// A file with the mesh configuration; what it leaves out keeps its default.
    #[arg(long, alias = "meshConfig", value_name = "FILE")]
    pub mesh_config: Option<PathBuf>,
    /// A file with the networks of the mesh.
    #[arg(long, aliases = ["meshNetworks", "networksConfig"], value_name = "FILE")]
    pub mesh_networks: Option<PathBuf>,
    /// Domain of Kubernetes services.
    #[arg(long, default_value = "cluster.local")]
    pub domain: String,
}

/// Arguments of `discovery`.
#[derive(Clone, Debug, Args)]
pub struct DiscoveryArgs {
    /// Where the mesh is read.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Address of plaintext xDS; '' switches it off.
    #[arg(
        long = "grpcAddr",
        alias = "grpc-addr",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:15010"
    )]
    pub grpc: Bind,
    /// The secure port and the certificate authority.
    #[command(flatten)]
    pub secure: SecureArgs,
    /// Address of `/ready` and `/debug`.
    #[arg(long = "httpAddr", alias = "http-addr", default_value = "0.0.0.0:8080", value_parser = parse_address)]
    pub http: SocketAddr,
    /// Address of `/metrics`, `/version` and `/debug`.
    #[arg(long = "monitoringAddr", alias = "monitoring-addr", default_value = "0.0.0.0:15014", value_parser = parse_address)]
    pub monitoring: SocketAddr,
    /// How often a silent connection is pinged; by default what `GRPC_KEEPALIVE_INTERVAL` says, or 30s.
    #[arg(long = "keepaliveInterval", alias = "keepalive-interval", value_parser = parse_duration)]
    pub keepalive_interval: Option<std::time::Duration>,
    /// How long the answer to a ping may take; by default what `GRPC_KEEPALIVE_TIMEOUT` says, or 10s.
    #[arg(long = "keepaliveTimeout", alias = "keepalive-timeout", value_parser = parse_duration)]
    pub keepalive_timeout: Option<std::time::Duration>,
    /// The age at which a connection is asked to go; never by default.
    #[arg(long = "keepaliveMaxServerConnectionAge", alias = "keepalive-max-server-connection-age", value_parser = parse_duration)]
    pub connection_age: Option<std::time::Duration>,
    /// How long open streams may take to end after SIGTERM.
    #[arg(long = "shutdownDuration", alias = "shutdown-duration", default_value = "10s", value_parser = parse_duration)]
    pub shutdown: std::time::Duration,
    /// The throttle policy, of those that are linked in; `backoff`, or the only one, by default.
    #[arg(long, value_name = "NAME")]
    pub throttle_policy: Option<String>,
    /// The other replicas, for who asks who has which configuration: addresses of their monitoring
    /// ports; a host may be a headless Service. By default what `PILOT_PEERS` says.
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub peers: Vec<String>,
    /// Write the log as JSON.
    #[arg(long = "log_as_json", alias = "log-as-json")]
    pub json_log: bool,
}

/// Arguments of `generate`.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// Files or folders of YAML or JSON: Kubernetes, Istio and Gateway API objects.
    #[arg(long = "config", value_name = "PATH", num_args = 1.., required_unless_present = "diff")]
    pub config: Vec<PathBuf>,
    /// Print what differs for the proxy between two files or folders; exit status 0 when nothing
    /// does, 1 when something does, 2 on errors.
    #[arg(long, value_names = ["OLD", "NEW"], num_args = 2, conflicts_with = "config")]
    pub diff: Vec<PathBuf>,
    /// Settings of the whole mesh.
    #[command(flatten)]
    pub mesh: MeshArgs,
    /// The proxy: a JSON or YAML file with id, cluster, locality and metadata.
    #[arg(long, value_name = "FILE")]
    pub node: PathBuf,
    /// Types to print, of cds, eds, lds, rds, sds, ecds, nds; all by default.
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<ResourceType>,
    /// Print private keys too; they are hidden by default, and always in differences.
    #[arg(long)]
    pub private_keys: bool,
    /// Form of the output: JSON by default; differences are written for people by default.
    #[arg(long, value_enum)]
    pub output: Option<StructuredOutput>,
}

impl GenerateArgs {
    /// Where configuration is read, when that is from these paths.
    pub fn source(&self, paths: &[PathBuf]) -> ConfigArgs {
        ConfigArgs {
            config: paths.to_vec(),
            mesh: self.mesh.clone(),
        }
    }

    /// The types that are asked for.
    pub fn types(&self) -> BTreeSet<ResourceType> {
        if self.types.is_empty() {
            ResourceType::ALL.into()
        } else {
            self.types.iter().copied().collect()
        }
    }
}

/// Arguments of `validate`.
#[derive(Clone, Debug, Args)]
pub struct ValidateArgs {
    /// Where configuration is read.
    #[command(flatten)]
    pub source: ConfigArgs,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t = ReportOutput::Text)]
    pub output: ReportOutput,
}

/// Arguments of `bootstrap`.
#[derive(Clone, Debug, Args)]
pub struct BootstrapArgs {
    /// The proxy: a JSON or YAML file with id, cluster, locality and metadata.
    #[arg(long, value_name = "FILE")]
    pub node: PathBuf,
    /// Where the control plane serves xDS.
    #[arg(long, value_name = "HOST:PORT")]
    pub xds_address: HostPort,
    /// Ask for differences (delta xDS) instead of the state of the world.
    #[arg(long)]
    pub delta: bool,
    /// Folder that `istiod certificate` keeps fresh: xDS goes over mutual TLS, to the secure port.
    #[arg(long, value_name = "FOLDER")]
    pub certificates: Option<PathBuf>,
    /// The name that the control plane's certificate must have.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "istiod.istio-system.svc",
        requires = "certificates"
    )]
    pub xds_server_name: String,
    /// Socket on which the proxy gets its certificates: that of Istio's agent by default, or the one
    /// of `istiod certificate --sds-socket`.
    #[arg(long, value_name = "PATH", default_value = bootstrap::SDS_SOCKET)]
    pub sds_socket: String,
    /// Where the proxy's admin interface listens; none by default.
    #[arg(long, value_name = "HOST:PORT")]
    pub admin_address: Option<HostPort>,
}

/// Forms of structured output.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum StructuredOutput {
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

/// Forms of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ReportOutput {
    /// A line for each finding.
    Text,
    /// A list of objects.
    Json,
}

/// An address to listen on, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind(pub Option<SocketAddr>);

impl std::str::FromStr for Bind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        parse_address(text).map(|address| Self(Some(address)))
    }
}

/// Reads an address; `:15010` means all interfaces.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let full = if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    };
    full.parse()
        .map_err(|_| format!("{text:?} is not an address such as :15010 or 127.0.0.1:15010"))
}

pub(crate) fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    text.parse::<model::api::Duration>()
        .ok()
        .filter(|d| !d.is_negative())
        .map(model::api::Duration::to_std)
        .ok_or_else(|| format!("{text:?} is not a duration such as 10s"))
}
