//! What there is to put in order in a message of each type.

use std::sync::LazyLock;

use prost_reflect::{Kind, MessageDescriptor};
use rustc_hash::FxHashMap;

use crate::descriptors;

static PLANS: LazyLock<Plans> = LazyLock::new(Plans::build);

/// Returns the plans of all known types.
pub(super) fn plans() -> &'static Plans {
    &PLANS
}

/// Index of a plan.
pub(super) type PlanId = u32;

/// The plans of all types that have anything to put in order.
#[derive(Debug)]
pub(super) struct Plans {
    by_name: FxHashMap<Box<[u8]>, PlanId>,
    plans: Vec<Plan>,
}

/// What there is to put in order in a message of one type.
#[derive(Debug)]
pub(super) struct Plan {
    /// By field number; a number beyond the end has nothing to do.
    steps: Box<[Step]>,
    /// Whether this is `google.protobuf.Any`.
    pub(super) any: bool,
}

/// What to do with one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Skip,
    /// Put the message in order.
    Message(PlanId),
    /// Put the values in order where there is a plan, then sort the entries.
    Map(Key, Option<PlanId>),
}

/// How the keys of a map are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// As bytes.
    Text,
    /// As unsigned varints (also booleans).
    Unsigned,
    /// As signed varints.
    Signed,
    /// As zigzag varints.
    ZigZag,
    /// As unsigned little-endian numbers.
    Fixed,
    /// As signed little-endian numbers.
    SignedFixed,
}

impl Plan {
    /// Returns what to do with field `number`.
    pub(super) fn step(&self, number: u32) -> Step {
        self.steps
            .get(number as usize)
            .copied()
            .unwrap_or(Step::Skip)
    }
}

impl Plans {
    /// Returns the plan of type `full_name`; `None` when there is nothing to do.
    pub(super) fn find(&self, full_name: &[u8]) -> Option<PlanId> {
        self.by_name.get(full_name).copied()
    }

    /// Returns the plan with an id that came from these plans.
    pub(super) fn get(&self, id: PlanId) -> &Plan {
        &self.plans[id as usize]
    }

    fn build() -> Self {
        // Not the pool that stays: only who reads or writes JSON needs that.
        let pool = descriptors::unpack();
        let messages: Vec<MessageDescriptor> = pool
            .all_messages()
            .filter(|message| !message.is_map_entry())
            .collect();
        let index: FxHashMap<&str, usize> = messages
            .iter()
            .enumerate()
            .map(|(at, message)| (message.full_name(), at))
            .collect();

        // A type has work when it has work of its own or contains a type that has.
        let mut parents: Vec<Vec<usize>> = vec![Vec::new(); messages.len()];
        let mut has_work = vec![false; messages.len()];
        let mut queue = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            for child in children(message) {
                if let Some(&child) = index.get(child.full_name()) {
                    parents[child].push(at);
                }
            }
            if has_own_work(message) {
                has_work[at] = true;
                queue.push(at);
            }
        }
        while let Some(at) = queue.pop() {
            for &parent in &parents[at] {
                if !has_work[parent] {
                    has_work[parent] = true;
                    queue.push(parent);
                }
            }
        }

        let mut ids: FxHashMap<&str, PlanId> = FxHashMap::default();
        for (message, _) in messages.iter().zip(&has_work).filter(|(_, work)| **work) {
            let id = PlanId::try_from(ids.len()).unwrap_or(PlanId::MAX);
            ids.insert(message.full_name(), id);
        }
        let plans = messages
            .iter()
            .zip(&has_work)
            .filter(|(_, work)| **work)
            .map(|(message, _)| plan(message, &ids))
            .collect();
        let by_name = ids
            .iter()
            .map(|(name, id)| (name.as_bytes().into(), *id))
            .collect();
        Self { by_name, plans }
    }
}

/// The message types that fields of `message` hold; of a map, that of its values.
fn children(message: &MessageDescriptor) -> impl Iterator<Item = MessageDescriptor> + '_ {
    message.fields().filter_map(|field| match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            entry.map_entry_value_field().kind().as_message().cloned()
        }
        Kind::Message(child) => Some(child),
        _ => None,
    })
}

/// Whether prost may write `message` in another than the canonical order, or it holds packed bytes.
fn has_own_work(message: &MessageDescriptor) -> bool {
    message.full_name() == "google.protobuf.Any"
        || message.fields().any(|field| field.is_map())
        || message.oneofs().any(|oneof| {
            // prost writes a member of a oneof where the lowest number of the oneof belongs.
            let members: Vec<u32> = oneof.fields().map(|field| field.number()).collect();
            let low = members.iter().min().copied().unwrap_or_default();
            let high = members.iter().max().copied().unwrap_or_default();
            message.fields().any(|field| {
                (low..high).contains(&field.number()) && !members.contains(&field.number())
            })
        })
}

fn plan(message: &MessageDescriptor, ids: &FxHashMap<&str, PlanId>) -> Plan {
    let mut steps = Vec::new();
    for field in message.fields() {
        let step = match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                let value = entry.map_entry_value_field().kind();
                let value = value
                    .as_message()
                    .and_then(|value| ids.get(value.full_name()));
                Step::Map(key(&entry.map_entry_key_field().kind()), value.copied())
            }
            Kind::Message(child) => ids
                .get(child.full_name())
                .map_or(Step::Skip, |id| Step::Message(*id)),
            _ => Step::Skip,
        };
        let number = field.number() as usize;
        // Extensions of options have huge numbers; nothing that is sent has them.
        if step != Step::Skip && number < 10_000 {
            if steps.len() <= number {
                steps.resize(number + 1, Step::Skip);
            }
            steps[number] = step;
        }
    }
    Plan {
        steps: steps.into(),
        any: message.full_name() == "google.protobuf.Any",
    }
}

fn key(kind: &Kind) -> Key {
    match kind {
        Kind::Int32 | Kind::Int64 => Key::Signed,
        Kind::Sint32 | Kind::Sint64 => Key::ZigZag,
        Kind::Uint32 | Kind::Uint64 | Kind::Bool | Kind::Enum(_) => Key::Unsigned,
        Kind::Fixed32 | Kind::Fixed64 => Key::Fixed,
        Kind::Sfixed32 | Kind::Sfixed64 => Key::SignedFixed,
        _ => Key::Text,
    }
}
