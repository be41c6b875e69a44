//! The chart and its plain rendering: equal, documented, and accepted by a real API server.

use std::{collections::BTreeSet, fs, path::PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser as _;
use serde_json::Value;
use tests::{
    corpus::workspace,
    kubernetes::{Cluster, render},
};

fn manifests() -> PathBuf {
    workspace().join("manifests")
}

fn objects(text: &str) -> Result<Vec<Value>> {
    let objects = intake::yaml_values(text)
        .map_err(|e| anyhow!("line {}, column {}: {}", e.line, e.column, e.reason))?;
    Ok(objects
        .into_iter()
        .filter(|object| !object.is_null())
        .collect())
}

/// Kind and name of every object.
fn names(text: &str) -> Result<BTreeSet<String>> {
    let name = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{} {}",
            text(&object["kind"]),
            text(&object["metadata"]["name"])
        )
    };
    Ok(objects(text)?.iter().map(name).collect())
}

#[test]
fn every_value_is_explained() -> Result<()> {
    let chart = manifests().join("charts/istiod");
    let readme = fs::read_to_string(chart.join("README.md"))?;
    let values = objects(&fs::read_to_string(chart.join("values.yaml"))?)?;
    let values = values[0].as_object().context("values are a mapping")?;
    for name in values.keys() {
        let explained = [format!("`{name}`"), format!("`{name}.")];
        ensure!(
            explained.iter().any(|explained| readme.contains(explained)),
            "README.md of the chart does not explain {name}"
        );
    }
    Ok(())
}

#[test]
fn names_are_istios() -> Result<()> {
    let found = names(&fs::read_to_string(manifests().join("istiod.yaml"))?)?;
    let expected = [
        "ClusterRole istiod-clusterrole-istio-system",
        "ClusterRoleBinding istiod-clusterrole-istio-system",
        "ConfigMap istio",
        "Deployment istiod",
        "HorizontalPodAutoscaler istiod",
        "PodDisruptionBudget istiod",
        "Role istiod",
        "RoleBinding istiod",
        "Service istiod",
        "Service istiod-replicas",
        "ServiceAccount istiod",
    ];
    assert_eq!(
        found.iter().map(String::as_str).collect::<Vec<_>>(),
        expected
    );
    Ok(())
}

#[test]
fn the_binary_understands_its_arguments() -> Result<()> {
    let objects = objects(&fs::read_to_string(manifests().join("istiod.yaml"))?)?;
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    let pod = &deployment.context("a Deployment")?["spec"]["template"]["spec"];
    let arguments = pod["containers"][0]["args"]
        .as_array()
        .context("arguments")?;
    let arguments = arguments.iter().filter_map(Value::as_str);
    let cli = istiod::cli::Cli::try_parse_from(std::iter::once("istiod").chain(arguments))?;
    assert!(matches!(cli.command, istiod::cli::Command::Discovery(_)));
    Ok(())
}

#[tokio::test]
#[ignore = "needs Go, which builds Helm"]
async fn the_rendering_is_the_charts() -> Result<()> {
    let found = fs::read_to_string(manifests().join("istiod.yaml"))?;
    ensure!(
        render(&[]).await? == found,
        "manifests/istiod.yaml is not what the chart renders: \
         `cargo xtask kube render > manifests/istiod.yaml`"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs Go, which builds Helm and the API server"]
async fn every_rendering_is_accepted() -> Result<()> {
    let canary = render(&[
        "revision=canary",
        "autoscaleEnabled=false",
        "replicaCount=3",
        "podDisruptionBudget.minAvailable=2",
        "env.PILOT_TRACE_SAMPLING=5",
        "extraArgs={--throttle-policy=none}",
        "logAsJson=true",
        "distribution.pods=true",
        "distribution.status=true",
        "imagePullSecrets={registry}",
        "podAnnotations.a=b",
        "podLabels.c=d",
        "serviceAccountAnnotations.e=f",
        "serviceAnnotations.g=h",
        "nodeSelector.i=j",
        "tolerations[0].operator=Exists",
        "meshConfig.accessLogFile=/dev/stdout",
        "meshNetworks.network1.endpoints[0].fromRegistry=Kubernetes",
    ])
    .await?;
    let found = names(&canary)?;
    ensure!(
        !found
            .iter()
            .any(|name| name.starts_with("HorizontalPodAutoscaler")),
        "{found:?}"
    );
    let shared: Vec<_> = found
        .iter()
        .filter(|name| !name.contains("canary"))
        .collect();
    ensure!(shared.is_empty(), "two revisions would share {shared:?}");

    let cluster = Cluster::start().await?;
    cluster.namespace("istio-system").await?;
    let plain = fs::read_to_string(manifests().join("istiod.yaml"))?;
    for rendering in [&plain, &canary, &plain] {
        cluster.apply(rendering).await?;
    }
    Ok(())
}
