use model::{Port, Protocol, Resolution, Service};

use crate::testing::{kubernetes, service, snapshot};

/// The snapshot of objects and services gets exactly this advice: object, field and the start of the
/// reason.
#[track_caller]
fn check(yaml: &str, services: impl IntoIterator<Item = Service>, expected: &[&str]) {
    let context = snapshot(yaml, services);
    let advice: Vec<String> = context
        .advice()
        .iter()
        .map(|a| format!("{} {}: {}", a.object, a.field, a.reason))
        .collect();
    let fits = advice.len() == expected.len()
        && advice
            .iter()
            .zip(expected)
            .all(|(is, start)| is.starts_with(start));
    assert!(fits, "{advice:#?}");
}

/// A VirtualService `shop/name` for `hosts` with the rest of its spec.
fn virtual_service(name: &str, hosts: &str, spec: &str) -> String {
    format!(
        "
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: shop}}
spec: {{hosts: [{hosts}], {spec}}}
"
    )
}

/// The same with one HTTP rule without match.
fn to(name: &str, hosts: &str, destination: &str) -> String {
    let http = format!("http: [{{route: [{{destination: {{{destination}}}}}]}}]");
    virtual_service(name, hosts, &http)
}

const SUBSETS: &str = "
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web
  subsets: [{name: v1}, {name: v2}]
";

/// The object of a Kubernetes service, so that the input is known to hold services.
const WEB: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
";

fn web() -> Service {
    kubernetes("web.shop", &[80])
}

#[test]
fn a_route_to_what_exists_is_right() {
    let rules = [
        to("web", "web", "host: web, subset: v2, port: {number: 80}"),
        SUBSETS.to_owned(),
    ];
    check(&format!("{WEB}{}", rules.concat()), [web()], &[]);
}

#[test]
fn a_route_to_an_unknown_host_is_told() {
    check(
        &format!("{WEB}{}", to("web", "web", "host: wbe")),
        [web()],
        &[
            "VirtualService/shop/web spec.http[0].route[0].destination.host: no service has the host wbe.shop.svc",
        ],
    );
    check(
        &format!(
            "{WEB}{}",
            to("web", "web", "host: web.shpo.svc.cluster.local")
        ),
        [web()],
        &[
            "VirtualService/shop/web spec.http[0].route[0].destination.host: no service has the host \
           web.shpo.svc.cluster.local; there is web.shop.svc.cluster.local",
        ],
    );
    let mirrors = "http: [{route: [{destination: {host: web}}], mirror: {host: gone.example.com}}]";
    check(
        &format!("{WEB}{}", virtual_service("web", "web", mirrors)),
        [web(), service("*.example.com", "shop", &[80])],
        &[
            "VirtualService/shop/web spec.http[0].mirror.host: no service has the host \
           gone.example.com: the Service shop/*.example.com has *.example.com",
        ],
    );
}

#[test]
fn an_input_without_services_says_nothing_about_them() {
    check(&to("web", "web", "host: wbe"), [], &[]);
}

#[test]
fn a_route_to_an_unknown_port_or_subset_is_told() {
    check(
        &format!("{WEB}{}", to("web", "web", "host: web, port: {number: 81}")),
        [web()],
        &[
            "VirtualService/shop/web spec.http[0].route[0].destination.port.number: \
           web.shop.svc.cluster.local has no port 81, only 80",
        ],
    );
    check(
        &format!(
            "{WEB}{SUBSETS}{}",
            to("web", "web", "host: web, subset: v3")
        ),
        [web()],
        &[
            "VirtualService/shop/web spec.http[0].route[0].destination.subset: \
           web.shop.svc.cluster.local has no subset \"v3\": DestinationRule shop/web has v1, v2",
        ],
    );
    check(
        &format!("{WEB}{}", to("web", "web", "host: web, subset: v3")),
        [web()],
        &[
            "VirtualService/shop/web spec.http[0].route[0].destination.subset: \
           web.shop.svc.cluster.local has no subset \"v3\": no DestinationRule",
        ],
    );
}

#[test]
fn a_subset_that_a_rule_of_other_clients_has_is_right() {
    let elsewhere = SUBSETS
        .replace("namespace: shop", "namespace: ops")
        .replace("host: web", "host: \"*.shop.svc.cluster.local\"");
    let rules = format!(
        "{WEB}{elsewhere}{}",
        to("web", "web", "host: web, subset: v1")
    );
    check(&rules, [web()], &[]);
}

#[test]
fn the_second_virtual_service_of_a_host_is_told() {
    let first = to("first", "web", "host: web");
    check(
        &format!(
            "{WEB}{first}{}",
            to("second", "\"other.com\", web", "host: web")
        ),
        [web()],
        &[
            "VirtualService/shop/second spec.hosts[1]: sidecars never use these HTTP rules for \
           web.shop.svc.cluster.local: VirtualService shop/first has the host too",
        ],
    );
}

