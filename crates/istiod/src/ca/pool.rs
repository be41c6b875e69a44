//! Threads that sign: few, in turn for those who ask, and resting in between.
//!
//! Signing costs CPU. A thousand proxies that start at once must not take it from pushes, and one
//! identity must not keep the others waiting.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::Duration,
};

use model::SpiffeId;
use parking_lot::{Condvar, Mutex};
use security::FairQueue;
use tokio::sync::oneshot;
use tonic::Status;

use super::messages::{IstioCertificateRequest, IstioCertificateResponse};

/// Threads. One issues about a thousand certificates a second, resting half of the time.
const THREADS: usize = 1;
/// Requests that may wait, of everybody: about five seconds of work, so that a caller gets its answer
/// before it gives up. A request may have 16 KiB, all together 80 MiB.
const WAITING: usize = 5000;
/// Requests that may wait, of one identity: the replicas of a large deployment at its start.
const WAITING_EACH: usize = 1000;

type Answer = Result<IstioCertificateResponse, Status>;

/// Who waits for a certificate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Owner {
    /// The caller.
    pub(super) identity: SpiffeId,
    /// The pod of an agent that asks for others: agents of all nodes have one identity.
    pub(super) agent: Option<String>,
}

struct Job {
    identity: SpiffeId,
    request: IstioCertificateRequest,
    answer: oneshot::Sender<Answer>,
}

struct Queue {
    jobs: FairQueue<Owner, Job>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Rings when there is a job, or no more will come.
    wake: Condvar,
}

/// A pool of threads that sign. Dropping it ends them when they have finished what they do.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("waiting", &self.shared.queue.lock().jobs.len())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts the threads.
    pub(super) fn start(
        sign: impl Fn(&SpiffeId, &IstioCertificateRequest) -> Answer + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                jobs: FairQueue::new(WAITING, WAITING_EACH),
                closed: false,
            }),
            wake: Condvar::new(),
        });
        let sign = Arc::new(sign);
        for _ in 0..THREADS {
            let (shared, sign) = (shared.clone(), sign.clone());
            thread::Builder::new()
                .name("signing".to_owned())
                .spawn(move || work(&shared, &*sign))?;
        }
        Ok(Self { shared })
    }

    /// Waits for the turn of an owner's request for a certificate of `identity`, and for its answer.
    pub(super) async fn sign(
        &self,
        owner: Owner,
        identity: SpiffeId,
        request: IstioCertificateRequest,
    ) -> Answer {
        let (answer, answered) = oneshot::channel();
        let job = Job {
            identity,
            request,
            answer,
        };
        let pushed = self.shared.queue.lock().jobs.push(owner, job);
        pushed.map_err(|error| Status::resource_exhausted(error.to_string()))?;
        self.shared.wake.notify_one();
        answered
            .await
            .unwrap_or_else(|_| Err(Status::internal("signing failed")))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

fn work(shared: &Shared, sign: &dyn Fn(&SpiffeId, &IstioCertificateRequest) -> Answer) {
    let mut rest = Duration::ZERO;
    loop {
        let job = {
            let mut queue = shared.queue.lock();
            // As long as the last one took: never more than half of a core.
            shared
                .wake
                .wait_while_for(&mut queue, |queue| !queue.closed, rest);
            shared
                .wake
                .wait_while(&mut queue, |queue| queue.jobs.is_empty() && !queue.closed);
            if queue.closed {
                return;
            }
            queue.jobs.pop()
        };
        let Some(job) = job else { continue };
        // Who has gone needs no certificate.
        if job.answer.is_closed() {
            rest = Duration::ZERO;
            continue;
        }
        #[expect(clippy::disallowed_methods, reason = "work is measured where it runs")]
        let begun = std::time::Instant::now();
        let signing = AssertUnwindSafe(|| sign(&job.identity, &job.request));
        let answer = catch_unwind(signing).unwrap_or_else(|_| {
            tracing::error!(identity = %job.identity, "signing panicked");
            Err(Status::internal("signing failed"))
        });
        rest = begun.elapsed();
        // Who has gone meanwhile does not hear it.
        job.answer.send(answer).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::task::JoinSet;

    use super::*;

    fn id(account: &str) -> SpiffeId {
        SpiffeId::new("cluster.local", "ns", account).unwrap()
    }

    async fn ask(pool: &Pool, account: &str) -> Answer {
        let owner = Owner {
            identity: id(account),
            agent: None,
        };
        let request = IstioCertificateRequest::default();
        pool.sign(owner, id(account), request).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_burst_of_one_identity_does_not_delay_another() {
        let (go, gate) = mpsc::channel::<()>();
        let (done, order) = mpsc::channel();
        let gate = Mutex::new(gate);
        let pool = Pool::start(move |identity, _| {
            gate.lock().recv().ok();
            done.send(identity.service_account().to_string()).unwrap();
            Ok(IstioCertificateResponse::default())
        })
        .unwrap();
        let pool = Arc::new(pool);
        let mut tasks = JoinSet::new();
        let asking = |account: &'static str| {
            let pool = pool.clone();
            async move { ask(&pool, account).await }
        };
        for _ in 0..20 {
            tasks.spawn(asking("noisy"));
        }
        while pool.shared.queue.lock().jobs.len() < 19 {
            tokio::task::yield_now().await;
        }
        tasks.spawn(asking("quiet"));
        while pool.shared.queue.lock().jobs.len() < 20 {
            tokio::task::yield_now().await;
        }
        for _ in 0..21 {
            go.send(()).unwrap();
        }
        while let Some(answer) = tasks.join_next().await {
            answer.unwrap().unwrap();
        }
        let order: Vec<String> = order.try_iter().collect();
        let place = order.iter().position(|name| name == "quiet").unwrap();
        assert!(place <= 2, "{order:?}");
    }

    #[tokio::test]
    async fn a_signer_that_panics_is_an_error_for_its_caller() {
        let pool = Pool::start(|_, _| panic!("broken")).unwrap();
        let answer = ask(&pool, "a").await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::Internal);
        // And for the next one.
        let answer = ask(&pool, "b").await;
        assert_eq!(answer.unwrap_err().code(), tonic::Code::Internal);
    }
}
