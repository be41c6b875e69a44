//! What EnvoyFilters do: resources are built for the proxies of the mesh, and whoever touches none of
//! them hears why.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use intake::{Finding, Severity};
use model::{
    Config, ConfigKey, Kind, MeshState, Proxy,
    api::{
        EnvoyFilter,
        envoy_filter::{ApplyTo, ConfigPatch, PatchContext},
    },
};
use pushctx::{PatchId, PatchOutcome, PatchTarget};

use super::proxies::{self, VERSION};
use crate::generate::Generator;

/// Classes that resources are built for; a mesh of 1 000 Deployments has about as many.
const MAX_CLASSES: usize = 1_000;

/// What is known of the EnvoyFilters of a mesh.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Effects {
    /// What each filter does, by namespace and name.
    pub filters: Vec<Effect>,
    /// Patches that do nothing, or not everywhere what they should.
    pub findings: Vec<Finding>,
}

/// What one EnvoyFilter does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effect {
    /// The filter.
    pub filter: ConfigKey,
    /// Resources that its patches change, add or remove, counted for each class of proxies; one that
    /// several patches touch counts once for each.
    pub resources: u64,
    /// Classes of proxies whose resources these are.
    pub classes: usize,
    /// Classes that it attaches to.
    pub attached: usize,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            filter,
            resources,
            classes,
            attached,
        } = self;
        let (namespace, name) = (&filter.namespace, &filter.name);
        write!(
            f,
            "EnvoyFilter {namespace}/{name}: touches {resources} resources in {classes} of {attached} classes of proxies"
        )
    }
}

/// Builds what the proxies of the mesh receive, and tells what the EnvoyFilters did to it.
///
/// Proxies are those of pods and WorkloadEntries; for a filter that attaches to none of these, the
/// ones that it names itself.
///
/// # Errors
/// When two generators claim one type.
pub fn effects(state: &MeshState) -> anyhow::Result<Effects> {
    let filters = &state.objects.envoy_filters;
    if filters.is_empty() {
        return Ok(Effects::default());
    }
    let generator = Generator::new(state.clone())?;
    let context = generator.context();
    context.patch_outcomes().track(true);
    let mut attached: BTreeMap<ConfigKey, BTreeSet<u64>> = BTreeMap::new();
    // One proxy for each class.
    let mut classes: BTreeMap<u64, Proxy> = BTreeMap::new();
    let mut add = |proxy: Proxy, attached: &mut BTreeMap<ConfigKey, BTreeSet<u64>>| {
        let class = context.classify(&proxy);
        let workload = context.resolve(&class);
        let to_class = context.envoy_filters(&workload.workload(), &PatchTarget::ALL);
        let known = classes.contains_key(&class.fingerprint);
        if to_class.is_empty() || (!known && classes.len() >= MAX_CLASSES) {
            return;
        }
        for filter in to_class {
            let classes = attached.entry(key(&filter)).or_default();
            classes.insert(class.fingerprint);
        }
        classes.entry(class.fingerprint).or_insert(proxy);
    };
    for proxy in proxies::of_workloads(state) {
        add(proxy, &mut attached);
    }
    for filter in filters.values() {
        if !attached.contains_key(&key(filter)) {
            for proxy in proxies::assumed(state, filter) {
                add(proxy, &mut attached);
            }
        }
    }
    for proxy in classes.values() {
        generator.receive(proxy);
    }
    let outcomes = context.patch_outcomes().take();
    let mut effects = Effects::default();
    for filter in filters.values() {
        let key = key(filter);
        let attached = attached.get(&key).map_or(0, BTreeSet::len);
        effects.add(filter, key, attached, &outcomes);
    }
    Ok(effects)
}

fn key(filter: &Config<EnvoyFilter>) -> ConfigKey {
    let meta = &filter.meta;
    ConfigKey::new(Kind::EnvoyFilter, meta.namespace.clone(), meta.name.clone())
}

impl Effects {
    fn add(
        &mut self,
        filter: &Config<EnvoyFilter>,
        key: ConfigKey,
        attached: usize,
        outcomes: &BTreeMap<PatchId, PatchOutcome>,
    ) {
        let none = PatchOutcome::default();
        let (mut resources, mut classes) = (0, BTreeSet::<u64>::new());
        for (index, patch) in filter.spec.config_patches.iter().enumerate() {
            let id = PatchId {
                filter: key.clone(),
                index,
                apply_to: patch.apply_to,
            };
            let outcome = outcomes.get(&id).unwrap_or(&none);
            resources += outcome.resources;
            classes.extend(&outcome.classes);
            let field = format!("spec.configPatches[{index}]");
            for reason in complaints(patch, outcome, attached) {
                self.findings.push(Finding {
                    kind: Kind::EnvoyFilter.name().to_owned(),
                    namespace: filter.meta.namespace.to_string(),
                    name: filter.meta.name.to_string(),
                    origin: filter.meta.origin.clone(),
                    field: field.clone(),
                    reason,
                    severity: Severity::Warning,
                });
            }
        }
        self.filters.push(Effect {
            filter: key,
            resources,
            classes: classes.len(),
            attached,
        });
    }
}

/// What there is to say about one patch: why it is left out, and why it touches nothing.
fn complaints(patch: &ConfigPatch, outcome: &PatchOutcome, attached: usize) -> Vec<String> {
    let failures = outcome.failures.iter();
    let mut complaints: Vec<String> = failures
        .map(|reason| format!("skipped where it does not fit: {reason}"))
        .collect();
    if outcome.resources > 0 || !complaints.is_empty() {
        return complaints;
    }
    let matching = patch.r#match.as_ref();
    let context = matching.map(|m| m.context).unwrap_or_default();
    let reason = if patch.apply_to == ApplyTo::Bootstrap {
        "the control plane does not patch bootstraps".to_owned()
    } else if context == PatchContext::Waypoint && patch.apply_to != ApplyTo::ExtensionConfig {
        "context WAYPOINT never applies, waypoints are SIDECAR_INBOUND".to_owned()
    } else if attached == 0 {
        "the filter attaches to no proxy".to_owned()
    } else if outcome.misses.is_empty() {
        let proxy = matching.and_then(|m| m.proxy.as_ref());
        let assumed = match proxy {
            Some(_) => format!(" (match.proxy is tested for version {VERSION})"),
            None => String::new(),
        };
        format!("matches nothing that is built for {attached} classes of proxies{assumed}")
    } else {
        let misses: Vec<&str> = outcome.misses.iter().map(String::as_str).collect();
        misses.join("; ")
    };
    complaints.push(format!("touches no resource: {reason}"));
    complaints
}
