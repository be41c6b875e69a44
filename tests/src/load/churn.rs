//! What changes while the fleet watches.

use anyhow::Result;

use super::fleet::Fleet;
use super::mesh::Mesh;
use super::names::{CLUSTER, ENDPOINT, ROUTE};
use super::report::{Row, Times};

/// One kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Churn {
    /// A service loses an endpoint and gets it back.
    EndpointFlap,
    /// The timeout in a VirtualService changes.
    VirtualService,
    /// A ServiceEntry is created, changed and deleted.
    ServiceEntry,
    /// The server restarts with nothing changed. Only when it was started here.
    Restart,
}

impl Churn {
    /// Makes the change so many times, one after the other.
    pub(super) async fn run(self, mesh: &Mesh, fleet: &Fleet, changes: usize) -> Result<Row> {
        fleet.take_sent();
        let mut times = Vec::new();
        let (mut missed, mut made) = (0, 0);
        let mut note = |(reached, lost): (Vec<_>, usize)| {
            times.extend(reached);
            missed += lost;
            made += 1;
        };
        for change in 0..changes {
            let service = mesh.service(change);
            match self {
                Self::EndpointFlap => {
                    let cluster = mesh.cluster(service);
                    for endpoints in [1, 2] {
                        let write = || mesh.write_service(service, endpoints);
                        note(fleet.measure(ENDPOINT, &cluster, write).await?);
                    }
                }
                Self::VirtualService => {
                    let write = || mesh.write_virtual_service(service, 1 + change);
                    note(fleet.measure(ROUTE, "80", write).await?);
                }
                Self::ServiceEntry => {
                    let cluster = format!("outbound|80||ext-{change}.example");
                    for endpoints in [1, 2] {
                        let write = || mesh.write_service_entry(change, endpoints);
                        note(fleet.measure(CLUSTER, &cluster, write).await?);
                    }
                    let remove = || mesh.remove_service_entry(change);
                    note(fleet.measure(CLUSTER, &cluster, remove).await?);
                }
                Self::Restart => {}
            }
        }
        let sent = fleet.take_sent();
        let resources: u64 = sent.iter().map(|sent| sent.resources).sum();
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let amplification = resources as f64 / (made * fleet.measured()).max(1) as f64;
        Ok(Row {
            churn: format!("{self:?}"),
            changes: made,
            missed,
            times: Times::of(times),
            sent,
            amplification: Some(amplification),
        })
    }
}
