//! The decision: facts about a key + a request + now → one answer or one batch.
//!
//! Every function here is pure. It returns a [`Step`]: an answer, something to know first, or a
//! batch to commit. After a refusal the engine adds what it learnt to the [`Facts`] and asks
//! again; nothing is decided anywhere else. A first claim assumes that nothing is there and lets
//! the batch's conditions find out, so it costs no read.

mod append;
mod claim;
mod effects;
mod finish;
mod job;
mod resolve;
mod sweep;

pub use append::{
    Append, MAX_APPEND_EVENTS, Packed, Reservation, Reserved, append, append_number, settle,
    settle_max,
};
pub use claim::{Claim, Granted, Once, claim, looks, run_once};
pub use effects::{Change, DoneKey, Effects, NewJob, Span, write};
pub use finish::{Completion, Finish, Retry, abandon, complete, fail, release, renew};
pub use job::{Enqueue, JobOrder, check_writable, enqueue, take};
pub use resolve::{Resolution, Resolved, resolve};
pub use sweep::{Swept, sweep};

use crate::batch::{Batch, Refused, There};
use crate::guard::{Guard, Misfit};
use crate::key::{Key, Subject};
use crate::record::{Body, Draft, FenceWrite, OnAbandoned, Record, State, Stored, Terms, Time};
use crate::stamp::{At, Fence, Rev, Token};
use crate::{Bytes, Text};

/// What a decision comes to.
#[derive(Debug, Clone)]
pub enum Step<T, A> {
    /// Commit this; when it applies, `T` says what it meant.
    Commit(Batch, T),
    /// Look these up and ask again.
    Look(Vec<Look>),
    /// The answer; nothing is to be written.
    Answer(A),
}

/// Something to look up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Look {
    /// A record with its outcome.
    Record(Key),
    /// A mark.
    Mark(Subject),
}

/// How a lease's end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The store has a clock, and `now` is its reading.
    #[default]
    Store,
    /// The store has none: this is how long we have seen the record's rev unchanged, on our own
    /// monotonic clock.
    Watched {
        /// Milliseconds.
        unchanged_ms: u64,
    },
}

/// What is known so far. What is not in here has not been looked up.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The store's instant of the latest look.
    pub now: At,
    /// How leases are judged.
    pub clock: Clock,
    records: Vec<(Key, Option<Stored>)>,
    positions: Vec<(Subject, u64)>,
}

impl Facts {
    /// Nothing known but the store's instant.
    #[must_use]
    pub fn at(now: At) -> Self {
        Self { now, ..Self::default() }
    }

    /// The record, if it was looked up.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<Option<&Stored>> {
        self.records.iter().find(|(of, _)| of == key).map(|(_, stored)| stored.as_ref())
    }

    /// The subject's position, if it was looked up.
    #[must_use]
    pub fn position(&self, subject: &Subject) -> Option<u64> {
        self.positions.iter().find(|(of, _)| of == subject).map(|(_, position)| *position)
    }

    /// Notes what is there for a key.
    pub fn learn_record(&mut self, key: &Key, stored: Option<Stored>) {
        match self.records.iter_mut().find(|(of, _)| of == key) {
            Some((_, known)) => *known = stored,
            None => self.records.push((key.clone(), stored)),
        }
    }

    /// Notes where a subject is.
    pub fn learn_position(&mut self, subject: &Subject, position: u64) {
        match self.positions.iter_mut().find(|(of, _)| of == subject) {
            Some((_, known)) => *known = position,
            None => self.positions.push((subject.clone(), position)),
        }
    }

    /// Forgets a position, so that the next look is a fresh one.
    pub fn forget_position(&mut self, subject: &Subject) {
        self.positions.retain(|(of, _)| of != subject);
    }

    /// Notes everything that a refusal tells.
    pub fn learn(&mut self, batch: &Batch, refused: Refused) {
        self.now = refused.now;
        for (index, there) in refused.failed {
            let Some(condition) = batch.conditions.get(index) else { continue };
            match there {
                There::Record(stored) => {
                    if let Some(key) = condition.key() {
                        self.learn_record(key, stored.map(|stored| *stored));
                    }
                }
                There::Mark(mark) => {
                    if let Some(subject) = condition.subject() {
                        self.learn_position(subject, mark.map_or(0, |mark| mark.position));
                    }
                }
            }
        }
    }

    /// Whether the lease of a running record has run out.
    #[must_use]
    pub fn lapsed(&self, record: &Record) -> bool {
        match self.clock {
            Clock::Store => record.lapsed_at(self.now),
            Clock::Watched { unchanged_ms } => {
                record.state == State::Running && unchanged_ms >= record.terms.lease_ms
            }
        }
    }
}

