//! HTTP rules for ports that do not say that they speak HTTP.

use model::{
    Port, Service,
    api::virtual_service::{HttpMatchRequest, HttpRoute},
};

use super::{Advice, key, name, ports, resolved};
use crate::{PushContext, RouteSemantics};

pub(super) fn check(context: &PushContext, advice: &mut Vec<Advice>) {
    for vs in resolved(context) {
        let spec = &vs.config.spec;
        if vs.semantics != RouteSemantics::Istio
            || spec.http.is_empty()
            || !vs.gateways().any(|gateway| gateway == "mesh")
        {
            continue;
        }
        for (at, host) in spec.hosts.iter().enumerate() {
            let Some(service) = context.services().by_host(host).next() else {
                continue;
            };
            let touched = |port: &&Port| spec.http.iter().any(|rule| concerns(rule, port));
            let mut concerned = service.ports.iter().filter(touched).peekable();
            if concerned.peek().is_none() {
                continue;
            }
            let speaks_http =
                |port: &Port| port.protocol.is_http() || port.protocol.is_unsupported();
            if !service.ports.iter().any(speaks_http) {
                advice.push(Advice {
                    object: key(&vs.config),
                    field: format!("spec.hosts[{at}]"),
                    reason: format!(
                        "no port of {host} ({}) speaks HTTP: HTTP rules have no effect on it",
                        ports(service)
                    ),
                });
                continue;
            }
            let guessed = concerned.filter(|port| port.protocol.is_unsupported());
            advice.extend(guessed.map(|port| Advice {
                object: service.source.key().clone(),
                field: field(service, port),
                reason: format!(
                    "nothing says that port {} speaks HTTP, and {} has HTTP rules for it: they are \
                     skipped when a connection does not look like HTTP; a name that starts with \
                     http, or appProtocol, says it",
                    port.port,
                    name(&key(&vs.config))
                ),
            }));
        }
    }
}

/// Tells whether a rule may apply to requests that come to a port.
fn concerns(rule: &HttpRoute, port: &Port) -> bool {
    let applies = |m: &HttpMatchRequest| m.port == 0 || m.port == u32::from(port.port);
    rule.r#match.is_empty() || rule.r#match.iter().any(applies)
}

fn field(service: &Service, port: &Port) -> String {
    let at = service.ports.iter().position(|other| other == port);
    format!("spec.ports[{}]", at.unwrap_or_default())
}
