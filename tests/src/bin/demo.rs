//! `cargo xtask demo`: the bookinfo example with real Envoys, on this machine.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use tests::{
    bookinfo::Bookinfo,
    control_plane::{self, ControlPlane},
    envoy::{self, Envoy},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout},
};

/// Requests by which weights are measured.
const REQUESTS: usize = 300;
/// How far from its weight a share may be, in percent of all requests: five standard deviations.
const TOLERANCE: f64 = 12.0;
/// Longest time that the whole demo may take.
const LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug, Parser)]
#[command(
    name = "demo",
    about = "Runs the bookinfo example with two real Envoys"
)]
struct Cli {
    /// Stays up until it is stopped, and prints the addresses.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(run(&cli)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: &Cli) -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stopped = async {
        tokio::select! { _ = term.recv() => {} _ = interrupt.recv() => {} }
    };
    tokio::pin!(stopped);
    // Whatever ends first, all processes end with what is dropped here.
    let demo = tokio::select! {
        demo = timeout(LIMIT, Demo::show()) => demo.with_context(|| format!("not done within {LIMIT:?}"))??,
        () = &mut stopped => bail!("stopped by a signal"),
    };
    if cli.keep {
        demo.addresses();
        stopped.await;
    }
    demo.stop().await
}

/// Everything that runs.
struct Demo {
    istiod: ControlPlane,
    bookinfo: Bookinfo,
    page: Envoy,
    reviews: Envoy,
    begun: Instant,
}

impl Demo {
    /// Starts everything and shows what it does.
    async fn show() -> Result<Self> {
        println!("1. istiod, built from this repository, and Envoy, fetched by pip");
        control_plane::binary().await?;
        let envoy = envoy::binary().await?;
        println!("   Envoy: {}", envoy.display());
        let begun = Instant::now();
        let mut demo = Self::start(begun).await?;
        demo.weights().await?;
        demo.header().await?;
        demo.service_entry().await?;
        demo.edit().await?;
        demo.verdict().await?;
        Ok(demo)
    }

    async fn start(begun: Instant) -> Result<Self> {
        println!("\n2. the example mesh, on addresses of the loopback interface");
        let bookinfo = Bookinfo::start().await?;
        let config = bookinfo.config();
        println!("   configuration: {}, a copy", config.display());
        let setup = control_plane::Setup::new(config, bookinfo.folder())?;
        let istiod = ControlPlane::start(setup).await?;
        println!(
            "   istiod serves xDS at {} after {}",
            istiod.setup().xds,
            ms(begun)
        );
        let xds = istiod.setup().xds;
        let starting = Instant::now();
        let mut page = Envoy::start(&bookinfo.envoy("productpage", xds, false)).await?;
        let mut reviews = Envoy::start(&bookinfo.envoy("reviews-v2", xds, true)).await?;
        for envoy in [&mut page, &mut reviews] {
            envoy.live().await?;
            envoy
                .holds("listeners", |held| !held.listeners.is_empty())
                .await?;
        }
        println!(
            "   Envoys beside productpage (state of the world) and reviews-v2 (delta) live after {}",
            ms(starting)
        );
        Ok(Self {
            istiod,
            bookinfo,
            page,
            reviews,
            begun,
        })
    }

    /// Shows who answers by weight.
    async fn weights(&self) -> Result<()> {
        println!(
            "\n3. {REQUESTS} users ask for the page: user -> Envoy -> productpage -> Envoy -> reviews"
        );
        let answers = self.bookinfo.page().tally(REQUESTS).await?;
        for (version, weight) in [("reviews-v1", 80.0), ("reviews-v2", 20.0)] {
            let count = of(&answers, version);
            let share = percent(count, REQUESTS);
            println!("   {version}: {count:3} times, {share:4.1} %  (weight {weight})");
            ensure!(
                (share - weight).abs() < TOLERANCE,
                "{version} answered {share:.1} % instead of {weight} %"
            );
        }
        let strange = REQUESTS - of(&answers, "reviews-v1") - of(&answers, "reviews-v2");
        ensure!(strange == 0, "unexpected answers: {answers:?}");
        Ok(())
    }

    /// Shows who answers by header.
    async fn header(&self) -> Result<()> {
        println!("\n4. 50 times Jason, known by the header end-user");
        let answers = self
            .bookinfo
            .page()
            .header("end-user", "jason")
            .tally(50)
            .await?;
        let count = of(&answers, "reviews-v3");
        println!("   reviews-v3: {count:3} times");
        ensure!(count == 50, "expected reviews-v3 only, got {answers:?}");
        Ok(())
    }

