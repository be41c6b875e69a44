//! Objects in, statuses out.

use std::fmt::Write as _;

use super::*;
use crate::{Translator, tests::state};

const THEN: &str = "2026-01-01T00:00:00Z";
const NOW: &str = "2026-02-02T00:00:00Z";

const MESH: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, namespace: edge, generation: 3}
spec:
  gatewayClassName: istio
  listeners:
  - {name: any, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
  - {name: own, port: 80, protocol: HTTP, hostname: own.io}
  - {name: again, port: 80, protocol: HTTP, hostname: own.io}
  - {name: raw, port: 80, protocol: TCP}
  - {name: udp, port: 53, protocol: UDP}
  - {name: odd, port: 81, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}, {kind: HTTPRoute}]}}
  - {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}
  - {name: far, port: 444, protocol: HTTPS, tls: {certificateRefs: [{name: c, namespace: other}]}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s, namespace: app}
spec: {hosts: [s.io], ports: [{number: 80, name: http}]}
---
";

/// Writes statuses, one line for each object, listener, parent or ancestor.
fn lines(state: &MeshState) -> String {
    let mut translator = Translator::default();
    let state = translator.layer(state.clone());
    let mut text = String::new();
    for status in Statuses::default().update(&translator.reports(), &state) {
        let Status { kind, name, .. } = &status;
        let listed = ["listeners", "parents", "ancestors"];
        let mut line = |what: &str, value: &Value| {
            let conditions = value["conditions"].as_array().cloned().unwrap_or_default();
            let conditions: Vec<_> = conditions
                .iter()
                .map(|c| {
                    let yes = if c["status"] == "True" { "" } else { "!" };
                    format!(
                        "{yes}{}={}",
                        c["type"].as_str().unwrap(),
                        c["reason"].as_str().unwrap()
                    )
                })
                .collect();
            writeln!(text, "{kind} {name}{what}: {}", conditions.join(" ")).unwrap();
        };
        if status.status.get("conditions").is_some() {
            line("", &status.status);
        }
        for entry in listed
            .iter()
            .filter_map(|list| status.status[list].as_array())
            .flatten()
        {
            let names = [
                &entry["name"],
                &entry["parentRef"]["name"],
                &entry["ancestorRef"]["name"],
            ];
            let name = names.iter().find_map(|name| name.as_str()).unwrap();
            let routes = entry.get("attachedRoutes").map(|n| format!(" {n}"));
            line(&format!(" {name}{}", routes.unwrap_or_default()), entry);
        }
    }
    text
}

#[track_caller]
fn check(yaml: &str, expected: &[&str]) {
    let lines = lines(&state(yaml));
    assert_eq!(lines.lines().collect::<Vec<_>>(), expected);
}

fn route(kind: &str, namespace: &str, rest: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
         metadata: {{name: r, namespace: {namespace}, generation: 2}}\nspec: {{{rest}}}\n---\n"
    )
}

/// Checks what is said of one route.
#[track_caller]
fn check_route(route: &str, expected: &[&str]) {
    let lines = lines(&state(&format!("{MESH}{route}")));
    let of_route: Vec<_> = lines
        .lines()
        .filter(|line| !line.starts_with("Gateway "))
        .collect();
    assert_eq!(of_route, expected);
}

