//! Per-tenant admission of events.
