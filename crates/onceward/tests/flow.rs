//! From the event store to a view: relay, log, consumer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]
