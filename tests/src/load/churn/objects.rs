//! Scripts that change one object at a time.

use anyhow::Result;

use crate::load::names::{CLUSTER, ENDPOINT, ROUTE};
use crate::load::report::Row;
use crate::load::stage::Stage;

/// The route configuration of all HTTP services of the mesh.
const ROUTES: &str = "80";

pub(super) async fn endpoint_flap(stage: &Stage) -> Result<Vec<Row>> {
    let mut row = stage.measurement("endpoint flap")?;
    for change in 0..stage.changes {
        let service = stage.mesh.service(change);
        let cluster = stage.mesh.cluster(service);
        let all = stage.mesh.pods();
        for pods in [&all[1..], &all] {
            row.change(&[(ENDPOINT, &cluster)], |mesh| {
                mesh.write_service(service, pods)
            })
            .await?;
        }
    }
    Ok(vec![row.finish()?])
}

/// Each pod comes up anew under another address before the old one goes, as a Deployment does it.
pub(super) async fn rolling_restart(stage: &Stage) -> Result<Vec<Row>> {
    let mut row = stage.measurement("rolling restart")?;
    for change in 0..stage.changes {
        let service = stage.mesh.service(change);
        let cluster = stage.mesh.cluster(service);
        let mut pods = stage.mesh.pods();
        // There and back, so that the mesh is afterwards what it was.
        for old in pods.clone().into_iter().chain(stage.mesh.new_pods()) {
            pods.push(stage.mesh.successor(old));
            row.change(&[(ENDPOINT, &cluster)], |mesh| {
                mesh.write_service(service, &pods)
            })
            .await?;
            pods.retain(|pod| *pod != old);
            row.change(&[(ENDPOINT, &cluster)], |mesh| {
                mesh.write_service(service, &pods)
            })
            .await?;
        }
    }
    Ok(vec![row.finish()?])
}

pub(super) async fn virtual_service(stage: &Stage) -> Result<Vec<Row>> {
    let mut row = stage.measurement("virtual service")?;
    for change in 0..stage.changes {
        let service = stage.mesh.service(change);
        row.change(&[(ROUTE, ROUTES)], |mesh| {
            mesh.write_virtual_service(service, 1 + change)
        })
        .await?;
    }
    Ok(vec![row.finish()?])
}

pub(super) async fn service_entry(stage: &Stage) -> Result<Vec<Row>> {
    let mut created = stage.measurement("service entry")?;
    for change in 0..stage.changes {
        let cluster = format!("outbound|80||ext-{change}.example");
        let comes_or_goes = [(CLUSTER, &*cluster), (ROUTE, ROUTES)];
        created
            .change(&comes_or_goes, |mesh| mesh.write_service_entry(change, 1))
            .await?;
        created
            .change(&[(CLUSTER, &cluster)], |mesh| {
                mesh.write_service_entry(change, 2)
            })
            .await?;
        created
            .change(&comes_or_goes, |mesh| mesh.remove_service_entry(change))
            .await?;
    }
    Ok(vec![created.finish()?])
}
