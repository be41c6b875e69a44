//! Envoy resources of an Istio mesh, one module per type URL.

mod convert;
mod names;
mod proxy_config;
mod rds;
mod route;
