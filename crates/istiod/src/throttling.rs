//! The namespace throttle: linked policies, settings, and what `/debug/throttlez` shows.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use anyhow::Context as _;
use serde_json::{Value, json};
use throttle::{
    BASE_DELAY_RANGE, Engine, Limits, MAX_DELAY_RANGE, Registration, Registry, Settings, Status,
    THRESHOLD_RANGE, THROTTLE_POLICIES, TenantStatus, WINDOW_RANGE,
};
#[cfg(feature = "throttle-backoff")]
use throttle_backoff as _;
#[cfg(feature = "throttle-none")]
use throttle_none as _;
#[cfg(feature = "throttle-token-bucket")]
use throttle_token_bucket as _;

use crate::{
    event::Event,
    settings::{Reader, Source},
};

/// The policy that is used, if it is linked, unless a flag names another.
const DEFAULT_POLICY: &str = "backoff";

/// Reads the throttle policies that are linked in: those of the enabled features, and whatever else
/// the program names.
///
/// # Errors
/// When two of them have one name.
pub fn policies() -> anyhow::Result<Registry> {
    Registry::new(THROTTLE_POLICIES.iter().copied()).context("register throttle policies")
}

/// Chooses a policy: the one called `name`; without a name `backoff`, or the only one there is.
///
/// # Errors
/// When there is none of that name, or no name and several to choose from.
pub fn choose(policies: &Registry, name: Option<&str>) -> anyhow::Result<Registration> {
    let mut linked = policies.iter();
    let chosen = match (name, linked.next(), linked.next()) {
        (None, Some(only), None) => Ok(*only),
        (name, _, _) => policies.get(name.unwrap_or(DEFAULT_POLICY)),
    };
    chosen.context("--throttle-policy")
}

/// Makes the engine: `settings`, with the root namespace of the mesh exempt too.
///
/// # Errors
/// When the policy refuses its parameters.
pub(crate) fn engine(
    settings: &Settings<Arc<str>>,
    root_namespace: &str,
    policy: Registration,
) -> anyhow::Result<Engine<Event>> {
    Engine::new(with_root(settings, root_namespace), policy).with_context(|| {
        format!(
            "throttle policy {}: parameters of {PARAMETERS}",
            policy.name
        )
    })
}

/// Exempts the root namespace of the mesh too.
pub(crate) fn with_root(settings: &Settings<Arc<str>>, root_namespace: &str) -> Settings<Arc<str>> {
    let mut settings = settings.clone();
    settings.exempt.insert(root_namespace.into());
    settings
}

const PARAMETERS: &str = "PILOT_NAMESPACE_THROTTLE_PARAMETERS";

/// Reads the settings of the throttle.
///
/// | variable | default | range |
/// | --- | --- | --- |
/// | `PILOT_ENABLE_NAMESPACE_THROTTLE` | false | |
/// | `PILOT_NAMESPACE_THROTTLE_THRESHOLD` | 100 events per window | 1 to 1 000 000 |
/// | `PILOT_NAMESPACE_THROTTLE_WINDOW` | 30s | 1s to 1h |
/// | `PILOT_NAMESPACE_THROTTLE_BASE_DELAY` | 1s | 10ms to 1m |
/// | `PILOT_NAMESPACE_THROTTLE_MAX_DELAY` | 10s | the base delay to 10m |
/// | `PILOT_NAMESPACE_THROTTLE_EXEMPT` | `istio-system,kube-system` | namespaces, comma between; the own and the root namespace are always exempt |
/// | `PILOT_NAMESPACE_THROTTLE_PARAMETERS` | | `name=value`, comma between: for the policy in use |
pub(crate) fn read<S: Source>(reader: &mut Reader<'_, S>, own: &str) -> Settings<Arc<str>> {
    let mut limits = Limits::default();
    limits.threshold = reader.parsed(
        "PILOT_NAMESPACE_THROTTLE_THRESHOLD",
        limits.threshold,
        "a whole number from 1 to 1000000",
        |text| {
            text.parse()
                .ok()
                .filter(|number| THRESHOLD_RANGE.contains(number))
        },
    );
    limits.window = reader.duration_in(
        "PILOT_NAMESPACE_THROTTLE_WINDOW",
        limits.window,
        WINDOW_RANGE,
        "a duration from 1s to 1h",
    );
    limits.base_delay = reader.duration_in(
        "PILOT_NAMESPACE_THROTTLE_BASE_DELAY",
        limits.base_delay,
        BASE_DELAY_RANGE,
        "a duration from 10ms to 1m",
    );
    limits.max_delay = reader.duration_in(
        "PILOT_NAMESPACE_THROTTLE_MAX_DELAY",
        // A longer base delay alone does not need a second variable.
        limits.max_delay.max(limits.base_delay),
        limits.base_delay..=*MAX_DELAY_RANGE.end(),
        "a duration from PILOT_NAMESPACE_THROTTLE_BASE_DELAY to 10m",
    );
    limits.parameters = reader.parsed(
        PARAMETERS,
        BTreeMap::new(),
        "a list of name=value with commas between",
        |text| {
            let pairs = text.split(',').map(|pair| pair.split_once('='));
            pairs
                .map(|pair| pair.map(|(name, value)| (name.trim().into(), value.trim().into())))
                .collect()
        },
    );
    let enabled = reader.flag("PILOT_ENABLE_NAMESPACE_THROTTLE", false);
    let exempt = reader.parsed(
        "PILOT_NAMESPACE_THROTTLE_EXEMPT",
        "istio-system,kube-system".to_owned(),
        "a list of namespaces with commas between",
        |text| Some(text.to_owned()),
    );
    let mut settings = Settings::new(limits);
    settings.enabled = enabled;
    settings.exempt = exempt
        .split(',')
        .map(str::trim)
        .chain([own])
        .filter(|namespace| !namespace.is_empty())
        .map(Arc::from)
        .collect();
    settings
}

