//! What the control plane writes of gateways into its cluster: a real API server, the binary, and the roles
//! that the manifests give.
//!
//! These need Go, which builds the API server once. `cargo test` leaves them out, `cargo xtask test` runs
//! them; alone they run by `cargo test --test kubernetes_gateways -- --ignored`.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PostParams, WatchEvent, WatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    control_plane::{ControlPlane, Setup},
    kubernetes::Cluster,
    process::until,
};
use tokio::time::{sleep, timeout};

/// Longest time from a change to what follows from it.
const SOON: Duration = Duration::from_secs(30);
/// Longest time until a status that was changing all the time is the last one.
const LATER: Duration = Duration::from_mins(1);
/// How long nothing may be written, to believe that nothing will be.
const QUIET: Duration = Duration::from_secs(3);
/// Routes of one gateway.
const ROUTES: usize = 1000;
/// Everything that the chart makes, as it is checked in.
const MANIFESTS: &str = include_str!("../../manifests/istiod.yaml");
/// The group of the Gateway API.
const GROUP: &str = "gateway.networking.k8s.io";

/// A cluster with a control plane that may write what its manifests allow.
struct World {
    cluster: Cluster,
    admin: Client,
    folder: TempDir,
}

impl World {
    async fn new() -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.define_kinds().await?;
        for namespace in ["istio-system", "shop"] {
            cluster.namespace(namespace).await?;
        }
        cluster
            .apply(MANIFESTS)
            .await
            .context("apply the manifests")?;
        Ok(Self {
            admin: cluster.client().await?,
            cluster,
            folder: tempfile::Builder::new().prefix("gateways-").tempdir()?,
        })
    }

    /// Starts a replica.
    async fn istiod(&self, name: &str) -> Result<ControlPlane> {
        let kubeconfig = self.cluster.kubeconfig_of("istio-system", "istiod").await?;
        let setup = Setup {
            config: Vec::new(),
            arguments: vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()],
            environment: vec![
                ("POD_NAME".to_owned(), name.to_owned()),
                ("ROOT_CA_DIR".to_owned(), "/nonexistent".to_owned()),
            ],
            log: self.folder.path().join(format!("{name}.log")),
            ..Setup::new("", self.folder.path())?
        };
        ControlPlane::start(setup).await
    }

    fn api(&self, group: &str, kind: &str) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
        if kind == "GatewayClass" {
            Api::all_with(self.admin.clone(), &resource)
        } else {
            Api::namespaced_with(self.admin.clone(), "shop", &resource)
        }
    }

    async fn status(&self, kind: &str, name: &str) -> Result<Value> {
        let object = self.api(GROUP, kind).get(name).await?;
        Ok(object.data["status"].clone())
    }
}

/// Versions of all objects of some kinds.
async fn versions(world: &World, kinds: &[(&str, &str)]) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for (group, kind) in kinds {
        for object in world.api(group, kind).list(&ListParams::default()).await? {
            let name = format!("{kind} {}", object.name_any());
            versions.insert(name, object.resource_version().unwrap_or_default());
        }
    }
    Ok(versions)
}

/// Waits until nothing is written any more for a while, and returns the versions then.
async fn settled(world: &World, kinds: &[(&str, &str)]) -> Result<BTreeMap<String, String>> {
    let mut last = versions(world, kinds).await?;
    loop {
        sleep(QUIET).await;
        let now = versions(world, kinds).await?;
        if now == last {
            return Ok(now);
        }
        last = now;
    }
}

/// Waits until a replica leads.
async fn leads(world: &World, name: &str) -> Result<()> {
    let leases = Api::<Lease>::namespaced(world.admin.clone(), "istio-system");
    until("the other one leads", LATER, async || {
        let holder = leases
            .get("istio-leader")
            .await?
            .spec
            .and_then(|spec| spec.holder_identity);
        ensure!(holder.as_deref() == Some(name), "{holder:?} leads");
        Ok(())
    })
    .await
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let conditions = status["conditions"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == kind);
    found.unwrap_or(&Value::Null)
}

#[track_caller]
fn says(status: &Value, kind: &str, expected: [&str; 2]) -> Result<()> {
    let condition = condition(status, kind);
    let [value, reason] = expected;
    ensure!(
        condition["status"] == value && condition["reason"] == reason,
        "{kind} is {condition}"
    );
    Ok(())
}

fn route(number: usize) -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "shop", "name": format!("route-{number}")},
        "spec": {
            "parentRefs": [{"name": "edge"}],
            "hostnames": [format!("h{number}.example.com")],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        },
    });
    Ok(serde_json::from_value(object)?)
}

