//! Conditions of a status.

use serde_json::{Value, json};

use crate::report::Verdict;

/// The field with the time since when a condition means what it means; empty for now.
pub(super) const TRANSITION: &str = "lastTransitionTime";

/// What a condition says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Means {
    /// It holds.
    True,
    /// It does not.
    False,
}

/// The conditions of one status while they are written.
#[derive(Debug)]
pub(super) struct Conditions<'a> {
    /// Those that are there.
    known: &'a [Value],
    generation: i64,
    list: Vec<Value>,
}

impl<'a> Conditions<'a> {
    /// Begins those that take the place of the ones in `known`.
    pub(super) fn new(known: Option<&'a Value>, generation: i64) -> Self {
        let known = known.and_then(|known| known.get("conditions")?.as_array());
        Self {
            known: known.map_or(&[], Vec::as_slice),
            generation,
            list: Vec::new(),
        }
    }

    /// Adds one. It keeps its time while its meaning is the same.
    pub(super) fn put(&mut self, kind: &str, means: Means, reason: &str, message: &str) {
        let status = match means {
            Means::True => "True",
            Means::False => "False",
        };
        let known = self.known.iter().find(|known| known["type"] == *kind);
        let same = known.filter(|known| known["status"] == *status);
        let since = same.and_then(|known| known[TRANSITION].as_str());
        self.list.push(json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": self.generation,
            TRANSITION: since.unwrap_or_default(),
        }));
    }

    /// Adds one that says whether something holds, with this reason and message if it does.
    pub(super) fn verdict(&mut self, kind: &str, verdict: &Verdict, reason: &str, message: &str) {
        match verdict {
            Ok(()) => self.put(kind, Means::True, reason, message),
            Err(refusal) => self.put(kind, Means::False, refusal.reason, &refusal.message),
        }
    }

    /// The list.
    pub(super) fn finish(self) -> Value {
        Value::Array(self.list)
    }
}
