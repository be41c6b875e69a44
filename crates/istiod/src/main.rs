//! The `istiod` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    istiod::main()
}
