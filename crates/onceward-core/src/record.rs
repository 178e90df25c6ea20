//! The record: what a store remembers of a key, and the draft of one to be written.
//!
//! One record type and one state machine serve requests, jobs, event handlers and appends. A record
//! carries the terms it was made under, because sweepers, other processes and the command line do
//! not know the route or queue it came from. Which transition is allowed is decided in `decide`.

use std::sync::Arc;

use crate::audit::Trace;
use crate::fingerprint::Fingerprint;
use crate::guard::Guard;
use crate::key::Key;
use crate::limits::{
    LimitError, MAX_ATTEMPTS, MAX_LEASE_MS, MAX_RETAIN_MS, MIN_LEASE_MS, in_range,
};
use crate::stamp::{At, Fence, Rev, Token};
use crate::{Bytes, Text};

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// A job that nobody took yet.
    Pending,
    /// Leased: someone holds the permit.
    Running,
    /// Has its outcome; immutable until its retention ends.
    Done,
    /// An attempt failed; another may run at `due_at`.
    Failed,
    /// Poison: no further attempt without a hand.
    Dead,
    /// Its owner vanished and the terms say hold.
    Unknown,
    /// The outcome is gone, the key is remembered a while.
    Expired,
}

impl State {
    /// All states, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Pending,
        Self::Running,
        Self::Done,
        Self::Failed,
        Self::Dead,
        Self::Unknown,
        Self::Expired,
    ];

    /// The word in texts, columns and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Dead => "dead",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }

    /// Reads [`State::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// What to do when a lease ran out and nobody knows how the effect ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnAbandoned {
    /// A new attempt, with a higher fence.
    #[default]
    Rerun,
    /// Nothing, until someone resolves it by hand.
    Hold,
}

/// What a subject does after one of its jobs or events is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnDead {
    /// Goes on: the dead one counts as finished.
    #[default]
    Skip,
    /// Waits until the dead one is resolved.
    Block,
}

/// The policy a record was made under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How long a permit holds without renewal. Default: 30 s.
    pub lease_ms: u64,
    /// What happens when the lease runs out. Default: rerun.
    pub on_abandoned: OnAbandoned,
    /// How long an outcome is kept. Default: 24 h.
    pub retain_ms: u64,
    /// How long an expired key is still known. Default: 24 h.
    pub remember_ms: u64,
    /// Attempts before the record is dead; 0 means no bound. Default: 0 (jobs: 5).
    pub max_attempts: u32,
    /// What the subject does after a death. Default: skip.
    pub on_dead: OnDead,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease_ms: 30_000,
            on_abandoned: OnAbandoned::Rerun,
            retain_ms: 86_400_000,
            remember_ms: 86_400_000,
            max_attempts: 0,
            on_dead: OnDead::Skip,
        }
    }
}

impl Terms {
    /// The terms of a job: five attempts.
    #[must_use]
    pub fn job() -> Self {
        Self { max_attempts: 5, ..Self::default() }
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// The first field that lies outside its bounds.
    pub fn validate(&self) -> Result<(), LimitError> {
        in_range("lease_ms", self.lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)?;
        in_range("retain_ms", self.retain_ms, 1, MAX_RETAIN_MS)?;
        in_range("remember_ms", self.remember_ms, 0, MAX_RETAIN_MS)?;
        in_range("max_attempts", self.max_attempts.into(), 0, MAX_ATTEMPTS.into())
    }
}

/// What the store remembers of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// Whose record it is.
    pub key: Key,
    /// Where it stands, as written; `expired` may have to be read off the clock.
    pub state: State,
    /// Of the payload it was made with.
    pub fingerprint: Fingerprint,
    /// Rises with every write.
    pub rev: Rev,
    /// The fence of the permit that may write it now; none when nobody may.
    pub fence: Option<Fence>,
    /// The last fence that was granted; 0 when none was.
    pub last_fence: Fence,
    /// The batch that wrote it last.
    pub token: Token,
    /// Attempts that were granted so far.
    pub attempt: u32,
    /// The policy it was made under.
    pub terms: Terms,
    /// Who holds or last held the permit, for people to read; never used to decide.
    pub owner: Option<Text>,
    /// The caller's name for its claim: repeating it returns the same permit.
    pub attempt_id: Option<Text>,
    /// The rule to pass before and at completion.
    pub guard: Option<Guard>,
    /// 0 (lowest) to 9; jobs only.
    pub priority: u8,
    /// First write of this record.
    pub created_at: At,
    /// Last write.
    pub updated_at: At,
    /// Pending and failed: not before this. Running: the lease's end.
    pub due_at: Option<At>,
    /// Done: the end of its retention.
    pub expires_at: Option<At>,
    /// When the sweep has to look at it.
    pub sweep_at: Option<At>,
    /// Digest of the outcome that is stored beside the record.
    pub outcome: Option<Fingerprint>,
    /// Whether a payload (whole, or leaf hashes) is stored beside the record.
    pub has_payload: bool,
    /// Why the last attempt failed.
    pub error: Option<Text>,
    /// Who made it and under which ids.
    pub trace: Trace,
}

