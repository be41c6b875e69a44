//! A file of settings (`--settings`), which wins over the environment.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

use super::{Settings, Source};

/// The values of a settings file: one YAML mapping of variables to values, such as a `ConfigMap` that
/// is mounted. A variable without a value counts as not there.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct SettingsFile {
    path: PathBuf,
    text: String,
    values: BTreeMap<String, String>,
}

impl SettingsFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no mapping of names to single values: with file, line and reason.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("read the settings file {}", path.display()))?;
        Self::parse(path, text)
    }

    /// Reads the text of a file.
    pub(crate) fn parse(path: &Path, text: String) -> anyhow::Result<Self> {
        let name = path.display();
        let documents = intake::yaml_values(&text)
            .map_err(|e| anyhow!("{name}:{}: column {}: {}", e.line, e.column, e.reason))?;
        let mut file = Self {
            path: path.to_owned(),
            text,
            values: BTreeMap::new(),
        };
        for document in documents {
            let Value::Object(fields) = document else {
                bail!("{name}: a settings file maps names of variables to values");
            };
            for (variable, value) in fields {
                let value = match value {
                    Value::Null => continue,
                    Value::String(text) => text,
                    Value::Bool(_) | Value::Number(_) => value.to_string(),
                    Value::Array(_) | Value::Object(_) => {
                        bail!("{}: not a single value", file.place(&variable))
                    }
                };
                file.values.insert(variable, value);
            }
        }
        file.values.retain(|_, value| !value.is_empty());
        Ok(file)
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text that was read.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Resolves all settings from this file and, for what it does not say, from `environment`.
    ///
    /// # Errors
    /// One entry for each bad value and each variable of the file that is no setting, with its place.
    pub fn resolve(&self, environment: &impl Source) -> Result<Settings, Vec<String>> {
        let asked = RefCell::new(BTreeSet::new());
        let source = |variable: &str| {
            asked.borrow_mut().insert(variable.to_owned());
            let own = self.values.get(variable).cloned();
            own.or_else(|| environment.get(variable))
        };
        let resolved = Settings::resolve(&source);
        let asked = asked.into_inner();
        let mut errors: Vec<String> = self
            .values
            .keys()
            .filter(|variable| !asked.contains(*variable))
            .map(|variable| format!("{}: not a setting", self.place(variable)))
            .collect();
        match resolved {
            Ok(settings) if errors.is_empty() => Ok(settings),
            resolved => {
                errors.extend(resolved.err().into_iter().flatten().map(|error| {
                    if self.values.contains_key(error.variable) {
                        let place = self.place(error.variable);
                        format!("{place}: {:?} is not {}", error.value, error.expected)
                    } else {
                        error.to_string()
                    }
                }));
                Err(errors)
            }
        }
    }

    /// The variables whose values differ between two files.
    pub(crate) fn differences<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        let names = self.values.keys().chain(other.values.keys());
        names
            .filter(|name| self.values.get(*name) != other.values.get(*name))
            .map(String::as_str)
            .collect()
    }

    fn place(&self, variable: &str) -> String {
        let name = self.path.display();
        match intake::yaml_line(&self.text, variable) {
            Some(line) => format!("{name}:{line}: {variable}"),
            None => format!("{name}: {variable}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// An environment with one variable.
    fn environment(variable: &str) -> Option<String> {
        (variable == "PILOT_DEBOUNCE_MAX").then(|| "3s".to_owned())
    }

    fn resolve(text: &str) -> Result<Settings, Vec<String>> {
        SettingsFile::parse(Path::new("s.yaml"), text.to_owned())
            .map_err(|error| vec![error.to_string()])?
            .resolve(&environment)
    }

    #[track_caller]
    fn check_error(text: &str, expected: &[&str]) {
        assert_eq!(resolve(text).unwrap_err(), expected);
    }

    #[test]
    fn the_file_wins_and_the_environment_fills_in() {
        let settings = resolve(
            "PILOT_DEBOUNCE_AFTER: 7ms\nPILOT_ENABLE_NAMESPACE_THROTTLE: true\nPILOT_PUSH_THROTTLE: 9\n",
        )
        .unwrap();
        assert_eq!(settings.debounce_after, Duration::from_millis(7));
        assert_eq!(settings.debounce_max, Duration::from_secs(3));
        assert!(settings.throttle.enabled);
        assert_eq!(settings.push_throttle, 9);
        let settings = resolve("PILOT_DEBOUNCE_MAX: 4s\nPILOT_DEBOUNCE_AFTER:\n").unwrap();
        assert_eq!(settings.debounce_max, Duration::from_secs(4));
        assert_eq!(settings.debounce_after, Duration::from_millis(100));
        resolve("").unwrap();
    }

    #[test]
    fn everything_wrong_is_named_with_its_place() {
        check_error(
            "PILOT_DEBOUNCE_AFTRE: 1s\nPILOT_DEBOUNCE_AFTER: soon\n",
            &[
                "s.yaml:1: PILOT_DEBOUNCE_AFTRE: not a setting",
                "s.yaml:2: PILOT_DEBOUNCE_AFTER: \"soon\" is not a duration that is not negative, \
                 such as 100ms",
            ],
        );
        check_error(
            "PILOT_DEBOUNCE_AFTER: 4s\n",
            &["PILOT_DEBOUNCE_MAX: \"3s\" is not at least PILOT_DEBOUNCE_AFTER"],
        );
        check_error(
            "\nREVISION: [a]\n",
            &["s.yaml:2: REVISION: not a single value"],
        );
        check_error(
            "[]",
            &["s.yaml: a settings file maps names of variables to values"],
        );
    }

    #[test]
    fn differences_name_the_variables() {
        let file = |text: &str| SettingsFile::parse(Path::new("s"), text.to_owned()).unwrap();
        let (old, new) = (file("{A: 1, B: 2, C: 3}"), file("{A: 1, B: 3, D: 4}"));
        assert_eq!(old.differences(&new), BTreeSet::from(["B", "C", "D"]));
    }
}
