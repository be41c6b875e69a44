//! Objects from templates. Pure.

use std::{cell::OnceCell, collections::BTreeMap};

use controllers::writer::Target;
use minijinja::{Environment, UndefinedBehavior};
use model::{
    Config, Labels, MeshState, NamespacedName,
    api::gateway_api::{Gateway, ParametersReference},
};
use serde_json::{Value, json};
use translate::report::Deployment;
use xxhash_rust::xxh3::xxh3_64;

use super::{DeploymentSettings, KINDS, MANAGED, image, overlay, target};

/// The built-in templates, by the names by which a ConfigMap replaces them.
const TEMPLATES: [(&str, &str); 2] = [
    ("kube-gateway", include_str!("templates/kube-gateway.yaml")),
    ("waypoint", include_str!("templates/waypoint.yaml")),
];
/// The most that a template may do: a hundred times what ours do.
const FUEL: u64 = 200_000;
/// Says what an object was made as: two objects of one hash have the same fields of ours.
const RENDERED: &str = "gateway.istio.io/rendered";
/// Name of the Gateway, on all that belongs to it.
const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// Type of the Service.
const SERVICE_TYPE: &str = "networking.istio.io/service-type";
/// Image of the proxy.
const IMAGE: &str = "sidecar.istio.io/proxyImage";
/// Marks a ConfigMap of the root namespace with parameters of all gateways of a class.
const DEFAULTS: &str = "gateway.istio.io/defaults-for-class";
/// Annotations of a Gateway that are not those of its objects.
const OWN_ANNOTATIONS: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "gateway.istio.io/name-override",
    "gateway.istio.io/service-account",
    "gateway.istio.io/controller-version",
];
/// What parameters are laid over, by the key of the ConfigMap that holds them. The last two are only made
/// where there are parameters for them.
const PARAMETERS: [(&str, &str); 5] = [
    ("serviceAccount", "ServiceAccount"),
    ("deployment", "Deployment"),
    ("service", "Service"),
    ("horizontalPodAutoscaler", "HorizontalPodAutoscaler"),
    ("podDisruptionBudget", "PodDisruptionBudget"),
];

/// An object as it should be.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Made {
    pub target: Target,
    /// Its fields, as far as they are ours.
    pub fields: Value,
}

/// Makes objects of gateways of one state.
pub(super) struct Rendering<'a> {
    state: &'a MeshState,
    settings: &'a DeploymentSettings,
    environment: OnceCell<Environment<'a>>,
}

impl<'a> Rendering<'a> {
    pub(super) fn new(state: &'a MeshState, settings: &'a DeploymentSettings) -> Self {
        Self {
            state,
            settings,
            environment: OnceCell::new(),
        }
    }

