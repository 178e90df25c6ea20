//! What an event store calls its rows and objects. Every name is injective: ids that differ in one
//! byte never share one.

use object_store::path::Path;
use onceward_core::Bytes;
use onceward_core::audit::Trace;
use onceward_core::key::{Key, Kind, Subject, check_part};
use onceward_core::limits::LimitError;

use super::{EventStoreOptions, Place};
use crate::engine::{STORE_SPACE_PREFIX, STORE_TENANT};

/// Bytes of an aggregate's id at most: its name in the index holds a number too.
pub(super) const MAX_AGGREGATE_BYTES: usize = 480;
/// Digits of a number in the index.
const NUMBER_DIGITS: usize = 16;

/// The names of one event store.
#[derive(Debug, Clone)]
pub(super) struct Names {
    scope: String,
    queue: String,
    index: String,
    aggregates: String,
    name: String,
}

impl Names {
    pub(super) fn new(options: &EventStoreOptions) -> Self {
        Self {
            scope: format!("events.{}", options.name),
            queue: format!("{STORE_SPACE_PREFIX}append.{}", options.name),
            index: format!("{STORE_SPACE_PREFIX}index.{}", options.name),
            aggregates: options.allocator_space.clone(),
            name: options.name.clone(),
        }
    }

    /// The record of an event id.
    pub(super) fn event(&self, tenant: &str, event_id: &str) -> Result<Key, LimitError> {
        check_part("event_id", event_id, 1)?;
        Key::new(Kind::Append, tenant, &self.scope, event_id)
    }

    /// The intent whose first event has this id.
    pub(super) fn intent(&self, tenant: &str, event_id: &str) -> Result<Key, LimitError> {
        Key::new(Kind::Job, tenant, &self.queue, event_id)
    }

    /// The queue that intents wait in.
    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// The mark that counts the events of an aggregate.
    pub(super) fn aggregate(&self, tenant: &str, id: &str) -> Result<Subject, LimitError> {
        if id.len() > MAX_AGGREGATE_BYTES {
            let bound = format!("1 to {MAX_AGGREGATE_BYTES} bytes");
            return Err(LimitError::new("aggregate_id", format!("{} bytes", id.len()), bound));
        }
        check_part("aggregate_id", id, 1)?;
        Subject::new(tenant, &self.aggregates, id)
    }

    /// The start of the names of all aggregates' marks.
    pub(super) fn aggregates_prefix(&self) -> String {
        format!("{}:", onceward_core::text::escape(&self.aggregates))
    }

    /// The mark that tells where an event lies. The number has a fixed width, so that no id can
    /// imitate another with a number.
    pub(super) fn index(&self, tenant: &str, id: &str, number: u64) -> Result<Subject, LimitError> {
        Subject::new(tenant, &self.index, &format!("{id}/{number:0NUMBER_DIGITS$x}"))
    }

    /// The counter of segments whose events are all in the index.
    pub(super) fn indexed(&self) -> Result<Subject, LimitError> {
        let space = format!("{STORE_SPACE_PREFIX}indexed");
        Subject::new(STORE_TENANT, &space, &self.name)
    }

    /// The document that tells which space the aggregates' marks are in.
    pub(super) fn allocator(&self) -> Result<Subject, LimitError> {
        let space = format!("{STORE_SPACE_PREFIX}allocator");
        Subject::new(STORE_TENANT, &space, &self.name)
    }

    /// The packer's lease.
    pub(super) fn packer(&self) -> Result<Key, LimitError> {
        let scope = format!("{STORE_SPACE_PREFIX}packer");
        Key::new(Kind::Append, STORE_TENANT, &scope, &self.name)
    }

    /// The object of a segment. Digits are filled up, so that the order of names is theirs.
    pub(super) fn segment(&self, number: u64) -> Path {
        Path::from(format!("{}/segments/{number:020}", self.name))
    }

    /// An object that only tells whether conditions work.
    pub(super) fn probe(&self, number: u64) -> Path {
        Path::from(format!("{}/probes/{number:016x}", self.name))
    }
}

/// A place, as the index keeps it.
pub(super) fn place_bytes(place: Place) -> Bytes {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&place.segment.to_be_bytes());
    bytes[8..].copy_from_slice(&place.offset.to_be_bytes());
    bytes.as_slice().into()
}

/// Reads [`place_bytes`] back.
pub(super) fn read_place(bytes: &[u8]) -> Option<Place> {
    let (segment, offset) = bytes.split_at_checked(8)?;
    Some(Place {
        segment: u64::from_be_bytes(segment.try_into().ok()?),
        offset: u32::from_be_bytes(offset.try_into().ok()?),
    })
}

/// The trace of an event.
pub(super) fn trace(correlation_id: Option<&str>) -> Trace {
    Trace { correlation_id: correlation_id.map(Into::into), ..Trace::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c10_ids_that_differ_in_anything_never_share_a_name() {
        let names = Names::new(&EventStoreOptions::default());
        let ids =
            ["a", "A", "a ", " a", "a\u{a0}", "ä", "a\u{308}", "a:", "a%3A", "a/", "a\n", "a\0"];
        for (at, one) in ids.iter().enumerate() {
            for other in &ids[..at] {
                assert_ne!(
                    names.aggregate("t", one).unwrap(),
                    names.aggregate("t", other).unwrap(),
                    "{one:?} {other:?}"
                );
            }
        }
        // An id that ends like a number of another's.
        let (one, other) = ("a", "a/0000000000000001");
        assert_ne!(names.index("t", one, 2).unwrap(), names.index("t", other, 2).unwrap());
        assert_ne!(names.index("t", other, 1).unwrap(), names.index("t", one, 1).unwrap());
        assert_ne!(names.aggregate("t", "u").unwrap(), names.aggregate("u", "t").unwrap());
    }

    #[test]
    fn places_come_back_as_they_were() {
        let place = Place { segment: 7, offset: 12 };
        assert_eq!(read_place(&place_bytes(place)), Some(place));
        assert_eq!(read_place(b"short"), None);
    }
}
