//! What travels from the intake to the next snapshot: a push request that can be throttled and
//! debounced.

use std::{fmt, sync::Arc};

use debounce::Batch;
use model::{ConfigKey, PushRequest, ServiceKey};
use throttle::{Scope, Stopped};

/// A push request on its way through the throttle and the debounce.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) PushRequest);

impl debounce::Merge for Event {
    fn merge(&mut self, newer: Self) {
        self.0.merge(newer.0);
    }
}

/// What an event is about, for the list of the noisiest objects of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// A configuration object.
    Config(ConfigKey),
    /// The endpoints of a service.
    Endpoints(ServiceKey),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(key) => key.fmt(f),
            Self::Endpoints(key) => write!(f, "Endpoints/{key}"),
        }
    }
}

impl throttle::Event for Event {
    /// A namespace.
    type Tenant = Arc<str>;
    type Object = Subject;

    fn scope(&self) -> Scope<'_, Arc<str>> {
        if self.0.forced {
            return Scope::Global;
        }
        let mut namespaces = self.0.namespaces();
        let Some(first) = namespaces.next() else {
            return Scope::Global;
        };
        if namespaces.any(|other| other != first) {
            return Scope::Mixed;
        }
        // Objects of the cluster belong to nobody.
        if first.is_empty() {
            Scope::Global
        } else {
            Scope::Tenant(first)
        }
    }

    fn split(self) -> Vec<(Option<Arc<str>>, Self)> {
        let parts = self.0.split_by_namespace().into_iter();
        parts
            .map(|(namespace, part)| ((!namespace.is_empty()).then_some(namespace), Self(part)))
            .collect()
    }

    fn merge(&mut self, newer: Self) {
        self.0.merge(newer.0);
    }

    /// The removal of an endpoint waits for the base delay at most: a dead endpoint must not stay
    /// because its neighbour is noisy.
    fn is_urgent(&self) -> bool {
        !self.0.removals.is_empty()
    }

    fn split_urgent(self) -> (Option<Self>, Option<Self>) {
        let (removals, rest) = self.0.split_removals();
        (removals.map(Self), rest.map(Self))
    }

    fn objects(&self, visit: &mut dyn FnMut(&Subject)) {
        for key in &self.0.changed {
            visit(&Subject::Config(key.clone()));
        }
        for key in &self.0.endpoints {
            visit(&Subject::Endpoints(key.clone()));
        }
    }
}

impl throttle::Forward<Event> for debounce::Intake<Event> {
    async fn forward(&self, event: Event) -> Result<(), Stopped> {
        self.send(event).await.map_err(|_| Stopped)
    }
}

