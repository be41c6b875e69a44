//! How far objects are distributed, in their status.

use anyhow::{Context as _, Result, ensure};
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use tests::{http::free_port, kubernetes::render, process::until};

use super::{Mesh, SOON, istiod, objects};

/// An object says how many proxies have it, and what others say in its status stays.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go and Envoy; run by cargo xtask test"]
async fn objects_say_how_far_they_are_distributed() -> Result<()> {
    let mesh = Mesh::start().await?;
    // With no more leave than the chart gives for this.
    let manifests = render(&["distribution.status=true"]).await?;
    mesh.cluster.apply(&manifests).await?;
    mesh.apply(&[objects::mesh_map("istio", mesh.ports)])
        .await?;
    let kubeconfig = mesh.cluster.kubeconfig_of("istio-system", "istiod").await?;
    let environment = [("PILOT_ENABLE_STATUS", "true")];
    let istiod = istiod(mesh.folder.path(), "istiod", &kubeconfig, &environment).await?;
    let envoy = mesh.envoy(&istiod).await?;
    let ports = [("one", free_port()?), ("two", free_port()?)];
    mesh.apply(&objects::routed(ports, "one")).await?;
    let client = mesh.cluster.client().await?;
    let says = async |kind: &str| -> Result<DynamicObject> {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("networking.istio.io", "v1", kind));
        let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), "a", &kind);
        let object = objects.get("shop").await?;
        let conditions = object.data["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let condition = conditions.find(|c| c["type"] == "Reconciled");
        let condition = condition.context("no condition yet")?;
        ensure!(
            condition["status"] == "True" && condition["message"] == "distributed: 1/1",
            "{condition}"
        );
        Ok(object)
    };
    for kind in ["ServiceEntry", "DestinationRule", "VirtualService"] {
        until(&format!("the status of the {kind}"), SOON, async || {
            says(kind).await
        })
        .await?;
    }
    // Addresses are written by another part of it.
    until("the addresses", SOON, async || {
        let entry = says("ServiceEntry").await?;
        let addresses = entry.data["status"]["addresses"].as_array();
        ensure!(addresses.is_some_and(|all| !all.is_empty()), "none");
        Ok(())
    })
    .await?;
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    Ok(())
}
