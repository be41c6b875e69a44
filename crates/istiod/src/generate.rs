//! What would a proxy receive? Generation for one node, without a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::Context as _;
use generators::Mesh;
use model::{MeshState, Node, Proxy, PushRequest, proxy::Identity};
use pushctx::{ClassKey, PushContext};
use serde_json::{Map, Value, json};
use translate::Translator;
use xds::{Interest, Registry, ResourceSet, type_url};

/// A type of resource that can be asked for, with its names here and in the output.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ResourceType {
    /// Clusters.
    Cds,
    /// Endpoints of the clusters that ask for them.
    Eds,
    /// Listeners.
    Lds,
    /// Routes that listeners refer to.
    Rds,
    /// Secrets that listeners and clusters refer to.
    Sds,
    /// Extension configurations that listeners refer to.
    Ecds,
    /// The name table.
    Nds,
}

impl ResourceType {
    /// All types, in the order of the output.
    pub const ALL: [Self; 7] = [
        Self::Cds,
        Self::Eds,
        Self::Lds,
        Self::Rds,
        Self::Sds,
        Self::Ecds,
        Self::Nds,
    ];

    /// The short name, for example `cds`.
    pub const fn short(self) -> &'static str {
        match self {
            Self::Cds => "cds",
            Self::Eds => "eds",
            Self::Lds => "lds",
            Self::Rds => "rds",
            Self::Sds => "sds",
            Self::Ecds => "ecds",
            Self::Nds => "nds",
        }
    }

    /// The list's name in the output.
    pub const fn list(self) -> &'static str {
        match self {
            Self::Cds => "clusters",
            Self::Eds => "endpoints",
            Self::Lds => "listeners",
            Self::Rds => "routes",
            Self::Sds => "secrets",
            Self::Ecds => "extensions",
            Self::Nds => "nameTables",
        }
    }

    /// The type URL.
    pub const fn url(self) -> &'static str {
        match self {
            Self::Cds => type_url::CLUSTER,
            Self::Eds => type_url::ENDPOINT,
            Self::Lds => type_url::LISTENER,
            Self::Rds => type_url::ROUTE,
            Self::Sds => type_url::SECRET,
            Self::Ecds => type_url::EXTENSION,
            Self::Nds => generators::NAME_TABLE,
        }
    }
}

impl std::str::FromStr for ResourceType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|t| t.short() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::short).join(", ");
                format!("{text:?} is not one of {names}")
            })
    }
}

/// One snapshot and the generators, ready to answer for any node.
#[derive(Debug)]
pub struct Generator {
    context: Arc<PushContext>,
    translator: Translator,
    registry: Registry<Mesh>,
}

impl Generator {
    /// Builds the snapshot of a state.
    ///
    /// # Errors
    /// When two generators claim one type.
    pub fn new(state: MeshState) -> anyhow::Result<Self> {
        let mut translator = Translator::default();
        Ok(Self {
            context: Arc::new(PushContext::build(translator.layer(state))),
            translator,
            registry: crate::registry()?,
        })
    }

    /// Goes on to a later state, as a running control plane does: what the change does not reach
    /// is taken over, and generators use again what they built.
    pub fn advance(&mut self, state: MeshState, request: &PushRequest) {
        let state = self.translator.layer(state);
        self.context = Arc::new(self.context.next(state, request));
    }

    /// The snapshot.
    pub fn context(&self) -> &Arc<PushContext> {
        &self.context
    }

    /// Generates what `node` would receive, as the lists of the corpus' expected files: protobuf
    /// JSON, each list sorted by name. Types that are not in `types` are left out.
    ///
    /// # Errors
    /// When the node is malformed.
    pub fn generate(&self, node: &Node, types: &BTreeSet<ResourceType>) -> anyhow::Result<Value> {
        Ok(self.receive(&parse(node)?).to_json(types))
    }

    /// Generates what a proxy would receive, which asks for what its clusters and listeners refer to.
    pub fn receive(&self, proxy: &Proxy) -> Received {
        let class = self.context.classify(proxy);
        let mut received = Received::default();
        let mut names = References::default();
        for kind in [ResourceType::Cds, ResourceType::Lds] {
            let set = self.set(&class, kind, &Interest::Everything);
            let resources = json(kind, &set);
            for resource in resources.values() {
                names.collect(resource);
            }
            received.add(kind, Interest::Everything, set, resources);
        }
        for (kind, names) in [
            (ResourceType::Eds, names.endpoints),
            (ResourceType::Rds, names.routes),
            (ResourceType::Sds, names.secrets),
            (ResourceType::Ecds, names.extensions),
        ] {
            if !names.is_empty() {
                received.ask(self, &class, kind, Interest::named(names));
            }
        }
        if proxy.metadata.dns_capture {
            received.ask(self, &class, ResourceType::Nds, Interest::Everything);
        }
        received
    }

    /// Generates the resources of one type that a class of proxies gets.
    pub fn set(
        &self,
        class: &Arc<ClassKey>,
        kind: ResourceType,
        interest: &Interest,
    ) -> ResourceSet {
        let served = self.registry.get(kind.url());
        served.map_or_else(ResourceSet::default, |served| {
            served.generator().generate(&self.context, class, interest)
        })
    }
}

