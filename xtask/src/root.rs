//! Where the workspace is.

use std::path::{Path, PathBuf};

/// Returns the root of the workspace that this tool was built from.
pub(crate) fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
