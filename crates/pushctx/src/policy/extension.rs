//! Traffic extensions and Wasm plugins (config-model §14.6, telemetry-extensions §13, §14).

use std::{cmp::Reverse, sync::Arc};

use model::{
    Config, Meta, Tables,
    api::{
        TrafficExtension, WasmPlugin,
        extensions::{PluginPhase, PluginType, SelectorMode, WasmPluginPhase},
    },
};

use crate::{
    PushContext, Workload,
    attach::{ByNamespace, of_namespace},
    authn::namespaces,
    diff,
};

/// What is added to the name of a Wasm plugin when it stands as a traffic extension.
const TRANSLATED: &str = "~istio-translated-wasmplugin";
/// The longest script that is accepted, in bytes.
const MAX_SCRIPT: usize = 65536;

/// Which side of the traffic a listener is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TrafficSide {
    /// Inbound listeners of sidecars.
    Server,
    /// All others.
    Client,
}

/// What kind of filter chain asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FilterChainKind {
    /// HTTP filters.
    Http,
    /// Network filters.
    Network,
}

/// What listener generation asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExtensionQuery {
    /// The chain's side.
    pub side: TrafficSide,
    /// The port that is compared with the extensions' ports.
    pub port: u16,
    /// The chain's kind.
    pub chain: FilterChainKind,
}

impl PushContext {
    /// Lists the extensions attached to a workload, the highest priority first; of equal ones first
    /// those of its namespace, then the root's, then those of its services', each by creation
    /// (telemetry-extensions §14).
    pub fn traffic_extensions(
        &self,
        workload: &Workload<'_>,
    ) -> Vec<Arc<Config<TrafficExtension>>> {
        let mut extensions: Vec<_> = self
            .policies
            .extension
            .of_all(namespaces(workload, self.root_namespace()))
            .filter(|e| workload.is_target_of(&e.meta, &e.spec, self.state()))
            .cloned()
            .collect();
        extensions.sort_by_key(|e| Reverse(e.spec.priority.map_or(i64::MIN, i64::from)));
        extensions
    }

    /// Lists the extensions whose resources a workload may ask for: those of its namespace, the
    /// root's and its services', whatever their selectors (telemetry-extensions §16).
    pub fn traffic_extensions_of<'a>(
        &'a self,
        workload: &Workload<'a>,
    ) -> impl Iterator<Item = &'a Arc<Config<TrafficExtension>>> {
        self.policies
            .extension
            .of_all(namespaces(workload, self.root_namespace()))
    }
}

