//! `HTTPRoute`s and `GRPCRoute`s as VirtualServices: one for each host of a listener, or for each
//! host of the mesh and namespace of routes, with the rules of all routes sorted by precedence.

use std::{cmp::Reverse, collections::BTreeMap};

use model::{
    Config, MeshState, Meta,
    api::{
        VirtualService,
        common::{HttpRetry, StringMatch},
        gateway_api::{
            BackendRef, GrpcRoute, GrpcRouteMatch, HttpBackendRef, HttpPathMatch,
            HttpRoute as Route, HttpRouteFilter, HttpRouteMatch, HttpRouteRule, HttpValueMatch,
            PathMatchType, ValueMatchType,
        },
        virtual_service::{HttpDirectResponse, HttpMatchRequest, HttpRoute, HttpRouteDestination},
    },
};

use super::{
    backend, filter,
    listener::Bound,
    parent::{self, Parent},
};

/// Conditions of retries that routes ask for.
const RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled";

/// Rules that go together, and the oldest route among them.
struct Group<'a> {
    oldest: &'a Meta,
    host: String,
    gateway: String,
    export_to: Vec<String>,
    rules: Vec<HttpRoute>,
}

/// A route of either kind.
struct Source<'a> {
    meta: &'a Meta,
    kind: &'static str,
    hostnames: &'a [String],
    parents: Vec<Parent<'a>>,
    rules: Box<dyn Fn(bool) -> Result<Vec<HttpRoute>, String> + 'a>,
}

pub(super) fn translate(
    state: &MeshState,
    listeners: &[Bound],
    output: &mut Vec<Config<VirtualService>>,
) {
    let mut groups: BTreeMap<(String, String), Group<'_>> = BTreeMap::new();
    for source in sources(state, listeners) {
        for in_mesh in [false, true] {
            let of_this_kind = |p: &&Parent<'_>| matches!(p, Parent::Mesh { .. }) == in_mesh;
            if !source.parents.iter().any(|p| of_this_kind(&p)) {
                continue;
            }
            let rules = match (source.rules)(in_mesh) {
                Ok(rules) => rules,
                Err(reason) => {
                    let route = source.meta.namespaced_name();
                    tracing::debug!(kind = source.kind, %route, reason, "route is not served");
                    continue;
                }
            };
            for parent in source.parents.iter().filter(of_this_kind) {
                for (key, group) in places(&source, parent, listeners) {
                    let mut rules = rules.clone();
                    if let Parent::Mesh {
                        port: Some(port), ..
                    } = parent
                    {
                        for rule in &mut rules {
                            on_port(rule, *port);
                        }
                    }
                    groups.entry(key).or_insert(group).rules.extend(rules);
                }
            }
        }
    }
    for ((namespace, name), mut group) in groups {
        group.rules.sort_by_key(precedence);
        let spec = VirtualService {
            hosts: vec![group.host],
            gateways: vec![group.gateway],
            http: group.rules,
            export_to: group.export_to,
            ..VirtualService::default()
        };
        let namespace = if namespace.is_empty() {
            &*group.oldest.namespace
        } else {
            &*namespace
        };
        output.push(crate::config(
            namespace,
            &name,
            group.oldest,
            spec,
            |meta| {
                crate::annotate(meta, crate::ROUTE_SEMANTICS, "gateway");
            },
        ));
    }
}

/// Lists all routes in creation order.
fn sources<'a>(state: &'a MeshState, listeners: &'a [Bound]) -> Vec<Source<'a>> {
    let http = state.objects.http_routes.values().map(|route| {
        let spec: &Route = &route.spec;
        Source {
            meta: &route.meta,
            kind: "HTTPRoute",
            hostnames: &spec.hostnames,
            parents: parent::resolve(
                state,
                listeners,
                "HTTPRoute",
                route,
                &spec.parent_refs,
                &spec.hostnames,
            ),
            rules: Box::new(|mesh| http_rules(state, &route.meta, &spec.rules, mesh)),
        }
    });
    let grpc = state.objects.grpc_routes.values().map(|route| {
        let spec: &GrpcRoute = &route.spec;
        Source {
            meta: &route.meta,
            kind: "GRPCRoute",
            hostnames: &spec.hostnames,
            parents: parent::resolve(
                state,
                listeners,
                "GRPCRoute",
                route,
                &spec.parent_refs,
                &spec.hostnames,
            ),
            rules: Box::new(|mesh| grpc_rules(state, route, mesh)),
        }
    });
    let mut all: Vec<_> = http.chain(grpc).collect();
    all.sort_by_key(|s| {
        let (created, name, namespace) = s.meta.creation_order();
        (created, name.to_owned(), namespace.to_owned(), s.kind)
    });
    all
}

