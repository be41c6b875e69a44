//! Which providers log, and with which filter (telemetry-extensions §4).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Config,
    api::{
        Telemetry,
        common::WorkloadMode,
        telemetry::{AccessLogging, LogFilter},
    },
};

/// What one provider does.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Chosen {
    /// The name that it was referred to by.
    pub name: String,
    /// It logs nothing.
    pub disabled: bool,
    /// Only what this lets pass.
    pub filter: Option<LogFilter>,
}

/// Merges the objects of a workload for one side; `None` when nothing is said and there are no
/// default providers.
pub(super) fn choose(
    layers: &[Arc<Config<Telemetry>>],
    defaults: &[String],
    mode: WorkloadMode,
) -> Option<Vec<Chosen>> {
    let levels: Vec<&[AccessLogging]> = layers
        .iter()
        .map(|layer| layer.spec.access_logging.as_slice())
        .filter(|entries| !entries.is_empty())
        .collect();
    if levels.is_empty() {
        let all = |name: &String| Chosen {
            name: name.clone(),
            disabled: false,
            filter: None,
        };
        return (!defaults.is_empty()).then(|| defaults.iter().map(all).collect());
    }
    let mut in_scope: BTreeSet<&str> = defaults.iter().map(String::as_str).collect();
    let mut filters: BTreeMap<&str, Option<&LogFilter>> = BTreeMap::new();
    for level in &levels {
        let fitting = level.iter().filter(|entry| fits(entry, mode));
        let named: BTreeSet<&str> = fitting.clone().flat_map(names).collect();
        if !named.is_empty() {
            in_scope = named;
        }
        for entry in fitting {
            for name in names(entry) {
                filters.insert(name, entry.filter.as_ref());
            }
        }
    }
    let mut states: BTreeMap<&str, bool> = BTreeMap::new();
    let mut previous: Vec<&str> = defaults.iter().map(String::as_str).collect();
    for entry in levels.into_iter().flatten() {
        if !entry.providers.is_empty() {
            previous = names(entry).collect();
        }
        if fits(entry, mode) {
            for name in previous.iter().filter(|name| in_scope.contains(*name)) {
                states.insert(name, entry.disabled == Some(true));
            }
        }
    }
    let chosen = states.into_iter().map(|(name, disabled)| Chosen {
        name: name.to_owned(),
        disabled,
        filter: filters.get(name).copied().flatten().cloned(),
    });
    Some(chosen.collect())
}

fn names(entry: &AccessLogging) -> impl Iterator<Item = &str> {
    entry
        .providers
        .iter()
        .map(|provider| provider.name.as_str())
}

fn fits(entry: &AccessLogging, mode: WorkloadMode) -> bool {
    let wanted = entry.r#match.as_ref().map(|m| m.mode).unwrap_or_default();
    wanted == WorkloadMode::ClientAndServer || wanted == mode
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(
        layers: &Value,
        defaults: &[&str],
        mode: WorkloadMode,
        expected: Option<&[(&str, bool)]>,
    ) {
        let layers: Vec<_> = layers
            .as_array()
            .unwrap()
            .iter()
            .map(|entries| {
                let spec = json!({ "accessLogging": entries });
                let spec = model::api::decode(&spec).unwrap().value;
                Arc::new(Config {
                    spec,
                    ..Config::default()
                })
            })
            .collect();
        let defaults: Vec<String> = defaults.iter().map(|d| (*d).to_owned()).collect();
        let chosen = choose(&layers, &defaults, mode);
        let states = chosen.map(|list| {
            list.into_iter()
                .map(|c| (c.name, c.disabled))
                .collect::<Vec<_>>()
        });
        let expected = expected.map(|list| {
            list.iter()
                .map(|(name, off)| ((*name).to_owned(), *off))
                .collect::<Vec<_>>()
        });
        assert_eq!(states, expected);
    }

    #[test]
    fn names_are_inherited_from_the_entry_before() {
        let client = WorkloadMode::Client;
        let a = json!({"providers": [{"name": "a"}]});
        check(
            &json!([[a], [{"disabled": true}]]),
            &[],
            client,
            Some(&[("a", true)]),
        );
        check(
            &json!([[a], [{"providers": [{"name": "b"}]}]]),
            &[],
            client,
            Some(&[("b", false)]),
        );
        check(&json!([]), &[], client, None);
        check(&json!([[{"disabled": true}]]), &[], client, Some(&[]));
    }

    #[test]
    fn an_entry_for_the_other_side_names_but_does_not_count() {
        let layers = json!([[
            {"match": {"mode": "CLIENT"}, "providers": [{"name": "a"}]},
            {"match": {"mode": "SERVER"}, "disabled": true},
        ]]);
        check(&layers, &[], WorkloadMode::Server, Some(&[]));
    }
}
