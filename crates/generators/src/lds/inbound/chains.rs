//! Which chains one inbound port has (listeners §12.2).

use model::Protocol;

use crate::mtls::MtlsMode;

/// ALPN that sidecars offer for HTTP.
const MESH_HTTP: &[&str] = &["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// ALPN that sidecars offer for bytes.
const MESH_TCP: &[&str] = &["istio-peer-exchange", "istio"];
/// ALPN that sidecars offer for either.
const MESH_ALL: &[&str] = &[
    "istio",
    "istio-peer-exchange",
    "istio-http/1.0",
    "istio-http/1.1",
    "istio-h2",
];

/// One chain of an inbound port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ChainOption {
    /// Routed by request, rather than forwarded as bytes.
    pub http: bool,
    /// Carried by TLS.
    pub tls: bool,
    /// ALPN that it takes.
    pub alpn: Alpn,
    /// How the proxy terminates TLS.
    pub terminates: Termination,
}

/// ALPN that a chain takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Alpn {
    /// Whatever is offered.
    Any,
    /// A list of fixed protocols.
    List(&'static [&'static str]),
    /// Plain-text HTTP as the HTTP inspector finds it.
    PlainHttp,
}

/// How the proxy terminates TLS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Termination {
    /// Not at all.
    None,
    /// With the mesh's certificates.
    Mesh,
    /// With those of the Sidecar's own settings.
    Custom,
}

/// Lists the chains of a port, in order. `custom_tls` says that the Sidecar has TLS settings of its
/// own for the port; they count only where mutual TLS is off.
pub(crate) fn options(protocol: Protocol, mode: MtlsMode, custom_tls: bool) -> Vec<ChainOption> {
    use Alpn::{Any, List, PlainHttp};
    let mesh = |http, alpn| ChainOption {
        http,
        tls: true,
        alpn,
        terminates: Termination::Mesh,
    };
    let opaque = ChainOption {
        http: false,
        tls: true,
        alpn: Any,
        terminates: Termination::None,
    };
    let plain = |http, alpn| ChainOption {
        http,
        tls: false,
        alpn,
        terminates: Termination::None,
    };
    let http = protocol.is_http();
    let sniffed = protocol.is_unsupported();
    match mode {
        MtlsMode::Disable if custom_tls => vec![ChainOption {
            http,
            tls: true,
            alpn: Any,
            terminates: Termination::Custom,
        }],
        MtlsMode::Disable if sniffed => vec![plain(true, PlainHttp), plain(false, Any)],
        MtlsMode::Disable => vec![plain(http, Any)],
        MtlsMode::Strict if sniffed => vec![mesh(true, List(MESH_HTTP)), mesh(false, Any)],
        MtlsMode::Strict => vec![mesh(http, Any)],
        MtlsMode::Permissive if sniffed => vec![
            mesh(true, List(MESH_HTTP)),
            plain(true, PlainHttp),
            mesh(false, List(MESH_TCP)),
            plain(false, Any),
            opaque,
        ],
        MtlsMode::Permissive if http => vec![mesh(true, List(MESH_ALL)), plain(true, Any)],
        MtlsMode::Permissive => vec![mesh(false, List(MESH_ALL)), opaque, plain(false, Any)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(protocol: Protocol, mode: MtlsMode, expected: &[&str]) {
        let shown: Vec<String> = options(protocol, mode, false)
            .iter()
            .map(|o| {
                let handling = if o.http { "http" } else { "tcp" };
                let transport = if o.tls { "tls" } else { "raw" };
                let terminates = if o.terminates == Termination::Mesh {
                    "+mesh"
                } else {
                    ""
                };
                format!("{handling}/{transport}{terminates}")
            })
            .collect();
        assert_eq!(shown, expected, "{protocol} {mode:?}");
    }

    #[test]
    fn chains_by_protocol_and_mode() {
        use MtlsMode::{Disable, Permissive, Strict};
        check(Protocol::Http, Permissive, &["http/tls+mesh", "http/raw"]);
        check(Protocol::Http, Strict, &["http/tls+mesh"]);
        check(Protocol::Http, Disable, &["http/raw"]);
        check(
            Protocol::Https,
            Permissive,
            &["tcp/tls+mesh", "tcp/tls", "tcp/raw"],
        );
        check(Protocol::Udp, Disable, &["tcp/raw"]);
        check(
            Protocol::Unsupported,
            Permissive,
            &[
                "http/tls+mesh",
                "http/raw",
                "tcp/tls+mesh",
                "tcp/raw",
                "tcp/tls",
            ],
        );
        check(
            Protocol::Unsupported,
            Strict,
            &["http/tls+mesh", "tcp/tls+mesh"],
        );
        check(Protocol::Unsupported, Disable, &["http/raw", "tcp/raw"]);
    }
}