/// Lists the groups that the rules of a route belong to for one parent.
fn places<'a>(
    source: &Source<'a>,
    parent: &Parent<'_>,
    listeners: &[Bound],
) -> Vec<((String, String), Group<'a>)> {
    let group = |host: String, gateway: String| Group {
        oldest: source.meta,
        host,
        gateway,
        export_to: Vec::new(),
        rules: Vec::new(),
    };
    let own = source.meta.namespace.to_string();
    match parent {
        Parent::Listener(bound) => {
            let any = ["*".to_owned()];
            let hosts = if source.hostnames.is_empty() {
                &any[..]
            } else {
                source.hostnames
            };
            let of_listener = hosts
                .iter()
                .filter(|host| parent::serves(bound, host, listeners));
            of_listener
                .map(|host| {
                    let gateway = bound.gateway();
                    let name = format!("{}~{gateway}~{host}", bound.namespace);
                    let gateway = format!("{}/{gateway}", bound.namespace);
                    ((String::new(), name), group(host.clone(), gateway))
                })
                .collect()
        }
        Parent::Mesh {
            host,
            namespace,
            port,
        } => {
            let name = match port {
                Some(port) => format!("{own}~{port}~{host}"),
                None => format!("{own}~{host}"),
            };
            let mut group = group(host.clone(), "mesh".to_owned());
            if *namespace != own {
                // Routes of consumers are for their own namespace.
                group.export_to = vec![".".to_owned()];
            }
            vec![((own, name), group)]
        }
    }
}

fn on_port(rule: &mut HttpRoute, port: u32) {
    if rule.r#match.is_empty() {
        rule.r#match.push(HttpMatchRequest::default());
    }
    rule.r#match.iter_mut().for_each(|m| m.port = port);
}

/// The order of rules: exact paths, then prefixes, then expressions; longer paths, a method, more
/// headers, more query parameters first. The age of routes decides between equals.
fn precedence(rule: &HttpRoute) -> Reverse<(Option<u8>, usize, bool, usize, usize)> {
    let Some(first) = rule.r#match.first() else {
        return Reverse((None, 0, false, 0, 0));
    };
    let uri = first.uri.as_ref();
    let (rank, length) = match uri {
        Some(StringMatch {
            exact: Some(path), ..
        }) => (Some(3), path.len()),
        Some(StringMatch {
            prefix: Some(path), ..
        }) => (Some(2), path.len()),
        Some(StringMatch {
            regex: Some(path), ..
        }) => (Some(1), path.len()),
        _ => (Some(0), 0),
    };
    Reverse((
        rank,
        length,
        first.method.is_some(),
        first.headers.len(),
        first.query_params.len(),
    ))
}

fn http_rules(
    state: &MeshState,
    meta: &Meta,
    rules: &[HttpRouteRule],
    mesh: bool,
) -> Result<Vec<HttpRoute>, String> {
    let mut result = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let name = rule_name(meta, rule.name.as_deref(), index);
        let mut route = action(
            state,
            "HTTPRoute",
            meta,
            &rule.filters,
            &rule.backend_refs,
            mesh,
        )?;
        route.name = name;
        let timeouts = rule.timeouts.as_ref();
        route.timeout = timeouts.and_then(|t| t.request);
        let backend_request = timeouts.and_then(|t| t.backend_request);
        if let Some(retry) = &rule.retry {
            let codes = retry.codes.iter().map(|code| format!(",{code}"));
            let attempts = retry.attempts.unwrap_or(2);
            route.retries = Some(HttpRetry {
                attempts,
                per_try_timeout: backend_request,
                retry_on: if attempts == 0 {
                    String::new()
                } else {
                    format!("{RETRY_ON}{}", codes.collect::<String>())
                },
                backoff: retry.backoff,
                ..HttpRetry::default()
            });
        } else if backend_request.is_some() {
            route.timeout = backend_request;
        }
        push(&mut result, &route, rule.matches.iter().map(http_match));
    }
    Ok(result)
}

fn grpc_rules(
    state: &MeshState,
    route: &Config<GrpcRoute>,
    mesh: bool,
) -> Result<Vec<HttpRoute>, String> {
    let mut result = Vec::new();
    let meta = &route.meta;
    for (index, rule) in route.spec.rules.iter().enumerate() {
        let name = rule_name(meta, rule.name.as_deref(), index);
        let mut route = action(
            state,
            "GRPCRoute",
            meta,
            &rule.filters,
            &rule.backend_refs,
            mesh,
        )?;
        route.name = name;
        push(&mut result, &route, rule.matches.iter().map(grpc_match));
    }
    Ok(result)
}

