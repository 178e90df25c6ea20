//! Onceward: every effect once, always forward.
