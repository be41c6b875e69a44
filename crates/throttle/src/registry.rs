//! The policies that are linked into the program.

use std::{collections::BTreeMap, fmt};

use linkme::distributed_slice;

use crate::{Limits, Problem, TenantInfo, ThrottlePolicy};

/// The policies linked in. Read it once, into a [`Registry`].
#[distributed_slice]
pub static THROTTLE_POLICIES: [Registration];

/// One policy, as plain data.
#[derive(Clone, Copy)]
pub struct Registration {
    /// The name by which it is chosen, lowercase with dashes.
    pub name: &'static str,
    /// One line for the list at start-up.
    pub summary: &'static str,
    /// Where it comes from: `module_path!()`.
    pub module: &'static str,
    /// Checks the limits and parameters that the policy reads; empty when all are fine.
    pub check: fn(&Limits) -> Vec<Problem>,
    /// Makes the instance of one tenant. Only called with limits that `check` accepted.
    pub build: fn(&Limits, &TenantInfo) -> Box<dyn ThrottlePolicy>,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &self.name)
            .field("module", &self.module)
            .finish_non_exhaustive()
    }
}

/// The linked policies by name.
#[derive(Debug, Clone)]
pub struct Registry {
    policies: BTreeMap<&'static str, Registration>,
}

/// Two linked policies have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("throttle policy {name} is registered by both {first} and {second}")]
pub struct DuplicatePolicy {
    /// The name.
    pub name: &'static str,
    /// The module that comes first in the alphabet.
    pub first: &'static str,
    /// The other module.
    pub second: &'static str,
}

/// No linked policy has the wanted name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no throttle policy is called {name:?}; linked are: {}", .linked.join(", "))]
pub struct UnknownPolicy {
    /// The wanted name.
    pub name: String,
    /// The names there are, sorted.
    pub linked: Vec<&'static str>,
}

impl Registry {
    /// Collects `policies`, in any order.
    ///
    /// # Errors
    /// [`DuplicatePolicy`] when two have the same name.
    pub fn new(policies: impl IntoIterator<Item = Registration>) -> Result<Self, DuplicatePolicy> {
        let mut by_name: BTreeMap<&'static str, Registration> = BTreeMap::new();
        for policy in policies {
            if let Some(other) = by_name.insert(policy.name, policy) {
                let mut modules = [other.module, policy.module];
                modules.sort_unstable();
                let [first, second] = modules;
                return Err(DuplicatePolicy {
                    name: policy.name,
                    first,
                    second,
                });
            }
        }
        Ok(Self { policies: by_name })
    }

    /// Finds the policy called `name`.
    ///
    /// # Errors
    /// [`UnknownPolicy`], which lists what there is.
    pub fn get(&self, name: &str) -> Result<Registration, UnknownPolicy> {
        self.policies
            .get(name)
            .copied()
            .ok_or_else(|| UnknownPolicy {
                name: name.to_owned(),
                linked: self.policies.keys().copied().collect(),
            })
    }

    /// The policies, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Registration> {
        self.policies.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &'static str, module: &'static str) -> Registration {
        Registration {
            name,
            summary: "",
            module,
            check: |_| Vec::new(),
            build: |_, _| unreachable!("never built here"),
        }
    }

    #[test]
    fn finds_by_name_and_lists_sorted() {
        let registry = Registry::new([named("b", "mb"), named("a", "ma")]).expect("distinct");
        assert_eq!(registry.get("b").expect("linked").module, "mb");
        let names: Vec<_> = registry.iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn refuses_two_of_one_name_and_names_both_modules() {
        let error = Registry::new([named("a", "two"), named("a", "one")]).expect_err("duplicate");
        let text = error.to_string();
        assert_eq!(text, "throttle policy a is registered by both one and two");
    }

    #[test]
    fn an_unknown_name_lists_what_is_linked() {
        let registry = Registry::new([named("b", ""), named("a", "")]).expect("distinct");
        let error = registry.get("c").expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "no throttle policy is called \"c\"; linked are: a, b"
        );
    }
}
