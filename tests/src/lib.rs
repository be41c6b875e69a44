//! Workspace-level tests and what they share.
