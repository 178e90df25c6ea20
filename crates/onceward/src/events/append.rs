//! Appends and what is answered to them. Refusals are answers.

use bytes::Bytes;

use super::Place;

/// An event to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// Whose.
    pub tenant: String,
    /// What it happened to: any Unicode, 1 to 480 bytes, compared byte for byte.
    pub aggregate_id: String,
    /// Names it among all events of the tenant: the same id again is the same append.
    pub event_id: String,
    /// What happened, as the writer calls it.
    pub kind: String,
    /// What the writer says. Kept byte for byte; two spellings of one JSON value are the same.
    pub payload: Bytes,
    /// The number that the aggregate is expected to be at (0: it has no event yet).
    pub expected_seq: Option<u64>,
    /// The request or command that it follows from.
    pub correlation_id: Option<String>,
}

/// One of several events to be appended together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Names it among all events of the tenant.
    pub event_id: String,
    /// What happened.
    pub kind: String,
    /// What the writer says.
    pub payload: Bytes,
}

/// Events of one aggregate, appended all or not at all, in this order, with consecutive numbers.
/// At most [`onceward_core::decide::MAX_APPEND_EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendMany {
    /// Whose.
    pub tenant: String,
    /// What they happened to.
    pub aggregate_id: String,
    /// The number that the aggregate is expected to be at before the first of them.
    pub expected_seq: Option<u64>,
    /// In their order; ids must differ.
    pub events: Vec<NewEvent>,
    /// The request or command that they follow from.
    pub correlation_id: Option<String>,
}

/// An event that is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Appended {
    /// Its number in the aggregate.
    pub sequence_number: u64,
    /// Its place in the order of all events.
    pub place: Place,
}

/// The answer to an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppendVerdict {
    /// It was appended, and is durable.
    Appended(Appended),
    /// It had been appended before: the first result.
    Again(Appended),
    /// The id was used with another payload; accepted as nothing new (mode `warn`).
    Ignored {
        /// The first result.
        first: Appended,
        /// JSON pointers, below `/aggregate_id`, `/kind` and `/payload`.
        differs: Vec<String>,
    },
    /// The id was used with another payload; nothing was appended.
    Mismatch {
        /// JSON pointers, below `/aggregate_id`, `/kind` and `/payload`.
        differs: Vec<String>,
    },
    /// The aggregate is not where it was expected to be; nothing was appended.
    SequenceMismatch {
        /// Where it is.
        current: u64,
    },
    /// The allocator's mode asks for an expected number, and there is none.
    ExpectedSeqRequired,
}

/// The answer to an append of several events.
///
/// The same events again are answered with the first result: all of them, or some of their start,
/// also when others have appended since. Whatever else repeats an id is refused whole: with one
/// more event behind, in another order, or together with another append's events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManyVerdict {
    /// They were appended and are durable: one per event.
    Appended(Vec<Appended>),
    /// They had been appended before, in this order and without others between.
    Again(Vec<Appended>),
    /// An id was used with another payload; nothing was appended, and that is accepted (mode
    /// `warn`).
    Ignored {
        /// The event at this index differs.
        index: usize,
        /// What differs.
        differs: Vec<String>,
    },
    /// An id was used with another payload; nothing was appended.
    Mismatch {
        /// The event at this index differs.
        index: usize,
        /// What differs.
        differs: Vec<String>,
    },
    /// Some were appended before and some were not, or not as one run; nothing was appended.
    Mixed {
        /// Numbers of those that are there, by their index.
        there: Vec<(usize, u64)>,
    },
    /// The aggregate is not where it was expected to be; nothing was appended.
    SequenceMismatch {
        /// Where it is.
        current: u64,
    },
    /// The allocator's mode asks for an expected number, and there is none.
    ExpectedSeqRequired,
}
