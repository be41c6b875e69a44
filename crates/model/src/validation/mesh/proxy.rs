//! `defaultConfig` of the mesh.

use super::super::{Scope, destination_rule, names, text, workload};
use super::signed_port;
use crate::api::Duration;
use crate::api::mesh::{ConnectionSettings, MeshProxyConfig, PrivateKeyProvider, ProxyTracing};

/// Smallest window that HTTP/2 allows.
const MIN_WINDOW: i32 = 65535;

pub(super) fn validate(config: &MeshProxyConfig, scope: &Scope<'_>) {
    for (key, text) in [
        ("configPath", &config.config_path),
        ("binaryPath", &config.binary_path),
    ] {
        if text.is_empty() {
            scope.field(key).error("must be set");
        }
    }
    if config.service_cluster.is_empty() && config.tracing_service_name.is_none() {
        scope
            .field("serviceCluster")
            .error("must be set, unless tracingServiceName is");
    }
    drain(scope, "drainDuration", config.drain_duration);
    drain(
        scope,
        "terminationDrainDuration",
        config.termination_drain_duration,
    );
    scope
        .field("discoveryAddress")
        .check(text::host_port(&config.discovery_address));
    for (key, address) in [
        ("zipkinAddress", &config.zipkin_address),
        ("statsdUdpAddress", &config.statsd_udp_address),
        (
            "envoyMetricsServiceAddress",
            &config.envoy_metrics_service_address,
        ),
    ] {
        if !address.is_empty() {
            scope.field(key).check(text::host_port(address));
        }
    }
    for (key, service) in [
        ("envoyMetricsService", &config.envoy_metrics_service),
        ("envoyAccessLogService", &config.envoy_access_log_service),
    ] {
        let Some(service) = service else { continue };
        let scope = scope.field(key);
        if !service.address.is_empty() {
            scope
                .field("address")
                .check(text::host_port(&service.address));
        }
        if let Some(tls) = &service.tls_settings {
            destination_rule::tls(&scope.field("tlsSettings"), tls, "");
        }
    }
    scope
        .field("proxyAdminPort")
        .check(signed_port(config.proxy_admin_port));
    if config.status_port != 0 {
        scope
            .field("statusPort")
            .check(signed_port(config.status_port));
    }
    if let Some(concurrency) = config.concurrency {
        scope
            .field("concurrency")
            .check(names::not_negative(concurrency));
    }
    if let Some(settings) = &config.tracing {
        tracing(&scope.field("tracing"), settings);
    }
    if let Some(probe) = &config.readiness_probe {
        workload::probe(&scope.field("readinessProbe"), probe);
    }
    if let Some(provider) = &config.private_key_provider {
        private_key_provider(&scope.field("privateKeyProvider"), provider);
    }
    if let Some(settings) = &config.connection_settings {
        connections(&scope.field("connectionSettings"), settings);
    }
}

fn drain(scope: &Scope<'_>, key: &str, value: Option<Duration>) {
    let Some(value) = value else { return };
    let scope = scope.field(key);
    scope.check(names::duration(value));
    if value.subsec_nanos() != 0 {
        scope.error(format_args!("{value} is not a whole number of seconds"));
    }
}

fn tracing(scope: &Scope<'_>, tracing: &ProxyTracing) {
    for (key, tracer) in [
        ("zipkin", &tracing.zipkin),
        ("lightstep", &tracing.lightstep),
        ("datadog", &tracing.datadog),
        ("openCensusAgent", &tracing.open_census_agent),
    ] {
        let Some(tracer) = tracer else { continue };
        // Agents are also reached by other schemes than host:port.
        if key != "openCensusAgent" {
            scope
                .field(key)
                .field("address")
                .check(text::host_port(&tracer.address));
        }
        if key == "lightstep" && tracer.access_token.is_empty() {
            scope.field(key).field("accessToken").error("must be set");
        }
    }
    if let Some(tls) = &tracing.tls_settings {
        destination_rule::tls(&scope.field("tlsSettings"), tls, "");
    }
}

fn private_key_provider(scope: &Scope<'_>, provider: &PrivateKeyProvider) {
    let members = [("cryptomb", &provider.cryptomb), ("qat", &provider.qat)];
    if members.iter().all(|(_, settings)| settings.is_none()) {
        scope.error("one of cryptomb and qat must be set");
    }
    for (key, settings) in members {
        let Some(settings) = settings else { continue };
        let scope = scope.field(key);
        match settings.poll_delay {
            None => scope.field("pollDelay").error("must be set"),
            Some(delay) if delay.as_nanos() <= 0 => {
                scope
                    .field("pollDelay")
                    .error(format_args!("{delay} is not above zero"));
            }
            Some(_) => {}
        }
    }
}

fn connections(scope: &Scope<'_>, settings: &ConnectionSettings) {
    for (key, value) in [
        (
            "listenerPerConnectionBufferLimitBytes",
            settings.listener_per_connection_buffer_limit_bytes,
        ),
        (
            "clusterPerConnectionBufferLimitBytes",
            settings.cluster_per_connection_buffer_limit_bytes,
        ),
        (
            "httpMaxConcurrentStreams",
            settings.http_max_concurrent_streams,
        ),
        (
            "listenerConnectionLimit",
            settings.listener_connection_limit,
        ),
        (
            "globalDownstreamConnectionLimit",
            settings.global_downstream_connection_limit,
        ),
    ] {
        if let Some(value) = value {
            scope.field(key).check(names::not_negative(value));
        }
    }
    for (key, value) in [
        ("httpIdleTimeout", settings.http_idle_timeout),
        (
            "httpMaxConnectionDuration",
            settings.http_max_connection_duration,
        ),
        ("httpDrainTimeout", settings.http_drain_timeout),
        ("httpRequestTimeout", settings.http_request_timeout),
        (
            "httpRequestHeadersTimeout",
            settings.http_request_headers_timeout,
        ),
        ("httpStreamIdleTimeout", settings.http_stream_idle_timeout),
        ("httpMaxStreamDuration", settings.http_max_stream_duration),
    ] {
        if let Some(value) = value.filter(|value| value.is_negative()) {
            scope.field(key).error(format_args!("{value} is negative"));
        }
    }
    for (key, value) in [
        (
            "http2InitialStreamWindowSize",
            settings.http2_initial_stream_window_size,
        ),
        (
            "http2InitialConnectionWindowSize",
            settings.http2_initial_connection_window_size,
        ),
    ] {
        if let Some(value) = value.filter(|value| *value < MIN_WINDOW) {
            scope.field(key).error(format_args!(
                "{value} is too small, it must be at least {MIN_WINDOW}"
            ));
        }
    }
}
