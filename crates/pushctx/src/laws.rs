//! Laws of snapshots: incremental = full, and the order of arrival does not matter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use model::{
    ExportTo, Kind, Labels, MeshState, Object, ProxyType, PushRequest, Resolution, Service,
    Timestamp,
    api::{MeshConfig, mesh},
};
use proptest::prelude::*;
use serde_json::json;

use crate::{
    PatchTarget, PushContext, SidecarScope, Workload,
    testing::{self, kubernetes, service, sidecar},
};

const NAMESPACES: [&str; 4] = ["a", "b", "c", "istio-system"];

/// Objects in several versions under few names, so that edits meet each other.
static OBJECTS: LazyLock<Vec<Object>> = LazyLock::new(|| {
    let mut yaml = String::new();
    let mut add = |kind: &str, namespace: &str, name: &str, extra: &str, specs: &[&str]| {
        let version = match kind {
            "PeerAuthentication" | "AuthorizationPolicy" => "security.istio.io/v1",
            "Telemetry" => "telemetry.istio.io/v1",
            "EnvoyFilter" => "networking.istio.io/v1alpha3",
            "WasmPlugin" => "extensions.istio.io/v1alpha1",
            _ => "networking.istio.io/v1",
        };
        for spec in specs {
            writeln!(
                yaml,
                "---\napiVersion: {version}\nkind: {kind}\n\
                 metadata: {{name: {name}, namespace: {namespace}{extra}}}\nspec: {spec}"
            )
            .unwrap();
        }
    };
    for namespace in ["a", "b"] {
        add(
            "VirtualService",
            namespace,
            "v",
            "",
            &[
                "{hosts: [x], http: [{route: [{destination: {host: z, port: {number: 81}}}]}]}",
                "{hosts: ['*.b.svc.cluster.local'], exportTo: [b], http: [{route: [{destination: {host: x}}]}]}",
                "{hosts: [x.com], gateways: [gw, mesh], exportTo: ['.'], http: [{delegate: {name: d, namespace: b}}]}",
                "{hosts: [x.com], exportTo: ['~']}",
            ],
        );
        add(
            "VirtualService",
            namespace,
            "g",
            ", annotations: {internal.istio.io/route-semantics: gateway}",
            &[
                "{hosts: [x.b.svc.cluster.local], http: [{route: [{destination: {host: z.b.svc.cluster.local}}]}]}",
            ],
        );
        add(
            "VirtualService",
            namespace,
            "d",
            "",
            &[
                "{http: [{name: d, route: [{destination: {host: z}}]}]}",
                "{exportTo: ['.'], http: [{name: e, route: [{destination: {host: x}}]}]}",
            ],
        );
        add(
            "Gateway",
            namespace,
            "gw",
            "",
            &[
                "{servers: [{port: {number: 80, name: h, protocol: HTTP}, hosts: ['*/*']}]}",
                "{selector: {app: z}, servers: [{port: {number: 80, name: t, protocol: TCP}, hosts: [x.com]}]}",
            ],
        );
    }
    for namespace in ["a", "b", "istio-system"] {
        for name in ["r", "s"] {
            add(
                "DestinationRule",
                namespace,
                name,
                "",
                &[
                    "{host: x, subsets: [{name: v1}]}",
                    "{host: x.b.svc.cluster.local, exportTo: [a, c], subsets: [{name: v2}]}",
                    "{host: '*.b.svc.cluster.local', exportTo: ['.'], trafficPolicy: {tls: {mode: SIMPLE}}}",
                    "{host: x.b.svc.cluster.local, workloadSelector: {matchLabels: {app: x}}}",
                    "{host: x, trafficPolicy: {loadBalancer: {localityLbSetting: {failoverPriority: [kubernetes.io/hostname]}}}}",
                ],
            );
        }
        add(
            "Sidecar",
            namespace,
            "s",
            "",
            &[
                "{egress: [{hosts: ['./*']}]}",
                "{egress: [{hosts: ['b/x.b.svc.cluster.local']}]}",
                "{egress: [{port: {number: 80, protocol: HTTP}, hosts: ['*/*']}, {hosts: ['~b/*', '*/*']}]}",
                "{workloadSelector: {labels: {app: z}}, outboundTrafficPolicy: {}}",
            ],
        );
        add(
            "PeerAuthentication",
            namespace,
            "p",
            "",
            &[
                "{mtls: {mode: STRICT}}",
                "{selector: {matchLabels: {app: x}}, mtls: {mode: DISABLE}, portLevelMtls: {80: {mode: STRICT}}}",
            ],
        );
        add(
            "AuthorizationPolicy",
            namespace,
            "p",
            "",
            &["{}", "{action: DENY, rules: [{}]}"],
        );
        add(
            "Telemetry",
            namespace,
            "t",
            "",
            &["{}", "{selector: {matchLabels: {app: x}}}"],
        );
        add(
            "EnvoyFilter",
            namespace,
            "f",
            "",
            &[
                "{priority: -1}",
                "{configPatches: [{applyTo: CLUSTER, match: {proxy: {metadata: {NAME: x}}}, patch: {operation: REMOVE}}]}",
            ],
        );
        add(
            "WasmPlugin",
            namespace,
            "w",
            "",
            &["{url: oci://x}", "{url: ''}"],
        );
        add(
            "WorkloadEntry",
            namespace,
            "w",
            "",
            &[
                "{address: 10.0.0.1, labels: {app: x}}",
                "{address: 10.0.0.2, labels: {app: x}, ports: {http-80: 8080}}",
            ],
        );
    }
    for labels in ["", "{open: 'true'}"] {
        writeln!(
            yaml,
            "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: b, labels: {labels}}}"
        )
        .unwrap();
    }
    for selector in ["x", "z"] {
        writeln!(
            yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: x, namespace: b}}\n\
             spec: {{selector: {{app: {selector}}}, ports: [{{name: http-80, port: 80}}]}}"
        )
        .unwrap();
    }
    testing::read(&yaml)
});

