//! What a schedule did: a running hash always, readable lines when asked for.
//!
//! The hash makes two runs of one seed comparable without keeping their lines (i23).

use std::fmt;

/// The trace of one schedule.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    start: u64,
    written: bool,
    pub(super) lines: Vec<String>,
}

impl Trace {
    /// Starts anew; lines are written if asked for.
    pub(super) fn reset(&mut self, start: u64, written: bool) {
        self.hash = 0xcbf2_9ce4_8422_2325;
        self.start = start;
        self.written = written;
        self.lines.clear();
    }

    /// Notes an event by its numbers; `text` is called only when lines are written.
    pub(super) fn note(&mut self, now: u64, numbers: [u64; 3], text: impl FnOnce() -> String) {
        for number in [now, numbers[0], numbers[1], numbers[2]] {
            self.hash = (self.hash ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
        if self.written {
            self.lines.push(format!("{:>8} ms  {}", now - self.start, text()));
        }
    }

    /// The hash of everything noted so far.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

/// How often each thing happened, over all schedules of a simulator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Schedules that were run.
    pub schedules: u64,
    /// Steps, healing not counted.
    pub steps: u64,
    /// Batches that reached the store.
    pub batches: u64,
    /// Effects, inside and outside transactions.
    pub effects: u64,
    /// Requests that never arrived.
    pub dropped: u64,
    /// Requests that arrived twice.
    pub duplicated: u64,
    /// Answers that were lost.
    pub lost: u64,
    /// Answers that came late.
    pub delayed: u64,
    /// Callers that stopped waiting while their request was under way.
    pub timed_out: u64,
    /// Batches that were sent again.
    pub resent: u64,
    /// Workers that died before an effect.
    pub crashed_before: u64,
    /// Workers that died after an effect.
    pub crashed_after: u64,
    /// Workers that died while a commit was under way.
    pub crashed_committing: u64,
    /// Workers that stood still.
    pub paused: u64,
    /// Clocks of workers that jumped.
    pub jumped: u64,
    /// Times the store's clock passed a lease at once.
    pub lapsed: u64,
    /// Groups of more than one batch.
    pub groups: u64,
    /// Claims with another payload.
    pub other_payloads: u64,
    /// Records that a sweep looked at.
    pub sweeps: u64,
    /// Records that a hand looked at.
    pub resolved: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("steps", self.steps),
            ("batches", self.batches),
            ("effects", self.effects),
            ("requests dropped", self.dropped),
            ("requests duplicated", self.duplicated),
            ("answers lost", self.lost),
            ("answers delayed", self.delayed),
            ("callers timed out", self.timed_out),
            ("batches sent again", self.resent),
            ("crashes before an effect", self.crashed_before),
            ("crashes after an effect", self.crashed_after),
            ("crashes while committing", self.crashed_committing),
            ("workers paused", self.paused),
            ("worker clocks jumped", self.jumped),
            ("leases passed", self.lapsed),
            ("groups", self.groups),
            ("other payloads", self.other_payloads),
            ("sweeps", self.sweeps),
            ("decisions by hand", self.resolved),
        ];
        for (what, count) in counts {
            writeln!(f, "  {what:26} {count:>12}")?;
        }
        Ok(())
    }
}
