//! A throttle policy that never holds.
