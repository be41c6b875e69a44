//! The commands as a user runs them: what they print, where, and with which exit status.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};
use tempfile::TempDir;

const NODE: &str = "
id: sidecar~10.1.0.1~web-0.shop~shop.svc.cluster.local
cluster: web.shop
locality: {region: r, zone: z}
metadata: {NAMESPACE: shop, INSTANCE_IPS: 10.1.0.1, LABELS: {app: web}}
";

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.2.0.1
  ports: [{name: http, port: 80}]
";

/// A folder with files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Runs a command in a folder, without any settings from outside.
fn istiod(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_istiod"))
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The command fails and says so in one way: the last line of the error output.
#[track_caller]
fn check_error(files: &[(&str, &str)], arguments: &[&str], status: i32, expected: &str) {
    let output = istiod(folder(files).path(), arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{error}");
    assert!(
        error.lines().any(|line| line == expected),
        "{error:?} lacks {expected:?}"
    );
    assert_eq!(
        text(&output.stdout),
        "",
        "nothing is printed when nothing can be"
    );
}

/// `validate` reports exactly these lines.
#[track_caller]
fn check_report(files: &[(&str, &str)], status: i32, expected: &[&str]) {
    let output = istiod(folder(files).path(), &["validate", "--config", "."]);
    let report: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(report, expected);
    assert_eq!(output.status.code(), Some(status));
}

#[test]
fn validate_accepts_what_is_right() {
    check_report(
        &[("web.yaml", SERVICE)],
        0,
        &["1 objects accepted, 0 refused, 0 warnings, 0 of kinds that are not read"],
    );
}

#[test]
fn validate_tells_what_patches_touch_and_why_not() {
    let filter = |name: &str, spec: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"
        )
    };
    let outbound = |apply_to: &str, rest: &str, patch: &str| {
        format!(
            "{{applyTo: {apply_to}, match: {{context: SIDECAR_OUTBOUND, {rest}}}, patch: {patch}}}"
        )
    };
    let manager = "name: envoy.filters.network.http_connection_manager";
    let tcp = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
    let timeout = "{operation: MERGE, value: {connect_timeout: 1s}}";
    let patches = [
        outbound(
            "CLUSTER",
            "cluster: {service: web.shop.svc.cluster.local}",
            timeout,
        ),
        outbound("CLUSTER", "cluster: {service: nobody.example.com}", timeout),
        outbound(
            "HTTP_FILTER",
            &format!(
                "listener: {{filterChain: {{filter: {{{manager}, subFilter: {{name: absent}}}}}}}}"
            ),
            "{operation: REMOVE}",
        ),
        outbound(
            "NETWORK_FILTER",
            &format!("listener: {{portNumber: 80, filterChain: {{filter: {{{manager}}}}}}}"),
            &format!(
                "{{operation: MERGE, value: {{typed_config: {{\"@type\": {tcp}, stat_prefix: s}}}}}}"
            ),
        ),
    ];
    let some = filter(
        "some",
        &format!("{{configPatches: [{}]}}", patches.join(", ")),
    );
    let added = "{operation: ADD, value: {name: a, type: STATIC, connect_timeout: 1s}}";
    // Nothing in the folder is a gateway: one as the selector says is assumed, and gets `some` too.
    let gateways = filter(
        "gateways",
        &format!(
            "{{workloadSelector: {{labels: {{istio: ingress}}}}, configPatches: [{{applyTo: CLUSTER, match: {{context: GATEWAY}}, patch: {added}}}]}}"
        ),
    );
    let none = filter(
        "none",
        &format!(
            "{{targetRefs: [{{group: \"\", kind: Service, name: web}}], configPatches: [{{applyTo: CLUSTER, patch: {added}}}]}}"
        ),
    );
    let pod = "---\n{apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: shop}, status: {phase: Running, podIP: 10.1.0.1}}\n";
    let files = [("a.yaml", format!("{SERVICE}{pod}{some}{gateways}{none}"))];
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    let output = istiod(folder(&files).path(), &["validate", "--config", "."]);
    let report = text(&output.stdout);
    let lines = [
        "some: spec.configPatches[1]: touches no resource: matches nothing that is built for 2 classes of proxies",
        "some: spec.configPatches[2]: touches no resource: REMOVE: no filter is called \"absent\"",
        "some: spec.configPatches[3]: skipped where it does not fit: \"envoy.filters.network.http_connection_manager\": cannot merge a",
        "none: spec.configPatches[0]: touches no resource: the filter attaches to no proxy",
        "EnvoyFilter shop/gateways: touches 1 resources in 1 of 1 classes of proxies",
        "EnvoyFilter shop/none: touches 0 resources in 0 of 0 classes of proxies",
        "EnvoyFilter shop/some: touches 1 resources in 1 of 2 classes of proxies",
    ];
    for line in lines {
        assert!(report.contains(line), "{report} lacks {line}");
    }
    assert!(
        !report.contains("spec.configPatches[0]: skipped"),
        "{report}"
    );
    assert_eq!(output.status.code(), Some(0), "warnings are no errors");
}

