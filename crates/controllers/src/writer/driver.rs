//! Applies what [`Writes`] says is to be written.

use kube::Client;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Outcome, Part, Target, Wanted, Write, Writes};

/// The owner of the fields that are written.
pub const FIELD_OWNER: &str = "istiod";
/// The owner of conditions: what one owner applies replaces all that it applied before.
const CONDITION_OWNER: &str = "istiod-distribution";
/// Writes at once: enough to hide the way to the API server, few enough to leave it to others.
const WRITES: usize = 8;

/// What to do about objects.
#[derive(Clone, PartialEq, Debug)]
pub enum Order {
    /// They should be this.
    Want(Vec<Wanted>),
    /// They are nobody's concern any more.
    Forget(Vec<Target>),
    /// Nothing is to be written any more.
    Clear,
}

/// Carries out orders until there are none any more, or it is told to stop.
pub async fn run(client: Client, mut orders: mpsc::Receiver<Order>, stop: CancellationToken) {
    let mut writes = Writes::new(WRITES);
    let mut flying = JoinSet::new();
    loop {
        while let Some(write) = writes.begin(Instant::now()) {
            let client = client.clone();
            flying.spawn(async move {
                let outcome = apply(&client, &write).await;
                (write.target, outcome)
            });
        }
        let wake = writes.wake();
        tokio::select! {
            () = stop.cancelled() => return,
            order = orders.recv() => match order {
                None => return,
                Some(Order::Clear) => writes.clear(),
                Some(Order::Forget(targets)) => targets.iter().for_each(|t| writes.forget(t)),
                Some(Order::Want(wanted)) => {
                    for wanted in wanted {
                        writes.want(wanted);
                    }
                }
            },
            Some(ended) = flying.join_next() => match ended {
                Ok((target, outcome)) => writes.end(Instant::now(), &target, &outcome),
                Err(error) => tracing::error!(%error, "a write ended badly"),
            },
            () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

/// Applies one object.
async fn apply(client: &Client, write: &Write) -> Outcome {
    const APPLY: &str = "application/apply-patch+yaml";
    let Write { target, object } = write;
    let (query, patch) = match target.part {
        Part::Whole | Part::Status | Part::Gate => {
            (format!("fieldManager={FIELD_OWNER}&force=true"), APPLY)
        }
        Part::Conditions => (format!("fieldManager={CONDITION_OWNER}&force=true"), APPLY),
        Part::Metadata => (
            format!("fieldManager={FIELD_OWNER}"),
            "application/strategic-merge-patch+json",
        ),
    };
    let path = format!("{}?{query}", target.path());
    let request = http::Request::patch(path)
        .header(http::header::CONTENT_TYPE, patch)
        .body(object.to_string().into_bytes());
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, object = %target.path(), "an object whose name is no part of a path");
            return Outcome::Overtaken;
        }
    };
    match client.request_text(request).await {
        Ok(_) => {
            tracing::info!(object = %target.path(), "written");
            Outcome::Done
        }
        // Of another version, or gone.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            tracing::debug!(object = %target.path(), reason = %status.message, "not written");
            Outcome::Overtaken
        }
        Err(error) => {
            tracing::warn!(object = %target.path(), %error, "not written, to be tried again");
            Outcome::Failed
        }
    }
}