    /// Shows a host outside the mesh, and one that nobody declared.
    async fn service_entry(&self) -> Result<()> {
        println!("\n5. a host outside the mesh, declared by a ServiceEntry");
        let answer = self
            .bookinfo
            .service("catalogue.example.com:9080")
            .once()
            .await?;
        println!("   catalogue.example.com: {answer} answers");
        ensure!(
            answer == "catalogue",
            "expected the catalogue, got {answer}"
        );
        Ok(())
    }

    /// Edits a weight and shows that the traffic follows.
    async fn edit(&self) -> Result<()> {
        println!("\n6. an edit of routing.yaml: reviews-v1 gets weight 0, reviews-v2 gets 100");
        let load = self.bookinfo.page().load();
        sleep(Duration::from_millis(500)).await;
        let file = "routing.yaml";
        let edited = Instant::now();
        // One write with both weights, since their sum counts.
        let text = std::fs::read_to_string(self.bookinfo.config().join(file))?
            .replacen("weight: 80", "weight: 0", 1)
            .replacen("weight: 20", "weight: 100", 1);
        self.bookinfo.write(file, &text)?;
        sleep(Duration::from_secs(3)).await;
        let samples = load.finish().await?;
        let old = |answer: &str| answer.contains("reviews-v1");
        let last = samples
            .iter()
            .rfind(|s| s.answer.as_deref().is_ok_and(old))
            .context("reviews-v1 never answered")?;
        let after = samples.iter().filter(|s| s.at > last.at).count();
        ensure!(
            last.at > edited && after > 50,
            "the traffic did not follow within 3 s"
        );
        println!(
            "   the last answer of reviews-v1 came {:.0} ms after the edit; the {after} after it are of reviews-v2",
            (last.at - edited).as_secs_f64() * 1e3
        );
        println!(
            "   {} requests before, while and after it changed: 0 failed",
            samples.len()
        );
        Ok(())
    }

    /// Shows what the proxies and the control plane say of each other.
    async fn verdict(&mut self) -> Result<()> {
        println!("\n7. what they say of each other");
        for (name, envoy) in [("productpage", &self.page), ("reviews-v2", &self.reviews)] {
            let (held, rejections) = (envoy.held().await?, envoy.rejections().await?);
            println!(
                "   Envoy beside {name}: {} clusters, {} listeners, {} routes, {} endpoint lists; {} rejections",
                held.clusters.len(),
                held.listeners.len(),
                held.routes.len(),
                held.endpoints.len(),
                rejections.len()
            );
            ensure!(
                rejections.is_empty() && held.errors.is_empty(),
                "it rejected {rejections:?} {:?}",
                held.errors
            );
        }
        let (pushes, rejects) = (
            self.istiod.counter("pilot_xds_pushes").await?,
            self.istiod.counter("pilot_total_xds_rejects").await?,
        );
        println!("   istiod: {pushes} responses sent, {rejects} rejected");
        ensure!(rejects == 0, "istiod counted {rejects} rejections");
        Ok(())
    }

    fn addresses(&self) {
        let setup = self.istiod.setup();
        let page = self.bookinfo.inbound();
        println!("\nEverything stays up until Ctrl-C:");
        println!("  the page:          curl http://{page}/");
        println!("  as Jason:          curl -H 'end-user: jason' http://{page}/");
        println!(
            "  as productpage:    curl -H 'host: reviews:9080' http://{}/",
            self.bookinfo.outbound()
        );
        println!(
            "  configuration:     {}  (edit it)",
            self.bookinfo.config().display()
        );
        println!("  istiod:            xDS {}", setup.xds);
        println!("                     http://{}/ready", setup.http);
        println!(
            "                     http://{}/metrics, /version, /debug/syncz",
            setup.monitoring
        );
        println!(
            "  Envoy admin:       http://{}/ beside productpage",
            self.page.admin_address()
        );
        println!(
            "                     http://{}/ beside reviews-v2",
            self.reviews.admin_address()
        );
        println!(
            "  logs:              {}/*.log",
            self.bookinfo.folder().display()
        );
    }

    async fn stop(mut self) -> Result<()> {
        let status = self.istiod.terminate(Duration::from_secs(20)).await?;
        ensure!(status.success(), "istiod ended with {status}");
        self.page.kill().await?;
        self.reviews.kill().await?;
        println!(
            "\nDone in {}; everything is stopped.",
            seconds(self.begun.elapsed())
        );
        Ok(())
    }
}

/// How many answers name a workload.
fn of(answers: &BTreeMap<String, usize>, workload: &str) -> usize {
    answers
        .iter()
        .filter(|(answer, _)| answer.split(' ').any(|part| part == workload))
        .map(|(_, count)| count)
        .sum()
}

#[expect(clippy::cast_precision_loss, reason = "hundreds")]
fn percent(count: usize, all: usize) -> f64 {
    100.0 * count as f64 / all as f64
}

fn ms(since: Instant) -> String {
    format!("{:.0} ms", since.elapsed().as_secs_f64() * 1e3)
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
