//! Which traffic policy of a DestinationRule applies to one port and subset (clusters-endpoints §4).

use model::api::{
    common::{ClientTlsMode, ClientTlsSettings, ConnectionPool, OutlierDetection},
    destination_rule::{
        DestinationRule, LoadBalancer, ProxyProtocol, RetryBudget, SimpleLb, Subset, TrafficPolicy,
        TunnelSettings,
    },
    mesh::DefaultTrafficPolicy,
};

/// The policy for one port: each block as a whole, from wherever it came.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Policy<'a> {
    /// Limits of connections and requests.
    pub connection_pool: Option<&'a ConnectionPool>,
    /// Ejection of failing hosts.
    pub outlier_detection: Option<&'a OutlierDetection>,
    /// Load balancing.
    pub load_balancer: Option<&'a LoadBalancer>,
    /// Upstream TLS.
    pub tls: Option<&'a ClientTlsSettings>,
    /// Tunnelling of TCP.
    pub tunnel: Option<&'a TunnelSettings>,
    /// The PROXY protocol header.
    pub proxy_protocol: Option<&'a ProxyProtocol>,
    /// Limit of retries relative to requests.
    pub retry_budget: Option<&'a RetryBudget>,
}

impl<'a> Policy<'a> {
    /// Resolves a policy for a service port (§4.2): an entry of that port replaces the
    /// destination level, even where it leaves blocks unset.
    pub fn of_port(policy: &'a TrafficPolicy, port: u16) -> Self {
        if let Some(entry) = policy.port_level_settings.iter().find(|e| e.is_for(port)) {
            return Self {
                connection_pool: entry.connection_pool.as_ref(),
                outlier_detection: entry.outlier_detection.as_ref(),
                load_balancer: entry.load_balancer.as_ref(),
                tls: entry.tls.as_ref(),
                ..Self::default()
            };
        }
        Self {
            connection_pool: policy.connection_pool.as_ref(),
            outlier_detection: policy.outlier_detection.as_ref(),
            load_balancer: policy.load_balancer.as_ref(),
            tls: policy.tls.as_ref(),
            tunnel: policy.tunnel.as_ref(),
            proxy_protocol: policy.proxy_protocol.as_ref(),
            retry_budget: policy.retry_budget.as_ref(),
        }
    }

    /// Resolves the policy of a rule for a service port and a subset (§4.2, §4.4), over the
    /// mesh's default blocks (§4.3). `None` when nothing says anything.
    pub fn resolve(
        rule: Option<&'a DestinationRule>,
        subset: Option<&'a Subset>,
        port: u16,
        default: Option<&'a DefaultTrafficPolicy>,
    ) -> Option<Self> {
        let of_rule = rule
            .and_then(|r| r.traffic_policy.as_ref())
            .map(|policy| Self::of_port(policy, port));
        let parent = match default {
            Some(default) => Some(of_rule.unwrap_or_default().over(default)),
            None => of_rule,
        };
        match subset.and_then(|s| s.traffic_policy.as_ref()) {
            None => parent,
            Some(own) => Some(parent.map_or_else(
                || Self::of_port(own, port),
                |parent| parent.replaced_by(own, port),
            )),
        }
    }

    /// Lays the policy over the mesh's default, block by block.
    fn over(mut self, default: &'a DefaultTrafficPolicy) -> Self {
        self.connection_pool = self.connection_pool.or(default.connection_pool.as_ref());
        self.outlier_detection = self
            .outlier_detection
            .or(default.outlier_detection.as_ref());
        self
    }

    /// Replaces blocks by those of a subset's policy.
    fn replaced_by(mut self, own: &'a TrafficPolicy, port: u16) -> Self {
        if own.port_level_settings.iter().any(|e| e.is_for(port)) {
            let entry = Self::of_port(own, port);
            return Self {
                tunnel: self.tunnel,
                proxy_protocol: self.proxy_protocol,
                retry_budget: self.retry_budget,
                ..entry
            };
        }
        let own = Self::of_port(own, port);
        self.connection_pool = own.connection_pool.or(self.connection_pool);
        self.outlier_detection = own.outlier_detection.or(self.outlier_detection);
        self.load_balancer = own.load_balancer.or(self.load_balancer);
        self.tls = own.tls.or(self.tls);
        self.tunnel = own.tunnel.or(self.tunnel);
        self.proxy_protocol = own.proxy_protocol.or(self.proxy_protocol);
        self.retry_budget = own.retry_budget.or(self.retry_budget);
        self
    }

    /// Tells whether the balancer asks for the original destination.
    pub fn is_passthrough(&self) -> bool {
        self.load_balancer.is_some_and(is_passthrough)
    }
}

/// Tells whether a balancer asks for the original destination.
pub fn is_passthrough(balancer: &LoadBalancer) -> bool {
    balancer.simple == Some(SimpleLb::Passthrough)
}

/// Tells whether the destination level of a policy asks for the original destination; port-level
/// entries are not looked at.
pub fn asks_passthrough(policy: Option<&TrafficPolicy>) -> bool {
    policy
        .and_then(|p| p.load_balancer.as_ref())
        .is_some_and(is_passthrough)
}

