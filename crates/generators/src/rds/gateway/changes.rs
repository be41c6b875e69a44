use std::time::Instant;

use envoy_types::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use intake::{Change, Decoder, Intake, Options};
use model::{Node, Proxy};
use prost::Message as _;

use super::*;

/// Hosts of the gateway, each with its VirtualService.
const HOSTS: usize = 300;

fn virtual_service(number: usize, host: &str, to: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\n\
         metadata: {{name: v{number}, namespace: shop}}\n\
         spec: {{hosts: ['{host}'], gateways: [g], http: [{{route: [{{destination: {{host: {to}}}}}]}}]}}\n---\n"
    )
}

/// A gateway that names all its hosts.
fn mesh() -> String {
    let hosts: Vec<String> = (0..HOSTS).map(|n| format!("'*/h{n}.example'")).collect();
    let gateway = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
         spec: {{selector: {{istio: gw}}, servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, \
         hosts: [{}, '*.wild.example']}}]}}\n---\n",
        hosts.join(", ")
    );
    let routes = (0..HOSTS).map(|n| virtual_service(n, &format!("h{n}.example"), "to.example"));
    gateway + &routes.collect::<String>() + &virtual_service(HOSTS, "a.wild.example", "to.example")
}

/// A mesh that can be changed.
struct World {
    intake: Intake,
    parts: GatewayParts,
}

impl World {
    fn new(text: &str) -> Self {
        Self::with(text, Options::default())
    }

    fn with(text: &str, options: Options) -> Self {
        let mut world = Self {
            intake: Intake::new(options),
            parts: GatewayParts::default(),
        };
        world.apply(text);
        world
    }

    fn apply(&mut self, text: &str) {
        let decoder = Decoder {
            admitted: true,
            ..Decoder::default()
        };
        let decoded = decoder.decode("test.yaml", text);
        assert!(!decoded.broken, "{:?}", decoded.findings);
        let changes = decoded.objects.into_iter().map(Change::Apply);
        #[expect(clippy::disallowed_methods, reason = "requests say when they started")]
        self.intake.apply(changes, Instant::now());
    }

    /// Builds the gateway's configuration; says how many route lists and virtual hosts were new.
    fn build(&self) -> (RouteConfiguration, (u64, u64)) {
        let context = PushContext::build(self.intake.state());
        let metadata = serde_json::json!({"LABELS": {"istio": "gw"}, "NAMESPACE": "shop"});
        let node = Node {
            id: "router~10.0.0.9~p.shop~shop.svc.cluster.local".to_owned(),
            metadata: serde_json::from_value(metadata).unwrap(),
            ..Node::default()
        };
        let class = context.resolve(&context.classify(&Proxy::parse(&node).unwrap()));
        let merged = class.gateway.clone().unwrap();
        let inputs = GatewayRouteInputs::gather(&context, &class, &merged, "http.80").unwrap();
        let before = self.parts.built();
        let body = build(&inputs, &self.parts).to_bytes();
        let after = self.parts.built();
        let built = RouteConfiguration::decode(&*body).unwrap();
        assert_eq!(
            envoy_json::canonical(&built),
            body,
            "parts make a canonical whole"
        );
        (built, (after.0 - before.0, after.1 - before.1))
    }
}

fn names(built: &RouteConfiguration) -> Vec<&str> {
    built
        .virtual_hosts
        .iter()
        .map(|host| host.name.as_str())
        .collect()
}

#[test]
fn one_changed_virtual_service_builds_its_host_alone() {
    let mut world = World::new(&mesh());
    let (first, built) = world.build();
    let all = HOSTS as u64 + 1;
    assert_eq!(built, (all, all));
    assert_eq!(first.virtual_hosts.len(), HOSTS + 1);
    assert!(
        names(&first).contains(&"a.wild.example:80"),
        "{:?}",
        names(&first)
    );
    assert_eq!(world.build(), (first.clone(), (0, 0)));
    world.apply(&virtual_service(7, "h7.example", "elsewhere.example"));
    let (second, built) = world.build();
    assert_eq!(built, (1, 1));
    let differ: Vec<&str> = first
        .virtual_hosts
        .iter()
        .zip(&second.virtual_hosts)
        .filter(|(a, b)| a != b)
        .map(|(a, _)| a.name.as_str())
        .collect();
    assert_eq!(differ, ["h7.example:80"]);
    // Another one for a host that is there: its list is new, and the host with both.
    world.apply(&virtual_service(HOSTS + 1, "h8.example", "more.example"));
    let (third, built) = world.build();
    assert_eq!(built, (1, 1));
    let host = third
        .virtual_hosts
        .iter()
        .find(|host| host.name == "h8.example:80")
        .unwrap();
    assert_eq!(host.routes.len(), 2);
}

