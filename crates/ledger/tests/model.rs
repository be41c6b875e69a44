//! The ledger against a plain map per root, with good and with very bad hash functions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
    time::{Duration, Instant},
};

use ledger::{Difference, Digest, History, Ledger, State, UnknownRoot, Xxh3};
use proptest::prelude::*;

/// Two bytes with few values in the first: paths run together for long, and often collide wholly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Weak([u8; 10]);

impl Digest for Weak {
    fn of(bytes: &[u8]) -> Self {
        // Keys ("k" and a number) get one of 24 paths; nodes get a hash worth its name.
        let hash = Xxh3::of(bytes).to_bytes();
        let mut weak = [0; 10];
        if bytes.first() == Some(&b'k') {
            weak[0] = hash[0] % 2;
            weak[9] = hash[1] % 12;
        } else {
            weak.copy_from_slice(&hash[..10]);
        }
        Self(weak)
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "any fixed origin of virtual time does"
)]
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

fn at(seconds: u64) -> Instant {
    *EPOCH + Duration::from_secs(seconds)
}

type Key = String;

fn encode(key: &Key, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(key.as_bytes());
}

fn key(number: u8) -> Key {
    format!("k{number}")
}

fn value<D: Digest>(number: u8) -> D {
    D::of(&[b'v', number])
}

/// Change sets: key number, and the number of the value to set.
type Script = Vec<Vec<(u8, Option<u8>)>>;

fn script() -> impl Strategy<Value = Script> {
    let change = (0_u8..60, prop::option::weighted(0.7, 0_u8..4));
    prop::collection::vec(prop::collection::vec(change, 0..12), 1..25)
}

fn apply<D: Digest>(
    ledger: &mut Ledger<Key, D>,
    model: &mut BTreeMap<Key, D>,
    changes: &[(u8, Option<u8>)],
    now: Instant,
) -> D {
    for (number, new) in changes {
        match new {
            Some(new) => model.insert(key(*number), value(*new)),
            None => model.remove(&key(*number)),
        };
    }
    let changes = changes
        .iter()
        .map(|(number, new)| (key(*number), new.map(value)));
    ledger.apply(now, changes)
}

fn differences<D: Digest>(
    old: &BTreeMap<Key, D>,
    new: &BTreeMap<Key, D>,
) -> Vec<Difference<Key, D>> {
    let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    keys.into_iter()
        .map(|key| Difference {
            key: key.clone(),
            old: old.get(key).copied(),
            new: new.get(key).copied(),
        })
        .filter(|difference| difference.old != difference.new)
        .collect()
}

