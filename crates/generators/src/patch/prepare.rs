//! One EnvoyFilter, prepared once for all that read it (envoyfilter §3, §4).

use std::{collections::BTreeSet, sync::Arc};

use envoy_json::{
    json::{self, Unknown},
    merge::{self, Lists},
};
use model::{
    Config, ConfigKey, Kind, Proxy,
    api::{
        EnvoyFilter,
        envoy_filter::{ApplyTo, ConfigMatch, ConfigPatch, Operation, PatchContext, ProxyMatch},
    },
    fingerprint,
    validation::is_re2,
};
use prost::{Message, Name};
use prost_reflect::DynamicMessage;
use pushctx::PatchId;
use regex::Regex;

use super::{Pass, Run};
use crate::admission::patched_message;

/// Longest expression for a version that is looked at.
const MAX_EXPRESSION: usize = 1024;

/// The patches of one filter.
#[derive(Debug)]
pub(crate) struct PreparedFilter {
    /// Usable patches, in their order.
    pub patches: Vec<Arc<Patch>>,
    /// Metadata of proxies that they look at.
    pub metadata_keys: BTreeSet<String>,
    /// Patches that cannot be used, with the reason.
    pub failures: Vec<(PatchId, String)>,
}

/// One patch.
#[derive(Debug)]
pub(crate) struct Patch {
    /// The filter that it belongs to.
    pub source: ConfigKey,
    /// Its position in the filter.
    index: usize,
    /// What it applies to.
    pub apply_to: ApplyTo,
    /// What it does. Inserting where there is no order is adding.
    pub operation: Operation,
    /// Where it applies.
    pub matching: ConfigMatch,
    /// Its value; `None` when it states none.
    pub value: Option<DynamicMessage>,
    /// Hash of all of the above.
    pub fingerprint: u64,
    /// It sets the name by which others find the resource.
    pub changes_keys: bool,
    version: VersionCondition,
}

/// What a patch asks of a proxy's version.
#[derive(Debug)]
enum VersionCondition {
    Any,
    Nothing,
    Matches(Regex),
}

impl PreparedFilter {
    /// Returns the patches of a filter, which keeps them from the first time on.
    pub(crate) fn of(filter: &Config<EnvoyFilter>) -> Arc<Self> {
        filter.spec.compiled.get_or_init(|| Self::new(filter))
    }

    /// Prepares all patches; one that cannot be read is left out.
    pub(super) fn new(filter: &Config<EnvoyFilter>) -> Self {
        let source = ConfigKey::new(
            Kind::EnvoyFilter,
            filter.meta.namespace.clone(),
            filter.meta.name.clone(),
        );
        let (mut patches, mut failures) = (Vec::new(), Vec::new());
        for (index, patch) in filter.spec.config_patches.iter().enumerate() {
            match Patch::new(&source, index, patch) {
                Ok(patch) => patches.extend(patch.map(Arc::new)),
                Err(error) => {
                    let id = PatchId {
                        filter: source.clone(),
                        index,
                        apply_to: patch.apply_to,
                    };
                    failures.push((id, error.to_string()));
                }
            }
        }
        let metadata_keys = patches
            .iter()
            .filter_map(|patch| patch.matching.proxy.as_ref())
            .flat_map(|proxy| proxy.metadata.keys().cloned())
            .collect();
        Self {
            patches,
            metadata_keys,
            failures,
        }
    }
}

impl Patch {
    /// Prepares a patch; `None` when it says nothing.
    fn new(
        source: &ConfigKey,
        index: usize,
        patch: &ConfigPatch,
    ) -> Result<Option<Self>, json::Error> {
        let Some(content) = &patch.patch else {
            return Ok(None);
        };
        let Some(message) = patched_message(patch.apply_to) else {
            return Ok(None);
        };
        let value = content
            .value
            .as_ref()
            .map(|value| json::from_json(message, value, Unknown::Ignore))
            .transpose()?;
        let operation = match content.operation {
            Operation::InsertBefore | Operation::InsertAfter | Operation::InsertFirst
                if !is_ordered(patch.apply_to) =>
            {
                Operation::Add
            }
            operation => operation,
        };
        let matching = patch.r#match.clone().unwrap_or_default();
        let version = VersionCondition::of(matching.proxy.as_ref());
        Ok(Some(Self {
            source: source.clone(),
            index,
            apply_to: patch.apply_to,
            operation,
            fingerprint: fingerprint::of(&(source, index, fingerprint::of_json(patch))),
            changes_keys: renames(patch.apply_to, value.as_ref()),
            matching,
            value,
            version,
        }))
    }

