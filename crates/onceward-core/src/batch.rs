//! Batches: conditions and writes that a store applies all or not at all.
//!
//! Five conditions, five writes, nothing else: a store that can do these can be ours. What is
//! decided from facts is conditional on the rev; what a permit's holder does, on the fence.

use crate::Text;
use crate::audit::Entry;
use crate::key::{Key, Subject};
use crate::limits::{BATCH_BYTES, BATCH_WRITES, LimitError, MAX_BATCH_BYTES, MAX_BATCH_WRITES};
use crate::record::{Body, Draft, Mark, Record, Stored};
use crate::seal::Place;
use crate::stamp::{At, Fence, Rev, Token};

/// Something that must hold for a batch to apply.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Condition {
    /// There is no record of this key.
    Absent(Key),
    /// The record is there and has this rev.
    RevIs(Key, Rev),
    /// The record is there and this fence may write it.
    FenceIs(Key, Fence),
    /// The subject is at this position (0 when it has no mark).
    PositionIs(Subject, u64),
    /// The subject is at this position or below.
    PositionAtMost(Subject, u64),
}

impl Condition {
    /// The record that the condition is about.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Absent(key) | Self::RevIs(key, _) | Self::FenceIs(key, _) => Some(key),
            Self::PositionIs(..) | Self::PositionAtMost(..) => None,
        }
    }

    /// The mark that the condition is about.
    #[must_use]
    pub fn subject(&self) -> Option<&Subject> {
        match self {
            Self::PositionIs(subject, _) | Self::PositionAtMost(subject, _) => Some(subject),
            Self::Absent(_) | Self::RevIs(..) | Self::FenceIs(..) => None,
        }
    }

    /// Whether it holds for the record that is there (record conditions only).
    #[must_use]
    pub fn holds_for(&self, record: Option<&Record>) -> bool {
        self.holds_for_stamps(record.map(|record| (record.rev, record.fence)))
    }

    /// As [`Condition::holds_for`], from the two columns it needs.
    #[must_use]
    pub fn holds_for_stamps(&self, there: Option<(Rev, Option<Fence>)>) -> bool {
        match (self, there) {
            (Self::Absent(_), there) => there.is_none(),
            (Self::RevIs(_, rev), Some((is, _))) => is == *rev,
            (Self::FenceIs(_, fence), Some((_, is))) => is == Some(*fence),
            _ => false,
        }
    }

    /// Whether it holds for the position that is there (mark conditions only).
    #[must_use]
    pub fn holds_at(&self, position: u64) -> bool {
        match self {
            Self::PositionIs(_, n) => position == *n,
            Self::PositionAtMost(_, n) => position <= *n,
            _ => false,
        }
    }
}

/// Something that a batch does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    /// Inserts or replaces a record.
    Put(Box<Draft>),
    /// Removes a record with its outcome and payload.
    Delete(Key),
    /// Moves a mark to the maximum of where it is and `position`; sets, keeps or clears its value.
    Mark {
        /// Which mark.
        subject: Subject,
        /// Where to; marks never move back.
        position: u64,
        /// The document.
        value: Body,
    },
    /// Appends an audit entry.
    Audit(Box<Entry>),
    /// Drops a tenant's audit entries that stand at or before a place and are not younger than an
    /// instant: what retention has let go of.
    Prune {
        /// Whose, as stores keep it (escaped).
        tenant: Text,
        /// The last place that is dropped.
        through: Place,
        /// The latest instant that is dropped: what an index by time needs.
        until: At,
    },
}

/// Conditions and writes, atomic, under one token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Batch {
    /// Made before the first try, the same on every retry.
    pub token: Token,
    /// All must hold.
    pub conditions: Vec<Condition>,
    /// All happen, in this order.
    pub writes: Vec<Write>,
}

/// Where a store finds the token of a batch that it may have applied already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Witness<'a> {
    /// On the first record that the batch puts.
    Record(&'a Key),
    /// Among the tokens: the batch deletes a record, or puts none.
    Tokens,
}

impl Batch {
    /// A batch without conditions or writes.
    #[must_use]
    pub fn new(token: Token) -> Self {
        Self { token, conditions: Vec::new(), writes: Vec::new() }
    }

