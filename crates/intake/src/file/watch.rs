//! The driver of the file source: the system's notices in, batches of changes out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use notify::{
    EventKind, RecursiveMode, Watcher,
    event::{ModifyKind, RenameMode},
};
use tokio::{sync::mpsc, time::timeout};

use super::{FileError, FileSource, Report};
use crate::intake::Change;

/// Quiet time after the last notice before files are read: writers have finished by then.
const QUIET: Duration = Duration::from_millis(50);

/// Quiet time after a file has been moved to its place, which is whole then: those that come together are
/// read together.
const QUIET_WHOLE: Duration = Duration::from_millis(2);

/// Most quiet times waited for while notices keep coming.
const MAX_ROUNDS: u32 = 20;

/// What one look at the disk brought.
#[derive(Debug)]
pub struct Batch {
    /// What changed.
    pub changes: Vec<Change>,
    /// What is loaded now.
    pub report: Report,
}

/// Tells whether an event says that a file is in its place, whole: it was moved there.
fn is_whole(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Modify(ModifyKind::Name(RenameMode::To | RenameMode::Both))
    )
}

impl FileSource {
    /// Starts watching; the returned future sends a batch for every change on disk until the receiver
    /// is dropped. What changed since the last [`FileSource::refresh`] is sent at once.
    ///
    /// # Errors
    /// [`FileError::Watch`] when the system cannot watch the paths.
    pub fn watch(
        self,
        batches: mpsc::Sender<Batch>,
    ) -> Result<impl Future<Output = ()> + Send, FileError> {
        // One waiting notice is enough: each look at the disk sees everything before it.
        let (notices, mut noticed) = mpsc::channel(1);
        // Somebody writes: what is there may be a part.
        let writes = Arc::new(AtomicBool::new(false));
        let written = writes.clone();
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                if event
                    .as_ref()
                    .map_or(true, |e| !matches!(e.kind, EventKind::Access(_)))
                {
                    if !event.as_ref().is_ok_and(|event| is_whole(event.kind)) {
                        writes.store(true, Ordering::Release);
                    }
                    // Full means that a notice waits already.
                    let _ = notices.try_send(());
                }
            })?;
        for (path, whole) in self.watched() {
            let mode = if whole {
                RecursiveMode::Recursive
            } else {
                RecursiveMode::NonRecursive
            };
            watcher.watch(&path, mode)?;
        }
        Ok(async move {
            let _watcher = watcher;
            let mut known = self.report();
            let mut source = self;
            loop {
                let look = tokio::task::spawn_blocking(move || {
                    let changes = source.refresh();
                    let report = source.report();
                    (source, changes, report)
                });
                let Ok((returned, changes, report)) = look.await else {
                    return;
                };
                source = returned;
                if !changes.is_empty() || report != known {
                    known = report.clone();
                    if batches.send(Batch { changes, report }).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    notice = noticed.recv() => if notice.is_none() { return },
                    () = batches.closed() => return,
                }
                let mut rounds = 0;
                let mut quiet = QUIET_WHOLE;
                loop {
                    if written.swap(false, Ordering::AcqRel) {
                        quiet = QUIET;
                    }
                    if rounds == MAX_ROUNDS || timeout(quiet, noticed.recv()).await.is_err() {
                        break;
                    }
                    rounds += 1;
                }
            }
        })
    }
}
