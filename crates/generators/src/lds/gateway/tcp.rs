//! Where gateways forward connections (gateways §13).

use std::sync::Arc;

use model::{api::virtual_service::RouteDestination, host};
use pushctx::{GatewayServer, ResolvedVirtualService};

use crate::lds::{
    context::Context,
    outbound::{PortRef, TcpPlan, routed as routed_to},
};

/// Objects that a VirtualService was made from.
const PARENTS: &str = "internal.istio.io/parents";

/// Plans forwarding by the first VirtualService of the server's Gateway that has a rule for it.
pub(super) fn routed(
    ctx: &Context<'_>,
    server: &GatewayServer,
    port: PortRef<'_>,
) -> Option<TcpPlan> {
    candidates(ctx, server).iter().find_map(|vs| {
        let routes = rule(vs, server, port)?;
        routed_to(ctx, routes, port, vs)
    })
}

/// Lists the VirtualServices of the server's Gateway with a host that one of the server's matches.
pub(super) fn candidates(
    ctx: &Context<'_>,
    server: &GatewayServer,
) -> Vec<Arc<ResolvedVirtualService>> {
    let gateway = server.gateway.to_string();
    let mut found = ctx
        .snapshot
        .virtual_services()
        .for_gateway(&ctx.proxy().namespace, &gateway);
    found.retain(|vs| {
        server.server.hosts.iter().any(|wanted| {
            let wanted = match wanted.split_once('/') {
                None => wanted.as_str(),
                Some((namespace, host)) if *namespace == *vs.config.meta.namespace => host,
                Some(_) => return false,
            };
            vs.config
                .spec
                .hosts
                .iter()
                .any(|own| host::matches(own, wanted))
        })
    });
    found
}

fn rule<'a>(
    vs: &'a ResolvedVirtualService,
    server: &GatewayServer,
    port: PortRef<'_>,
) -> Option<&'a [RouteDestination]> {
    let spec = &vs.config.spec;
    let tcp = spec.tcp.iter().find(|rule| {
        let applies = rule.r#match.is_empty()
            || rule
                .r#match
                .iter()
                .any(|m| applies(m.port, &m.gateways, server, port));
        applies && !rule.route.is_empty()
    });
    if let Some(rule) = tcp {
        return Some(&rule.route);
    }
    let parents = vs.config.meta.annotations.get(PARENTS);
    if !parents.is_some_and(|p| p.starts_with("TLSRoute/")) {
        return None;
    }
    let tls = spec.tls.iter().find(|rule| {
        rule.r#match
            .iter()
            .any(|m| applies(m.port, &m.gateways, server, port))
            && !rule.route.is_empty()
    });
    tls.map(|rule| rule.route.as_slice())
}

/// Tells whether a match is for the server's port and Gateway.
pub(super) fn applies(
    wanted: u32,
    gateways: &[String],
    server: &GatewayServer,
    port: PortRef<'_>,
) -> bool {
    let gateway = server.gateway.to_string();
    (wanted == 0 || wanted == u32::from(port.number))
        && (gateways.is_empty() || gateways.contains(&gateway))
}
