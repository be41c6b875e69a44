//! The server goes and comes back.

use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use crate::control_plane::ControlPlane;
use crate::load::report::Row;
use crate::load::stage::Stage;

/// Longest time until everybody is back.
const BACK: Duration = Duration::from_mins(5);
/// What is sent when all have been answered, but should not be, arrives within this time.
const AFTERMATH: Duration = Duration::from_millis(500);

/// Kills the server and starts it again with nothing changed. The times are those from losing the
/// connection to having been answered everything.
pub(super) async fn run(stage: &mut Stage) -> Result<Vec<Row>> {
    let Some(mut server) = stage.server.take() else {
        return Ok(Vec::new());
    };
    stage.fleet.take_sent();
    stage.fleet.expect_all_anew();
    let setup = server.setup().clone();
    server.kill().await?;
    stage.server = Some(ControlPlane::start(setup).await?);
    let times = stage.fleet.first_configs(BACK).await?;
    sleep(AFTERMATH).await;
    let cpu = stage.usage()?.map(|usage| usage.cpu);
    let sent = stage.fleet.take_sent();
    let mut row = Row::new("restart".to_owned(), 1, 0, Vec::new(), sent, cpu);
    row.reconnected = Some(times);
    Ok(vec![row])
}
