//! Settings, as plain values.

use std::time::Duration;

/// Limits and sizes of a server. The defaults are those of a small control plane.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// How many pushes are built at the same time. Requests do not count. Default 25.
    pub concurrent_pushes: usize,
    /// How many streams may start in a second, smoothed. `None` for no limit (the default).
    pub streams_per_second: Option<f64>,
    /// How long a new stream waits for its turn before it is refused. Default 1 s.
    pub stream_wait: Duration,
    /// The size in bytes, of resource bodies, from which a delta response is split. Default 3 MiB:
    /// gRPC clients accept 4 MiB unless told otherwise, and names and framing need room.
    pub split_bytes: usize,
    /// How many streams one address may have at once. `None` for no limit (the default).
    pub streams_per_peer: Option<usize>,
    /// How long a stream may take to say who it is. Default 1 min.
    pub first_request: Duration,
    /// How many distinct types one stream may subscribe to. Default 64.
    pub types_per_stream: usize,
    /// How many names one stream may subscribe to, of one type. Default 200 000.
    pub names_per_type: usize,
    /// Whether responses are compressed for clients that accept gzip. Default false.
    pub compress: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            concurrent_pushes: 25,
            streams_per_second: None,
            stream_wait: Duration::from_secs(1),
            split_bytes: 3 << 20,
            streams_per_peer: None,
            first_request: Duration::from_mins(1),
            types_per_stream: 64,
            names_per_type: 200_000,
            compress: false,
        }
    }
}

/// Options of the HTTP/2 transport below the streams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transport {
    /// How many streams one connection may have at once. Default 100 000.
    pub streams_per_connection: u32,
    /// The largest request accepted, in bytes. Default 4 MiB.
    pub receive_bytes: usize,
    /// The most bytes that the headers of one request may have. Default 16 KiB.
    pub header_bytes: u32,
    /// How often a silent connection is pinged. Default 30 s.
    pub keepalive_interval: Duration,
    /// How long an unanswered ping may stay so before the connection is closed. Default 10 s.
    pub keepalive_timeout: Duration,
    /// How long a new connection may say nothing. Default 2 min.
    pub handshake: Duration,
    /// The age at which a connection is asked to go, give or take a tenth. `None` (the default)
    /// for never.
    pub connection_age: Option<Duration>,
    /// How long such a connection may finish what it has. Default 10 s.
    pub connection_age_grace: Duration,
    /// Over how long streams are ended, one after the other, when the server stops. Default 10 s.
    pub drain: Duration,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            streams_per_connection: 100_000,
            receive_bytes: 4 << 20,
            header_bytes: 16 << 10,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            handshake: Duration::from_mins(2),
            connection_age: None,
            connection_age_grace: Duration::from_secs(10),
            drain: Duration::from_secs(10),
        }
    }
}
