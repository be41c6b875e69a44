//! The cluster that this control plane runs in: its authority, who tokens are of, and what is written.

pub(crate) mod remotes;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use controllers::{
    Seen,
    authority::{self, Kept},
    follow,
    leader::{self, Duties, Inputs, View},
    lease::{self, Election, Timing},
    named,
    tokens::ClusterTokens,
    writer::Wanted,
};
use kube::Client;
use security::{AuthorityStore, TokenReview};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use self::remotes::Remotes;
use crate::settings::Settings;

/// The Lease that the writing replica holds, as Istio names it.
const LEASE: &str = "istio-leader";
/// Versions of the authority's Secret that may wait to be taken over.
const SECRETS: usize = 4;
/// Time between two looks whether the roots are others: they change with files, or a Secret.
const LOOK: Duration = Duration::from_secs(2);

/// The cluster, as far as identities need it.
#[derive(Clone)]
pub(crate) struct Home {
    client: Client,
    kept: Kept,
    /// This process is no pod of it, and may lack what the manifests give.
    visits: bool,
}

/// What decides what is written.
#[derive(Debug)]
pub(crate) struct Followed {
    /// The state of the mesh.
    pub(crate) views: watch::Receiver<Option<View>>,
    /// What is wanted beside the duties of the leader.
    pub(crate) wanted: watch::Receiver<Vec<Wanted>>,
    /// Further clusters, of which some may be managed from here.
    pub(crate) remotes: Option<Remotes>,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Home").field(&self.kept).finish()
    }
}

impl Home {
    /// The cluster behind `client`, which this process `visits` when it is no pod of it.
    pub(crate) fn new(client: Client, visits: bool, settings: &Settings) -> Self {
        let secret = &settings.writes.authority_secret;
        Self {
            kept: Kept::new(client.clone(), &settings.namespace, secret),
            client,
            visits,
        }
    }

    /// Opens the authority that is kept in the cluster, or makes one there. `None` when nothing may be kept
    /// there, for a visitor: a replica with a root of its own would be one whose certificates nobody else
    /// accepts.
    ///
    /// # Errors
    /// When the API server does not let us, or what is kept cannot be used.
    pub(crate) async fn authority(
        &self,
        trust_domain: &str,
        lifetime: Duration,
        now: SystemTime,
    ) -> anyhow::Result<Option<AuthorityStore>> {
        let parts = match self.kept.open(trust_domain, lifetime, now).await {
            Ok(parts) => parts,
            Err(error) if self.visits && error.is_denied() => {
                let place = self.kept.place();
                tracing::warn!(place, %error, "no authority is kept in the cluster");
                return Ok(None);
            }
            Err(error) => return Err(error).context("open the certificate authority"),
        };
        let place = self.kept.place();
        let store = AuthorityStore::kept_in(&place, &parts, now);
        store
            .map(Some)
            .with_context(|| format!("use the certificate authority of {place}"))
    }

    /// What asks the API server about tokens.
    pub(crate) fn tokens(
        &self,
        settings: &Settings,
        trust_domain: impl Fn() -> String + Send + Sync + 'static,
    ) -> Arc<dyn TokenReview> {
        let audiences = settings.security.audiences.clone();
        Arc::new(ClusterTokens::new(
            self.client.clone(),
            audiences,
            trust_domain,
        ))
    }

    /// Takes over what the Secret of the authority says, until it is told to stop.
    pub(crate) async fn follow_authority(
        self,
        store: Arc<AuthorityStore>,
        clock: fn() -> SystemTime,
        stop: CancellationToken,
    ) {
        let (seen, mut secrets) = mpsc::channel(SECRETS);
        let (api, which) = (self.kept.api(), named(self.kept.name()));
        let following = follow(api, &which, seen, stop);
        let taking = async {
            while let Some(seen) = secrets.recv().await {
                // A Secret that is gone is about to be replaced, or should never have gone.
                let found = match seen {
                    Seen::All(secrets) => secrets.into_iter().next(),
                    Seen::Put(secret) => Some(secret),
                    Seen::Gone(_) => None,
                };
                let Some(parts) = found.and_then(authority::parts) else {
                    continue;
                };
                match store.replace(&parts, clock()) {
                    Ok(true) => tracing::info!("the certificate authority is another one"),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::error!(%error, "the certificate authority is not taken over");
                    }
                }
            }
        };
        tokio::join!(following, taking);
    }

    /// The way to the API server.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Starts to write, whenever this replica is the one that does. Returns whether it is.
    pub(crate) fn write(
        self,
        settings: &Settings,
        followed: Followed,
        store: Option<Arc<AuthorityStore>>,
        clock: fn() -> SystemTime,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) -> watch::Receiver<bool> {
        let Followed {
            views,
            wanted,
            remotes,
        } = followed;
        let part = &settings.writes;
        let (leads, led) = watch::channel(!part.elects);
        if part.elects {
            let election = Election::new(replica(&settings.pod), Timing::default());
            let (client, stop) = (self.client.clone(), stop.clone());
            let namespace = settings.namespace.clone();
            tasks.spawn(async move {
                lease::follow(client, &namespace, LEASE, election, clock, leads, stop).await;
                Ok(())
            });
        } else {
            // Nobody changes it; it is to stay.
            let stop = stop.clone();
            tasks.spawn(async move {
                stop.cancelled().await;
                drop(leads);
                Ok(())
            });
        }
        let (roots, root) = watch::channel(String::new());
        let duties = Duties {
            root_config_map: store.as_ref().map(|_| part.root_config_map.clone()),
            addresses: settings.features.ip_autoallocate.then_some(part.addresses),
        };
        let token = stop.clone();
        tasks.spawn(async move {
            tell_roots(store, roots, token).await;
            Ok(())
        });
        if let (Some(remotes), Some(name)) = (remotes, duties.root_config_map.clone()) {
            let (root, led, stop) = (root.clone(), led.clone(), stop.clone());
            tasks.spawn(async move {
                remotes.run(name, root, led, stop).await;
                Ok(())
            });
        }
        let inputs = Inputs {
            views,
            roots: root,
            leads: led.clone(),
            wanted,
        };
        let stop = stop.clone();
        tasks.spawn(async move {
            leader::run(self.client, duties, inputs, stop).await;
            Ok(())
        });
        led
    }
}

/// The name by which a replica holds the Lease: no two may have one.
fn replica(name: &str) -> String {
    if name.is_empty() {
        format!("istiod-{}", std::process::id())
    } else {
        name.to_owned()
    }
}

/// Says which roots are in use, until it is told to stop.
async fn tell_roots(
    store: Option<Arc<AuthorityStore>>,
    roots: watch::Sender<String>,
    stop: CancellationToken,
) {
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let now = store.as_ref().map(|store| store.current().roots_pem());
        roots.send_if_modified(|known| {
            let now = now.unwrap_or_default();
            let modified = *known != now;
            *known = now;
            modified
        });
    }
}
