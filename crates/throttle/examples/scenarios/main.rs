//! Prints what each linked policy makes of five loads, with default settings and in virtual time.
//!
//! `cargo run -p throttle --example scenarios`
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod table;

use throttle::{Registry, THROTTLE_POLICIES};
// Linking a policy is naming its crate.
use throttle_backoff as _;
use throttle_none as _;
use throttle_token_bucket as _;

fn main() {
    let registry = match Registry::new(THROTTLE_POLICIES.iter().copied()) {
        Ok(registry) => registry,
        Err(error) => {
            println!("{error}");
            return;
        }
    };
    for policy in registry.iter() {
        println!("{}: {}", policy.name, policy.summary);
        println!(
            "  {:38} {:>7} {:>7} {:>9} {:>9} {:>8} {:>15}",
            "load", "events", "held", "longest", "released", "pushes", "busiest minute"
        );
        for line in table::table(*policy) {
            println!(
                "  {:38} {:>7} {:>7} {:>7.2} s {:>9} {:>8} {:>15}",
                line.load,
                line.events,
                line.held,
                line.longest.as_secs_f64(),
                line.released,
                line.pushes,
                line.busiest_minute,
            );
        }
        println!();
    }
}
