//! `cargo xtask test`: every check, from the quickest to the slowest.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};

use crate::{deny, policies, root};

/// One check: what it is, and the arguments of cargo.
struct Step {
    name: &'static str,
    cargo: &'static [&'static str],
}

/// All checks. None names packages: the features of dependencies are then those of the whole workspace
/// in every step, and nothing is compiled twice.
const STEPS: [Step; 3] = [
    Step {
        name: "format",
        cargo: &["fmt", "--all", "--check"],
    },
    Step {
        name: "lints, warnings are errors",
        cargo: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
    },
    Step {
        name: "unit tests, properties, conformance corpus",
        cargo: &["test", "--workspace", "--quiet"],
    },
];

const ENVOY: Step = Step {
    name: "end to end with real Envoys, openssl and a browser",
    // Two at a time: some of them measure nothing but wait for other processes.
    cargo: &[
        "test",
        "--workspace",
        "--test",
        "envoy",
        "--test",
        "gateways",
        "--test",
        "identities",
        "--test",
        "openssl",
        "--test",
        "status_page",
        "--test",
        "waypoints",
        "--",
        "--ignored",
        "--test-threads",
        "2",
    ],
};

const KUBERNETES: Step = Step {
    name: "a real API server: what is read and written, and the manifests",
    // The programs of Go are built by whichever test comes first; the others wait for it.
    cargo: &[
        "test",
        "--workspace",
        "--test",
        "kubernetes",
        "--test",
        "kubernetes_writes",
        "--test",
        "kubernetes_gateways",
        "--test",
        "manifests",
        "--",
        "--ignored",
        "--test-threads",
        "2",
    ],
};

const LINKED: &str = "what is linked: licences, sources, known vulnerabilities";
const POLICIES: &str = "throttle policies swapped when built";

/// Runs all checks and stops at the first that fails.
pub(crate) fn run(quick: bool) -> anyhow::Result<()> {
    let mut done = Vec::new();
    if !quick {
        eprintln!("== {LINKED}: cargo xtask deny");
        done.push((LINKED, timed(deny::check)?));
    }
    for step in &STEPS {
        done.push((step.name, step.run()?));
    }
    if !quick {
        for step in [&ENVOY, &KUBERNETES] {
            done.push((step.name, step.run()?));
        }
        eprintln!("== {POLICIES}: cargo xtask policies");
        done.push((POLICIES, timed(policies::check)?));
    }
    eprintln!("\nEverything passes:");
    for (name, elapsed) in &done {
        eprintln!("  {:6.1} s  {name}", elapsed.as_secs_f64());
    }
    let all: Duration = done.iter().map(|(_, elapsed)| *elapsed).sum();
    eprintln!("  {:6.1} s  in all", all.as_secs_f64());
    if quick {
        eprintln!(
            "Left out by --quick: {LINKED}; {}; {}; {POLICIES} (`cargo xtask test` runs them)",
            ENVOY.name, KUBERNETES.name
        );
    }
    Ok(())
}

impl Step {
    fn run(&self) -> anyhow::Result<Duration> {
        eprintln!("== {}: cargo {}", self.name, self.cargo.join(" "));
        timed(|| {
            let status = Command::new(env!("CARGO"))
                .args(self.cargo)
                .current_dir(root::workspace())
                .stdin(Stdio::null())
                .status()
                .context("run cargo")?;
            if !status.success() {
                bail!(
                    "{} failed; alone it runs by `cargo {}`",
                    self.name,
                    self.cargo.join(" ")
                );
            }
            Ok(())
        })
    }
}

/// How long a check takes that passes.
fn timed(check: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    #[expect(clippy::disallowed_methods, reason = "a command line tool")]
    let begun = Instant::now();
    check()?;
    Ok(begun.elapsed())
}