    /// The templates: those of the ConfigMap come before the built-in ones.
    fn environment(&self) -> &Environment<'a> {
        self.environment.get_or_init(|| {
            let mut environment = Environment::new();
            environment.set_undefined_behavior(UndefinedBehavior::Strict);
            environment.set_fuel(Some(FUEL));
            let system = &self.state.identity.system_namespace;
            let name = NamespacedName::new(system.clone(), self.settings.templates.as_str());
            let ours = self.state.objects.config_maps.get(&name);
            for (name, built_in) in TEMPLATES {
                let theirs = ours.and_then(|map| map.spec.data.get(name));
                let theirs = theirs.map(|text| environment.add_template_owned(name, text.clone()));
                match theirs {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => {
                        tracing::warn!(template = name, %error, "template is not used");
                    }
                    None => {}
                }
                if let Err(error) = environment.add_template(name, built_in) {
                    tracing::error!(template = name, %error, "a broken template");
                }
            }
            environment
        })
    }

    /// Makes all objects of a gateway.
    ///
    /// # Errors
    /// When the template or a parameter cannot be used.
    pub(super) fn render(
        &self,
        gateway: &Config<Gateway>,
        deployment: &Deployment,
    ) -> anyhow::Result<Vec<Made>> {
        let template = self.environment().get_template(deployment.template)?;
        let facts = self.facts(gateway, deployment);
        let text = template.render(value(&facts))?;
        let mut objects = intake::yaml_values(&text)?;
        let parameters = self.parameters(gateway)?;
        Self::extend(&mut objects, &parameters, &facts);
        objects
            .into_iter()
            .filter(|object| !object.is_null())
            .map(|object| finish(object, gateway, &parameters))
            .collect()
    }

    /// What a template knows.
    fn facts(&self, gateway: &Config<Gateway>, deployment: &Deployment) -> Value {
        let (meta, spec) = (&gateway.meta, &gateway.spec);
        let (state, settings) = (self.state, self.settings);
        let infrastructure = spec.infrastructure.clone().unwrap_or_default();
        // What the Gateway says for its objects; without, they have what the Gateway has itself.
        let is_empty = infrastructure.labels.is_empty() && infrastructure.annotations.is_empty();
        let (labels, annotations) = if is_empty && state.features.gateway_api_copy_metadata {
            (meta.labels.clone(), meta.annotations.clone())
        } else {
            (infrastructure.labels, infrastructure.annotations)
        };
        let annotations: Labels = annotations
            .into_iter()
            .filter(|(name, _)| !OWN_ANNOTATIONS.contains(&name.as_str()))
            .collect();
        let stated = |name: &str| annotations.get(name).or_else(|| meta.annotations.get(name));
        let image = stated(IMAGE).or(settings.image.as_ref()).cloned();
        let image = image.unwrap_or_else(|| image::image(state, &annotations));
        let default_type = match deployment.template {
            "waypoint" => "ClusterIP",
            _ => "LoadBalancer",
        };
        let service_type = stated(SERVICE_TYPE).map_or(default_type, String::as_str);
        let address = spec
            .addresses
            .first()
            .and_then(|address| address.value.clone());
        let network = labels
            .get("topology.istio.io/network")
            .or_else(|| meta.labels.get("topology.istio.io/network"));
        let ports = deployment.ports.iter();
        let ports: Vec<Value> = ports
            .map(|port| json!({"name": port.name, "port": port.port, "protocol": port.protocol}))
            .collect();
        let revision = match &*state.identity.revision {
            "" => "default",
            revision => revision,
        };
        json!({
            "gateway": {"name": &*meta.name, "namespace": &*meta.namespace, "class": spec.gateway_class_name},
            "name": deployment.name,
            "service_account": deployment.service_account,
            "labels": labels,
            "annotations": annotations,
            "service_type": service_type,
            "address": address,
            "ports": ports,
            "image": image,
            "control_plane": settings.address,
            "revision": revision,
            "cluster": &*state.identity.cluster,
            "network": network,
            "domain": &*state.identity.domain,
            "trust_domain": state.mesh.trust_domain,
        })
    }

    /// Parameters of a gateway, by the kind that they are for: of its class first, then its own.
    fn parameters(&self, gateway: &Config<Gateway>) -> anyhow::Result<Vec<(&'static str, Value)>> {
        let maps = &self.state.objects.config_maps;
        let root = self.state.root_namespace();
        let of_class = maps.values().find(|map| {
            let class = map.meta.labels.get(DEFAULTS);
            *map.meta.namespace == *root
                && class.is_some_and(|class| *class == gateway.spec.gateway_class_name)
        });
        let reference = gateway.spec.infrastructure.as_ref();
        let reference = reference.and_then(|infrastructure| infrastructure.parameters_ref.as_ref());
        let own = match reference {
            None => None,
            Some(ParametersReference {
                group, kind, name, ..
            }) => {
                anyhow::ensure!(
                    group.is_empty() && kind == "ConfigMap",
                    "parameters of kind {kind:?} in group {group:?} are not supported"
                );
                let key = NamespacedName::new(gateway.meta.namespace.clone(), name.as_str());
                let map = maps.get(&key);
                Some(map.ok_or_else(|| anyhow::anyhow!("ConfigMap {key} does not exist"))?)
            }
        };
        let mut parameters = Vec::new();
        for map in [of_class, own].into_iter().flatten() {
            for (key, kind) in PARAMETERS {
                let Some(text) = map.spec.data.get(key) else {
                    continue;
                };
                let values = intake::yaml_values(text)?;
                parameters.extend(values.into_iter().map(|value| (kind, value)));
            }
        }
        Ok(parameters)
    }

    /// Adds what is only made where parameters ask for it.
    fn extend(objects: &mut Vec<Value>, parameters: &[(&str, Value)], facts: &Value) {
        let has = |kind: &str| parameters.iter().any(|(known, _)| *known == kind);
        let metadata = json!({
            "name": facts["name"],
            "labels": facts["labels"],
            "annotations": facts["annotations"],
        });
        if has("HorizontalPodAutoscaler") {
            let target =
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": facts["name"]});
            objects.push(json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": metadata, "spec": {"scaleTargetRef": target},
            }));
        }
        if has("PodDisruptionBudget") {
            let labels = BTreeMap::from([(GATEWAY_NAME, &facts["gateway"]["name"])]);
            objects.push(json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
                "metadata": metadata, "spec": {"selector": {"matchLabels": labels}},
            }));
        }
    }
}

/// Makes an object of a template one of its gateway: with parameters laid over, an owner, and the hash of what
/// is wanted of it.
fn finish(
    mut object: Value,
    gateway: &Config<Gateway>,
    parameters: &[(&str, Value)],
) -> anyhow::Result<Made> {
    let meta = &gateway.meta;
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let Some(resource) = KINDS.into_iter().find(|known| known.kind == kind) else {
        anyhow::bail!("a template makes a {kind:?}, which is not deployed");
    };
    for (_, over) in parameters.iter().filter(|(of, _)| *of == kind) {
        overlay::lay(&mut object, over);
    }
    overlay::strip(&mut object);
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    anyhow::ensure!(!name.is_empty(), "a template makes a {kind} without a name");
    let metadata = &mut object["metadata"];
    metadata["labels"][GATEWAY_NAME] = json!(&*meta.name);
    metadata["labels"][MANAGED] = json!(format!("istio.io-{}", controller(gateway)));
    metadata["ownerReferences"] = json!([{
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "name": &*meta.name, "uid": meta.uid,
    }]);
    for field in ["apiVersion", "kind"] {
        if let Value::Object(fields) = &mut object {
            fields.remove(field);
        }
    }
    if let Value::Object(metadata) = &mut object["metadata"] {
        // The target says them.
        metadata.remove("name");
        metadata.remove("namespace");
    }
    let hash = xxh3_64(object.to_string().as_bytes());
    object["metadata"]["annotations"][RENDERED] = json!(format!("{hash:016x}"));
    Ok(Made {
        target: target(resource, &meta.namespace, &name),
        fields: object,
    })
}

/// What manages the objects, for their label.
fn controller(gateway: &Config<Gateway>) -> &'static str {
    match gateway.spec.gateway_class_name.as_str() {
        "istio-waypoint" => "mesh-controller",
        "istio-east-west" => "eastwest-controller",
        _ => "gateway-controller",
    }
}

/// A value as templates know it.
fn value(json: &Value) -> minijinja::Value {
    match json {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(value) => (*value).into(),
        // There are no other numbers than ports.
        Value::Number(number) => number.as_i64().unwrap_or_default().into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(entries) => entries.iter().map(value).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, field)| (name.clone(), value(field)));
            fields.collect::<BTreeMap<_, _>>().into()
        }
    }
}
