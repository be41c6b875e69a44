//! The default throttle policy: exponential backoff per noisy tenant.