#[test]
fn validate_names_file_line_field_and_reason() {
    let rule = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web]
  http:
  - route:
    - destination: {host: web}
    timeout: soon
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web
  trafficPolcy: {}
";
    check_report(
        &[
            ("a.yaml", rule),
            ("b.yaml", "kind: Service\nspec: [\n"),
            (
                "c.json",
                r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}"#,
            ),
            ("d.yml", SERVICE),
            ("readme.md", "not read"),
        ],
        1,
        &[
            "./a.yaml:10: error: VirtualService shop/web: spec.http[0].timeout: \"soon\" is not a duration \
             such as \"1.5s\", \"500ms\" or \"1h30m\"",
            "./a.yaml:17: warning: DestinationRule shop/web: spec.trafficPolcy: unknown field",
            "./b.yaml:3: error: column 1: while parsing a node, did not find expected node content",
            "./c.json:1: ignored: Deployment x: nothing reads apps/v1 Deployment",
            "2 objects accepted, 1 refused, 1 warnings, 1 of kinds that are not read",
        ],
    );
}

#[test]
fn validate_warns_of_what_does_not_fit_together() {
    let rules = "
apiVersion: v1
kind: List
items:
- apiVersion: networking.istio.io/v1
  kind: VirtualService
  metadata: {name: web, namespace: shop}
  spec:
    hosts: [web]
    http:
    - route:
      - destination: {host: web, subset: v1}
";
    check_report(
        &[("a.yaml", rules), ("b.yaml", SERVICE)],
        0,
        &[
            "./a.yaml:12: warning: VirtualService shop/web: spec.http[0].route[0].destination.subset: \
             web.shop.svc.cluster.local has no subset \"v1\": no DestinationRule of the host has subsets",
            "2 objects accepted, 0 refused, 1 warnings, 0 of kinds that are not read",
        ],
    );
}

