//! Settings: everything that the process reads from its environment and its settings file.

mod file;
pub mod security;
pub mod writes;

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use debounce::Window;
use ipnet::IpNet;
use ledger::History;
use model::{Features, features::FeatureError};

pub use self::file::SettingsFile;
use crate::event::Event;

/// Where settings come from; tests pass a map.
pub trait Source {
    /// Returns the value of a variable, `None` when it is not set.
    fn get(&self, variable: &str) -> Option<String>;
}

/// The process's environment.
#[derive(Clone, Copy, Default, Debug)]
pub struct Environment;

impl Source for Environment {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the environment"
    )]
    fn get(&self, variable: &str) -> Option<String> {
        std::env::var(variable).ok()
    }
}

impl<F: Fn(&str) -> Option<String>> Source for F {
    fn get(&self, variable: &str) -> Option<String> {
        self(variable)
    }
}

/// Resolved settings (xds-server §14, observability §14–§16).
#[derive(Clone, PartialEq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a variable of its own"
)]
pub struct Settings {
    /// Quiet time of the debounce; `PILOT_DEBOUNCE_AFTER`, 100ms.
    pub debounce_after: Duration,
    /// Longest wait of the debounce; `PILOT_DEBOUNCE_MAX`, 10s.
    pub debounce_max: Duration,
    /// Endpoint changes are debounced like all others; `PILOT_ENABLE_EDS_DEBOUNCE`, true.
    pub debounce_endpoints: bool,
    /// The quiet time follows the measured cost of a push, `debounce_after` at most;
    /// `PILOT_ENABLE_ADAPTIVE_DEBOUNCE`, false. Not a variable of the Go istiod.
    pub debounce_adaptive: bool,
    /// Pushes under way at once; `PILOT_PUSH_THROTTLE`, 0 = `15 + 5 · cores`, at most 100.
    pub push_throttle: usize,
    /// Streams that may start in a second; `PILOT_MAX_REQUESTS_PER_SECOND`, 0 = `15 + 5 · cores`, at
    /// most 100.
    pub streams_per_second: f64,
    /// Streams of one connection; `ISTIO_GPRC_MAXSTREAMS`, 100000.
    pub streams_per_connection: u32,
    /// Streams that one address may have at once, 0 = no limit; `PILOT_MAX_STREAMS_PER_PEER`, 20000: more
    /// than the proxies of a node, or behind a gateway of a network. Not a variable of the Go istiod.
    pub streams_per_peer: usize,
    /// Largest request in bytes; `ISTIO_GPRC_MAXRECVMSGSIZE`, 4194304.
    pub receive_bytes: usize,
    /// How often a silent connection is pinged, unless a flag says it; `GRPC_KEEPALIVE_INTERVAL`,
    /// 30s.
    pub keepalive_interval: Duration,
    /// How long the answer to a ping may take, unless a flag says it; `GRPC_KEEPALIVE_TIMEOUT`, 10s.
    pub keepalive_timeout: Duration,
    /// Size in bytes from which a delta response is split, and a SotW response is logged as large;
    /// `PILOT_XDS_SPLIT_BYTES`, 3145728. Not a variable of the Go istiod.
    pub split_bytes: usize,
    /// Responses are compressed for clients that accept gzip; `PILOT_XDS_COMPRESSION`, false. Not a
    /// variable of the Go istiod.
    pub compress: bool,
    /// Revision of this control plane; `REVISION`, empty.
    pub revision: String,
    /// Proxies are who they claim to be, and so get the secrets of the namespace that they name;
    /// `XDS_TRUST_NODE_IDENTITY`, false. For networks that nobody else reaches. Not a variable of the
    /// Go istiod.
    pub trust_node_identity: bool,
    /// Own namespace; `POD_NAMESPACE`, `istio-system`.
    pub namespace: String,
    /// Id of the primary cluster; `CLUSTER_ID`, `Kubernetes`.
    pub cluster: String,
    /// How long a start waits for remote clusters that do not answer, 0 = without end;
    /// `PILOT_REMOTE_CLUSTER_TIMEOUT`, 30s.
    pub remote_timeout: Duration,
    /// Name of a ConfigMap in the own namespace whose mesh configuration lies below that of the
    /// ConfigMap of the revision; `SHARED_MESH_CONFIG`, none.
    pub shared_mesh: Option<String>,
    /// Custom kinds that are not read, by the names of their definitions, `*.GROUP` for all of a group;
    /// `PILOT_IGNORE_RESOURCES`, none.
    pub ignored_resources: Vec<String>,
    /// Those of them that are read nevertheless; `PILOT_INCLUDE_RESOURCES`, none.
    pub included_resources: Vec<String>,
    /// The namespace throttle; `PILOT_ENABLE_NAMESPACE_THROTTLE`, `PILOT_NAMESPACE_THROTTLE_…`.
    pub throttle: throttle::Settings<Arc<str>>,
    /// Fetching the keys of token issuers.
    pub keys: KeySettings,
    /// Identities.
    pub security: security::SecuritySettings,
    /// Name of this pod; `POD_NAME`, empty.
    pub pod: String,
    /// The other replicas, for who asks who has which configuration: `HOST:PORT` of monitoring ports
    /// with commas between, where a host may be a headless Service; `PILOT_PEERS`, none. Not a
    /// variable of the Go istiod.
    pub peers: Vec<String>,
    /// How many published states are kept, and for how long; `PILOT_DISTRIBUTION_HISTORY_COUNT`, 10000,
    /// and `PILOT_DISTRIBUTION_HISTORY_AGE`, 1h. Not variables of the Go istiod.
    pub history: History,
    /// What is written into the cluster.
    pub writes: writes::WriteSettings,
    /// Flags that change what is generated.
    pub features: Features,
}

