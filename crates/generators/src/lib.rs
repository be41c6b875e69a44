//! Envoy resources of an Istio mesh, one module per type URL.
