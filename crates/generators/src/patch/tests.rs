//! The rules of envoyfilter §3 to §16, each by example.

mod clusters;
mod listeners;
mod naive;
mod proxies;
mod routes;

use std::sync::Arc;

use envoy_json::json::{self, Unknown};
use model::{
    Config, Meta, Node, Proxy,
    api::{EnvoyFilter, envoy_filter::ApplyTo},
};
use prost::{Message, Name};
use serde_json::{Value, json};

use super::{Outcomes, Pass, Patch, PatchIndex, Run, prepare::PreparedFilter};

/// A patch: what it applies to, its match, its operation and its value.
fn patch(apply_to: &str, matching: &Value, operation: &str, value: &Value) -> Value {
    json!({
        "applyTo": apply_to,
        "match": matching,
        "patch": {"operation": operation, "value": value},
    })
}

/// A filter `ns/f` of these patches.
#[track_caller]
fn prepared(patches: &[Value]) -> PreparedFilter {
    let spec: EnvoyFilter = serde_json::from_value(json!({"configPatches": patches})).unwrap();
    let meta = Meta {
        name: "f".into(),
        namespace: "ns".into(),
        ..Meta::default()
    };
    PreparedFilter::new(&Config { meta, spec })
}

/// The index over these patches, all of which are usable.
#[track_caller]
fn index<I: PatchIndex>(patches: &[Value]) -> I {
    let prepared = prepared(patches);
    assert_eq!(prepared.failures, []);
    I::build(prepared.patches)
}

fn read<M: Message + Name + Default>(value: &Value) -> M {
    json::typed_from_json(value, Unknown::Refuse).unwrap()
}

fn write<M: Message + Name>(message: &M) -> Value {
    json::typed_to_json(message).unwrap()
}

/// A router of a version and further metadata.
fn proxy(version: &str, metadata: Value) -> Proxy {
    let Value::Object(mut metadata) = metadata else {
        panic!("metadata is an object");
    };
    if !version.is_empty() {
        metadata.insert("ISTIO_VERSION".to_owned(), version.into());
    }
    Proxy::parse(&Node {
        id: "router~10.0.0.1~p.ns~ns.svc.cluster.local".to_owned(),
        metadata,
        ..Node::default()
    })
    .unwrap()
}

/// What a run has to report: positions of applied patches, then of those that failed, then of those
/// that had nothing to do.
fn reported(outcomes: &Outcomes) -> (Vec<usize>, Vec<usize>, Vec<usize>) {
    let (mut failed, mut missed) = (Vec::new(), Vec::new());
    for (patch, skip) in &outcomes.skipped {
        let list = match skip {
            super::run::Skip::Failed(_) => &mut failed,
            super::run::Skip::Missed(_) => &mut missed,
        };
        list.push(patch.id().index);
    }
    let applied = outcomes.applied.iter().map(|patch| patch.id().index);
    (applied.collect(), failed, missed)
}

fn ids(patches: impl IntoIterator<Item = Arc<Patch>>) -> Vec<usize> {
    patches.into_iter().map(|patch| patch.id().index).collect()
}

fn run(pass: Pass) -> Run {
    Run::new(pass)
}
