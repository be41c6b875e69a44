//! Extension providers of the mesh configuration (telemetry-extensions §3).

use envoy_types::pb::envoy::config::core::v3::{
    GrpcService, HeaderValue, HeaderValueOption, grpc_service,
    header_value_option::HeaderAppendAction,
};
use model::api::mesh::{ExtensionProvider, ProviderHeader};
use pushctx::PushContext;

use crate::{names, provider};

/// Finds a provider by name, whatever its case; the first of several.
pub(super) fn find<'a>(context: &'a PushContext, name: &str) -> Option<&'a ExtensionProvider> {
    let name = name.to_lowercase();
    context
        .mesh()
        .extension_providers
        .iter()
        .find(|p| p.name.to_lowercase() == name)
}

/// The cluster of a provider's service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Upstream {
    /// Name of the cluster.
    pub cluster: String,
    /// Host name of the service.
    pub host: String,
}

impl Upstream {
    /// Resolves a service; `None`, and reported, when there is no such service.
    pub(super) fn resolve(context: &PushContext, service: &str, port: u32) -> Option<Self> {
        let Some(found) = provider::service(context, service) else {
            tracing::debug!(service, "the service of a provider is not known");
            return None;
        };
        let port = u16::try_from(port).unwrap_or_default();
        Some(Self {
            cluster: names::outbound(port, "", &found.hostname),
            host: found.hostname.to_string(),
        })
    }

    /// A gRPC service on the cluster.
    pub(super) fn grpc(&self) -> GrpcService {
        GrpcService {
            target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(
                grpc_service::EnvoyGrpc {
                    cluster_name: self.cluster.clone(),
                    authority: self.host.clone(),
                    ..grpc_service::EnvoyGrpc::default()
                },
            )),
            ..GrpcService::default()
        }
    }
}

/// Headers of an exporter. A value from the control plane's environment is empty: it is not read
/// here.
pub(super) fn headers(headers: &[ProviderHeader]) -> Vec<HeaderValueOption> {
    headers
        .iter()
        .map(|header| HeaderValueOption {
            header: Some(header_value(header)),
            append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
            ..HeaderValueOption::default()
        })
        .collect()
}

/// One header of an exporter.
pub(super) fn header_value(header: &ProviderHeader) -> HeaderValue {
    HeaderValue {
        key: header.name.clone(),
        value: header.value.clone().unwrap_or_default(),
        ..HeaderValue::default()
    }
}