#[test]
fn every_listener_says_what_became_of_it() {
    let taken =
        "Accepted=Accepted !Conflicted=NoConflicts Programmed=Programmed ResolvedRefs=ResolvedRefs";
    check(
        &format!(
            "{MESH}{}",
            route(
                "HTTPRoute",
                "app",
                "parentRefs: [{name: g, namespace: edge}], rules: [{}]"
            )
        ),
        &[
            "Gateway edge/g: Accepted=ListenersNotValid !Programmed=Invalid",
            &format!("Gateway edge/g any 1: {taken}"),
            &format!("Gateway edge/g own 0: {taken}"),
            "Gateway edge/g again 0: !Accepted=HostnameConflict Conflicted=HostnameConflict !Programmed=Invalid ResolvedRefs=ResolvedRefs",
            "Gateway edge/g raw 0: !Accepted=ProtocolConflict Conflicted=ProtocolConflict !Programmed=Invalid ResolvedRefs=ResolvedRefs",
            "Gateway edge/g udp 0: !Accepted=UnsupportedProtocol !Conflicted=NoConflicts !Programmed=Invalid ResolvedRefs=ResolvedRefs",
            "Gateway edge/g odd 0: Accepted=Accepted !Conflicted=NoConflicts Programmed=Programmed !ResolvedRefs=InvalidRouteKinds",
            "Gateway edge/g tls 0: Accepted=Accepted !Conflicted=NoConflicts !Programmed=Invalid !ResolvedRefs=InvalidCertificateRef",
            "Gateway edge/g far 0: Accepted=Accepted !Conflicted=NoConflicts !Programmed=Invalid !ResolvedRefs=RefNotPermitted",
            "HTTPRoute app/r g: Accepted=Accepted ResolvedRefs=ResolvedRefs",
        ],
    );
}

#[test]
fn routes_say_to_what_they_attach_and_what_they_lack() {
    let attached = "parentRefs: [{name: g, namespace: edge, sectionName: any}]";
    let to = |backend: &str| {
        route(
            "HTTPRoute",
            "app",
            &format!("{attached}, rules: [{{backendRefs: [{backend}]}}]"),
        )
    };
    let with = |parent: &str, rest: &str| {
        route(
            "HTTPRoute",
            "app",
            &format!("parentRefs: [{{name: g, namespace: edge, {parent}}}], rules: [{{}}]{rest}"),
        )
    };
    for (route, expected) in [
        (
            to("{name: s.io, kind: Hostname, group: networking.istio.io, port: 80}"),
            "!ResolvedRefs=BackendNotFound",
        ),
        (to("{name: s, port: 80}"), "!ResolvedRefs=BackendNotFound"),
        (
            to("{name: s, namespace: other, port: 80}"),
            "!ResolvedRefs=RefNotPermitted",
        ),
        (
            to("{name: s, kind: Bucket, port: 80}"),
            "!ResolvedRefs=InvalidKind",
        ),
    ] {
        check_route(
            &route,
            &[&format!("HTTPRoute app/r g: Accepted=Accepted {expected}")],
        );
    }
    for (route, expected) in [
        (to("{name: s}"), "UnsupportedValue"),
        (with("sectionName: other", ""), "NoMatchingParent"),
        (with("port: 7", ""), "NoMatchingParent"),
        (with("sectionName: own", ""), "NotAllowedByListeners"),
        (
            with("sectionName: own", "")
                .replace("namespace: app", "namespace: edge")
                .replace("rules", "hostnames: [x.io], rules"),
            "NoMatchingListenerHostname",
        ),
        (
            with("sectionName: any", "").replace("HTTPRoute", "TCPRoute"),
            "NotAllowedByListeners",
        ),
    ] {
        let kind = if route.contains("TCPRoute") {
            "TCPRoute"
        } else {
            "HTTPRoute"
        };
        let namespace = if route.contains("namespace: app") {
            "app"
        } else {
            "edge"
        };
        check_route(
            &route,
            &[&format!(
                "{kind} {namespace}/r g: !Accepted={expected} ResolvedRefs=ResolvedRefs"
            )],
        );
    }
    // A listener that is not served has routes all the same; gateways of others are not ours to speak of.
    check_route(
        &route(
            "HTTPRoute",
            "edge",
            "parentRefs: [{name: g, sectionName: tls}, {name: other}], rules: [{}]",
        ),
        &["HTTPRoute edge/r g: Accepted=Accepted ResolvedRefs=ResolvedRefs"],
    );
    check_route(
        &route(
            "HTTPRoute",
            "app",
            "parentRefs: [{name: none, kind: Service, group: ''}], rules: [{}]",
        ),
        &["HTTPRoute app/r none: !Accepted=NoMatchingParent ResolvedRefs=ResolvedRefs"],
    );
}

