//! The other replicas: who they are and what they say.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::{
    answer::{Replica, Unreachable},
    merge::Heard,
};

/// Longest time that another replica is waited for. It answers in milliseconds, or is not there.
const PATIENCE: Duration = Duration::from_secs(2);

/// The parameter that asks a replica for what it knows itself.
pub(crate) const LOCAL: &str = "local";

/// The other replicas, as places: `HOST:PORT` of their monitoring ports, where a host may be the name
/// of a headless Service, which stands for all its addresses.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    places: Arc<[String]>,
    client: reqwest::Client,
    /// Addresses that places have stood for: who asks from there is one of us.
    addresses: Arc<Mutex<BTreeSet<IpAddr>>>,
}

/// What is common to all answers.
pub(crate) trait Answer: DeserializeOwned + Send + 'static {
    /// The replicas that it is from.
    fn replicas(&self) -> &[Replica];
}

impl Answer for super::answer::ConfigAnswer {
    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }
}

impl Answer for super::answer::ProxiesAnswer {
    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }
}

impl Answer for super::answer::MeshAnswer {
    fn replicas(&self) -> &[Replica] {
        &self.replicas
    }
}

impl Peers {
    /// Makes the list of the other replicas; the replica itself may be among them.
    ///
    /// # Errors
    /// When a place is not `HOST:PORT`.
    pub(crate) fn new(places: &[String]) -> anyhow::Result<Self> {
        for place in places {
            let port = place.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            anyhow::ensure!(
                matches!(port, Some(Ok(_))),
                "replica {place:?} is not HOST:PORT"
            );
        }
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .no_proxy()
            .build()
            .context("make the client of the other replicas")?;
        Ok(Self {
            places: places.into(),
            client,
            addresses: Arc::default(),
        })
    }

    /// Tells whether one of the replicas has this address, as far as they have been looked up.
    pub(crate) fn includes(&self, address: IpAddr) -> bool {
        self.addresses.lock().contains(&address.to_canonical())
    }

    /// Looks the replicas up; whoever is not found is named.
    pub(crate) async fn look_up(&self) -> (BTreeSet<SocketAddr>, Vec<Unreachable>) {
        let (mut found, mut lost) = (BTreeSet::new(), Vec::new());
        for place in &*self.places {
            let lookup = tokio::time::timeout(PATIENCE, tokio::net::lookup_host(&**place));
            let error = match lookup.await {
                Ok(Ok(addresses)) => {
                    let addresses: Vec<SocketAddr> = addresses.collect();
                    let none = addresses.is_empty();
                    found.extend(addresses);
                    none.then(|| "no address".to_owned())
                }
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some("not resolved in time".to_owned()),
            };
            lost.extend(error.map(|error| Unreachable {
                replica: place.clone(),
                error,
            }));
        }
        let addresses = found.iter().map(|a| a.ip().to_canonical());
        self.addresses.lock().extend(addresses);
        (found, lost)
    }

    /// Asks all other replicas for `path`, which has parameters already. Who answers as `own` is this
    /// replica and left out; a replica that knows nothing of what is asked (404) has nothing to add.
    pub(crate) async fn ask<A: Answer>(&self, own: &str, path: &str) -> Heard<A> {
        if self.places.is_empty() {
            return Heard::default();
        }
        let (addresses, unreachable) = self.look_up().await;
        let asked = addresses.iter().map(async |address| {
            let answer = self.ask_one::<A>(*address, path).await;
            (*address, answer)
        });
        let mut heard = Heard {
            answers: Vec::new(),
            unreachable,
        };
        let mut seen = BTreeSet::from([own.to_owned()]);
        for (address, answer) in futures::future::join_all(asked).await {
            match answer {
                Ok(None) => {}
                Ok(Some(answer)) => {
                    let name = answer.replicas().first().map(|r| r.name.clone());
                    if seen.insert(name.unwrap_or_default()) {
                        heard.answers.push(answer);
                    }
                }
                Err(error) => heard.unreachable.push(Unreachable {
                    replica: address.to_string(),
                    error: format!("{error:#}"),
                }),
            }
        }
        heard
    }

    async fn ask_one<A: Answer>(
        &self,
        address: SocketAddr,
        path: &str,
    ) -> anyhow::Result<Option<A>> {
        let url = format!("http://{address}{path}&{LOCAL}=true");
        let response = self.client.get(url).send().await?;
        if response.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let body = response.error_for_status()?.bytes().await?;
        Ok(Some(
            serde_json::from_slice(&body).context("read its answer")?,
        ))
    }
}
