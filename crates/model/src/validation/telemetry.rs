//! Telemetry (telemetry-extensions.md §18).

use serde_json::Value;

use super::{Scope, cel, selectors, traffic};
use crate::api::telemetry::{
    AccessLogging, CustomTag, Metrics, ProviderRef, TagOperation, Telemetry, Tracing,
};

pub(super) fn validate(spec: &Telemetry, raw: Option<&Value>, scope: &Scope<'_>) {
    selectors::one_target(
        scope,
        spec.selector.as_ref(),
        spec.target_ref.as_ref(),
        &spec.target_refs,
    );
    if spec.tracing.len() > 1 {
        scope.field("tracing").warning(format_args!(
            "{} entries, only one is used",
            spec.tracing.len()
        ));
    }
    let raw_entry = |list: &str, index: usize, inner: &str| raw?.get(list)?.get(index)?.get(inner);
    let mut index = 0;
    scope.each("tracing", &spec.tracing, |scope, entry| {
        let tags = raw_entry("tracing", index, "customTags").and_then(Value::as_object);
        for (name, _) in tags.into_iter().flatten().filter(|(_, tag)| tag.is_null()) {
            scope
                .field("customTags")
                .field(name)
                .error("the tag is null");
        }
        index += 1;
        tracing(scope, entry);
    });
    let mut index = 0;
    scope.each("metrics", &spec.metrics, |scope, entry| {
        let overrides = raw_entry("metrics", index, "overrides").and_then(Value::as_array);
        for (at, _) in overrides
            .into_iter()
            .flatten()
            .enumerate()
            .filter(|(_, change)| change.is_null())
        {
            scope
                .field("overrides")
                .index(at)
                .error("the override is null");
        }
        index += 1;
        metrics(scope, entry);
    });
    scope.each("accessLogging", &spec.access_logging, access_logging);
}

fn providers(scope: &Scope<'_>, providers: &[ProviderRef]) {
    scope.each("providers", providers, |scope, provider| {
        if provider.name.is_empty() {
            scope.field("name").error("the provider has no name");
        }
    });
}

fn tracing(scope: &Scope<'_>, tracing: &Tracing) {
    providers(scope, &tracing.providers);
    if tracing.providers.len() > 1 {
        scope.field("providers").warning(format_args!(
            "{} providers, only one is used",
            tracing.providers.len()
        ));
    }
    if let Some(percentage) = tracing.random_sampling_percentage
        && !(0.0..=100.0).contains(&percentage)
    {
        scope.field("randomSamplingPercentage").error(format_args!(
            "{percentage} is not a percentage, allowed are 0 to 100"
        ));
    }
    let Some(tags) = &tracing.custom_tags else {
        return;
    };
    scope.entries("customTags", tags, |scope, name, tag| {
        if name.is_empty() {
            scope.error("the tag has no name");
        }
        custom_tag(scope, tag);
    });
}

fn custom_tag(scope: &Scope<'_>, tag: &CustomTag) {
    let members = [
        (
            "literal",
            "value",
            tag.literal.as_ref().map(|tag| &tag.value),
        ),
        (
            "environment",
            "name",
            tag.environment.as_ref().map(|tag| &tag.name),
        ),
        ("header", "name", tag.header.as_ref().map(|tag| &tag.name)),
        (
            "formatter",
            "value",
            tag.formatter.as_ref().map(|tag| &tag.value),
        ),
    ];
    let given: Vec<_> = members
        .iter()
        .filter(|(_, _, text)| text.is_some())
        .collect();
    if given.len() > 1 {
        scope.error("only one of literal, environment, header and formatter can be set");
    }
    for (member, key, text) in members {
        if text.is_some_and(String::is_empty) {
            scope.field(member).field(key).error("must not be empty");
        }
    }
}

fn metrics(scope: &Scope<'_>, metrics: &Metrics) {
    providers(scope, &metrics.providers);
    traffic::optional_duration(scope, "reportingInterval", metrics.reporting_interval);
    scope.each("overrides", &metrics.overrides, |scope, change| {
        scope.entries("tagOverrides", &change.tag_overrides, |scope, name, tag| {
            if name.is_empty() {
                scope.warning("the tag has no name");
            }
            match tag.operation {
                TagOperation::Upsert if tag.value.is_empty() => {
                    scope
                        .field("value")
                        .error("must be set for operation UPSERT");
                }
                TagOperation::Remove if !tag.value.is_empty() => {
                    scope
                        .field("value")
                        .error("not allowed for operation REMOVE");
                }
                TagOperation::Upsert | TagOperation::Remove => {}
            }
        });
        if let Some(selector) = &change.r#match {
            let scope = scope.field("match");
            if selector.custom_metric.as_deref() == Some("") {
                scope.field("customMetric").error("must not be empty");
            }
            if selector.metric.is_some() && selector.custom_metric.is_some() {
                scope
                    .field("customMetric")
                    .error("cannot be combined with metric");
            }
        }
    });
}

fn access_logging(scope: &Scope<'_>, logging: &AccessLogging) {
    providers(scope, &logging.providers);
    if let Some(filter) = &logging.filter
        && let Err(reason) = cel::check(&filter.expression)
    {
        scope
            .field("filter")
            .field("expression")
            .error(format_args!(
                "{:?} is not a CEL expression: {reason}",
                filter.expression
            ));
    }
}
