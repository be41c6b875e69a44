//! What travels from the intake to the next snapshot: a push request that can be throttled and
//! debounced.

use std::{fmt, sync::Arc};

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use model::Kind;
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
}
