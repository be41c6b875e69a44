use model::{Labels, NamespacedName};

use super::{ExtensionQuery, FilterChainKind, PatchTarget, TrafficSide};
use crate::{PushContext, Workload, testing::snapshot};

fn object(kind: &str, name: &str, namespace: &str, created: u32, spec: &str) -> String {
    let version = match kind {
        "AuthorizationPolicy" => "security.istio.io/v1",
        "Telemetry" => "telemetry.istio.io/v1",
        "EnvoyFilter" => "networking.istio.io/v1alpha3",
        _ => "extensions.istio.io/v1alpha1",
    };
    format!(
        "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}, \
         creationTimestamp: \"2024-01-01T00:00:{created:02}Z\"}}\nspec: {spec}\n---\n"
    )
}

fn labels(labels: &[(&str, &str)]) -> Labels {
    labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

fn names<'a>(names: impl IntoIterator<Item = &'a model::Meta>) -> Vec<String> {
    names
        .into_iter()
        .map(|m| m.namespaced_name().to_string())
        .collect()
}

#[track_caller]
fn check(
    yaml: &str,
    with: &[(&str, &str)],
    list: impl Fn(&PushContext, &Workload<'_>) -> Vec<NamespacedName>,
    expected: &[&str],
) {
    let labels = labels(with);
    let workload = Workload {
        namespace: "a",
        labels: &labels,
        is_waypoint: false,
        services: &[],
    };
    let found: Vec<_> = list(&snapshot(yaml, []), &workload)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn authorization_policies_of_the_root_come_first() {
    let policy = |name, namespace, created, spec| {
        object("AuthorizationPolicy", name, namespace, created, spec)
    };
    let yaml = policy("late", "a", 2, "{}")
        + &policy("early", "a", 1, "{}")
        + &policy("deny", "a", 1, "{action: DENY, rules: [{}]}")
        + &policy(
            "selecting",
            "istio-system",
            3,
            "{selector: {matchLabels: {app: x}}}",
        )
        + &policy(
            "targeting",
            "a",
            0,
            "{targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}]}",
        )
        + &policy("elsewhere", "b", 0, "{}");
    let allow = |context: &PushContext, workload: &Workload<'_>| {
        let policies = context.authorization_policies(workload).allow;
        policies.iter().map(|p| p.meta.namespaced_name()).collect()
    };
    let expected = ["istio-system/selecting", "a/early", "a/late"];
    check(&yaml, &[("app", "x")], allow, &expected);
    let gateway = ("gateway.networking.k8s.io/gateway-name", "g");
    check(
        &yaml,
        &[gateway],
        allow,
        &["a/targeting", "a/early", "a/late"],
    );
    check(
        &yaml,
        &[],
        |context, workload| {
            let policies = context.authorization_policies(workload).deny;
            policies.iter().map(|p| p.meta.namespaced_name()).collect()
        },
        &["a/deny"],
    );
}

#[test]
fn telemetry_is_layered() {
    let telemetry =
        |name, namespace, created, spec| object("Telemetry", name, namespace, created, spec);
    let yaml = telemetry("root", "istio-system", 1, "{}")
        + &telemetry(
            "root-selecting",
            "istio-system",
            1,
            "{selector: {matchLabels: {app: x}}}",
        )
        + &telemetry("second", "a", 2, "{}")
        + &telemetry("first", "a", 1, "{selector: {}}")
        + &telemetry("w2", "a", 5, "{selector: {matchLabels: {app: x}}}")
        + &telemetry("w1", "a", 4, "{selector: {matchLabels: {app: x}}}");
    let layers = |context: &PushContext, workload: &Workload<'_>| {
        context
            .telemetries(workload)
            .iter()
            .map(|t| t.meta.namespaced_name())
            .collect()
    };
    check(
        &yaml,
        &[("app", "x")],
        layers,
        &["istio-system/root", "a/first", "a/w1", "a/w2"],
    );
}

#[test]
fn envoy_filters_go_by_priority_then_root_then_age_then_name() {
    let filter =
        |name, namespace, created, spec| object("EnvoyFilter", name, namespace, created, spec);
    let yaml = filter("z", "a", 1, "{priority: -5}")
        + &filter("x", "istio-system", 9, "{priority: -1}")
        + &filter("b", "a", 3, "{}")
        + &filter("a", "a", 3, "{}")
        + &filter("old", "a", 2, "{}")
        + &filter("root", "istio-system", 9, "{}")
        + &filter("not", "a", 0, "{workloadSelector: {labels: {app: other}}}");
    let list = |context: &PushContext, workload: &Workload<'_>| {
        context
            .envoy_filters(workload, &PatchTarget::ALL)
            .iter()
            .map(|f| f.meta.namespaced_name())
            .collect()
    };
    let expected = [
        "a/z",
        "istio-system/x",
        "istio-system/root",
        "a/old",
        "a/a",
        "a/b",
    ];
    check(&yaml, &[("app", "x")], list, &expected);
}

#[test]
fn extensions_of_a_chain_go_by_priority() {
    let plugin = |name, namespace, spec| object("WasmPlugin", name, namespace, 0, spec);
    let yaml = plugin("none", "a", "{url: oci://x, phase: AUTHN}")
        + &plugin(
            "low",
            "a",
            "{url: oci://x, phase: AUTHN, priority: -7, imagePullSecret: s}",
        )
        + &plugin(
            "high",
            "istio-system",
            "{url: oci://x, phase: AUTHN, priority: 3}",
        )
        + &plugin(
            "server",
            "a",
            "{url: oci://x, phase: AUTHN, match: [{mode: SERVER}]}",
        )
        + &plugin(
            "port",
            "a",
            "{url: oci://x, phase: AUTHN, match: [{ports: [{number: 9}]}]}",
        )
        + &plugin(
            "network",
            "a",
            "{url: oci://x, phase: AUTHN, type: NETWORK}",
        )
        + &object(
            "TrafficExtension",
            "lua",
            "a",
            0,
            "{phase: AUTHN, lua: {inlineCode: x}}",
        );
    let context = snapshot(&yaml, []);
    let labels = labels(&[]);
    let workload = Workload {
        namespace: "a",
        labels: &labels,
        is_waypoint: false,
        services: &[],
    };
    let mut query = ExtensionQuery {
        side: TrafficSide::Client,
        port: 80,
        chain: FilterChainKind::Http,
    };
    let attached = context.traffic_extensions(&workload);
    let found: Vec<_> = attached.iter().filter(|e| query.selects(&e.spec)).collect();
    let plugin = |name: &str| format!("{name}~istio-translated-wasmplugin");
    let expected = [
        plugin("istio-system/high"),
        plugin("a/low"),
        "a/lua".to_owned(),
        plugin("a/none"),
    ];
    assert_eq!(names(found.iter().map(|e| &e.meta)), expected);
    assert_eq!(
        found[1].spec.wasm.as_ref().unwrap().image_pull_secret,
        "kubernetes://a/s"
    );
    query.chain = FilterChainKind::Network;
    let found: Vec<_> = attached.iter().filter(|e| query.selects(&e.spec)).collect();
    assert_eq!(names(found.iter().map(|e| &e.meta)), [plugin("a/network")]);
}
