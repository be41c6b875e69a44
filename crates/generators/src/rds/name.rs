//! Names of route configurations (routes §3).

/// What a requested name asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RouteName {
    /// All hosts of one port.
    Port(u16),
    /// One host on one port whose protocol is sniffed.
    Sniffed(u16),
    /// All hosts of all ports, for the HTTP proxy listener.
    HttpProxy,
    /// The egress listener on a Unix socket.
    Socket,
}

impl RouteName {
    /// Understands a name; `None` when it is neither a port nor one of the special forms.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        if name.starts_with("unix://") {
            return Some(Self::Socket);
        }
        if name == "http_proxy" {
            return Some(Self::HttpProxy);
        }
        match name.split_once(':') {
            Some((_, port)) => port.parse().ok().map(Self::Sniffed),
            None => name.parse().ok().map(Self::Port),
        }
    }

    /// The port that the name states; 0 for those that mean all ports.
    pub(crate) const fn port(&self) -> u16 {
        match self {
            Self::Port(port) | Self::Sniffed(port) => *port,
            Self::HttpProxy | Self::Socket => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_understood() {
        for (name, expected) in [
            ("80", Some(RouteName::Port(80))),
            ("db.prod.svc:9000", Some(RouteName::Sniffed(9000))),
            ("http_proxy", Some(RouteName::HttpProxy)),
            ("unix:///var/run/x.sock", Some(RouteName::Socket)),
            ("web", None),
            ("a:b:9000", None),
        ] {
            assert_eq!(RouteName::parse(name), expected, "{name}");
        }
    }
}
