//! A gateway of many hosts: what one changed VirtualService costs.

use std::time::Instant;

use generators::{Mesh, Update, cds::Cds, lds::Lds, rds::Rds};
use intake::{Change, Intake};
use model::{Node, Object, Proxy};
use pushctx::PushContext;
use serde_json::{Value, json};
use xds::{Interest, Touched, World as _, type_url};

use crate::{CACHE, Times, mesh, options};

/// Prints the cost of each step from a changed VirtualService to the gateway's resources.
pub(crate) fn measure(objects: Vec<Object>) {
    let mut intake = Intake::new(options());
    intake.apply(objects.into_iter().map(Change::Apply), Instant::now());
    let mut last = PushContext::build(intake.state());
    let (cds, lds, rds) = (Cds::new(CACHE), Lds::default(), Rds::default());
    let key = last.classify(&proxy());
    let routes = Interest::named(["http.8080"]);
    let class = last.resolve(&key);
    let all = [
        cds.generate(&last, &class, &Interest::Everything),
        lds.generate(&last, &class),
        rds.generate(&last, &class, &routes),
    ];
    let [clusters, listeners, configurations] = all.map(|set| (set.len(), set.bytes() / 1000));
    println!(
        "resources\t{clusters:?} clusters, {listeners:?} listeners, {configurations:?} routes (count, kB)"
    );

    let mut times = [const { Times::new() }; 5];
    for at in 0..40 {
        let [snapshots, classes, of_clusters, of_listeners, of_routes] = &mut times;
        let changed = route_to(at % 7, at % 7, &format!("{}s", 2 + at));
        let object = mesh::decode(&changed.to_string()).remove(0);
        let (request, next) = snapshots.take(|| {
            let request = intake.apply([Change::Apply(object)], Instant::now());
            let next = last.next(intake.state(), &request);
            (request, next)
        });
        let update = Update(request);
        let change = xds::Change {
            from: Some(&last),
            to: &next,
            update: &update,
        };
        let class = classes.take(|| next.resolve(&key));
        of_clusters.take(
            || match Mesh::default().touched(&change, &key, type_url::CLUSTER) {
                Touched::Nothing => {}
                Touched::Named(names) => {
                    drop(cds.generate(&next, &class, &Interest::Named(names)));
                }
                Touched::Everything => drop(cds.generate(&next, &class, &Interest::Everything)),
            },
        );
        of_listeners.take(|| lds.generate(&next, &class));
        of_routes.take(|| rds.generate(&next, &class, &routes));
        last = next;
    }
    let what = ["next snapshot", "class", "clusters", "listeners", "routes"];
    for (times, what) in times.iter_mut().zip(what) {
        times.print(&format!("one changed VirtualService of a gateway: {what}"));
    }
}

fn proxy() -> Proxy {
    let metadata = json!({"LABELS": {"app": "edge"}});
    let node = Node {
        id: "router~10.255.0.1~edge-0.edge~edge.svc.cluster.local".to_owned(),
        metadata: metadata.as_object().cloned().unwrap_or_default(),
        ..Node::default()
    };
    Proxy::parse(&node).unwrap_or_else(|error| panic!("{error}"))
}

/// A gateway of `hosts` hosts, and a VirtualService for each, to one of `services`.
pub(crate) fn mesh_of(hosts: usize, services: usize) -> String {
    let mut text = String::new();
    let names: Vec<String> = (0..hosts).map(public_host).collect();
    let server =
        json!({"port": {"number": 8080, "protocol": "HTTP", "name": "http"}, "hosts": names});
    let spec = json!({"selector": {"app": "edge"}, "servers": [server]});
    let gateway = mesh::object("networking.istio.io/v1", "Gateway", "edge", "edge", &spec);
    mesh::write_object(&mut text, &gateway);
    for n in 0..hosts {
        mesh::write_object(&mut text, &route_to(n, n % services.max(1), "2s"));
    }
    text
}

fn route_to(n: usize, service: usize, timeout: &str) -> Value {
    let route = json!([{"destination": {"host": mesh::host(service), "port": {"number": 8080}}}]);
    let spec = json!({"hosts": [public_host(n)], "gateways": ["edge"], "http": [
        {"match": [{"uri": {"prefix": "/"}}], "timeout": timeout, "route": route},
    ]});
    let name = format!("host-{n}");
    mesh::object(
        "networking.istio.io/v1",
        "VirtualService",
        "edge",
        &name,
        &spec,
    )
}

fn public_host(n: usize) -> String {
    format!("h{n}.test")
}
