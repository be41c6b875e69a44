//! Files beside a cluster: an object that both have is the cluster's (config-model §6.1).

use std::collections::{BTreeMap, BTreeSet};

use model::{ConfigKey, Object};

use crate::intake::Change;

/// Who has which objects. Nothing is kept while there is only one who has any.
#[derive(Default, Debug)]
pub(crate) struct Layers {
    /// What files have; `None` when there are no files beside a cluster.
    files: Option<BTreeMap<ConfigKey, Object>>,
    /// What the cluster has.
    cluster: BTreeSet<ConfigKey>,
}

impl Layers {
    /// Takes changes of files; returns those that count.
    pub(crate) fn of_files(&mut self, changes: Vec<Change>) -> Vec<Change> {
        let files = self.files.get_or_insert_default();
        let counts = |change: &Change| match change {
            Change::Apply(object) => {
                let key = object.key();
                let counts = !self.cluster.contains(&key);
                files.insert(key, object.clone());
                counts
            }
            Change::Delete(key) => {
                files.remove(key);
                !self.cluster.contains(key)
            }
            _ => true,
        };
        let mut changes = changes;
        changes.retain(counts);
        changes
    }

    /// Takes a change of the cluster; returns the one that counts.
    pub(crate) fn of_cluster(&mut self, change: Change) -> Change {
        let Some(files) = &self.files else {
            return change;
        };
        match &change {
            Change::Apply(object) => {
                self.cluster.insert(object.key());
            }
            Change::Delete(key) => {
                self.cluster.remove(key);
                if let Some(object) = files.get(key) {
                    return Change::Apply(object.clone());
                }
            }
            _ => {}
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Decoder, Intake, Options};

    fn rule(host: &str) -> Change {
        let text = format!(
            "{{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: r, namespace: a}}, spec: {{host: {host}}}}}"
        );
        Change::Apply(Decoder::default().decode("test", &text).objects.remove(0))
    }

    fn gone() -> Change {
        Change::Delete(ConfigKey::new(model::Kind::DestinationRule, "a", "r"))
    }

    fn files(change: Change) -> Change {
        Change::Files(vec![change])
    }

    /// The host of the rule that counts after some changes.
    #[track_caller]
    fn check(changes: impl IntoIterator<Item = Change>, expected: Option<&str>) {
        #[expect(clippy::disallowed_methods, reason = "an arbitrary point in time")]
        let now = Instant::now();
        let mut intake = Intake::new(Options::default());
        for change in changes {
            intake.apply([change], now);
        }
        let state = intake.state();
        let rule = state.objects.destination_rules.values().next();
        assert_eq!(rule.map(|r| &*r.spec.host), expected);
    }

    #[test]
    fn an_object_that_both_have_is_the_clusters() {
        check([files(rule("f"))], Some("f"));
        check([files(rule("f")), rule("c")], Some("c"));
        check([files(rule("f")), rule("c"), files(rule("g"))], Some("c"));
        check([files(rule("f")), rule("c"), files(gone())], Some("c"));
        check(
            [files(rule("f")), rule("c"), files(rule("g")), gone()],
            Some("g"),
        );
        check([files(rule("f")), rule("c"), files(gone()), gone()], None);
        check([rule("c"), gone()], None);
    }
}
