//! Annotations that only some objects may have (config-model.md §5).

use super::Scope;
use crate::Object;
use crate::api::security::AuthorizationAction;

/// Evaluates an authorization policy without enforcing it.
const DRY_RUN: &str = "istio.io/dry-run";

/// Annotations that only translators write.
const RESERVED: [&str; 3] = [
    "internal.istio.io/webhook-always-reject",
    "internal.istio.io/parents",
    "internal.istio.io/parent-namespace",
];

pub(super) fn validate(object: &Object, scope: &Scope<'_>) {
    if !object.kind().group().ends_with("istio.io") {
        return;
    }
    let root = scope.root("metadata");
    let annotations = root.field("annotations");
    let given = &object.meta().annotations;
    for key in RESERVED.iter().filter(|key| given.contains_key(**key)) {
        annotations.field(key).error("reserved for internal use");
    }
    let Some(value) = given.get(DRY_RUN) else {
        return;
    };
    let annotation = annotations.field(DRY_RUN);
    let Object::AuthorizationPolicy(policy) = object else {
        return annotation.error(format_args!(
            "only allowed on AuthorizationPolicy, not {}",
            object.kind()
        ));
    };
    // The spellings of Go's booleans.
    let spellings = [
        "1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False",
    ];
    if !spellings.contains(&value.as_str()) {
        annotation.error(format_args!(
            "{value:?} is not a boolean, allowed are true and false"
        ));
    }
    let action = policy.spec.action;
    if !matches!(
        action,
        AuthorizationAction::Allow | AuthorizationAction::Deny
    ) {
        annotation.error(format_args!(
            "only allowed for actions ALLOW and DENY, not {action}"
        ));
    }
}