static SERVICES: LazyLock<Vec<Arc<Service>>> = LazyLock::new(|| {
    let exports: [&[&str]; 5] = [&[], &["*"], &["."], &["a", "c"], &["~"]];
    let mut services = Vec::new();
    for export in exports {
        for name in ["x.a", "x.b", "z.b"] {
            let mut service = kubernetes(name, &[80, 81]);
            service.attributes.export_to = ExportTo::new(export);
            services.push(service);
        }
        for (namespace, address) in [("b", "1.1.1.1"), ("b", "1.1.1.2"), ("c", "1.1.1.1")] {
            let mut entry = service("x.b.svc.cluster.local", namespace, &[80, 90]);
            entry.attributes.registry = model::service::Registry::External;
            entry.attributes.object_name = "entry".into();
            entry.default_address = address.into();
            entry.attributes.export_to = ExportTo::new(export);
            entry.created = Timestamp(i64::try_from(export.len()).unwrap());
            services.push(entry);
        }
    }
    for target in ["x.b", "alias.b"] {
        for name in ["alias.a", "alias.b"] {
            let mut alias = kubernetes(name, &[80]);
            alias.resolution = Resolution::Alias;
            alias.attributes.external_name = format!("{target}.svc.cluster.local").into();
            services.push(alias);
        }
    }
    let mut local = kubernetes("local.c", &[80]);
    local.attributes.node_local = true;
    services.push(local);
    services.into_iter().map(Service::seal).collect()
});

/// The mesh's settings in several versions.
fn settings(version: usize) -> MeshConfig {
    let mut mesh = MeshConfig::default();
    match version {
        1 => {
            mesh.default_service_export_to = vec![".".into()];
            mesh.default_destination_rule_export_to = vec![".".into()];
        }
        2 => {
            let selector = model::api::common::LabelSelector {
                match_labels: Labels::from([("open".into(), "true".into())]),
                ..Default::default()
            };
            let rule = mesh::NamespaceRule {
                namespace_selector: Some(selector),
            };
            mesh.service_entry_visibility = Some(mesh::ServiceEntryVisibility {
                default_visibility: mesh::EntryVisibility::Namespace,
                apply_to_sidecars: true,
                policies: vec![mesh::ServiceEntryVisibilityPolicy {
                    visibility: mesh::EntryVisibility::Public,
                    matching_rules: vec![rule],
                }],
            });
        }
        _ => {}
    }
    mesh
}

#[derive(Clone, Debug)]
enum Edit {
    Put(usize),
    Remove(usize),
    PutService(usize),
    RemoveService(usize),
    Mesh(usize),
}

/// Chooses a kind first, so that kinds with few objects are edited as often as others.
fn object() -> impl Strategy<Value = usize> {
    let mut by_kind: BTreeMap<Kind, Vec<usize>> = BTreeMap::new();
    for (at, object) in OBJECTS.iter().enumerate() {
        by_kind.entry(object.kind()).or_default().push(at);
    }
    let kinds: Vec<Vec<usize>> = by_kind.into_values().collect();
    prop::sample::select(kinds).prop_flat_map(prop::sample::select)
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        8 => object().prop_map(Edit::Put),
        4 => object().prop_map(Edit::Remove),
        6 => (0..SERVICES.len()).prop_map(Edit::PutService),
        3 => (0..SERVICES.len()).prop_map(Edit::RemoveService),
        1 => (0..3_usize).prop_map(Edit::Mesh),
    ]
}

