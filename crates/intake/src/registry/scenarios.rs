//! Out-of-order events, storms and reused addresses (service-registry §20.3, whose numbers the tests
//! carry).

use model::{ConfigKey, Kind, MeshState, PushRequest, Reason, ServiceKey};

use super::tests::{apply, endpoints, intake, lines, now};
use crate::{Change, Intake, Options};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.0.0.5, selector: {app: web}, ports: [{name: http, port: 80}]}
";

const KEY: &str = "shop/web.shop.svc.cluster.local";

/// A pod of namespace `shop`; its account is called like itself.
fn pod(name: &str, ip: &str) -> String {
    pod_in("shop", name, ip, "2024-01-01T00:00:00Z", "Running", "True")
}

fn pod_in(
    namespace: &str,
    name: &str,
    ip: &str,
    created: &str,
    phase: &str,
    ready: &str,
) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: web}}, creationTimestamp: {created}}}
spec: {{serviceAccountName: {name}}}
status: {{phase: {phase}, podIP: {ip}, conditions: [{{type: Ready, status: '{ready}'}}]}}
"
    )
}

/// A slice of service `web` of namespace `shop`, of (address, pod) pairs.
fn slice(name: &str, listed: &[(String, String)]) -> String {
    slice_of("shop", name, listed)
}

