//! A segment: events in their order, as one immutable object.
//!
//! The form is versioned and ends with a SHA-256 over everything before it, the segment's own
//! number included: a flipped, cut or swapped object is refused, never read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use sha2::{Digest as _, Sha256};

use super::{Event, EventsError, Place};

const MAGIC: &[u8; 6] = b"OWSEG\x01";
const DIGEST_BYTES: usize = 32;
/// Set on the first event of an intent.
const FIRST: u8 = 1;
/// Set when the event has a correlation id.
const CORRELATED: u8 = 2;

/// A segment that was written or read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// From 1.
    pub(super) number: u64,
    /// In their order.
    pub(super) events: Vec<Event>,
    /// Whether each is the first of its intent.
    pub(super) firsts: Vec<bool>,
    /// Bytes of memory that it takes, about: its events, and the object that their payloads are
    /// parts of.
    pub(super) bytes: usize,
}

/// What the allocator needs for each text of an event, about.
const TEXT_BYTES: usize = 16;

impl Segment {
    /// The place of its last event.
    pub(super) fn last(&self) -> Place {
        let offset = u32::try_from(self.events.len().saturating_sub(1)).unwrap_or(u32::MAX);
        Place { segment: self.number, offset }
    }

    /// Its events with their places.
    pub(super) fn placed(&self) -> impl DoubleEndedIterator<Item = (Place, &Event)> {
        let number = self.number;
        self.events.iter().enumerate().map(move |(at, event)| {
            let offset = u32::try_from(at).unwrap_or(u32::MAX);
            (Place { segment: number, offset }, event)
        })
    }
}

/// Writes the events of one segment. The first of each intent is told apart.
pub(super) fn encode<'e>(number: u64, events: impl Iterator<Item = (bool, &'e Event)>) -> Bytes {
    let mut out = BytesMut::with_capacity(64 * 1024);
    out.put_slice(MAGIC);
    out.put_u64(number);
    let count_at = out.len();
    out.put_u32(0);
    let mut count = 0u32;
    for (first, event) in events {
        count += 1;
        out.put_u8(u8::from(first) * FIRST + u8::from(event.correlation_id.is_some()) * CORRELATED);
        out.put_u64(event.sequence_number);
        put_text(&mut out, &event.tenant);
        put_text(&mut out, &event.aggregate_id);
        put_written(&mut out, event);
    }
    out[count_at..count_at + 4].copy_from_slice(&count.to_be_bytes());
    let digest = Sha256::digest(&out);
    out.put_slice(&digest);
    // A copy of its own size: it is kept for a while, and the room behind it would be kept too.
    Bytes::copy_from_slice(&out)
}

/// Reads a segment that is kept under `number`, and checks every byte of it.
pub(super) fn decode(number: u64, object: &Bytes) -> Result<Segment, EventsError> {
    let bad = |why: &str| EventsError::Corrupt(format!("segment {number}: {why}"));
    let end = object.len().checked_sub(DIGEST_BYTES).ok_or_else(|| bad("it is cut short"))?;
    let mut rest = object.slice(..end);
    if !rest.starts_with(MAGIC) {
        return Err(bad("it is of another form or version"));
    }
    if Sha256::digest(&rest).as_slice() != &object[end..] {
        return Err(bad("its checksum does not fit"));
    }
    rest.advance(MAGIC.len());
    read_events(number, &mut rest, object.len()).ok_or_else(|| bad("it is not what it says"))
}

fn event_bytes(event: &Event) -> usize {
    let Event { tenant, aggregate_id, event_id, kind, correlation_id, .. } = event;
    let texts = [Some(tenant), Some(aggregate_id), Some(event_id), Some(kind)];
    let texts = texts.into_iter().chain([correlation_id.as_ref()]).flatten();
    size_of::<Event>() + texts.map(|text| text.len() + TEXT_BYTES).sum::<usize>()
}

fn read_events(number: u64, rest: &mut Bytes, bytes: usize) -> Option<Segment> {
    if rest.try_get_u64().ok()? != number {
        return None;
    }
    let count = rest.try_get_u32().ok()?;
    let (mut events, mut firsts) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let flags = rest.try_get_u8().ok()?;
        let sequence_number = rest.try_get_u64().ok()?;
        let (tenant, aggregate_id) = (get_text(rest)?, get_text(rest)?);
        let written = get_written(rest, flags & CORRELATED != 0)?;
        firsts.push(flags & FIRST != 0);
        events.push(written.placed(tenant, aggregate_id, sequence_number));
    }
    let bytes = bytes + events.iter().map(event_bytes).sum::<usize>();
    rest.is_empty().then_some(Segment { number, events, firsts, bytes })
}

/// What an intent keeps of an event: all but the aggregate and the number.
pub(super) struct Written {
    event_id: String,
    kind: String,
    correlation_id: Option<String>,
    payload: Bytes,
}

impl Written {
    pub(super) fn placed(self, tenant: String, aggregate_id: String, number: u64) -> Event {
        Event {
            tenant,
            aggregate_id,
            event_id: self.event_id,
            sequence_number: number,
            kind: self.kind,
            payload: self.payload,
            correlation_id: self.correlation_id,
        }
    }
}

