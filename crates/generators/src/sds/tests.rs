//! Who gets which secret.

use std::sync::Arc;

use envoy_json::to_json;
use model::{Config, MeshState, Meta, NamespacedName, Node, Object, Proxy, api};
use pushctx::PushContext;
use serde_json::{Value, json};
use xds::{Interest, type_url};

use super::{Identity, generate};

/// Builds a state with Secrets and `ConfigMap`s, given as kind, `namespace/name` and values.
fn state(objects: &[(&str, &str, Value)]) -> MeshState {
    let mut state = MeshState::default();
    for (kind, name, values) in objects {
        let (namespace, name) = name.split_once('/').unwrap();
        let meta = Meta {
            namespace: namespace.into(),
            name: name.into(),
            ..Meta::default()
        };
        let object = if *kind == "Secret" {
            let spec = serde_json::from_value(json!({"stringData": values})).unwrap();
            Object::Secret(Arc::new(Config { meta, spec }))
        } else {
            let spec = serde_json::from_value(json!({"data": values})).unwrap();
            Object::ConfigMap(Arc::new(Config { meta, spec }))
        };
        state.objects.insert(object);
    }
    state
}

fn router(identity: Option<Identity>) -> Proxy {
    let node = Node {
        id: "router~10.1.1.1~gw-0.gw~gw.svc.cluster.local".to_owned(),
        ..Node::default()
    };
    Proxy {
        identity,
        ..Proxy::parse(&node).unwrap()
    }
}

fn identity(reads_secrets: bool) -> Identity {
    Identity {
        namespace: "gw".into(),
        service_account: "gateway".into(),
        reads_secrets,
        owns_gateways: true,
    }
}

/// Names of `asked` that are served, in order.
#[track_caller]
fn check(state: &MeshState, identity: Option<Identity>, asked: &[&str], expected: &[&str]) {
    let context = PushContext::build(state.clone());
    let verified = identity.is_some();
    let class = context.resolve(&context.classify(&router(identity)));
    let set = generate(&context, &class, &Interest::named(asked.iter().copied()));
    let missing = if verified {
        asked.len() - expected.len()
    } else {
        0
    };
    assert_eq!(context.secret_errors().take(), missing as u64);
    let names: Vec<&str> = set.iter().map(|resource| &**resource.name()).collect();
    assert_eq!(names, expected);
}

fn pair() -> Value {
    json!({"tls.crt": "c", "tls.key": "k", "ca.crt": "a", "ca.crl": "r"})
}

#[test]
fn an_identity_gets_the_secrets_of_its_namespace() {
    let state = state(&[
        ("Secret", "gw/cert", pair()),
        ("Secret", "web/cert", pair()),
        ("ConfigMap", "web/ca", json!({"ca.crt": "a"})),
    ]);
    let asked = [
        "kubernetes://cert",
        "kubernetes://cert-cacert",
        "kubernetes://web/cert",
        "kubernetes://missing",
        "kubernetes-gateway://gw/cert",
        "configmap://web/ca-cacert",
        "invalid://",
        "default",
    ];
    let served = [
        "configmap://web/ca-cacert",
        "kubernetes://cert",
        "kubernetes://cert-cacert",
    ];
    check(&state, Some(identity(true)), &asked, &served);
    let without_keys = [served[0], served[2]];
    check(&state, Some(identity(false)), &asked, &without_keys);
    check(&state, None, &asked, &[]);
}

#[test]
fn gateways_refer_to_secrets_of_others_by_leave() {
    let mut state = state(&[("Secret", "web/cert", pair())]);
    let name = "kubernetes-gateway://web/cert";
    let spec = json!({"servers": [{
        "port": {"number": 443, "name": "https", "protocol": "HTTPS"},
        "hosts": ["*"],
        "tls": {"mode": "MUTUAL", "credentialName": name},
    }]});
    let meta = Meta {
        namespace: "gw".into(),
        name: "g".into(),
        ..Meta::default()
    };
    state.objects.insert(Object::Gateway(Arc::new(Config {
        meta,
        spec: api::decode(&spec).unwrap().value,
    })));
    let asked = [name, "kubernetes-gateway://web/cert-cacert"];
    check(&state, Some(identity(false)), &asked, &[]);
    let grant = json!({
        "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "gw"}],
        "to": [{"group": "", "kind": "Secret"}],
    });
    let meta = Meta {
        namespace: "web".into(),
        name: "grant".into(),
        ..Meta::default()
    };
    state
        .objects
        .insert(Object::ReferenceGrant(Arc::new(Config {
            meta,
            spec: api::decode(&grant).unwrap().value,
        })));
    check(&state, Some(identity(false)), &asked, &asked);
    let stranger = Identity {
        namespace: "other".into(),
        ..identity(true)
    };
    check(&state, Some(stranger), &asked, &[]);
    let late = Identity {
        owns_gateways: false,
        ..identity(true)
    };
    check(&state, Some(late), &asked, &[]);
}

#[test]
fn a_secret_named_for_authorities_comes_first_and_stands_alone() {
    let both = state(&[
        ("Secret", "gw/cert", pair()),
        ("Secret", "gw/cert-cacert", json!({"cacert": "own"})),
    ]);
    let context = PushContext::build(both);
    let class = context.resolve(&context.classify(&router(Some(identity(true)))));
    let set = generate(
        &context,
        &class,
        &Interest::named(["kubernetes://cert-cacert"]),
    );
    let resource = set.get("kubernetes://cert-cacert").unwrap();
    let json = to_json(type_url::SECRET, &resource.body().to_bytes()).unwrap();
    let expected = json!({"name": "kubernetes://cert-cacert",
        "validationContext": {"trustedCa": {"inlineBytes": "b3du"}}});
    assert_eq!(json, expected);
    assert!(resource.sources().contains("Secret/gw/cert-cacert"));

    let empty = state(&[
        ("Secret", "gw/cert", pair()),
        ("Secret", "gw/cert-cacert", json!({"other": "x"})),
    ]);
    let asked = ["kubernetes://cert", "kubernetes://cert-cacert"];
    check(&empty, Some(identity(true)), &asked, &asked[..1]);
    let key = NamespacedName::new("gw", "cert-cacert");
    let mut without = empty;
    without.objects.secrets.remove(&key);
    check(&without, Some(identity(true)), &asked, &asked);
}
