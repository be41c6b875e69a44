use std::time::Instant;

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::*;
use crate::{Change, Decoder, Intake, Options};

const URI: &str = "https://keys.example/jwks";

fn policy(name: &str, rules: &str) -> Object {
    let text = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\n\
         metadata: {{name: {name}, namespace: shop}}\nspec: {{jwtRules: [{rules}]}}\n"
    );
    let decoded = Decoder::default().decode("test", &text);
    assert_eq!(decoded.findings, []);
    decoded.objects.into_iter().next().expect("one object")
}

fn source(issuer: &str, uri: &str) -> KeySource {
    KeySource {
        issuer: issuer.into(),
        uri: uri.into(),
    }
}

fn keys(source: &KeySource, keys: Option<&str>) -> Change {
    Change::Keys {
        source: source.clone(),
        keys: keys.map(Arc::from),
    }
}

/// The keys of each rule of `shop/NAME` in the state.
fn known(intake: &Intake, name: &str) -> Vec<String> {
    let state = intake.state();
    let name = model::NamespacedName::new("shop", name);
    let policy = state.objects.request_authentications.get(&name);
    let rules = policy.iter().flat_map(|p| &p.spec.jwt_rules);
    rules.map(|rule| rule.jwks.clone()).collect()
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[test]
fn keys_are_filled_in_when_they_come_and_only_their_users_change() {
    let mut intake = Intake::new(Options::default());
    let both = format!("{{issuer: a, jwksUri: '{URI}'}}, {{issuer: b, jwks: '{{\"keys\":[]}}'}}");
    intake.apply([Change::Apply(policy("p", &both))], now());
    intake.apply([Change::Apply(policy("q", "{issuer: c}"))], now());
    let a = source("a", URI);
    let wanted = KeySources::from([
        (a.clone(), DEFAULT_TIMEOUT),
        (source("c", ""), DEFAULT_TIMEOUT),
    ]);
    assert_eq!(*intake.keys_to_fetch(), wanted);

    let request = intake.apply([keys(&a, Some("K"))], now());
    let changed: Vec<String> = request.changed.iter().map(ToString::to_string).collect();
    assert_eq!(changed, ["RequestAuthentication/shop/p"]);
    assert!(!request.forced);
    assert_eq!(known(&intake, "p"), ["K", "{\"keys\":[]}"]);
    assert_eq!(known(&intake, "q"), [""]);

    // An edit keeps the keys; a second user gets them at once.
    let other = format!("{{issuer: a, jwksUri: '{URI}', audiences: [x], timeout: 9s}}");
    intake.apply([Change::Apply(policy("p", &other))], now());
    intake.apply([Change::Apply(policy("r", &other))], now());
    assert_eq!(
        (known(&intake, "p"), known(&intake, "r")),
        (vec!["K".into()], vec!["K".into()])
    );
    assert_eq!(intake.keys_to_fetch()[&a], Duration::from_secs(9));

    let request = intake.apply([keys(&a, None)], now());
    assert_eq!(request.changed.len(), 2);
    assert_eq!(known(&intake, "p"), [""]);
}

#[test]
fn keys_that_nobody_needs_are_forgotten() {
    let mut intake = Intake::new(Options::default());
    let rule = format!("{{issuer: a, jwksUri: '{URI}'}}");
    let object = policy("p", &rule);
    let key = object.key();
    intake.apply([Change::Apply(object.clone())], now());
    intake.apply([keys(&source("a", URI), Some("K"))], now());
    intake.apply([Change::Delete(key)], now());
    assert_eq!(*intake.keys_to_fetch(), KeySources::new());
    let late = intake.apply([keys(&source("a", URI), Some("K"))], now());
    assert!(late.is_empty());
    intake.apply([Change::Apply(object)], now());
    assert_eq!(known(&intake, "p"), [""]);
}

#[test]
fn proxies_fetch_in_envoy_mode() {
    let mut options = Options::default();
    options.features.remote_jwks = "envoy".to_owned();
    let mut intake = Intake::new(options);
    let rules = format!("{{issuer: a, jwksUri: '{URI}'}}, {{issuer: b}}");
    intake.apply([Change::Apply(policy("p", &rules))], now());
    let sources: Vec<KeySource> = intake.keys_to_fetch().keys().cloned().collect();
    assert_eq!(sources, [source("b", "")]);
}

/// When (in seconds) which answer comes, and the keys of the change that it makes.
type Answer<'a> = (u64, Option<&'a str>, Option<Option<&'a str>>);

/// Plays answers and expects changes; returns after how many seconds each is followed by a fetch.
#[track_caller]
fn check_answers(answers: &[Answer<'_>]) -> Vec<u64> {
    let start = now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut fetches = Fetches::new(Duration::from_mins(20));
    let source = source("a", URI);
    fetches.set(
        &KeySources::from([(source.clone(), DEFAULT_TIMEOUT)]),
        start,
    );
    let mut dues = Vec::new();
    for (seconds, answer, expected) in answers {
        fetches.take_due(at(u64::MAX >> 32), 1);
        let change = fetches.answer(&source, answer.map(Arc::from), at(*seconds));
        let change = change.map(|change| match change {
            Change::Keys { keys, .. } => keys,
            other => panic!("{other:?}"),
        });
        assert_eq!(
            change,
            expected.map(|keys| keys.map(Arc::from)),
            "at {seconds}"
        );
        let due = fetches.next_due().expect("it is fetched again");
        dues.push((due - at(*seconds)).as_secs());
    }
    dues
}

#[test]
fn equal_keys_change_nothing() {
    let (one, two) = (
        r#"{"keys":[{"kid":"1"},{"kid":"2"}]}"#,
        r#"{"keys":[{"kid":"2"},{"kid":"1"}]}"#,
    );
    let dues = check_answers(&[
        (0, Some(one), Some(Some(one))),
        (1, Some(two), None),
        (2, Some(r#"{"keys":[]}"#), Some(Some(r#"{"keys":[]}"#))),
    ]);
    assert_eq!(dues, [1200, 1200, 1200]);
}

#[test]
fn failures_are_tried_again_less_and_less_often_and_keep_the_last_keys_for_a_week() {
    let mut answers = vec![(0, Some("K"), Some(Some("K")))];
    answers.extend((1..12).map(|n| (n, None, None)));
    let week = 7 * 24 * 3600;
    answers.push((week - 1, None, None));
    answers.push((week, None, Some(None)));
    answers.push((week + 1, None, None));
    answers.push((week + 2, Some("K"), Some(Some("K"))));
    answers.push((week + 3, None, None));
    let dues = check_answers(&answers);
    assert_eq!(
        dues,
        [
            1200, 1, 1, 1, 1, 1, 1, 1, 60, 120, 240, 480, 960, 1920, 3600, 1200, 1
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn issuers_that_do_not_answer_delay_only_themselves() {
    let slow = (0..15).map(|n| source(&format!("slow-{n}"), ""));
    let sources: KeySources = slow
        .chain([source("quick", "")])
        .map(|source| (source, DEFAULT_TIMEOUT))
        .collect();
    let (_in_use, watched) = watch::channel(Arc::new(sources));
    let (sender, mut changes) = mpsc::channel(8);
    let mut following = JoinSet::new();
    following.spawn(follow(
        watched,
        sender,
        Duration::from_mins(20),
        |source| async move {
            if source.issuer.starts_with("slow") {
                std::future::pending::<()>().await;
            }
            Ok(Arc::from("K"))
        },
    ));
    let begun = tokio::time::Instant::now();
    let change = changes.recv().await.expect("keys");
    assert!(
        matches!(&change[..], [Change::Keys { source, .. }] if &*source.issuer == "quick"),
        "{change:?}"
    );
    assert_eq!(begun.elapsed(), Duration::ZERO);
    drop(changes);
    let ended = following.join_next().await.expect("one task");
    ended.expect("ends when nobody listens");
}
