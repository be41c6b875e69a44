//! The example mesh on this machine: a copy of `examples/`, its pods as tiny HTTP workloads.
//!
//! The pods of the example live in 10.244.0.0/16. The copy moves them into a network of the loopback
//! interface, which is 127.0.0.0/8 as a whole, so that their addresses and ports are real.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU8, Ordering},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    corpus::workspace,
    envoy,
    http::{Calls, Workload, free_port},
    traffic::Ask,
};

/// Port of every service and pod of the example.
const PORT: u16 = 9080;

/// The example mesh, running.
#[derive(Debug)]
pub struct Bookinfo {
    folder: TempDir,
    network: u8,
    page: SocketAddr,
    workloads: Vec<Workload>,
}

impl Bookinfo {
    /// Copies the example and starts its workloads.
    ///
    /// # Errors
    /// When an address of it is taken.
    pub async fn start() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bookinfo-")
            .tempdir()
            .context("create a temporary folder")?;
        let network = network();
        let (page, reviews) = (local(free_port()?), local(free_port()?));
        let replaced = [
            ("10.244.", format!("127.{network}.")),
            ("192.0.2.", format!("127.{network}.200.")),
            ("bind: 127.0.0.", format!("bind: 127.{network}.255.")),
            ("127.0.0.1:18080", page.to_string()),
            ("127.0.0.1:19080", reviews.to_string()),
        ];
        for part in ["bookinfo", "nodes"] {
            copy(
                &workspace().join("examples").join(part),
                &folder.path().join(part),
                &replaced,
            )?;
        }
        let mut bookinfo = Self {
            folder,
            network,
            page,
            workloads: Vec::new(),
        };
        let calls = Calls {
            through: bookinfo.outbound(),
            hosts: vec!["details:9080".to_owned(), "reviews:9080".to_owned()],
            headers: vec!["end-user".to_owned()],
        };
        bookinfo
            .run("productpage-v1", bookinfo.page, Some(calls))
            .await?;
        bookinfo.run("reviews-v2", reviews, None).await?;
        for (name, host) in [
            ("details-v1", [0, 11]),
            ("ratings-v1", [0, 12]),
            ("reviews-v1", [0, 21]),
            ("reviews-v3", [0, 23]),
            ("catalogue", [200, 10]),
        ] {
            bookinfo.run(name, bookinfo.pod(host), None).await?;
        }
        Ok(bookinfo)
    }

    async fn run(&mut self, name: &str, address: SocketAddr, calls: Option<Calls>) -> Result<()> {
        self.workloads
            .push(Workload::start(name, address, calls).await?);
        Ok(())
    }

    /// The folder of everything that runs here; removed in the end.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the configuration.
    pub fn config(&self) -> PathBuf {
        self.folder().join("bookinfo")
    }

    /// An Envoy beside a workload, by the name of its node file.
    pub fn envoy(&self, node: &str, xds: SocketAddr, delta: bool) -> envoy::Setup {
        envoy::Setup {
            name: format!("envoy-{node}"),
            node: self.folder().join("nodes").join(format!("{node}.yaml")),
            xds,
            delta,
            folder: self.folder().to_owned(),
        }
    }

    /// Where productpage's proxy takes the requests of users.
    pub fn inbound(&self) -> SocketAddr {
        self.pod([0, 10])
    }

    /// Where productpage's proxy takes the requests of productpage itself.
    pub fn outbound(&self) -> SocketAddr {
        self.pod([255, 1])
    }

    /// What a user asks for: the page, which asks details and reviews.
    pub fn page(&self) -> Ask {
        Ask::new(self.inbound(), "productpage:9080")
    }

    /// What productpage asks for: a service, through its proxy.
    pub fn service(&self, host: &str) -> Ask {
        Ask::new(self.outbound(), host)
    }

    /// Replaces a text in a file of the configuration, as an editor does: by a new file.
    ///
    /// # Errors
    /// When the file does not have the text.
    pub fn edit(&self, file: &str, from: &str, to: &str) -> Result<()> {
        let path = self.config().join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {file}"))?;
        ensure!(text.contains(from), "{file} has no {from:?}");
        self.write(file, &text.replacen(from, to, 1))
    }

    /// Writes a file of the configuration, as an editor does: beside it first, then in its place.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        let new = self.config().join(format!(".{file}.new"));
        fs::write(&new, text).with_context(|| format!("write {file}"))?;
        fs::rename(&new, self.config().join(file)).with_context(|| format!("replace {file}"))
    }

    fn pod(&self, [c, d]: [u8; 2]) -> SocketAddr {
        (Ipv4Addr::new(127, self.network, c, d), PORT).into()
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A network that no other example uses: by process, and by number within it.
fn network() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let process = u8::try_from(std::process::id() % 128).unwrap_or_default();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    64 + process.wrapping_add(number) % 128
}

fn copy(from: &Path, to: &Path, replaced: &[(&str, String)]) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().context("files have names")?;
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let text = replaced
            .iter()
            .fold(text, |text, (from, to)| text.replace(from, to));
        fs::write(to.join(name), text).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(())
}
