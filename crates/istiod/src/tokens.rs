//! Whose tokens prove who a caller is: those of issuers in a file and of `JWT_RULE`, and those that the
//! cluster knows.

mod issuers;

use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::bail;
use intake::{Change, keys::KeySources};
use security::{Holder, TokenReview, Unreviewed};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http;

use self::issuers::Issuers;
use crate::{settings::security::IssuerRule, sources::FetchKeys};

/// Time between two looks at files.
const LOOK: Duration = Duration::from_secs(2);
/// Answers of issuers that may wait to be taken over.
const ANSWERS: usize = 4;

/// All whose tokens are accepted. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    issuers: Option<Arc<Issuers>>,
    reviewers: Arc<[Arc<dyn TokenReview>]>,
}

/// Why nobody is behind a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nobody {
    /// Nobody vouches for it.
    Refused,
    /// Whoever might does not answer.
    Unavailable,
}

impl Tokens {
    /// Reads the issuers, if there is a file or a rule; `cluster` is asked last. Who names no audiences
    /// of their own has `audiences`.
    ///
    /// # Errors
    /// When the file, or one that it names, cannot be used.
    pub(crate) fn open(
        file: Option<&Path>,
        rule: Option<&IssuerRule>,
        audiences: &[String],
        trust_domain: &str,
        cluster: Option<Arc<dyn TokenReview>>,
    ) -> anyhow::Result<Self> {
        let issuers = if file.is_some() || rule.is_some() {
            let issuers = Issuers::open(file, rule, audiences, trust_domain)?;
            Some(Arc::new(issuers))
        } else {
            None
        };
        let known = issuers.iter().cloned();
        let known = known.map(|issuers| issuers as Arc<dyn TokenReview>);
        Ok(Self {
            reviewers: known.chain(cluster).collect(),
            issuers,
        })
    }

    /// Asks just these.
    #[cfg(test)]
    pub(crate) fn of(reviewers: impl IntoIterator<Item = Arc<dyn TokenReview>>) -> Self {
        Self {
            issuers: None,
            reviewers: reviewers.into_iter().collect(),
        }
    }

    /// Says in the log whose tokens are accepted.
    pub(crate) fn report(&self, audiences: &[String]) {
        if let Some(issuers) = &self.issuers {
            tracing::info!(issuers = ?issuers.names(), "tokens are accepted");
        }
        if self.reviewers.len() > usize::from(self.issuers.is_some()) {
            tracing::info!(?audiences, "tokens are accepted that the API server knows");
        } else if self.issuers.is_none() {
            tracing::info!("no tokens are accepted: there is no cluster and no --jwt-issuers");
        }
    }

    /// Returns who is behind a token; says in the log why it is nobody's.
    ///
    /// # Errors
    /// When nobody vouches for it, or somebody that has to be asked does not answer.
    pub(crate) async fn identify(
        &self,
        token: &str,
        address: Option<SocketAddr>,
        now: SystemTime,
    ) -> Result<Holder, Nobody> {
        for reviewer in &*self.reviewers {
            match reviewer.review(token, now).await {
                Ok(holder) => return Ok(holder),
                Err(Unreviewed::Unavailable(reason)) => {
                    tracing::warn!(?address, reason, "a token cannot be reviewed");
                    return Err(Nobody::Unavailable);
                }
                Err(error) => tracing::info!(?address, %error, "a token is refused"),
            }
        }
        Err(Nobody::Refused)
    }

    /// Starts to follow the file of issuers, the mesh's trust domain, and keys that have to be fetched.
    pub(crate) fn follow(
        &self,
        trust_domain: impl Fn() -> String + Send + 'static,
        keys: FetchKeys,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) {
        let Some(issuers) = self.issuers.clone() else {
            return;
        };
        let (sources, wanted) = watch::channel(Arc::new(issuers.sources()));
        let (sender, answers) = mpsc::channel(ANSWERS);
        keys.spawn(wanted, sender, tasks, stop);
        let stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = take_over(issuers, trust_domain, sources, answers) => ended,
            }
        });
    }
}

/// The token that a call shows under one of these schemes, given in lower case.
pub(crate) fn of_call<'a>(headers: &'a http::HeaderMap, schemes: &[&str]) -> Option<&'a str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let known = schemes.contains(&&*scheme.to_ascii_lowercase());
    (known && !token.is_empty()).then_some(token)
}

/// Takes over what files say and what issuers answer, as long as there are both.
async fn take_over(
    issuers: Arc<Issuers>,
    trust_domain: impl Fn() -> String,
    sources: watch::Sender<Arc<KeySources>>,
    mut answers: mpsc::Receiver<Vec<Change>>,
) -> anyhow::Result<()> {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            answer = answers.recv() => {
                let Some(changes) = answer else {
                    bail!("nobody fetches the keys of token issuers any more");
                };
                for change in changes {
                    if let Change::Keys { source, keys } = change {
                        issuers.learn(&source, keys.as_deref());
                    }
                }
            }
            _ = looks.tick() => {
                let (read, domain) = (issuers.clone(), trust_domain());
                let look = tokio::task::spawn_blocking(move || read.reload(&domain));
                match look.await {
                    Ok(Ok(true)) => {
                        tracing::info!(issuers = ?issuers.names(), "the token issuers are others");
                        let now = Arc::new(issuers.sources());
                        sources.send_if_modified(|known| {
                            let modified = *known != now;
                            *known = now;
                            modified
                        });
                    }
                    Ok(Ok(false)) => {}
                    Ok(Err(error)) => {
                        let error = format_args!("{error:#}").to_string();
                        tracing::error!(error, "a change of token issuers is not taken over");
                    }
                    Err(error) => tracing::error!(%error, "a look at the token issuers failed"),
                }
            }
        }
    }
}
