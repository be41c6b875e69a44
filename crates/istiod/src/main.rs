//! The `istiod` binary.
fn main() {}