#[test]
fn validate_writes_json_for_pipelines() {
    let gateway = "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: shop}
spec:
  servers:
  - port: {number: 99999, name: http, protocol: HTTP}
    hosts: ['*']
";
    let folder = folder(&[("gw.yaml", gateway)]);
    let output = istiod(
        folder.path(),
        &["validate", "--config", "gw.yaml", "--output", "json"],
    );
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        found,
        json!([{
            "kind": "Gateway",
            "namespace": "shop",
            "name": "gw",
            "file": "gw.yaml",
            "line": 7,
            "field": "spec.servers[0].port.number",
            "reason": "port 99999 is out of range, allowed are 1 to 65535",
            "severity": "error",
        }])
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn validate_judges_the_mesh_configuration_too() {
    let folder = folder(&[
        ("web.yaml", SERVICE),
        ("mesh.yaml", "trustDomain: td\nproxyListenPort: -1\n"),
    ]);
    let arguments = [
        "validate",
        "--config",
        "web.yaml",
        "--mesh-config",
        "mesh.yaml",
    ];
    let output = istiod(folder.path(), &arguments);
    let report = text(&output.stdout);
    let expected = "mesh.yaml:2: error: MeshConfig: proxyListenPort: ";
    assert!(report.starts_with(expected), "{report}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn paths_must_exist() {
    check_error(
        &[],
        &["validate", "--config", "nowhere"],
        1,
        "error: read nowhere: No such file or directory (os error 2)",
    );
    check_error(
        &[("web.yaml", SERVICE)],
        &["generate", "--config", "web.yaml", "--node", "node.yaml"],
        1,
        "error: read the node file node.yaml: No such file or directory (os error 2)",
    );
}

#[test]
fn a_bad_node_is_told_with_file_line_and_field() {
    let check = |node: &str, expected: &str| {
        for command in [
            &["generate", "--config", "web.yaml", "--node", "node.yaml"][..],
            &[
                "bootstrap",
                "--node",
                "node.yaml",
                "--xds-address",
                "127.0.0.1:15010",
            ],
        ] {
            check_error(
                &[("web.yaml", SERVICE), ("node.yaml", node)],
                command,
                1,
                expected,
            );
        }
    };
    check(
        "cluster: c\nid: web\n",
        "error: node.yaml:2: id: node id \"web\" does not have the form type~ip~id~domain",
    );
    check("cluster: c\n", "error: node.yaml:1: the node has no id");
    check(
        &NODE.replace("metadata:", "metdata:"),
        "error: node.yaml:5: metdata: unknown field; a node has id, cluster, locality, metadata and extensions",
    );
    check(
        "id: sidecar~10.1.0.1~a.b~c\nmetadata: 5\n",
        "error: node.yaml:2: metadata: found the number 5, expected an object",
    );
    check(
        "id: [\n",
        "error: node.yaml:2: column 1: while parsing a node, did not find expected node content",
    );
    check(
        "id: a\n---\nid: b\n",
        "error: node.yaml: a node file holds one document, this one 2",
    );
}

#[test]
fn bad_flags_and_settings_say_what_is_allowed() {
    let files = [("web.yaml", SERVICE), ("node.yaml", NODE)];
    let generate = ["generate", "--config", "web.yaml", "--node", "node.yaml"];
    check_error(
        &files,
        &[&generate[..], &["--type", "cds,xds"]].concat(),
        2,
        "error: invalid value 'xds' for '--type <TYPE>': \"xds\" is not one of cds, eds, lds, rds, sds, ecds, nds",
    );
    check_error(
        &files,
        &["bootstrap", "--node", "node.yaml", "--xds-address", "host"],
        2,
        "error: invalid value 'host' for '--xds-address <HOST:PORT>': \"host\" is not HOST:PORT",
    );
    let folder = folder(&files);
    let output = Command::new(env!("CARGO_BIN_EXE_istiod"))
        .args(generate)
        .current_dir(folder.path())
        .env_clear()
        .env("PILOT_DEBOUNCE_AFTER", "soon")
        .output()
        .unwrap();
    let expected = "error: PILOT_DEBOUNCE_AFTER: \"soon\" is not a duration that is not negative, such as 100ms\n";
    assert_eq!(text(&output.stderr), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn generate_prints_the_lists_that_were_asked_for() {
    let folder = folder(&[("web.yaml", SERVICE), ("node.yaml", NODE)]);
    let generate = |more: &[&str]| {
        let arguments = [
            &["generate", "--config", "web.yaml", "--node", "node.yaml"],
            more,
        ]
        .concat();
        let output = istiod(folder.path(), &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    };
    let all: Value = serde_json::from_slice(&generate(&[])).unwrap();
    let lists: Vec<&String> = all.as_object().unwrap().keys().collect();
    // In JSON order does not count.
    assert_eq!(
        lists,
        [
            "clusters",
            "endpoints",
            "extensions",
            "listeners",
            "nameTables",
            "routes",
            "secrets"
        ]
    );
    let names = |list: &Value, key: &str| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|r| r[key].as_str().unwrap().to_owned()).collect()
    };
    let clusters = names(&all["clusters"], "name");
    assert!(clusters.contains(&"outbound|80||web.shop.svc.cluster.local".to_owned()));
    assert!(clusters.is_sorted());
    assert_eq!(
        names(&all["endpoints"], "clusterName"),
        ["outbound|80||web.shop.svc.cluster.local"]
    );
    assert_eq!(names(&all["routes"], "name"), ["80"]);

    let some: Value = serde_json::from_slice(&generate(&["--type", "eds,rds"])).unwrap();
    assert_eq!(
        some,
        json!({"endpoints": all["endpoints"], "routes": all["routes"]})
    );
    let yaml = generate(&["--output", "yaml"]);
    assert_eq!(intake::yaml_values(text(&yaml)).unwrap(), [all]);
}

/// A VirtualService that gives requests to the service some time.
fn timeout(seconds: u32) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: web, namespace: shop}}
spec:
  hosts: [web]
  http:
  - timeout: {seconds}s
    route: [{{destination: {{host: web}}}}]
"
    )
}

