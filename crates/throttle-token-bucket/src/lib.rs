//! A throttle policy with a rate and a burst per tenant.
