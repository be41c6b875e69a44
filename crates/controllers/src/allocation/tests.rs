use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::*;

fn entry(name: &str, created: i64, object: &Value) -> Arc<Config<ServiceEntry>> {
    let mut spec: ServiceEntry = model::api::decode(&object["spec"]).unwrap().value;
    spec.status = model::api::decode(&object["status"]).unwrap().value;
    let mut entry = Config {
        meta: model::config::Meta::default(),
        spec,
    };
    entry.meta.namespace = "x".into();
    entry.meta.name = name.into();
    entry.meta.created = Timestamp(created);
    entry.meta.labels = serde_json::from_value(object["labels"].clone()).unwrap_or_default();
    entry.meta.resource_version = format!("{name}-{created}");
    Arc::new(entry)
}

fn dns(hosts: &[&str], addresses: &[(&str, &str)]) -> Value {
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|(value, host)| json!({"value": value, "host": host}))
        .collect();
    json!({"spec": {"hosts": hosts, "resolution": "DNS"}, "status": {"addresses": addresses}})
}

fn stated(hosts: &[&str], addresses: &[&str]) -> Value {
    json!({"spec": {"hosts": hosts, "resolution": "DNS", "addresses": addresses}})
}

/// A table and its allocator.
struct World {
    table: Table<ServiceEntry>,
    allocator: Allocator,
}

impl World {
    fn new(v4: &str) -> Self {
        Self {
            table: Table::new(),
            allocator: Allocator::new(v4.parse().unwrap(), "2001:2::/48".parse().unwrap()),
        }
    }

    fn put(&mut self, name: &str, created: i64, object: &Value) {
        self.table
            .insert(NamespacedName::new("x", name), entry(name, created, object));
    }

    fn remove(&mut self, name: &str) {
        self.table.remove(&NamespacedName::new("x", name));
    }

    /// What is to be written now, one line an entry.
    fn update(&mut self) -> Vec<String> {
        let line = |assignment: Assignment| {
            let name = std::iter::once(assignment.entry.name.to_string());
            let addresses = assignment.addresses.into_iter();
            let addresses = addresses.map(|(address, host)| format!("{address}={host}"));
            name.chain(addresses).collect::<Vec<_>>().join(" ")
        };
        self.allocator
            .update(&self.table)
            .into_iter()
            .map(line)
            .collect()
    }
}

#[track_caller]
fn check(entries: &[(&str, i64, Value)], expected: &[&str]) {
    let mut world = World::new("240.240.0.0/16");
    for (name, created, object) in entries {
        world.put(name, *created, object);
    }
    assert_eq!(world.update(), expected);
    assert_eq!(world.update(), [""; 0], "nothing has changed");
}

#[test]
fn hosts_get_the_first_addresses_in_the_order_of_creation() {
    check(
        &[
            ("b", 1, dns(&["b.com", "*.b.com", "c.com"], &[])),
            ("a", 2, dns(&["a.com"], &[])),
        ],
        &[
            "b 240.240.0.1=b.com 2001:2::1=b.com 240.240.0.2=c.com 2001:2::2=c.com",
            "a 240.240.0.3=a.com 2001:2::3=a.com",
        ],
    );
}

#[test]
fn the_oldest_keeps_an_address_that_several_have() {
    // service-registry §21.7
    check(
        &[
            ("old", 2023, dns(&["o.com"], &[("240.240.0.1", "o.com")])),
            ("new", 2024, dns(&["n.com"], &[("240.240.0.1", "n.com")])),
            ("user", 2025, stated(&["u.com"], &["240.240.0.2"])),
            ("fresh", 2026, dns(&["f.com", "*.f.com"], &[])),
        ],
        &[
            "new 240.240.0.3=n.com 2001:2::1=n.com",
            "fresh 240.240.0.4=f.com 2001:2::2=f.com",
        ],
    );
}

