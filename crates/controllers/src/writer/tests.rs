use super::*;

const CONFIG_MAP: Resource = Resource {
    group: "",
    version: "v1",
    kind: "ConfigMap",
    plural: "configmaps",
};

fn target(name: &str) -> Target {
    Target {
        resource: CONFIG_MAP,
        part: Part::Whole,
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    }
}

fn wanted(name: &str, value: u32, seen: Option<&str>) -> Wanted {
    Wanted {
        target: target(name),
        fields: json!({"data": {"value": value}}),
        seen: seen.map(str::to_owned),
        strict: false,
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// What begins now, as name and value.
fn begun(writes: &mut Writes, now: Instant) -> Vec<(String, u64)> {
    std::iter::from_fn(|| writes.begin(now))
        .map(|write| {
            let value = write.object["data"]["value"].as_u64().unwrap();
            (write.target.name, value)
        })
        .collect()
}

#[track_caller]
fn check(writes: &mut Writes, now: Instant, expected: &[(&str, u64)]) {
    let expected: Vec<(String, u64)> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    assert_eq!(begun(writes, now), expected);
}

#[test]
fn what_waits_is_replaced_by_what_is_newer() {
    let (mut writes, now) = (Writes::new(2), Instant::now());
    for value in 0..1000 {
        writes.want(wanted("a", value, Some("1")));
    }
    check(&mut writes, now, &[("a", 999)]);
    for value in 0..1000 {
        assert!(writes.want(wanted("a", value, Some("1"))) || value == 999);
    }
    check(&mut writes, now, &[]);
    writes.want(wanted("a", 5, Some("1")));
    writes.end(now, &target("a"), &Outcome::Done);
    check(&mut writes, now, &[("a", 5)]);
}

#[test]
fn nothing_is_written_twice_unless_the_object_has_changed() {
    let (mut writes, now) = (Writes::new(2), Instant::now());
    writes.want(wanted("a", 1, Some("1")));
    check(&mut writes, now, &[("a", 1)]);
    assert!(!writes.want(wanted("a", 1, Some("1"))));
    writes.end(now, &target("a"), &Outcome::Done);
    check(&mut writes, now, &[]);
    // Who decides has not seen our own write yet.
    assert!(!writes.want(wanted("a", 1, Some("1"))));
    check(&mut writes, now, &[]);
    // Somebody has undone it.
    assert!(writes.want(wanted("a", 1, Some("3"))));
    check(&mut writes, now, &[("a", 1)]);
}

#[test]
fn what_fails_is_tried_again_later_and_later_and_then_as_the_newest() {
    let (mut writes, mut now) = (Writes::new(2), Instant::now());
    writes.want(wanted("a", 1, None));
    let mut waits = Vec::new();
    for _ in 0..12 {
        check(&mut writes, now, &[("a", 1)]);
        // Said again while it flies.
        writes.want(wanted("a", 1, None));
        writes.end(now, &target("a"), &Outcome::Failed);
        check(&mut writes, now, &[]);
        let wake = writes.wake().unwrap();
        waits.push(wake - now);
        now = wake;
    }
    assert!(waits.is_sorted(), "{waits:?}");
    assert!(
        waits[0] <= FIRST_WAIT && waits[11] > LONGEST_WAIT / 2,
        "{waits:?}"
    );
    writes.want(wanted("a", 2, None));
    check(&mut writes, now, &[("a", 2)]);
    writes.end(now, &target("a"), &Outcome::Done);
    assert_eq!(writes.wake(), None);
    check(&mut writes, now + seconds(1000), &[]);
}

#[test]
fn what_is_overtaken_waits_for_who_decides() {
    let (mut writes, now) = (Writes::new(2), Instant::now());
    writes.want(wanted("a", 1, Some("1")));
    check(&mut writes, now, &[("a", 1)]);
    writes.end(now, &target("a"), &Outcome::Overtaken);
    check(&mut writes, now, &[]);
    writes.want(wanted("a", 1, Some("2")));
    check(&mut writes, now, &[("a", 1)]);
}

#[test]
fn so_many_are_written_at_once_and_all_have_their_turn() {
    let (mut writes, now) = (Writes::new(2), Instant::now());
    for name in ["a", "b", "c"] {
        writes.want(wanted(name, 1, None));
    }
    check(&mut writes, now, &[("a", 1), ("b", 1)]);
    writes.end(now, &target("a"), &Outcome::Done);
    writes.want(wanted("a", 2, None));
    check(&mut writes, now, &[("c", 1)]);
    writes.end(now, &target("b"), &Outcome::Done);
    check(&mut writes, now, &[("a", 2)]);
}

#[test]
fn who_does_not_lead_any_more_writes_nothing() {
    let (mut writes, now) = (Writes::new(1), Instant::now());
    writes.want(wanted("a", 1, None));
    writes.want(wanted("b", 1, None));
    check(&mut writes, now, &[("a", 1)]);
    writes.clear();
    writes.end(now, &target("a"), &Outcome::Failed);
    check(&mut writes, now + seconds(1000), &[]);
    assert_eq!(writes.waiting(), 0);
}

#[test]
fn what_is_forgotten_is_not_written() {
    let (mut writes, now) = (Writes::new(1), Instant::now());
    writes.want(wanted("a", 1, None));
    writes.forget(&target("a"));
    check(&mut writes, now, &[]);
    writes.want(wanted("a", 1, None));
    check(&mut writes, now, &[("a", 1)]);
    writes.want(wanted("a", 2, None));
    writes.forget(&target("a"));
    writes.end(now, &target("a"), &Outcome::Failed);
    check(&mut writes, now + seconds(1000), &[]);
}

#[test]
fn a_status_that_changes_all_the_time_is_written_now_and_then_and_the_last_one_always() {
    let (mut writes, start) = (Writes::new(2), Instant::now());
    let status = Target {
        part: Part::Status,
        ..target("a")
    };
    let mut written = Vec::new();
    // A thousand changes in forty seconds, each of which is taken back at once by who saw it written.
    for change in 0..=1500 {
        let now = start + Duration::from_millis(40) * change;
        let value = change.min(1000);
        if written
            .last()
            .is_some_and(|(_, last)| *last == u64::from(value))
        {
            writes.forget(&status);
        } else {
            writes.want(Wanted {
                target: status.clone(),
                ..wanted("a", value, None)
            });
        }
        for (_, value) in begun(&mut writes, now) {
            writes.end(now, &status, &Outcome::Done);
            written.push(((now - start).as_secs(), value));
        }
    }
    let times: Vec<u64> = written.iter().map(|(second, _)| *second).collect();
    assert_eq!(times, [0, 1, 4, 13, 40]);
    assert_eq!(written.last().map(|(_, value)| *value), Some(1000));
    // After a time of quiet a change is written at once, and what was forgotten goes.
    let now = start + seconds(200);
    writes.want(Wanted {
        target: status.clone(),
        ..wanted("a", 7, None)
    });
    check(&mut writes, now, &[("a", 7)]);
    writes.end(now, &status, &Outcome::Done);
    writes.want(Wanted {
        target: status.clone(),
        ..wanted("a", 8, None)
    });
    assert_eq!(writes.wake(), Some(now + FIRST_REST));
}

#[test]
fn what_somebody_waits_for_does_not_rest() {
    let (mut writes, now) = (Writes::new(1), Instant::now());
    let gate = Target {
        part: Part::Gate,
        ..target("a")
    };
    // Whoever writes the whole status overwrites it.
    for (value, version) in [(1, "1"), (1, "2"), (1, "3")] {
        writes.want(Wanted {
            target: gate.clone(),
            ..wanted("a", value, Some(version))
        });
        check(&mut writes, now, &[("a", 1)]);
        writes.end(now, &gate, &Outcome::Done);
    }
}

#[test]
fn objects_say_what_they_are() {
    let status = Target {
        resource: Resource {
            group: "networking.istio.io",
            version: "v1",
            kind: "ServiceEntry",
            plural: "serviceentries",
        },
        part: Part::Status,
        namespace: "shop".to_owned(),
        name: "it".to_owned(),
    };
    let path = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries/it/status";
    assert_eq!(status.path(), path);
    assert_eq!(target("a").path(), "/api/v1/namespaces/ns/configmaps/a");
    let object = status.object(&json!({"status": {}}), Some("7"));
    let metadata = json!({"namespace": "shop", "name": "it", "resourceVersion": "7"});
    let expected = json!({"apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": metadata, "status": {}});
    assert_eq!(object, expected);
}

#[test]
fn a_patch_of_metadata_is_nothing_but_that() {
    let metadata = Target {
        part: Part::Metadata,
        ..target("a")
    };
    assert_eq!(metadata.path(), "/api/v1/namespaces/ns/configmaps/a");
    let fields = json!({"metadata": {"uid": "u"}});
    assert_eq!(metadata.object(&fields, None), fields);
    let strict = json!({"metadata": {"uid": "u", "resourceVersion": "7"}});
    assert_eq!(metadata.object(&fields, Some("7")), strict);
    let conditions = Target {
        part: Part::Conditions,
        ..target("a")
    };
    let path = "/api/v1/namespaces/ns/configmaps/a/status";
    assert_eq!(conditions.path(), path);
}
