//! Upstream HTTP protocol options (clusters-endpoints §3.5, §5.3, §5.4).

use envoy_json::any;
use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions as CommonOptions,
            UpstreamHttpProtocolOptions,
            http1_protocol_options::{HeaderKeyFormat, header_key_format::HeaderFormat},
        },
        extensions::{
            http::header_formatters::preserve_case::v3::PreserveCaseFormatterConfig,
            upstreams::http::v3::{
                HttpProtocolOptions,
                http_protocol_options::{
                    ExplicitHttpConfig, OutlierDetection, UpstreamProtocolOptions,
                    UseDownstreamHttpConfig, explicit_http_config::ProtocolConfig,
                },
            },
        },
    },
    google::protobuf::Any,
};

use crate::convert;

/// Key of the options in a cluster.
pub(super) const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The options while a cluster is being built.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct HttpOptions {
    /// Which protocol is spoken.
    pub protocol: Protocol,
    /// Timeouts and limits of connections.
    pub common: Option<CommonOptions>,
    /// SNI and SAN by the request's host.
    pub upstream: UpstreamHttpProtocolOptions,
    /// Which answers count as errors.
    pub outlier_detection: Option<OutlierDetection>,
}

/// Which protocol is spoken with the upstream.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) enum Protocol {
    /// Not chosen: Envoy's default, HTTP/1.1.
    #[default]
    Unset,
    /// HTTP/1.1.
    Http1(Http1ProtocolOptions),
    /// HTTP/2.
    Http2(Http2ProtocolOptions),
    /// What the downstream speaks.
    Downstream(Http1ProtocolOptions),
}

impl Protocol {
    /// HTTP/2 without further settings.
    pub(super) fn http2() -> Self {
        Self::Http2(Http2ProtocolOptions::default())
    }

    /// HTTP/1.1; header names keep their case on demand.
    pub(super) fn http1(preserve_case: bool) -> Self {
        Self::Http1(http1_options(preserve_case))
    }

    /// What the downstream speaks.
    pub(super) fn downstream(preserve_case: bool) -> Self {
        Self::Downstream(http1_options(preserve_case))
    }

    /// Chooses by the port's protocol (§3.5).
    pub(super) fn of_port(port: model::Protocol, router: bool, preserve_case: bool) -> Self {
        if port.is_http2() {
            return Self::http2();
        }
        if port.is_unsupported() && !router {
            return Self::downstream(preserve_case);
        }
        if preserve_case && (port.is_http() || port.is_unsupported()) {
            return Self::http1(true);
        }
        Self::Unset
    }
}

impl HttpOptions {
    /// Options that only choose a protocol.
    pub(super) fn of(protocol: Protocol) -> Self {
        Self {
            protocol,
            ..Self::default()
        }
    }

    /// Tells whether the protocol is HTTP/2, stated.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.protocol, Protocol::Http2(_))
    }

    /// Tells whether nothing had to be set.
    pub(super) fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// Common options, added when they are not there.
    pub(super) fn common(&mut self) -> &mut CommonOptions {
        self.common.get_or_insert_default()
    }

    /// Turns a protocol that is not chosen yet into HTTP/2.
    pub(super) fn upgrade(&mut self) {
        if self.protocol == Protocol::Unset {
            self.protocol = Protocol::http2();
        }
    }

    /// Follows the downstream, whatever was chosen; explicit HTTP/1 settings are kept.
    pub(super) fn follow_downstream(&mut self) {
        self.protocol = match std::mem::take(&mut self.protocol) {
            Protocol::Http1(http1) | Protocol::Downstream(http1) => Protocol::Downstream(http1),
            Protocol::Unset | Protocol::Http2(_) => Protocol::downstream(false),
        };
    }

    /// Packs the options. A protocol that is still not chosen is HTTP/1.1: Envoy wants one.
    pub(super) fn packed(self) -> Any {
        let explicit = |config| {
            UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
                protocol_config: Some(config),
            })
        };
        let protocol = match self.protocol {
            Protocol::Unset => explicit(ProtocolConfig::HttpProtocolOptions(
                Http1ProtocolOptions::default(),
            )),
            Protocol::Http1(http1) => explicit(ProtocolConfig::HttpProtocolOptions(http1)),
            Protocol::Http2(http2) => explicit(ProtocolConfig::Http2ProtocolOptions(http2)),
            Protocol::Downstream(http1) => {
                UpstreamProtocolOptions::UseDownstreamProtocolConfig(UseDownstreamHttpConfig {
                    http_protocol_options: Some(http1),
                    http2_protocol_options: Some(Http2ProtocolOptions::default()),
                    ..UseDownstreamHttpConfig::default()
                })
            }
        };
        let upstream = self.upstream;
        any(&HttpProtocolOptions {
            common_http_protocol_options: self.common,
            upstream_http_protocol_options: (upstream != UpstreamHttpProtocolOptions::default())
                .then_some(upstream),
            outlier_detection: self.outlier_detection,
            upstream_protocol_options: Some(protocol),
            ..HttpProtocolOptions::default()
        })
    }
}

fn http1_options(preserve_case: bool) -> Http1ProtocolOptions {
    let format = || HeaderKeyFormat {
        header_format: Some(HeaderFormat::StatefulFormatter(convert::extension(
            "preserve_case",
            any(&PreserveCaseFormatterConfig::default()),
        ))),
    };
    Http1ProtocolOptions {
        header_key_format: preserve_case.then(format),
        ..Http1ProtocolOptions::default()
    }
}
