//! The engine's own bounds. What a route or queue allows is in the terms of its records.

use std::time::Duration;

use super::NoteWriting;

/// Bounds and pauses of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Waiters for one key. Default: 1,000.
    pub waiters_per_key_max: usize,
    /// Waiters in this process. Default: 100,000.
    pub waiters_max: usize,
    /// Batches that may wait for a group. Default: 100,000.
    pub batches_waiting_max: usize,
    /// How long a batch whose answer was lost is sent again. It is recognised by what it wrote, so
    /// keep it below every `retain_ms` that is used: a claim or an enqueue that is sent again after
    /// its record was swept is made a second time. Default: 10 s.
    pub resend_for: Duration,
    /// First pause before it is sent again; doubles up to 1 s. Default: 10 ms.
    pub resend_pause: Duration,
    /// How long a batch is tried again when a row is held by someone's transaction. Default: 2 s.
    pub contended_for: Duration,
    /// First pause between two looks at a key that another process may finish; doubles. Default:
    /// 10 ms.
    pub poll_first: Duration,
    /// Longest pause between two looks. Default: 500 ms.
    pub poll_max: Duration,
    /// How notes about replays, conflicts and expiries are written. Default: buffered.
    pub notes: NoteWriting,
    /// Notes that may wait to be written; more are lost, and counted. Default: 8,192.
    pub notes_waiting_max: usize,
    /// How long a note may wait for others before they are written together. Default: 250 ms.
    pub notes_every: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            waiters_per_key_max: 1_000,
            waiters_max: 100_000,
            batches_waiting_max: 100_000,
            resend_for: Duration::from_secs(10),
            resend_pause: Duration::from_millis(10),
            contended_for: Duration::from_secs(2),
            poll_first: Duration::from_millis(10),
            poll_max: Duration::from_millis(500),
            notes: NoteWriting::Buffered,
            notes_waiting_max: 8_192,
            notes_every: Duration::from_millis(250),
        }
    }
}
