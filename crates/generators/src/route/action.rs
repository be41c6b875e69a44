//! Where a route sends requests (routes §13).

#![expect(
    deprecated,
    reason = "proxies of the mesh are told `max_grpc_timeout`, as they always were"
)]

use envoy_types::pb::envoy::{
    config::{
        core::v3::RuntimeFractionalPercent,
        route::v3::{
            Route, RouteAction, WeightedCluster, route,
            route_action::{
                ClusterNotFoundResponseCode, ClusterSpecifier, HashPolicy, HostRewriteSpecifier,
                RequestMirrorPolicy, hash_policy,
            },
            route_match::PathSpecifier,
            weighted_cluster::{ClusterWeight, cluster_weight},
        },
    },
    r#type::{
        matcher::v3::{RegexMatchAndSubstitute, RegexMatcher},
        v3::{FractionalPercent, fractional_percent::DenominatorType},
    },
};
use model::{Service, api};
use pushctx::RouteSemantics;

use super::{RouteContext, headers::HeaderChanges, retry};
use crate::{convert, names};

/// Gives `route` its forwarding action. `authority` is what rule-level headers ask for.
pub(super) fn apply(
    rule: &api::virtual_service::HttpRoute,
    semantics: RouteSemantics,
    authority: Option<String>,
    ctx: &RouteContext<'_>,
    route: &mut Route,
) {
    let timeout = rule.timeout.unwrap_or_default();
    let mut action = RouteAction {
        timeout: Some(convert::duration(timeout)),
        max_grpc_timeout: Some(convert::duration(timeout)),
        ..RouteAction::default()
    };
    if semantics == RouteSemantics::Gateway {
        action.cluster_not_found_response_code =
            ClusterNotFoundResponseCode::InternalServerError.into();
    }
    let mut rewritten = authority;
    if let Some(rewrite) = &rule.rewrite {
        apply_rewrite(rewrite, semantics, ctx, route, &mut action);
        if !rewrite.authority.is_empty() {
            rewritten = Some(rewrite.authority.clone());
        }
    }
    action.request_mirror_policies = mirrors(rule, ctx);
    let hashes: Vec<_> = rule
        .route
        .iter()
        .map(|d| d.destination.as_ref().and_then(|d| hash_of(d, ctx)))
        .collect();
    let hashed = rule.route.len() == 1 && hashes[0].is_some();
    action.hash_policy = hashes.iter().flatten().filter_map(hash_policy).collect();
    action.retry_policy = retry::retry_policy(rule.retries.as_ref().or(ctx.mesh_retry), hashed);
    match &rule.route[..] {
        [only] => {
            let mut changes = HeaderChanges::of(only.headers.as_ref());
            rewritten = rewritten.or(changes.authority.take());
            changes.append_to(route);
            action.cluster_specifier = Some(ClusterSpecifier::Cluster(cluster_of(
                only.destination.as_ref(),
                ctx,
            )));
        }
        several => action.cluster_specifier = Some(weighted(several, ctx)),
    }
    action.host_rewrite_specifier = rewritten.map(HostRewriteSpecifier::HostRewriteLiteral);
    route.action = Some(route::Action::Route(action));
}

fn weighted(
    destinations: &[api::virtual_service::HttpRouteDestination],
    ctx: &RouteContext<'_>,
) -> ClusterSpecifier {
    let clusters = destinations
        .iter()
        .filter(|d| d.weight != 0)
        .map(|d| {
            let mut changes = HeaderChanges::of(d.headers.as_ref());
            let authority = changes.authority.take();
            let mut cluster = ClusterWeight {
                name: cluster_of(d.destination.as_ref(), ctx),
                weight: convert::u32_value(u32::try_from(d.weight).unwrap_or_default()),
                host_rewrite_specifier: authority
                    .map(cluster_weight::HostRewriteSpecifier::HostRewriteLiteral),
                ..ClusterWeight::default()
            };
            changes.put_on(&mut cluster);
            cluster
        })
        .collect();
    ClusterSpecifier::WeightedClusters(WeightedCluster {
        clusters,
        ..WeightedCluster::default()
    })
}

