//! Laws 1 and 2 over a case: neither the order of its objects nor the way to it shows.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::{Result, bail};
use generators::{Mesh, Update};
use intake::{Change, Intake};
use istiod::generate::{Generator, Received, ResourceType, json};
use model::{Object, Proxy, PushRequest};
use pushctx::{ClassKey, PushContext};
use serde_json::Value;
use xds::{ResourceSet, Touched, World as _};

use super::{Loaded, now};

/// How many differences are told.
const TOLD: usize = 5;

type Proxies<'a> = BTreeMap<&'a str, (Proxy, Received)>;

/// Generates again with the objects shuffled, and in a running world in which they arrive one after
/// the other, some in another form first, and some come, go and come again.
///
/// # Errors
/// When a proxy gets other resources than before.
pub(super) fn check(loaded: &Loaded, proxies: &Proxies<'_>) -> Result<()> {
    let mut random = loaded.random.clone();
    let mut objects = loaded.objects.clone();
    random.shuffle(&mut objects);
    let mut intake = loaded.intake();
    intake.apply(objects.iter().cloned().map(Change::Apply), now());
    let generator = Generator::new(intake.state())?;
    for (name, (proxy, received)) in proxies {
        let class = generator.context().classify(proxy);
        for (kind, (interest, expected)) in &received.asked {
            let set = generator.set(&class, *kind, interest);
            compare("law 1: shuffled", name, *kind, expected, &set)?;
        }
    }

    random.shuffle(&mut objects);
    let mut world = World::new(loaded, proxies)?;
    let (early, late) = objects.split_at(objects.len() / 2);
    world.feed(early.iter().map(applied));
    world.look();
    // Objects that were refused must not stay.
    let real = |earlier: &&Object| objects.iter().any(|object| object.key() == earlier.key());
    world.feed(loaded.earlier.iter().filter(real).map(applied));
    world.look();
    world.feed(late.iter().map(applied));
    world.look();
    world.feed(early.iter().map(applied));
    let passing = objects.iter().step_by(3);
    world.feed(passing.clone().map(|object| Change::Delete(object.key())));
    world.look();
    world.feed(passing.map(applied));
    world.look();
    world.compare()
}

fn applied(object: &Object) -> Change {
    Change::Apply(object.clone())
}

/// A control plane that goes from state to state with proxies connected to it.
struct World<'a> {
    intake: Intake,
    generator: Generator,
    clients: Vec<Client<'a>>,
}

/// What a connection remembers: its class and the sets that it was sent.
struct Client<'a> {
    name: &'a str,
    proxy: &'a Proxy,
    expected: &'a Received,
    class: Arc<ClassKey>,
    sent: BTreeMap<ResourceType, ResourceSet>,
}

impl<'a> World<'a> {
    fn new(loaded: &Loaded, proxies: &'a Proxies<'a>) -> Result<Self> {
        let intake = loaded.intake();
        let generator = Generator::new(intake.state())?;
        let clients = proxies.iter().map(|(name, (proxy, expected))| Client {
            name,
            proxy,
            expected,
            class: generator.context().classify(proxy),
            sent: BTreeMap::new(),
        });
        Ok(Self {
            clients: clients.collect(),
            intake,
            generator,
        })
    }

    /// Applies changes, a snapshot for each.
    fn feed(&mut self, changes: impl Iterator<Item = Change>) {
        for change in changes {
            let request = self.intake.apply([change], now());
            if request.is_empty() {
                continue;
            }
            let before = self.generator.context().clone();
            self.generator.advance(self.intake.state(), &request);
            let after = self.generator.context();
            for client in &mut self.clients {
                client.hear(&before, after, &request);
            }
        }
    }

    /// Generates what was touched since the last look.
    fn look(&mut self) {
        for client in &mut self.clients {
            for (kind, (interest, _)) in &client.expected.asked {
                let class = &client.class;
                let sent = client.sent.entry(*kind);
                sent.or_insert_with(|| self.generator.set(class, *kind, interest));
            }
        }
    }