/// Finds a subset by name.
pub fn subset<'a>(rule: Option<&'a DestinationRule>, name: &str) -> Option<&'a Subset> {
    rule?.subsets.iter().find(|s| s.name == name)
}

/// The TLS mode by which the endpoints of (`subset`, `port`) are judged (§19.4).
///
/// Unlike [`Policy`], a port-level entry without TLS falls back to the destination level, and a
/// subset without a mode to the rule. An unknown subset has no mode.
pub fn endpoint_tls_mode(rule: &DestinationRule, subset: &str, port: u16) -> Option<ClientTlsMode> {
    let mode = |policy: &TrafficPolicy| {
        let entry = policy.port_level_settings.iter().find(|e| e.is_for(port));
        entry
            .and_then(|e| e.tls.as_ref())
            .or(policy.tls.as_ref())
            .map(|tls| tls.mode)
    };
    let of_rule = rule.traffic_policy.as_ref().and_then(mode);
    if subset.is_empty() {
        return of_rule;
    }
    let subset = rule.subsets.iter().find(|s| s.name == subset)?;
    subset.traffic_policy.as_ref().and_then(mode).or(of_rule)
}

/// Tells whether a port-level entry is for a service port.
trait ForPort {
    fn is_for(&self, port: u16) -> bool;
}

impl ForPort for model::api::destination_rule::PortTrafficPolicy {
    fn is_for(&self, port: u16) -> bool {
        self.port
            .as_ref()
            .is_some_and(|p| p.number == u32::from(port))
    }
}

#[cfg(test)]
mod tests {
    use model::api::destination_rule::PortTrafficPolicy;
    use serde_json::json;

    use super::*;

    /// The rule of example E6.
    fn rule() -> DestinationRule {
        serde_json::from_value(json!({
            "host": "a",
            "trafficPolicy": {
                "tls": {"mode": "ISTIO_MUTUAL"},
                "connectionPool": {"tcp": {"maxConnections": 1}},
                "retryBudget": {},
                "portLevelSettings": [{"port": {"number": 81}, "loadBalancer": {"simple": "RANDOM"}}],
            },
            "subsets": [
                {"name": "v1", "trafficPolicy": {"outlierDetection": {}}},
                {"name": "v2", "trafficPolicy": {
                    "portLevelSettings": [{"port": {"number": 80}, "tls": {"mode": "DISABLE"}}]}},
            ],
        }))
        .unwrap()
    }

    /// Which blocks are set: tls mode, pool, balancer, outlier detection, retry budget.
    #[track_caller]
    fn check(port: u16, name: &str, expected: (Option<ClientTlsMode>, [bool; 4])) {
        let rule = rule();
        let policy = Policy::resolve(Some(&rule), subset(Some(&rule), name), port, None).unwrap();
        let blocks = [
            policy.connection_pool.is_some(),
            policy.load_balancer.is_some(),
            policy.outlier_detection.is_some(),
            policy.retry_budget.is_some(),
        ];
        assert_eq!(
            (policy.tls.map(|t| t.mode), blocks),
            expected,
            "{port} {name:?}"
        );
    }

    #[test]
    fn ports_and_subsets_replace_whole_blocks() {
        let mutual = Some(ClientTlsMode::IstioMutual);
        check(80, "", (mutual, [true, false, false, true]));
        check(81, "", (None, [false, true, false, false]));
        check(80, "v1", (mutual, [true, false, true, true]));
        check(81, "v1", (None, [false, true, true, false]));
        check(
            80,
            "v2",
            (Some(ClientTlsMode::Disable), [false, false, false, true]),
        );
        check(81, "v2", (None, [false, true, false, false]));
    }

    #[test]
    fn the_mesh_default_fills_missing_blocks_of_the_rule() {
        let default = DefaultTrafficPolicy {
            connection_pool: Some(ConnectionPool::default()),
            outlier_detection: Some(OutlierDetection::default()),
        };
        let policy = Policy::resolve(None, None, 80, Some(&default)).unwrap();
        assert!(policy.connection_pool.is_some() && policy.outlier_detection.is_some());
        let rule = rule();
        let v2 =
            Policy::resolve(Some(&rule), subset(Some(&rule), "v2"), 80, Some(&default)).unwrap();
        assert!(
            v2.outlier_detection.is_none(),
            "a port-level entry hides the mesh default too"
        );
        assert_eq!(Policy::resolve(None, None, 80, None), None);
    }

    #[test]
    fn endpoints_fall_back_where_clusters_do_not() {
        let rule = rule();
        assert_eq!(
            endpoint_tls_mode(&rule, "", 81),
            Some(ClientTlsMode::IstioMutual)
        );
        assert_eq!(
            endpoint_tls_mode(&rule, "v2", 80),
            Some(ClientTlsMode::Disable)
        );
        assert_eq!(
            endpoint_tls_mode(&rule, "v2", 81),
            Some(ClientTlsMode::IstioMutual)
        );
        assert_eq!(endpoint_tls_mode(&rule, "unknown", 80), None);
        assert!(!PortTrafficPolicy::default().is_for(0));
    }
}