/// Reads what a node says of itself; it counts as the service account that it names.
///
/// # Errors
/// When the node is malformed.
pub fn parse(node: &Node) -> anyhow::Result<Proxy> {
    let mut proxy = Proxy::parse(node).context("understand the node")?;
    // Nobody connected: what Gateways refer to is for those who did.
    proxy.identity = Some(Identity {
        owns_gateways: false,
        ..Identity::claimed(&proxy)
    });
    Ok(proxy)
}

/// What one proxy receives.
#[derive(Debug, Default)]
pub struct Received {
    /// What it asks for, by type; a type that it has no use for is absent.
    pub asked: BTreeMap<ResourceType, (Interest, ResourceSet)>,
    /// The same resources in their JSON form, by name.
    lists: BTreeMap<ResourceType, BTreeMap<String, Value>>,
}

impl Received {
    /// The resources of a type in their JSON form, by name.
    pub fn resources(&self, kind: ResourceType) -> impl Iterator<Item = (&str, &Value)> {
        let resources = self.lists.get(&kind).into_iter().flatten();
        resources.map(|(name, value)| (name.as_str(), value))
    }

    /// Takes private keys out of the JSON forms.
    pub fn hide_keys(&mut self) {
        let secrets = self.lists.get_mut(&ResourceType::Sds);
        secrets
            .into_iter()
            .flat_map(BTreeMap::values_mut)
            .for_each(hide_key);
    }

    /// The lists of the corpus' expected files, each sorted by name, of these types.
    pub fn to_json(&self, types: &BTreeSet<ResourceType>) -> Value {
        let list = |kind| {
            self.resources(kind)
                .map(|(_, value)| value.clone())
                .collect()
        };
        let kinds = ResourceType::ALL.into_iter().filter(|t| types.contains(t));
        let lists = kinds.map(|kind| (kind.list().to_owned(), list(kind)));
        Value::Object(lists.collect())
    }

    fn ask(
        &mut self,
        generator: &Generator,
        class: &Arc<ClassKey>,
        kind: ResourceType,
        interest: Interest,
    ) {
        let set = generator.set(class, kind, &interest);
        let resources = json(kind, &set);
        self.add(kind, interest, set, resources);
    }

    fn add(
        &mut self,
        kind: ResourceType,
        interest: Interest,
        set: ResourceSet,
        resources: BTreeMap<String, Value>,
    ) {
        self.asked.insert(kind, (interest, set));
        self.lists.insert(kind, resources);
    }
}

/// The resources of a set in their JSON form, by name.
pub fn json(kind: ResourceType, set: &ResourceSet) -> BTreeMap<String, Value> {
    let resources = set.iter().map(|resource| {
        let json = envoy_json::json::to_json(kind.url(), &resource.body().to_bytes())
            .unwrap_or_else(|error| Value::String(error.to_string()));
        (resource.name().to_string(), json)
    });
    resources.collect()
}

/// Takes the private key out of a secret in its JSON form: what is printed may be kept.
fn hide_key(secret: &mut Value) {
    let certificate = secret.get_mut("tlsCertificate");
    let Some(certificate) = certificate.and_then(Value::as_object_mut) else {
        return;
    };
    for field in ["privateKey", "privateKeyProvider"] {
        if let Some(key) = certificate.get_mut(field) {
            *key = json!({"inlineString": "[hidden]"});
        }
    }
}

/// Names that clusters and listeners refer to and a proxy asks for over ADS.
#[derive(Debug, Default)]
struct References {
    endpoints: BTreeSet<String>,
    routes: BTreeSet<String>,
    secrets: BTreeSet<String>,
    extensions: BTreeSet<String>,
}

impl References {
    /// Walks a resource in its JSON form, packed messages included.
    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.collect(item)),
            Value::Object(object) => {
                self.collect_object(object);
                object.values().for_each(|item| self.collect(item));
            }
            _ => {}
        }
    }

    fn collect_object(&mut self, object: &Map<String, Value>) {
        let text = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
        if object.get("type").and_then(Value::as_str) == Some("EDS") {
            let service = object
                .get("edsClusterConfig")
                .and_then(|eds| eds.get("serviceName"))
                .and_then(Value::as_str)
                .map(str::to_owned);
            self.endpoints.extend(service.or_else(|| text("name")));
        }
        if let Some(rds) = object.get("rds") {
            let name = rds.get("routeConfigName").and_then(Value::as_str);
            self.routes.extend(name.map(str::to_owned));
        }
        if object.contains_key("configDiscovery") {
            self.extensions.extend(text("name"));
        }
        if object
            .get("sdsConfig")
            .is_some_and(|source| source.get("ads").is_some())
        {
            self.secrets.extend(text("name"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_and_certificates_are_not() {
        let mut secret = json!({"name": "a", "tlsCertificate": {
            "certificateChain": {"inlineBytes": "Yw=="}, "privateKey": {"inlineBytes": "aw=="}}});
        hide_key(&mut secret);
        let text = secret.to_string();
        assert!(!text.contains("aw==") && text.contains("Yw=="), "{text}");
        let mut authority = json!({"name": "b", "validationContext": {}});
        let before = authority.clone();
        hide_key(&mut authority);
        assert_eq!(authority, before);
    }
}