#[test]
fn generate_tells_what_a_change_changes() {
    let other = SERVICE
        .replace("name: web", "name: api")
        .replace(".1\n", ".2\n");
    let folder = folder(&[
        ("node.yaml", NODE),
        ("old.yaml", &format!("{SERVICE}---{}---{other}", timeout(1))),
        ("new.yaml", &format!("{SERVICE}---{}", timeout(2))),
    ]);
    let diff = |arguments: &[&str], status: i32| {
        let fixed = ["generate", "--node", "node.yaml", "--diff"];
        let output = istiod(folder.path(), &[&fixed, arguments].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{error}");
        text(&output.stdout).to_owned()
    };
    assert_eq!(diff(&["new.yaml", "new.yaml"], 0), "");
    assert_eq!(
        diff(&["old.yaml", "new.yaml", "--type", "cds,rds"], 1),
        "\
- clusters outbound|80||api.shop.svc.cluster.local
~ routes 80
    - virtualHosts[api.shop.svc.cluster.local:80]
    - virtualHosts[web.shop.svc.cluster.local:80].routes[0].route.maxGrpcTimeout: \"1s\"
    + virtualHosts[web.shop.svc.cluster.local:80].routes[0].route.maxGrpcTimeout: \"2s\"
    - virtualHosts[web.shop.svc.cluster.local:80].routes[0].route.timeout: \"1s\"
    + virtualHosts[web.shop.svc.cluster.local:80].routes[0].route.timeout: \"2s\"
"
    );
    let added = diff(
        &["new.yaml", "old.yaml", "--type", "eds", "--output", "json"],
        1,
    );
    let added: Value = serde_json::from_str(&added).unwrap();
    assert_eq!(added[0]["change"], "added");
    assert_eq!(added[0]["list"], "endpoints");
    assert_eq!(added[0]["name"], "outbound|80||api.shop.svc.cluster.local");
    assert_eq!(diff(&["old.yaml", "nowhere"], 2), "");
    assert_eq!(diff(&["old.yaml"], 2), "");
}

#[test]
fn generate_goes_on_without_what_was_refused_and_says_so() {
    let broken = "apiVersion: v1\nkind: Service\nmetadata: {name: bad, namespace: shop}\nspec: 5\n";
    let folder = folder(&[
        ("web.yaml", SERVICE),
        ("bad.yaml", broken),
        ("node.yaml", NODE),
    ]);
    let arguments = [
        "generate",
        "--config",
        "web.yaml",
        "bad.yaml",
        "--node",
        "node.yaml",
    ];
    let output = istiod(folder.path(), &arguments);
    assert!(output.status.success());
    let error = text(&output.stderr);
    let expected = "bad.yaml:4: error: Service shop/bad: spec: ";
    assert!(error.starts_with(expected), "{error}");
    assert!(text(&output.stdout).contains("outbound|80||web.shop.svc.cluster.local"));
}

#[test]
fn bootstrap_tells_the_node_and_where_the_control_plane_is() {
    let folder = folder(&[("node.yaml", NODE)]);
    let arguments = [
        "bootstrap",
        "--node",
        "node.yaml",
        "--xds-address",
        "istiod.istio-system:15010",
        "--admin-address",
        "[::1]:15000",
        "--delta",
    ];
    let output = istiod(folder.path(), &arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let bootstrap: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bootstrap["node"]["cluster"], "web.shop");
    assert_eq!(bootstrap["node"]["metadata"]["LABELS"]["app"], "web");
    assert_eq!(
        bootstrap["dynamicResources"]["adsConfig"]["apiType"],
        "DELTA_GRPC"
    );
    let xds = &bootstrap["staticResources"]["clusters"][0];
    assert_eq!(xds["type"], "STRICT_DNS");
    assert_eq!(
        xds["loadAssignment"]["endpoints"][0]["lbEndpoints"][0]["endpoint"]["address"],
        json!({"socketAddress": {"address": "istiod.istio-system", "portValue": 15010}})
    );
    assert_eq!(
        bootstrap["admin"]["address"],
        json!({"socketAddress": {"address": "::1", "portValue": 15000}})
    );
}

#[test]
fn discovery_does_not_start_on_a_broken_mesh_configuration() {
    check_error(
        &[("web.yaml", SERVICE), ("mesh.yaml", "trustDomain: [x]\n")],
        &[
            "generate",
            "--config",
            "web.yaml",
            "--mesh-config",
            "mesh.yaml",
            "--node",
            "node.yaml",
        ],
        1,
        "error: read the node file node.yaml: No such file or directory (os error 2)",
    );
    let folder = folder(&[("web.yaml", SERVICE), ("mesh.yaml", "trustDomain: [x]\n")]);
    let arguments = [
        "discovery",
        "--config",
        "web.yaml",
        "--mesh-config",
        "mesh.yaml",
    ];
    let output = istiod(folder.path(), &arguments);
    let error = text(&output.stderr);
    let expected =
        "error: mesh.yaml:1: error: MeshConfig: trustDomain: found a list, expected a string";
    assert!(error.lines().any(|line| line == expected), "{error}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_example_is_valid() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let output = istiod(
        &examples,
        &[
            "validate",
            "--config",
            "bookinfo",
            "--mesh-config",
            "mesh.yaml",
        ],
    );
    let report = text(&output.stdout);
    assert!(
        report.ends_with("0 refused, 0 warnings, 0 of kinds that are not read\n"),
        "{report}"
    );
    for node in ["productpage", "reviews-v2"] {
        let node = format!("nodes/{node}.yaml");
        let arguments = ["generate", "--config", "bookinfo", "--node", &node];
        let output = istiod(&examples, &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
    }
}