/// The body of `/debug/throttlez`. Durations are seconds.
pub(crate) fn throttlez<T: fmt::Display, O: fmt::Display>(status: &Status<T, O>) -> Value {
    let limits = &status.limits;
    json!({
        "enabled": status.enabled,
        "policy": status.policy,
        "threshold": limits.threshold,
        "window": seconds(limits.window),
        "baseDelay": seconds(limits.base_delay),
        "maxDelay": seconds(limits.max_delay),
        "parameters": limits.parameters,
        "exempt": status.exempt.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "tracked": status.tracked,
        "throttled": status.throttled.iter().map(namespace).collect::<Vec<_>>(),
    })
}

fn namespace<T: fmt::Display, O: fmt::Display>(status: &TenantStatus<T, O>) -> Value {
    json!({
        "namespace": status.tenant.to_string(),
        "throttledFor": seconds(status.throttled_for),
        // Two decimals: a measurement over slots of a window is no better.
        "eventsPerSecond": (status.report.rate * 100.0).round() / 100.0,
        "level": status.report.level,
        "delay": seconds(status.report.delay),
        "held": status.held,
        "released": status.released,
        "staged": status.staged,
        "stagedFor": status.staged_for.map(seconds),
        "dueIn": status.due_in.map(seconds),
        "noisiest": status
            .noisiest
            .iter()
            .map(|(object, events)| json!({"object": object.to_string(), "events": events}))
            .collect::<Vec<_>>(),
    })
}

