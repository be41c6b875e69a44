//! Sources of changes while the process runs.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::bail;
use intake::{
    Batch, Change, FileSource, Finding, Report, Severity,
    keys::{KeySource, KeySources},
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{keys::Fetcher, load, metrics::Metrics, settings::KeySettings};

/// Looks at the disk that may wait to be passed on. Each holds everything that changed before it.
const LOOKS: usize = 1;

/// Starts to look up the host names of network gateways that `names` says are in use.
pub(crate) fn resolve(
    names: watch::Receiver<BTreeSet<Arc<str>>>,
    changes: mpsc::Sender<Vec<Change>>,
    tasks: &mut JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) {
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = intake::resolve::resolve(names, changes) => bail!("nobody takes the addresses of gateways any more"),
            () = stop.cancelled() => Ok(()),
        }
    });
}

/// What fetches the keys of token issuers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FetchKeys {
    fetcher: Fetcher,
    refresh: Duration,
    metrics: Metrics,
}

impl FetchKeys {
    /// # Errors
    /// When there is no HTTP client.
    pub(crate) fn new(settings: &KeySettings, metrics: Metrics) -> anyhow::Result<Self> {
        Ok(Self {
            fetcher: Fetcher::new(settings)?,
            refresh: settings.refresh,
            metrics,
        })
    }

    /// Starts to fetch what `sources` says is in use.
    pub(crate) fn spawn(
        self,
        sources: watch::Receiver<Arc<KeySources>>,
        changes: mpsc::Sender<Vec<Change>>,
        tasks: &mut JoinSet<anyhow::Result<()>>,
        stop: &CancellationToken,
    ) {
        let Self {
            fetcher,
            refresh,
            metrics,
        } = self;
        let fetch = move |source: KeySource| {
            let (fetcher, metrics) = (fetcher.clone(), metrics.clone());
            async move {
                let fetched = fetcher.fetch(&source).await;
                metrics.fetched_keys(fetched.is_ok());
                fetched.map_err(|error| format!("{error:#}"))
            }
        };
        let stop = stop.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = intake::keys::follow(sources, changes, refresh, fetch) => bail!("nobody takes the keys of issuers any more"),
                () = stop.cancelled() => Ok(()),
            }
        });
    }
}

/// Starts to watch files, from where `report` says that they were loaded. With `beside_cluster`,
/// objects that the cluster has, too, are the cluster's.
///
/// # Errors
/// When a path cannot be watched.
pub(crate) fn watch(
    source: FileSource,
    report: &Report,
    beside_cluster: bool,
    changes: mpsc::Sender<Vec<Change>>,
    tasks: &mut JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (sender, mut looks) = mpsc::channel(LOOKS);
    let watching = source.watch(sender)?;
    let mut known = findings(report);
    tasks.spawn(async move {
        watching.await;
        Ok(())
    });
    let stop = stop.clone();
    tasks.spawn(async move {
        loop {
            let look = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                look = looks.recv() => look,
            };
            let Some(Batch {
                changes: changed,
                report,
            }) = look
            else {
                bail!("nothing watches the files any more");
            };
            known = tell(&report, changed.len(), &known);
            let changed = if beside_cluster && !changed.is_empty() {
                vec![Change::Files(changed)]
            } else {
                changed
            };
            if !changed.is_empty() && changes.send(changed).await.is_err() {
                return Ok(());
            }
        }
    });
    Ok(())
}

/// Says what a look at the disk brought, and what is wrong that was not before.
fn tell(report: &Report, changed: usize, known: &BTreeSet<String>) -> BTreeSet<String> {
    for finding in &report.findings {
        if !known.contains(&finding.to_string()) {
            log(finding);
        }
    }
    tracing::info!(
        changed,
        objects = report.object_count(),
        refused = load::refused(report),
        warnings = load::count(report, Severity::Warning),
        "files changed"
    );
    findings(report)
}

/// Logs what there is to say about the input.
pub(crate) fn log(finding: &Finding) {
    match finding.severity {
        Severity::Error => tracing::error!("{finding}"),
        Severity::Warning => tracing::warn!("{finding}"),
        Severity::Ignored => tracing::info!("{finding}"),
    }
}

fn findings(report: &Report) -> BTreeSet<String> {
    report.findings.iter().map(ToString::to_string).collect()
}
