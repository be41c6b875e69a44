//! Identity and metadata of configuration objects.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use crate::{SmallMap, kind::Kind};

/// Identifies one input object: kind, namespace and name.
///
/// Ordered by kind, then namespace, then name, so that sets of keys have one spelling everywhere.
/// Cluster-scoped objects have an empty namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConfigKey {
    /// The kind of the object.
    pub kind: Kind,
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl ConfigKey {
    /// Makes a key from its parts.
    pub fn new(kind: Kind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ConfigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

impl fmt::Debug for ConfigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Namespace and name of an object whose kind is known from the context.
///
/// The order is (namespace, name), so that a table can be scanned by namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NamespacedName {
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
}

impl NamespacedName {
    /// Makes a name from its parts.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Returns the one copy of a namespace's name that all objects in it share.
///
/// Keys of objects and services are compared by namespace first, hundreds of thousands of times for a
/// large mesh; few names, each in one place, are all in the processor's cache.
pub fn namespace(name: &str) -> Arc<str> {
    static NAMES: LazyLock<Mutex<Names>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.known.get(name) {
        return known.clone();
    }
    if names.known.len() >= names.limit {
        // Names that nobody has any more.
        names.known.retain(|known| Arc::strong_count(known) > 1);
        names.limit = 2 * names.known.len().max(FEW_NAMES);
    }
    let name: Arc<str> = name.into();
    names.known.insert(name.clone());
    name
}

/// From how many names on unused ones are looked for.
const FEW_NAMES: usize = 1_000;

/// Names of namespaces in use.
#[derive(Default)]
struct Names {
    known: HashSet<Arc<str>>,
    /// How many there may be before unused ones are dropped.
    limit: usize,
}

/// Seconds since the Unix epoch; zero when an object states none.
///
/// Creation times order objects (config-model §6.4) and have a resolution of one second.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(pub i64);

/// String-to-string labels or annotations.
pub type Labels = SmallMap<String, String>;

/// Tells whether every entry of `selector` is present in `labels`. An empty selector matches.
pub fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(k, v)| labels.get(k) == Some(v))
}

/// Where an object was read from.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The file's path as the user gave it, or the cluster's name.
    pub source: Arc<str>,
    /// The document's first line in that file, from 1; 0 when the source has no lines.
    pub line: u32,
}

/// An object that another one belongs to.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Metadata of an object, as far as anything depends on it (config-model §2).
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Meta {
    /// The object's name.
    pub name: Arc<str>,
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
    /// Creation time, or zero.
    pub created: Timestamp,
    /// Unique id, empty in most files.
    pub uid: String,
    /// Opaque version of the stored object; empty in most files.
    pub resource_version: String,
    /// Generation of the spec; zero in most files.
    pub generation: i64,
    /// The name was generated (`generateName` is set): it says less than its owner's.
    pub generated_name: bool,
    /// The owner that controls the object, for example the `ReplicaSet` of a pod.
    pub controller: Option<Box<Owner>>,
    /// The object has a deletion time: it is on its way out.
    pub deleting: bool,
    /// The status as it was read, of kinds whose statuses the control plane writes
    /// ([`Kind::has_written_status`]); nothing that proxies get depends on it.
    pub status: Option<Arc<serde_json::Value>>,
    /// Where the object was read.
    pub origin: Origin,
}

impl Meta {
    /// Returns (namespace, name).
    pub fn namespaced_name(&self) -> NamespacedName {
        NamespacedName {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }

    /// The sort key of "creation order": creation time, then name, then namespace (config-model §6.4).
    pub fn creation_order(&self) -> (Timestamp, &str, &str) {
        (self.created, &self.name, &self.namespace)
    }
}

/// One configuration object: metadata and typed content.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Config<T> {
    /// Metadata.
    pub meta: Meta,
    /// The kind's own content: for Istio kinds the `spec`, for Kubernetes kinds all that is read.
    pub spec: T,
}
