//! One EnvoyFilter, prepared once per version (envoyfilter §3, §4).

use std::{collections::BTreeSet, sync::Arc};

use envoy_json::{
    json::{self, Unknown},
    merge::{self, Lists, MergeError},
};
use model::{
    Config, ConfigKey, Kind, Proxy,
    api::{
        EnvoyFilter,
        envoy_filter::{ApplyTo, ConfigMatch, ConfigPatch, Operation, PatchContext, ProxyMatch},
    },
    fingerprint,
};
use prost::{Message, Name};
use prost_reflect::DynamicMessage;
use regex::Regex;

use super::Pass;
use crate::admission::patched_message;

/// Longest expression for a version that is looked at.
const MAX_EXPRESSION: usize = 1024;

/// The patches of one filter, of the kinds that somebody asked for.
#[derive(Debug)]
pub(crate) struct PreparedFilter {
    /// Usable patches, in their order.
    pub patches: Vec<Arc<Patch>>,
    /// Metadata of proxies that they look at.
    pub metadata_keys: BTreeSet<String>,
}

/// One patch.
#[derive(Debug)]
pub(crate) struct Patch {
    /// The filter that it belongs to.
    pub source: ConfigKey,
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
    /// Prepares the patches of the wanted kinds; a patch that cannot be read is reported and left
    /// out.
    pub(super) fn new(filter: &Config<EnvoyFilter>, kinds: &[ApplyTo]) -> Self {
        let source = ConfigKey::new(
            Kind::EnvoyFilter,
            filter.meta.namespace.clone(),
            filter.meta.name.clone(),
        );
        let patches: Vec<Arc<Patch>> = filter
            .spec
            .config_patches
            .iter()
            .enumerate()
            .filter(|(_, patch)| kinds.contains(&patch.apply_to))
            .filter_map(|(index, patch)| match Patch::new(&source, patch) {
                Ok(patch) => patch.map(Arc::new),
                Err(error) => {
                    tracing::warn!(config = %source, index, %error, "patch skipped");
                    None
                }
            })
            .collect();
        let metadata_keys = patches
            .iter()
            .filter_map(|patch| patch.matching.proxy.as_ref())
            .flat_map(|proxy| proxy.metadata.keys().cloned())
            .collect();
        Self {
            patches,
            metadata_keys,
        }
    }
}

impl Patch {
    /// Prepares a patch; `None` when it says nothing.
    fn new(source: &ConfigKey, patch: &ConfigPatch) -> Result<Option<Self>, json::Error> {
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
            apply_to: patch.apply_to,
            operation,
            fingerprint: fingerprint::of(&(source, fingerprint::of_json(patch))),
            matching,
            value,
            version,
        }))
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
    pub(super) fn typed<M: Message + Name + Default>(&self) -> Option<M> {
        match self.value.as_ref().map(merge::to_typed) {
            Some(Ok(message)) => Some(message),
            Some(Err(error)) => {
                self.failed(&error);
                None
            }
            None => {
                self.failed(&"it has no value");
                None
            }
        }
    }

    /// Merges the value into a message; what cannot be merged is reported and leaves it as it is.
    pub(super) fn merge_into<M: Message + Name + Default>(&self, target: &mut M, lists: Lists) {
        let Some(value) = &self.value else {
            self.failed(&"it has no value");
            return;
        };
        if let Err(error) = merge::merge_typed(target, value, lists) {
            self.failed(&error);
        }
    }

    /// Reports that the patch could not be applied.
    pub(super) fn failed(&self, error: &dyn std::fmt::Display) {
        tracing::warn!(config = %self.source, apply_to = %self.apply_to, %error, "patch not applied");
    }

    /// Reports the outcome of a merge of packed messages.
    pub(super) fn check(&self, outcome: Result<(), MergeError>) {
        if let Err(error) = outcome {
            self.failed(&error);
        }
    }
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
            Regex::new(expression).map_or(Self::Any, Self::Matches)
        }
    }
}
