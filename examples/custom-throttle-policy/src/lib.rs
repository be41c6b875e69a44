//! During business hours (weekdays, 8 to 18 o'clock UTC) a namespace above the threshold waits for the
//! maximum delay; at other times, when nobody is slowed down, everything passes.

use std::time::{Instant, SystemTime};

use throttle::{
    Decision, Idle, Limits, Now, RateWindow, Registration, Report, TenantInfo, ThrottlePolicy,
};

#[linkme::distributed_slice(throttle::THROTTLE_POLICIES)]
static BUSINESS_HOURS: Registration = Registration {
    name: "business-hours",
    summary: "holds noisy namespaces on weekdays from 8 to 18 UTC",
    module: module_path!(),
    check: |_| Vec::new(),
    build: |limits, _| {
        Box::new(BusinessHours {
            limits: limits.clone(),
            rate: RateWindow::new(limits.window),
        })
    },
};

#[derive(Debug)]
struct BusinessHours {
    limits: Limits,
    rate: RateWindow,
}

impl ThrottlePolicy for BusinessHours {
    fn on_event(&mut self, now: Now, held_since: Option<Instant>) -> Decision {
        let noisy = self.rate.record(now.at) >= self.limits.threshold;
        if noisy && is_open(now.wall) {
            Decision::Hold {
                until: held_since.unwrap_or(now.at) + self.limits.max_delay,
            }
        } else {
            Decision::Pass
        }
    }

    fn on_flush(&mut self, _now: Now) {}

    fn on_idle(&mut self, now: Now) -> Idle {
        if self.rate.count(now.at) == 0 {
            Idle::Forget
        } else {
            Idle::Keep
        }
    }

    fn configure(&mut self, limits: &Limits, _tenant: &TenantInfo) {
        self.limits = limits.clone();
        self.rate.set_window(limits.window);
    }

    fn report(&self, now: Now) -> Report {
        let delay = if is_open(now.wall) {
            self.limits.max_delay
        } else {
            Default::default()
        };
        Report {
            rate: self.rate.rate(now.at),
            level: u32::from(is_open(now.wall)),
            delay,
        }
    }
}

fn is_open(wall: SystemTime) -> bool {
    let hours = wall
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |t| t.as_secs() / 3_600);
    // 1 January 1970 was a Thursday; Monday is 0.
    let weekday = (hours / 24 + 3) % 7;
    weekday < 5 && (8..18).contains(&(hours % 24))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throttle::simulation::{Load, play};

    use super::*;

    /// How many events of a loop at 10/s for a minute are held when it begins at `hour` of `day`.
    fn held(day: u64, hour: u64) -> u64 {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs((day * 24 + hour) * 3_600);
        let start = Now {
            at: Instant::now(),
            wall,
        };
        let load = Load::steady("loop", 10.0, Duration::from_secs(60));
        let limits = Limits::default();
        let outcome = play(
            BUSINESS_HOURS,
            &limits,
            &Default::default(),
            start,
            &load.arrivals,
        );
        let outcome = outcome.expect("the defaults are in range");
        assert!(outcome.longest() <= limits.max_delay);
        outcome.held
    }

    #[test]
    fn only_business_hours_count() {
        let (thursday, saturday) = (0, 2);
        assert_eq!(
            (held(thursday, 7), held(thursday, 18), held(saturday, 9)),
            (0, 0, 0)
        );
        assert!(held(thursday, 8) > 400);
    }
}