/// Proof that its holder may run: key, fence and lease, as granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit {
    /// The acquisition that it belongs to.
    pub fence: Fence,
    /// The record as it was granted.
    pub record: Box<Record>,
}

impl Permit {
    /// The permit of a running or unknown record, when someone holds it.
    #[must_use]
    pub fn of(record: Record) -> Option<Self> {
        record.fence.map(|fence| Self { fence, record: Box::new(record) })
    }

    /// Whose permit it is.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.record.key
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go ahead.
    Run {
        /// To be shown at every further step.
        permit: Permit,
        /// The key had a record whose retention is over.
        was_expired: bool,
    },
    /// It is done: here is the outcome.
    Replay(Box<Stored>),
    /// The key was used with another payload.
    Mismatch(Box<Record>),
    /// Someone is at it, or a retry is not due yet.
    Busy {
        /// When it is worth asking again.
        retry_after_ms: u64,
    },
    /// The guard refuses: `stale`, `gap`, `version_conflict` or `out_of_order`.
    Refused(Refusal),
    /// Poison.
    Dead(Box<Record>),
    /// Nobody knows how it ended, and the terms say hold.
    Unknown(Box<Record>),
}

impl Verdict {
    /// The word on the wire and in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Run { .. } => "run",
            Self::Replay(_) => "replay",
            Self::Mismatch(_) => "mismatch",
            Self::Busy { .. } => "busy",
            Self::Refused(refusal) => refusal.why.as_str(),
            Self::Dead(_) => "dead",
            Self::Unknown(_) => "unknown",
        }
    }
}

impl Misfit {
    /// The word on the wire and in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Gap => "gap",
            Self::VersionConflict => "version_conflict",
            Self::OutOfOrder => "out_of_order",
        }
    }
}

/// A guard's refusal: which subject, why, and where it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The subject that was asked.
    pub subject: Subject,
    /// Why.
    pub why: Misfit,
    /// Its position now.
    pub current: u64,
}

/// Judges a guard by what is known; an unknown position is left to the batch's condition.
pub(crate) fn judge(guard: &Guard, facts: &Facts) -> Result<(), Refusal> {
    let Some(current) = facts.position(&guard.subject) else { return Ok(()) };
    guard.rule.judge(current).map_err(|why| Refusal {
        subject: guard.subject.clone(),
        why,
        current,
    })
}

/// When a sweep has to look at a running record.
pub(crate) fn running_sweep(record: &Record, terms: &Terms) -> Time {
    use crate::key::Kind;
    match (terms.on_abandoned, record.key.kind()) {
        (OnAbandoned::Hold, _) => Time::In(terms.lease_ms),
        (OnAbandoned::Rerun, Kind::Request) => {
            Time::In(terms.lease_ms.saturating_add(forget_after(terms)))
        }
        // Jobs, events and appends are taken again by themselves: sweeping one would lose it.
        (OnAbandoned::Rerun, Kind::Job | Kind::Event | Kind::Append) => Time::Clear,
    }
}

pub(crate) fn forget_after(terms: &Terms) -> u64 {
    terms.retain_ms.saturating_add(terms.remember_ms)
}

/// A draft that rewrites `record` and, unless told otherwise, changes nothing beside it.
pub(crate) fn rewrite(record: Record, fence: FenceWrite) -> Draft {
    Draft {
        record,
        fence,
        fresh: false,
        due: Time::Keep,
        expires: Time::Keep,
        sweep: Time::Keep,
        outcome: Body::Keep,
        payload: Body::Keep,
    }
}

/// A record that is not there yet.
pub(crate) fn blank(claim: &Claim, state: State) -> Record {
    Record {
        key: claim.key.clone(),
        state,
        fingerprint: claim.fingerprint,
        rev: Rev::default(),
        fence: None,
        last_fence: Fence::default(),
        token: Token::default(),
        attempt: 0,
        terms: claim.terms,
        owner: claim.owner.clone(),
        attempt_id: claim.attempt_id.clone(),
        guard: claim.guard.clone(),
        priority: 0,
        created_at: At::default(),
        updated_at: At::default(),
        due_at: None,
        expires_at: None,
        sweep_at: None,
        outcome: None,
        has_payload: claim.payload.is_some(),
        error: None,
        trace: claim.trace.clone(),
    }
}

pub(crate) fn payload_body(payload: Option<&Bytes>, had: bool) -> Body {
    match payload {
        Some(bytes) => Body::Set(bytes.clone()),
        None if had => Body::Clear,
        None => Body::Keep,
    }
}

pub(crate) fn text(text: &str) -> Text {
    text.into()
}
