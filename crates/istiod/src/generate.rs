//! What would a proxy receive? Generation for one node, without a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::Context as _;
use generators::Mesh;
use model::{MeshState, Node, Proxy};
use pushctx::{ClassKey, PushContext};
use serde_json::{Map, Value};
use translate::Translator;
use xds::{Interest, Registry, type_url};

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

    const fn url(self) -> &'static str {
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
    context: PushContext,
    registry: Registry<Mesh>,
}

impl Generator {
    /// Builds the snapshot of a state.
    ///
    /// # Errors
    /// When two generators claim one type.
    pub fn new(state: MeshState) -> anyhow::Result<Self> {
        Ok(Self {
            context: PushContext::build(Translator::default().layer(state)),
            registry: crate::registry()?,
        })
    }

    /// The snapshot.
    pub fn context(&self) -> &PushContext {
        &self.context
    }

    /// Generates what `node` would receive, as the lists of the corpus' expected files: protobuf
    /// JSON, each list sorted by name. Types that are not in `types` are left out.
    ///
    /// # Errors
    /// When the node is malformed.
    pub fn generate(&self, node: &Node, types: &BTreeSet<ResourceType>) -> anyhow::Result<Value> {
        let proxy = Proxy::parse(node).context("understand the node")?;
        let class = self.context.classify(&proxy);
        let clusters = self.list(&class, ResourceType::Cds, &Interest::Everything);
        let listeners = self.list(&class, ResourceType::Lds, &Interest::Everything);
        let mut names = References::default();
        for resource in clusters.values().chain(listeners.values()) {
            names.collect(resource);
        }
        let mut output = Map::new();
        for kind in ResourceType::ALL.into_iter().filter(|t| types.contains(t)) {
            let list = match kind {
                ResourceType::Cds => clusters.clone(),
                ResourceType::Lds => listeners.clone(),
                ResourceType::Eds => self.named(&class, kind, &names.endpoints),
                ResourceType::Rds => self.named(&class, kind, &names.routes),
                ResourceType::Sds => self.named(&class, kind, &names.secrets),
                ResourceType::Ecds => self.named(&class, kind, &names.extensions),
                ResourceType::Nds if proxy.metadata.dns_capture => {
                    self.list(&class, kind, &Interest::Everything)
                }
                ResourceType::Nds => BTreeMap::new(),
            };
            output.insert(kind.list().to_owned(), list.into_values().collect());
        }
        Ok(Value::Object(output))
    }

    fn named(
        &self,
        class: &Arc<ClassKey>,
        kind: ResourceType,
        names: &BTreeSet<String>,
    ) -> BTreeMap<String, Value> {
        if names.is_empty() {
            return BTreeMap::new();
        }
        self.list(
            class,
            kind,
            &Interest::named(names.iter().map(String::as_str)),
        )
    }

    fn list(
        &self,
        class: &Arc<ClassKey>,
        kind: ResourceType,
        interest: &Interest,
    ) -> BTreeMap<String, Value> {
        let Some(served) = self.registry.get(kind.url()) else {
            return BTreeMap::new();
        };
        let set = served.generator().generate(&self.context, class, interest);
        set.iter()
            .map(|resource| {
                let json = envoy_json::json::to_json(kind.url(), resource.body())
                    .unwrap_or_else(|error| Value::String(error.to_string()));
                (resource.name().to_string(), json)
            })
            .collect()
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
