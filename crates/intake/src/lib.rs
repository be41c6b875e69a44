//! The doors: sources of objects, the config store and the service registry.
