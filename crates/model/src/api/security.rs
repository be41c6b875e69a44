//! `security.istio.io` PeerAuthentication, RequestAuthentication and AuthorizationPolicy
//! (config-model.md §3.11).

use std::collections::BTreeMap;

use super::Duration;
use super::codec::{message, proto_enum};
use super::common::{PolicyTargetReference, WorkloadSelector};

message! {
    /// Mutual TLS of inbound traffic.
    pub struct PeerAuthentication {
        /// Workloads it is for; absent means all in scope.
        selector: Option<WorkloadSelector>,
        /// Mode of all ports.
        mtls: Option<MutualTls>,
        /// Modes by workload port.
        port_level_mtls: BTreeMap<u32, MutualTls>,
    }

    /// Mutual TLS.
    pub struct MutualTls {
        /// Its mode.
        mode: MutualTlsMode,
    }

    /// Accepted JSON web tokens.
    pub struct RequestAuthentication {
        /// Workloads it is for; absent means all in scope.
        selector: Option<WorkloadSelector>,
        /// Resource it attaches to, deprecated form.
        target_ref: Option<PolicyTargetReference>,
        /// Resources it attaches to.
        target_refs: Vec<PolicyTargetReference>,
        /// Rules, one per issuer.
        jwt_rules: Vec<JwtRule>,
    }

    /// Tokens of one issuer.
    pub struct JwtRule {
        /// The issuer.
        issuer: String,
        /// Accepted audiences; empty means any.
        audiences: Vec<String>,
        /// Where the keys are.
        jwks_uri: String,
        /// The keys themselves.
        jwks: String,
        /// Headers that hold the token.
        from_headers: Vec<JwtHeader>,
        /// Query parameters that hold the token.
        from_params: Vec<String>,
        /// Cookies that hold the token.
        from_cookies: Vec<String>,
        /// Header that the payload is copied to.
        output_payload_to_header: String,
        /// Keeps the token in the request.
        forward_original_token: bool,
        /// Headers that claims are copied to.
        output_claim_to_headers: Vec<ClaimToHeader>,
        /// How long fetching the keys may take; absent means 5 s.
        timeout: Option<Duration>,
        /// Claims that are lists separated by spaces.
        space_delimited_claims: Vec<String>,
        /// Whether a token must be there.
        presence: JwtPresence,
    }

    /// A header that holds a token.
    pub struct JwtHeader {
        /// Its name.
        name: String,
        /// What precedes the token.
        prefix: String,
    }

    /// A claim copied to a header.
    pub struct ClaimToHeader {
        /// The header.
        header: String,
        /// The claim.
        claim: String,
    }

    /// Who may do what.
    pub struct AuthorizationPolicy {
        /// Workloads it is for; absent means all in scope.
        selector: Option<WorkloadSelector>,
        /// Resource it attaches to, deprecated form.
        target_ref: Option<PolicyTargetReference>,
        /// Resources it attaches to.
        target_refs: Vec<PolicyTargetReference>,
        /// Rules, one of which must match; none matches nothing.
        rules: Vec<Rule>,
        /// What a match means.
        action: AuthorizationAction,
        /// Provider of a custom action.
        provider: Option<AuthorizationProvider>,
    }

    /// Provider of a custom action.
    pub struct AuthorizationProvider {
        /// Its name in the mesh configuration.
        name: String,
    }

    /// One rule; absent parts match everything.
    pub struct Rule {
        /// Sources, one of which must match.
        from: Vec<RuleFrom>,
        /// Operations, one of which must match.
        to: Vec<RuleTo>,
        /// Conditions, all of which must match.
        when: Vec<Condition>,
    }

    /// A source.
    pub struct RuleFrom {
        /// The source itself.
        source: Option<Source>,
    }

    /// An operation.
    pub struct RuleTo {
        /// The operation itself.
        operation: Option<Operation>,
    }

    /// Where a request comes from; all given members must match.
    pub struct Source {
        /// Peer identities.
        principals: Vec<String>,
        /// Peer identities that must not match.
        not_principals: Vec<String>,
        /// Token identities, `issuer/subject`.
        request_principals: Vec<String>,
        /// Token identities that must not match.
        not_request_principals: Vec<String>,
        /// Peer namespaces.
        namespaces: Vec<String>,
        /// Peer namespaces that must not match.
        not_namespaces: Vec<String>,
        /// Addresses of the peer.
        ip_blocks: Vec<String>,
        /// Addresses of the peer that must not match.
        not_ip_blocks: Vec<String>,
        /// Addresses of the original client.
        remote_ip_blocks: Vec<String>,
        /// Addresses of the original client that must not match.
        not_remote_ip_blocks: Vec<String>,
        /// Peer service accounts, `namespace/account` or `account`.
        service_accounts: Vec<String>,
        /// Peer service accounts that must not match.
        not_service_accounts: Vec<String>,
        /// Peer trust domains.
        trust_domains: Vec<String>,
        /// Peer trust domains that must not match.
        not_trust_domains: Vec<String>,
    }

    /// What a request does; all given members must match.
    pub struct Operation {
        /// Hosts.
        hosts: Vec<String>,
        /// Hosts that must not match.
        not_hosts: Vec<String>,
        /// Ports.
        ports: Vec<String>,
        /// Ports that must not match.
        not_ports: Vec<String>,
        /// Methods.
        methods: Vec<String>,
        /// Methods that must not match.
        not_methods: Vec<String>,
        /// Paths.
        paths: Vec<String>,
        /// Paths that must not match.
        not_paths: Vec<String>,
    }

    /// A condition on an attribute.
    pub struct Condition {
        /// The attribute.
        key: String,
        /// Values, one of which must match.
        values: Vec<String>,
        /// Values none of which may match.
        not_values: Vec<String>,
    }
}

proto_enum! {
    /// Modes of mutual TLS.
    pub enum MutualTlsMode {
        /// As the parent says.
        Unset = 0 "UNSET",
        /// Plain text.
        Disable = 1 "DISABLE",
        /// Both.
        Permissive = 2 "PERMISSIVE",
        /// Mutual TLS only.
        Strict = 3 "STRICT",
    }

    /// Whether a token must be there.
    pub enum JwtPresence {
        /// It may be absent.
        Optional = 0 "OPTIONAL",
        /// It must be there.
        Required = 1 "REQUIRED",
    }

    /// What a match of an authorization policy means.
    pub enum AuthorizationAction {
        /// The request may pass.
        Allow = 0 "ALLOW",
        /// The request is refused.
        Deny = 1 "DENY",
        /// The request is marked.
        Audit = 2 "AUDIT",
        /// A provider decides.
        Custom = 3 "CUSTOM",
    }
}
