//! Effective settings of proxies (config-model §14.8).

use std::sync::Arc;

use model::{
    Config, Labels, MeshState,
    api::{MeshProxyConfig, ProxyConfigResource},
    selects,
};

use crate::{PushContext, attach::ByNamespace};

/// `ProxyConfig` objects by namespace.
#[derive(Clone, Default, Debug)]
pub(crate) struct ProxyConfigIndex(ByNamespace<ProxyConfigResource>);

impl ProxyConfigIndex {
    pub(crate) fn build(state: &MeshState) -> Self {
        Self(ByNamespace::build(&state.objects.proxy_configs))
    }

    pub(crate) fn next(&self, old: &MeshState, new: &MeshState) -> Self {
        Self(
            self.0
                .next(&old.objects.proxy_configs, &new.objects.proxy_configs),
        )
    }
}

impl PushContext {
    /// Works out the settings that a new workload gets: the mesh's defaults, then the oldest
    /// selector-less object of the root namespace and of its own, then `annotation`, then the oldest
    /// object of its own namespace whose non-empty selector chooses it.
    ///
    /// `annotation` is the content of `proxy.istio.io/config`, decoded; one that cannot be read has
    /// no effect. A connected proxy has its settings already: they are in its metadata.
    pub fn proxy_config(
        &self,
        namespace: &str,
        labels: &Labels,
        annotation: Option<&serde_json::Value>,
    ) -> MeshProxyConfig {
        let root = self.root_namespace();
        let own = self.proxy_configs.0.of(namespace);
        let wide = |list: &[Arc<Config<ProxyConfigResource>>]| {
            list.iter().find(|c| c.spec.selector.is_none()).cloned()
        };
        let mut config = self.mesh().default_config.clone();
        let of_root = wide(self.proxy_configs.0.of(root));
        let of_namespace = if namespace == root { None } else { wide(own) };
        for layer in of_root.iter().chain(&of_namespace) {
            lay_over(&mut config, &layer.spec);
        }
        if let Some(annotation) = annotation {
            match config.overlay(annotation) {
                Ok(decoded) => config = decoded.value,
                Err(error) => tracing::warn!(%error, "annotation proxy.istio.io/config is ignored"),
            }
        }
        let selecting = own.iter().find(|c| {
            let selector = c.spec.selector.as_ref().map(|s| &s.match_labels);
            selector.is_some_and(|s| !s.is_empty() && selects(s, labels))
        });
        if let Some(layer) = selecting {
            lay_over(&mut config, &layer.spec);
        }
        config
    }
}

/// Lays an object's settings over those below it; environment variables merge by name.
fn lay_over(config: &mut MeshProxyConfig, layer: &ProxyConfigResource) {
    config.concurrency = layer.concurrency.or(config.concurrency);
    let variables = layer
        .environment_variables
        .iter()
        .map(|(k, v)| (k.clone(), v.clone()));
    config.proxy_metadata.extend(variables);
    if layer.image.is_some() {
        config.image.clone_from(&layer.image);
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use model::api::MeshConfig;
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn layers_in_order() {
        let yaml = r"
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: root, namespace: istio-system}
spec: {concurrency: 2, environmentVariables: {A: r, B: r}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: own, namespace: a}
spec: {environmentVariables: {A: own}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: selecting, namespace: a}
spec: {selector: {matchLabels: {app: x}}, concurrency: 0}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: empty, namespace: a}
spec: {selector: {}, concurrency: 9}
";
        let mut state = testing::state(yaml);
        let mut mesh = MeshConfig::default();
        mesh.default_config.concurrency = Some(1);
        state.mesh = Arc::new(mesh);
        let context = PushContext::build(state);
        let labels = Labels::from([("app".into(), "x".into())]);
        let annotation = json!({"concurrency": 5});
        let config = context.proxy_config("a", &labels, Some(&annotation));
        assert_eq!(config.concurrency, Some(0));
        let expected = BTreeMap::from([("A".into(), "own".into()), ("B".into(), "r".into())]);
        assert_eq!(config.proxy_metadata, expected);
        let unselected = context.proxy_config("a", &Labels::new(), Some(&annotation));
        assert_eq!(unselected.concurrency, Some(5));
        let plain = context.proxy_config("b", &Labels::new(), None);
        assert_eq!(plain.concurrency, Some(2));
    }
}