#[test]
fn nobody_keeps_an_address_that_somebody_states() {
    check(
        &[
            ("old", 1, dns(&["o.com"], &[("240.240.0.1", "o.com")])),
            ("range", 2, stated(&["r.com"], &["240.240.0.0/24"])),
        ],
        &["old 240.240.1.0=o.com 2001:2::1=o.com"],
    );
}

#[test]
fn who_wants_none_has_none() {
    let mut opted_out = dns(&["o.com"], &[("240.240.0.1", "o.com")]);
    opted_out["labels"] = json!({LABEL: "False"});
    let mut none = dns(&["n.com"], &[]);
    none["spec"]["resolution"] = json!("NONE");
    check(&[("a", 1, opted_out), ("b", 2, none)], &["a"]);
}

#[test]
fn wildcards_get_addresses_where_names_are_found_as_they_are_used() {
    let mut dynamic = dns(&["*.d.com"], &[]);
    dynamic["spec"]["resolution"] = json!("DYNAMIC_DNS");
    check(
        &[("d", 1, dynamic)],
        &["d 240.240.0.1=*.d.com 2001:2::1=*.d.com"],
    );
}

#[test]
fn hosts_come_and_go_and_the_others_keep_theirs() {
    let mut world = World::new("240.240.0.0/16");
    let first = [("240.240.0.7", "a.com"), ("2001:2::7", "a.com")];
    world.put("e", 1, &dns(&["b.com", "a.com"], &first));
    let expected = "e 240.240.0.1=b.com 2001:2::1=b.com 240.240.0.7=a.com 2001:2::7=a.com";
    assert_eq!(world.update(), [expected]);
    let both = [
        first.as_slice(),
        &[("240.240.0.1", "b.com"), ("2001:2::1", "b.com")],
    ]
    .concat();
    world.put("e", 1, &dns(&["b.com", "a.com"], &both));
    assert_eq!(world.update(), [""; 0], "it is written");
    world.put("e", 1, &dns(&["b.com"], &both));
    assert_eq!(world.update(), ["e 240.240.0.1=b.com 2001:2::1=b.com"]);
}

#[test]
fn what_was_decided_stands_until_it_is_written() {
    let mut world = World::new("240.240.0.0/16");
    world.put("e", 1, &dns(&["a.com"], &[]));
    let first = world.update();
    // Something else of it changes before the status arrives.
    world.put(
        "e",
        1,
        &json!({"spec": {"hosts": ["a.com"], "resolution": "STATIC"}}),
    );
    assert_eq!(world.update(), first);
}

#[test]
fn addresses_of_the_deleted_are_not_given_again_while_others_are_left() {
    let mut world = World::new("10.0.0.0/30");
    let v4 = |lines: Vec<String>| {
        let address = lines.first().and_then(|line| line.split([' ', '=']).nth(1));
        address.map(str::to_owned)
    };
    for (name, expected) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
        world.put(name, 1, &dns(&["h.com"], &[]));
        assert_eq!(v4(world.update()).as_deref(), Some(expected));
        world.remove(name);
        assert_eq!(world.update(), [""; 0]);
    }
    // Exhausted: the other family is given all the same.
    world.put("d", 1, &dns(&["h.com"], &[]));
    assert_eq!(world.update(), ["d 2001:2::4=h.com"]);
}

#[test]
fn no_address_is_given_twice() {
    let mut world = World::new("240.240.0.0/22");
    for n in 0..1000 {
        world.put(&format!("e{n}"), n % 7, &dns(&[&format!("h{n}.com")], &[]));
    }
    let mut seen = BTreeSet::new();
    for assignment in world.allocator.update(&world.table) {
        for (address, _) in assignment.addresses {
            assert!(seen.insert(address), "{address}");
        }
    }
    assert_eq!(seen.len(), 2000);
    assert!(!seen.contains(&IpAddr::V4(Ipv4Addr::new(240, 240, 0, 0))));
}