fn slice_of(namespace: &str, name: &str, listed: &[(String, String)]) -> String {
    let endpoints: Vec<String> = listed
        .iter()
        .map(|(ip, pod)| {
            format!("{{addresses: [{ip}], targetRef: {{kind: Pod, name: {pod}, namespace: {namespace}}}}}")
        })
        .collect();
    format!(
        "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}, namespace: {namespace}, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 80}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

fn pair(ip: &str, pod: &str) -> (String, String) {
    (ip.to_owned(), pod.to_owned())
}

fn pairs(range: std::ops::Range<usize>) -> Vec<(String, String)> {
    range
        .map(|i| (format!("10.1.{}.{}", i / 250, i % 250), format!("p{i}")))
        .collect()
}

fn delete(intake: &mut Intake, kind: Kind, namespace: &str, name: &str) -> PushRequest {
    intake.apply(
        [Change::Delete(ConfigKey::new(kind, namespace, name))],
        now(),
    )
}

fn addresses(state: &MeshState, key: &str) -> Vec<String> {
    endpoints(state, key)
        .iter()
        .map(|e| e.address().to_owned())
        .collect()
}

/// Scales a service of `from` pods down to `to`, pods first; returns how many endpoint lists that
/// derived.
fn scale_down(from: usize, to: usize) -> u64 {
    let all = pairs(0..from);
    let pods: String = all.iter().map(|(ip, name)| pod(name, ip)).collect();
    let mut intake = intake(&[SERVICE, &pods, &slice("web-1", &all)].concat());
    assert_eq!(endpoints(&intake.state(), KEY).len(), from);
    let before = intake.derivations().endpoints;
    for (_, name) in &all[to..] {
        delete(&mut intake, Kind::Pod, "shop", name);
    }
    assert_eq!(endpoints(&intake.state(), KEY).len(), to);
    for left in (to..from).rev() {
        apply(&mut intake, &slice("web-1", &all[..left]));
        assert_eq!(
            endpoints(&intake.state(), KEY).len(),
            to,
            "no deleted pod comes back"
        );
        assert_eq!(intake.parked(), left - to);
    }
    intake.derivations().endpoints - before
}

#[test]
fn t2_a_scale_down_costs_one_derivation_per_event() {
    assert_eq!(scale_down(60, 10), 100);
    assert_eq!(scale_down(120, 20), 200);
}

#[test]
fn t4_t5_pods_before_and_after_their_slice() {
    let listed = pairs(0..3);
    let mut late = intake(&[SERVICE, &slice("web-1", &listed)].concat());
    assert_eq!((addresses(&late.state(), KEY), late.parked()), (vec![], 3));
    for (i, (ip, name)) in listed.iter().enumerate() {
        let request = apply(&mut late, &pod(name, ip));
        assert_eq!(request.endpoints.len(), 1);
        assert_eq!(
            (endpoints(&late.state(), KEY).len(), late.parked()),
            (i + 1, 2 - i)
        );
        assert!(
            endpoints(&late.state(), KEY)
                .iter()
                .all(|e| !e.service_account.is_empty())
        );
    }
    let pods: String = listed.iter().map(|(ip, name)| pod(name, ip)).collect();
    let early = intake(&[&pods, &slice("web-1", &listed), "---", SERVICE].concat());
    assert_eq!(lines(&early.state(), KEY), lines(&late.state(), KEY));
}

#[test]
fn t6_t7_parked_addresses_are_forgotten_with_their_slice() {
    let mut intake = intake(&[SERVICE, &slice("web-1", &pairs(0..2))].concat());
    assert_eq!(intake.parked(), 2);
    apply(&mut intake, &pod("unrelated", "10.9.9.9"));
    assert_eq!(intake.parked(), 2);
    apply(&mut intake, &slice("web-1", &pairs(0..1)));
    assert_eq!(intake.parked(), 1);
    delete(&mut intake, Kind::EndpointSlice, "shop", "web-1");
    let request = apply(&mut intake, &pod("p0", "10.1.0.0"));
    assert_eq!(
        (addresses(&intake.state(), KEY), intake.parked()),
        (vec![], 0)
    );
    assert!(request.endpoints.is_empty());
}

/// All orders of 0..4.
fn orders() -> Vec<[usize; 4]> {
    let mut orders = Vec::new();
    for code in 0..256_usize {
        let order = [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3];
        if (0..4).all(|i| order.contains(&i)) {
            orders.push(order);
        }
    }
    orders
}

#[test]
fn t9_an_address_that_moves_to_another_pod_never_serves_the_old_service() {
    let start = [
        SERVICE,
        &SERVICE
            .replace("namespace: shop", "namespace: bank")
            .replace("apiVersion", "---\napiVersion"),
        &pod("a", "10.1.0.1"),
        &slice("web-1", &[pair("10.1.0.1", "a")]),
    ]
    .concat();
    let young = pod_in(
        "bank",
        "b",
        "10.1.0.1",
        "2024-01-02T00:00:00Z",
        "Running",
        "True",
    );
    let bank = "bank/web.bank.svc.cluster.local";
    for order in orders() {
        let mut intake = intake(&start);
        let mut b_is_there = false;
        for event in order {
            match event {
                0 => {
                    delete(&mut intake, Kind::Pod, "shop", "a");
                }
                1 => {
                    apply(&mut intake, &young);
                    b_is_there = true;
                }
                2 => {
                    apply(&mut intake, &slice("web-1", &[]));
                }
                _ => {
                    apply(
                        &mut intake,
                        &slice_of("bank", "web-1", &[pair("10.1.0.1", "b")]),
                    );
                }
            }
            let state = intake.state();
            let identity = |key: &str, name: &str| {
                endpoints(&state, key)
                    .iter()
                    .all(|e| e.service_account.ends_with(name))
            };
            assert!(
                identity(KEY, "/sa/a") && identity(bank, "/sa/b"),
                "{order:?}"
            );
            assert!(
                !b_is_there || endpoints(&state, KEY).is_empty(),
                "{order:?}"
            );
        }
        assert_eq!(addresses(&intake.state(), bank), ["10.1.0.1"], "{order:?}");
        assert_eq!(intake.parked(), 0);
    }
}

#[test]
fn t10_an_evicted_pod_is_gone_although_its_slice_lists_it() {
    let listed = [pair("10.1.0.1", "a")];
    let mut intake = intake(&[SERVICE, &pod("a", "10.1.0.1"), &slice("web-1", &listed)].concat());
    apply(
        &mut intake,
        &pod_in("shop", "a", "''", "2024-01-01T00:00:00Z", "Failed", "False"),
    );
    assert_eq!(
        (addresses(&intake.state(), KEY), intake.parked()),
        (vec![], 1)
    );
}

#[test]
fn t11_a_pod_recreated_under_its_name_has_only_its_own_address() {
    let listed = [pair("10.1.0.1", "a")];
    let mut intake = intake(&[SERVICE, &pod("a", "10.1.0.1"), &slice("web-1", &listed)].concat());
    apply(&mut intake, &pod("a", "10.1.0.2"));
    assert_eq!(
        (addresses(&intake.state(), KEY), intake.parked()),
        (vec![], 1)
    );
    apply(&mut intake, &slice("web-1", &[pair("10.1.0.2", "a")]));
    assert_eq!(addresses(&intake.state(), KEY), ["10.1.0.2"]);
}

#[test]
fn t12_host_network_pods_share_the_address_of_their_node() {
    let host = |namespace: &str, name: &str, created: &str| {
        pod_in(namespace, name, "10.0.0.1", created, "Running", "True")
            .replace("spec: {", "spec: {hostNetwork: true, ")
    };
    let listed = [pair("10.0.0.1", "a"), pair("10.0.0.1", "b")];
    let manual = slice("web-1", &listed[..1])
        .replace(", targetRef: {kind: Pod, name: a, namespace: shop}", "");
    let mut intake = intake(
        &[
            SERVICE,
            &host("shop", "a", "2024-01-01T00:00:00Z"),
            &host("shop", "b", "2024-01-01T00:00:00Z"),
            &host("bank", "c", "2024-01-09T00:00:00Z"),
            &slice("web-1", &listed),
        ]
        .concat(),
    );
    assert_eq!(lines(&intake.state(), KEY), ["10.0.0.1:80 http Healthy a"]);
    apply(&mut intake, &manual);
    assert_eq!(lines(&intake.state(), KEY), ["10.0.0.1:80 http Healthy a"]);
    delete(&mut intake, Kind::Pod, "shop", "a");
    assert_eq!(lines(&intake.state(), KEY), ["10.0.0.1:80 http Healthy b"]);
    delete(&mut intake, Kind::Pod, "shop", "b");
    assert_eq!(lines(&intake.state(), KEY), ["10.0.0.1:80 http Healthy "]);
}

#[test]
fn t13_a_flapping_pod_changes_endpoints_only() {
    let listed = [pair("10.1.0.1", "a")];
    let ready = slice("web-1", &listed);
    let unready = ready.replace(
        "targetRef",
        "conditions: {ready: false, terminating: false}, targetRef",
    );
    let mut intake = intake(&[SERVICE, &pod("a", "10.1.0.1"), &ready].concat());
    for _ in 0..3 {
        assert!(apply(&mut intake, &unready).endpoints_only());
        assert!(apply(&mut intake, &ready).endpoints_only());
    }
}

#[test]
fn t14_many_updates_of_one_service_cost_one_derivation() {
    let mut intake = intake(&[SERVICE, &pod("p0", "10.1.0.0")].concat());
    let before = intake.derivations().endpoints;
    let storm: String = (0..200).map(|i| slice("web-1", &pairs(0..i % 7))).collect();
    apply(&mut intake, &storm);
    assert_eq!(intake.derivations().endpoints - before, 1);
}

#[test]
fn t15_namespaces_that_are_no_longer_discovered() {
    let namespace =
        "\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {mesh: on-it}}\n";
    let mut options = Options::default();
    let selectors =
        crate::yaml_values("discoverySelectors: [{matchLabels: {mesh: on-it}}]").unwrap();
    options.mesh = options.mesh.overlay(&selectors[0]).unwrap().value;
    let mut intake = Intake::new(options);
    apply(
        &mut intake,
        &[
            SERVICE,
            &slice("web-1", &pairs(0..2)),
            &pod("p0", "10.1.0.0"),
        ]
        .concat(),
    );
    assert_eq!((intake.state().services.len(), intake.parked()), (0, 0));
    apply(&mut intake, namespace);
    assert_eq!((intake.state().services.len(), intake.parked()), (1, 1));
    assert_eq!(addresses(&intake.state(), KEY), ["10.1.0.0"]);
    apply(
        &mut intake,
        &namespace.replace("mesh: on-it", "mesh: not-it"),
    );
    assert_eq!((intake.state().services.len(), intake.parked()), (0, 0));
    assert!(intake.state().endpoints.is_empty());
}

#[test]
fn t18_what_a_service_says_reaches_endpoints_that_came_first() {
    let listed = [pair("10.1.0.1", "a")];
    let draining = slice("web-1", &listed).replace(
        "targetRef",
        "conditions: {ready: false, serving: true}, targetRef",
    );
    let mut intake = intake(&[&pod("a", "10.1.0.1"), draining.as_str()].concat());
    assert_eq!(
        lines(&intake.state(), KEY),
        ["10.1.0.1:80 http Unhealthy a"]
    );
    apply(&mut intake, SERVICE);
    assert_eq!(
        lines(&intake.state(), KEY),
        ["10.1.0.1:80 http Terminating a"]
    );
    let session = SERVICE.replace(
        "namespace: shop}",
        "namespace: shop, labels: {istio.io/persistent-session: c}}",
    );
    apply(&mut intake, &session);
    assert_eq!(lines(&intake.state(), KEY), ["10.1.0.1:80 http Draining a"]);
}

#[test]
fn t19_a_pod_that_is_never_ready_is_published_when_its_slice_says_so() {
    let listed = [pair("10.1.0.1", "a")];
    let mut intake = intake(&[SERVICE, &slice("web-1", &listed)].concat());
    apply(
        &mut intake,
        &pod_in(
            "shop",
            "a",
            "10.1.0.1",
            "2024-01-01T00:00:00Z",
            "Running",
            "False",
        ),
    );
    assert_eq!(lines(&intake.state(), KEY), ["10.1.0.1:80 http Healthy a"]);
}

#[test]
fn headless_services_and_lost_identities_need_more_than_endpoints() {
    let headless = SERVICE.replace("10.0.0.5", "None");
    let service = ConfigKey::new(Kind::Service, "shop", "web");
    let mut head = intake(
        &[
            headless.as_str(),
            &pod("a", "10.1.0.1"),
            &pod("b", "10.1.0.2"),
        ]
        .concat(),
    );
    let request = apply(&mut head, &slice("web-1", &[pair("10.1.0.1", "a")]));
    assert!(
        request.changed.contains(&service)
            && request.reasons.contains_key(&Reason::HeadlessEndpoint)
    );
    let mut plain = intake(&[SERVICE, &pod("a", "10.1.0.1"), &pod("b", "10.1.0.2")].concat());
    let request = apply(&mut plain, &slice("web-1", &[pair("10.1.0.1", "a")]));
    assert!(request.changed.contains(&service), "a new identity");
    let request = apply(
        &mut plain,
        &slice("web-1", &[pair("10.1.0.1", "a"), pair("10.1.0.2", "a")]),
    );
    assert!(request.is_empty(), "the second address is not the pod's");
    let key = ServiceKey::new("shop", "web.shop.svc.cluster.local");
    let request = apply(&mut plain, &slice("web-1", &[]));
    assert!(request.changed.contains(&service) && request.endpoints.contains(&key));
}

#[test]
fn nothing_stays_behind_of_what_is_deleted() {
    let text = [
        SERVICE,
        "
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: shop}
spec: {hosts: [h.com], resolution: STATIC, ports: [{number: 80, name: http}], workloadSelector: {labels: {app: web}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: w, namespace: shop, labels: {app: web}}
spec: {address: 10.1.9.9}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
",
        &pod("p0", "10.1.0.0").replace("spec: {", "spec: {nodeName: n1, "),
        &slice("web-1", &pairs(0..3)),
    ]
    .concat();
    let mut intake = intake(&text);
    assert_eq!(endpoints(&intake.state(), "shop/h.com").len(), 2);
    let keys: Vec<ConfigKey> = intake.state().objects.iter().map(|o| o.key()).collect();
    for key in keys {
        intake.apply([Change::Delete(key)], now());
    }
    let state = intake.state();
    assert!(state.services.is_empty() && state.endpoints.is_empty() && state.instances.is_empty());
    assert!(intake.registry().is_empty());
}

/// Endpoints of a pod that waits are those that proxies are to have, before its slices say so; only where
/// pods may wait at all.
#[test]
fn endpoints_of_waiting_pods_are_ahead_of_their_slices() {
    let condition = |name: &str| format!("{{type: {name}, status: 'True'}}");
    let pod = |metadata: &str, conditions: &[&str]| {
        let conditions: Vec<String> = conditions.iter().map(|c| condition(c)).collect();
        format!(
            "
---
apiVersion: v1
kind: Pod
metadata: {{name: a, namespace: shop, labels: {{app: web}}, {metadata}}}
spec: {{serviceAccountName: a, readinessGates: [{{conditionType: istio.io/distributed}}]}}
status: {{phase: Running, podIP: 10.1.0.1, conditions: [{}]}}
",
            conditions.join(", ")
        )
    };
    let slice = |ready: bool| {
        format!(
            "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 80}}]
endpoints:
- addresses: [10.1.0.1]
  conditions: {{ready: {ready}, serving: {ready}, terminating: false}}
  targetRef: {{kind: Pod, name: a, namespace: shop}}
"
        )
    };
    let held =
        "deletionTimestamp: '2024-01-01T00:00:00Z', finalizers: [istio.io/await-distribution]";
    let health = |pods_may_wait: bool| {
        let mut options = Options::default();
        options.features.pod_distribution = pods_may_wait;
        let mut intake = Intake::new(options);
        apply(&mut intake, SERVICE);
        let mut found = Vec::new();
        for (metadata, conditions, ready) in [
            ("", &[][..], false),
            ("", &["ContainersReady"], false),
            (
                "",
                &["ContainersReady", "Ready", "istio.io/distributed"],
                true,
            ),
            (held, &["ContainersReady", "Ready"], true),
        ] {
            apply(&mut intake, &pod(metadata, conditions));
            apply(&mut intake, &slice(ready));
            let state = intake.state();
            found.extend(
                endpoints(&state, KEY)
                    .iter()
                    .map(|e| format!("{:?}", e.health)),
            );
        }
        found
    };
    assert_eq!(
        health(true),
        ["Unhealthy", "Healthy", "Healthy", "Terminating"]
    );
    assert_eq!(
        health(false),
        ["Unhealthy", "Unhealthy", "Healthy", "Healthy"]
    );
}
