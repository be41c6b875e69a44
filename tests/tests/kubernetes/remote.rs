//! Further clusters: they come and go with their Secrets, and one that is gone shrinks nothing.

use std::fs;

use anyhow::{Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use tests::{control_plane::ControlPlane, kubernetes::Cluster, process::until};

use super::{
    Mesh, SOON, endpoints, istiod,
    objects::{pod, service, slice},
    until_endpoints,
};

const WEB: &str = "web.a.svc.cluster.local";

fn secret(name: &str, cluster: &str, kubeconfig: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "istio-system", "labels": {"istio/multiCluster": "true"}},
        "data": {cluster: BASE64_STANDARD.encode(kubeconfig)},
    })
}

async fn until_remotes(istiod: &ControlPlane, expected: &[(&str, &str)]) -> Result<()> {
    until(
        &format!("remote clusters are {expected:?}"),
        SOON,
        async || {
            let text = istiod.monitoring("/debug/clusterz").await?;
            let remotes: Vec<Value> = serde_json::from_str(&text)?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let found: Vec<(String, String)> = remotes
                .iter()
                .map(|remote| (text(&remote["id"]), text(&remote["syncStatus"])))
                .collect();
            let same = found
                .iter()
                .map(|(id, s)| (&**id, &**s))
                .eq(expected.iter().copied());
            ensure!(same, "they are {found:?}");
            Ok(())
        },
    )
    .await
}

/// A further cluster that says that this one manages it has the root certificate in its namespaces; one
/// that does not say so is left alone.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn a_managed_cluster_gets_the_root_certificate() -> Result<()> {
    let mesh = Mesh::start().await?;
    let far = Cluster::start().await?;
    for namespace in ["istio-system", "a"] {
        far.namespace(namespace).await?;
    }
    let kubeconfig = fs::read_to_string(far.kubeconfig())?;
    mesh.apply(&[secret("far", "far", &kubeconfig)]).await?;
    let admin = mesh.cluster.kubeconfig();
    let own = [("EXTERNAL_ISTIOD", "true")];
    let istiod = istiod(mesh.folder.path(), "istiod", &admin, &own).await?;
    until_remotes(&istiod, &[("far", "synced")]).await?;
    let roots = async |cluster: &Cluster| -> Result<String> {
        let path = "/api/v1/namespaces/a/configmaps/istio-ca-root-cert";
        let request = hyper::Request::get(path).body(Vec::new())?;
        let map: Value = cluster.client().await?.request(request).await?;
        let text = map["data"]["root-cert.pem"].as_str();
        Ok(text.unwrap_or_default().to_owned())
    };
    until("the own cluster has the roots", SOON, async || {
        ensure!(roots(&mesh.cluster).await?.contains("BEGIN CERTIFICATE"));
        Ok(())
    })
    .await?;
    ensure!(
        roots(&far).await.is_err(),
        "a cluster that is not managed has them"
    );
    let managed = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": "istio-system",
            "annotations": {"topology.istio.io/controlPlaneClusters": "Kubernetes"},
        },
    });
    far.apply(&managed.to_string()).await?;
    until("the managed cluster has the roots", SOON, async || {
        let (own, far) = (roots(&mesh.cluster).await?, roots(&far).await?);
        ensure!(own == far, "they differ");
        Ok(())
    })
    .await
}

/// The endpoints of two clusters serve one host; the further one comes, is lost, and goes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn further_clusters_come_and_go() -> Result<()> {
    let mesh = Mesh::start().await?;
    mesh.apply(&[
        service("web", 80),
        pod("p1", "web", "10.1.0.1"),
        slice("web", "web", &[("p1", "10.1.0.1")]),
    ])
    .await?;
    let mut far = Cluster::start().await?;
    far.namespace("a").await?;
    for object in [
        service("web", 80),
        pod("q1", "web", "10.2.0.1"),
        slice("web", "web", &[("q1", "10.2.0.1")]),
    ] {
        far.apply(&object.to_string()).await?;
    }
    let kubeconfig = fs::read_to_string(far.kubeconfig())?;
    // Nobody listens there: a start waits for it, but not long.
    let address = far.address().to_string();
    let nowhere = kubeconfig.replace(&address, "127.0.0.1:1");
    ensure!(
        nowhere != kubeconfig,
        "the kubeconfig does not name {address}"
    );
    mesh.apply(&[secret("nowhere", "nowhere", &nowhere)])
        .await?;
    let own = [("PILOT_REMOTE_CLUSTER_TIMEOUT", "2s")];
    let admin = mesh.cluster.kubeconfig();
    let istiod = istiod(mesh.folder.path(), "istiod", &admin, &own).await?;
    until_remotes(&istiod, &[("nowhere", "syncing")]).await?;
    until_endpoints(&istiod, WEB, &["10.1.0.1"]).await?;

    mesh.apply(&[secret("far", "far", &kubeconfig)]).await?;
    let both = ["10.1.0.1", "10.2.0.1"];
    until_endpoints(&istiod, WEB, &both).await?;
    until_remotes(&istiod, &[("far", "synced"), ("nowhere", "syncing")]).await?;

    far.kill_api_server().await?;
    mesh.apply(&[pod("p2", "web", "10.1.0.2")]).await?;
    mesh.apply(&[slice(
        "web",
        "web",
        &[("p1", "10.1.0.1"), ("p2", "10.1.0.2")],
    )])
    .await?;
    until_endpoints(&istiod, WEB, &["10.1.0.1", "10.1.0.2", "10.2.0.1"]).await?;
    // Credentials that lead nowhere: what is known stays.
    mesh.apply(&[secret("far", "far", &nowhere)]).await?;
    until("the cluster is read anew", SOON, async || {
        let log = istiod.log();
        ensure!(
            log.matches("reading remote cluster").count() >= 3,
            "it is not"
        );
        Ok(())
    })
    .await?;
    ensure!(
        endpoints(&istiod, WEB)
            .await?
            .contains(&"10.2.0.1".to_owned())
    );
    mesh.delete(&[secret("far", "far", "")]).await?;
    until_endpoints(&istiod, WEB, &["10.1.0.1", "10.1.0.2"]).await?;
    until_remotes(&istiod, &[("nowhere", "syncing")]).await
}
