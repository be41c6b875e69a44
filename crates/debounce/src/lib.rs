//! Coalesces mergeable events: quiet time, maximum time, one consumer at a time.
