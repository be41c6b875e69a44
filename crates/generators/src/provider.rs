//! Services that the mesh configuration refers to (extension providers, key sets).

use std::sync::Arc;

use model::Service;
use pushctx::PushContext;

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
