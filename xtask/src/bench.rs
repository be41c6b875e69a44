//! Benchmarks of large meshes beside what the Go istiod reaches on them, and counters of small ones.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};

use crate::root;

/// Medians of the Go istiod in milliseconds, by mesh and figure; empty where nobody measured.
const GO: &str = include_str!("bench/go.tsv");
/// Writes the meshes that the Go istiod was measured on.
const SCRIPT: &str = "../shared/bench/mesh.py";

/// Runs the benchmarks on every mesh that the table of figures names, or on those whose names start
/// with one of `wanted`, and prints both.
pub(crate) fn report(wanted: &[String]) -> anyhow::Result<()> {
    let mut meshes: Vec<&str> = GO.lines().filter_map(|l| l.split('\t').next()).collect();
    meshes.dedup();
    meshes.retain(|mesh| wanted.is_empty() || wanted.iter().any(|w| mesh.starts_with(&**w)));
    ensure!(!meshes.is_empty(), "no mesh of that name");
    for mesh in meshes {
        let ours = measure(mesh).with_context(|| format!("measure {mesh}"))?;
        print(mesh, &ours);
    }
    Ok(())
}

/// Compares the counters of fixed scenarios with those that are checked in, or rewrites these.
pub(crate) fn smoke(update: bool) -> anyhow::Result<()> {
    let mut arguments = vec!["test", "--quiet", "-p", "generators", "--test", "cost"];
    if update {
        arguments.extend(["--", "--update"]);
    }
    cargo(&arguments).map(drop)
}

/// The lines that the benchmark prints: a figure, a tab, its values.
fn measure(mesh: &str) -> anyhow::Result<Vec<String>> {
    let file = written(mesh)?;
    let mesh = file.as_deref().and_then(Path::to_str).map_or_else(
        || mesh.split(' ').map(str::to_owned).collect(),
        |file| vec![file.to_owned()],
    );
    let mut arguments = vec![
        "bench",
        "--quiet",
        // Not of one package: the features of dependencies are then those of everything else that is built.
        "--workspace",
        "--bench",
        "scale",
        "--",
    ];
    arguments.extend(mesh.iter().map(String::as_str));
    let output = cargo(&arguments)?;
    Ok(output.lines().map(str::to_owned).collect())
}

/// Writes a mesh by the script that the Go istiod's was written by; `None` where the script is not
/// there, or does not know the mesh.
fn written(mesh: &str) -> anyhow::Result<Option<PathBuf>> {
    let script = root::workspace().join(SCRIPT);
    let numbers: Vec<&str> = mesh.split(' ').skip(1).collect();
    let parts = match (mesh.split(' ').next(), &numbers[..]) {
        (Some("se-we"), [services]) => vec![vec!["se-we", services]],
        (Some(kind @ ("routes" | "filters")), [services, more]) => {
            vec![vec!["se-we", services], vec![kind, more]]
        }
        (Some("k8s"), [services, pods]) => vec![vec!["k8s", services, pods]],
        _ => return Ok(None),
    };
    if !script.exists() {
        return Ok(None);
    }
    let folder = root::workspace().join("target/bench");
    fs::create_dir_all(&folder).context("make a folder for meshes")?;
    let path = folder.join(format!("{}.yaml", mesh.replace(' ', "-")));
    let file = File::create(&path).with_context(|| format!("write {}", path.display()))?;
    for part in parts {
        let out = file.try_clone().context("write two parts of a mesh")?;
        let status = Command::new("python3")
            .arg(&script)
            .args(part)
            .stdout(out)
            .status();
        ensure!(status.context("run python3")?.success(), "{SCRIPT} failed");
    }
    Ok(Some(path))
}

#[expect(clippy::print_stdout, reason = "the report")]
fn print(mesh: &str, ours: &[String]) {
    let go: BTreeMap<&str, &str> = GO
        .lines()
        .filter_map(|line| {
            line.strip_prefix(mesh)?
                .strip_prefix('\t')?
                .split_once('\t')
        })
        .collect();
    println!(
        "{mesh}\n{:48}{:>12}{:>12}{:>8}",
        "  milliseconds", "ours", "Go", "ratio"
    );
    for line in ours {
        let mut fields = line.split('\t');
        let (Some(what), Some(value)) = (fields.next(), fields.next()) else {
            continue;
        };
        let go = go.get(what).copied().unwrap_or_default();
        let ratio = match (value.parse::<f64>(), go.parse::<f64>()) {
            (Ok(ours), Ok(go)) => format!("{:.1}", go / ours),
            _ => String::new(),
        };
        println!("  {what:46}{value:>12}{go:>12}{ratio:>8}");
    }
}

/// Runs cargo, showing what it says and returning what it prints.
fn cargo(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(root::workspace())
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("run cargo")?;
    ensure!(
        output.status.success(),
        "cargo {} failed",
        arguments.join(" ")
    );
    String::from_utf8(output.stdout).context("read what cargo printed")
}
