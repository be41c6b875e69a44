//! How requests of the state-of-the-world variant are read, for one type on one stream.
//!
//! The rows of the table are those of the behavioural specification, section 9.2. Where this
//! differs from what Istio's server does, the reason stands at the place.

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;

use crate::nonce::Nonce;
use crate::{Interest, Names, TypeFacts};

/// The name that stands for everything.
pub(crate) const WILDCARD: &str = "*";

/// What a client asks for of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The names of the last accepted request, without `*`.
    names: Names,
    /// Whether everything is asked for, whatever the names.
    everything: bool,
    /// Whether the next acknowledgement must be answered all the same, because clusters that wait
    /// for it were sent on a stream that never saw a request for them.
    pub(crate) always_respond: bool,
    /// What an outdated request left out: the client may have dropped it meanwhile.
    doubted: Interest,
}

/// What a request means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Row 1: the response was rejected. Names that came with it are added, since a client that
    /// gets no further response has no occasion to repeat them; none are taken away.
    Nack {
        /// Whether names were added.
        grown: bool,
    },
    /// Row 2: the type is no longer asked for.
    Unsubscribe,
    /// Row 3: the first request, or the first after a reconnect.
    Initial(Ask),
    /// Row 4: an answer to a response that is no longer the last one. Nothing is taken over.
    Stale,
    /// Row 5a: looks like an acknowledgement but must be answered with everything.
    Forced,
    /// Row 5b: an acknowledgement.
    Ack,
    /// Row 5c: an acknowledgement that asks for less.
    Shrunk,
    /// Row 5d: an acknowledgement that asks for something else.
    Changed,
}

impl Ask {
    /// Reads the names of a request.
    fn of(facts: &TypeFacts, request: &DiscoveryRequest) -> Self {
        let names: Names = request
            .resource_names
            .iter()
            .filter(|name| *name != WILDCARD)
            .map(String::as_str)
            .collect();
        let starred = request.resource_names.iter().any(|name| name == WILDCARD);
        let everything = facts.wildcard && (starred || names.is_empty());
        Self {
            names,
            everything,
            always_respond: false,
            doubted: Interest::Named(Names::default()),
        }
    }

    /// Returns what to generate.
    pub(crate) fn interest(&self) -> Interest {
        if self.everything {
            Interest::Everything
        } else {
            Interest::Named(self.names.clone())
        }
    }

    /// Returns what is asked for and what the client may have dropped while it was not heard: what
    /// it dropped and asked for again looks as if nothing had happened.
    pub(crate) fn take_doubted(&mut self) -> Interest {
        let nothing = Interest::Named(Names::default());
        match std::mem::replace(&mut self.doubted, nothing) {
            Interest::Everything => self.interest(),
            Interest::Named(doubted) => Interest::named(
                doubted
                    .iter()
                    .filter(|name| self.names.contains(name))
                    .cloned(),
            ),
        }
    }

    /// Takes over equal names of others, so that they are in memory once.
    pub(crate) fn share(&mut self, names: &Names) {
        if self.names == *names {
            self.names = names.clone();
        }
    }

    /// Returns how many names are stored.
    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }
}

