//! Filters that users add by extension objects: Wasm modules and Lua scripts (telemetry-extensions
//! §13–§16).

pub(crate) mod wasm;

use std::sync::Arc;

use envoy_json::any;
use envoy_types::pb::envoy::{
    config::{
        core::v3::{
            AggregatedConfigSource, ApiVersion, ConfigSource, DataSource, ExtensionConfigSource,
            config_source::ConfigSourceSpecifier, data_source,
        },
        listener::v3::{Filter, filter},
    },
    extensions::filters::{
        http::{lua::v3::Lua, rbac::v3::Rbac as HttpRbac, wasm::v3::Wasm as HttpWasm},
        network::{
            http_connection_manager::v3::{HttpFilter, http_filter},
            rbac::v3::Rbac as NetworkRbac,
            wasm::v3::Wasm as NetworkWasm,
        },
    },
};
use model::{
    Config, Meta, Service,
    api::{TrafficExtension, extensions::PluginPhase},
};
use prost::Name;
use pushctx::{ExtensionQuery, FilterChainKind, ProxyClass, PushContext, TrafficSide};

use crate::{convert, lds::parts::Digest};

/// What the names of extensions begin with, as filters and as resources.
const PREFIX: &str = "extensions.istio.io/trafficextension/";

/// Names an extension's filter and its resource.
pub(crate) fn name(meta: &Meta) -> String {
    format!("{PREFIX}{}.{}", meta.namespace, meta.name)
}

/// The extensions that may take part in chains of one side, the highest priority first.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Extensions {
    side: TrafficSide,
    attached: Arc<[Arc<Config<TrafficExtension>>]>,
}

impl Default for Extensions {
    fn default() -> Self {
        Self {
            side: TrafficSide::Client,
            attached: Arc::new([]),
        }
    }
}

impl Extensions {
    /// Finds the extensions attached to a class.
    pub(crate) fn resolve(snapshot: &PushContext, class: &ProxyClass, side: TrafficSide) -> Self {
        Self::resolve_for(snapshot, class, &[], side)
    }

    /// The same where a waypoint handles `services`.
    pub(crate) fn resolve_for(
        snapshot: &PushContext,
        class: &ProxyClass,
        services: &[Arc<Service>],
        side: TrafficSide,
    ) -> Self {
        let workload = class.workload_for(services);
        Self {
            side,
            attached: snapshot.traffic_extensions(&workload).into(),
        }
    }

    /// Builds the filters of a connection manager; `port` is compared with the extensions' ports.
    pub(crate) fn http(&self, port: u16) -> Phases<HttpFilter> {
        self.phases(port, FilterChainKind::Http, http_filter)
    }

    /// Builds the filters of a connection; `port` is compared with the extensions' ports.
    pub(crate) fn network(&self, port: u16) -> Phases<Filter> {
        self.phases(port, FilterChainKind::Network, |extension| Filter {
            name: name(&extension.meta),
            config_type: Some(filter::ConfigType::ConfigDiscovery(discovered(&[
                NetworkWasm::type_url(),
                NetworkRbac::type_url(),
            ]))),
        })
    }

    fn phases<F>(
        &self,
        port: u16,
        chain: FilterChainKind,
        build: impl Fn(&Config<TrafficExtension>) -> F,
    ) -> Phases<F> {
        let query = ExtensionQuery {
            side: self.side,
            port,
            chain,
        };
        let mut phases = Phases::default();
        for extension in self.attached.iter().filter(|e| query.selects(&e.spec)) {
            let phase = match extension.spec.phase {
                PluginPhase::Authn => &mut phases.authn,
                PluginPhase::Authz => &mut phases.authz,
                PluginPhase::Stats => &mut phases.stats,
                PluginPhase::Unspecified => &mut phases.unspecified,
            };
            phase.push(build(extension));
        }
        phases
    }

