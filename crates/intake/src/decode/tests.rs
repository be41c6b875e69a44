use super::*;

#[track_caller]
fn check(text: &str, objects: &[&str], findings: &[&str]) {
    let decoded = Decoder::default().decode("f.yaml", text);
    let keys: Vec<String> = decoded
        .objects
        .iter()
        .map(|o| o.key().to_string())
        .collect();
    let found: Vec<String> = decoded.findings.iter().map(ToString::to_string).collect();
    assert_eq!(keys, objects, "{found:#?}");
    assert_eq!(found, findings);
}

#[test]
fn objects_and_lists_are_read() {
    let text = "\
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: a}}
- apiVersion: v1
  kind: Service
  metadata: {name: s, namespace: a}
  spec: {clusterIP: 1.2.3.4}
---
kind: PodList
apiVersion: v1
items:
- metadata: {name: p}
---
apiVersion: networking.istio.io/v1beta1
kind: VirtualService
metadata: {name: v, namespace: a}
spec: {hosts: [x], http: [{redirect: {uri: /}}]}
";
    check(
        text,
        &[
            "Namespace//a",
            "Service/a/s",
            "Pod/default/p",
            "VirtualService/a/v",
        ],
        &[],
    );
}

#[test]
fn bad_input_is_named_and_spoils_nothing_else() {
    let text = "\
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: bad, namespace: a}
spec:
  http:
  - timeout: soon
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: odd, namespace: a}
spec:
  hosts: [x]
  http:
  - {rout: [], redirect: {uri: /}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: a}
---
apiVersion: networking.istio.io/v2
kind: VirtualService
metadata: {name: new, namespace: a}
---
a: [
---
apiVersion: v1
kind: Service
metadata: {name: s, labels: {a/b: 1}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: s, namespace: a}
extra: 1
---
- 1
---
apiVersion: v1
kind: Service
metadata: {}
---
apiVersion: v1
kind: Namespace
metadata: {name: good}
";
    check(
        text,
        &["VirtualService/a/odd", "Namespace//good"],
        &[
            "f.yaml:6: error: VirtualService a/bad: spec.http[0].timeout: \"soon\" is not a duration such as \"1.5s\", \"500ms\" or \"1h30m\"",
            "f.yaml:14: warning: VirtualService a/odd: spec.http[0].rout: unknown field",
            "f.yaml:16: ignored: Deployment a/d: nothing reads apps/v1 Deployment",
            "f.yaml:20: error: VirtualService a/new: version v2 is not served, only v1, v1beta1, v1alpha3",
            "f.yaml:25: error: column 1: while parsing a node, did not find expected node content",
            "f.yaml:28: error: Service default/s: metadata.labels[\"a/b\"]: expected a string, found 1; quote it",
            "f.yaml:33: error: Sidecar a/s: extra: unknown field",
            "f.yaml:30: error: Sidecar a/s: spec: one of ingress, egress, inboundConnectionPool and outboundTrafficPolicy must be set",
            "f.yaml:35: error: the document is not an object",
            "f.yaml:39: error: Service: metadata.name: the object has no name",
        ],
    );
}

#[test]
fn objects_left_out_are_remembered_by_key() {
    let gateway =
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: a}\n";
    let keys = |keys: &[ConfigKey]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    let decoded = Decoder::default().decode("f", &format!("{gateway}spec: {{servers: 5}}\n"));
    assert_eq!(keys(&decoded.undecodable), ["Gateway/a/g"]);
    assert_eq!(keys(&decoded.refused), [""; 0]);
    let decoded = Decoder::default().decode("f", &format!("{gateway}spec: {{servers: []}}\n"));
    assert_eq!(keys(&decoded.undecodable), [""; 0]);
    assert_eq!(keys(&decoded.refused), ["Gateway/a/g"]);
    assert!(!decoded.broken);
    assert!(Decoder::default().decode("f", "a: [").broken);
}

#[test]
fn creation_times() {
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b, creationTimestamp: '1970-01-01T00:00:05Z'}\n";
    let decoder = Decoder {
        default_created: Timestamp(9),
        ..Decoder::default()
    };
    let created: Vec<i64> = decoder
        .decode("f", text)
        .objects
        .iter()
        .map(|o| o.meta().created.0)
        .collect();
    assert_eq!(created, [9, 5]);
}

#[test]
fn owners_and_deletion_of_pods() {
    let text = "
apiVersion: v1
kind: Pod
metadata:
  name: web-6b7-x
  generateName: web-6b7-
  deletionTimestamp: 2024-01-01T00:00:00Z
  ownerReferences:
  - {kind: Other, name: o}
  - {kind: ReplicaSet, name: web-6b7, controller: true}
";
    let decoded = Decoder::default().decode("f", text);
    let meta = decoded.objects[0].meta();
    let owner = meta.controller.as_ref().unwrap();
    assert_eq!(
        (owner.kind.as_str(), owner.name.as_str()),
        ("ReplicaSet", "web-6b7")
    );
    assert!(meta.deleting && meta.generated_name);
}
