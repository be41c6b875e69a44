//! How requests of the delta variant are read, for one type on one stream.
//!
//! The rows of the table are those of the behavioural specification, section 10.2. It differs from
//! Istio's server in three points, each because a delta client says a thing once only: what a
//! rejection or an outdated request subscribes to is taken over, `*` may come and go at any time,
//! and stated versions are honoured.

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;

use crate::nonce::Nonce;
use crate::sotw::WILDCARD;
use crate::{Interest, Names, Resource, ResourceSet, TypeFacts, Version};

/// What a client asks for of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The names that are asked for one by one, without `*`.
    names: Names,
    /// Whether everything is asked for, whatever the names.
    everything: bool,
}

/// What a request means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Row 2: the first request of the type on this stream.
    Initial {
        /// What is asked for.
        ask: Ask,
        /// What the client says that it has.
        holds: Arc<ResourceSet>,
        /// Names that must be answered.
        answer: BTreeSet<Arc<str>>,
    },
    /// Any later request.
    Later {
        /// How it reads as an answer to a response.
        reply: Reply,
        /// Whether what is asked for changed.
        changed: bool,
        /// Names that must be answered, whether or not the client had them.
        answer: BTreeSet<Arc<str>>,
        /// Names that the client has forgotten.
        forgotten: BTreeSet<Arc<str>>,
    },
    /// Row 1 for a type that is not watched: there is nothing to reject.
    Ignored,
}

/// How a request reads as an answer to an earlier response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It carries no nonce.
    None,
    /// Row 4: it acknowledges one.
    Ack,
    /// Row 1: it rejects one.
    Nack,
    /// Row 3: its nonce is of no response that waits for an answer.
    Stale,
}

impl Ask {
    /// Returns what to generate.
    pub(crate) fn interest(&self, facts: &TypeFacts) -> Interest {
        if self.everything && facts.wildcard {
            Interest::Everything
        } else {
            Interest::Named(self.names.clone())
        }
    }

    /// Returns how many names are stored.
    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }

    /// Takes over equal names of others, so that they are in memory once.
    pub(crate) fn share(&mut self, names: &Names) {
        if self.names == *names {
            self.names = names.clone();
        }
    }
}

fn distinct(names: &[String]) -> BTreeSet<Arc<str>> {
    names
        .iter()
        .filter(|name| *name != WILDCARD)
        .map(|name| name.as_str().into())
        .collect()
}

/// Classifies `request`. `ask` is what was asked for so far, if anything, and takes over what the
/// request changes; `waits` tells whether a response with that nonce waits for an answer.
pub(crate) fn classify(
    ask: Option<&mut Ask>,
    waits: impl FnOnce(&Nonce) -> bool,
    request: &DeltaDiscoveryRequest,
) -> Verdict {
    let subscribe = distinct(&request.resource_names_subscribe);
    let unsubscribe = distinct(&request.resource_names_unsubscribe);
    let stars = |names: &[String]| names.iter().any(|name| name == WILDCARD);
    let star_on = stars(&request.resource_names_subscribe);
    let star_off = stars(&request.resource_names_unsubscribe);
    let Some(ask) = ask else {
        if request.error_detail.is_some() {
            return Verdict::Ignored;
        }
        // No names at all is the old way to say `*`; `*` both on and off is how a client starts
        // that asks on demand.
        let everything = !star_off && (star_on || request.resource_names_subscribe.is_empty());
        let stated = &request.initial_resource_versions;
        let answer: BTreeSet<Arc<str>> = subscribe
            .iter()
            .filter(|name| !stated.contains_key(&***name))
            .cloned()
            .collect();
        let mut names = subscribe;
        if !everything {
            names.extend(stated.keys().map(|name| name.as_str().into()));
        }
        names.retain(|name| !unsubscribe.contains(name));
        return Verdict::Initial {
            ask: Ask {
                names: names.into_iter().collect(),
                everything,
            },
            holds: Arc::new(holds(request)),
            answer: answer.difference(&unsubscribe).cloned().collect(),
        };
    };
    let reply = if request.response_nonce.is_empty() {
        Reply::None
    } else if !waits(&Nonce(request.response_nonce.as_str().into())) {
        Reply::Stale
    } else if request.error_detail.is_some() {
        Reply::Nack
    } else {
        Reply::Ack
    };
    // An acknowledgement, the most frequent request by far, costs nothing however many names are
    // asked for.
    let everything = (ask.everything || star_on) && !star_off;
    let mut changed = ask.everything != everything;
    ask.everything = everything;
    // A client may have dropped a resource and asked for it again before it could say so, and one
    // that no longer asks by name may still get it through `*`: both are answered.
    let mut answer: BTreeSet<Arc<str>> = subscribe.difference(&unsubscribe).cloned().collect();
    let known = |name: &&Arc<str>| ask.names.contains(name);
    let mut dropped: BTreeSet<Arc<str>> = unsubscribe.iter().filter(known).cloned().collect();
    if !dropped.is_empty() || !answer.iter().all(|name| ask.names.contains(name)) {
        changed = true;
        let stays = |name: &&Arc<str>| !dropped.contains(*name);
        let names = ask.names.iter().filter(stays).chain(&answer);
        ask.names = names.cloned().collect();
    }
    let mut forgotten = unsubscribe;
    if ask.everything {
        answer.append(&mut dropped);
        forgotten.clear();
    }
    Verdict::Later {
        reply,
        changed,
        answer,
        forgotten,
    }
}

