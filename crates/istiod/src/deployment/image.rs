//! The image of proxies that are deployed, as the values of the injector have it. Pure.

use model::{Labels, MeshState, NamespacedName};
use serde_json::Value;

/// The ConfigMap of the injector; that of a revision has its name behind it.
const INJECTOR: &str = "istio-sidecar-injector";
/// The key with the values, in JSON.
const VALUES: &str = "values";
/// The image when nobody says another.
const DEFAULT: &str = "docker.io/istio/proxyv2:1.28.1";
/// Its name, when the values say no other.
const NAME: &str = "proxyv2";
/// Which of the variants of an image, in annotations.
const VARIANT: &str = "sidecar.istio.io/proxyImageType";
/// Variants that a tag may name already.
const VARIANTS: [&str; 2] = ["-debug", "-distroless"];

/// The image of proxies of a gateway with these annotations, which name none.
pub(super) fn image(state: &MeshState, annotations: &Labels) -> String {
    let of_mesh = state.mesh.default_config.image.as_ref();
    let of_mesh = of_mesh.map(|image| image.image_type.as_str());
    let variant = annotations.get(VARIANT).map(String::as_str).or(of_mesh);
    of_values(state, variant.unwrap_or_default()).unwrap_or_else(|| DEFAULT.to_owned())
}

/// The image that the values say; `None` when there are none, or not enough of them.
fn of_values(state: &MeshState, variant: &str) -> Option<String> {
    let name = match &*state.identity.revision {
        "" | "default" => INJECTOR.to_owned(),
        revision => format!("{INJECTOR}-{revision}"),
    };
    let name = NamespacedName::new(state.identity.system_namespace.clone(), name);
    let map = state.objects.config_maps.get(&name)?;
    let values: Value = match serde_json::from_str(map.spec.data.get(VALUES)?) {
        Ok(values) => values,
        Err(error) => {
            tracing::warn!(config = %name, %error, "values of the injector are not used");
            return None;
        }
    };
    let global = &values["global"];
    let image = global["proxy"]["image"].as_str().unwrap_or_default();
    if image.contains(['/', ':']) {
        return Some(image.to_owned());
    }
    let hub = global["hub"].as_str().filter(|hub| !hub.is_empty())?;
    let tag = match &global["tag"] {
        Value::String(tag) if !tag.is_empty() => tag.clone(),
        Value::Number(tag) => tag.to_string(),
        _ => return None,
    };
    let image = if image.is_empty() { NAME } else { image };
    Some(format!("{hub}/{image}:{}", of_variant(&tag, variant)))
}

/// The tag of a variant.
fn of_variant(tag: &str, variant: &str) -> String {
    if variant.is_empty() {
        return tag.to_owned();
    }
    let bare = VARIANTS.iter().find_map(|known| tag.strip_suffix(known));
    let bare = bare.unwrap_or(tag);
    match variant {
        "default" => bare.to_owned(),
        variant => format!("{bare}-{variant}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::state, *};

    /// The image beside a ConfigMap with these values, for a gateway with this variant.
    #[track_caller]
    fn check(values: &str, variant: &str, expected: &str) {
        let map = format!(
            "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {INJECTOR}, namespace: istio-system}}, data: {{values: '{values}'}}}}"
        );
        let mut annotations = Labels::default();
        if !variant.is_empty() {
            annotations.insert(VARIANT.to_owned(), variant.to_owned());
        }
        assert_eq!(image(&state(&map), &annotations), expected);
    }

    #[test]
    fn the_values_of_the_injector_say_the_image() {
        let values =
            r#"{"global": {"hub": "r.io/istio", "tag": "1.29.0", "proxy": {"image": "proxyv2"}}}"#;
        check(values, "", "r.io/istio/proxyv2:1.29.0");
        let unnamed = r#"{"global": {"hub": "r.io/istio", "tag": 1.29}}"#;
        check(unnamed, "", "r.io/istio/proxyv2:1.29");
        let whole =
            r#"{"global": {"hub": "r.io", "tag": "1", "proxy": {"image": "own.io/proxy:2"}}}"#;
        check(whole, "distroless", "own.io/proxy:2");
        check(r#"{"global": {"hub": "r.io"}}"#, "", DEFAULT);
        check("{}", "", DEFAULT);
        check("no json", "", DEFAULT);
    }

    #[test]
    fn a_variant_is_at_the_end_of_the_tag() {
        let values = |tag: &str| format!(r#"{{"global": {{"hub": "r.io", "tag": "{tag}"}}}}"#);
        check(
            &values("1.29.0"),
            "distroless",
            "r.io/proxyv2:1.29.0-distroless",
        );
        check(
            &values("1.29.0-distroless"),
            "debug",
            "r.io/proxyv2:1.29.0-debug",
        );
        check(&values("1.29.0-debug"), "default", "r.io/proxyv2:1.29.0");
        check(&values("1.29.0-debug"), "", "r.io/proxyv2:1.29.0-debug");
    }

    #[test]
    fn each_revision_has_an_injector_of_its_own() {
        let map = |name: &str| {
            format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}, namespace: istio-system}}, \
                 data: {{values: '{{\"global\": {{\"hub\": \"{name}\", \"tag\": \"1\"}}}}'}}}}\n---\n"
            )
        };
        let mut state = state(&(map(INJECTOR) + &map("istio-sidecar-injector-new")));
        let mut of_revision = |revision: &str| {
            std::sync::Arc::make_mut(&mut state.identity).revision = revision.into();
            image(&state, &Labels::default())
        };
        assert_eq!(of_revision("default"), "istio-sidecar-injector/proxyv2:1");
        assert_eq!(of_revision("new"), "istio-sidecar-injector-new/proxyv2:1");
        assert_eq!(of_revision("other"), DEFAULT);
    }
}
