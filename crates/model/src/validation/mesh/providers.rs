//! Extension providers. A bad one does not spoil the mesh configuration, so all are warnings.

use super::super::{Scope, names};
use crate::api::mesh::ExtensionProvider;

pub(super) fn validate(providers: &[ExtensionProvider], scope: &Scope<'_>) {
    for (index, provider) in providers.iter().enumerate() {
        let field = scope.field("extensionProviders");
        let scope = field.index(index);
        if provider.name.is_empty() {
            scope.field("name").warning("the provider has no name");
        }
        if providers[..index]
            .iter()
            .any(|other| other.name == provider.name)
        {
            scope.field("name").warning(format_args!(
                "another provider has the name {:?}",
                provider.name
            ));
        }
        body(provider, &scope);
    }
}

fn body(provider: &ExtensionProvider, scope: &Scope<'_>) {
    let service = |key: &str, service: &str, port: u32| {
        let scope = scope.field(key);
        if let Err(reason) = service_name(service) {
            scope.field("service").warning(reason);
        }
        if let Err(reason) = names::port(port) {
            scope.field("port").warning(reason);
        }
    };
    let mut known = provider.prometheus.is_some()
        || provider.stackdriver.is_some()
        || provider.envoy_file_access_log.is_some();
    macro_rules! with_service {
        ($($field:ident $key:literal),+ $(,)?) => {
            $(if let Some(body) = &provider.$field {
                known = true;
                service($key, &body.service, body.port);
            })+
        };
    }
    with_service!(
        envoy_ext_authz_http "envoyExtAuthzHttp",
        envoy_ext_authz_grpc "envoyExtAuthzGrpc",
        zipkin "zipkin",
        lightstep "lightstep",
        datadog "datadog",
        opencensus "opencensus",
        skywalking "skywalking",
        opentelemetry "opentelemetry",
        envoy_http_als "envoyHttpAls",
        envoy_tcp_als "envoyTcpAls",
        envoy_otel_als "envoyOtelAls",
    );
    if !known {
        scope.warning("the provider is of no known kind");
    }
    if let Some(exporter) = &provider.opentelemetry
        && exporter.grpc.is_some()
        && exporter.http.is_some()
    {
        scope
            .field("opentelemetry")
            .field("http")
            .warning("cannot be combined with grpc");
    }
}

/// Checks `host` or `namespace/host`.
fn service_name(service: &str) -> names::Verdict {
    let host = match service.split_once('/') {
        Some((namespace, host)) => {
            names::dns_label(namespace)?;
            host
        }
        None => service,
    };
    if names::is_ip(host) {
        Ok(())
    } else {
        names::fqdn(host)
    }
}