    /// What the patch is called in reports.
    pub(super) fn id(&self) -> PatchId {
        PatchId {
            filter: self.source.clone(),
            index: self.index,
            apply_to: self.apply_to,
        }
    }

    /// Tells whether the patch is for this proxy.
    pub(super) fn suits(&self, proxy: &Proxy) -> bool {
        let Some(condition) = &self.matching.proxy else {
            return true;
        };
        let version = &proxy.metadata.istio_version;
        let version_fits = match &self.version {
            VersionCondition::Any => true,
            VersionCondition::Nothing => false,
            VersionCondition::Matches(regex) => !version.is_empty() && regex.is_match(version),
        };
        version_fits
            && condition.metadata.iter().all(|(key, value)| {
                proxy
                    .raw_metadata
                    .get(key)
                    .and_then(serde_json::Value::as_str)
                    == Some(value)
            })
    }

    /// Tells whether the patch is for resources of this pass.
    pub(super) fn is_for(&self, pass: Pass) -> bool {
        match self.matching.context {
            PatchContext::Any => true,
            PatchContext::SidecarInbound => pass == Pass::SidecarInbound,
            PatchContext::SidecarOutbound => pass == Pass::SidecarOutbound,
            PatchContext::Gateway => pass == Pass::Gateway,
            PatchContext::Waypoint => false,
        }
    }

    /// Tells whether the patch adds a whole resource in this pass.
    pub(super) fn adds_in(&self, pass: Pass) -> bool {
        self.operation == Operation::Add
            && self.is_for(pass)
            && (self.matching.context != PatchContext::Any || pass.adds_any())
    }

    /// How the patch merges; `None` when it does something else.
    pub(super) fn merges(&self) -> Option<Lists> {
        match self.operation {
            Operation::Merge => Some(Lists::Append),
            Operation::MergeAndReplaceList => Some(Lists::Replace),
            _ => None,
        }
    }

    /// The value as a message of a Rust type; `None`, and reported, when there is none.
    pub(super) fn typed<M: Message + Name + Default>(self: &Arc<Self>, run: &Run) -> Option<M> {
        match self.value.as_ref().map(merge::to_typed) {
            Some(Ok(message)) => Some(message),
            Some(Err(error)) => {
                run.failed(self, &error);
                None
            }
            None => {
                run.failed(self, &NO_VALUE);
                None
            }
        }
    }

    /// Merges the value into a message; what cannot be merged is reported and leaves it as it is.
    /// Tells whether it was merged.
    pub(super) fn merge_into<M: Message + Name + Default>(
        self: &Arc<Self>,
        target: &mut M,
        lists: Lists,
        run: &Run,
    ) -> bool {
        let Some(value) = &self.value else {
            run.failed(self, &NO_VALUE);
            return false;
        };
        match merge::merge_typed(target, value, lists) {
            Ok(()) => {
                run.applied(self);
                true
            }
            Err(error) => {
                run.failed(self, &error);
                false
            }
        }
    }
}

/// Why a patch of most operations fails that states no value.
const NO_VALUE: &str = "it has no value";

/// Tells whether merging a value changes the name by which patches find a whole resource. What is in
/// a resource is found among the patches that reach the resource.
fn renames(apply_to: ApplyTo, value: Option<&DynamicMessage>) -> bool {
    matches!(apply_to, ApplyTo::Cluster | ApplyTo::RouteConfiguration)
        && value.is_some_and(|value| value.has_field_by_name("name"))
}

/// Tells whether the place within a list means something for these.
const fn is_ordered(apply_to: ApplyTo) -> bool {
    matches!(
        apply_to,
        ApplyTo::HttpFilter | ApplyTo::NetworkFilter | ApplyTo::HttpRoute | ApplyTo::ListenerFilter
    )
}

impl VersionCondition {
    fn of(proxy: Option<&ProxyMatch>) -> Self {
        let expression = proxy.map_or("", |p| p.proxy_version.as_str());
        if expression.is_empty() {
            Self::Any
        } else if expression.chars().count() > MAX_EXPRESSION {
            Self::Nothing
        } else {
            match Regex::new(expression) {
                Ok(regex) => Self::Matches(regex),
                // What no RE2 engine reads is no condition (§3); what only ours does not read is met
                // by nobody.
                Err(_) if is_re2(expression) => Self::Nothing,
                Err(_) => Self::Any,
            }
        }
    }
}