/// Writes the events of an intent.
pub(super) fn encode_intent(events: &[Event]) -> Bytes {
    let payloads: usize = events.iter().map(|event| event.payload.len() + 128).sum();
    let mut out = BytesMut::with_capacity(payloads);
    for event in events {
        out.put_u8(u8::from(event.correlation_id.is_some()) * CORRELATED);
        put_written(&mut out, event);
    }
    out.freeze()
}

/// Reads the events of an intent.
pub(super) fn decode_intent(bytes: Bytes) -> Option<Vec<Written>> {
    let mut rest = bytes;
    let mut events = Vec::new();
    while !rest.is_empty() {
        let flags = rest.try_get_u8().ok()?;
        events.push(get_written(&mut rest, flags & CORRELATED != 0)?);
    }
    Some(events)
}

fn put_written(out: &mut BytesMut, event: &Event) {
    put_text(out, &event.event_id);
    put_text(out, &event.kind);
    if let Some(correlation_id) = &event.correlation_id {
        put_text(out, correlation_id);
    }
    // A payload is bounded far below 4 GiB by the bytes of a batch.
    out.put_u32(u32::try_from(event.payload.len()).unwrap_or(u32::MAX));
    out.put_slice(&event.payload);
}

fn get_written(rest: &mut Bytes, correlated: bool) -> Option<Written> {
    let (event_id, kind) = (get_text(rest)?, get_text(rest)?);
    let correlation_id = if correlated { Some(get_text(rest)?) } else { None };
    let length = usize::try_from(rest.try_get_u32().ok()?).ok()?;
    let payload = (length <= rest.len()).then(|| rest.split_to(length))?;
    Some(Written { event_id, kind, correlation_id, payload })
}

/// Texts are parts of keys, at most 512 bytes: two bytes of length are enough.
fn put_text(out: &mut BytesMut, text: &str) {
    out.put_u16(u16::try_from(text.len()).unwrap_or(u16::MAX));
    out.put_slice(text.as_bytes());
}

fn get_text(rest: &mut Bytes) -> Option<String> {
    let length = usize::from(rest.try_get_u16().ok()?);
    let text = (length <= rest.len()).then(|| rest.split_to(length))?;
    String::from_utf8(text.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        Event {
            tenant: "t".into(),
            aggregate_id: "a\u{0}ä".into(),
            event_id: format!("e{number}"),
            sequence_number: number,
            kind: "create".into(),
            payload: Bytes::from(format!("{{\"n\":{number}}}")),
            correlation_id: number.is_multiple_of(2).then(|| "c".into()),
        }
    }

    fn sample() -> Bytes {
        let events: Vec<_> = (1..=3).map(event).collect();
        encode(9, events.iter().map(|event| (event.sequence_number != 2, event)))
    }

    #[test]
    fn a_segment_holds_no_more_memory_than_it_says() {
        let object = sample();
        let segment = decode(9, &object).unwrap();
        assert!(segment.bytes > object.len() + 3 * size_of::<Event>());
        let length = object.len();
        drop(segment);
        assert_eq!(object.try_into_mut().unwrap().capacity(), length, "no room behind it");
    }

    #[test]
    fn a_segment_comes_back_as_it_was() {
        let segment = decode(9, &sample()).unwrap();
        assert_eq!(segment.events, (1..=3).map(event).collect::<Vec<_>>());
        assert_eq!(segment.firsts, [true, false, true]);
        assert_eq!(segment.last(), Place { segment: 9, offset: 2 });
        let events: Vec<_> = (1..=3).map(event).collect();
        let back = decode_intent(encode_intent(&events)).unwrap();
        let back: Vec<_> = back
            .into_iter()
            .zip(1..)
            .map(|(one, number)| one.placed("t".into(), "a\u{0}ä".into(), number))
            .collect();
        assert_eq!(back, events);
    }

    #[test]
    fn i18_a_flipped_cut_or_swapped_segment_is_refused() {
        let whole = sample();
        for at in 0..whole.len() {
            let mut flipped = whole.to_vec();
            flipped[at] ^= 1;
            assert!(decode(9, &flipped.into()).is_err(), "byte {at}");
            assert!(decode(9, &whole.slice(..at)).is_err(), "cut at {at}");
        }
        assert!(decode(8, &whole).is_err(), "another segment's object");
    }

    /// The form of version 1, byte for byte: a program that can't read it has lost events.
    #[test]
    fn the_first_version_stays_readable() {
        let head = "4f57534547010000000000000001000000010100000000000000010001740001610001650001";
        let rest = "6b000000027b7d";
        let hex = format!("{head}{rest}");
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let mut object: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let digest = Sha256::digest(&object);
        object.extend_from_slice(&digest);
        let segment = decode(1, &object.into()).unwrap();
        assert_eq!(segment.events.len(), 1);
        assert_eq!(segment.events[0].event_id, "e");
        assert_eq!(segment.events[0].payload, Bytes::from("{}"));
        assert_eq!(segment.events[0].sequence_number, 1);
    }
}
