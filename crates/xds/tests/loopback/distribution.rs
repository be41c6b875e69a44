//! Who has what: what the server answers against what its clients hold.

use std::collections::BTreeMap;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use tokio::time::Instant;
use xds::{Concern, Matter, Question, Source, State};

use crate::fake::{Delta, Shop, node};
use crate::shelf::{CDS, EDS, FILTER, LDS};

/// Longest time until the server knows what a client has said.
const PATIENCE: Duration = Duration::from_secs(10);

fn word(state: &State) -> &'static str {
    match state {
        State::Has { .. } => "has",
        State::Pending { .. } => "pending",
        State::Undecided => "undecided",
        State::Refused { .. } => "refused",
    }
}

/// How every client stands to an object that was changed in publication `since`, by its node.
fn standings(shop: &Shop, object: &str, since: u64) -> BTreeMap<String, State> {
    let objects = [Source::from(object)];
    let question = Question {
        matter: Matter::Objects(&objects),
        since,
    };
    let survey = shop.server.survey();
    let standings: BTreeMap<String, State> = survey
        .standings(&question)
        .into_iter()
        .map(|standing| (standing.stream.node.to_string(), standing.state))
        .collect();
    let tally = survey.tally(&question);
    let all = tally.has + tally.pending + tally.undecided + tally.refused;
    assert_eq!(all, standings.len(), "both count the same");
    standings
}

fn words(shop: &Shop, object: &str, since: u64) -> String {
    let standings = standings(shop, object, since);
    let words = standings.iter().map(|(n, s)| format!("{n} {}", word(s)));
    words.collect::<Vec<_>>().join(", ")
}