fn apply(state: &mut MeshState, edit: &Edit) {
    match edit {
        Edit::Put(at) => {
            state.objects.insert(OBJECTS[*at].clone());
        }
        Edit::Remove(at) => {
            state.objects.remove(&OBJECTS[*at].key());
        }
        Edit::PutService(at) => {
            state
                .services
                .insert(SERVICES[*at].id(), SERVICES[*at].clone());
        }
        Edit::RemoveService(at) => {
            state.services.remove(&SERVICES[*at].id());
        }
        Edit::Mesh(version) => state.mesh = Arc::new(settings(*version)),
    }
}

/// Everything that a snapshot answers, as text.
fn digest(context: &PushContext) -> String {
    let mut out = String::new();
    let hosts: BTreeSet<_> = context
        .state()
        .services
        .keys()
        .map(|id| id.key.hostname.clone())
        .collect();
    for namespace in NAMESPACES {
        let namespace: Arc<str> = namespace.into();
        writeln!(out, "# {namespace}").unwrap();
        for service in context.services().visible_to(&namespace) {
            writeln!(out, "visible {:?} {}", service.id(), service.fingerprint).unwrap();
        }
        for gateway in ["mesh", "a/gw", "b/gw"] {
            for vs in context.virtual_services().for_gateway(&namespace, gateway) {
                let name = vs.config.meta.namespaced_name();
                writeln!(out, "{gateway} {name} {} {:?}", vs.fingerprint, vs.sources).unwrap();
            }
        }
        for app in ["x", "z"] {
            let labels = Labels::from([("app".into(), app.into())]);
            for kind in [ProxyType::Sidecar, ProxyType::Router] {
                let scope = context.scope(kind, &namespace, &labels);
                writeln!(out, "scope {app} {kind:?}").unwrap();
                describe(&mut out, &scope, &labels);
            }
            let workload = Workload {
                namespace: &namespace,
                labels: &labels,
                is_waypoint: false,
                services: &[],
            };
            let policies = context.authorization_policies(&workload);
            let gateway = context.merged_gateway(&namespace, &labels, &[]);
            writeln!(out, "{:?}", context.peer_authentication(&workload)).unwrap();
            writeln!(out, "{} {}", policies.allow.len(), policies.deny.len()).unwrap();
            writeln!(out, "{:?}", context.telemetries(&workload)).unwrap();
            writeln!(
                out,
                "{:?}",
                context.envoy_filters(&workload, &PatchTarget::ALL)
            )
            .unwrap();
            writeln!(out, "{:?}", context.traffic_extensions(&workload)).unwrap();
            writeln!(out, "{:?}", gateway.map(|g| g.fingerprint)).unwrap();
        }
        for host in &hosts {
            let winner = context
                .services()
                .get(host, &namespace)
                .map(|s| s.fingerprint);
            for owner in ["a", "b", "c"] {
                let rules = context.destination_rules().lookup(&namespace, owner, host);
                let rules: Vec<_> = rules.iter().map(|r| (r.fingerprint, &r.sources)).collect();
                writeln!(out, "{host} {winner:?} {owner} {rules:?}").unwrap();
            }
        }
    }
    for (ip, node) in [("10.0.0.1", "n1"), ("10.0.0.2", "n2")] {
        let metadata = json!({"LABELS": {"app": "x"}, "NODE_NAME": node, "NAME": node});
        let key = context.classify(&sidecar("w.b", ip, metadata));
        let class = context.resolve(&key);
        writeln!(out, "class {} {:?}", key.fingerprint, class.targets).unwrap();
        describe(&mut out, &class.scope, &class.labels);
    }
    out
}

