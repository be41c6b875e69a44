//! The doors: sources of objects, the config store and the service registry.

mod decode;
mod report;
mod validate;
mod yaml;

pub use decode::{Decoded, Decoder};
pub use report::{Finding, Severity};
pub use yaml::{SyntaxError, values as yaml_values};