    /// Adds everything that filters are built from to `digest`; modules are configured elsewhere.
    pub(crate) fn fingerprint(&self, digest: &mut Digest) {
        digest.value(&self.side);
        digest.value(&self.attached.len());
        for extension in self.attached.iter() {
            let TrafficExtension {
                selector: _,
                target_refs: _,
                phase,
                priority: _,
                r#match,
                wasm,
                lua,
            } = &extension.spec;
            digest.value(&(name(&extension.meta), *phase as i32));
            digest.value(&wasm.as_ref().map(|w| w.r#type as i32));
            digest.value(&lua.as_ref().map(|l| &l.inline_code));
            digest.value(&model::fingerprint::of_json(r#match));
        }
    }
}

fn http_filter(extension: &Config<TrafficExtension>) -> HttpFilter {
    let config = match &extension.spec.lua {
        Some(lua) => http_filter::ConfigType::TypedConfig(any(&Lua {
            default_source_code: Some(DataSource {
                specifier: Some(data_source::Specifier::InlineString(
                    lua.inline_code.clone(),
                )),
                ..DataSource::default()
            }),
            ..Lua::default()
        })),
        None => http_filter::ConfigType::ConfigDiscovery(discovered(&[
            HttpWasm::type_url(),
            HttpRbac::type_url(),
        ])),
    };
    HttpFilter {
        name: name(&extension.meta),
        config_type: Some(config),
        ..HttpFilter::default()
    }
}

/// A filter whose config comes by ECDS. It is waited for without limit, and may be a filter that
/// denies all, which agents put in place of a module that they cannot fetch.
fn discovered(type_urls: &[String; 2]) -> ExtensionConfigSource {
    ExtensionConfigSource {
        config_source: Some(ConfigSource {
            config_source_specifier: Some(ConfigSourceSpecifier::Ads(
                AggregatedConfigSource::default(),
            )),
            resource_api_version: ApiVersion::V3.into(),
            initial_fetch_timeout: Some(convert::seconds(0)),
            ..ConfigSource::default()
        }),
        type_urls: type_urls.to_vec(),
        ..ExtensionConfigSource::default()
    }
}

/// Filters of one chain by phase, each in its own order (telemetry-extensions §14).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Phases<F> {
    /// Before authentication.
    pub authn: Vec<F>,
    /// Before authorization.
    pub authz: Vec<F>,
    /// Before metrics.
    pub stats: Vec<F>,
    /// After all of these.
    pub unspecified: Vec<F>,
}

impl<F> Default for Phases<F> {
    fn default() -> Self {
        Self {
            authn: Vec::new(),
            authz: Vec::new(),
            stats: Vec::new(),
            unspecified: Vec::new(),
        }
    }
}

impl<F> Phases<F> {
    /// Lists all filters, one phase after the other.
    pub(crate) fn in_order(self) -> Vec<F> {
        let Self {
            authn,
            authz,
            stats,
            unspecified,
        } = self;
        [authn, authz, stats, unspecified]
            .into_iter()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use model::api::extensions::LuaConfig;

    use super::*;

    impl Extensions {
        /// Scripts of namespace `x`, by name and phase.
        pub(crate) fn of_scripts<const N: usize>(scripts: [(&str, PluginPhase); N]) -> Self {
            let script = |(name, phase): (&str, PluginPhase)| {
                let mut config = Config::<TrafficExtension>::default();
                config.meta.namespace = "x".into();
                config.meta.name = name.into();
                config.spec.phase = phase;
                config.spec.lua = Some(LuaConfig::default());
                Arc::new(config)
            };
            Self {
                attached: scripts.into_iter().map(script).collect(),
                ..Self::default()
            }
        }
    }

    #[test]
    fn scripts_are_never_network_filters_of_their_own() {
        let extensions = Extensions::of_scripts([("a", PluginPhase::Authn)]);
        assert_eq!(
            extensions.http(80).authn[0].name,
            "extensions.istio.io/trafficextension/x.a"
        );
        assert_eq!(extensions.network(80), Phases::default());
    }

    #[test]
    fn only_what_filters_show_changes_the_fingerprint() {
        let digest = |extensions: &Extensions| {
            let mut digest = Digest::default();
            extensions.fingerprint(&mut digest);
            digest.finish()
        };
        let scripts = Extensions::of_scripts([("a", PluginPhase::Authn)]);
        let later = Extensions::of_scripts([("a", PluginPhase::Stats)]);
        assert_eq!(digest(&scripts), digest(&scripts.clone()));
        assert_ne!(digest(&scripts), digest(&later));
        assert_ne!(digest(&scripts), digest(&Extensions::default()));
    }
}
