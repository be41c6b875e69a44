//! What changes while the fleet watches.
//!
//! A script is a function of the [`Stage`] that returns rows of the report: it starts a
//! [`measurement`](Stage::measurement), makes changes under it, and finishes it. A new one takes a
//! file in `churn/`, a variant here and a line in [`Churn::run`].

mod objects;
mod restart;

use anyhow::Result;

use super::report::Row;
use super::stage::Stage;

/// One kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Churn {
    /// A service loses an endpoint and gets it back.
    EndpointFlap,
    /// The pods of a service are replaced, one after the other.
    RollingRestart,
    /// The timeout in a VirtualService changes.
    VirtualService,
    /// A ServiceEntry is created, changed and deleted.
    ServiceEntry,
    /// The server restarts with nothing changed. Only when it was started here.
    Restart,
}

impl Churn {
    /// Runs the script.
    pub(super) async fn run(self, stage: &mut Stage) -> Result<Vec<Row>> {
        match self {
            Self::EndpointFlap => objects::endpoint_flap(stage).await,
            Self::RollingRestart => objects::rolling_restart(stage).await,
            Self::VirtualService => objects::virtual_service(stage).await,
            Self::ServiceEntry => objects::service_entry(stage).await,
            Self::Restart => restart::run(stage).await,
        }
    }
}
