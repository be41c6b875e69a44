//! Gateways in, objects out.

use intake::Decoder;
use translate::Translator;

use super::*;

fn settings() -> DeploymentSettings {
    DeploymentSettings {
        gateways: true,
        classes: true,
        image: Some("proxy:1".to_owned()),
        address: "istiod.istio-system.svc:15012".to_owned(),
        templates: "istio-gateway-templates".to_owned(),
    }
}

pub(super) fn state(yaml: &str) -> MeshState {
    let decoder = Decoder {
        admitted: true,
        ..Decoder::default()
    };
    let decoded = decoder.decode("test.yaml", yaml);
    assert!(!decoded.broken, "{:#?}", decoded.findings);
    let mut state = MeshState::default();
    for object in decoded.objects {
        state.objects.insert(object);
    }
    state
}

/// What is made for all gateways, by kind and name.
fn made(yaml: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    made_of(state(yaml))
}

fn made_of(state: MeshState) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut translator = Translator::default();
    let state = translator.layer(state);
    let settings = settings();
    let rendering = Rendering::new(&state, &settings);
    let mut all = BTreeMap::new();
    for (name, report) in &translator.reports().gateways {
        let gateway = &state.objects.kubernetes_gateways[name];
        let Some(deployment) = &report.deployment else {
            continue;
        };
        for made in rendering.render(gateway, deployment)? {
            let Target { resource, name, .. } = made.target;
            all.insert(format!("{} {name}", resource.kind), made.fields);
        }
    }
    Ok(all)
}

fn gateway(class: &str, rest: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
         metadata: {{name: g, namespace: edge, uid: u, labels: {{team: a}}}}\n\
         spec:\n  gatewayClassName: {class}\n  listeners:\n  \
         - {{name: web, port: 80, protocol: HTTP}}\n  - {{name: again, port: 80, protocol: HTTP, hostname: h.io}}\n  \
         - {{name: tls.a, port: 443, protocol: TLS, tls: {{mode: Passthrough}}}}\n{rest}\n---\n"
    )
}

#[track_caller]
fn check(yaml: &str, object: &str, expected: &[(&str, Value)]) {
    let made = made(yaml).unwrap();
    let Some(object) = made.get(object) else {
        panic!("{object} is none of {:?}", made.keys());
    };
    for (path, expected) in expected {
        assert_eq!(object.pointer(path), Some(expected), "{path} of {object}");
    }
}

#[test]
fn a_gateway_is_a_workload_with_a_service_that_it_owns() {
    let yaml = gateway("istio", "");
    let names: Vec<String> = made(&yaml).unwrap().into_keys().collect();
    assert_eq!(
        names,
        [
            "Deployment g-istio",
            "Service g-istio",
            "ServiceAccount g-istio"
        ]
    );
    let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "g", "uid": "u"}]);
    let ports = json!([
        {"name": "status-port", "port": 15021, "protocol": "TCP", "appProtocol": "tcp"},
        {"name": "web", "port": 80, "protocol": "TCP", "appProtocol": "http"},
        {"name": "tls-a", "port": 443, "protocol": "TCP", "appProtocol": "tls"},
    ]);
    check(
        &yaml,
        "Service g-istio",
        &[
            ("/metadata/ownerReferences", owner),
            ("/metadata/labels/team", json!("a")),
            ("/spec/type", json!("LoadBalancer")),
            ("/spec/ports", ports),
            (
                "/spec/selector",
                json!({"gateway.networking.k8s.io/gateway-name": "g"}),
            ),
        ],
    );
    check(
        &yaml,
        "Deployment g-istio",
        &[
            ("/spec/template/spec/containers/0/image", json!("proxy:1")),
            ("/spec/template/spec/serviceAccountName", json!("g-istio")),
            (
                "/spec/template/metadata/labels/gateway.networking.k8s.io~1gateway-name",
                json!("g"),
            ),
        ],
    );
}

#[test]
fn gateways_say_how_their_objects_differ() {
    let rest = "  infrastructure:\n    labels: {a: b}\n    \
         annotations: {networking.istio.io/service-type: ClusterIP, sidecar.istio.io/proxyImage: 'p:2'}\n    \
         parametersRef: {group: '', kind: ConfigMap, name: more}";
    let more = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: more, namespace: edge}\ndata:\n  \
         deployment: 'spec: {replicas: 3, template: {spec: {containers: [{name: istio-proxy, env: [{name: X, value: y}]}]}}}'\n  \
         service: 'spec: {ipFamilyPolicy: null}'\n  \
         horizontalPodAutoscaler: 'spec: {maxReplicas: 5}'\n";
    let yaml = format!("{}{more}", gateway("istio", rest));
    check(
        &yaml,
        "Service g-istio",
        &[
            ("/spec/type", json!("ClusterIP")),
            ("/metadata/labels/a", json!("b")),
        ],
    );
    let all = made(&yaml).unwrap();
    assert_eq!(
        all["Service g-istio"].pointer("/metadata/labels/team"),
        None
    );
    assert_eq!(all["Service g-istio"].pointer("/spec/ipFamilyPolicy"), None);
    let container = all["Deployment g-istio"]
        .pointer("/spec/template/spec/containers/0")
        .unwrap();
    assert_eq!(container["image"], "p:2");
    let env = container["env"].as_array().unwrap();
    assert!(
        env.len() > 10 && env.iter().any(|env| env["name"] == "X"),
        "{env:?}"
    );
    assert_eq!(all["Deployment g-istio"]["spec"]["replicas"], 3);
    let scaler = &all["HorizontalPodAutoscaler g-istio"];
    assert_eq!(scaler["spec"]["maxReplicas"], 5);
    assert_eq!(scaler["spec"]["scaleTargetRef"]["name"], "g-istio");
    let error = made(&gateway("istio", rest)).unwrap_err();
    assert_eq!(error.to_string(), "ConfigMap edge/more does not exist");
}