/// The gateway, the service that leads to it, and one of a workload.
const EDGE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: edge-service}]
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: again, port: 80, protocol: HTTP}
---
apiVersion: v1
kind: Service
metadata: {name: edge-service, namespace: shop}
spec: {externalIPs: [192.0.2.7], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: edge-service, namespace: shop, labels: {kubernetes.io/service-name: edge-service}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints: [{addresses: [10.1.1.1], conditions: {ready: true}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn a_thousand_routes_are_told_their_state_in_few_writes_and_a_restart_writes_nothing()
-> Result<()> {
    let world = World::new().await?;
    let istiod = world.istiod("a").await?;
    world.cluster.apply(EDGE).await?;
    until("the gateway says how it is", SOON, async || {
        let status = world.status("Gateway", "edge").await?;
        says(&status, "Accepted", ["True", "ListenersNotValid"])?;
        says(&status, "Programmed", ["True", "Programmed"])?;
        let address = json!([{"type": "IPAddress", "value": "192.0.2.7"}]);
        ensure!(status["addresses"] == address, "{}", status["addresses"]);
        says(
            &status["listeners"][0],
            "Programmed",
            ["True", "Programmed"],
        )?;
        says(
            &status["listeners"][1],
            "Conflicted",
            ["True", "HostnameConflict"],
        )
    })
    .await?;

    let gateways = world.api(GROUP, "Gateway");
    let edge = gateways.get("edge").await?;
    let version = edge.resource_version().unwrap_or_default();
    let watching = WatchParams::default().fields("metadata.name=edge");
    let mut changes = gateways.watch(&watching, &version).await?.boxed();
    let routes = world.api(GROUP, "HTTPRoute");
    for number in 0..ROUTES {
        routes
            .create(&PostParams::default(), &route(number)?)
            .await?;
    }
    let (mut writes, mut attached) = (0, 0);
    while attached != ROUTES as u64 {
        let change = timeout(LATER, changes.next())
            .await
            .with_context(|| format!("{attached} routes are attached"))?;
        if let Some(WatchEvent::Modified(changed)) = change.transpose()? {
            attached = changed.data["status"]["listeners"][0]["attachedRoutes"]
                .as_u64()
                .unwrap_or_default();
            writes += 1;
        }
    }
    println!("{ROUTES} routes: {writes} writes to their gateway");
    ensure!(writes <= 5, "{writes} writes for {ROUTES} routes");

    let kinds = [
        (GROUP, "Gateway"),
        (GROUP, "HTTPRoute"),
        (GROUP, "GatewayClass"),
    ];
    let before = settled(&world, &kinds).await?;
    for route in routes.list(&ListParams::default()).await? {
        let status = &route.data["status"]["parents"][0];
        ensure!(status["controllerName"] == "istio.io/gateway-controller");
        says(status, "Accepted", ["True", "Accepted"])?;
        says(status, "ResolvedRefs", ["True", "ResolvedRefs"])?;
    }

    // Another one, which reads all that and agrees.
    drop(istiod);
    let mut istiod = world.istiod("b").await?;
    sleep(QUIET).await;
    ensure!(
        versions(&world, &kinds).await? == before,
        "a restart has written"
    );
    leads(&world, "b").await?;
    sleep(QUIET).await;
    ensure!(
        versions(&world, &kinds).await? == before,
        "a restart has written"
    );

    // What is not so any more is said; what is still so keeps its time.
    let accepted = |status: &Value| condition(&status["parents"][0], "Accepted").clone();
    let told = accepted(&world.status("HTTPRoute", "route-0").await?);
    let mut changed = route(0)?;
    changed.data["spec"]["rules"][0]["backendRefs"][0]["name"] = json!("nobody");
    world
        .cluster
        .apply(&serde_json::to_string(&changed)?)
        .await?;
    until("a backend is missing", SOON, async || {
        let status = world.status("HTTPRoute", "route-0").await?;
        says(
            &status["parents"][0],
            "ResolvedRefs",
            ["False", "BackendNotFound"],
        )?;
        let now = accepted(&status);
        ensure!(now["lastTransitionTime"] == told["lastTransitionTime"]);
        ensure!(now["observedGeneration"] == 2, "{now}");
        Ok(())
    })
    .await?;
    istiod.kill().await
}

/// A gateway that is deployed, with a label for its objects.
const DEPLOYED: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec:
  gatewayClassName: istio
  infrastructure: {labels: {team: a}, annotations: {networking.istio.io/service-type: ClusterIP}}
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: way, namespace: shop}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
";

/// What is deployed.
const OBJECTS: [(&str, &str); 3] = [
    ("apps", "Deployment"),
    ("", "Service"),
    ("", "ServiceAccount"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn gateways_are_deployed_repaired_and_left_alone_by_a_restart() -> Result<()> {
    let world = World::new().await?;
    let istiod = world.istiod("a").await?;
    let classes = world.api(GROUP, "GatewayClass");
    until("classes are there, and accepted", SOON, async || {
        for name in ["istio", "istio-waypoint"] {
            let class = classes.get(name).await?;
            says(&class.data["status"], "Accepted", ["True", "Accepted"])?;
        }
        Ok(())
    })
    .await?;
    world.cluster.apply(DEPLOYED).await?;
    let services = world.api("", "Service");
    until("services are there", SOON, async || {
        let front = services.get("front-istio").await?;
        ensure!(front.labels().get("team").is_some_and(|team| team == "a"));
        ensure!(
            front.data["spec"]["type"] == "ClusterIP",
            "{}",
            front.data["spec"]
        );
        let owner = front.owner_references().first().context("nobody owns it")?;
        ensure!(
            owner.kind == "Gateway" && owner.name == "front",
            "{owner:?}"
        );
        let way = services.get("way").await?;
        ensure!(
            way.data["spec"]["ports"][1]["port"] == 15008,
            "{}",
            way.data["spec"]
        );
        world.api("apps", "Deployment").get("front-istio").await?;
        world.api("", "ServiceAccount").get("front-istio").await?;
        Ok(())
    })
    .await?;

    // Repair: what was edited, what was deleted, what the gateway says now.
    let patch = |value: Value| kube::api::Patch::Merge(value);
    let parameters = kube::api::PatchParams::default();
    let spoilt = json!({"spec": {"selector": {"gateway.networking.k8s.io/gateway-name": "x"}}, "metadata": {"annotations": {"theirs": "y"}}});
    services
        .patch("front-istio", &parameters, &patch(spoilt))
        .await?;
    until("an edit is undone", SOON, async || {
        let front = services.get("front-istio").await?;
        let selector = &front.data["spec"]["selector"]["gateway.networking.k8s.io/gateway-name"];
        ensure!(
            selector == "front" && front.annotations().contains_key("theirs"),
            "{selector}"
        );
        Ok(())
    })
    .await?;
    services
        .delete("way", &kube::api::DeleteParams::default())
        .await?;
    until("what was deleted is back", SOON, async || {
        Ok(services.get("way").await.map(drop)?)
    })
    .await?;
    let relabelled = json!({"spec": {"infrastructure": {"labels": {"team": null, "crew": "b"}}}});
    world
        .api(GROUP, "Gateway")
        .patch("front", &parameters, &patch(relabelled))
        .await?;
    until("other labels", SOON, async || {
        let front = services.get("front-istio").await?;
        let labels = front.labels();
        ensure!(
            labels.contains_key("crew") && !labels.contains_key("team"),
            "{labels:?}"
        );
        Ok(())
    })
    .await?;

    let kinds: Vec<_> = OBJECTS
        .into_iter()
        .chain([(GROUP, "Gateway"), (GROUP, "GatewayClass")])
        .collect();
    let before = settled(&world, &kinds).await?;
    drop(istiod);
    let mut istiod = world.istiod("b").await?;
    leads(&world, "b").await?;
    sleep(QUIET).await;
    ensure!(
        versions(&world, &kinds).await? == before,
        "a restart has written"
    );
    istiod.kill().await
}

/// A gateway that lets TLS through, and a route of it.
const PASSING: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: pass, namespace: shop}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: edge-service}]
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: through, namespace: shop}
spec:
  parentRefs: [{name: pass}]
  hostnames: [a.example.com]
  rules: [{backendRefs: [{name: web, port: 443}]}]
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn routes_of_a_definition_that_is_too_old_do_not_count_until_it_is_replaced() -> Result<()> {
    let world = World::new().await?;
    let defined = GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let definitions: Api<DynamicObject> =
        Api::all_with(world.admin.clone(), &ApiResource::from_gvk(&defined));
    let install = async |release: Option<&str>| {
        let annotations = json!({"gateway.networking.k8s.io/bundle-version": release});
        let patch = kube::api::Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let name = format!("tlsroutes.{GROUP}");
        definitions
            .patch(&name, &kube::api::PatchParams::default(), &patch)
            .await
    };
    let check = async |release: &str, attached: u64, supported: [&str; 2]| {
        until(release, SOON, async || {
            let class = world.status("GatewayClass", "istio").await?;
            says(&class, "SupportedVersion", supported)?;
            let listener = &world.status("Gateway", "pass").await?["listeners"][0];
            ensure!(listener["attachedRoutes"] == attached, "{listener}");
            Ok(())
        })
        .await
    };
    let (right, wrong) = (
        ["True", "SupportedVersion"],
        ["False", "UnsupportedVersion"],
    );
    install(Some("v1.4.1")).await?;
    world.cluster.apply(PASSING).await?;
    let mut istiod = world.istiod("a").await?;
    check("too old from the start", 0, wrong).await?;
    install(Some("v1.5.0")).await?;
    check("replaced", 1, right).await?;
    install(None).await?;
    check("without a release", 0, wrong).await?;
    istiod.kill().await
}