/// How keys of token issuers are fetched (security-policy §6).
#[derive(Clone, PartialEq, Debug)]
pub struct KeySettings {
    /// Time between two fetches; `PILOT_JWT_PUB_KEY_REFRESH_INTERVAL`, 20m.
    pub refresh: Duration,
    /// Certificates of issuers are not verified; `JWKS_RESOLVER_INSECURE_SKIP_VERIFY`, false.
    pub insecure: bool,
    /// Addresses that are not asked, beside link-local ones; `BLOCKED_CIDRS_IN_JWKS_URIS`, none.
    pub blocked: Vec<IpNet>,
}

impl Default for KeySettings {
    fn default() -> Self {
        Self {
            refresh: Duration::from_mins(20),
            insecure: false,
            blocked: Vec::new(),
        }
    }
}

impl KeySettings {
    fn read<S: Source>(reader: &mut Reader<'_, S>) -> Self {
        let default = Self::default();
        Self {
            refresh: reader.duration_in(
                "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL",
                default.refresh,
                Duration::from_secs(1)..=Duration::MAX,
                "a duration from 1s",
            ),
            insecure: reader.flag("JWKS_RESOLVER_INSECURE_SKIP_VERIFY", default.insecure),
            blocked: reader.parsed(
                "BLOCKED_CIDRS_IN_JWKS_URIS",
                default.blocked,
                "a list of CIDR ranges with commas between",
                |text| text.split(',').map(|net| net.trim().parse().ok()).collect(),
            ),
        }
    }
}