/// Classifies `request`. `ask` is what was asked for so far, if anything, and takes over what the
/// request changes; `sent` is the nonce of the last response, if there was one.
pub(crate) fn classify(
    ask: Option<&mut Ask>,
    sent: Option<&Nonce>,
    facts: &TypeFacts,
    request: &DiscoveryRequest,
) -> Verdict {
    let new = Ask::of(facts, request);
    if request.error_detail.is_some() {
        let current = sent.is_some_and(|sent| *sent.0 == request.response_nonce);
        let starred = request.resource_names.iter().any(|name| name == WILDCARD);
        let grown = ask.filter(|_| current).is_some_and(|ask| {
            let before = (ask.names.len(), ask.everything);
            ask.names = ask.names.iter().chain(new.names.iter()).cloned().collect();
            ask.everything |= starred && facts.wildcard;
            before != (ask.names.len(), ask.everything)
        });
        return Verdict::Nack { grown };
    }
    if new.names.is_empty() && !new.everything {
        return Verdict::Unsubscribe;
    }
    let Some(ask) = ask.filter(|_| !request.response_nonce.is_empty()) else {
        return Verdict::Initial(new);
    };
    // Before the first response of this stream every nonce is from an earlier one. Istio's server
    // calls it stale and loses the names; a client that got no response never repeats them.
    if sent.is_some_and(|sent| *sent.0 != request.response_nonce) {
        ask.doubted = if ask.everything && !new.everything {
            Interest::Everything
        } else if let Interest::Named(doubted) = &ask.doubted {
            let left_out = ask.names.difference(&new.names);
            Interest::Named(doubted.iter().chain(left_out.iter()).cloned().collect())
        } else {
            Interest::Everything
        };
        return Verdict::Stale;
    }
    let mut old = std::mem::replace(ask, new);
    std::mem::swap(&mut ask.doubted, &mut old.doubted);
    ask.share(&old.names);
    if old.always_respond {
        Verdict::Forced
    } else if old.names == ask.names && old.everything == ask.everything {
        Verdict::Ack
    } else if !facts.wildcard && ask.names.is_subset(&old.names) {
        Verdict::Shrunk
    } else {
        Verdict::Changed
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::rpc::Status;

    use super::*;

    fn request(names: &[&str], nonce: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    fn rejection(names: &[&str], nonce: &str) -> DiscoveryRequest {
        let error = Status {
            code: 13,
            message: "bad".to_owned(),
            ..Status::default()
        };
        DiscoveryRequest {
            error_detail: Some(error),
            ..request(names, nonce)
        }
    }

    fn ask(facts: &TypeFacts, names: &[&str]) -> Ask {
        Ask::of(facts, &request(names, ""))
    }

    const EDS: TypeFacts = TypeFacts::ENDPOINTS;
    const CDS: TypeFacts = TypeFacts::CLUSTERS;

    /// The stored names are `stored` (`None`: no watch), the last response was `n1`.
    #[track_caller]
    fn check(
        facts: TypeFacts,
        stored: Option<&[&str]>,
        request: &DiscoveryRequest,
        expected: &Verdict,
        left: &[&str],
    ) {
        let mut stored = stored.map(|names| ask(&facts, names));
        let sent = stored.as_ref().map(|_| Nonce("n1".into()));
        let verdict = classify(stored.as_mut(), sent.as_ref(), &facts, request);
        assert_eq!(&verdict, expected);
        let stored = stored.unwrap_or_else(|| ask(&facts, &[]));
        assert_eq!(stored.names, left.iter().copied().collect(), "stored names");
    }

    #[test]
    fn row_1_a_rejection_changes_nothing_but_may_add_names() {
        let nack = |grown| Verdict::Nack { grown };
        check(
            EDS,
            Some(&["a", "b"]),
            &rejection(&["a", "b"], "n1"),
            &nack(false),
            &["a", "b"],
        );
        check(
            EDS,
            Some(&["a", "b"]),
            &rejection(&["a"], "n1"),
            &nack(false),
            &["a", "b"],
        );
        check(
            EDS,
            Some(&["a", "b"]),
            &rejection(&[], "n1"),
            &nack(false),
            &["a", "b"],
        );
        check(
            EDS,
            Some(&["a"]),
            &rejection(&["b"], "n1"),
            &nack(true),
            &["a", "b"],
        );
        check(
            EDS,
            Some(&["a"]),
            &rejection(&["b"], "n0"),
            &nack(false),
            &["a"],
        );
        check(EDS, None, &rejection(&["b"], "n0"), &nack(false), &[]);
    }

    #[test]
    fn row_2_no_names_of_a_named_type_end_the_watch() {
        check(
            EDS,
            Some(&["a"]),
            &request(&[], "n1"),
            &Verdict::Unsubscribe,
            &["a"],
        );
        check(EDS, None, &request(&[], ""), &Verdict::Unsubscribe, &[]);
        check(EDS, None, &request(&["*"], ""), &Verdict::Unsubscribe, &[]);
    }

    #[test]
    fn row_3_the_first_request_is_answered_whatever_its_nonce() {
        let initial = |facts, names| Verdict::Initial(ask(facts, names));
        check(EDS, None, &request(&["a"], ""), &initial(&EDS, &["a"]), &[]);
        check(
            EDS,
            None,
            &request(&["a"], "old"),
            &initial(&EDS, &["a"]),
            &[],
        );
        check(
            EDS,
            Some(&["a"]),
            &request(&["b"], ""),
            &initial(&EDS, &["b"]),
            &["a"],
        );
        check(CDS, None, &request(&[], ""), &initial(&CDS, &[]), &[]);
        check(CDS, None, &request(&[], "old"), &initial(&CDS, &[]), &[]);
    }

    #[test]
    fn row_4_names_of_a_stale_request_are_not_taken_over() {
        check(
            EDS,
            Some(&["a"]),
            &request(&["a", "b"], "n0"),
            &Verdict::Stale,
            &["a"],
        );
        check(CDS, Some(&[]), &request(&[], "n0"), &Verdict::Stale, &[]);
    }

    #[test]
    fn what_a_stale_request_left_out_is_sent_again_when_it_is_asked_for() {
        let mut stored = ask(&EDS, &["a", "b"]);
        let sent = Nonce("n1".into());
        for (names, nonce) in [(&["a"][..], "n0"), (&["a", "b"], "n0"), (&["a", "b"], "n1")] {
            classify(Some(&mut stored), Some(&sent), &EDS, &request(names, nonce));
        }
        assert_eq!(stored.take_doubted(), Interest::named(["b"]));
        assert_eq!(stored.take_doubted(), Interest::Named(Names::default()));
    }

    #[test]
    fn before_the_first_response_no_nonce_is_stale() {
        let mut stored = ask(&EDS, &["a"]);
        let verdict = classify(Some(&mut stored), None, &EDS, &request(&["a", "b"], "old"));
        assert_eq!(
            (verdict, stored),
            (Verdict::Changed, ask(&EDS, &["a", "b"]))
        );
    }

    #[test]
    fn row_5a_a_forced_answer_is_given_once() {
        let mut stored = Ask {
            always_respond: true,
            ..ask(&EDS, &["x"])
        };
        let sent = Nonce("n1".into());
        let again = request(&["x"], "n1");
        assert_eq!(
            classify(Some(&mut stored), Some(&sent), &EDS, &again),
            Verdict::Forced
        );
        assert_eq!(
            classify(Some(&mut stored), Some(&sent), &EDS, &again),
            Verdict::Ack
        );
    }

    #[test]
    fn a_stale_request_leaves_the_forced_answer_owed() {
        let mut stored = Ask {
            always_respond: true,
            ..ask(&EDS, &["x"])
        };
        let sent = Nonce("n1".into());
        let stale = classify(Some(&mut stored), Some(&sent), &EDS, &request(&["x"], "n0"));
        assert_eq!((stale, stored.always_respond), (Verdict::Stale, true));
    }

    #[test]
    fn row_5b_equal_names_are_an_acknowledgement() {
        check(
            EDS,
            Some(&["a", "b"]),
            &request(&["b", "a"], "n1"),
            &Verdict::Ack,
            &["a", "b"],
        );
        check(CDS, Some(&[]), &request(&[], "n1"), &Verdict::Ack, &[]);
        check(CDS, Some(&[]), &request(&["*"], "n1"), &Verdict::Ack, &[]);
    }

    #[test]
    fn row_5c_fewer_names_of_a_named_type_need_no_answer() {
        check(
            EDS,
            Some(&["a", "b"]),
            &request(&["b"], "n1"),
            &Verdict::Shrunk,
            &["b"],
        );
    }

    #[test]
    fn row_5d_other_names_are_answered() {
        check(
            EDS,
            Some(&["a"]),
            &request(&["a", "b"], "n1"),
            &Verdict::Changed,
            &["a", "b"],
        );
        check(
            EDS,
            Some(&["a"]),
            &request(&["b"], "n1"),
            &Verdict::Changed,
            &["b"],
        );
        check(
            CDS,
            Some(&["a", "b"]),
            &request(&["a"], "n1"),
            &Verdict::Changed,
            &["a"],
        );
        check(
            CDS,
            Some(&["a"]),
            &request(&[], "n1"),
            &Verdict::Changed,
            &[],
        );
        check(
            CDS,
            Some(&[]),
            &request(&["a"], "n1"),
            &Verdict::Changed,
            &["a"],
        );
    }

    #[test]
    fn a_type_is_asked_for_as_a_whole_by_no_names_or_a_star() {
        assert_eq!(ask(&CDS, &[]).interest(), Interest::Everything);
        assert_eq!(ask(&CDS, &["*"]).interest(), Interest::Everything);
        assert_eq!(ask(&CDS, &["*", "a"]).interest(), Interest::Everything);
        assert_eq!(ask(&CDS, &["a"]).interest(), Interest::named(["a"]));
        assert_eq!(ask(&EDS, &["*", "a"]).interest(), Interest::named(["a"]));
    }
}
