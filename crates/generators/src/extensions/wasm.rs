//! Wasm modules as extension configurations (telemetry-extensions §16).

use std::collections::HashMap;

use envoy_json::any;
use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            AsyncDataSource, DataSource, HttpUri, RemoteDataSource, TypedExtensionConfig,
            async_data_source, data_source, http_uri::HttpUpstreamType,
        },
        extensions::{
            filters::{http::wasm::v3::Wasm as HttpWasm, network::wasm::v3::Wasm as NetworkWasm},
            wasm::v3::{
                EnvironmentVariables, FailurePolicy, PluginConfig, VmConfig, plugin_config::Vm,
            },
        },
    },
    google::protobuf::{Any, StringValue},
};
use model::{
    Config, NamespacedName,
    api::{
        TrafficExtension,
        extensions::{EnvValueSource, FailStrategy, PluginType, PullPolicy, WasmConfig},
    },
};
use pushctx::PushContext;

use crate::{convert, inputs::ByJson};

const RUNTIME: &str = "envoy.wasm.runtime.v8";
/// How long an agent may fetch a module, seconds.
const FETCH_TIMEOUT: i64 = 30;
const PULL_SECRET: &str = "ISTIO_META_WASM_IMAGE_PULL_SECRET";
const PULL_POLICY: &str = "ISTIO_META_WASM_IMAGE_PULL_POLICY";
const RESOURCE_VERSION: &str = "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION";

/// What the configuration of a module is built from; its hash is the cache key.
#[derive(Hash, Debug)]
pub(crate) struct ModuleInputs {
    /// Name of the configuration.
    pub name: String,
    /// `namespace.name` of the extension.
    plugin: String,
    /// Version of the stored object.
    resource_version: String,
    wasm: ByJson<WasmConfig>,
    /// Credentials of the registry; `None` when there are none, or none are asked for.
    secret: Option<String>,
}

impl ModuleInputs {
    /// Collects the inputs; `None` for extensions that are no modules.
    pub(crate) fn gather(
        snapshot: &PushContext,
        extension: &Config<TrafficExtension>,
    ) -> Option<Self> {
        let wasm = extension.spec.wasm.as_ref()?;
        let meta = &extension.meta;
        Some(Self {
            name: super::name(meta),
            plugin: format!("{}.{}", meta.namespace, meta.name),
            resource_version: meta.resource_version.clone(),
            secret: pull_secret(snapshot, &wasm.image_pull_secret),
            wasm: ByJson(wasm.clone()),
        })
    }
}

/// Builds the configuration of a module.
pub(crate) fn config(inputs: &ModuleInputs) -> TypedExtensionConfig {
    let wasm = &inputs.wasm;
    let plugin = PluginConfig {
        name: inputs.plugin.clone(),
        root_id: wasm.plugin_name.clone(),
        configuration: Some(configuration(wasm)),
        failure_policy: match wasm.fail_strategy {
            FailStrategy::FailClose => FailurePolicy::FailClosed,
            FailStrategy::FailOpen => FailurePolicy::FailOpen,
            FailStrategy::FailReload => FailurePolicy::FailReload,
        }
        .into(),
        vm: Some(Vm::VmConfig(VmConfig {
            runtime: RUNTIME.to_owned(),
            code: Some(code(wasm)),
            environment_variables: Some(environment(inputs)),
            ..VmConfig::default()
        })),
        ..PluginConfig::default()
    };
    let config = Some(plugin);
    TypedExtensionConfig {
        name: inputs.name.clone(),
        typed_config: Some(if wasm.r#type == PluginType::Network {
            any(&NetworkWasm { config })
        } else {
            any(&HttpWasm { config })
        }),
    }
}

/// The plugin's configuration as JSON text; without a type when there is none.
fn configuration(wasm: &WasmConfig) -> Any {
    match wasm
        .plugin_config
        .as_ref()
        .filter(|config| !config.is_empty())
    {
        None => Any::default(),
        Some(config) => any(&StringValue {
            value: escaped(&serde_json::Value::Object(config.clone()).to_string()),
        }),
    }
}

