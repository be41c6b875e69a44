//! Agents of nodes, which ask for the certificates of others: of the pods on their own node, and of
//! nobody else (ztunnel does).

use model::{Config, MeshState, NamespacedName, SpiffeId, api::kubernetes::Pod};
use security::BoundPod;

/// A service account, by namespace and name.
pub(crate) type Account = (String, String);

/// Why an agent gets no certificate of somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Denied {
    #[error("its service account is not in CA_TRUSTED_NODE_ACCOUNTS")]
    Untrusted,
    #[error("its token is bound to no pod")]
    Unbound,
    #[error("the pod of its token is not known, or is another one by now")]
    UnknownPod,
    #[error("its pod runs on no node yet")]
    NoNode,
    #[error("the identity is of another trust domain")]
    Foreign,
    #[error("no pod of the identity runs on its node")]
    NotThere,
}

/// Decides whether `caller`, whose token is bound to `pod`, may have a certificate of `wanted`.
///
/// What decides where pods run is the state of the mesh, not what anybody says.
pub(super) fn authorize(
    state: &MeshState,
    trusted: &[Account],
    caller: &SpiffeId,
    pod: Option<&BoundPod>,
    wanted: &SpiffeId,
) -> Result<(), Denied> {
    let own = (&**caller.namespace(), &**caller.service_account());
    if !trusted.iter().any(|(ns, name)| (&**ns, &**name) == own) {
        return Err(Denied::Untrusted);
    }
    let bound = pod.ok_or(Denied::Unbound)?;
    let pods = &state.objects.pods;
    let name = NamespacedName::new(caller.namespace().clone(), bound.name.as_str());
    let agent = pods
        .get(&name)
        .filter(|agent| {
            agent.meta.uid == bound.uid && account(agent) == &**caller.service_account()
        })
        .ok_or(Denied::UnknownPod)?;
    let node = &agent.spec.spec.node_name;
    if node.is_empty() {
        return Err(Denied::NoNode);
    }
    if **wanted.trust_domain() != *state.mesh.trust_domain {
        return Err(Denied::Foreign);
    }
    let first = NamespacedName::new(wanted.namespace().clone(), "");
    let runs_there = pods
        .range(first..)
        .take_while(|(name, _)| name.namespace == *wanted.namespace())
        .any(|(_, pod)| {
            pod.spec.spec.node_name == *node
                && account(pod) == &**wanted.service_account()
                && !matches!(&*pod.spec.status.phase, "Succeeded" | "Failed")
        });
    runs_there.then_some(()).ok_or(Denied::NotThere)
}

fn account(pod: &Config<Pod>) -> &str {
    match &*pod.spec.spec.service_account_name {
        "" => "default",
        name => name,
    }
}

#[cfg(test)]
pub(super) mod tests;