/// Seconds with milliseconds.
fn seconds(duration: Duration) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "settings and ages are far below 2^52 ms"
    )]
    let millis = duration.as_millis() as f64;
    millis / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use model::{ConfigKey, Kind, PushRequest};
    use throttle::{Now, Output};

    use super::*;
    use crate::settings;

    fn named(name: &'static str) -> Registration {
        Registration {
            name,
            summary: "",
            module: "",
            check: |_| Vec::new(),
            build: |_, _| unreachable!("never built here"),
        }
    }

    #[track_caller]
    fn check_choice(linked: &[&'static str], name: Option<&str>, expected: Result<&str, &str>) {
        let policies = Registry::new(linked.iter().map(|name| named(name))).unwrap();
        let chosen = choose(&policies, name).map(|policy| policy.name);
        let chosen = chosen.map_err(|error| format!("{error:#}"));
        assert_eq!(chosen, expected.map_err(str::to_owned));
    }

    #[test]
    fn the_named_policy_is_chosen_or_backoff_or_the_only_one() {
        check_choice(&["backoff", "none"], None, Ok("backoff"));
        check_choice(&["backoff", "none"], Some("none"), Ok("none"));
        check_choice(&["office-hours"], None, Ok("office-hours"));
        check_choice(
            &["a", "b"],
            None,
            Err("--throttle-policy: no throttle policy is called \"backoff\"; linked are: a, b"),
        );
        check_choice(
            &["a"],
            Some("c"),
            Err("--throttle-policy: no throttle policy is called \"c\"; linked are: a"),
        );
    }

    #[test]
    #[cfg(all(
        feature = "throttle-backoff",
        feature = "throttle-none",
        feature = "throttle-token-bucket"
    ))]
    fn the_shipped_policies_are_linked() {
        let policies = policies().unwrap();
        let names: Vec<_> = policies.iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["backoff", "none", "token-bucket"]);
    }

    fn resolve(values: &[(&str, &str)]) -> Result<Settings<Arc<str>>, Vec<String>> {
        let source = |name: &str| {
            let found = values.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        settings::Settings::resolve(&source)
            .map(|settings| settings.throttle)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn defaults_are_off_and_those_of_the_throttle() {
        let settings = resolve(&[]).unwrap();
        assert_eq!(
            (settings.enabled, &settings.limits),
            (false, &Limits::default())
        );
        let exempt: Vec<_> = settings
            .exempt
            .iter()
            .map(|namespace| &**namespace)
            .collect();
        assert_eq!(exempt, ["istio-system", "kube-system"]);
    }

    #[test]
    fn every_setting_can_be_given() {
        let settings = resolve(&[
            ("PILOT_ENABLE_NAMESPACE_THROTTLE", "true"),
            ("PILOT_NAMESPACE_THROTTLE_THRESHOLD", "7"),
            ("PILOT_NAMESPACE_THROTTLE_WINDOW", "5s"),
            ("PILOT_NAMESPACE_THROTTLE_BASE_DELAY", "20s"),
            ("PILOT_NAMESPACE_THROTTLE_EXEMPT", "infra, tools"),
            ("PILOT_NAMESPACE_THROTTLE_PARAMETERS", "rate=5,burst= 9"),
            ("POD_NAMESPACE", "mine"),
        ])
        .unwrap();
        assert!(settings.enabled);
        assert_eq!(
            (settings.limits.threshold, settings.limits.window.as_secs()),
            (7, 5)
        );
        let delays = (settings.limits.base_delay, settings.limits.max_delay);
        assert_eq!(delays, (Duration::from_secs(20), Duration::from_secs(20)));
        assert_eq!(settings.limits.parameters["burst"], "9");
        let exempt: Vec<_> = settings
            .exempt
            .iter()
            .map(|namespace| &**namespace)
            .collect();
        assert_eq!(exempt, ["infra", "mine", "tools"]);
        assert!(settings.limits.problems().is_empty());
    }

    #[test]
    fn a_bad_value_names_the_variable_the_value_and_the_range() {
        let errors = resolve(&[
            ("PILOT_NAMESPACE_THROTTLE_THRESHOLD", "0"),
            ("PILOT_NAMESPACE_THROTTLE_WINDOW", "2h"),
            ("PILOT_NAMESPACE_THROTTLE_BASE_DELAY", "1ms"),
            ("PILOT_NAMESPACE_THROTTLE_MAX_DELAY", "500ms"),
            ("PILOT_NAMESPACE_THROTTLE_PARAMETERS", "rate"),
        ])
        .unwrap_err();
        let expected = [
            "PILOT_NAMESPACE_THROTTLE_THRESHOLD: \"0\" is not a whole number from 1 to 1000000",
            "PILOT_NAMESPACE_THROTTLE_WINDOW: \"2h\" is not a duration from 1s to 1h",
            "PILOT_NAMESPACE_THROTTLE_BASE_DELAY: \"1ms\" is not a duration from 10ms to 1m",
            "PILOT_NAMESPACE_THROTTLE_MAX_DELAY: \"500ms\" is not a duration from \
             PILOT_NAMESPACE_THROTTLE_BASE_DELAY to 10m",
            "PILOT_NAMESPACE_THROTTLE_PARAMETERS: \"rate\" is not a list of name=value with commas \
             between",
        ];
        assert_eq!(errors, expected);
    }

    #[test]
    fn the_texts_of_the_ranges_are_those_of_the_throttle() {
        for (variable, least, most) in [
            ("PILOT_NAMESPACE_THROTTLE_THRESHOLD", "1", "1000000"),
            ("PILOT_NAMESPACE_THROTTLE_WINDOW", "1s", "1h"),
            ("PILOT_NAMESPACE_THROTTLE_BASE_DELAY", "10ms", "1m"),
            ("PILOT_NAMESPACE_THROTTLE_MAX_DELAY", "1s", "10m"),
        ] {
            for value in [least, most] {
                assert!(resolve(&[(variable, value)]).is_ok(), "{variable}={value}");
            }
        }
    }

    #[test]
    #[cfg(feature = "throttle-backoff")]
    #[expect(clippy::disallowed_methods, reason = "any moment does")]
    fn throttlez_names_the_namespace_and_its_noisiest_object() {
        let mut limits = Limits::default();
        limits.threshold = 2;
        let policy = policies().unwrap().get("backoff").unwrap();
        let mut engine = engine(&Settings::new(limits), "root", policy).unwrap();
        let now = Now {
            at: Instant::now(),
            wall: SystemTime::UNIX_EPOCH,
        };
        for _ in 0..3 {
            let key = ConfigKey::new(Kind::DestinationRule, "shop", "loop");
            let event = Event(PushRequest::config(key, now.at));
            engine.on_event(now, event, &mut Output::default());
        }
        let shown = throttlez(&engine.status(now));
        assert_eq!(shown["policy"], "backoff");
        assert_eq!(shown["exempt"], json!(["root"]));
        let shop = &shown["throttled"][0];
        assert_eq!(
            (&shop["namespace"], &shop["held"]),
            (&json!("shop"), &json!(2))
        );
        assert_eq!((&shop["dueIn"], &shop["level"]), (&json!(1.0), &json!(0)));
        let noisiest = json!([{"object": "DestinationRule/shop/loop", "events": 2}]);
        assert_eq!(shop["noisiest"], noisiest);
    }
}