#[test]
fn virtual_services_that_share_a_host_for_different_clients_are_right() {
    let first = "http: [{match: [{sourceLabels: {app: a}}], route: [{destination: {host: web}}]}]";
    let gateway = "gateways: [entry], http: [{route: [{destination: {host: web}}]}]";
    let tcp = "tcp: [{route: [{destination: {host: web}}]}]";
    let rules = [
        virtual_service("first", "web", first),
        to("second", "web", "host: web"),
        virtual_service("third", "web", gateway),
        virtual_service("zero", "web", tcp),
    ];
    check(&format!("{WEB}{}", rules.concat()), [web()], &[]);
}

/// A service of a ServiceEntry.
fn entry(namespace: &str, resolution: Resolution, protocol: Protocol) -> Service {
    let mut service = service("api.example.com", namespace, &[443]);
    let mut source = service.source.key().clone();
    source.kind = model::Kind::ServiceEntry;
    service.source = source.into();
    service.resolution = resolution;
    service.ports[0].protocol = protocol;
    service
}

#[test]
fn entries_that_contradict_each_other_are_told() {
    check(
        "",
        [
            entry("a", Resolution::DnsLb, Protocol::Tls),
            entry("b", Resolution::ClientSideLb, Protocol::Http),
        ],
        &[
            "ServiceEntry/b/api.example.com spec.hosts: ServiceEntry a/api.example.com has the host \
           api.example.com too and says otherwise: resolution STATIC here, DNS there, port 443 \
           HTTP here, TLS there",
        ],
    );
}

#[test]
fn entries_that_agree_or_never_meet_are_right() {
    let alike = || entry("a", Resolution::DnsLb, Protocol::Tls);
    check(
        "",
        [alike(), entry("b", Resolution::DnsLb, Protocol::Tls)],
        &[],
    );
    let mut private = entry("a", Resolution::ClientSideLb, Protocol::Http);
    private.attributes.export_to = model::ExportTo::new(["."]);
    let mut other = entry("b", Resolution::DnsLb, Protocol::Tls);
    other.attributes.export_to = model::ExportTo::new(["c"]);
    check("", [private, other], &[]);
}

/// A Sidecar `shop/default` that imports `hosts`, on a port if one is given.
fn sidecar(hosts: &str, port: &str) -> String {
    format!(
        "
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: default, namespace: shop}}
spec: {{egress: [{{{port} hosts: [{hosts}]}}]}}
"
    )
}

#[test]
fn a_sidecar_that_does_not_import_a_virtual_service_of_its_clients_is_told() {
    let rules = to("out", "api.example.com", "host: web");
    let services = || [web(), service("api.example.com", "ops", &[80])];
    check(
        &format!("{WEB}{rules}{}", sidecar("\"./*\"", "")),
        services(),
        &[],
    );
    check(
        &format!("{WEB}{rules}{}", sidecar("\"istio-system/*\"", "")),
        services(),
        &[
            "Sidecar/shop/default spec.egress: imports no host of VirtualService shop/out \
           (api.example.com): its rules have no effect",
        ],
    );
    // Rules for a service of the namespace are for its clients elsewhere.
    let own = to("web", "web", "host: web");
    check(
        &format!("{WEB}{own}{}", sidecar("\"istio-system/*\"", "")),
        services(),
        &[],
    );
}

#[test]
fn a_sidecar_that_hides_a_destination_is_told() {
    let rules = to("web", "web", "host: web, port: {number: 81}");
    let services = || [kubernetes("web.shop", &[80, 81])];
    let narrow = sidecar("\"./*\"", "port: {number: 80, protocol: HTTP, name: http},");
    check(
        &format!("{WEB}{rules}{narrow}"),
        services(),
        &[
            "Sidecar/shop/default spec.egress: hides web.shop.svc.cluster.local:81, to which \
           VirtualService shop/web sends requests",
        ],
    );
    check(
        &format!("{WEB}{rules}{}", sidecar("\"./*\"", "")),
        services(),
        &[],
    );
}

#[test]
fn http_rules_for_ports_that_do_not_say_http_are_told() {
    let mut sniffed = kubernetes("web.shop", &[80, 90]);
    sniffed.ports[1].protocol = Protocol::Unsupported;
    check(
        &format!("{WEB}{}", to("web", "web", "host: web")),
        [sniffed.clone()],
        &[
            "Service/shop/web spec.ports[1]: nothing says that port 90 speaks HTTP, and VirtualService \
           shop/web has HTTP rules for it",
        ],
    );
    let other = "http: [{match: [{port: 80}], route: [{destination: {host: web}}]}]";
    check(
        &format!("{WEB}{}", virtual_service("web", "web", other)),
        [sniffed],
        &[],
    );
    let mut tcp = web();
    tcp.ports = vec![Port {
        name: "tcp".into(),
        port: 80,
        protocol: Protocol::Tcp,
    }];
    check(
        &format!("{WEB}{}", to("web", "web", "host: web")),
        [tcp],
        &[
            "VirtualService/shop/web spec.hosts[0]: no port of web.shop.svc.cluster.local (80) speaks HTTP",
        ],
    );
}
