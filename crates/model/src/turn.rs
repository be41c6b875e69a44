//! Pods whose traffic waits for the distribution of their endpoints: who says so, and what follows
//! for their endpoints before anybody else knows.

use crate::{Config, api::kubernetes::Pod};

/// The finalizer that keeps a deleted pod until no proxy sends it requests.
pub const FINALIZER: &str = "istio.io/await-distribution";

/// The condition that a pod names as a readiness gate, to be ready only when every proxy that needs
/// its endpoint has it.
pub const GATE: &str = "istio.io/distributed";

/// Whether a pod gets traffic, where that is not what its EndpointSlices say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Turn {
    /// What they say counts.
    Listed,
    /// All that its readiness still lacks is that proxies have its endpoint: they are to have it,
    /// though its slices call it unready.
    Coming,
    /// It is deleted, and stays until proxies are without it: they are to be, whatever its slices
    /// say, and however late they are changed.
    Leaving,
}

/// Says whether a pod gets traffic.
pub fn turn(pod: &Config<Pod>) -> Turn {
    let Pod {
        metadata,
        spec,
        status,
    } = &pod.spec;
    if pod.meta.deleting {
        let held = metadata.finalizers.iter().any(|name| name == FINALIZER);
        return if held { Turn::Leaving } else { Turn::Listed };
    }
    let holds = |condition: &str| {
        let mut found = status.conditions.iter();
        found.any(|c| c.r#type == condition && c.status == "True")
    };
    let mut gates = spec
        .readiness_gates
        .iter()
        .map(|gate| &*gate.condition_type);
    let coming = gates.clone().any(|gate| gate == GATE)
        && !holds(GATE)
        && holds("ContainersReady")
        && gates.all(|gate| gate == GATE || holds(gate));
    if coming { Turn::Coming } else { Turn::Listed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Meta,
        api::kubernetes::{Condition, ReadinessGate},
    };

    #[track_caller]
    fn check(deleting: bool, finalizers: &[&str], gates: &[&str], holds: &[&str], expected: Turn) {
        let mut spec = Pod::default();
        spec.metadata.finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
        let gate = |gate: &&str| ReadinessGate {
            condition_type: (*gate).to_owned(),
        };
        spec.spec.readiness_gates = gates.iter().map(gate).collect();
        let condition = |name: &&str| Condition {
            r#type: (*name).to_owned(),
            status: "True".to_owned(),
            ..Condition::default()
        };
        spec.status.conditions = holds.iter().map(condition).collect();
        let meta = Meta {
            deleting,
            ..Meta::default()
        };
        assert_eq!(turn(&Config { meta, spec }), expected);
    }

    #[test]
    fn only_who_asks_for_it_is_treated_in_another_way() {
        check(false, &[], &[], &["ContainersReady"], Turn::Listed);
        check(
            true,
            &["other/one"],
            &[GATE],
            &["ContainersReady"],
            Turn::Listed,
        );
        check(
            true,
            &[FINALIZER],
            &[GATE],
            &["ContainersReady"],
            Turn::Leaving,
        );
        check(false, &[FINALIZER], &[], &["ContainersReady"], Turn::Listed);
    }

    #[test]
    fn a_pod_comes_when_nothing_else_is_missing() {
        let ready = ["ContainersReady"];
        check(false, &[], &[GATE], &ready, Turn::Coming);
        check(false, &[], &[GATE], &[], Turn::Listed);
        check(
            false,
            &[],
            &[GATE],
            &["ContainersReady", GATE],
            Turn::Listed,
        );
        check(false, &[], &[GATE, "other/one"], &ready, Turn::Listed);
        let both = ["ContainersReady", "other/one"];
        check(false, &[], &[GATE, "other/one"], &both, Turn::Coming);
    }
}