/// Writes what HTML would read as markup, and the line ends that JSON knows and JavaScript does not,
/// as JSON escapes. In JSON text they stand only within strings.
fn escaped(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

fn code(wasm: &WasmConfig) -> AsyncDataSource {
    let remote = |uri: String| {
        async_data_source::Specifier::Remote(RemoteDataSource {
            http_uri: Some(HttpUri {
                uri,
                timeout: Some(convert::seconds(FETCH_TIMEOUT)),
                http_upstream_type: Some(HttpUpstreamType::Cluster("_".to_owned())),
            }),
            sha256: wasm.sha256.clone(),
            ..RemoteDataSource::default()
        })
    };
    let specifier = match scheme(&wasm.url) {
        Some("file") => {
            let path = wasm.url.strip_prefix("file://").unwrap_or(&wasm.url);
            async_data_source::Specifier::Local(DataSource {
                specifier: Some(data_source::Specifier::Filename(path.to_owned())),
                ..DataSource::default()
            })
        }
        Some(_) => remote(wasm.url.clone()),
        None => remote(format!("oci://{}", wasm.url)),
    };
    AsyncDataSource {
        specifier: Some(specifier),
    }
}

/// What precedes the first colon when it can be a scheme, a port's host included: `localhost:5000/x`
/// has the scheme `localhost`.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, _) = url.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    is_scheme.then_some(scheme)
}

fn environment(inputs: &ModuleInputs) -> EnvironmentVariables {
    let wasm = &inputs.wasm;
    let mut values = HashMap::new();
    if !wasm.image_pull_secret.is_empty() {
        let secret = inputs.secret.clone().unwrap_or_default();
        values.insert(PULL_SECRET.to_owned(), secret);
    }
    let policy = match wasm.image_pull_policy {
        PullPolicy::UnspecifiedPolicy => None,
        PullPolicy::IfNotPresent => Some("IfNotPresent"),
        PullPolicy::Always => Some("Always"),
    };
    values.extend(policy.map(|policy| (PULL_POLICY.to_owned(), policy.to_owned())));
    let version = inputs.resource_version.clone();
    values.insert(RESOURCE_VERSION.to_owned(), version);
    let mut host_env_keys = Vec::new();
    for variable in wasm.vm_config.iter().flat_map(|vm| &vm.env) {
        match variable.value_from {
            EnvValueSource::Host => host_env_keys.push(variable.name.clone()),
            EnvValueSource::Inline => {
                values.insert(variable.name.clone(), variable.value.clone());
            }
        }
    }
    EnvironmentVariables {
        host_env_keys,
        key_values: values,
    }
}

/// Reads the registry's credentials out of a secret named `kubernetes://namespace/name`; `None` when
/// there is no such secret of the right type.
fn pull_secret(snapshot: &PushContext, resource: &str) -> Option<String> {
    let (namespace, name) = resource.strip_prefix("kubernetes://")?.split_once('/')?;
    let secrets = &snapshot.state().objects.secrets;
    let secret = &secrets.get(&NamespacedName::new(namespace, name))?.spec;
    if secret.r#type != "kubernetes.io/dockerconfigjson" {
        return None;
    }
    let credentials = secret.value(".dockerconfigjson")?;
    String::from_utf8(credentials.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expected: Option<&str>) {
        assert_eq!(scheme(url), expected);
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(
            escaped(r#"{"a":"<b>&c"}"#),
            r#"{"a":"\u003cb\u003e\u0026c"}"#
        );
    }

    #[test]
    fn schemes_of_modules() {
        check("oci://registry.example.com/img:v1", Some("oci"));
        check("file:///opt/filter.wasm", Some("file"));
        check("localhost:5000/img:v1", Some("localhost"));
        check("registry.example.com/img:v1", None);
        check("10.0.0.1:5000/img:v1", None);
    }
}
