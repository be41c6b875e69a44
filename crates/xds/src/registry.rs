//! Which types are served, by whom, and what the protocol has to know about each.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

use linkme::distributed_slice;

use crate::{Generator, World, type_url};

/// Generators that linked crates contribute. Only the binary reads it, once.
#[distributed_slice]
pub static XDS_GENERATORS: [Registration];

/// One contribution to [`XDS_GENERATORS`]: plain data and a function pointer.
///
/// ```ignore
/// #[distributed_slice(XDS_GENERATORS)]
/// static CDS: Registration =
///     Registration::new(TYPE_URL, module_path!(), TypeFacts::CLUSTERS, || boxed::<Mesh>(Cds));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    type_url: &'static str,
    module: &'static str,
    facts: TypeFacts,
    build: fn() -> Box<dyn Any + Send + Sync>,
}

impl Registration {
    /// Registers the generator that `build` makes (see [`boxed`]) for `type_url`.
    pub const fn new(
        type_url: &'static str,
        module: &'static str,
        facts: TypeFacts,
        build: fn() -> Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self {
            type_url,
            module,
            facts,
            build,
        }
    }
}

/// Wraps a generator for a [`Registration`].
pub fn boxed<W: World>(generator: impl Generator<W> + 'static) -> Box<dyn Any + Send + Sync> {
    Box::new(Box::new(generator) as Box<dyn Generator<W>>)
}

/// When a type is sent within a push. The order of the variants is the order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PushOrder {
    /// Clusters; their removals wait for listeners and routes.
    Clusters,
    /// Endpoints of clusters.
    Endpoints,
    /// Listeners.
    Listeners,
    /// Routes.
    Routes,
    /// Secrets.
    Secrets,
    /// Any other type, by rank, then by type URL.
    Other(u8),
}

/// Whether clients are told that a resource no longer exists (delta `removed_resources`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// They are told.
    Reported,
    /// They are not: the client drops the resource with what refers to it.
    Never,
}

/// What the protocol has to know about a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeFacts {
    /// When it is sent within a push.
    pub order: PushOrder,
    /// Whether a request without names means "everything". In SotW a response of such a type
    /// states all resources, and what is absent is gone; of other types it states what differs.
    pub wildcard: bool,
    /// Whether clients are told of removals.
    pub removal: Removal,
    /// The type that clients wait for after they received a new or changed resource of this one
    /// (endpoints after clusters): it is sent again, changed or not.
    pub warms: Option<&'static str>,
    /// Whether requests are answered at once without a subscription, a nonce or pushes.
    pub transient: bool,
}

impl TypeFacts {
    /// Facts of a type that can be subscribed to as a whole and comes after those of Envoy.
    pub const WILDCARD: Self = Self {
        order: PushOrder::Other(128),
        wildcard: true,
        removal: Removal::Reported,
        warms: None,
        transient: false,
    };
    /// Facts of a type whose resources are asked for by name.
    pub const NAMED: Self = Self {
        wildcard: false,
        ..Self::WILDCARD
    };
    /// Clusters (CDS).
    pub const CLUSTERS: Self = Self {
        warms: Some(type_url::ENDPOINT),
        ..Self::WILDCARD.at(PushOrder::Clusters)
    };
    /// Endpoints (EDS). Envoy drops them together with their clusters.
    pub const ENDPOINTS: Self = Self {
        removal: Removal::Never,
        ..Self::NAMED.at(PushOrder::Endpoints)
    };
    /// Listeners (LDS).
    pub const LISTENERS: Self = Self::WILDCARD.at(PushOrder::Listeners);
    /// Routes (RDS).
    pub const ROUTES: Self = Self::NAMED.at(PushOrder::Routes);
    /// Secrets (SDS).
    pub const SECRETS: Self = Self::NAMED.at(PushOrder::Secrets);
    /// Extension configurations (ECDS). A draining listener may still refer to one that is gone.
    pub const EXTENSIONS: Self = Self {
        removal: Removal::Never,
        ..Self::NAMED
    };
    /// Facts of a type that is asked and answered without a subscription, such as debug queries.
    pub const TRANSIENT: Self = Self {
        transient: true,
        ..Self::WILDCARD
    };

    /// Returns the same facts with another place in the push order.
    #[must_use]
    pub const fn at(mut self, order: PushOrder) -> Self {
        self.order = order;
        self
    }
}

/// The types that one server serves.
pub struct Registry<W: World> {
    types: Vec<ServedType<W>>,
    by_url: BTreeMap<&'static str, usize>,
}

/// One type of a [`Registry`].
pub struct ServedType<W: World> {
    type_url: &'static str,
    module: &'static str,
    facts: TypeFacts,
    generator: Box<dyn Generator<W>>,
}

impl<W: World> ServedType<W> {
    /// Returns the type URL.
    pub fn type_url(&self) -> &'static str {
        self.type_url
    }

    /// Returns the module that registered the generator.
    pub fn module(&self) -> &'static str {
        self.module
    }

    /// Returns what the protocol has to know about the type.
    pub fn facts(&self) -> TypeFacts {
        self.facts
    }

    /// Returns the generator, also for use without a server.
    pub fn generator(&self) -> &dyn Generator<W> {
        &*self.generator
    }
}

impl<W: World> fmt::Debug for ServedType<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.type_url, self.module)
    }
}

impl<W: World> Registry<W> {
    /// Builds the generators of `registrations`.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`] when two modules serve one type URL,
    /// [`RegistryError::OtherWorld`] when a generator belongs to another world.
    pub fn new(
        registrations: impl IntoIterator<Item = Registration>,
    ) -> Result<Self, RegistryError> {
        let mut types: Vec<ServedType<W>> = Vec::new();
        for Registration {
            type_url,
            module,
            facts,
            build,
        } in registrations
        {
            let Ok(generator) = build().downcast::<Box<dyn Generator<W>>>() else {
                return Err(RegistryError::OtherWorld { type_url, module });
            };
            types.push(ServedType {
                type_url,
                module,
                facts,
                generator: *generator,
            });
        }
        // Link order changes with codegen units; the push order must not.
        types.sort_by(|a, b| {
            (a.facts.order, a.type_url, a.module).cmp(&(b.facts.order, b.type_url, b.module))
        });
        let mut by_url: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (index, served) in types.iter().enumerate() {
            if let Some(other) = by_url.insert(served.type_url, index) {
                let mut modules = [types.get(other).map_or("", |t| t.module), served.module];
                modules.sort_unstable();
                let [first, second] = modules;
                return Err(RegistryError::Duplicate {
                    type_url: served.type_url,
                    first,
                    second,
                });
            }
        }
        Ok(Self { types, by_url })
    }

    /// Returns the served types in push order.
    pub fn types(&self) -> &[ServedType<W>] {
        &self.types
    }

    /// Returns the type with this URL.
    pub fn get(&self, type_url: &str) -> Option<&ServedType<W>> {
        self.types.get(*self.by_url.get(type_url)?)
    }
}

impl<W: World> fmt::Debug for Registry<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.types).finish()
    }
}

/// Why a registry was refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Two modules serve one type URL.
    #[error("{type_url} is served by both {first} and {second}")]
    Duplicate {
        /// The type URL.
        type_url: &'static str,
        /// One of the modules.
        first: &'static str,
        /// The other one.
        second: &'static str,
    },
    /// A generator was registered for another world.
    #[error("the generator of {type_url} in {module} belongs to another world")]
    OtherWorld {
        /// The type URL.
        type_url: &'static str,
        /// The module that registered it.
        module: &'static str,
    },
}
