//! What an object applies to: selectors, target references, visibility.

use super::Scope;
use super::names;
use crate::api::common::{Labels, LabelsSelector, PolicyTargetReference, WorkloadSelector};

/// Kinds that a policy may attach to, as (group, kind).
const TARGET_KINDS: [(&str, &str); 4] = [
    ("", "Service"),
    ("networking.istio.io", "ServiceEntry"),
    ("gateway.networking.k8s.io", "Gateway"),
    ("gateway.networking.k8s.io", "GatewayClass"),
];

/// Most target references of one object.
const MAX_TARGETS: usize = 16;

/// Checks `selector.matchLabels`.
pub(crate) fn match_labels(scope: &Scope<'_>, selector: Option<&WorkloadSelector>) {
    if let Some(selector) = selector {
        selector_labels(&scope.field("matchLabels"), &selector.match_labels);
    }
}

/// Checks `workloadSelector.labels`.
pub(crate) fn labels(scope: &Scope<'_>, selector: Option<&LabelsSelector>) {
    if let Some(selector) = selector {
        selector_labels(&scope.field("labels"), &selector.labels);
    }
}

fn selector_labels(scope: &Scope<'_>, labels: &Labels) {
    if labels.is_empty() {
        scope.warning("the selector has no labels, so the object applies to the whole namespace");
    }
    for (key, value) in labels {
        if key.is_empty() {
            scope.error(format_args!("the label with value {value:?} has no key"));
        }
        if key.contains('*') || value.contains('*') {
            scope.error(format_args!(
                "wildcards are not supported in selectors: {key}={value}"
            ));
        }
    }
}

/// Checks that at most one of the three ways to attach a policy is used, and that one.
pub(crate) fn one_target(
    scope: &Scope<'_>,
    selector: Option<&WorkloadSelector>,
    target_ref: Option<&PolicyTargetReference>,
    target_refs: &[PolicyTargetReference],
) {
    match_labels(&scope.field("selector"), selector);
    if let Some(target) = target_ref {
        target_reference(&scope.field("targetRef"), target);
    }
    if target_refs.len() > MAX_TARGETS {
        scope.field("targetRefs").error(format_args!(
            "{} target references, at most {MAX_TARGETS} are allowed",
            target_refs.len()
        ));
    }
    scope.each("targetRefs", target_refs, target_reference);
    let used = [
        selector.is_some(),
        target_ref.is_some(),
        !target_refs.is_empty(),
    ];
    if used.iter().filter(|used| **used).count() > 1 {
        scope.error("only one of selector, targetRef and targetRefs can be set");
    }
}

fn target_reference(scope: &Scope<'_>, target: &PolicyTargetReference) {
    if target.name.is_empty() {
        scope.field("name").error("the target has no name");
    }
    if !target.namespace.is_empty() {
        scope.field("namespace").error(format_args!(
            "{:?} is not allowed: policies attach to resources of their own namespace",
            target.namespace
        ));
    }
    if !TARGET_KINDS.contains(&(target.group.as_str(), target.kind.as_str())) {
        scope.field("kind").error(format_args!(
            "cannot attach to kind {:?} of group {:?}; allowed are Service, ServiceEntry (networking.istio.io), \
             Gateway and GatewayClass (gateway.networking.k8s.io)",
            target.kind, target.group
        ));
    }
}

/// Which kind of object a list of `exportTo` belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exported {
    /// A service entry: may be hidden with `~`.
    ServiceEntry,
    /// A destination rule with a selector: only its own namespace.
    SelectingRule,
    /// Anything else.
    Other,
}

/// Checks `exportTo`.
pub(crate) fn export_to(scope: &Scope<'_>, export_to: &[String], namespace: &str, kind: Exported) {
    let mut seen: Vec<&str> = Vec::new();
    scope.each("exportTo", export_to, |scope, entry| {
        let key = if entry == "." { namespace } else { entry };
        if seen.contains(&key) {
            scope.error(format_args!("{entry:?} is given twice"));
            return;
        }
        seen.push(key);
        if kind == Exported::SelectingRule && key != namespace {
            scope.error(format_args!(
                "{entry:?} is not allowed: a rule with a workload selector applies to its own namespace only"
            ));
        } else if entry == "~" && kind != Exported::ServiceEntry {
            scope.error("\"~\" is only allowed for service entries");
        } else if !matches!(entry.as_str(), "." | "*" | "~") && !names::is_dns_label(entry) {
            scope.error(format_args!("{entry:?} is neither a namespace nor one of \".\", \"*\""));
        }
    });
    for alone in ["*", "~"] {
        if seen.len() > 1 && seen.contains(&alone) {
            scope.field("exportTo").error(format_args!(
                "{alone:?} cannot be given together with other entries"
            ));
        }
    }
}
