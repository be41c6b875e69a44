use std::sync::Arc;

use model::Meta;
use serde_json::json;

use super::*;

pub(crate) const AGENT: &str = "spiffe://cluster.local/ns/istio-system/sa/ztunnel";

pub(crate) fn trusted() -> Account {
    ("istio-system".to_owned(), "ztunnel".to_owned())
}

/// A mesh with agents and workloads on two nodes.
pub(crate) fn state() -> MeshState {
    let mut state = MeshState::default();
    for (namespace, name, account, node, phase) in [
        ("istio-system", "ztunnel-1", "ztunnel", "n1", "Running"),
        ("istio-system", "ztunnel-2", "ztunnel", "n2", "Running"),
        ("istio-system", "ztunnel-3", "ztunnel", "", "Pending"),
        ("istio-system", "other", "other", "n1", "Running"),
        ("shop", "web-1", "web", "n1", "Running"),
        ("shop", "cart-2", "cart", "n2", "Running"),
        ("shop", "job-1", "job", "n1", "Succeeded"),
        ("shop", "plain", "", "n1", "Running"),
    ] {
        let meta = Meta {
            name: name.into(),
            namespace: namespace.into(),
            uid: format!("of-{name}"),
            ..Meta::default()
        };
        let spec = json!({
            "spec": {"serviceAccountName": account, "nodeName": node},
            "status": {"phase": phase},
        });
        let spec = serde_json::from_value(spec).unwrap();
        let name = meta.namespaced_name();
        state
            .objects
            .pods
            .insert(name, Arc::new(Config { meta, spec }));
    }
    state
}

#[track_caller]
fn check(caller: &str, pod: Option<(&str, &str)>, wanted: &str, expected: Result<(), Denied>) {
    let state = state();
    let trusted = [trusted()];
    let pod = pod.map(|(name, uid)| BoundPod {
        name: name.to_owned(),
        uid: uid.to_owned(),
    });
    let (caller, wanted) = (caller.parse().unwrap(), wanted.parse().unwrap());
    let found = authorize(&state, &trusted, &caller, pod.as_ref(), &wanted);
    assert_eq!(found, expected);
}

#[test]
fn an_agent_speaks_for_the_pods_of_its_node() {
    let one = Some(("ztunnel-1", "of-ztunnel-1"));
    let two = Some(("ztunnel-2", "of-ztunnel-2"));
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    let cart = "spiffe://cluster.local/ns/shop/sa/cart";
    check(AGENT, one, web, Ok(()));
    check(AGENT, two, web, Err(Denied::NotThere));
    check(AGENT, two, cart, Ok(()));
    check(
        AGENT,
        one,
        "spiffe://cluster.local/ns/shop/sa/default",
        Ok(()),
    );
    let elsewhere = "spiffe://cluster.local/ns/other/sa/web";
    check(AGENT, one, elsewhere, Err(Denied::NotThere));
    let done = "spiffe://cluster.local/ns/shop/sa/job";
    check(AGENT, one, done, Err(Denied::NotThere));
    let foreign = "spiffe://foreign/ns/shop/sa/web";
    check(AGENT, one, foreign, Err(Denied::Foreign));
}

#[test]
fn an_agent_is_a_pod_that_exists() {
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    check(AGENT, None, web, Err(Denied::Unbound));
    let replaced = Some(("ztunnel-1", "of-another"));
    check(AGENT, replaced, web, Err(Denied::UnknownPod));
    let of_another_account = Some(("other", "of-other"));
    check(AGENT, of_another_account, web, Err(Denied::UnknownPod));
    let waiting = Some(("ztunnel-3", "of-ztunnel-3"));
    check(AGENT, waiting, web, Err(Denied::NoNode));
    let one = Some(("ztunnel-1", "of-ztunnel-1"));
    let untrusted = "spiffe://cluster.local/ns/shop/sa/ztunnel";
    check(untrusted, one, web, Err(Denied::Untrusted));
}
