//! What breaks while the mesh lives: the API server, the watches, the history of the database.

use anyhow::{Result, ensure};
use tests::process::until;
use tokio::process::Command;

use super::{
    Mesh, SOON, endpoints,
    objects::{pod, service, slice},
    tables, until_endpoints, until_table,
};

const WEB: &str = "web.a.svc.cluster.local";

async fn signal(pid: u32, signal: &str) -> Result<()> {
    let kill = format!("kill -{signal} {pid}");
    let status = Command::new("sh").args(["-c", &kill]).status().await?;
    ensure!(status.success(), "{kill} failed");
    Ok(())
}

/// Without an API server nothing shrinks; what happened meanwhile is found out, also when the watch
/// cannot go on where it was.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn a_lost_watch_leaves_tables_stale_not_empty() -> Result<()> {
    let mut mesh = Mesh::start().await?;
    mesh.apply(&[
        service("web", 80),
        pod("p1", "web", "10.1.0.1"),
        pod("p2", "web", "10.1.0.2"),
        slice("web", "web", &[("p1", "10.1.0.1"), ("p2", "10.1.0.2")]),
    ])
    .await?;
    let istiod = mesh.istiod("istiod").await?;
    let both = ["10.1.0.1", "10.1.0.2"];
    until_endpoints(&istiod, WEB, &both).await?;

    mesh.cluster.kill_api_server().await?;
    until_table(&istiod, "EndpointSlice", "stale").await?;
    ensure!(endpoints(&istiod, WEB).await? == both);
    mesh.cluster.start_api_server().await?;
    until_table(&istiod, "EndpointSlice", "synced").await?;
    mesh.apply(&[slice("web", "web", &[("p1", "10.1.0.1")])])
        .await?;
    until_endpoints(&istiod, WEB, &["10.1.0.1"]).await?;

    // All of it while the control plane sleeps: changes, a history that is forgotten, a new API server.
    signal(istiod.pid()?, "STOP").await?;
    mesh.delete(&[pod("p1", "web", "10.1.0.1")]).await?;
    mesh.apply(&[
        pod("p3", "web", "10.1.0.3"),
        slice("web", "web", &[("p2", "10.1.0.2"), ("p3", "10.1.0.3")]),
        service("new", 81),
    ])
    .await?;
    mesh.cluster.compact().await?;
    mesh.cluster.kill_api_server().await?;
    mesh.cluster.start_api_server().await?;
    signal(istiod.pid()?, "CONT").await?;
    until_endpoints(&istiod, WEB, &["10.1.0.2", "10.1.0.3"]).await?;
    until("every table is fresh", SOON, async || {
        let tables = tables(&istiod).await?;
        let stale: Vec<_> = tables
            .iter()
            .filter(|(_, state)| *state != "synced")
            .collect();
        ensure!(stale.is_empty(), "{stale:?}");
        Ok(())
    })
    .await?;
    // Whoever starts now knows the same.
    let cold = mesh.istiod("cold").await?;
    let of = async |istiod: &tests::control_plane::ControlPlane| {
        istiod.monitoring("/debug/endpointShardz").await
    };
    ensure!(
        of(&istiod).await? == of(&cold).await?,
        "a cold start knows other endpoints"
    );
    Ok(())
}

/// The API server dies again and again while pods come and go.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go; run by cargo xtask test"]
async fn churn_with_an_api_server_that_dies_ends_in_the_truth() -> Result<()> {
    let mut mesh = Mesh::start().await?;
    mesh.apply(&[service("web", 80)]).await?;
    let istiod = mesh.istiod("istiod").await?;
    let mut expected = Vec::new();
    for round in 0..6_u8 {
        let mut listed = Vec::new();
        for number in 0..4_u8 {
            let name = format!("p{}", (round + number) % 5);
            let address = format!("10.1.{round}.{number}");
            // A pod of the same name, with another address: it is another pod.
            mesh.delete(&[pod(&name, "web", &address)]).await.ok();
            mesh.apply(&[pod(&name, "web", &address)]).await?;
            listed.push((name, address));
        }
        if round % 2 == 1 {
            mesh.cluster.kill_api_server().await?;
            mesh.cluster.start_api_server().await?;
        }
        let pairs: Vec<(&str, &str)> = listed.iter().map(|(n, a)| (&**n, &**a)).collect();
        mesh.apply(&[slice("web", "web", &pairs)]).await?;
        expected = listed.into_iter().map(|(_, address)| address).collect();
    }
    expected.sort();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    until_endpoints(&istiod, WEB, &expected).await?;
    ensure!(istiod.counter("pilot_k8s_endpoints_pending_pod").await? == 0);
    Ok(())
}
