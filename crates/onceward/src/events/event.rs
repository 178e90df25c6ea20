//! An event, and its place in the order that everyone reads.

use std::fmt;

use bytes::Bytes;

/// Something that happened to an aggregate. Immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Whose.
    pub tenant: String,
    /// What it happened to: any Unicode, compared byte for byte.
    pub aggregate_id: String,
    /// Names it among all events of the tenant, and is the key of its append.
    pub event_id: String,
    /// Its number in the aggregate: 1, 2, 3, without gaps.
    pub sequence_number: u64,
    /// What happened, as the writer calls it.
    pub kind: String,
    /// What its writer said, byte for byte.
    pub payload: Bytes,
    /// The request or command that it follows from, if one is known.
    pub correlation_id: Option<String>,
}

/// A place in the total order: the event's segment and its offset there. Later events have higher
/// places, and every event of an aggregate stands behind those with lower numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The segment, from 1; 0 stands before all of them.
    pub segment: u64,
    /// The offset in the segment, from 0.
    pub offset: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.segment, self.offset)
    }
}
