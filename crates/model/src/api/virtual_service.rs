//! `networking.istio.io` VirtualService (config-model.md §3.2).

use std::collections::BTreeMap;

use super::codec::{message, proto_enum};
use super::common::{Destination, Headers, HttpRetry, Labels, Percent, StringMatch};
use super::{Base64, Duration};

message! {
    /// Routing rules for hosts.
    pub struct VirtualService {
        /// Hosts that the rules are for; empty makes this a delegate.
        hosts: Vec<String>,
        /// Gateways it is bound to; empty means the sidecars (`mesh`).
        gateways: Vec<String>,
        /// Rules for HTTP, first match wins.
        http: Vec<HttpRoute>,
        /// Rules for TLS that is not terminated, by server name.
        tls: Vec<TlsRoute>,
        /// Rules for TCP.
        tcp: Vec<TcpRoute>,
        /// Namespaces that see it.
        export_to: Vec<String>,
    }

    /// One HTTP rule.
    pub struct HttpRoute {
        /// Name, shown in logs and generated route names.
        name: String,
        /// Conditions, one of which must hold; none matches everything.
        r#match: Vec<HttpMatchRequest>,
        /// Weighted destinations.
        route: Vec<HttpRouteDestination>,
        /// Answers with a redirect.
        redirect: Option<HttpRedirect>,
        /// Answers with a fixed response.
        direct_response: Option<HttpDirectResponse>,
        /// Leaves the rule to another virtual service.
        delegate: Option<Delegate>,
        /// Changes path or authority before forwarding.
        rewrite: Option<HttpRewrite>,
        /// Timeout of requests.
        timeout: Option<Duration>,
        /// Retries.
        retries: Option<HttpRetry>,
        /// Injected faults.
        fault: Option<HttpFaultInjection>,
        /// Destination that gets a copy of the requests.
        mirror: Option<Destination>,
        /// Deprecated form of `mirror_percentage`.
        mirror_percent: Option<u32>,
        /// Share of requests that are mirrored; absent means all.
        mirror_percentage: Option<Percent>,
        /// Further mirrors; excludes `mirror`.
        mirrors: Vec<HttpMirror>,
        /// Cross-origin policy.
        cors_policy: Option<CorsPolicy>,
        /// Header changes.
        headers: Option<Headers>,
        /// Requests of one session go to one host. Nobody can write it: rules of the Gateway API are
        /// translated to it.
        #[serde(skip_deserializing)]
        session: Option<RuleSession>,
    }

    /// A session of a rule.
    pub struct RuleSession {
        /// Name of the cookie or header that carries it.
        name: String,
        /// It is carried by a header.
        by_header: bool,
        /// How long it lasts; unset means as long as the client's browser runs.
        lifetime: Option<Duration>,
    }

    /// Conditions on a request, all of which must hold.
    pub struct HttpMatchRequest {
        /// Name, appended to the route's name.
        name: String,
        /// Path and query.
        uri: Option<StringMatch>,
        /// Scheme.
        scheme: Option<StringMatch>,
        /// Method.
        method: Option<StringMatch>,
        /// Authority.
        authority: Option<StringMatch>,
        /// Headers by name; an empty match asks for presence.
        headers: BTreeMap<String, StringMatch>,
        /// Port that the request came to.
        port: u32,
        /// Labels of the calling workload.
        source_labels: Labels,
        /// Gateways, which override those of the virtual service.
        gateways: Vec<String>,
        /// Query parameters by name.
        query_params: BTreeMap<String, StringMatch>,
        /// Compares the path without case (exact and prefix).
        ignore_uri_case: bool,
        /// Headers that must not match.
        without_headers: BTreeMap<String, StringMatch>,
        /// Namespace of the calling workload.
        source_namespace: String,
        /// Prefix of the route's statistics.
        stat_prefix: String,
    }

    /// A destination with its share of requests.
    pub struct HttpRouteDestination {
        /// Where to.
        destination: Option<Destination>,
        /// Relative share; zero with a single destination means all.
        weight: i32,
        /// Header changes for this destination.
        headers: Option<Headers>,
    }

    /// A destination with its share of connections.
    pub struct RouteDestination {
        /// Where to.
        destination: Option<Destination>,
        /// Relative share; zero with a single destination means all.
        weight: i32,
    }

    /// A redirect answer.
    pub struct HttpRedirect {
        /// New path, or the whole URI's path.
        uri: String,
        /// New authority.
        authority: String,
        /// New port, number.
        port: Option<u32>,
        /// New port, derived.
        derive_port: Option<RedirectPortSelection>,
        /// New scheme.
        scheme: String,
        /// Status; zero means 301.
        redirect_code: u32,
        /// Replaces the matched prefix of the path.
        prefix_rewrite: String,
    }

    /// A fixed answer.
    pub struct HttpDirectResponse {
        /// Status code.
        status: u32,
        /// Body; absent means none.
        body: Option<HttpBody>,
    }

    /// The body of a fixed answer; one member is set.
    pub struct HttpBody {
        /// As text.
        string: Option<String>,
        /// As bytes.
        bytes: Option<Base64>,
    }

    /// The virtual service that a rule is delegated to.
    pub struct Delegate {
        /// Its name.
        name: String,
        /// Its namespace; empty means that of the root.
        namespace: String,
    }

    /// Changes before forwarding.
    pub struct HttpRewrite {
        /// Replaces the path, or its matched prefix.
        uri: String,
        /// Replaces the authority.
        authority: String,
        /// Replaces by expression.
        uri_regex_rewrite: Option<RegexRewrite>,
    }

    /// Replacement in the path by expression.
    pub struct RegexRewrite {
        /// RE2 expression.
        r#match: String,
        /// What it is replaced with; `\1` refers to groups.
        rewrite: String,
    }

    /// Injected faults.
    pub struct HttpFaultInjection {
        /// Delays.
        delay: Option<FaultDelay>,
        /// Aborts.
        abort: Option<FaultAbort>,
    }

    /// Injected delay.
    pub struct FaultDelay {
        /// Deprecated whole percentage.
        percent: i32,
        /// Fixed delay.
        fixed_delay: Option<Duration>,
        /// Not supported, refused.
        exponential_delay: Option<Duration>,
        /// Share of requests; absent means none or, with `percent`, that.
        percentage: Option<Percent>,
    }

    /// Injected abort; one of the three error members is set.
    pub struct FaultAbort {
        /// HTTP status.
        http_status: Option<i32>,
        /// gRPC status name.
        grpc_status: Option<String>,
        /// Not supported, refused.
        http2_error: Option<String>,
        /// Share of requests; absent means all.
        percentage: Option<Percent>,
    }

    /// A mirror with its share.
    pub struct HttpMirror {
        /// Where the copy goes.
        destination: Option<Destination>,
        /// Share of requests; absent means all.
        percentage: Option<Percent>,
    }

    /// Cross-origin policy.
    pub struct CorsPolicy {
        /// Deprecated list of exact origins.
        allow_origin: Vec<String>,
        /// Allowed origins.
        allow_origins: Vec<StringMatch>,
        /// Allowed methods.
        allow_methods: Vec<String>,
        /// Allowed request headers.
        allow_headers: Vec<String>,
        /// Response headers that scripts may read.
        expose_headers: Vec<String>,
        /// How long a preflight answer may be cached.
        max_age: Option<Duration>,
        /// Whether credentials may be sent.
        allow_credentials: Option<bool>,
        /// What happens to preflights of other origins.
        unmatched_preflights: UnmatchedPreflights,
    }

    /// One rule for TLS by server name.
    pub struct TlsRoute {
        /// Conditions, one of which must hold.
        r#match: Vec<TlsMatchAttributes>,
        /// Weighted destinations.
        route: Vec<RouteDestination>,
    }

    /// Conditions on a TLS connection.
    pub struct TlsMatchAttributes {
        /// Server names, wildcards allowed.
        sni_hosts: Vec<String>,
        /// Destination addresses or subnets.
        destination_subnets: Vec<String>,
        /// Destination port.
        port: u32,
        /// Labels of the calling workload.
        source_labels: Labels,
        /// Gateways, which override those of the virtual service.
        gateways: Vec<String>,
        /// Namespace of the calling workload.
        source_namespace: String,
    }

    /// One rule for TCP.
    pub struct TcpRoute {
        /// Conditions, one of which must hold; none matches everything.
        r#match: Vec<L4MatchAttributes>,
        /// Weighted destinations.
        route: Vec<RouteDestination>,
    }

    /// Conditions on a TCP connection.
    pub struct L4MatchAttributes {
        /// Destination addresses or subnets.
        destination_subnets: Vec<String>,
        /// Destination port.
        port: u32,
        /// Without effect.
        source_subnet: String,
        /// Labels of the calling workload.
        source_labels: Labels,
        /// Gateways, which override those of the virtual service.
        gateways: Vec<String>,
        /// Namespace of the calling workload.
        source_namespace: String,
    }
}

proto_enum! {
    /// The port of a redirect.
    pub enum RedirectPortSelection {
        /// 80 or 443, by scheme.
        FromProtocolDefault = 0 "FROM_PROTOCOL_DEFAULT",
        /// The port the request came to.
        FromRequestPort = 1 "FROM_REQUEST_PORT",
    }

    /// What happens to preflights whose origin is not allowed.
    pub enum UnmatchedPreflights {
        /// As [`UnmatchedPreflights::Forward`].
        Unspecified = 0 "UNSPECIFIED",
        /// They are forwarded.
        Forward = 1 "FORWARD",
        /// They are answered without CORS headers.
        Ignore = 2 "IGNORE",
    }
}