fn rule_name(meta: &Meta, name: Option<&str>, index: usize) -> String {
    name.filter(|name| !name.is_empty()).map_or_else(
        || format!("{}.{}.{index}", meta.namespace, meta.name),
        str::to_owned,
    )
}

/// Adds a rule once for each of its matches, so that each finds its own place; without matches it
/// takes everything.
fn push(
    result: &mut Vec<HttpRoute>,
    route: &HttpRoute,
    matches: impl ExactSizeIterator<Item = HttpMatchRequest>,
) {
    if matches.len() == 0 {
        result.push(route.clone());
    }
    result.extend(matches.map(|m| HttpRoute {
        r#match: vec![m],
        ..route.clone()
    }));
}

fn action(
    state: &MeshState,
    kind: &'static str,
    meta: &Meta,
    filters: &[HttpRouteFilter],
    backends: &[HttpBackendRef],
    mesh: bool,
) -> Result<HttpRoute, String> {
    let mut route = HttpRoute::default();
    filter::apply(state, kind, &meta.namespace, filters, mesh, &mut route)?;
    let used: Vec<_> = backends
        .iter()
        .filter(|b| backend::weight(b.weight) > 0)
        .collect();
    if used.is_empty() && route.redirect.is_none() {
        route.direct_response = Some(HttpDirectResponse {
            status: 500,
            ..HttpDirectResponse::default()
        });
    }
    let destinations = used.iter().map(|b| {
        let reference = BackendRef {
            group: b.group.clone(),
            kind: b.kind.clone(),
            name: b.name.clone(),
            namespace: b.namespace.clone(),
            port: b.port,
            weight: b.weight,
        };
        Ok::<_, String>(HttpRouteDestination {
            destination: Some(backend::destination(
                state,
                kind,
                &meta.namespace,
                &reference,
                mesh,
            )?),
            weight: if used.len() == 1 {
                0
            } else {
                backend::weight(b.weight)
            },
            headers: filter::of_backend(&b.filters)?,
        })
    });
    route.route = destinations.collect::<Result<_, _>>()?;
    Ok(route)
}

fn http_match(m: &HttpRouteMatch) -> HttpMatchRequest {
    HttpMatchRequest {
        uri: m.path.as_ref().map(path_match),
        method: m.method.as_deref().map(crate::exact),
        headers: values(&m.headers),
        query_params: values(&m.query_params),
        ..HttpMatchRequest::default()
    }
}

fn path_match(path: &HttpPathMatch) -> StringMatch {
    let value = path.value.as_deref().unwrap_or("/");
    match path.r#type.unwrap_or(PathMatchType::PathPrefix) {
        PathMatchType::Exact => crate::exact(value),
        PathMatchType::RegularExpression => crate::regex(value),
        PathMatchType::PathPrefix if value == "/" => crate::prefix(value),
        PathMatchType::PathPrefix => crate::prefix(value.strip_suffix('/').unwrap_or(value)),
    }
}

/// Conditions by name; of names given twice the first counts.
fn values(list: &[HttpValueMatch]) -> BTreeMap<String, StringMatch> {
    let mut result = BTreeMap::new();
    for value in list {
        let condition = match value.r#type.unwrap_or(ValueMatchType::Exact) {
            ValueMatchType::Exact => crate::exact(&value.value),
            ValueMatchType::RegularExpression => crate::regex(&value.value),
        };
        result.entry(value.name.clone()).or_insert(condition);
    }
    result
}

fn grpc_match(m: &GrpcRouteMatch) -> HttpMatchRequest {
    let uri = m.method.as_ref().and_then(|method| {
        let service = method.service.as_deref().filter(|s| !s.is_empty());
        let name = method.method.as_deref().filter(|s| !s.is_empty());
        Some(match method.r#type.unwrap_or(ValueMatchType::Exact) {
            ValueMatchType::Exact => match (service, name) {
                (Some(service), Some(name)) => crate::exact(&format!("/{service}/{name}")),
                (Some(service), None) => crate::prefix(&format!("/{service}/")),
                (None, Some(name)) => crate::regex(&format!("/[^/]+/{name}")),
                (None, None) => return None,
            },
            ValueMatchType::RegularExpression => match (service, name) {
                (Some(service), Some(name)) => crate::regex(&format!("/{service}/{name}")),
                (Some(service), None) => crate::regex(&format!("/{service}/.+")),
                (None, Some(name)) => crate::regex(&format!("/[^/]+/{name}")),
                (None, None) => return None,
            },
        })
    });
    HttpMatchRequest {
        uri,
        headers: values(&m.headers),
        ..HttpMatchRequest::default()
    }
}
