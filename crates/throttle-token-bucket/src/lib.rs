//! A throttle policy with a rate and a burst per tenant, weighted by a label.
//!
//! Each tenant has a bucket of `burst` tokens that fills at `rate` tokens per second; both are
//! multiplied by the tenant's weight. An event takes a token and passes. When the bucket is empty,
//! events are held until a token is there, at least for the base delay, and go on as one event for one
//! token: of a tenant that is always too fast, at most `rate` events per second go on.
//!
//! Parameters ([`Limits::parameters`]):
//!
//! | name | default | meaning |
//! | --- | --- | --- |
//! | `rate` | threshold / window | tokens per second, above 0, at most 1 000 000 |
//! | `burst` | threshold | size of the bucket in tokens, 1 to 1 000 000 |
//! | `weight-label` | `throttle-weight` | the label with a tenant's weight, 0.01 to 100; without it, or with any other value, the weight is 1 |

use std::time::{Duration, Instant};

use linkme::distributed_slice;
use throttle::{
    Decision, Idle, Limits, Now, Problem, RateWindow, Registration, Report, THROTTLE_POLICIES,
    TenantInfo, ThrottlePolicy,
};

/// The entry of this policy.
#[distributed_slice(THROTTLE_POLICIES)]
pub static TOKEN_BUCKET: Registration = Registration {
    name: "token-bucket",
    summary: "a rate and a burst per tenant, weighted by a label",
    module: module_path!(),
    check,
    build: |limits, tenant| Box::new(TokenBucket::new(limits, tenant)),
};

/// The label that holds a tenant's weight unless a parameter names another.
pub const WEIGHT_LABEL: &str = "throttle-weight";

const PARAMETERS: [&str; 3] = ["rate", "burst", "weight-label"];
const MOST: f64 = 1_000_000.0;

/// The state of one tenant.
#[derive(Debug)]
pub struct TokenBucket {
    /// Tokens per second, weighted.
    rate: f64,
    /// Most tokens, weighted, at least 1.
    burst: f64,
    base_delay: Duration,
    tokens: f64,
    /// When `tokens` was right; `None` before the first event, when the bucket is full.
    filled: Option<Instant>,
    events: RateWindow,
}

impl TokenBucket {
    /// Makes a full bucket for `tenant`.
    pub fn new(limits: &Limits, tenant: &TenantInfo) -> Self {
        let (rate, burst) = weighted(limits, tenant);
        Self {
            rate,
            burst,
            base_delay: limits.base_delay,
            tokens: burst,
            filled: None,
            events: RateWindow::new(limits.window),
        }
    }

    fn level_at(&self, now: Instant) -> f64 {
        let passed = self
            .filled
            .map(|filled| now.saturating_duration_since(filled));
        let gained = passed.unwrap_or_default().as_secs_f64() * self.rate;
        (self.tokens + gained).min(self.burst)
    }

    fn fill(&mut self, now: Instant) {
        self.tokens = self.level_at(now);
        self.filled = Some(now);
    }

    /// How long until there is a whole token.
    fn wait(&self) -> Duration {
        Duration::try_from_secs_f64((1.0 - self.tokens).max(0.0) / self.rate)
            .unwrap_or(Duration::from_hours(1))
    }
}

impl ThrottlePolicy for TokenBucket {
    fn on_event(&mut self, now: Now, held_since: Option<Instant>) -> Decision {
        self.events.record(now.at);
        self.fill(now.at);
        if held_since.is_none() && self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Decision::Pass;
        }
        let earliest = held_since.unwrap_or(now.at) + self.base_delay;
        Decision::Hold {
            until: earliest.max(now.at + self.wait()),
        }
    }

    fn on_flush(&mut self, now: Now) {
        self.fill(now.at);
        self.tokens = (self.tokens - 1.0).max(0.0);
    }

    fn on_idle(&mut self, now: Now) -> Idle {
        self.fill(now.at);
        let full = self.tokens >= self.burst && self.events.count(now.at) == 0;
        if full { Idle::Forget } else { Idle::Keep }
    }

    fn configure(&mut self, limits: &Limits, tenant: &TenantInfo) {
        (self.rate, self.burst) = weighted(limits, tenant);
        self.base_delay = limits.base_delay;
        self.tokens = self.tokens.min(self.burst);
        self.events.set_window(limits.window);
    }

    fn report(&self, now: Now) -> Report {
        let empty = self.level_at(now.at) < 1.0;
        let delay = if empty {
            self.base_delay.max(self.wait())
        } else {
            Duration::ZERO
        };
        Report {
            rate: self.events.rate(now.at),
            level: u32::from(empty),
            delay,
        }
    }
}

/// Rate and burst of a tenant. Falls back to the defaults for what `check` would refuse.
fn weighted(limits: &Limits, tenant: &TenantInfo) -> (f64, f64) {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a threshold is at most a million"
    )]
    let threshold = limits.threshold as f64;
    let number = |name| {
        limits
            .parameters
            .get(name)
            .and_then(|text| text.parse::<f64>().ok())
    };
    let rate = number("rate").filter(|rate| *rate > 0.0 && *rate <= MOST);
    let burst = number("burst").filter(|burst| (1.0..=MOST).contains(burst));
    let label = limits
        .parameters
        .get("weight-label")
        .map_or(WEIGHT_LABEL, String::as_str);
    let weight = tenant
        .labels
        .get(label)
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|weight| (0.01..=100.0).contains(weight))
        .unwrap_or(1.0);
    let rate = rate.unwrap_or(threshold / limits.window.as_secs_f64()) * weight;
    (rate, (burst.unwrap_or(threshold) * weight).max(1.0))
}

fn check(limits: &Limits) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, value) in &limits.parameters {
        let number = value.parse::<f64>().ok();
        let expected = match name.as_str() {
            "rate" if number.is_none_or(|rate| rate <= 0.0 || rate > MOST || rate.is_nan()) => {
                "a number above 0, at most 1000000".to_owned()
            }
            "burst" if number.is_none_or(|burst| !(1.0..=MOST).contains(&burst)) => {
                "a number from 1 to 1000000".to_owned()
            }
            "weight-label" if value.is_empty() => "the name of a label".to_owned(),
            known if PARAMETERS.contains(&known) => continue,
            _ => format!("one of the parameters {}", PARAMETERS.join(", ")),
        };
        problems.push(Problem {
            field: name.clone(),
            value: value.clone(),
            expected,
        });
    }
    problems
}

#[cfg(test)]
mod tests;
