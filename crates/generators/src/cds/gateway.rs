//! Clusters that only gateways have (clusters-endpoints §14).

use model::{api::gateway::ServerTlsMode, selects};
use pushctx::{ProxyClass, PushContext};

/// Tells whether a gateway passes connections through by SNI: one of its servers is
/// `AUTO_PASSTHROUGH`.
pub(super) fn passes_through(snapshot: &PushContext, class: &ProxyClass) -> bool {
    if !class.proxy.is_router() {
        return false;
    }
    let own_namespace_only = snapshot.features().scope_gateway_to_namespace;
    snapshot.state().objects.gateways.values().any(|gateway| {
        let visible = !own_namespace_only || gateway.meta.namespace == class.proxy.namespace;
        visible
            && selects(&gateway.spec.selector, &class.labels)
            && gateway.spec.servers.iter().any(|server| {
                server
                    .tls
                    .as_ref()
                    .is_some_and(|t| t.mode == ServerTlsMode::AutoPassthrough)
            })
    })
}
