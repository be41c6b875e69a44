//! Asks the API server on behalf of an [`Election`].

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Election, Record, Step};

/// A Lease and the one who wants it.
#[derive(Debug)]
struct Candidate {
    api: Api<Lease>,
    name: String,
    clock: fn() -> std::time::SystemTime,
    election: Election,
}

/// Takes part in an election until it is told to stop, and says in `leads` how it stands. A Lease that is
/// held then is given up, so that another one need not wait.
pub async fn follow(
    client: Client,
    namespace: &str,
    name: &str,
    election: Election,
    clock: fn() -> std::time::SystemTime,
    leads: watch::Sender<bool>,
    stop: CancellationToken,
) {
    let mut candidate = Candidate {
        api: Api::namespaced(client, namespace),
        name: name.to_owned(),
        clock,
        election,
    };
    'following: loop {
        let next = Instant::now() + candidate.election.timing().retry;
        let until = candidate.election.leads_until().unwrap_or(next);
        tokio::select! {
            () = stop.cancelled() => break,
            // A question that is not answered in time changes nothing.
            asked = timeout_at(until.min(next), candidate.step()) => {
                let error = match asked {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(_) => Some("no answer in time".to_owned()),
                };
                if let Some(error) = error {
                    tracing::warn!(name, error, "the election cannot go on for now");
                }
            }
        }
        candidate.tell(&leads);
        let until = candidate.election.leads_until().unwrap_or(next);
        for moment in [until.min(next), next] {
            tokio::select! {
                () = stop.cancelled() => break 'following,
                () = sleep_until(moment) => candidate.tell(&leads),
            }
        }
    }
    let led = candidate.election.leads(Instant::now());
    leads.send_replace(false);
    if led {
        let released = timeout_at(
            Instant::now() + candidate.election.timing().retry,
            candidate.release(),
        );
        if let Ok(Err(error)) = released.await {
            tracing::info!(name, %error, "the lease is not given up; it expires");
        }
    }
}

impl Candidate {
    /// Says how it stands, if that has changed.
    fn tell(&self, leads: &watch::Sender<bool>) {
        let now = self.election.leads(Instant::now());
        let (name, identity) = (&self.name, self.election.identity());
        leads.send_if_modified(|known| {
            let modified = *known != now;
            *known = now;
            if modified && now {
                tracing::info!(name, identity, "this replica leads");
            } else if modified {
                tracing::warn!(name, identity, "this replica does not lead any more");
            }
            modified
        });
    }

    /// Reads the Lease, and does about it what is to be done.
    async fn step(&mut self) -> Result<(), kube::Error> {
        let found = self.api.get_opt(&self.name).await?;
        let begun = Instant::now();
        let record = found.as_ref().map(record);
        let parameters = PostParams::default();
        let written = match self.election.on_read(begun, record) {
            Step::Wait => return Ok(()),
            Step::Create => {
                let lease = self.lease(None, 0, true, None);
                self.api.create(&parameters, &lease).await
            }
            Step::Replace {
                version,
                transitions,
                taken,
            } => {
                let lease = self.lease(Some(version), transitions, taken, found);
                self.api.replace(&self.name, &parameters, &lease).await
            }
        };
        match written {
            Ok(_) => {
                self.election.on_written(begun);
                Ok(())
            }
            // Another one was faster: the next look tells who.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives up a Lease that is held.
    async fn release(&mut self) -> Result<(), kube::Error> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(self.election.identity()) {
            return Ok(());
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(self.now());
        let parameters = PostParams::default();
        self.api.replace(&self.name, &parameters, &lease).await?;
        Ok(())
    }

    fn now(&self) -> MicroTime {
        let now = Timestamp::try_from((self.clock)()).unwrap_or(Timestamp::UNIX_EPOCH);
        MicroTime(now)
    }

    fn lease(
        &self,
        version: Option<String>,
        transitions: i32,
        taken: bool,
        found: Option<Lease>,
    ) -> Lease {
        let seconds = self.election.timing().lease.as_secs();
        let mut lease = found.unwrap_or_default();
        lease.metadata = ObjectMeta {
            name: Some(self.name.clone()),
            resource_version: version,
            ..lease.metadata
        };
        let acquired = lease.spec.take().and_then(|spec| spec.acquire_time);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.election.identity().to_owned()),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            acquire_time: acquired.filter(|_| !taken).or_else(|| Some(self.now())),
            renew_time: Some(self.now()),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        });
        lease
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        renewed: spec
            .renew_time
            .map(|time| time.0.to_string())
            .unwrap_or_default(),
        duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}
