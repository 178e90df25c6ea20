//! An event as bytes of its own: what a dead letter keeps, and a line of a spool file.
//!
//! JSON with the payload as text where it is text, in hex where it is not: a person can read it,
//! and it comes back byte for byte.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::events::Event;

#[derive(Serialize, Deserialize)]
struct Letter {
    tenant: String,
    aggregate_id: String,
    event_id: String,
    sequence_number: u64,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    correlation_id: Option<String>,
}

/// The bytes of an event.
#[must_use]
pub fn write_event(event: &Event) -> Vec<u8> {
    let text = std::str::from_utf8(&event.payload).ok().map(str::to_owned);
    let hex = text.is_none().then(|| hex_of(&event.payload));
    let letter = Letter {
        tenant: event.tenant.clone(),
        aggregate_id: event.aggregate_id.clone(),
        event_id: event.event_id.clone(),
        sequence_number: event.sequence_number,
        kind: event.kind.clone(),
        text,
        hex,
        correlation_id: event.correlation_id.clone(),
    };
    // Strings and numbers can always be written.
    serde_json::to_vec(&letter).unwrap_or_default()
}

/// The event of these bytes; none when they are not what [`write_event`] makes.
#[must_use]
pub fn read_event(bytes: &[u8]) -> Option<Event> {
    let letter: Letter = serde_json::from_slice(bytes).ok()?;
    let payload = match (letter.text, letter.hex) {
        (Some(text), None) => Bytes::from(text),
        (None, Some(hex)) => Bytes::from(of_hex(&hex)?),
        _ => return None,
    };
    Some(Event {
        tenant: letter.tenant,
        aggregate_id: letter.aggregate_id,
        event_id: letter.event_id,
        sequence_number: letter.sequence_number,
        kind: letter.kind,
        payload,
        correlation_id: letter.correlation_id,
    })
}

fn hex_of(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing into a string can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_comes_back_byte_for_byte() {
        for payload in [&b"{\"a\": 1}"[..], b"", b"\xff\x00\n\"", "größe\u{0}".as_bytes()] {
            let event = Event {
                tenant: "acme".into(),
                aggregate_id: " Ä:%\n".into(),
                event_id: "e-1".into(),
                sequence_number: 7,
                kind: "update".into(),
                payload: Bytes::copy_from_slice(payload),
                correlation_id: None,
            };
            let bytes = write_event(&event);
            assert!(!bytes.contains(&b'\n'), "it is one line");
            assert_eq!(read_event(&bytes), Some(event));
        }
        for bad in [&b"{}"[..], b"", b"null", b"{\"tenant\":1}"] {
            assert_eq!(read_event(bad), None);
        }
    }
}
