//! Sidecars that hide what the VirtualServices of their namespace are about.

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, ConfigKey, Kind,
    api::{Sidecar, VirtualService},
};

use super::{Advice, key, list, name};
use crate::{
    PushContext, ResolvedVirtualService, RouteSemantics, SidecarScope,
    scope::for_sidecar,
    virtual_service::destinations::{destinations, is_for_callers_in},
};

pub(super) fn check(context: &PushContext, advice: &mut Vec<Advice>) {
    for sidecar in context.state().objects.sidecars.values() {
        if sidecar.spec.egress.is_empty() {
            continue;
        }
        let scope = for_sidecar(context, sidecar);
        for (to, hidden) in hidden_destinations(context, &scope) {
            advice.push(one(
                sidecar,
                format!("hides {hidden}, to which {} sends requests", name(&to)),
            ));
        }
        if sidecar.spec.workload_selector.is_none() {
            for vs in idle(context, &scope) {
                let hosts = list(vs.config.spec.hosts.iter().cloned());
                advice.push(one(
                    sidecar,
                    format!(
                        "imports no host of {} ({hosts}): its rules have no effect in the namespace",
                        name(&key(&vs.config))
                    ),
                ));
            }
        }
    }
}

fn one(sidecar: &Config<Sidecar>, reason: String) -> Advice {
    let meta = &sidecar.meta;
    Advice {
        object: ConfigKey::new(Kind::Sidecar, meta.namespace.clone(), meta.name.clone()),
        field: "spec.egress".to_owned(),
        reason,
    }
}

/// Hosts that imported VirtualServices of the namespace send to, that its clients may see, and that
/// the scope lacks nevertheless, altogether or on the port that is asked for.
fn hidden_destinations(context: &PushContext, scope: &SidecarScope) -> BTreeMap<ConfigKey, String> {
    let mut hidden = BTreeMap::new();
    for vs in scope
        .egress
        .iter()
        .flat_map(|listener| listener.virtual_services.iter())
    {
        if vs.semantics != RouteSemantics::Istio || vs.config.meta.namespace != scope.namespace {
            continue;
        }
        let own = |route: &_| is_for_callers_in(route, &scope.namespace);
        for (host, ports) in destinations(&vs.config.spec, own) {
            let exists = |port: u16| {
                let mut services = context.services().by_host(host);
                services.any(|service| {
                    context.is_visible(service, &scope.namespace)
                        && (port == 0 || service.port(port).is_some())
                })
            };
            let lacks = ports.into_iter().find(|port| {
                let port = u16::try_from(*port).unwrap_or_default();
                let service = scope.service(host);
                let has = service.is_some_and(|s| port == 0 || s.port(port).is_some());
                !has && exists(port)
            });
            match lacks {
                Some(0) => hidden.insert(key(&vs.config), host.to_owned()),
                Some(port) => hidden.insert(key(&vs.config), format!("{host}:{port}")),
                None => None,
            };
        }
    }
    hidden
}

/// VirtualServices of the namespace that are for its own clients and that no listener imports.
fn idle(context: &PushContext, scope: &SidecarScope) -> Vec<Arc<ResolvedVirtualService>> {
    let namespace = &scope.namespace;
    let mut idle = context.virtual_services().for_gateway(namespace, "mesh");
    idle.retain(|vs| {
        let imported = || {
            let mut listeners = scope.egress.iter().flat_map(|l| l.virtual_services.iter());
            listeners.any(|other| Arc::ptr_eq(other, vs))
        };
        vs.semantics == RouteSemantics::Istio
            && vs.config.meta.namespace == *namespace
            && is_for_own_clients(context, &vs.config.spec, namespace, vs)
            && !imported()
    });
    idle
}

/// Tells whether a VirtualService must be for clients of its namespace: nobody else sees it, or its
/// hosts are services of others, which have rules of their own for everybody.
fn is_for_own_clients(
    context: &PushContext,
    spec: &VirtualService,
    namespace: &str,
    vs: &ResolvedVirtualService,
) -> bool {
    let is_private = vs.export_to.is_only(namespace);
    let is_own = |host: &String| context.services().get(host, namespace).is_some();
    is_private || !spec.hosts.iter().any(is_own)
}
