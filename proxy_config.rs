//! The proxy settings that apply to a class.

use model::api::MeshProxyConfig;
use pushctx::{ProxyClass, PushContext};

/// Returns the settings that a proxy states, else the mesh's default ones.
pub(crate) fn of<'a>(context: &'a PushContext, class: &'a ProxyClass) -> &'a MeshProxyConfig {
    class.proxy.metadata.proxy_config.as_deref().unwrap_or(&context.mesh().default_config)
}