    /// Where its token is found after it was applied.
    #[must_use]
    pub fn witness(&self) -> Witness<'_> {
        let mut first = None;
        for write in &self.writes {
            match write {
                Write::Delete(_) => return Witness::Tokens,
                Write::Put(draft) => first = first.or(Some(&draft.record.key)),
                Write::Mark { .. } | Write::Audit(_) | Write::Prune { .. } => {}
            }
        }
        first.map_or(Witness::Tokens, Witness::Record)
    }

    /// The records that it reads or writes; a key may come twice.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        let written = self.writes.iter().filter_map(|write| match write {
            Write::Put(draft) => Some(&draft.record.key),
            Write::Delete(key) => Some(key),
            Write::Mark { .. } | Write::Audit(_) | Write::Prune { .. } => None,
        });
        self.conditions.iter().filter_map(Condition::key).chain(written)
    }

    /// The marks that it reads or writes; a subject may come twice.
    pub fn subjects(&self) -> impl Iterator<Item = &Subject> {
        let written = self.writes.iter().filter_map(|write| match write {
            Write::Mark { subject, .. } => Some(subject),
            Write::Put(_) | Write::Delete(_) | Write::Audit(_) | Write::Prune { .. } => None,
        });
        self.conditions.iter().filter_map(Condition::subject).chain(written)
    }

    /// Bytes that it carries beside its keys.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |write: &Write| match write {
            Write::Put(draft) => draft.outcome.bytes() + draft.payload.bytes(),
            Write::Delete(_) | Write::Prune { .. } => 0,
            Write::Mark { value, .. } => value.bytes(),
            Write::Audit(entry) => entry.bytes(),
        };
        self.writes.iter().map(of).sum()
    }

    /// Checks the bounds that hold on every store, and that no row is written twice.
    ///
    /// # Errors
    /// The first bound that is broken.
    pub fn validate(&self) -> Result<(), LimitError> {
        if self.writes.len() > MAX_BATCH_WRITES {
            let bound = format!("at most {MAX_BATCH_WRITES}");
            return Err(LimitError::new(BATCH_WRITES, self.writes.len(), bound));
        }
        let bytes = self.bytes();
        if bytes > MAX_BATCH_BYTES {
            let bound = format!("at most {MAX_BATCH_BYTES}");
            return Err(LimitError::new(BATCH_BYTES, bytes, bound));
        }
        for (index, write) in self.writes.iter().enumerate() {
            if self.writes[..index].iter().any(|earlier| same_row(earlier, write)) {
                return Err(LimitError::new("batch", "two writes of one row", "one write per row"));
            }
        }
        Ok(())
    }
}

fn same_row(a: &Write, b: &Write) -> bool {
    match (written_key(a), written_key(b), a, b) {
        (Some(a), Some(b), ..) => a == b,
        (None, None, Write::Mark { subject: a, .. }, Write::Mark { subject: b, .. }) => a == b,
        _ => false,
    }
}

fn written_key(write: &Write) -> Option<&Key> {
    match write {
        Write::Put(draft) => Some(&draft.record.key),
        Write::Delete(key) => Some(key),
        Write::Mark { .. } | Write::Audit(_) | Write::Prune { .. } => None,
    }
}

/// What a store answers for one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// All conditions held and all writes happened, now or when this token came before.
    Applied(Applied),
    /// At least one condition did not hold; nothing was written.
    Refused(Refused),
    /// A row was held by someone's open transaction; nothing was written. Try again later.
    Contended,
}

/// A batch that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The store's instant of the commit, or of the look-up that recognised the token.
    pub now: At,
    /// Rev and fence of the first record that the batch put.
    pub first: Option<(Rev, Option<Fence>)>,
    /// Whether the token was recognised: an earlier try had been applied.
    pub again: bool,
}

/// A batch that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The store's instant of the look.
    pub now: At,
    /// Each condition that did not hold (by its index), and what is there.
    pub failed: Vec<(usize, There)>,
}

/// What is there in a failed condition's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum There {
    /// The record with its outcome, or none.
    Record(Option<Box<Stored>>),
    /// The mark, or none.
    Mark(Option<Mark>),
}