/// Gives an object the status that it should have.
fn write(state: &mut MeshState, status: &Status) {
    let key = model::ConfigKey::new(
        status.kind,
        status.name.namespace.clone(),
        status.name.name.clone(),
    );
    let mut object = state.objects.get(&key).unwrap();
    let meta = match &mut object {
        model::Object::HttpRoute(route) => &mut Arc::make_mut(route).meta,
        model::Object::KubernetesGateway(gateway) => &mut Arc::make_mut(gateway).meta,
        other => panic!("{other:?}"),
    };
    meta.status = Some(Arc::new(status.status.clone()));
    state.objects.insert(object);
}

fn all(state: &MeshState, now: &str) -> Vec<Status> {
    let mut translator = Translator::default();
    let state = translator.layer(state.clone());
    let mut statuses = Statuses::default();
    let reports = translator.reports();
    let mut found = statuses.update(&reports, &state);
    assert_eq!(statuses.update(&reports, &state), found, "found again");
    for status in &mut found {
        stamp(&mut status.status, now);
    }
    found
}

#[test]
fn what_is_written_is_not_wanted_again_and_keeps_its_times() {
    let attached = "parentRefs: [{name: g, namespace: edge}], rules: [{}]";
    let mut state = state(&format!("{MESH}{}", route("HTTPRoute", "app", attached)));
    for status in all(&state, THEN) {
        write(&mut state, &status);
    }
    assert_eq!(all(&state, NOW), []);
    // The generation moves on: times stay, except of what is not so any more.
    let key = model::ConfigKey::new(Kind::HttpRoute, "app", "r");
    let Some(model::Object::HttpRoute(mut object)) = state.objects.get(&key) else {
        panic!("no route");
    };
    let changed = Arc::make_mut(&mut object);
    changed.meta.generation = 3;
    changed.spec.rules[0]
        .backend_refs
        .push(model::api::gateway_api::HttpBackendRef::default());
    state.objects.insert(model::Object::HttpRoute(object));
    let found = all(&state, NOW);
    let [route] = &found[..] else {
        panic!("{found:?}");
    };
    let conditions = &route.status["parents"][0]["conditions"];
    assert_eq!(conditions[0]["lastTransitionTime"], NOW);
    assert_eq!(conditions[1]["lastTransitionTime"], THEN);
    assert_eq!(conditions[1]["observedGeneration"], 3);
}

#[test]
fn entries_of_other_controllers_stay_and_stale_ones_of_ours_go() {
    let attached = "parentRefs: [{name: g, namespace: edge}], rules: [{}]";
    let mut state = state(&format!("{MESH}{}", route("HTTPRoute", "app", attached)));
    let other = json!({"parentRef": {"name": "x"}, "controllerName": "x.io/y", "conditions": []});
    let stale = json!({"parentRef": {"name": "z"}, "controllerName": "istio.io/gateway-controller", "conditions": []});
    let found = all(&state, THEN);
    let mut route = found
        .iter()
        .find(|status| status.kind == Kind::HttpRoute)
        .unwrap()
        .clone();
    assert!(!route.shared);
    let own = route.status["parents"][0].clone();
    route.status = json!({"parents": [stale, other]});
    write(&mut state, &route);
    let found = all(&state, THEN);
    let route = found
        .iter()
        .find(|status| status.kind == Kind::HttpRoute)
        .unwrap();
    assert!(route.shared);
    assert_eq!(route.status, json!({"parents": [other, own]}));
}

#[test]
fn ingresses_say_where_they_are_reached() {
    let ingress = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: app, annotations: {kubernetes.io/ingress.class: istio}}
spec: {rules: [{host: w.io}]}
---
";
    assert_eq!(all(&state(ingress), NOW), []);
    let service = "
