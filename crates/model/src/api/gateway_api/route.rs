//! `HTTPRoute`, `GRPCRoute`, `TCPRoute` and `TLSRoute`.

use crate::api::Duration;
use crate::api::codec::{message, proto_enum};

message! {
    /// What a route attaches to.
    pub struct ParentReference {
        /// API group; unset is `gateway.networking.k8s.io`.
        group: Option<String>,
        /// Kind; unset is `Gateway`.
        kind: Option<String>,
        /// Namespace; unset is that of the route.
        namespace: Option<String>,
        /// Name.
        name: String,
        /// Listener or port name; unset means all.
        section_name: Option<String>,
        /// Port; unset means all.
        port: Option<u32>,
    }

    /// Where a rule leads.
    pub struct BackendRef {
        /// API group; unset is the core group.
        group: Option<String>,
        /// Kind; unset is `Service`.
        kind: Option<String>,
        /// Name.
        name: String,
        /// Namespace; unset is that of the route.
        namespace: Option<String>,
        /// Port.
        port: Option<u32>,
        /// Share; unset means 1.
        weight: Option<i32>,
    }

    /// Where an HTTP rule leads.
    pub struct HttpBackendRef {
        /// API group; unset is the core group.
        group: Option<String>,
        /// Kind; unset is `Service`.
        kind: Option<String>,
        /// Name.
        name: String,
        /// Namespace; unset is that of the route.
        namespace: Option<String>,
        /// Port.
        port: Option<u32>,
        /// Share; unset means 1.
        weight: Option<i32>,
        /// Changes for this backend.
        filters: Vec<HttpRouteFilter>,
    }

    /// An HTTP route.
    pub struct HttpRoute {
        /// What it attaches to.
        parent_refs: Vec<ParentReference>,
        /// Hosts; empty means those of the listener.
        hostnames: Vec<String>,
        /// Rules.
        rules: Vec<HttpRouteRule>,
    }

    /// A rule of an HTTP route.
    pub struct HttpRouteRule {
        /// Name.
        name: Option<String>,
        /// Conditions, one of which must hold; none matches everything.
        matches: Vec<HttpRouteMatch>,
        /// Changes.
        filters: Vec<HttpRouteFilter>,
        /// Where it leads.
        backend_refs: Vec<HttpBackendRef>,
        /// Timeouts.
        timeouts: Option<HttpRouteTimeouts>,
        /// Retries.
        retry: Option<HttpRouteRetry>,
        /// Affinity.
        session_persistence: Option<SessionPersistence>,
    }

    /// Timeouts of a rule.
    pub struct HttpRouteTimeouts {
        /// Of the whole request.
        request: Option<Duration>,
        /// Of one try.
        backend_request: Option<Duration>,
    }

    /// Retries of a rule.
    pub struct HttpRouteRetry {
        /// Status codes that are retried.
        codes: Vec<u32>,
        /// How many.
        attempts: Option<i32>,
        /// Interval between tries.
        backoff: Option<Duration>,
    }

    /// Affinity of a rule.
    pub struct SessionPersistence {
        /// Name of the session.
        session_name: Option<String>,
        /// Longest session.
        absolute_timeout: Option<Duration>,
        /// Longest pause.
        idle_timeout: Option<Duration>,
        /// How it is carried; unset means by cookie.
        r#type: Option<SessionPersistenceType>,
        /// The cookie.
        cookie_config: Option<SessionCookie>,
    }

    /// The cookie of a session.
    pub struct SessionCookie {
        /// Its lifetime; unset means that of the browser.
        lifetime_type: Option<CookieLifetime>,
    }

    /// Conditions on a request, all of which must hold.
    pub struct HttpRouteMatch {
        /// Path; absent means any.
        path: Option<HttpPathMatch>,
        /// Headers.
        headers: Vec<HttpValueMatch>,
        /// Query parameters.
        query_params: Vec<HttpValueMatch>,
        /// Method; unset means any.
        method: Option<String>,
    }

    /// A condition on the path.
    pub struct HttpPathMatch {
        /// How it is compared; unset means by prefix.
        r#type: Option<PathMatchType>,
        /// With what; unset means `/`.
        value: Option<String>,
    }

    /// A condition on a header or query parameter.
    pub struct HttpValueMatch {
        /// How it is compared; unset means exactly.
        r#type: Option<ValueMatchType>,
        /// Name.
        name: String,
        /// Value.
        value: String,
    }

    /// A change of requests or answers; the member that the type names is set.
    pub struct HttpRouteFilter {
        /// Which change.
        r#type: String,
        /// Changes request headers.
        request_header_modifier: Option<HeaderModifier>,
        /// Changes response headers.
        response_header_modifier: Option<HeaderModifier>,
        /// Copies requests.
        request_mirror: Option<RequestMirror>,
        /// Answers with a redirect.
        request_redirect: Option<RequestRedirect>,
        /// Changes host or path.
        url_rewrite: Option<UrlRewrite>,
        /// Cross-origin policy.
        cors: Option<Cors>,
        /// A change of the implementation.
        extension_ref: Option<LocalReference>,
        /// External authorization.
        external_auth: Option<ExternalAuth>,
    }

    /// Names an object of the same namespace.
    pub struct LocalReference {
        /// API group.
        group: String,
        /// Kind.
        kind: String,
        /// Name.
        name: String,
    }

    /// Changes of headers.
    pub struct HeaderModifier {
        /// Values that replace those there.
        set: Vec<HeaderValue>,
        /// Values appended to those there.
        add: Vec<HeaderValue>,
        /// Names to drop.
        remove: Vec<String>,
    }

    /// A header.
    pub struct HeaderValue {
        /// Name.
        name: String,
        /// Value.
        value: String,
    }

    /// A copy of requests.
    pub struct RequestMirror {
        /// Where it goes.
        backend_ref: BackendRef,
        /// Share, percent.
        percent: Option<i32>,
        /// Share, as a fraction.
        fraction: Option<Fraction>,
    }

    /// A fraction.
    pub struct Fraction {
        /// Numerator.
        numerator: i32,
        /// Denominator; unset means 100.
        denominator: Option<i32>,
    }

    /// A redirect.
    pub struct RequestRedirect {
        /// New scheme.
        scheme: Option<String>,
        /// New host.
        hostname: Option<String>,
        /// New path.
        path: Option<HttpPathModifier>,
        /// New port.
        port: Option<u32>,
        /// Status; unset means 302.
        status_code: Option<u32>,
    }

    /// Change of host or path.
    pub struct UrlRewrite {
        /// New host.
        hostname: Option<String>,
        /// New path.
        path: Option<HttpPathModifier>,
    }

    /// Change of the path.
    pub struct HttpPathModifier {
        /// Which change.
        r#type: PathModifierType,
        /// Replaces the whole path.
        replace_full_path: Option<String>,
        /// Replaces the matched prefix.
        replace_prefix_match: Option<String>,
    }

    /// Cross-origin policy.
    pub struct Cors {
        /// Allowed origins.
        allow_origins: Vec<String>,
        /// Whether credentials may be sent.
        allow_credentials: Option<bool>,
        /// Allowed methods.
        allow_methods: Vec<String>,
        /// Allowed request headers.
        allow_headers: Vec<String>,
        /// Response headers that scripts may read.
        expose_headers: Vec<String>,
        /// How long a preflight answer may be cached, seconds; unset means 5.
        max_age: Option<i32>,
    }

    /// External authorization; not supported.
    pub struct ExternalAuth {
        /// `HTTP` or `GRPC`.
        protocol: String,
        /// The service.
        backend_ref: BackendRef,
    }

    /// A gRPC route.
    pub struct GrpcRoute {
        /// What it attaches to.
        parent_refs: Vec<ParentReference>,
        /// Hosts; empty means those of the listener.
        hostnames: Vec<String>,
        /// Rules.
        rules: Vec<GrpcRouteRule>,
    }

    /// A rule of a gRPC route.
    pub struct GrpcRouteRule {
        /// Name.
        name: Option<String>,
        /// Conditions, one of which must hold; none matches everything.
        matches: Vec<GrpcRouteMatch>,
        /// Changes.
        filters: Vec<HttpRouteFilter>,
        /// Where it leads.
        backend_refs: Vec<HttpBackendRef>,
        /// Affinity.
        session_persistence: Option<SessionPersistence>,
    }

    /// Conditions on a call, all of which must hold.
    pub struct GrpcRouteMatch {
        /// Service and method; absent means any.
        method: Option<GrpcMethodMatch>,
        /// Headers.
        headers: Vec<HttpValueMatch>,
    }

    /// A condition on service and method.
    pub struct GrpcMethodMatch {
        /// How it is compared; unset means exactly.
        r#type: Option<ValueMatchType>,
        /// Service; unset means any.
        service: Option<String>,
        /// Method; unset means any.
        method: Option<String>,
    }

    /// A TCP route.
    pub struct TcpRoute {
        /// What it attaches to.
        parent_refs: Vec<ParentReference>,
        /// Rules.
        rules: Vec<L4RouteRule>,
    }

    /// A TLS route.
    pub struct TlsRoute {
        /// What it attaches to.
        parent_refs: Vec<ParentReference>,
        /// Server names.
        hostnames: Vec<String>,
        /// Rules.
        rules: Vec<L4RouteRule>,
    }

    /// A rule of a TCP or TLS route.
    pub struct L4RouteRule {
        /// Name.
        name: Option<String>,
        /// Where it leads.
        backend_refs: Vec<BackendRef>,
    }
}

proto_enum! {
    /// How a path is compared.
    pub enum PathMatchType {
        /// By prefix, segment by segment.
        PathPrefix = 0 "PathPrefix",
        /// Exactly.
        Exact = 1 "Exact",
        /// By expression.
        RegularExpression = 2 "RegularExpression",
    }

    /// How a value is compared.
    pub enum ValueMatchType {
        /// Exactly.
        Exact = 0 "Exact",
        /// By expression.
        RegularExpression = 1 "RegularExpression",
    }

    /// Which change of the path.
    pub enum PathModifierType {
        /// The whole path.
        ReplaceFullPath = 0 "ReplaceFullPath",
        /// The matched prefix.
        ReplacePrefixMatch = 1 "ReplacePrefixMatch",
    }

    /// How a session is carried.
    pub enum SessionPersistenceType {
        /// By cookie.
        Cookie = 0 "Cookie",
        /// By header.
        Header = 1 "Header",
    }

    /// Lifetime of a session's cookie.
    pub enum CookieLifetime {
        /// That of the browser.
        Session = 0 "Session",
        /// The absolute timeout.
        Permanent = 1 "Permanent",
    }
}
