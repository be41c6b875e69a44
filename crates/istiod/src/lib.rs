//! The control plane: flags, settings, wiring and HTTP ports.
