//! Services that the mesh configuration refers to (extension providers, key sets).

use std::sync::Arc;

use model::Service;
use pushctx::PushContext;

use crate::{names, tls::SecretProvider};

/// Finds the service that `host` or `namespace/host` means. A bare host must exist in exactly one
/// namespace.
pub(crate) fn service<'a>(context: &'a PushContext, name: &str) -> Option<&'a Arc<Service>> {
    if let Some((namespace, host)) = name.split_once('/') {
        return context.services().get(host, namespace);
    }
    let mut found = context.services().by_host(name);
    let only = found.next()?;
    found.next().is_none().then_some(only)
}

/// Finds the service that serves `sds://` names: the first one that the mesh configuration has.
pub(crate) fn secrets(context: &PushContext) -> Option<SecretProvider> {
    let mut providers = context.mesh().extension_providers.iter();
    let provider = providers.find_map(|provider| provider.sds.as_ref())?;
    let port = u16::try_from(provider.port).ok()?;
    let host = &service(context, &provider.service)?.hostname;
    Some(SecretProvider {
        cluster: names::outbound(port, "", host),
        host: host.to_string(),
    })
}