/// The cluster of a destination (routes §13.1).
fn cluster_of(destination: Option<&api::common::Destination>, ctx: &RouteContext<'_>) -> String {
    let Some(destination) = destination.filter(|d| !d.host.is_empty()) else {
        return "UnknownService".to_owned();
    };
    let service = (ctx.service)(&destination.host);
    let port = match (&destination.port, &service) {
        (Some(_), _) => super::destination_port(destination),
        (None, Some(service)) if service.ports.len() == 1 => service.ports[0].port,
        _ => ctx.listener_port,
    };
    if let Some(handles) = ctx.handles {
        let handled = handles(&destination.host);
        return waypoint_cluster(destination, service.as_deref(), handled, port);
    }
    let external = service
        .as_ref()
        .map(|s| &*s.attributes.external_name)
        .filter(|n| !n.is_empty());
    names::outbound(
        port,
        &destination.subset,
        external.unwrap_or(&destination.host),
    )
}

/// The cluster by which a waypoint reaches a port of a destination: its own for a service that it
/// handles, and for hosts that nobody knows; the one that all proxies have for other services.
pub(crate) fn waypoint_cluster(
    destination: &api::common::Destination,
    service: Option<&Service>,
    handled: bool,
    port: u16,
) -> String {
    let (host, subset) = (&destination.host, &destination.subset);
    if service.is_some() && !handled {
        return names::outbound(port, subset, host);
    }
    let protocol = service.and_then(|service| Some(service.port(port)?.protocol));
    let speaks_http = protocol.is_none_or(|p| p.is_http() || p.is_unsupported());
    let kind = names::vip_kind(if speaks_http { "http" } else { "tcp" }, subset);
    names::inbound_vip(port, &kind, host)
}

fn apply_rewrite(
    rewrite: &api::virtual_service::HttpRewrite,
    semantics: RouteSemantics,
    ctx: &RouteContext<'_>,
    route: &Route,
    action: &mut RouteAction,
) {
    action.append_x_forwarded_host = ctx.forwarded_host;
    let regex = |regex: String, substitution: String| RegexMatchAndSubstitute {
        pattern: Some(RegexMatcher {
            regex,
            ..RegexMatcher::default()
        }),
        substitution,
    };
    if let Some(by_regex) = &rewrite.uri_regex_rewrite {
        action.regex_rewrite = Some(regex(by_regex.r#match.clone(), by_regex.rewrite.clone()));
    } else if semantics == RouteSemantics::Gateway && rewrite.uri == "/" {
        let prefix = match route
            .r#match
            .as_ref()
            .and_then(|m| m.path_specifier.as_ref())
        {
            Some(PathSpecifier::PathSeparatedPrefix(prefix)) => prefix.as_str(),
            _ => "",
        };
        action.regex_rewrite = Some(regex(
            format!("^{}(/?)(.*)", quote(prefix)),
            r"/\2".to_owned(),
        ));
    } else {
        action.prefix_rewrite.clone_from(&rewrite.uri);
    }
}

/// Escapes what RE2 would read as an operator.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

fn mirrors(
    rule: &api::virtual_service::HttpRoute,
    ctx: &RouteContext<'_>,
) -> Vec<RequestMirrorPolicy> {
    let all = || {
        Some(FractionalPercent {
            numerator: 100,
            ..FractionalPercent::default()
        })
    };
    let first = rule.mirror.as_ref().and_then(|destination| {
        let fraction = match (&rule.mirror_percentage, rule.mirror_percent) {
            (Some(percent), _) => percentage(percent.value),
            (None, Some(0)) => None,
            (None, Some(n)) => Some(FractionalPercent {
                numerator: n,
                ..FractionalPercent::default()
            }),
            (None, None) => all(),
        };
        Some((destination, fraction?))
    });
    let further = rule.mirrors.iter().filter_map(|mirror| {
        let fraction = match &mirror.percentage {
            Some(percent) => percentage(percent.value),
            None => all(),
        };
        Some((mirror.destination.as_ref()?, fraction?))
    });
    first
        .into_iter()
        .chain(further)
        .map(|(destination, fraction)| RequestMirrorPolicy {
            cluster: cluster_of(Some(destination), ctx),
            runtime_fraction: Some(RuntimeFractionalPercent {
                default_value: Some(fraction),
                ..RuntimeFractionalPercent::default()
            }),
            trace_sampled: convert::bool_value(false),
            disable_shadow_host_suffix_append: ctx.plain_shadow_host,
            ..RequestMirrorPolicy::default()
        })
        .collect()
}

/// A mirror's share; `None` when nothing is mirrored.
fn percentage(value: f64) -> Option<FractionalPercent> {
    (value > 0.0).then(|| millionths(value))
}

/// A percentage in millionths, cut off.
pub(super) fn millionths(value: f64) -> FractionalPercent {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "truncation is the rule, and `as` saturates"
    )]
    let numerator = (value * 10_000.0) as u32;
    FractionalPercent {
        numerator,
        denominator: DenominatorType::Million.into(),
    }
}

