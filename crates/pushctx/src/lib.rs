//! The immutable snapshot of the mesh and its indexes.
