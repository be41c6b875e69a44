//! Protocols of service ports and how they are chosen (service-registry §3).

use std::fmt;

/// The application protocol of a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protocol {
    /// Plain TCP.
    Tcp,
    /// UDP; never in listeners.
    Udp,
    /// gRPC over HTTP/2.
    Grpc,
    /// gRPC-Web.
    GrpcWeb,
    /// HTTP/1.1.
    Http,
    /// An HTTP proxy's port.
    HttpProxy,
    /// HTTP/2.
    Http2,
    /// TLS carrying HTTP, opaque to the mesh.
    Https,
    /// TLS, opaque to the mesh.
    Tls,
    /// `MongoDB`.
    Mongo,
    /// Redis.
    Redis,
    /// `MySQL`.
    MySql,
    /// Unknown: sniffed by the proxy.
    #[default]
    Unsupported,
}

impl Protocol {
    /// Parses a protocol's name, ignoring case. Unknown names are [`Protocol::Unsupported`].
    pub fn parse(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "grpc" => Self::Grpc,
            "grpc-web" => Self::GrpcWeb,
            "http" => Self::Http,
            "http_proxy" => Self::HttpProxy,
            "http2" => Self::Http2,
            "https" => Self::Https,
            "tls" => Self::Tls,
            "mongo" => Self::Mongo,
            "redis" => Self::Redis,
            "mysql" => Self::MySql,
            _ => Self::Unsupported,
        }
    }

    /// Chooses the protocol of a Kubernetes service port (service-registry §3).
    pub fn of_kubernetes_port(
        port: u16,
        name: &str,
        transport: &str,
        app_protocol: Option<&str>,
    ) -> Self {
        if transport == "UDP" {
            return Self::Udp;
        }
        let candidate = app_protocol.unwrap_or(name);
        if app_protocol.is_some() {
            match candidate {
                "kubernetes.io/h2c" => return Self::Http2,
                "kubernetes.io/ws" => return Self::Http,
                "kubernetes.io/wss" => return Self::Https,
                _ => {}
            }
        }
        let lower = candidate.to_ascii_lowercase();
        if lower.starts_with("grpc-web") {
            return Self::GrpcWeb;
        }
        let head = lower.split('-').next().unwrap_or_default();
        match Self::parse(head) {
            Self::Unsupported if matches!(port, 25 | 53 | 3306 | 27017) => Self::Tcp,
            protocol => protocol,
        }
    }

    /// HTTP in any form.
    pub const fn is_http(self) -> bool {
        matches!(
            self,
            Self::Http | Self::Http2 | Self::HttpProxy | Self::Grpc | Self::GrpcWeb
        )
    }

    /// Carried by HTTP/2.
    pub const fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcWeb)
    }

    /// gRPC in either form.
    pub const fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcWeb)
    }

    /// Handled as a byte stream.
    pub const fn is_tcp(self) -> bool {
        matches!(
            self,
            Self::Tcp | Self::Https | Self::Tls | Self::Mongo | Self::Redis | Self::MySql
        )
    }

    /// TLS passed through.
    pub const fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// Unknown, hence sniffed.
    pub const fn is_unsupported(self) -> bool {
        matches!(self, Self::Unsupported)
    }

    /// The name as Istio prints it, for example `HTTP2`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Grpc => "GRPC",
            Self::GrpcWeb => "GRPC-Web",
            Self::Http => "HTTP",
            Self::HttpProxy => "HTTP_PROXY",
            Self::Http2 => "HTTP2",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Mongo => "Mongo",
            Self::Redis => "Redis",
            Self::MySql => "MySQL",
            Self::Unsupported => "UnsupportedProtocol",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(port: u16, name: &str, app: Option<&str>, expected: Protocol) {
        assert_eq!(
            Protocol::of_kubernetes_port(port, name, "TCP", app),
            expected
        );
    }

    #[test]
    fn port_names_and_app_protocols() {
        check(80, "http-web", None, Protocol::Http);
        check(80, "GRPC-WEB-x", None, Protocol::GrpcWeb);
        check(3306, "db", None, Protocol::Tcp);
        check(8080, "db", None, Protocol::Unsupported);
        check(80, "http", Some("kubernetes.io/foo"), Protocol::Unsupported);
        check(80, "tcp", Some("kubernetes.io/h2c"), Protocol::Http2);
        check(80, "http", Some(""), Protocol::Unsupported);
        assert_eq!(
            Protocol::of_kubernetes_port(53, "http", "UDP", None),
            Protocol::Udp
        );
    }
}
