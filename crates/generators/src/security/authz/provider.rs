//! External authorizers of the mesh configuration (security-policy §13.2).

use std::collections::{BTreeMap, BTreeSet};

use model::api::mesh::{ExtAuthzGrpcProvider, ExtAuthzHttpProvider, MeshConfig};
use pushctx::PushContext;

use crate::{names, provider};

/// Longest name of a provider.
const MAX_NAME: usize = 63;

/// External authorizers by name; `None` for one that is defined but cannot be used.
pub(in crate::security) type Providers = BTreeMap<String, Option<Provider>>;

/// An external authorizer that can be used.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::security) struct Provider {
    /// Cluster of the service.
    pub cluster: String,
    /// Host name of the service.
    pub host: String,
    /// Status when the service fails.
    pub status_on_error: Option<u32>,
    /// How it is asked.
    pub kind: ProviderKind,
}

/// How an external authorizer is asked.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::security) enum ProviderKind {
    /// By HTTP.
    Http(ExtAuthzHttpProvider),
    /// By gRPC.
    Grpc(ExtAuthzGrpcProvider),
}

/// Resolves the external authorizers of the mesh.
pub(in crate::security) fn resolve(context: &PushContext) -> Providers {
    let mesh: &MeshConfig = context.mesh();
    let mut seen = BTreeSet::new();
    let mut providers = Providers::new();
    for entry in &mesh.extension_providers {
        let kind = match (&entry.envoy_ext_authz_http, &entry.envoy_ext_authz_grpc) {
            (Some(http), _) => ProviderKind::Http(http.clone()),
            (None, Some(grpc)) => ProviderKind::Grpc(grpc.clone()),
            (None, None) => continue,
        };
        let usable = seen.insert(&entry.name) && is_name(&entry.name);
        let provider = usable.then(|| check(context, kind)).flatten();
        providers.insert(entry.name.clone(), provider);
    }
    providers
}

fn is_name(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(letters)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn check(context: &PushContext, kind: ProviderKind) -> Option<Provider> {
    let (service, port, status) = match &kind {
        ProviderKind::Http(p) => (&p.service, p.port, &p.status_on_error),
        ProviderKind::Grpc(p) => (&p.service, p.port, &p.status_on_error),
    };
    let port = u16::try_from(port).ok().filter(|p| *p != 0)?;
    let status_on_error = match status.as_str() {
        "" => None,
        text => Some(text.parse().ok().filter(|code| is_status(*code))?),
    };
    if let ProviderKind::Http(http) = &kind {
        let lists = [
            &http.include_headers_in_check,
            &http.include_request_headers_in_check,
            &http.headers_to_upstream_on_allow,
            &http.headers_to_downstream_on_deny,
            &http.headers_to_downstream_on_allow,
        ];
        let prefix_ok = http.path_prefix.is_empty() || http.path_prefix.starts_with('/');
        if !prefix_ok || lists.into_iter().flatten().any(|h| h == "*") {
            return None;
        }
    }
    let found = provider::service(context, service)?;
    Some(Provider {
        cluster: names::outbound(port, "", &found.hostname),
        host: found.hostname.to_string(),
        status_on_error,
        kind,
    })
}

/// Codes of Envoy's `StatusCode`.
fn is_status(code: u32) -> bool {
    i32::try_from(code).is_ok_and(|c| {
        c != 0 && envoy_types::pb::envoy::r#type::v3::StatusCode::try_from(c).is_ok()
    })
}