#[test]
fn hosts_are_found_as_by_looking_at_all() {
    let spec = |hosts: &[&str]| {
        let hosts: Vec<String> = hosts.iter().map(|host| format!("'{host}'")).collect();
        format!("[{}]", hosts.join(", "))
    };
    let gateway = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
         spec: {{selector: {{istio: gw}}, servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: {}}}]}}\n---\n",
        spec(&["a.x.io", "other/b.x.io", "*.x.io", "c.y.io", "*.z.y.io"])
    );
    let route = |hosts: &[&str]| {
        virtual_service(1, "HOSTS", "to.example").replace("['HOSTS']", &spec(hosts))
    };
    for (hosts, expected) in [
        (&["a.x.io"][..], &["a.x.io"][..]),
        (&["b.x.io", "q.x.io"], &["b.x.io", "q.x.io"]),
        (&["*.io"], &["*.x.io", "*.z.y.io", "a.x.io", "c.y.io"]),
        (&["*.y.io"], &["*.z.y.io", "c.y.io"]),
        (&["d.y.io"], &["*"]),
        (&["deep.z.y.io", "c.y.io"], &["c.y.io", "deep.z.y.io"]),
    ] {
        let (built, _) = World::new(&(gateway.clone() + &route(hosts))).build();
        let domains = built.virtual_hosts.iter().flat_map(|host| &host.domains);
        let mut domains: Vec<&str> = domains.map(String::as_str).collect();
        domains.sort_unstable();
        assert_eq!(domains, expected, "{hosts:?}");
    }
}

/// A session is kept on the virtual host of a service that its own VirtualService sends to, not of one
/// that another of the namespace does.
#[test]
fn a_session_belongs_to_the_virtual_service_that_sends_to_its_service() {
    let service = "apiVersion: v1\nkind: Service\n\
         metadata: {name: cart, namespace: shop, labels: {istio.io/persistent-session: c}}\n\
         spec: {ports: [{name: http, port: 80}]}\n---\n";
    let cart = "cart.shop.svc.cluster.local";
    let gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: shop}\n\
         spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n---\n";
    let sessions = |to: &str| {
        let options = Options {
            features: model::Features {
                persistent_session: true,
                ..model::Features::default()
            },
            ..Options::default()
        };
        let text = format!(
            "{service}{gateway}{}{}",
            virtual_service(0, cart, to),
            virtual_service(1, "other.example", cart)
        );
        let (built, _) = World::with(&text, options).build();
        let of = |host: &VirtualHost| !host.typed_per_filter_config.is_empty();
        let hosts = built.virtual_hosts.iter();
        hosts
            .filter(|host| of(host))
            .map(|host| host.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(sessions(cart), [format!("{cart}:80")]);
    assert!(sessions("elsewhere.example").is_empty());
}

/// Hosts with the same routes are one virtual host, where they ask for TLS alike and nothing is between them.
#[test]
fn hosts_with_the_same_routes_are_one() {
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let (built, _) = World::new(text).build();
        let hosts = built
            .virtual_hosts
            .iter()
            .map(|host| host.domains.join(" "));
        assert_eq!(hosts.collect::<Vec<_>>(), expected);
    }
    let gateway = |redirected: &str, plain: &str| {
        let server = |hosts: &str, tls: &str| {
            format!(
                "{{port: {{number: 80, name: http{}, protocol: HTTP}}, hosts: [{hosts}]{tls}}}",
                hosts.len()
            )
        };
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
             spec: {{servers: [{}, {}]}}\n---\n\
             apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: shop}}\n\
             spec: {{hosts: ['*.io'], gateways: [g], http: [{{route: [{{destination: {{host: to.example}}}}]}}]}}\n",
            server(redirected, ", tls: {httpsRedirect: true}"),
            server(plain, "")
        )
    };
    check(&gateway("aaa.io, bb.io", "c.io"), &["aaa.io bb.io", "c.io"]);
    check(
        &gateway("aaa.io, c.io", "bb.io"),
        &["aaa.io", "bb.io", "c.io"],
    );
    check(&gateway("aaa.io", "bb.io, c.io"), &["aaa.io", "bb.io c.io"]);
}
