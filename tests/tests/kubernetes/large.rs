//! A start on a large cluster.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::kubernetes::Cluster;
use tokio::{task::JoinSet, time::Instant};

use super::{
    istiod,
    objects::{pod, service, slice},
};

const SERVICES: usize = 2_000;
const PODS: usize = 10_000;
/// How many objects are made at once.
const WRITERS: usize = 16;

/// Lists 2,000 Services and 10,000 Pods at its start: time and memory are printed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn a_large_cluster_is_read_at_the_start() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.namespace("a").await?;
    let made = Instant::now();
    fill(&cluster).await?;
    println!(
        "made {SERVICES} services and {PODS} pods in {:?}",
        made.elapsed()
    );
    let folder = tempfile::tempdir()?;
    let begun = Instant::now();
    let istiod = istiod(folder.path(), "istiod", &cluster.kubeconfig(), &[]).await?;
    let elapsed = begun.elapsed();
    let text = istiod.monitoring("/debug/endpointShardz").await?;
    let shards: Value = serde_json::from_str(&text)?;
    let hosts = shards.as_object().context("no object")?.len();
    let status = std::fs::read_to_string(format!("/proc/{}/status", istiod.pid()?))?;
    let resident = status.lines().find(|line| line.starts_with("VmRSS"));
    println!(
        "ready after {elapsed:?} with endpoints of {hosts} hosts; {}",
        resident.unwrap_or_default()
    );
    ensure!(hosts == SERVICES, "{hosts} hosts have endpoints");
    ensure!(istiod.counter("pilot_k8s_endpoints_pending_pod").await? == 0);
    ensure!(
        elapsed < Duration::from_mins(1),
        "the start took {elapsed:?}"
    );
    Ok(())
}

fn address(pod: usize) -> String {
    format!(
        "10.{}.{}.{}",
        1 + pod / 62_500,
        pod / 250 % 250,
        1 + pod % 250
    )
}

async fn fill(cluster: &Cluster) -> Result<()> {
    let client = cluster.client().await?;
    let mut tasks = JoinSet::new();
    for writer in 0..WRITERS {
        let client = client.clone();
        tasks.spawn(async move {
            for number in (writer..SERVICES).step_by(WRITERS) {
                let name = format!("s{number}");
                post(
                    &client,
                    "/api/v1/namespaces/a/services",
                    &service(&name, 80),
                )
                .await?;
                let pods: Vec<(String, String)> = (number..PODS)
                    .step_by(SERVICES)
                    .map(|pod| (format!("p{pod}"), address(pod)))
                    .collect();
                for (pod_name, address) in &pods {
                    let mut object = pod(pod_name, &name, address);
                    let status = object["status"].take();
                    post(&client, "/api/v1/namespaces/a/pods", &object).await?;
                    object["status"] = status;
                    let path = format!("/api/v1/namespaces/a/pods/{pod_name}/status");
                    send(
                        &client,
                        hyper::Request::patch(path),
                        &serde_json::json!({"status": object["status"]}),
                    )
                    .await?;
                }
                let listed: Vec<(&str, &str)> = pods.iter().map(|(n, a)| (&**n, &**a)).collect();
                let path = "/apis/discovery.k8s.io/v1/namespaces/a/endpointslices";
                post(&client, path, &slice(&name, &name, &listed)).await?;
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn post(client: &kube::Client, path: &str, object: &Value) -> Result<()> {
    send(client, hyper::Request::post(path), object).await
}

async fn send(
    client: &kube::Client,
    request: hyper::http::request::Builder,
    object: &Value,
) -> Result<()> {
    let patch = request
        .method_ref()
        .is_some_and(|m| m == hyper::Method::PATCH);
    let kind = if patch {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let request = request
        .header("content-type", kind)
        .body(object.to_string().into_bytes())?;
    client.request_text(request).await?;
    Ok(())
}
