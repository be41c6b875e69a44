//! Measures what canonical order costs per resource of a recorded base:
//! `cargo run --release -p envoy-json --example canonical_cost FILE`.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement"
)]

use std::{hint::black_box, time::Instant};

use envoy_json::{Unknown, encode, json};
use serde_json::Value;

const ROUNDS: u32 = 20000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("name a file of recorded resources")?;
    let file: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let start = Instant::now();
    encode::canonicalize("envoy.config.cluster.v3.Cluster", &mut []);
    println!("first use: {:?}", start.elapsed());
    for (list, message) in [
        ("clusters", "envoy.config.cluster.v3.Cluster"),
        (
            "endpoints",
            "envoy.config.endpoint.v3.ClusterLoadAssignment",
        ),
        ("listeners", "envoy.config.listener.v3.Listener"),
        ("routes", "envoy.config.route.v3.RouteConfiguration"),
    ] {
        let mut resources = Vec::new();
        for resource in file[list].as_array().into_iter().flatten() {
            resources.push(json::encode(&json::from_json(
                message,
                resource,
                Unknown::Ignore,
            )?));
        }
        let bytes: usize = resources.iter().map(Vec::len).sum();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            for resource in &mut resources {
                encode::canonicalize(message, black_box(resource));
            }
        }
        let each = start.elapsed() / ROUNDS / u32::try_from(resources.len().max(1))?;
        println!(
            "{list}: {each:?} for {} bytes",
            bytes / resources.len().max(1)
        );
    }
    Ok(())
}