impl Record {
    /// The state at an instant: a done record past its retention is expired.
    #[must_use]
    pub fn state_at(&self, now: At) -> State {
        match (self.state, self.expires_at) {
            (State::Done, Some(end)) if now >= end => State::Expired,
            (state, _) => state,
        }
    }

    /// The state as people are shown it: that of [`Record::state_at`], and `unknown` already when
    /// the owner of a held record has vanished, though nobody has come by yet to write it down.
    #[must_use]
    pub fn shown_at(&self, now: At) -> State {
        match self.state_at(now) {
            State::Running if self.is_held() && self.lapsed_at(now) => State::Unknown,
            state => state,
        }
    }

    fn is_held(&self) -> bool {
        self.terms.on_abandoned == OnAbandoned::Hold
    }

    /// Whether the lease of a running record has run out, by the store's clock.
    #[must_use]
    pub fn lapsed_at(&self, now: At) -> bool {
        self.state == State::Running && self.due_at.is_none_or(|end| now >= end)
    }
}

/// A record together with its outcome's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The record.
    pub record: Record,
    /// Its outcome, when it has one.
    pub outcome: Option<Bytes>,
}

/// The last position of a subject; with a value it is a document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mark {
    /// Where the subject is.
    pub position: u64,
    /// The document, when there is one.
    pub value: Option<Bytes>,
    /// Last write.
    pub updated_at: At,
}

/// An instant of a draft: kept as it is, cleared, or a while after the store's now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Time {
    /// As in the record that the draft was made from.
    Keep,
    /// None.
    Clear,
    /// The store's now and this many milliseconds.
    In(u64),
}

impl Time {
    fn resolve(self, kept: Option<At>, now: At) -> Option<At> {
        match self {
            Self::Keep => kept,
            Self::Clear => None,
            Self::In(ms) => Some(now.plus(ms)),
        }
    }
}

/// What a draft does with bytes stored beside the record, or with a mark's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Body {
    /// Leaves them.
    Keep,
    /// Replaces them.
    Set(Bytes),
    /// Drops them.
    Clear,
}

impl Body {
    /// Bytes that it counts towards a batch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Set(bytes) => bytes.len(),
            Self::Keep | Self::Clear => 0,
        }
    }
}

/// Whether a write grants, keeps or ends the right to write the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FenceWrite {
    /// The permit's holder goes on.
    Keep,
    /// A grant: the store draws the next number.
    Grant,
    /// Nobody holds it from here on.
    End,
    /// A grant that ends in the same write: the number is drawn, and nobody holds it.
    Once,
}

/// A record to be written: a whole record whose stamps and instants the store fills in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Draft {
    /// What to write; `rev`, `token` and `updated_at` are set by [`Draft::resolve`].
    pub record: Record,
    /// Grants, keeps or ends the permit.
    pub fence: FenceWrite,
    /// Sets `created_at` to now: a first write, or a new life of an expired key.
    pub fresh: bool,
    /// For `due_at`.
    pub due: Time,
    /// For `expires_at`.
    pub expires: Time,
    /// For `sweep_at`.
    pub sweep: Time,
    /// The outcome's bytes.
    pub outcome: Body,
    /// The payload's bytes.
    pub payload: Body,
}

impl Draft {
    /// The record as it is written at `now`, with `stamp` drawn after every lock was taken.
    ///
    /// Every store calls this, so that what a draft means is said once. A stamp is greater than
    /// every stamp drawn before it; it serves as rev and, for a grant, as the fence.
    #[must_use]
    pub fn resolve(&self, token: Token, now: At, stamp: u64) -> Record {
        let mut record = self.record.clone();
        record.rev = Rev(stamp);
        record.token = token;
        match self.fence {
            FenceWrite::Keep => {}
            FenceWrite::Grant => {
                record.fence = Some(Fence(stamp));
                record.last_fence = Fence(stamp);
            }
            FenceWrite::End => record.fence = None,
            FenceWrite::Once => {
                record.fence = None;
                record.last_fence = Fence(stamp);
            }
        }
        if self.fresh {
            record.created_at = now;
        }
        record.updated_at = now;
        record.due_at = self.due.resolve(record.due_at, now);
        record.expires_at = self.expires.resolve(record.expires_at, now);
        record.sweep_at = self.sweep.resolve(record.sweep_at, now);
        record
    }
}

/// Cuts an error text to what a record keeps.
#[must_use]
pub fn error_text(text: &str) -> Text {
    Arc::from(crate::text_cut(text, crate::limits::MAX_ERROR_BYTES))
}
