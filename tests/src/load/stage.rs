//! What a churn script works with: the mesh, the fleet, the server, and measurements.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::fleet::Fleet;
use super::mesh::Mesh;
use super::names::TYPES;
use super::report::{Row, Times, TypeTimes};
use super::usage::Usage;
use crate::control_plane::ControlPlane;

/// The scene of all scripts.
#[derive(Debug)]
pub(super) struct Stage {
    /// What is served; scripts write into it, also from tasks of their own.
    pub(super) mesh: Arc<Mesh>,
    pub(super) fleet: Fleet,
    /// How often each change is made.
    pub(super) changes: usize,
    /// The server, when it was started here.
    pub(super) server: Option<ControlPlane>,
    /// The process of a server that was not.
    pub(super) foreign: Option<u32>,
}

impl Stage {
    /// Looks at the process of the server; `None` when it is not known.
    pub(super) fn usage(&self) -> Result<Option<Usage>> {
        Usage::of(match &self.server {
            Some(server) => Some(server.pid()?),
            None => self.foreign,
        })
    }

    /// Starts a row of the report.
    pub(super) fn measurement(&self, name: &str) -> Result<Measurement<'_>> {
        self.fleet.take_sent();
        Ok(Measurement {
            stage: self,
            name: name.to_owned(),
            changes: 0,
            missed: 0,
            times: Default::default(),
            before: self.usage()?,
        })
    }
}

/// One row of the report in the making.
#[derive(Debug)]
pub(super) struct Measurement<'a> {
    stage: &'a Stage,
    name: String,
    changes: usize,
    missed: usize,
    times: [Vec<Duration>; TYPES.len()],
    before: Option<Usage>,
}

impl Measurement<'_> {
    /// Makes a change and waits until everybody has acknowledged each of the `expected` resources
    /// (type URL and name): those who have it already or, when nobody has, all.
    ///
    /// What is expected must be what changes: nothing else ends the wait before it is given up.
    pub(super) async fn change(
        &mut self,
        expected: &[(&str, &str)],
        change: impl FnOnce(&Mesh) -> Result<()>,
    ) -> Result<()> {
        let mesh = &self.stage.mesh;
        let reached = self
            .stage
            .fleet
            .measure(expected, || change(mesh))
            .await
            .with_context(|| self.name.clone())?;
        self.changes += 1;
        for (kind, times, missed) in reached {
            self.missed += missed;
            if let Some(all) = self.times.get_mut(kind) {
                all.extend(times);
            }
        }
        Ok(())
    }

    /// Closes the row.
    pub(super) fn finish(self) -> Result<Row> {
        let sent = self.stage.fleet.take_sent();
        let cpu = match (self.before, self.stage.usage()?) {
            (Some(before), Some(after)) => Some(after.cpu.saturating_sub(before.cpu)),
            _ => None,
        };
        let types = TYPES.iter().zip(self.times);
        let times = types
            .filter(|(_, times)| !times.is_empty())
            .map(|(type_url, times)| TypeTimes {
                type_url: (*type_url).to_owned(),
                times: Times::of(times),
            })
            .collect();
        Ok(Row::new(
            self.name,
            self.changes,
            self.missed,
            times,
            sent,
            cpu,
        ))
    }
}