/// The consistent hash of a destination, from the rule that applies to its host (routes §13.7).
fn hash_of(
    destination: &api::common::Destination,
    ctx: &RouteContext<'_>,
) -> Option<api::destination_rule::ConsistentHashLb> {
    let rule = (ctx.rule)(&destination.host)?;
    let rule = &rule.config.spec;
    let port = destination.port.as_ref().map(|p| p.number);
    let subset = rule
        .subsets
        .iter()
        .find(|s| s.name == destination.subset)
        .and_then(|s| s.traffic_policy.as_ref());
    [subset, rule.traffic_policy.as_ref()]
        .into_iter()
        .flatten()
        .find_map(|policy| policy_hash(policy, port))
        .cloned()
}

/// The consistent hash of a policy: the setting of `port` if it has one, else the policy's own.
pub(super) fn policy_hash(
    policy: &api::destination_rule::TrafficPolicy,
    port: Option<u32>,
) -> Option<&api::destination_rule::ConsistentHashLb> {
    policy
        .port_level_settings
        .iter()
        .filter(|s| port.is_some() && s.port.as_ref().map(|p| p.number) == port)
        .find_map(|s| s.load_balancer.as_ref()?.consistent_hash.as_ref())
        .or_else(|| policy.load_balancer.as_ref()?.consistent_hash.as_ref())
}

/// Translates a consistent hash; `None` when it states no key.
pub(super) fn hash_policy(hash: &api::destination_rule::ConsistentHashLb) -> Option<HashPolicy> {
    use hash_policy::{
        ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
    };
    let specifier = if let Some(name) = &hash.http_header_name {
        PolicySpecifier::Header(Header {
            header_name: name.clone(),
            ..Header::default()
        })
    } else if let Some(cookie) = &hash.http_cookie {
        PolicySpecifier::Cookie(Cookie {
            name: cookie.name.clone(),
            ttl: cookie.ttl.map(convert::duration),
            path: cookie.path.clone(),
            attributes: cookie
                .attributes
                .iter()
                .map(|a| CookieAttribute {
                    name: a.name.clone(),
                    value: a.value.clone(),
                })
                .collect(),
        })
    } else if let Some(source_ip) = hash.use_source_ip {
        PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip })
    } else {
        let name = hash.http_query_parameter_name.clone()?;
        PolicySpecifier::QueryParameter(QueryParameter { name })
    };
    Some(HashPolicy {
        policy_specifier: Some(specifier),
        ..HashPolicy::default()
    })
}
