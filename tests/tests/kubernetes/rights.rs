//! Kinds that come later, kinds that may not be read, and objects of other revisions.

use anyhow::{Result, ensure};
use serde_json::json;
use tests::{
    control_plane::ControlPlane,
    kubernetes::{Cluster, ISTIO_KINDS},
    process::until,
};

use super::{SOON, istiod, objects::rule, until_table};

async fn until_rules(istiod: &ControlPlane, expected: u64) -> Result<()> {
    until(&format!("{expected} VirtualServices"), SOON, async || {
        let found = istiod.counter("pilot_virt_services").await?;
        ensure!(found == expected, "there are {found}");
        Ok(())
    })
    .await
}

/// A control plane starts without Istio's kinds, and reads them when they come.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn kinds_may_come_later() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.namespace("a").await?;
    let folder = tempfile::tempdir()?;
    let istiod = istiod(folder.path(), "istiod", &cluster.kubeconfig(), &[]).await?;
    until_table(&istiod, "VirtualService", "absent").await?;
    until_table(&istiod, "Service", "synced").await?;
    cluster.define(ISTIO_KINDS).await?;
    until_table(&istiod, "VirtualService", "synced").await?;
    cluster.apply(&rule("r", "").to_string()).await?;
    until_rules(&istiod, 1).await
}

/// One kind may not be read: it is reported, and the rest works. Leave that is given later is used.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn a_kind_without_leave_is_reported_and_the_rest_works() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.define_kinds().await?;
    for namespace in ["istio-system", "a"] {
        cluster.namespace(namespace).await?;
    }
    cluster.service_account("istio-system", "reader").await?;
    let role = |name: &str, groups: &[&str], resources: &[&str]| {
        let rules = json!([{"apiGroups": groups, "resources": resources, "verbs": ["get", "list", "watch"]}]);
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": rules,
        })
    };
    let binding = |name: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "istio-system"}],
        })
    };
    let most = [
        "",
        "discovery.k8s.io",
        "networking.k8s.io",
        "gateway.networking.k8s.io",
        "networking.istio.io",
        "security.istio.io",
        "extensions.istio.io",
        "apiextensions.k8s.io",
    ];
    for object in [role("most", &most, &["*"]), binding("most")] {
        cluster.apply(&object.to_string()).await?;
    }
    cluster.apply(&rule("r", "").to_string()).await?;
    let kubeconfig = cluster.kubeconfig_of("istio-system", "reader").await?;
    let folder = tempfile::tempdir()?;
    let istiod = istiod(folder.path(), "istiod", &kubeconfig, &[]).await?;
    until_table(&istiod, "Telemetry", "denied").await?;
    until_table(&istiod, "VirtualService", "synced").await?;
    until_rules(&istiod, 1).await?;
    ensure!(
        istiod.log().contains("no leave to read this kind"),
        "the log does not tell: {}",
        istiod.log()
    );
    let rest = [
        role("rest", &["telemetry.istio.io"], &["telemetries"]),
        binding("rest"),
    ];
    for object in rest {
        cluster.apply(&object.to_string()).await?;
    }
    until_table(&istiod, "Telemetry", "synced").await
}

/// Two control planes of different revisions each read what is theirs, and their own mesh
/// configuration.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn revisions_do_not_see_each_other() -> Result<()> {
    let cluster = Cluster::start().await?;
    cluster.define_kinds().await?;
    for namespace in ["istio-system", "a"] {
        cluster.namespace(namespace).await?;
    }
    for (name, domain) in [("istio-blue", "blue"), ("istio-green", "green")] {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "istio-system"},
            "data": {"mesh": format!("trustDomain: {domain}\n")},
        });
        cluster.apply(&map.to_string()).await?;
    }
    for (name, revision) in [("all", ""), ("b1", "blue"), ("b2", "blue"), ("g1", "green")] {
        cluster.apply(&rule(name, revision).to_string()).await?;
    }
    let folder = tempfile::tempdir()?;
    let kubeconfig = cluster.kubeconfig();
    for (revision, rules) in [("blue", 3), ("green", 2)] {
        let own = [("REVISION", revision)];
        let istiod = istiod(folder.path(), revision, &kubeconfig, &own).await?;
        until_rules(&istiod, rules).await?;
        let mesh = istiod.monitoring("/debug/mesh").await?;
        ensure!(mesh.contains(&format!("\"{revision}\"")), "{mesh}");
    }
    Ok(())
}
