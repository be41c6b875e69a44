//! istiod with our policy instead of the shipped ones.

// Naming the crate links it, and so registers the policy.
use custom_throttle_policy as _;

fn main() -> std::process::ExitCode {
    istiod::main()
}