/// Plays a script and compares every root with its map.
fn check_script<D: Digest>(script: &Script) {
    let mut ledger: Ledger<Key, D> = Ledger::new(History::default(), at(0), encode);
    let mut model = BTreeMap::new();
    let mut states = vec![(ledger.root(), model.clone())];
    for changes in script {
        let root = apply(&mut ledger, &mut model, changes, at(0));
        assert_eq!(root, ledger.root());
        states.push((root, model.clone()));
    }
    let mut by_root: BTreeMap<D, BTreeMap<Key, D>> = BTreeMap::new();
    for (root, map) in &states {
        let known = by_root.entry(*root).or_insert_with(|| map.clone());
        assert_eq!(known, map, "one root, one content");

        let state = ledger.at(root).expect("kept");
        assert_eq!(
            (state.root(), state.len(), state.is_empty()),
            (*root, map.len(), map.is_empty())
        );
        let entries: Vec<_> = map.iter().map(|(key, value)| (key, *value)).collect();
        assert_eq!(state.entries(), entries);
        for number in 0..64 {
            let key = key(number);
            assert_eq!(ledger.get(root, &key), Ok(map.get(&key).copied()));
            let proof = ledger.prove(root, &key).expect("kept");
            assert_eq!(proof.is_some(), map.contains_key(&key));
            if let (Some(proof), Some(value)) = (proof, map.get(&key)) {
                assert!(proof.verify(*root, key.as_bytes(), *value));
            }
        }
        // The content alone makes the root, however it came about.
        let (fresh, _) = State::new(encode).apply(
            map.iter()
                .rev()
                .map(|(key, value)| (key.clone(), Some(*value))),
        );
        assert_eq!(fresh.root(), *root);
    }
    let distinct: BTreeSet<_> = states.iter().map(|(_, map)| map).collect();
    assert_eq!(distinct.len(), by_root.len(), "one content, one root");
    for (a, old) in &states {
        let (b, new) = &states[states.len() / 2];
        assert_eq!(ledger.diff(a, b), Ok(differences(old, new)));
        assert_eq!(ledger.diff(b, a), Ok(differences(new, old)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_root_equals_its_map(script in script()) {
        check_script::<Xxh3>(&script);
    }

    #[test]
    fn every_root_equals_its_map_when_hashes_collide(script in script()) {
        check_script::<Weak>(&script);
    }

    #[test]
    fn a_tampered_proof_or_answer_fails(
        script in script(),
        number in 0_u8..60,
        tamper in 0_usize..6,
        place in any::<prop::sample::Index>(),
    ) {
        check_tampered::<Xxh3>(&script, number, tamper, place);
        check_tampered::<Weak>(&script, number, tamper, place);
    }

    #[test]
    fn the_history_keeps_what_its_bounds_allow(
        script in script(),
        gaps in prop::collection::vec(0_u64..5, 25),
        count in 1_usize..10,
        age in 0_u64..12,
    ) {
        let history = History { count, age: Duration::from_secs(age) };
        let mut ledger: Ledger<Key, Xxh3> = Ledger::new(history, at(0), encode);
        let mut model = BTreeMap::new();
        // Root, map, and when it was superseded.
        let mut published = vec![(ledger.root(), model.clone(), u64::MAX)];
        let mut now = 0;
        for (changes, gap) in script.iter().zip(&gaps) {
            now += gap;
            let root = apply(&mut ledger, &mut model, changes, at(now));
            let last = published.last_mut().expect("never empty");
            if root != last.0 {
                last.2 = now;
                published.push((root, model.clone(), u64::MAX));
            }
            let oldest = published.len().saturating_sub(count);
            let kept: Vec<_> = published
                .iter()
                .enumerate()
                .filter(|(index, (_, _, until))| *index >= oldest && until.saturating_add(age) >= now)
                .map(|(_, entry)| entry)
                .collect();
            for (root, map, _) in &published {
                let expected = kept.iter().any(|(other, _, _)| other == root).then_some(map.len());
                prop_assert_eq!(ledger.at(root).map(State::len), expected);
            }
            prop_assert_eq!(ledger.stats().states, kept.len());
            let newest = kept.iter().rposition(|(root, _, _)| *root == kept[0].0).unwrap_or_default();
            prop_assert_eq!(ledger.behind(&kept[0].0), Ok((kept.len() - 1 - newest) as u64));
        }
        prop_assert_eq!(ledger.stats().published, published.len() as u64);
    }
}

fn check_tampered<D: Digest>(
    script: &Script,
    number: u8,
    tamper: usize,
    place: prop::sample::Index,
) {
    let mut ledger: Ledger<Key, D> = Ledger::new(History::default(), at(0), encode);
    let mut model = BTreeMap::new();
    for changes in script {
        apply(&mut ledger, &mut model, changes, at(0));
    }
    let (root, name) = (ledger.root(), key(number));
    let Some(mut proof) = ledger.current().prove(&name) else {
        return;
    };
    let right = model[&name];
    let lie = D::of(b"a lie");
    let depth = proof.steps.len();
    let holds = match tamper {
        0 => proof.verify(root, name.as_bytes(), lie),
        1 => proof.verify(lie, name.as_bytes(), right),
        2 => proof.verify(root, b"k999", right),
        3 if depth > 0 => {
            let step = &mut proof.steps[place.index(depth)];
            if step.siblings.is_empty() {
                return;
            }
            let sibling = place.index(step.siblings.len());
            step.siblings[sibling] = lie;
            proof.verify(root, name.as_bytes(), right)
        }
        4 if depth > 0 => {
            proof.steps[place.index(depth)].bitmap ^= 1 << place.index(16);
            proof.verify(root, name.as_bytes(), right)
        }
        5 if depth > 0 => {
            proof.steps.remove(place.index(depth));
            proof.verify(root, name.as_bytes(), right)
        }
        _ => false,
    };
    assert!(!holds, "accepted a tampered proof ({tamper})");
}

#[test]
fn a_malformed_proof_is_refused_without_panic() {
    let (state, _) = State::<Key, Xxh3>::new(encode).apply([(key(1), Some(value(1)))]);
    let mut proof = state.prove(&key(1)).expect("a member");
    proof.position = 7;
    assert!(!proof.verify(state.root(), b"k1", value(1)));
}

#[test]
fn changes_that_change_nothing_publish_nothing_and_make_nothing() {
    let mut ledger: Ledger<Key, Xxh3> = Ledger::new(History::default(), at(0), encode);
    let root = ledger.apply(at(0), [(key(1), Some(value(1))), (key(2), Some(value(2)))]);
    let before = ledger.stats();
    assert_eq!(
        ledger.apply(at(1), [(key(1), Some(value(1))), (key(9), None)]),
        root
    );
    assert_eq!(ledger.stats(), before);
}

#[test]
fn of_a_key_that_is_named_twice_the_last_counts() {
    let (state, _) = State::<Key, Xxh3>::new(encode).apply([
        (key(1), Some(value(1))),
        (key(1), None),
        (key(2), None),
        (key(2), Some(value(3))),
    ]);
    assert_eq!(
        (state.get(&key(1)), state.get(&key(2)), state.len()),
        (None, Some(value(3)), 1)
    );
}

#[test]
fn an_unknown_root_is_an_error() {
    let ledger: Ledger<Key, Xxh3> = Ledger::new(History::default(), at(0), encode);
    let other = Xxh3::of(b"other");
    assert_eq!(ledger.get(&other, &key(1)), Err(UnknownRoot(other)));
    assert_eq!(ledger.diff(&ledger.root(), &other), Err(UnknownRoot(other)));
    assert_eq!(ledger.superseded(&other), Err(UnknownRoot(other)));
}

#[test]
fn the_ledger_knows_since_when_a_state_is_old() {
    let mut ledger: Ledger<Key, Xxh3> = Ledger::new(History::default(), at(0), encode);
    let first = ledger.root();
    let second = ledger.apply(at(3), [(key(1), Some(value(1)))]);
    assert_eq!(ledger.superseded(&first), Ok(Some(at(3))));
    assert_eq!(ledger.superseded(&second), Ok(None));
}

#[test]
fn a_root_costs_what_its_change_costs() {
    let mut ledger: Ledger<Key, Xxh3> = Ledger::new(History::default(), at(0), encode);
    let number = |n: u32| format!("k{n}");
    ledger.apply(at(0), (0..20_000).map(|n| (number(n), Some(value(0)))));
    let base = ledger.footprint();
    for n in 0..200 {
        ledger.apply(at(0), [(number(n), Some(value(1)))]);
    }
    let grown = ledger.footprint();
    let per_root = (grown.nodes - base.nodes) / 200;
    assert!(per_root <= 6, "{per_root} nodes for one key");
    assert_eq!(
        ledger.stats().created,
        grown.nodes,
        "what was made is what is there"
    );
    assert!(
        (grown.bytes - base.bytes) / 200 < 2_000,
        "{grown:?} after {base:?}"
    );
}

#[test]
fn shared_types_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Ledger<Key, Xxh3>>();
    shared::<State<Key, Xxh3>>();
}