impl Settings {
    /// Resolves all settings, reporting every bad value at once.
    ///
    /// # Errors
    /// One entry for each variable whose value is not what it may be.
    pub fn resolve(source: &impl Source) -> Result<Self, Vec<FeatureError>> {
        let (features, mut errors) = Features::resolve(|variable| source.get(variable));
        let text = |variable: &str, default: &str| {
            source
                .get(variable)
                .filter(|v| !v.is_empty())
                .unwrap_or_else(|| default.to_owned())
        };
        let mut reader = Reader {
            source,
            errors: &mut errors,
        };
        let debounce_after = reader.duration("PILOT_DEBOUNCE_AFTER", Duration::from_millis(100));
        let debounce_max = reader.duration("PILOT_DEBOUNCE_MAX", Duration::from_secs(10));
        let debounce_endpoints = reader.flag("PILOT_ENABLE_EDS_DEBOUNCE", true);
        let debounce_adaptive = reader.flag("PILOT_ENABLE_ADAPTIVE_DEBOUNCE", false);
        let push_throttle = reader.parsed("PILOT_PUSH_THROTTLE", 0, "a whole number", |text| {
            text.parse().ok()
        });
        let streams_per_second = reader.parsed(
            "PILOT_MAX_REQUESTS_PER_SECOND",
            0.0,
            "a number that is not negative",
            |text| {
                text.parse()
                    .ok()
                    .filter(|rate: &f64| rate.is_finite() && *rate >= 0.0)
            },
        );
        let positive = "a whole number from 1";
        let streams_per_connection =
            reader.parsed("ISTIO_GPRC_MAXSTREAMS", 100_000, positive, |text| {
                text.parse().ok().filter(|n| *n > 0)
            });
        let streams_per_peer = reader.parsed(
            "PILOT_MAX_STREAMS_PER_PEER",
            20_000,
            "a whole number",
            |text| text.parse().ok(),
        );
        let receive_bytes = reader.parsed("ISTIO_GPRC_MAXRECVMSGSIZE", 4 << 20, positive, |text| {
            text.parse().ok().filter(|n| *n > 0)
        });
        let keepalive_interval =
            reader.duration("GRPC_KEEPALIVE_INTERVAL", Duration::from_secs(30));
        let keepalive_timeout = reader.duration("GRPC_KEEPALIVE_TIMEOUT", Duration::from_secs(10));
        let split_bytes = reader.parsed("PILOT_XDS_SPLIT_BYTES", 3 << 20, positive, |text| {
            text.parse().ok().filter(|n| *n > 0)
        });
        let compress = reader.flag("PILOT_XDS_COMPRESSION", false);
        let remote_timeout =
            reader.duration("PILOT_REMOTE_CLUSTER_TIMEOUT", Duration::from_secs(30));
        let trust_node_identity = reader.flag("XDS_TRUST_NODE_IDENTITY", false);
        let namespace = text("POD_NAMESPACE", "istio-system");
        let throttle = crate::throttling::read(&mut reader, &namespace);
        let keys = KeySettings::read(&mut reader);
        let security = security::SecuritySettings::read(&mut reader);
        let history = read_history(&mut reader);
        let list = |text: String| {
            let items = text.split(',').map(str::trim).filter(|t| !t.is_empty());
            items.map(str::to_owned).collect::<Vec<_>>()
        };
        let writes = writes::WriteSettings::read(&mut reader, &namespace);
        let settings = Self {
            debounce_after,
            debounce_max,
            debounce_endpoints,
            debounce_adaptive,
            push_throttle,
            streams_per_second,
            streams_per_connection,
            streams_per_peer,
            receive_bytes,
            keepalive_interval,
            keepalive_timeout,
            split_bytes,
            compress,
            revision: text("REVISION", ""),
            trust_node_identity,
            namespace,
            cluster: text("CLUSTER_ID", "Kubernetes"),
            remote_timeout,
            shared_mesh: Some(text("SHARED_MESH_CONFIG", "")).filter(|name| !name.is_empty()),
            ignored_resources: list(text("PILOT_IGNORE_RESOURCES", "")),
            included_resources: list(text("PILOT_INCLUDE_RESOURCES", "")),
            throttle,
            keys,
            security,
            pod: text("POD_NAME", ""),
            peers: list(text("PILOT_PEERS", "")),
            history,
            writes,
            features,
        };
        if settings.debounce_max < settings.debounce_after {
            errors.push(FeatureError {
                variable: "PILOT_DEBOUNCE_MAX",
                value: format!("{debounce_max:?}"),
                expected: "at least PILOT_DEBOUNCE_AFTER",
            });
        }
        if errors.is_empty() {
            Ok(settings)
        } else {
            Err(errors)
        }
    }

    /// Tells whether a variable takes effect while the process runs, when it changes in the settings
    /// file.
    pub(crate) fn is_live(variable: &str) -> bool {
        const LIVE: [&str; 5] = [
            "PILOT_DEBOUNCE_AFTER",
            "PILOT_DEBOUNCE_MAX",
            "PILOT_ENABLE_ADAPTIVE_DEBOUNCE",
            "PILOT_ENABLE_EDS_DEBOUNCE",
            "PILOT_ENABLE_NAMESPACE_THROTTLE",
        ];
        LIVE.contains(&variable) || variable.starts_with("PILOT_NAMESPACE_THROTTLE_")
    }

    /// The part of the debounce.
    pub(crate) fn debounce(&self) -> debounce::Options<Event> {
        let window = Window {
            after: self.debounce_after,
            max: self.debounce_max,
        };
        let options = debounce::Options::new(window).adaptive(self.debounce_adaptive);
        if self.debounce_endpoints {
            options
        } else {
            options.bypass(|event: &Event| event.0.endpoints_only())
        }
    }

    /// The part of the xDS server on a machine with `cores`.
    pub(crate) fn server(&self, cores: usize) -> xds::Settings {
        let automatic = cores.saturating_mul(5).saturating_add(15).min(100);
        let mut settings = xds::Settings::default();
        settings.concurrent_pushes = match self.push_throttle {
            0 => automatic,
            limit => limit,
        };
        let rate = self.streams_per_second;
        #[expect(clippy::cast_precision_loss, reason = "at most 100")]
        let automatic = automatic as f64;
        settings.streams_per_second = Some(if rate > 0.0 { rate } else { automatic });
        settings.streams_per_peer = Some(self.streams_per_peer).filter(|limit| *limit > 0);
        settings.split_bytes = self.split_bytes;
        settings.compress = self.compress;
        settings
    }
}

/// Reads how many published states are kept.
fn read_history(reader: &mut Reader<'_, impl Source>) -> History {
    let default = History::default();
    History {
        count: reader.parsed(
            "PILOT_DISTRIBUTION_HISTORY_COUNT",
            default.count,
            "a number from 1",
            |text| text.parse().ok().filter(|count| *count > 0),
        ),
        age: reader.duration("PILOT_DISTRIBUTION_HISTORY_AGE", default.age),
    }
}

