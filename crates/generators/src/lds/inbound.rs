//! Listeners of inbound traffic (listeners §11–§15).

mod build;
mod chains;
mod plan;

pub(crate) use build::build;
pub(crate) use plan::{plan, plan_internal};
