//! `HTTPRoute`s and `GRPCRoute`s as VirtualServices: one for each host of a listener, or for each
//! host of the mesh and namespace of routes, with the rules of all routes sorted by precedence.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use model::{
    Config, Kind, MeshState, Meta,
    api::{
        Duration, VirtualService,
        common::{HttpRetry, StringMatch},
        gateway_api::{
            BackendRef, CookieLifetime, GrpcRoute, GrpcRouteMatch, HttpBackendRef, HttpPathMatch,
            HttpRoute as Route, HttpRouteFilter, HttpRouteMatch, HttpRouteRule, HttpValueMatch,
            PathMatchType, SessionPersistence, SessionPersistenceType, ValueMatchType,
        },
        virtual_service::{
            HttpDirectResponse, HttpMatchRequest, HttpRoute, HttpRouteDestination, RuleSession,
        },
    },
};

use super::{
    Attached, backend, filter,
    listener::Bound,
    parent::{self, Attachment, Outcome, Parent},
};
use crate::report::{Refusal, Reports, Verdict};

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
    report: Kind,
    hostnames: &'a [String],
    attachment: Attachment<'a>,
    rules: Rules<'a>,
}

/// Translates the rules of a route, for the mesh or for gateways.
type Rules<'a> = Box<dyn Fn(bool, &mut Verdict) -> Result<Vec<HttpRoute>, Refusal> + 'a>;

