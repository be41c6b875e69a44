//! TrafficExtension, WasmPlugin and `ProxyConfig` (telemetry-extensions.md §18).

use super::{Scope, names, selectors, text};
use crate::api::extensions::{
    EnvValueSource, TrafficExtension, TrafficSelector, WasmConfig, WasmPlugin,
};
use crate::api::proxy_config::ProxyConfig;

/// Longest name of a secret.
const MAX_SECRET: usize = 253;
/// Longest name of a plugin or variable.
const MAX_NAME: usize = 256;
/// Longest Lua script, bytes.
const MAX_LUA: usize = 65536;

pub(super) fn traffic_extension(spec: &TrafficExtension, scope: &Scope<'_>) {
    selectors::one_target(scope, spec.selector.as_ref(), None, &spec.target_refs);
    traffic_selectors(scope, &spec.r#match);
    match (&spec.wasm, &spec.lua) {
        (Some(_), Some(_)) => scope.error("only one of wasm and lua can be set"),
        (None, None) => scope.error("one of wasm and lua must be set"),
        (Some(config), None) => wasm(config, &scope.field("wasm")),
        (None, Some(lua)) => {
            let scope = scope.field("lua");
            let scope = scope.field("inlineCode");
            if lua.inline_code.is_empty() {
                scope.error("the script is empty");
            }
            if lua.inline_code.len() > MAX_LUA {
                scope.error(format_args!(
                    "{} bytes, at most {MAX_LUA} are allowed",
                    lua.inline_code.len()
                ));
            }
        }
    }
}

pub(super) fn wasm_plugin(spec: &WasmPlugin, scope: &Scope<'_>) {
    selectors::one_target(
        scope,
        spec.selector.as_ref(),
        spec.target_ref.as_ref(),
        &spec.target_refs,
    );
    traffic_selectors(scope, &spec.r#match);
    wasm(&spec.wasm_config(), scope);
}

fn traffic_selectors(scope: &Scope<'_>, selectors: &[TrafficSelector]) {
    scope.each("match", selectors, |scope, selector| {
        scope.each("ports", &selector.ports, |scope, port| {
            scope.field("number").check(names::port(port.number));
        });
    });
}

fn wasm(config: &WasmConfig, scope: &Scope<'_>) {
    scope.field("url").check(module_url(&config.url));
    let digest = |text: &str| {
        text.len() == 64
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !config.sha256.is_empty() && !digest(&config.sha256) {
        scope.field("sha256").error(format_args!(
            "{:?} is not 64 lower case hexadecimal digits",
            config.sha256
        ));
    }
    for (key, text, limit) in [
        ("imagePullSecret", &config.image_pull_secret, MAX_SECRET),
        ("pluginName", &config.plugin_name, MAX_NAME),
    ] {
        if text.len() > limit {
            scope.field(key).error(format_args!(
                "{} characters, at most {limit} are allowed",
                text.len()
            ));
        }
    }
    let Some(machine) = &config.vm_config else {
        return;
    };
    let scope = scope.field("vmConfig");
    for (index, variable) in machine.env.iter().enumerate() {
        let field = scope.field("env");
        let scope = field.index(index);
        if variable.name.is_empty() {
            scope.field("name").error("the variable has no name");
        }
        if variable.name.len() > MAX_NAME {
            scope.field("name").error(format_args!(
                "{} characters, at most {MAX_NAME} are allowed",
                variable.name.len()
            ));
        }
        if machine.env[..index]
            .iter()
            .any(|other| other.name == variable.name)
        {
            scope.field("name").error(format_args!(
                "another variable has the name {:?}",
                variable.name
            ));
        }
        if variable.value_from != EnvValueSource::Inline && !variable.value.is_empty() {
            scope.field("value").error(format_args!(
                "not allowed with valueFrom {}",
                variable.value_from
            ));
        }
    }
}

/// Checks the address of a module; what fails as it is may be a registry with a port.
fn module_url(url: &str) -> names::Verdict {
    if url.is_empty() {
        return Err("must be set".to_owned());
    }
    let with_scheme = format!("http://{url}");
    let scheme = match text::url(url) {
        Ok(parsed) => parsed.scheme,
        Err(reason) => {
            text::url(&with_scheme).map_err(|_| reason)?;
            ""
        }
    };
    if matches!(scheme, "" | "file" | "http" | "https" | "oci") {
        return Ok(());
    }
    Err(format!(
        "{url:?} has the scheme {scheme:?}, allowed are file, http, https and oci"
    ))
}

pub(super) fn proxy_config(spec: &ProxyConfig, scope: &Scope<'_>) {
    selectors::match_labels(&scope.field("selector"), spec.selector.as_ref());
    if let Some(concurrency) = spec.concurrency {
        scope
            .field("concurrency")
            .check(names::not_negative(concurrency));
    }
}
