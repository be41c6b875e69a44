//! Following the few objects that a controller alone needs: listed, then watched.

use std::{fmt::Debug, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api,
    api::{ListParams, WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

/// The first wait after a failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Objects that are listed at once.
const PAGE: u32 = 500;

/// What is known of the objects.
#[derive(Clone, PartialEq, Debug)]
pub enum Seen<K> {
    /// These, and no others.
    All(Vec<K>),
    /// One is new, or has changed.
    Put(K),
    /// One is gone.
    Gone(K),
}

/// Follows the objects that `which` selects, by name or by label, in one namespace or in all, until nobody
/// listens or it is told to stop.
pub async fn follow<K>(
    api: Api<K>,
    which: &ListParams,
    seen: mpsc::Sender<Seen<K>>,
    stop: CancellationToken,
) where
    K: Clone + Debug + DeserializeOwned + kube::Resource + Send + 'static,
{
    let mut wait = FIRST_WAIT;
    loop {
        let round = async {
            let version = list(&api, which, &seen).await?;
            watch(&api, which, version, &seen, &mut wait).await
        };
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = round => ended,
        };
        match ended {
            Ok(()) if seen.is_closed() => return,
            // The API server does not remember so far back: listed anew, at once.
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(?which, %error, "objects cannot be followed for now");
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = sleep(wait) => wait = (wait * 2).min(LONGEST_WAIT),
                }
            }
        }
    }
}

/// Lists all, and returns the version to watch from.
async fn list<K>(
    api: &Api<K>,
    which: &ListParams,
    seen: &mpsc::Sender<Seen<K>>,
) -> Result<String, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut parameters = which.clone().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        all.extend(page.items);
        let more = page.metadata.continue_.filter(|token| !token.is_empty());
        let Some(token) = more else {
            // Nobody listens any more when the process stops.
            seen.send(Seen::All(all)).await.ok();
            return Ok(page.metadata.resource_version.unwrap_or_default());
        };
        parameters = parameters.continue_token(&token);
    }
}

/// Watches until the API server does not remember the version, or nobody listens.
async fn watch<K>(
    api: &Api<K>,
    which: &ListParams,
    mut version: String,
    seen: &mpsc::Sender<Seen<K>>,
    wait: &mut Duration,
) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned + kube::Resource,
{
    let parameters = WatchParams {
        field_selector: which.field_selector.clone(),
        label_selector: which.label_selector.clone(),
        ..WatchParams::default()
    };
    loop {
        let mut events = api.watch(&parameters, &version).await?.boxed();
        while let Some(event) = events.next().await {
            let event = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => Seen::Put(object),
                WatchEvent::Deleted(object) => Seen::Gone(object),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == 410 => return Ok(()),
                WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
            };
            *wait = FIRST_WAIT;
            if let Seen::Put(object) | Seen::Gone(object) = &event {
                version = object.meta().resource_version.clone().unwrap_or(version);
            }
            if seen.send(event).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Selects the objects of one name.
pub fn named(name: &str) -> ListParams {
    ListParams::default().fields(&format!("metadata.name={name}"))
}
