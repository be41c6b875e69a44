//! Names of clusters (clusters-endpoints §1).

use std::fmt::Write as _;

use model::Protocol;

/// The cluster that drops everything.
pub const BLACK_HOLE: &str = "BlackHoleCluster";
/// The cluster that sends to the original destination.
pub const PASSTHROUGH: &str = "PassthroughCluster";
/// The cluster of inbound traffic to the original destination.
pub const INBOUND_PASSTHROUGH: &str = "InboundPassthroughCluster";
/// The forward proxy cluster of the mode `ALLOW_ANY_DYNAMIC_DNS`.
pub const ALLOW_ANY_DYNAMIC_DNS: &str = "AllowAnyDynamicDNSCluster";
/// The proxy's own cluster; defined in the bootstrap, only its endpoints are served.
pub const LOCAL: &str = "local_cluster";
/// The secret service behind the proxy's credential socket.
pub const SDS_EXTERNAL: &str = "sds-external";
/// The cluster that feeds the HBONE listener's inner listener.
pub const MAIN_INTERNAL: &str = "main_internal";
/// The cluster of a waypoint that leads to its listener that opens tunnels.
pub const ENCAP: &str = "encap";
/// The cluster that opens HBONE tunnels.
pub const CONNECT_ORIGINATE: &str = "connect_originate";

/// Which side of a proxy a cluster is on.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// From the workload to others.
    Outbound,
    /// To the workload.
    Inbound,
    /// Through a waypoint to a service.
    InboundVip,
    /// Not told by the name.
    #[default]
    Unknown,
}

impl Direction {
    fn parse(text: &str) -> Self {
        match text {
            "outbound" => Self::Outbound,
            "inbound" => Self::Inbound,
            "inbound-vip" => Self::InboundVip,
            _ => Self::Unknown,
        }
    }
}

/// The parts of a cluster's name. A name of another form has no parts at all.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct ClusterName<'a> {
    /// The side.
    pub direction: Direction,
    /// The service port (outbound) or workload port (inbound); 0 when it is not a number.
    pub port: u16,
    /// The subset; empty for the default cluster.
    pub subset: &'a str,
    /// The service's host name; empty for inbound clusters.
    pub hostname: &'a str,
    /// Whether the name has the DNS form, that of SNI and of clusters behind it.
    pub dns_form: bool,
}

impl<'a> ClusterName<'a> {
    /// Takes a name apart, leniently: missing parts are empty.
    pub fn parse(name: &'a str) -> Self {
        let dns_form = name.starts_with("outbound_.") || name.starts_with("inbound_.");
        let separator = if dns_form { "_." } else { "|" };
        let mut parts = name.splitn(4, separator);
        let (Some(direction), Some(port)) = (parts.next(), parts.next()) else {
            return Self::default();
        };
        let subset = parts.next().unwrap_or_default();
        // A host may hold `_.`, so only the other separator spoils the last part.
        let hostname = parts
            .next()
            .filter(|h| dns_form || !h.contains('|'))
            .unwrap_or_default();
        Self {
            direction: Direction::parse(direction),
            port: port.parse().unwrap_or_default(),
            subset,
            hostname,
            dns_form,
        }
    }
}

/// Name of the cluster for a service port: `outbound|<port>|<subset>|<host>`.
pub fn outbound(port: u16, subset: &str, hostname: &str) -> String {
    joined("outbound|", port, "|", subset, hostname)
}

/// The DNS form of [`outbound`]: the default SNI, and the name of the cluster behind that SNI.
pub fn outbound_sni(port: u16, subset: &str, hostname: &str) -> String {
    joined("outbound_.", port, "_.", subset, hostname)
}

/// Name of the cluster for a workload port: `inbound|<port>||`.
pub fn inbound(port: u16) -> String {
    joined("inbound|", port, "|", "", "")
}

/// Name of a waypoint's cluster for a service port: `inbound-vip|<port>|<kind>|<host>`; `kind` is
/// `http` or `tcp`, and `/` and the subset where there is one.
pub fn inbound_vip(port: u16, kind: &str, hostname: &str) -> String {
    joined("inbound-vip|", port, "|", kind, hostname)
}

/// The kinds of a waypoint's clusters for a port: by what it speaks, then by subset.
pub fn vip_kinds(protocol: Protocol, subsets: &[&str]) -> Vec<String> {
    let sniffed = protocol.is_unsupported();
    let mut kinds = Vec::new();
    if protocol == Protocol::Udp {
        return kinds;
    }
    for subset in std::iter::once("").chain(subsets.iter().copied()) {
        for (kind, speaks) in [("tcp", !protocol.is_http()), ("http", protocol.is_http())] {
            if !sniffed && !speaks {
                continue;
            }
            kinds.push(vip_kind(kind, subset));
        }
    }
    kinds
}

/// The kind of a waypoint's cluster: `http` or `tcp`, and the subset where there is one.
pub fn vip_kind(speaks: &str, subset: &str) -> String {
    if subset.is_empty() {
        speaks.to_owned()
    } else {
        format!("{speaks}/{subset}")
    }
}

/// The subset in the kind of a waypoint's cluster; empty for none.
pub fn vip_subset(kind: &str) -> &str {
    kind.split_once('/').map_or("", |(_, subset)| subset)
}

/// Name of the DNS cache of a dynamic forward proxy for `hostname`.
pub fn dns_cache(hostname: &str) -> String {
    format!("{hostname}_dfp_dns_cache")
}

fn joined(head: &str, port: u16, separator: &str, subset: &str, hostname: &str) -> String {
    let mut name =
        String::with_capacity(head.len() + 5 + 2 * separator.len() + subset.len() + hostname.len());
    name.push_str(head);
    // Writing to a string cannot fail.
    write!(name, "{port}").ok();
    for part in [separator, subset, separator, hostname] {
        name.push_str(part);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, direction: Direction, port: u16, subset: &str, hostname: &str) {
        let parsed = ClusterName::parse(name);
        assert_eq!(
            (
                parsed.direction,
                parsed.port,
                parsed.subset,
                parsed.hostname
            ),
            (direction, port, subset, hostname),
            "{name}"
        );
    }

    #[test]
    fn names_are_parsed_leniently() {
        check(
            "outbound|80|v1|a.b.c",
            Direction::Outbound,
            80,
            "v1",
            "a.b.c",
        );
        check(
            "outbound_.80_._.a.b.c",
            Direction::Outbound,
            80,
            "",
            "a.b.c",
        );
        check("inbound|8080||", Direction::Inbound, 8080, "", "");
        check(
            "inbound-vip|80|http/v1|a",
            Direction::InboundVip,
            80,
            "http/v1",
            "a",
        );
        check("outbound|x||a", Direction::Outbound, 0, "", "a");
        check("outbound|80||a|b", Direction::Outbound, 80, "", "");
        check("BlackHoleCluster", Direction::Unknown, 0, "", "");
    }

    #[test]
    fn names_are_built_in_both_forms() {
        assert_eq!(outbound(80, "", "a.b"), "outbound|80||a.b");
        assert_eq!(outbound_sni(80, "v1", "a.b"), "outbound_.80_.v1_.a.b");
        assert_eq!(inbound(8080), "inbound|8080||");
        let vip = inbound_vip(80, "http/v1", "a.b");
        assert_eq!(vip, "inbound-vip|80|http/v1|a.b");
        assert_eq!(vip_subset(ClusterName::parse(&vip).subset), "v1");
        assert_eq!(vip_subset("tcp"), "");
    }
}
