//! Naming the crate links its policy, also with the release profile.

use throttle::{Registry, THROTTLE_POLICIES};
use throttle_backoff as _;

#[test]
fn the_policy_is_linked() {
    let registry = Registry::new(THROTTLE_POLICIES.iter().copied()).expect("no duplicates");
    let names: Vec<_> = registry.iter().map(|policy| policy.name).collect();
    assert_eq!(names, ["backoff"]);
}