/// The log line that a batch is stable, in the words of the Go istiod (xds-server §27.2): operators and
/// tests look for them.
pub(crate) fn stable(batch: &Batch<Event>) -> String {
    let request = &batch.event.0;
    let keys = request.changed.iter().map(ToString::to_string);
    let mut keys = keys.chain(
        request
            .endpoints
            .iter()
            .map(|key| format!("Endpoints/{key}")),
    );
    let what = match (keys.next(), keys.count()) {
        (Some(only), 0) => format!("config {only}"),
        (Some(first), more) => format!("config {first} and {more} more configs"),
        (None, _) => {
            let reasons = request.reasons.iter();
            let reasons: Vec<_> = reasons
                .map(|(reason, count)| format!("{}:{count}", reason.as_str()))
                .collect();
            format!("reason {}", reasons.join(" and "))
        }
    };
    format!(
        "Push debounce stable[{}] {} for {what}: {:?} since last change, {:?} since last push, forced={}",
        batch.sequence,
        batch.events,
        batch.quiet(),
        batch.delay(),
        request.forced,
    )
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        time::{Duration, Instant},
    };

    use model::{Kind, Reason};
    use throttle::Event as _;

    use super::*;

    const RULE: Kind = Kind::DestinationRule;

    fn event(
        keys: &[(Kind, &str, &str)],
        endpoints: &[(&str, &str)],
        lost: &[(&str, &str)],
    ) -> Event {
        let services = |keys: &[(&str, &str)]| {
            let keys = keys
                .iter()
                .map(|(namespace, host)| ServiceKey::new(*namespace, *host));
            keys.collect::<BTreeSet<_>>()
        };
        Event(PushRequest {
            changed: keys
                .iter()
                .map(|(kind, namespace, name)| ConfigKey::new(*kind, *namespace, *name))
                .collect(),
            endpoints: services(endpoints),
            removals: services(lost),
            ..PushRequest::default()
        })
    }

    #[track_caller]
    fn check_scope(event: &Event, expected: &str) {
        let found = match event.scope() {
            Scope::Global => "(global)",
            Scope::Tenant(namespace) => namespace,
            Scope::Mixed => "(mixed)",
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn an_event_belongs_to_its_namespace_unless_it_concerns_all() {
        check_scope(&event(&[(RULE, "a", "x")], &[("a", "h")], &[]), "a");
        check_scope(&event(&[(RULE, "a", "x")], &[("b", "h")], &[]), "(mixed)");
        check_scope(&event(&[(Kind::Namespace, "", "a")], &[], &[]), "(global)");
        check_scope(&Event::default(), "(global)");
        let mut forced = event(&[(RULE, "a", "x")], &[], &[]);
        forced.0.forced = true;
        check_scope(&forced, "(global)");
    }

    #[test]
    fn parts_name_their_namespace_and_make_up_the_whole() {
        let whole = event(
            &[(Kind::Namespace, "", "a"), (RULE, "a", "x")],
            &[("b", "h")],
            &[],
        );
        let parts = whole.clone().split();
        let tenants: Vec<_> = parts.iter().map(|(tenant, _)| tenant.as_deref()).collect();
        assert_eq!(tenants, [None, Some("a"), Some("b")]);
        let mut merged = Event::default();
        for (_, part) in parts {
            throttle::Event::merge(&mut merged, part);
        }
        assert_eq!(merged, whole);
    }

    #[test]
    fn lost_endpoints_are_urgent() {
        let whole = event(
            &[(RULE, "a", "x")],
            &[("a", "h"), ("a", "i")],
            &[("a", "h")],
        );
        assert!(whole.is_urgent());
        let (urgent, rest) = whole.split_urgent();
        assert_eq!(urgent, Some(event(&[], &[("a", "h")], &[("a", "h")])));
        assert_eq!(rest, Some(event(&[(RULE, "a", "x")], &[("a", "i")], &[])));
    }

    #[test]
    fn objects_are_shown_as_operators_know_them() {
        let mut shown = Vec::new();
        let event = event(&[(RULE, "a", "x")], &[("a", "h")], &[]);
        event.objects(&mut |object| shown.push(object.to_string()));
        assert_eq!(shown, ["DestinationRule/a/x", "Endpoints/a/h"]);
    }

    #[track_caller]
    #[expect(clippy::disallowed_methods, reason = "any moment does")]
    fn check_stable(event: Event, expected: &str) {
        let first = Instant::now();
        let after = |millis| first + Duration::from_millis(millis);
        let batch = Batch {
            event,
            events: 3,
            first,
            last: after(60),
            delivered: after(160),
            sequence: 7,
            lane: debounce::Lane::Debounced,
        };
        let times = "100ms since last change, 160ms since last push, forced";
        let line = stable(&batch).replace(times, "…");
        assert_eq!(line, format!("Push debounce stable[7] 3 for {expected}"));
    }

    #[test]
    fn a_stable_batch_is_logged_in_the_known_words() {
        check_stable(
            event(&[(RULE, "a", "x")], &[], &[]),
            "config DestinationRule/a/x: …=false",
        );
        check_stable(
            event(&[(RULE, "a", "x"), (RULE, "a", "y")], &[("a", "h")], &[]),
            "config DestinationRule/a/x and 2 more configs: …=false",
        );
        let mut all = Event(PushRequest::default());
        all.0.forced = true;
        all.0.reasons = [(Reason::Global, 2), (Reason::Networks, 1)].into();
        check_stable(all, "reason global:2 and networks:1: …=true");
    }
}