/// Reads what the client says that it has. A version of another control plane is none of ours, so
/// it reads as one that nothing has.
fn holds(request: &DeltaDiscoveryRequest) -> ResourceSet {
    let stated = &request.initial_resource_versions;
    stated
        .iter()
        .map(|(name, version)| {
            let version =
                Version::parse(version).unwrap_or_else(|| Version::of(version.as_bytes()));
            Resource::stated(name.as_str().into(), version)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::google::rpc::Status;

    use super::*;

    fn request(subscribe: &[&str], unsubscribe: &[&str], nonce: &str) -> DeltaDiscoveryRequest {
        DeltaDiscoveryRequest {
            resource_names_subscribe: subscribe.iter().map(ToString::to_string).collect(),
            resource_names_unsubscribe: unsubscribe.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    fn rejection(subscribe: &[&str], nonce: &str) -> DeltaDiscoveryRequest {
        let error = Status {
            code: 13,
            message: "bad".to_owned(),
            ..Status::default()
        };
        DeltaDiscoveryRequest {
            error_detail: Some(error),
            ..request(subscribe, &[], nonce)
        }
    }

    fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn ask(everything: bool, asked: &[&str]) -> Ask {
        Ask {
            names: asked.iter().copied().collect(),
            everything,
        }
    }

    #[track_caller]
    fn check_first(request: &DeltaDiscoveryRequest, expected: &Ask, answered: &[&str]) {
        let Verdict::Initial { ask, answer, .. } = classify(None, |_| false, request) else {
            panic!("not an initial request");
        };
        assert_eq!((&ask, answer), (expected, names(answered)));
    }

    /// Response `n1` waits for an answer.
    #[track_caller]
    fn check(
        before: &Ask,
        request: &DeltaDiscoveryRequest,
        expected: (Reply, bool),
        answered: &[&str],
        after: &Ask,
    ) {
        let mut asked = before.clone();
        let verdict = classify(Some(&mut asked), |nonce| &*nonce.0 == "n1", request);
        let Verdict::Later {
            reply,
            changed,
            answer,
            ..
        } = verdict
        else {
            panic!("not a later request");
        };
        assert_eq!((reply, changed), expected);
        assert_eq!(answer, names(answered), "names to answer");
        assert_eq!(&asked, after, "what is asked for");
    }

    #[test]
    fn row_1_a_rejection_may_still_subscribe() {
        let a = ask(false, &["a"]);
        check(&a, &rejection(&[], "n1"), (Reply::Nack, false), &[], &a);
        let ab = ask(false, &["a", "b"]);
        check(
            &a,
            &rejection(&["b"], "n1"),
            (Reply::Nack, true),
            &["b"],
            &ab,
        );
        check(&a, &rejection(&[], "n0"), (Reply::Stale, false), &[], &a);
        assert_eq!(
            classify(None, |_| false, &rejection(&["b"], "n1")),
            Verdict::Ignored
        );
    }

    #[test]
    fn row_2_the_first_request_is_answered_whatever_its_nonce() {
        check_first(&request(&[], &[], ""), &ask(true, &[]), &[]);
        check_first(&request(&[], &[], "old"), &ask(true, &[]), &[]);
        check_first(&request(&["*"], &[], ""), &ask(true, &[]), &[]);
        check_first(&request(&["*", "a"], &[], ""), &ask(true, &["a"]), &["a"]);
        check_first(&request(&["a"], &[], ""), &ask(false, &["a"]), &["a"]);
        check_first(&request(&["*"], &["*"], ""), &ask(false, &[]), &[]);
        check_first(&request(&["a"], &["a"], ""), &ask(false, &[]), &[]);
    }

    #[test]
    fn row_2_stated_versions_are_subscriptions_and_need_no_answer() {
        let stated = HashMap::from([("a".to_owned(), "17".to_owned())]);
        let with = |subscribe: &[&str]| DeltaDiscoveryRequest {
            initial_resource_versions: stated.clone(),
            ..request(subscribe, &[], "")
        };
        check_first(&with(&[]), &ask(true, &[]), &[]);
        check_first(&with(&["a", "b"]), &ask(false, &["a", "b"]), &["b"]);
        check_first(&with(&["b"]), &ask(false, &["a", "b"]), &["b"]);
        let Verdict::Initial { holds, .. } = classify(None, |_| false, &with(&[])) else {
            panic!("not an initial request");
        };
        assert_eq!(holds.get("a").map(|r| r.version()), Version::parse("17"));
    }

    #[test]
    fn row_3_subscriptions_of_an_outdated_request_are_kept() {
        let (a, ab) = (ask(false, &["a"]), ask(false, &["a", "b"]));
        check(&a, &request(&[], &[], "n0"), (Reply::Stale, false), &[], &a);
        check(
            &a,
            &request(&["b"], &[], "n0"),
            (Reply::Stale, true),
            &["b"],
            &ab,
        );
    }

    #[test]
    fn row_4a_changes_are_taken_over_with_or_without_a_nonce() {
        let (a, ab) = (ask(false, &["a"]), ask(false, &["a", "b"]));
        check(
            &a,
            &request(&["b"], &[], ""),
            (Reply::None, true),
            &["b"],
            &ab,
        );
        check(
            &a,
            &request(&["b"], &[], "n1"),
            (Reply::Ack, true),
            &["b"],
            &ab,
        );
        check(
            &ab,
            &request(&[], &["b"], "n1"),
            (Reply::Ack, true),
            &[],
            &a,
        );
        check(
            &ab,
            &request(&["b"], &["b"], "n1"),
            (Reply::Ack, true),
            &[],
            &a,
        );
    }

    #[test]
    fn row_4c_no_change_is_an_acknowledgement() {
        let a = ask(true, &["a"]);
        check(&a, &request(&[], &[], "n1"), (Reply::Ack, false), &[], &a);
        check(&a, &request(&[], &[], ""), (Reply::None, false), &[], &a);
        check(
            &a,
            &request(&[], &["b"], "n1"),
            (Reply::Ack, false),
            &[],
            &a,
        );
    }

    #[test]
    fn a_name_that_is_subscribed_to_again_is_answered_again() {
        let a = ask(false, &["a"]);
        check(
            &a,
            &request(&["a"], &[], ""),
            (Reply::None, false),
            &["a"],
            &a,
        );
    }

    #[test]
    fn the_star_may_come_and_go() {
        let (a, all) = (ask(false, &["a"]), ask(true, &["a"]));
        check(
            &a,
            &request(&["*"], &[], "n1"),
            (Reply::Ack, true),
            &[],
            &all,
        );
        check(
            &all,
            &request(&[], &["*"], "n1"),
            (Reply::Ack, true),
            &[],
            &a,
        );
        check(
            &all,
            &request(&[], &["a"], "n1"),
            (Reply::Ack, true),
            &["a"],
            &ask(true, &[]),
        );
    }

    #[test]
    fn only_some_types_can_be_asked_for_as_a_whole() {
        assert_eq!(
            ask(true, &["a"]).interest(&TypeFacts::CLUSTERS),
            Interest::Everything
        );
        assert_eq!(
            ask(true, &["a"]).interest(&TypeFacts::ENDPOINTS),
            Interest::named(["a"])
        );
        assert_eq!(
            ask(false, &["a"]).interest(&TypeFacts::CLUSTERS),
            Interest::named(["a"])
        );
    }
}
