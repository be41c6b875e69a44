//! Child processes of tests and demos: they write to a log file and end with their owner.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// Time between two looks at something that is waited for.
const POLL: Duration = Duration::from_millis(20);

/// A child process; dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command whose output goes to the end of the file `log`.
    ///
    /// # Errors
    /// When the program cannot be started or the log not be written.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Waits until `look` finds something, for at most `within`.
    ///
    /// # Errors
    /// When the process ends first or the time is over: with the end of its log and with what `look`
    /// said last.
    pub async fn until<T>(
        &mut self,
        what: &str,
        within: Duration,
        mut look: impl AsyncFnMut() -> Result<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        loop {
            let error = match look().await {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "{} ended ({status}) before {what}; its log ends with:\n{}",
                    self.name,
                    self.log_end()
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "{}: not within {within:?}: {what} ({error:#}); its log ends with:\n{}",
                    self.name,
                    self.log_end()
                );
            }
            sleep(POLL).await;
        }
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// When the process has not ended after `within`.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        self.signal("TERM").await?;
        timeout(within, self.child.wait())
            .await
            .with_context(|| format!("{} did not end within {within:?}", self.name))?
            .with_context(|| format!("wait for {}", self.name))
    }

    /// Stops the process, without ending it.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn stop(&self) -> Result<()> {
        self.signal("STOP").await
    }

    /// Returns the process number.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pid(&self) -> Result<u32> {
        self.child
            .id()
            .with_context(|| format!("{} has ended", self.name))
    }

    /// Kills the process and waits for its end.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(&mut self) -> Result<()> {
        self.child
            .kill()
            .await
            .with_context(|| format!("kill {}", self.name))
    }

    /// Leaves the process running when this one ends.
    pub fn leave_running(self) {
        // Dropping it would kill it. What is forgotten is a few bytes, of a process that ends soon.
        std::mem::forget(self.child);
    }

    /// The whole log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    async fn signal(&self, signal: &str) -> Result<()> {
        let id = self
            .child
            .id()
            .with_context(|| format!("{} has ended already", self.name))?;
        // The shell's own `kill`: not every machine has the program.
        let status = Command::new("sh")
            .args(["-c", &format!("kill -{signal} {id}")])
            .status()
            .await
            .context("run sh")?;
        ensure!(status.success(), "cannot send SIG{signal} to {}", self.name);
        Ok(())
    }
}

/// Waits until `look` succeeds, for at most `within`.
///
/// # Errors
/// What `look` said last, when the time is over.
pub async fn until<T>(
    what: &str,
    within: Duration,
    mut look: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(error) if Instant::now() > deadline => {
                return Err(error).with_context(|| format!("not within {within:?}: {what}"));
            }
            Err(_) => sleep(POLL).await,
        }
    }
}