/// Waits until the clients stand like this.
async fn until(shop: &Shop, object: &str, since: u64, expected: &str) {
    let begun = Instant::now();
    loop {
        let found = words(shop, object, since);
        if found == expected {
            return;
        }
        let in_time = begun.elapsed() < PATIENCE;
        assert!(in_time, "{object}: {found:?}, expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Connects and accepts all clusters.
async fn with_clusters(shop: &Shop, name: &str) -> Delta {
    let mut client = shop.delta(name).await;
    client.ask(CDS, &[], &[]).await;
    let nonce = client.receive().await.nonce;
    client.ack(CDS, &nonce).await;
    client
}

#[tokio::test]
async fn a_change_is_pending_until_it_is_accepted() {
    let mut shop = Shop::open(&[(CDS, "a", "1"), (CDS, "b", "1")]).await;
    let mut client = with_clusters(&shop, "one").await;
    until(&shop, "Text/a", 1, "one has").await;
    let edited = shop.edit(&[(CDS, "a", Some("2"))]);
    let nonce = client.expect(CDS, (&[("a", "2")], &[])).await;
    // It is on its way at most.
    for _ in 0..20 {
        assert_ne!(words(&shop, "Text/a", edited), "one has");
    }
    until(&shop, "Text/a", edited, "one pending").await;
    // What did not change is there all the time.
    assert_eq!(words(&shop, "Text/b", 1), "one has");
    client.ack(CDS, &nonce).await;
    until(&shop, "Text/a", edited, "one has").await;
    assert_eq!(words(&shop, "Text/nothing", edited), "");
}

#[tokio::test]
async fn a_state_that_changed_nothing_for_a_client_is_had_without_being_sent() {
    let mut shop = Shop::open(&[(CDS, "a", "1"), (EDS, "e", "1")]).await;
    let mut client = with_clusters(&shop, "one").await;
    until(&shop, "Text/a", 1, "one has").await;
    let newer = shop.edit(&[(EDS, "e", Some("2"))]);
    until(&shop, "Text/a", newer, "one has").await;
    // A new text that says the same is no change either.
    let same = shop.edit(&[(CDS, "a", Some("1"))]);
    until(&shop, "Text/a", same, "one has").await;
    client.silent().await;
}

/// Connects as a client of a class, and accepts all clusters.
async fn of_class(shop: &Shop, name: &str, class: &str) -> Delta {
    let mut client = shop.delta(name).await;
    let mut node = node(name);
    class.clone_into(&mut node.cluster);
    let request = DeltaDiscoveryRequest {
        type_url: CDS.to_owned(),
        node: Some(node),
        ..DeltaDiscoveryRequest::default()
    };
    client.requests.send(request).await.unwrap();
    let nonce = client.receive().await.nonce;
    client.ack(CDS, &nonce).await;
    client
}

/// Waits until the clients stand like this to something that is selected by the class `other`, and that
/// others may have selected before, or not.
async fn until_selected(shop: &Shop, others: Concern, since: u64, expected: &str) {
    let concerns = |class: &String| {
        if class == "other" {
            Concern::Present
        } else {
            others
        }
    };
    let begun = Instant::now();
    loop {
        let question = Question {
            matter: Matter::Classes(&concerns),
            since,
        };
        let standings = shop.server.survey().standings(&question).into_iter();
        let words = standings.map(|s| format!("{} {}", s.stream.node, word(&s.state)));
        let mut words: Vec<String> = words.collect();
        words.sort();
        let found = words.join(", ");
        if found == expected {
            return;
        }
        let in_time = begun.elapsed() < PATIENCE;
        assert!(in_time, "{found:?}, expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_is_selected_matters_to_who_selects_it_and_to_who_may_have() {
    let mut shop = Shop::open(&[(CDS, "a", "1")]).await;
    let mut one = with_clusters(&shop, "one").await;
    let mut two = of_class(&shop, "two", "other").await;
    until_selected(&shop, Concern::Former, 1, "two has").await;
    let edited = shop.edit(&[(CDS, "a", Some("2"))]);
    let of_one = one.expect(CDS, (&[("a", "2")], &[])).await;
    let of_two = two.expect(CDS, (&[("a", "2")], &[])).await;
    until_selected(&shop, Concern::None, edited, "two pending").await;
    until_selected(&shop, Concern::Former, edited, "one undecided, two pending").await;
    two.ack(CDS, &of_two).await;
    until_selected(&shop, Concern::Former, edited, "one undecided, two has").await;
    one.ack(CDS, &of_one).await;
    until_selected(&shop, Concern::Former, edited, "two has").await;
}

#[tokio::test]
async fn a_change_matters_to_those_who_get_it() {
    let mut shop = Shop::open(&[(CDS, "a", "1"), (CDS, "b", "1@other")]).await;
    let _one = with_clusters(&shop, "one").await;
    let mut other = of_class(&shop, "two", "other").await;
    until(&shop, "Text/a", 1, "one has, two has").await;
    until(&shop, "Text/b", 1, "two has").await;
    let gone = shop.edit(&[(CDS, "b", None)]);
    let nonce = other.expect(CDS, (&[], &["b"])).await;
    until(&shop, "Text/b", gone, "two pending").await;
    other.ack(CDS, &nonce).await;
    until(&shop, "Text/b", gone, "").await;
}

#[tokio::test]
async fn a_rejection_is_told_with_its_reason() {
    let mut shop = Shop::open(&[(CDS, "a", "1"), (CDS, "b", "1")]).await;
    let mut client = with_clusters(&shop, "one").await;
    let edited = shop.edit(&[(CDS, "a", Some("bad")), (CDS, "b", Some("2"))]);
    let nonce = client.expect(CDS, (&[("a", "bad"), ("b", "2")], &[])).await;
    client.reject(CDS, &nonce, "cluster(s) a: no such").await;
    let nonce = client.expect(CDS, (&[("b", "2")], &[])).await;
    client.ack(CDS, &nonce).await;
    until(&shop, "Text/b", edited, "one has").await;
    let standings = standings(&shop, "Text/a", edited);
    let State::Refused {
        resources,
        refusal: Some(refusal),
        message,
        ..
    } = &standings["one"]
    else {
        panic!("{standings:?}");
    };
    assert_eq!((&*resources[0], resources.len()), ("a", 1));
    assert_eq!(&**message, "cluster(s) a: no such");
    assert_eq!((&*refusal.root, &refusal.message), ("v2", message));
    let cured = shop.edit(&[(CDS, "a", Some("3"))]);
    let nonce = client.expect(CDS, (&[("a", "3")], &[])).await;
    client.ack(CDS, &nonce).await;
    until(&shop, "Text/a", cured, "one has").await;
}

#[tokio::test]
async fn what_is_set_aside_is_refused_for_the_whole_class() {
    let mut shop = Shop::open(&[(LDS, "a", "1")]).await;
    let mut clients = Vec::new();
    for name in ["one", "two"] {
        let mut client = shop.delta(name).await;
        client.ask(LDS, &[], &[]).await;
        let nonce = client.receive().await.nonce;
        client.ack(LDS, &nonce).await;
        clients.push(client);
    }
    until(&shop, "Text/a", 1, "one has, two has").await;
    let poisoned = shop.edit(&[(FILTER, "poison", Some("!"))]);
    let nonce = clients[0].expect(LDS, (&[("a", "1+!")], &[])).await;
    clients[0].reject(LDS, &nonce, "listener(s) a: no").await;
    let everybody = "one refused, two refused";
    let begun = Instant::now();
    // While it is on trial nobody is done with it.
    loop {
        let found = words(&shop, "Filter/poison", poisoned);
        if found == everybody {
            break;
        }
        assert!(
            found.contains("one ") && !found.contains("one has"),
            "{found:?}"
        );
        assert!(begun.elapsed() < PATIENCE, "{found:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let standings = standings(&shop, "Filter/poison", poisoned);
    let said = |state: &State| matches!(state, State::Refused { message, .. } if &**message == "listener(s) a: no");
    assert!(standings.values().all(said), "{standings:?}");
}

#[tokio::test]
async fn another_change_of_the_same_resource_takes_nothing_away() {
    let mut shop = Shop::open(&[(LDS, "a", "1")]).await;
    let mut client = shop.delta("one").await;
    client.ask(LDS, &[], &[]).await;
    let nonce = client.receive().await.nonce;
    client.ack(LDS, &nonce).await;
    let filtered = shop.edit(&[(FILTER, "f", Some("f"))]);
    let nonce = client.expect(LDS, (&[("a", "1+f")], &[])).await;
    client.ack(LDS, &nonce).await;
    until(&shop, "Filter/f", filtered, "one has").await;
    let edited = shop.edit(&[(LDS, "a", Some("2"))]);
    client.expect(LDS, (&[("a", "2+f")], &[])).await;
    until(&shop, "Text/a", edited, "one pending").await;
    assert_eq!(words(&shop, "Filter/f", filtered), "one has");
}

#[tokio::test]
async fn those_who_left_are_named_until_they_are_back() {
    let mut shop = Shop::open(&[(CDS, "a", "1")]).await;
    let one = with_clusters(&shop, "one").await;
    let _two = with_clusters(&shop, "two").await;
    until(&shop, "Text/a", 1, "one has, two has").await;
    drop(one);
    until(&shop, "Text/a", 1, "two has").await;
    let edited = shop.edit(&[(CDS, "a", Some("2"))]);
    let objects = [Source::from("Text/a")];
    let departed = |since| {
        let question = Question {
            matter: Matter::Objects(&objects),
            since,
        };
        let departed = shop
            .server
            .survey()
            .departed(&question, Instant::now().into_std());
        departed
            .iter()
            .map(|gone| (gone.stream.node.to_string(), gone.had))
            .collect::<Vec<_>>()
    };
    until(&shop, "Text/a", edited, "two pending").await;
    assert_eq!(departed(edited), [("one".to_owned(), false)]);
    let _back = shop.delta("one").await;
    assert_eq!(departed(edited).len(), 1, "it has said nothing yet");
    let _back = with_clusters(&shop, "one").await;
    assert_eq!(departed(edited), []);
}

#[tokio::test]
async fn after_a_restart_those_who_state_what_they_have_have_it() {
    let texts = [(CDS, "a", "1"), (CDS, "b", "1")];
    let mut shop = Shop::open(&texts).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &[], &[]).await;
    let response = client.receive().await;
    let held: BTreeMap<String, String> = response
        .resources
        .into_iter()
        .map(|resource| (resource.name, resource.version))
        .collect();
    shop.edit(&[(CDS, "a", Some("2"))]);

    let again = Shop::open(&[(CDS, "a", "2"), (CDS, "b", "1")]).await;
    let mut client = again.delta("one").await;
    client.state(CDS, &[], &held).await;
    client.expect(CDS, (&[("a", "2")], &[])).await;
    until(&again, "Text/a", 1, "one pending").await;
    until(&again, "Text/b", 1, "one has").await;
}

#[tokio::test]
async fn a_proxy_shows_what_it_lacks() {
    let mut shop = Shop::open(&[(CDS, "a", "1"), (CDS, "b", "1")]).await;
    let mut client = with_clusters(&shop, "one").await;
    until(&shop, "Text/a", 1, "one has").await;
    shop.edit(&[(CDS, "a", Some("2")), (CDS, "b", None)]);
    let nonce = client.receive().await.nonce;
    let look = || shop.server.proxies(|node| node == "one").remove(0);
    let begun = Instant::now();
    while look().types[0].undecided {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let shown = look().types.remove(0);
    assert_eq!(shown.root.as_deref(), Some("v1"));
    assert_eq!((&**shown.lacks[0].name(), shown.lacks.len()), ("a", 1));
    assert_eq!((&*shown.obsolete[0], shown.obsolete.len()), ("b", 1));
    assert!(shown.waits_since.is_some() && !shown.is_current());
    client.ack(CDS, &nonce).await;
    while !look().types[0].is_current() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(look().types[0].root.as_deref(), Some("v2"));
}

/// A client with a book of what it has accepted.
struct Keeper {
    name: String,
    client: Delta,
    book: BTreeMap<String, String>,
    /// Responses that it has read and not answered.
    open: Vec<envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse>,
}

impl Keeper {
    async fn start(shop: &Shop, name: &str) -> Self {
        let mut client = shop.delta(name).await;
        client.ask(CDS, &[], &[]).await;
        Self {
            name: name.to_owned(),
            client,
            book: BTreeMap::new(),
            open: Vec::new(),
        }
    }

    /// Reads what is there.
    async fn read(&mut self) {
        let wait = Duration::from_millis(1);
        while let Ok(Ok(Some(response))) =
            tokio::time::timeout(wait, self.client.responses.message()).await
        {
            self.open.push(response);
        }
    }

    /// Accepts, or rejects, the oldest open response.
    async fn answer(&mut self, accept: bool) {
        if self.open.is_empty() {
            return;
        }
        let response = self.open.remove(0);
        if !accept {
            self.client.reject(CDS, &response.nonce, "no").await;
            return;
        }
        for resource in &response.resources {
            let body = resource.resource.as_ref().unwrap();
            let text = String::from_utf8(body.value.clone()).unwrap();
            self.book.insert(resource.name.clone(), text);
        }
        for name in &response.removed_resources {
            self.book.remove(name);
        }
        self.client.ack(CDS, &response.nonce).await;
    }
}

/// The clients that lack a change, and the roots of what they hold instead, as far as that is certain.
fn held_for_certain(shop: &Shop, object: &str, since: u64) -> Vec<(String, String)> {
    let objects = [Source::from(object)];
    let question = Question {
        matter: Matter::Objects(&objects),
        since,
    };
    let standings = shop.server.survey().standings(&question).into_iter();
    let held = standings.flat_map(|standing| {
        let node = standing.stream.node;
        let held = standing.holds.into_iter();
        held.map(move |root| (node.to_string(), root.to_string()))
    });
    held.collect()
}

/// The law of the ledger: nobody is ever said to have what is not in its own book.
#[tokio::test]
async fn no_answer_contradicts_the_books_of_the_clients() {
    let names = ["a", "b", "c", "d"];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random % below as u64).unwrap()
    };
    let mut shop = Shop::open(&[(CDS, "a", "0")]).await;
    let mut current: BTreeMap<&str, (Option<String>, u64)> =
        BTreeMap::from([("a", (Some("0".to_owned()), 1))]);
    let mut keepers = Vec::new();
    for number in 0..4 {
        keepers.push(Keeper::start(&shop, &format!("k{number}")).await);
    }
    // What every state of the world says, by its root.
    let texts = |current: &BTreeMap<&'static str, (Option<String>, u64)>| {
        let texts = current.iter();
        let texts = texts.filter_map(|(name, (text, _))| Some((*name, text.clone()?)));
        texts.collect::<BTreeMap<&str, String>>()
    };
    let mut states = vec![BTreeMap::new(), texts(&current)];
    let (mut said, mut certain) = (0, 0);
    for step in 0..400 {
        let keeper = draw(keepers.len());
        match draw(8) {
            0 | 1 => {
                let name = names[draw(names.len())];
                // Of few texts, so that some come again.
                let text = (draw(4) > 0).then(|| draw(5).to_string());
                let number = shop.edit(&[(CDS, name, text.as_deref())]);
                current.insert(name, (text, number));
                states.push(texts(&current));
            }
            2 => keepers[keeper].answer(draw(4) > 0).await,
            3 if draw(6) == 0 => {
                let name = keepers[keeper].name.clone();
                keepers[keeper] = Keeper::start(&shop, &name).await;
            }
            3 | 4 => keepers[keeper].answer(true).await,
            _ => keepers[keeper].read().await,
        }
        for (name, (text, number)) in &current {
            let standings = standings(&shop, &format!("Text/{name}"), *number);
            for keeper in &keepers {
                if let Some(State::Has { .. }) = standings.get(&keeper.name) {
                    let held = keeper.book.get(*name);
                    assert_eq!(held, text.as_ref(), "{} of {name} at {step}", keeper.name);
                    said += 1;
                }
            }
            for (node, root) in held_for_certain(&shop, &format!("Text/{name}"), *number) {
                let number: usize = root[1..].parse().unwrap();
                let keeper = keepers.iter().find(|keeper| keeper.name == node).unwrap();
                let (held, stated) = (keeper.book.get(*name), states[number].get(*name));
                assert_eq!(held, stated, "{node} of {name} at {step}, as of {root}");
                certain += 1;
            }
        }
    }
    assert!(said > 100 && certain > 0, "{said}, {certain}");
    // In the end everybody has everything, or has said no.
    for _ in 0..400 {
        for keeper in &mut keepers {
            keeper.read().await;
            keeper.answer(true).await;
        }
        let open = current.iter().any(|(name, (_, number))| {
            let standings = standings(&shop, &format!("Text/{name}"), *number);
            standings
                .values()
                .any(|s| matches!(s, State::Pending { .. } | State::Undecided))
        });
        if !open {
            return;
        }
    }
    panic!("it never settles");
}