/// Reads variables and collects what is wrong with them.
pub(crate) struct Reader<'a, S> {
    source: &'a S,
    errors: &'a mut Vec<FeatureError>,
}

impl<S: Source> Reader<'_, S> {
    /// Reads a variable; the default when it is not set, empty, or (which is noted) not `expected`.
    pub(crate) fn parsed<T>(
        &mut self,
        variable: &'static str,
        default: T,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let Some(value) = self.source.get(variable).filter(|v| !v.is_empty()) else {
            return default;
        };
        parse(&value).unwrap_or_else(|| {
            self.errors.push(FeatureError {
                variable,
                value,
                expected,
            });
            default
        })
    }

    /// Reads a flag, in the forms that Go reads.
    pub(crate) fn flag(&mut self, variable: &'static str, default: bool) -> bool {
        self.parsed(variable, default, "true or false", |text| match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
            _ => None,
        })
    }

    /// Reads a duration within `range`.
    pub(crate) fn duration_in(
        &mut self,
        variable: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
        expected: &'static str,
    ) -> Duration {
        self.parsed(variable, default, expected, |text| {
            duration(text).filter(|duration| range.contains(duration))
        })
    }

    fn duration(&mut self, variable: &'static str, default: Duration) -> Duration {
        self.parsed(
            variable,
            default,
            "a duration that is not negative, such as 100ms",
            duration,
        )
    }
}

/// Reads a duration that is not negative.
fn duration(text: &str) -> Option<Duration> {
    let duration: model::api::Duration = text.parse().ok()?;
    (!duration.is_negative()).then(|| duration.to_std())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source<'a>(values: &'a [(&'a str, &'a str)]) -> impl Source + 'a {
        move |name: &str| {
            values
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        }
    }

    #[test]
    fn defaults_are_istios() {
        let settings = Settings::resolve(&source(&[])).unwrap();
        assert_eq!(settings.debounce_after, Duration::from_millis(100));
        assert_eq!(settings.debounce_max, Duration::from_secs(10));
        assert_eq!(settings.cluster, "Kubernetes");
        assert_eq!(settings.features, Features::default());
    }

    #[test]
    fn limits_of_the_server_are_automatic_or_stated() {
        let server = |values| Settings::resolve(&source(values)).unwrap().server(4);
        let automatic = server(&[]);
        assert_eq!(automatic.concurrent_pushes, 35);
        assert_eq!(automatic.streams_per_second, Some(35.0));
        let stated = server(&[
            ("PILOT_PUSH_THROTTLE", "7"),
            ("PILOT_MAX_REQUESTS_PER_SECOND", "2.5"),
            ("PILOT_XDS_SPLIT_BYTES", "1000"),
            ("PILOT_XDS_COMPRESSION", "true"),
            ("PILOT_MAX_STREAMS_PER_PEER", "0"),
        ]);
        assert_eq!(stated.concurrent_pushes, 7);
        let limits = (automatic.streams_per_peer, stated.streams_per_peer);
        assert_eq!(limits, (Some(20_000), None));
        assert_eq!(stated.streams_per_second, Some(2.5));
        assert_eq!((stated.split_bytes, stated.compress), (1000, true));
        assert_eq!(
            (automatic.split_bytes, automatic.compress),
            (3 << 20, false)
        );
        let many = Settings::resolve(&source(&[])).unwrap().server(64);
        assert_eq!(many.concurrent_pushes, 100);
    }

    #[test]
    fn every_bad_value_is_named() {
        let errors = Settings::resolve(&source(&[
            ("PILOT_DEBOUNCE_AFTER", "soon"),
            ("PILOT_ENABLE_EDS_DEBOUNCE", "maybe"),
            ("ISTIO_DUAL_STACK", "2"),
        ]))
        .unwrap_err();
        let mut variables: Vec<_> = errors.iter().map(|e| e.variable).collect();
        variables.sort_unstable();
        assert_eq!(
            variables,
            [
                "ISTIO_DUAL_STACK",
                "PILOT_DEBOUNCE_AFTER",
                "PILOT_ENABLE_EDS_DEBOUNCE"
            ]
        );
        assert!(errors.iter().any(|e| e.to_string().contains("\"soon\"")));
    }

    #[test]
    fn the_maximum_is_not_below_the_quiet_time() {
        let errors = Settings::resolve(&source(&[("PILOT_DEBOUNCE_AFTER", "20s")])).unwrap_err();
        assert_eq!(errors[0].variable, "PILOT_DEBOUNCE_MAX");
    }
}