apiVersion: v1
kind: Service
metadata: {name: istio-ingressgateway, namespace: istio-system}
spec: {externalIPs: [1.2.3.4]}
status: {loadBalancer: {ingress: [{hostname: b.io}, {ip: 1.1.1.1}, {hostname: a.io}]}}
";
    let found = all(&state(&format!("{ingress}{service}")), NOW);
    let expected = json!({"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}, {"ip": "1.2.3.4"},
        {"hostname": "a.io"}, {"hostname": "b.io"}]}});
    assert_eq!(found[0].status, expected);
    let nodes = "
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: istio-system, labels: {istio: ingressgateway}}
spec: {nodeName: n1}
status: {phase: Running}
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 9.9.9.9}]}
";
    let found = all(&state(&format!("{ingress}{nodes}")), NOW);
    assert_eq!(
        found[0].status,
        json!({"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}})
    );
}

#[test]
fn policies_say_so_of_the_gateways_whose_routes_lead_to_them() {
    let policy = "
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: p, namespace: app}
spec:
  targetRefs: [{group: networking.istio.io, kind: ServiceEntry, name: s}]
  validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: none}], hostname: s.io}
---
";
    check_route(
        policy,
        &[
            "BackendTLSPolicy app/p s: !Accepted=TargetNotFound !ResolvedRefs=InvalidCACertificateRef",
        ],
    );
    let to = "parentRefs: [{name: g, namespace: edge, sectionName: any}], rules: [{backendRefs: \
        [{name: s.io, kind: Hostname, group: networking.istio.io, port: 80}]}]";
    check_route(
        &format!("{policy}{}", route("HTTPRoute", "app", to)),
        &[
            "HTTPRoute app/r g: Accepted=Accepted !ResolvedRefs=BackendNotFound",
            "BackendTLSPolicy app/p g: !Accepted=TargetNotFound !ResolvedRefs=InvalidCACertificateRef",
        ],
    );
}

/// The table in the docs is what classes say.
#[test]
fn features_are_those_of_the_docs() {
    let docs = include_str!("../../../../docs/gateway-api-features.md");
    let rows = docs.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        (cells.next()? == "yes").then_some(name)
    });
    let mut rows: Vec<&str> = rows.filter(|name| !name.contains('.')).collect();
    rows.sort_unstable();
    assert_eq!(rows, FEATURES);
}

#[test]
fn all_classes_of_ours_are_accepted_and_no_others() {
    let class = |name: &str, controller: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\n\
             metadata: {{name: {name}}}\nspec: {{controllerName: {controller}}}\n---\n"
        )
    };
    let classes = [
        class("istio", "istio.io/gateway-controller"),
        class("istio-remote", "istio.io/unmanaged-gateway"),
        class("istio-waypoint", "istio.io/mesh-controller"),
        class("other", "example.com/controller"),
    ];
    let mut state = state(&classes.concat());
    let check = |state: &MeshState, supported: &str| {
        let expected = ["istio", "istio-remote", "istio-waypoint"]
            .map(|name| format!("GatewayClass /{name}: Accepted=Accepted {supported}"));
        assert_eq!(lines(state).lines().collect::<Vec<_>>(), expected);
    };
    // Nobody has said which release there is.
    check(&state, "SupportedVersion=SupportedVersion");
    let mut install = |release: Option<&str>| {
        let bundles = [(Kind::GatewayClass, release.map(Into::into))];
        state.bundles = Arc::new(bundles.into());
        state.clone()
    };
    check(
        &install(Some("v1.5.1")),
        "SupportedVersion=SupportedVersion",
    );
    check(
        &install(Some("v0.8.0")),
        "!SupportedVersion=UnsupportedVersion",
    );
    check(
        &install(Some("v3.0.0")),
        "!SupportedVersion=UnsupportedVersion",
    );
    check(&install(None), "!SupportedVersion=UnsupportedVersion");
}