impl ExtensionQuery {
    /// Tells whether an extension takes part in the chain.
    pub fn selects(self, extension: &TrafficExtension) -> bool {
        let is_network = extension
            .wasm
            .as_ref()
            .is_some_and(|w| w.r#type == PluginType::Network);
        let chain_fits = match self.chain {
            FilterChainKind::Http => !is_network,
            FilterChainKind::Network => is_network,
        };
        let side_fits = |mode: SelectorMode| match mode {
            SelectorMode::Undefined | SelectorMode::ClientAndServer => true,
            SelectorMode::Client => self.side == TrafficSide::Client,
            SelectorMode::Server => self.side == TrafficSide::Server,
        };
        let matches = &extension.r#match;
        chain_fits
            && (matches.is_empty()
                || matches.iter().any(|m| {
                    let ports = &m.ports;
                    let port_fits = ports.iter().any(|p| p.number == u32::from(self.port));
                    side_fits(m.mode) && (ports.is_empty() || port_fits)
                }))
    }
}

/// Brings the index of valid extensions, Wasm plugins among them, from `old` to `new`.
pub(super) fn next(
    index: &ByNamespace<TrafficExtension>,
    old: &Tables,
    new: &Tables,
) -> ByNamespace<TrafficExtension> {
    if old.traffic_extensions.ptr_eq(&new.traffic_extensions)
        && old.wasm_plugins.ptr_eq(&new.wasm_plugins)
    {
        return index.clone();
    }
    let dirty = diff::changes(&old.traffic_extensions, &new.traffic_extensions)
        .map(|c| c.key().namespace.clone())
        .chain(
            diff::changes(&old.wasm_plugins, &new.wasm_plugins).map(|c| c.key().namespace.clone()),
        )
        .collect();
    index.rebuild(dirty, |namespace| {
        let own = of_namespace(&new.traffic_extensions, namespace).cloned();
        let plugins = of_namespace(&new.wasm_plugins, namespace).map(|p| Arc::new(translate(p)));
        own.chain(plugins).filter_map(normalise).collect()
    })
}

/// Presents a Wasm plugin as a traffic extension.
fn translate(plugin: &Config<WasmPlugin>) -> Config<TrafficExtension> {
    let spec = &plugin.spec;
    let target_refs = match &spec.target_ref {
        Some(target) if spec.target_refs.is_empty() => vec![target.clone()],
        _ => spec.target_refs.clone(),
    };
    let mut wasm = spec.wasm_config();
    wasm.verification_key.clear();
    Config {
        meta: Meta {
            name: format!("{}{TRANSLATED}", plugin.meta.name).into(),
            labels: model::Labels::new(),
            annotations: model::Labels::new(),
            ..plugin.meta.clone()
        },
        spec: TrafficExtension {
            selector: spec.selector.clone(),
            target_refs,
            phase: match spec.phase {
                WasmPluginPhase::UnspecifiedPhase => PluginPhase::Unspecified,
                WasmPluginPhase::Authn => PluginPhase::Authn,
                WasmPluginPhase::Authz => PluginPhase::Authz,
                WasmPluginPhase::Stats => PluginPhase::Stats,
            },
            priority: spec.priority,
            r#match: spec.r#match.clone(),
            wasm: Some(wasm),
            lua: None,
        },
    }
}

/// Drops what can have no effect, and names pull secrets in full.
fn normalise(extension: Arc<Config<TrafficExtension>>) -> Option<Arc<Config<TrafficExtension>>> {
    let meta = &extension.meta;
    let reason = match (&extension.spec.wasm, &extension.spec.lua) {
        (None, None) => Some("neither wasm nor lua"),
        (Some(wasm), _) if !is_url(&wasm.url) => Some("the module has no valid URL"),
        (None, Some(lua)) if lua.inline_code.is_empty() => Some("the script is empty"),
        (None, Some(lua)) if lua.inline_code.len() > MAX_SCRIPT => Some("the script is too long"),
        _ => None,
    };
    if let Some(reason) = reason {
        tracing::warn!(config = %meta.namespaced_name(), reason, "extension has no effect");
        return None;
    }
    let secret = extension
        .spec
        .wasm
        .as_ref()
        .map_or("", |w| &w.image_pull_secret);
    if secret.is_empty() {
        return Some(extension);
    }
    let full = pull_secret(secret, &meta.namespace);
    let mut extension = extension;
    if let Some(wasm) = &mut Arc::make_mut(&mut extension).spec.wasm {
        wasm.image_pull_secret = full;
    }
    Some(extension)
}

/// Names a pull secret by its resource name in the object's own namespace, whatever namespace the
/// value gives; empty when the value has another form.
fn pull_secret(secret: &str, namespace: &str) -> String {
    let name = match secret.split_once("://") {
        None | Some(("kubernetes", _)) => {
            let path = secret.strip_prefix("kubernetes://").unwrap_or(secret);
            path.split_once('/').map_or(path, |(_, name)| name)
        }
        Some(_) => return String::new(),
    };
    if name.is_empty() || name.contains('/') {
        return String::new();
    }
    format!("kubernetes://{namespace}/{name}")
}

/// Tells whether a module's address can be read as a URL.
fn is_url(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    !rest.is_empty()
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
        && !url.chars().any(|c| c.is_ascii_control() || c == ' ')
        && (!scheme.is_empty() || !rest.split('/').next().unwrap_or_default().contains(':'))
        && !url.starts_with("://")
}
