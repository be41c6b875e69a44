//! Requests in numbers: who answers, and whether all do.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::{Context as _, Result, bail};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::http::{self, Answer};

/// A request that is sent again and again.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Where it is sent.
    pub address: SocketAddr,
    /// Its host header.
    pub host: String,
    /// Its path.
    pub path: String,
    /// Further headers.
    pub headers: Vec<(String, String)>,
}

impl Ask {
    /// A request for `/` of `host`.
    pub fn new(address: SocketAddr, host: &str) -> Self {
        Self {
            address,
            host: host.to_owned(),
            path: "/".to_owned(),
            headers: Vec::new(),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends it once; the body of a good answer.
    ///
    /// # Errors
    /// When there is no answer or its status is not 200.
    pub async fn once(&self) -> Result<String> {
        let headers: Vec<(&str, &str)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        http::get(self.address, &self.host, &self.path, &headers)
            .await
            .and_then(Answer::ok)
    }

    /// Sends it `count` times, one after the other; how often each answer came.
    ///
    /// # Errors
    /// With the first request that fails.
    pub async fn tally(&self, count: usize) -> Result<BTreeMap<String, usize>> {
        let mut answers = BTreeMap::new();
        for number in 1..=count {
            let answer = self
                .once()
                .await
                .with_context(|| format!("request {number}"))?;
            *answers.entry(answer).or_default() += 1;
        }
        Ok(answers)
    }

    /// Starts to send it without a pause.
    pub fn load(&self) -> Load {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (ask, stopped) = (self.clone(), stop.clone());
        tasks.spawn(async move {
            let mut samples = Vec::new();
            while !stopped.is_cancelled() {
                let answer = ask.once().await.map_err(|error| format!("{error:#}"));
                let at = Instant::now();
                samples.push(Sample { at, answer });
            }
            samples
        });
        Load { stop, tasks }
    }
}

/// One request of a [`Load`].
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the answer came.
    pub at: Instant,
    /// The answer, or what went wrong.
    pub answer: Result<String, String>,
}

/// A request that is being sent without a pause.
#[derive(Debug)]
pub struct Load {
    stop: CancellationToken,
    tasks: JoinSet<Vec<Sample>>,
}

impl Load {
    /// Stops; all requests, also those that have failed.
    ///
    /// # Errors
    /// When the task ended badly.
    pub async fn end(mut self) -> Result<Vec<Sample>> {
        self.stop.cancel();
        self.tasks
            .join_next()
            .await
            .context("a load has one task")?
            .context("the load failed")
    }

    /// Stops; all requests, none of which has failed.
    ///
    /// # Errors
    /// When a request failed: says how many, and the first reasons.
    pub async fn finish(self) -> Result<Vec<Sample>> {
        let samples = self.end().await?;
        let failures: Vec<&String> = samples
            .iter()
            .filter_map(|s| s.answer.as_ref().err())
            .collect();
        if let Some(first) = failures.first() {
            bail!(
                "{} of {} requests failed, the first: {first}",
                failures.len(),
                samples.len()
            );
        }
        Ok(samples)
    }
}