#[test]
fn who_says_where_a_gateway_is_reached_deploys_it() {
    let manual = gateway("istio", "  addresses: [{type: Hostname, value: mine}]");
    assert_eq!(made(&manual).unwrap(), BTreeMap::new());
    assert_eq!(made(&gateway("istio-remote", "")).unwrap(), BTreeMap::new());
}

#[test]
fn waypoints_have_their_own_template_and_name() {
    let yaml = gateway("istio-waypoint", "");
    let args = ["proxy", "waypoint", "--domain"].map(|arg| json!(arg));
    let all = made(&yaml).unwrap();
    let given = all["Deployment g"]
        .pointer("/spec/template/spec/containers/0/args")
        .unwrap();
    assert_eq!(given.as_array().unwrap()[..3], args);
    check(&yaml, "Service g", &[("/spec/type", json!("ClusterIP"))]);
}

#[test]
fn a_config_map_replaces_templates() {
    let template = "apiVersion: v1\\nkind: Service\\nmetadata: {name: {{ name|tojson }}}\\nspec: {type: NodePort}\\n";
    let map = |template: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio-gateway-templates, namespace: istio-system}}\n\
             data: {{kube-gateway: \"{template}\"}}\n"
        )
    };
    let yaml = |template: &str| format!("{}{}", gateway("istio", ""), map(template));
    let all = made(&yaml(template)).unwrap();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["Service g-istio"]);
    check(
        &yaml(template),
        "Service g-istio",
        &[("/spec/type", json!("NodePort"))],
    );
    // What is no template leaves the built-in one; one that cannot be filled in makes nothing.
    assert_eq!(made(&yaml("{% if %}")).unwrap().len(), 3);
    assert!(made(&yaml("{{ nothing_of_that_name }}")).is_err());
    let foreign = template.replace("Service", "Secret");
    let error = made(&yaml(&foreign)).unwrap_err().to_string();
    assert!(error.contains("\"Secret\""), "{error}");
}

#[test]
fn what_is_there_as_it_was_made_is_not_written_again() {
    let yaml = gateway("istio", "");
    let mut translator = Translator::default();
    let state = translator.layer(state(&yaml));
    let settings = settings();
    let rendering = Rendering::new(&state, &settings);
    let report = translator
        .reports()
        .gateways
        .values()
        .next()
        .unwrap()
        .clone();
    let gateway = state.objects.kubernetes_gateways.values().next().unwrap();
    let made = rendering
        .render(gateway, report.deployment.as_ref().unwrap())
        .unwrap();
    let service = made
        .into_iter()
        .find(|made| made.target.resource.kind == "Service")
        .unwrap();
    let mut known = Known::new();
    assert!(
        differs(&known, service.clone()).is_some(),
        "it is not there"
    );
    // The API server adds what is so by default, and others add what is theirs.
    let mut there = service.fields.clone();
    there["spec"]["clusterIP"] = json!("10.0.0.1");
    there["spec"]["ports"][1]["nodePort"] = json!(30000);
    there["metadata"]["annotations"]["theirs"] = json!("x");
    known.insert(service.target.clone(), ("7".to_owned(), there.clone()));
    assert_eq!(differs(&known, service.clone()), None);
    let spoil = |path: &str, value: Value| {
        let mut spoilt = there.clone();
        *spoilt.pointer_mut(path).unwrap() = value;
        let known = Known::from([(service.target.clone(), ("8".to_owned(), spoilt))]);
        differs(&known, service.clone()).and_then(|wanted| wanted.seen)
    };
    assert_eq!(spoil("/spec/ports/1/port", json!(81)).as_deref(), Some("8"));
    assert_eq!(
        spoil(
            "/metadata/annotations/gateway.istio.io~1rendered",
            json!("0")
        )
        .as_deref(),
        Some("8")
    );
    assert_eq!(spoil("/metadata/annotations/theirs", json!("y")), None);
}

#[test]
fn classes_that_are_missing_are_made() {
    let state = state(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: istio}\nspec: {controllerName: other}\n",
    );
    let names: Vec<String> = missing_classes(&state)
        .into_iter()
        .map(|wanted| wanted.target.name)
        .collect();
    assert_eq!(names, ["istio-remote", "istio-waypoint", "istio-east-west"]);
}

#[test]
fn labels_of_a_gateway_may_stay_its_own() {
    let labelled = |copied: bool| {
        let mut state = state(&gateway("istio", ""));
        Arc::make_mut(&mut state.features).gateway_api_copy_metadata = copied;
        let made = made_of(state).unwrap();
        made["Service g-istio"]
            .pointer("/metadata/labels/team")
            .is_some()
    };
    assert!(labelled(true));
    assert!(!labelled(false));
}
