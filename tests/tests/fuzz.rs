//! A short run of every fuzz target: over its examples, which are checked in, and over changed ones, the same
//! each time. `FUZZ_ROUNDS=10000 cargo test --test fuzz -- --nocapture` changes them more often; `fuzz/` has the
//! same targets for libFuzzer, which finds more.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use changes::Changes;
use tests::{corpus::workspace, fuzz::target};

/// How often the examples of a target are changed.
const ROUNDS: usize = 300;
/// Bytes that reading one input may take at once: of them, and for each byte of it.
const ROOM: u64 = 64 << 20;
const ROOM_EACH: u64 = 20_000;

/// Panics of any thread, also those that somebody catches.
static PANICS: AtomicUsize = AtomicUsize::new(0);
/// One target at a time: panics are counted for all.
static TURN: Mutex<()> = Mutex::new(());

mod changes {
    /// Pieces that mean something to one reader or another.
    const WORDS: [&str; 40] = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "- ",
        "\n",
        "\"",
        "'",
        "*",
        "**",
        "{*}",
        "{**}",
        "/",
        "~",
        "..",
        "%",
        "&a ",
        "*a",
        "<<: ",
        "!!binary ",
        "null",
        "-1",
        "1e999",
        "9223372036854775808",
        "0.0.0.0/0",
        "::/0",
        "\\",
        "\u{0}",
        "\u{feff}",
        "é",
        "true",
        "@type",
        "type.googleapis.com/",
        "typed_config",
        "value",
        "\r\n",
        "---\n",
        "\t",
    ];

    /// Changes inputs, by numbers that are the same each time (xorshift).
    pub(crate) struct Changes(pub(crate) u64);

    impl Changes {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 % limit.max(1) as u64).unwrap()
        }

        /// Changes an input in a few places, with pieces of itself and of another one.
        pub(crate) fn change(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
            let mut changed = input.to_vec();
            for _ in 0..=self.below(4) {
                let at = self.below(changed.len() + 1);
                let end = (at + 1 + self.below(16)).min(changed.len());
                match self.below(7) {
                    0 if at < changed.len() => changed[at] ^= 1 << self.below(8),
                    1 => drop(changed.drain(at..end)),
                    2 => {
                        let piece = changed[at..end].to_vec();
                        let to = self.below(changed.len() + 1);
                        changed.splice(to..to, piece);
                    }
                    3 => {
                        let from = self.below(other.len() + 1);
                        let piece = &other[from..(from + 40).min(other.len())];
                        changed.splice(at..at, piece.iter().copied());
                    }
                    4 => {
                        let word = WORDS[self.below(WORDS.len())].bytes();
                        changed.splice(at..at, word);
                    }
                    5 => {
                        let word = WORDS[self.below(WORDS.len())].bytes();
                        changed.splice(at..end, word);
                    }
                    _ => changed.insert(at, u8::try_from(self.below(256)).unwrap()),
                }
            }
            changed
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a test runs")]
fn rounds() -> usize {
    let stated = std::env::var("FUZZ_ROUNDS").ok();
    stated.map_or(ROUNDS, |rounds| rounds.parse().unwrap())
}

/// Reads an input, and fails when that panics anywhere or takes too much memory.
fn read(name: &str, input: &[u8]) {
    let target = target(name).unwrap();
    let before = PANICS.load(Ordering::SeqCst);
    let mut ended = true;
    let used = allocation_counter::measure(|| {
        ended = catch_unwind(AssertUnwindSafe(|| (target.read)(input))).is_ok();
    });
    let shown = || format!("{name}: {:?}", String::from_utf8_lossy(input));
    let panicked = !ended || PANICS.load(Ordering::SeqCst) != before;
    assert!(!panicked, "panicked: {}", shown());
    let room = ROOM + ROOM_EACH * input.len() as u64;
    assert!(
        used.bytes_max < room,
        "takes {} bytes: {}",
        used.bytes_max,
        shown()
    );
}

fn check(name: &str, rounds: usize) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        usual(info);
    }));
    let folder = workspace().join("fuzz/corpus").join(name);
    let mut examples: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    examples.sort();
    let examples: Vec<Vec<u8>> = examples
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    assert!(!examples.is_empty(), "{} has no examples", folder.display());
    for example in &examples {
        read(name, example);
    }
    read(name, &[]);
    let mut changes = Changes(0x9e37_79b9_7f4a_7c15);
    // What was changed is changed again now and then.
    let mut last = Vec::new();
    for round in 0..rounds {
        let example = &examples[round % examples.len()];
        let other = &examples[(round / examples.len()) % examples.len()];
        let from = if round % 3 == 0 { &last } else { example };
        last = changes.change(from, other);
        read(name, &last);
    }
}

macro_rules! targets {
    ($($name:ident / $share:literal,)*) => {
        $(#[test] fn $name() { check(stringify!($name), rounds() / $share); })*

        #[test]
        fn every_target_is_run() {
            let run = [$(stringify!($name)),*];
            assert_eq!(run, tests::fuzz::TARGETS.map(|target| target.name));
        }
    };
}

// Those that build a whole mesh are slower.
targets! {
    yaml / 1,
    objects / 3,
    mesh / 3,
    envoy_filter / 4,
    policies / 15,
    node / 4,
    signing_request / 1,
    certificates / 1,
    tokens / 1,
    xds / 1,
}
