//! The policies of a workload as filters: resolved once for each class.

use std::sync::Arc;

use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use model::{ConfigKey, Kind, Meta, ProxyType, Service, api::security::JwtRule};
use pushctx::{ProxyClass, PushContext, Workload};

use super::{
    PeerIdentity, PolicyFilters,
    authz::{self, AuthzInputs},
    jwt,
};

impl PolicyFilters {
    /// Resolves the filters of a class (security-policy §5, §7). External authorization knows the peer
    /// of the connection, whatever `peer` says.
    pub(crate) fn resolve(context: &PushContext, class: &ProxyClass, peer: PeerIdentity) -> Self {
        Self::resolve_for(context, class, &[], peer)
    }

    /// The same where a waypoint handles `services`.
    pub(crate) fn resolve_for(
        context: &PushContext,
        class: &ProxyClass,
        services: &[Arc<Service>],
        peer: PeerIdentity,
    ) -> Self {
        let workload = class.workload_for(services);
        let found = context.authorization_policies(&workload);
        let inputs = AuthzInputs {
            policies: [found.custom, found.audit, found.deny, found.allow].concat(),
            trust_domains: trust_domains(context),
            providers: authz::providers(context),
            several_providers: context.features().multiple_custom_authz_providers,
            filter_state: peer == PeerIdentity::FilterState,
        };
        let tokens = context.request_authentications(&workload);
        let authorized = inputs
            .policies
            .iter()
            .map(|p| key(Kind::AuthorizationPolicy, &p.meta));
        let authenticated = tokens
            .iter()
            .map(|p| key(Kind::RequestAuthentication, &p.meta));
        let sources = authorized.chain(authenticated).collect();
        let http = authz::http(&inputs);
        let tcp = authz::tcp(&inputs);
        let rules: Vec<JwtRule> = tokens
            .iter()
            .flat_map(|policy| policy.spec.jwt_rules.iter().cloned())
            .collect();
        // Routes of gateways and waypoints see the claims.
        let sees_claims = matches!(
            class.proxy.proxy_type,
            ProxyType::Router | ProxyType::Waypoint
        );
        Self {
            http_custom: http.custom,
            jwt: jwt::filter(context, &rules, sees_claims),
            http_rbac: http.rbac,
            tcp_custom: tcp.custom,
            tcp_rbac: tcp.rbac,
            sources,
        }
    }
}

/// The filters of policies that select a waypoint as any workload, for the end of its tunnels
/// (security-policy §15). Empty unless this is switched on.
pub(crate) fn of_tunnels(context: &PushContext, class: &ProxyClass) -> Vec<HttpFilter> {
    let is_waypoint = class.proxy.proxy_type == ProxyType::Waypoint;
    if !context.features().layered_waypoint_policies || !is_waypoint {
        return Vec::new();
    }
    let workload = Workload {
        is_waypoint: false,
        ..class.workload()
    };
    let found = context.authorization_policies(&workload);
    let mut policies = [found.audit, found.deny, found.allow].concat();
    policies.retain(|p| p.spec.target_refs.is_empty() && p.spec.target_ref.is_none());
    authz::connections_over_http(&AuthzInputs {
        policies,
        trust_domains: trust_domains(context),
        providers: authz::providers(context),
        several_providers: false,
        filter_state: false,
    })
}

fn key(kind: Kind, meta: &Meta) -> ConfigKey {
    ConfigKey::new(kind, meta.namespace.clone(), meta.name.clone())
}

/// The mesh's trust domain and its aliases, in the order in which principals are expanded.
fn trust_domains(context: &PushContext) -> Vec<String> {
    let mesh = context.mesh();
    std::iter::once(&mesh.trust_domain)
        .chain(&mesh.trust_domain_aliases)
        .cloned()
        .collect()
}