    fn compare(&self) -> Result<()> {
        for client in &self.clients {
            for (kind, (_, expected)) in &client.expected.asked {
                if let Some(sent) = client.sent.get(kind) {
                    compare("law 2: one by one", client.name, *kind, expected, sent)?;
                }
            }
        }
        Ok(())
    }
}

impl Client<'_> {
    /// Forgets what a change touches, as the server does.
    fn hear(&mut self, from: &PushContext, to: &PushContext, request: &PushRequest) {
        let update = Update(request.clone());
        let change = xds::Change {
            from: Some(from),
            to,
            update: &update,
        };
        if Mesh::default().regroups(&change) {
            let class = Mesh::default().classify(to, self.proxy);
            if !Arc::ptr_eq(&class, &self.class) {
                self.class = class;
                self.sent.clear();
            }
        }
        self.sent.retain(|kind, _| {
            Mesh::default().touched(&change, &self.class, kind.url()) == Touched::Nothing
        });
    }
}

fn compare(
    what: &str,
    proxy: &str,
    kind: ResourceType,
    expected: &ResourceSet,
    got: &ResourceSet,
) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    let (expected, got) = (json(kind, expected), json(kind, got));
    let names = expected.keys().chain(got.keys());
    let names: std::collections::BTreeSet<&String> = names.collect();
    let mut lines = Vec::new();
    for name in names {
        let side = |side: &BTreeMap<String, Value>| side.get(name).cloned().unwrap_or_default();
        for difference in envoy_json::compare::compare(&side(&expected), &side(&got)) {
            lines.push(format!("{proxy}/{}[{name}].{difference}", kind.list()));
        }
    }
    if lines.is_empty() {
        lines.push(format!("{proxy}/{}: the same, in other bytes", kind.list()));
    }
    lines.truncate(TOLD);
    bail!("{what}: {}", lines.join("\n    "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{conformance::case::CaseInput, generate::received_of};

    const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.2.0.1
  ports: [{name: http, port: 80}]
";
    const RULE: &str = "
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: web
  subsets: [{name: v1, labels: {version: v1}}]
";

    fn case(text: String) -> (Loaded, CaseInput) {
        let node = json!({"id": "sidecar~10.1.0.1~web-0.shop~shop.svc.cluster.local"});
        let input = CaseInput {
            id: "area/case".to_owned(),
            files: vec![("input.yaml".to_owned(), text)],
            nodes: [("client".to_owned(), node)].into(),
            mesh: Value::Null,
            networks: Value::Null,
            env: BTreeMap::new(),
        };
        (Loaded::of(&input, 0).unwrap(), input)
    }

    #[test]
    fn the_same_resources_pass() {
        let (loaded, input) = case(format!("{WEB}{RULE}"));
        assert!(!loaded.earlier.is_empty());
        check(&loaded, &received_of(&loaded, &input).unwrap()).unwrap();
    }

    #[test]
    fn other_resources_fail_with_the_difference() {
        let (loaded, input) = case(format!("{WEB}{RULE}"));
        let (other, _) = case(WEB.to_owned());
        let error = check(&other, &received_of(&loaded, &input).unwrap()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("law 1: shuffled: client/clusters[outbound|80|v1|web.shop"),
            "{text}"
        );
    }

    #[test]
    fn what_a_change_touches_is_generated_again() {
        let (loaded, input) = case(format!("{WEB}{RULE}"));
        let proxies = received_of(&loaded, &input).unwrap();
        let mut world = World::new(&loaded, &proxies).unwrap();
        world.feed(loaded.objects.iter().map(applied));
        world.look();
        world.compare().unwrap();
        let rule = loaded.objects.last().unwrap().key();
        world.feed([Change::Delete(rule)].into_iter());
        world.look();
        world.compare().unwrap_err();
    }
}