/// Everything that a scope answers, as text.
fn describe(out: &mut String, scope: &SidecarScope, labels: &Labels) {
    for egress in &scope.egress {
        for service in &egress.services {
            let vs = egress
                .virtual_service(&service.hostname)
                .map(|vs| &vs.sources);
            writeln!(out, "  {:?} {} {vs:?}", service.id(), service.fingerprint).unwrap();
        }
        for vs in egress.virtual_services.iter() {
            writeln!(out, "  {:?} {}", vs.sources, vs.fingerprint).unwrap();
        }
    }
    assert_eq!(scope.services.len(), scope.services.iter().count());
    let mut services: Vec<_> = scope.services.iter().collect();
    services.sort_by(|a, b| a.hostname.cmp(&b.hostname));
    for service in services {
        let host = &service.hostname;
        let found = scope.service(host).map(|s| s.fingerprint);
        let rules = [scope.outbound_rule(host, labels), scope.inbound_rule(host)];
        let rules = rules.map(|rule| rule.map(|r| &r.sources));
        writeln!(out, "  {host} {} {found:?} {rules:?}", service.fingerprint).unwrap();
    }
    for service in &*SERVICES {
        let found = scope.service(&service.hostname).map(|s| s.fingerprint);
        writeln!(out, "  {} {found:?}", service.hostname).unwrap();
    }
}

/// A few objects and services to start from.
fn start() -> MeshState {
    let mut state = MeshState::default();
    for at in (0..OBJECTS.len()).step_by(3) {
        apply(&mut state, &Edit::Put(at));
    }
    for at in (0..SERVICES.len()).step_by(4) {
        apply(&mut state, &Edit::PutService(at));
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_incremental_snapshot_equals_a_fresh_one(
        script in prop::collection::vec(prop::collection::vec(edit(), 1..3), 1..16),
        mesh in 0..3_usize,
    ) {
        let mut state = start();
        apply(&mut state, &Edit::Mesh(mesh));
        let mut context = PushContext::build(state.clone());
        for batch in script {
            // Scopes and classes that were computed before must not be kept beyond their time.
            drop(digest(&context));
            for edit in &batch {
                apply(&mut state, edit);
            }
            context = context.next(state.clone(), &PushRequest::default());
            prop_assert_eq!(digest(&context), digest(&PushContext::build(state.clone())));
        }
    }

    #[test]
    fn views_equal_what_a_sidecar_that_imports_everything_selects(
        script in prop::collection::vec(edit(), 1..40),
    ) {
        let mut state = start();
        for edit in &script {
            apply(&mut state, edit);
        }
        state.objects.sidecars.clear();
        let context = PushContext::build(state);
        for namespace in NAMESPACES {
            let labels = Labels::from([("app".into(), "x".into())]);
            let view = context.scope(ProxyType::Sidecar, &namespace.into(), &labels);
            let selection = crate::scope::select_everything(&context, &namespace.into());
            let [mut viewed, mut selected] = [String::new(), String::new()];
            describe(&mut viewed, &view, &labels);
            describe(&mut selected, &selection, &labels);
            prop_assert_eq!(viewed, selected);
        }
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(
        edits in prop::collection::btree_set(0..OBJECTS.len(), 0..30)
            .prop_map(|at| {
                // One version of each object: the last put would win otherwise.
                let by_key: BTreeMap<_, _> = at.into_iter().map(|at| (OBJECTS[at].key(), at)).collect();
                by_key.into_values().collect::<Vec<_>>()
            })
            .prop_shuffle(),
        services in prop::collection::btree_set(0..SERVICES.len(), 0..20)
            .prop_map(|at| {
                let by_id: BTreeMap<_, _> = at.into_iter().map(|at| (SERVICES[at].id(), at)).collect();
                by_id.into_values().collect::<Vec<_>>()
            })
            .prop_shuffle(),
    ) {
        let build = |objects: &[usize], services: &[usize]| {
            let mut state = MeshState::default();
            for at in objects {
                apply(&mut state, &Edit::Put(*at));
            }
            for at in services {
                apply(&mut state, &Edit::PutService(*at));
            }
            PushContext::build(state)
        };
        let arrived = build(&edits, &services);
        let (mut edits, mut services) = (edits, services);
        edits.sort_unstable();
        services.sort_unstable();
        prop_assert_eq!(digest(&arrived), digest(&build(&edits, &services)));
    }
}

#[test]
fn what_does_not_change_is_shared() {
    let state = start();
    let context = PushContext::build(state.clone());
    let labels = Labels::new();
    let scope = |context: &PushContext| context.scope(ProxyType::Sidecar, &"b".into(), &labels);
    let before = scope(&context);

    let same = context.next(state.clone(), &PushRequest::default());
    assert!(Arc::ptr_eq(&before, &scope(&same)));

    let mut policy = state;
    policy.objects.authorization_policies.clear();
    let next = context.next(policy, &PushRequest::default());
    assert!(Arc::ptr_eq(&before, &scope(&next)));
    assert!(Arc::ptr_eq(&context.services, &next.services));
    assert!(!Arc::ptr_eq(&context.policies, &next.policies));
}
