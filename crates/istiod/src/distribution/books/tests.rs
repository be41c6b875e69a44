use std::time::Duration;

use model::{Reason, ServiceKey, api, config::Config};

use super::*;

#[expect(clippy::disallowed_methods, reason = "any moment does")]
fn now() -> Instant {
    Instant::now()
}

fn service_entry(name: &str, host: &str) -> Object {
    let meta = model::config::Meta {
        namespace: "ns".into(),
        name: name.into(),
        ..Default::default()
    };
    let spec = api::ServiceEntry {
        hosts: vec![host.into()],
        ..Default::default()
    };
    Object::ServiceEntry(Arc::new(Config { meta, spec }))
}

fn key(name: &str) -> Key {
    Key::new("ServiceEntry", "ns", name).unwrap()
}

fn request(names: &[&str]) -> PushRequest {
    PushRequest {
        changed: names
            .iter()
            .map(|name| ConfigKey::new(Kind::ServiceEntry, "ns", *name))
            .collect(),
        ..PushRequest::default()
    }
}

fn state(objects: &[(&str, &str)]) -> MeshState {
    let mut state = MeshState::default();
    for (name, host) in objects {
        state.objects.insert(service_entry(name, host));
    }
    state
}

#[test]
fn a_change_is_of_its_publication_once_that_is_out() {
    let mut books = Books::open(
        History::default(),
        &state(&[("a", "a1"), ("b", "b1")]),
        now(),
    );
    let first = books.root();
    assert_eq!(books.published(&key("a")).publication, 1);
    let next = state(&[("a", "a2"), ("b", "b1")]);
    let second = books.begin(&next, &request(&["a", "b"]), now());
    assert_ne!(first, second);
    assert_eq!(books.published(&key("a")).publication, UNDER_WAY);
    let finished = books.finish(7, now());
    assert_eq!(finished.len(), 1, "b is as it was");
    assert_eq!(books.published(&key("a")).publication, 7);
    assert_eq!(books.published(&key("b")).publication, 1);
    assert_ne!(books.at(&first, &key("a")), books.at(&second, &key("a")));
    assert_eq!(books.changed_since(&first), Some(vec![key("a")]));
    assert_eq!(books.at("0123456789abcdef", &key("a")), None);
}

#[test]
fn what_is_not_in_the_request_is_not_published() {
    let mut books = Books::open(History::default(), &state(&[("a", "a1")]), now());
    let before = books.current(&key("a"));
    books.begin(&state(&[("a", "a2"), ("b", "b1")]), &request(&["b"]), now());
    assert_eq!(books.current(&key("a")), before);
    assert!(books.current(&key("b")).is_some());
}

#[test]
fn a_forced_request_looks_at_everything() {
    let mut books = Books::open(
        History::default(),
        &state(&[("a", "a1"), ("b", "b1")]),
        now(),
    );
    let mut next = state(&[("a", "a2")]);
    next.mesh = Arc::new(api::MeshConfig {
        root_namespace: "elsewhere".into(),
        ..Default::default()
    });
    let first = books.root();
    books.begin(
        &next,
        &PushRequest::everything(Reason::Global, now()),
        now(),
    );
    let changed = books.changed_since(&first).unwrap();
    assert_eq!(changed, [Key::Mesh, key("a"), key("b")]);
    assert_eq!(books.current(&key("b")), None);
    assert!(books.has_changed(&key("b")));
}

#[test]
fn endpoints_have_a_key_of_their_own() {
    let mut books = Books::open(History::default(), &MeshState::default(), now());
    let mut next = MeshState::default();
    let service = ServiceKey::new("ns", "a.example.com");
    let endpoints = model::ServiceEndpoints {
        fingerprint: 5,
        ..Default::default()
    };
    next.endpoints.insert(service.clone(), Arc::new(endpoints));
    let request = PushRequest {
        endpoints: [service.clone()].into(),
        ..PushRequest::default()
    };
    books.begin(&next, &request, now() + Duration::from_secs(1));
    let current = books.current(&Key::Endpoints(service));
    assert_eq!(current, Some(ShortXxh3::from_u64(5)));
}

#[test]
fn equal_contents_have_equal_roots_whatever_their_history() {
    let target = state(&[("a", "a2"), ("b", "b1")]);
    let direct = Books::open(History::default(), &target, now());
    let mut long = Books::open(
        History::default(),
        &state(&[("a", "a1"), ("c", "c1")]),
        now(),
    );
    long.begin(&target, &request(&["a", "b", "c"]), now());
    assert_eq!(direct.root(), long.root());
}