pub(super) fn translate(
    state: &MeshState,
    listeners: &[Bound],
    attached: &mut Attached,
    output: &mut Vec<Config<VirtualService>>,
    reports: &mut Reports,
) {
    let mut groups: BTreeMap<(String, String), Group<'_>> = BTreeMap::new();
    for source in sources(state, listeners, reports) {
        let mut outcomes = [Outcome::default(), Outcome::default()];
        for in_mesh in [false, true] {
            if !source.attachment.has(in_mesh) {
                continue;
            }
            let outcome = &mut outcomes[usize::from(in_mesh)];
            let rules = match (source.rules)(in_mesh, &mut outcome.resolved) {
                Ok(rules) => rules,
                Err(refusal) => {
                    let (route, reason) = (source.meta.namespaced_name(), &refusal.message);
                    tracing::debug!(kind = source.kind, %route, reason, "route is not served");
                    outcome.accepted = Err(refusal);
                    continue;
                }
            };
            let of_this_kind = |p: &&Parent<'_>| matches!(p, Parent::Mesh { .. }) == in_mesh;
            for parent in source.attachment.parents.iter().filter(of_this_kind) {
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
            let destinations = rules.iter().flat_map(|rule| &rule.route);
            let hosts = destinations.filter_map(|route| Some(&*route.destination.as_ref()?.host));
            attached.leads(&source.attachment.parents, hosts);
        }
        attached.count(&source.attachment);
        let [gateway, mesh] = outcomes;
        let of = |in_mesh| {
            if in_mesh {
                mesh.clone()
            } else {
                gateway.clone()
            }
        };
        let report = source.attachment.report(source.meta, of);
        let name = (source.report, source.meta.namespaced_name());
        reports.routes.insert(name, Arc::new(report));
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

/// Lists all routes by age, those of one age by namespace, then name.
fn sources<'a>(state: &'a MeshState, listeners: &'a [Bound], reports: &Reports) -> Vec<Source<'a>> {
    let http = state.objects.http_routes.values().map(|route| {
        let spec: &Route = &route.spec;
        Source {
            meta: &route.meta,
            kind: "HTTPRoute",
            report: Kind::HttpRoute,
            hostnames: &spec.hostnames,
            attachment: parent::resolve(
                state,
                (listeners, reports),
                "HTTPRoute",
                route,
                &spec.parent_refs,
                &spec.hostnames,
            ),
            rules: Box::new(|mesh, resolved| {
                http_rules(state, &route.meta, &spec.rules, mesh, resolved)
            }),
        }
    });
    let grpc = state.objects.grpc_routes.values().map(|route| {
        let spec: &GrpcRoute = &route.spec;
        Source {
            meta: &route.meta,
            kind: "GRPCRoute",
            report: Kind::GrpcRoute,
            hostnames: &spec.hostnames,
            attachment: parent::resolve(
                state,
                (listeners, reports),
                "GRPCRoute",
                route,
                &spec.parent_refs,
                &spec.hostnames,
            ),
            rules: Box::new(|mesh, resolved| grpc_rules(state, route, mesh, resolved)),
        }
    });
    let mut all: Vec<_> = http.chain(grpc).collect();
    all.sort_by_key(|s| {
        let Meta {
            created,
            namespace,
            name,
            ..
        } = s.meta;
        (*created, namespace.clone(), name.clone(), s.kind)
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
                    let gateway = bound.gateway_name();
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
    resolved: &mut Verdict,
) -> Result<Vec<HttpRoute>, Refusal> {
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
            resolved,
        )?;
        route.name = name;
        let timeouts = rule.timeouts.as_ref();
        // Zero means without limit, as none does.
        let limit = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
        route.timeout = limit(timeouts.and_then(|t| t.request));
        let backend_request = limit(timeouts.and_then(|t| t.backend_request));
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
        route.session = session(state, &route.name, rule.session_persistence.as_ref())?;
        push(&mut result, &route, rule.matches.iter().map(http_match));
    }
    Ok(result)
}

fn grpc_rules(
    state: &MeshState,
    route: &Config<GrpcRoute>,
    mesh: bool,
    resolved: &mut Verdict,
) -> Result<Vec<HttpRoute>, Refusal> {
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
            resolved,
        )?;
        route.name = name;
        route.session = session(state, &route.name, rule.session_persistence.as_ref())?;
        push(&mut result, &route, rule.matches.iter().map(grpc_match));
    }
    Ok(result)
}

/// The session of a rule; none where persistent sessions are switched off, as everywhere then.
fn session(
    state: &MeshState,
    rule: &str,
    wanted: Option<&SessionPersistence>,
) -> Result<Option<RuleSession>, Refusal> {
    let Some(wanted) = wanted.filter(|_| state.features.persistent_session) else {
        return Ok(None);
    };
    let by_header = wanted.r#type == Some(SessionPersistenceType::Header);
    let refused = |what: &str| Err(Refusal::new("UnsupportedValue", what));
    if wanted.idle_timeout.is_some() {
        return refused("sessions that end when they are idle are not supported");
    }
    // A client lets a permanent cookie expire; nothing ends a session that it is not told the end of.
    let cookie = wanted.cookie_config.as_ref();
    let is_permanent =
        cookie.and_then(|c| c.lifetime_type) == Some(CookieLifetime::Permanent) && !by_header;
    if wanted.absolute_timeout.is_some() != is_permanent {
        return refused("only sessions by permanent cookie end, and they have to");
    }
    let stated = wanted.session_name.clone();
    Ok(Some(RuleSession {
        // Sessions of one host must not take each other's cookies.
        name: stated.filter(|name| !name.is_empty()).unwrap_or_else(|| {
            let rule = model::fingerprint::of(&rule);
            format!("istio-session-{rule:016x}")
        }),
        by_header,
        lifetime: wanted.absolute_timeout,
    }))
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
    resolved: &mut Verdict,
) -> Result<HttpRoute, Refusal> {
    let mut route = HttpRoute::default();
    let namespace = &meta.namespace;
    filter::apply(state, kind, namespace, filters, mesh, &mut route, resolved)?;
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
        let destination = backend::destination(state, kind, namespace, &reference, mesh, resolved)?;
        Ok::<_, Refusal>(HttpRouteDestination {
            destination: Some(destination),
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
    // As the kind's definition has it, which files have not passed.
    let any = || crate::prefix("/");
    HttpMatchRequest {
        uri: Some(m.path.as_ref().map_or_else(any, path_match)),
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
