//! The part of a record that stores keep as one blob, and the seal over the whole record.
//!
//! What a store has to search or compare lies in columns; the rest (terms, owner, guard, error,
//! trace) is encoded here, behind a version byte, in one hand-written format for every store. The
//! seal at its end covers columns and rest, so a flipped, cut or swapped byte is noticed when the
//! record is read. The decoder never panics and accepts only what the encoder writes.

use sha2::{Digest, Sha256};

use crate::Text;
use crate::audit::Trace;
use crate::guard::{Guard, Rule};
use crate::key::Subject;
use crate::record::{OnAbandoned, OnDead, Record, Terms};
use crate::stamp::At;

const VERSION: u8 = 1;
/// Bytes of a seal: enough against decay and mistakes, not meant against forgers.
pub const SEAL_BYTES: usize = 8;

/// A stored record is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record's {0} can't be read; it was changed behind our back or by a newer version")]
pub struct CodecError(pub &'static str);

/// Encodes what is not in a column of its own, and seals the whole record.
#[must_use]
pub fn encode_rest(record: &Record) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    out.push(VERSION);
    let terms = &record.terms;
    put_number(&mut out, terms.lease_ms);
    put_number(&mut out, terms.retain_ms);
    put_number(&mut out, terms.remember_ms);
    put_number(&mut out, terms.max_attempts.into());
    let hold = u8::from(terms.on_abandoned == OnAbandoned::Hold);
    let block = u8::from(terms.on_dead == OnDead::Block);
    out.push(hold | block << 1);
    let texts = [
        &record.owner,
        &record.attempt_id,
        &record.error,
        &record.trace.actor,
        &record.trace.request_id,
        &record.trace.correlation_id,
    ];
    for text in texts {
        put_text(&mut out, text.as_deref());
    }
    put_guard(&mut out, record.guard.as_ref());
    let seal = seal(record, &out);
    out.extend_from_slice(&seal);
    out
}

/// Completes a record whose columns are set from what [`encode_rest`] wrote, and checks its seal.
///
/// # Errors
/// When anything differs from what was written.
pub fn decode_rest(record: &mut Record, rest: &[u8]) -> Result<(), CodecError> {
    let Some(body_bytes) = rest.len().checked_sub(SEAL_BYTES) else {
        return Err(CodecError("rest"));
    };
    let (body, seal_there) = rest.split_at(body_bytes);
    let mut reader = Reader { bytes: body };
    if reader.byte()? != VERSION {
        return Err(CodecError("format version"));
    }
    let (lease_ms, retain_ms, remember_ms) = (reader.number()?, reader.number()?, reader.number()?);
    let max_attempts = u32::try_from(reader.number()?).map_err(|_| CodecError("terms"))?;
    let flags = reader.byte()?;
    if flags > 3 {
        return Err(CodecError("terms"));
    }
    record.terms = Terms {
        lease_ms,
        retain_ms,
        remember_ms,
        max_attempts,
        on_abandoned: if flags & 1 == 1 { OnAbandoned::Hold } else { OnAbandoned::Rerun },
        on_dead: if flags & 2 == 2 { OnDead::Block } else { OnDead::Skip },
    };
    record.owner = reader.text()?;
    record.attempt_id = reader.text()?;
    record.error = reader.text()?;
    record.trace =
        Trace { actor: reader.text()?, request_id: reader.text()?, correlation_id: reader.text()? };
    record.guard = reader.guard()?;
    if !reader.bytes.is_empty() {
        return Err(CodecError("rest"));
    }
    if seal(record, body) != seal_there {
        return Err(CodecError("seal"));
    }
    Ok(())
}

/// A seal over bytes that are stored beside a record, or in a mark: their parts, one by one, so
/// that none can pass for another's.
#[must_use]
pub fn seal_parts(parts: &[&[u8]]) -> [u8; SEAL_BYTES] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    first_bytes(&hash.finalize())
}

/// Covers every column and the encoded rest.
fn seal(record: &Record, rest: &[u8]) -> [u8; SEAL_BYTES] {
    let mut columns = Vec::with_capacity(160 + rest.len());
    let parts = [record.key.tenant_column(), record.key.kind().as_str(), record.key.name_column()];
    for part in parts {
        put_text(&mut columns, Some(part));
    }
    columns.push(record.state as u8);
    columns.push(record.fingerprint.rules());
    columns.extend_from_slice(record.fingerprint.hash());
    let instant = |at: Option<At>| at.map_or(0, |at| at.0 + 1);
    let numbers = [
        record.rev.0,
        record.fence.map_or(0, |fence| fence.0 + 1),
        record.last_fence.0,
        record.attempt.into(),
        record.priority.into(),
        record.created_at.0,
        record.updated_at.0,
        instant(record.due_at),
        instant(record.expires_at),
        instant(record.sweep_at),
        record.has_payload.into(),
    ];
    for number in numbers {
        columns.extend_from_slice(&number.to_be_bytes());
    }
    columns.extend_from_slice(&record.token.0.to_be_bytes());
    if let Some(outcome) = &record.outcome {
        columns.push(outcome.rules());
        columns.extend_from_slice(outcome.hash());
    }
    columns.extend_from_slice(rest);
    first_bytes(&Sha256::digest(&columns))
}

fn first_bytes(digest: &[u8]) -> [u8; SEAL_BYTES] {
    let mut seal = [0; SEAL_BYTES];
    seal.copy_from_slice(&digest[..SEAL_BYTES]);
    seal
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// 0 for none, otherwise the length plus one and the bytes.
fn put_text(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => out.push(0),
        Some(text) => {
            put_number(out, text.len() as u64 + 1);
            out.extend_from_slice(text.as_bytes());
        }
    }
}

fn put_guard(out: &mut Vec<u8>, guard: Option<&Guard>) {
    let Some(guard) = guard else { return out.push(0) };
    let (code, first, second) = match guard.rule {
        Rule::Exactly { expected } => (1, expected, 0),
        Rule::Next { position } => (2, position, 0),
        Rule::Above { position } => (3, position, 0),
        Rule::NotBefore { at, grace_ms } => (4, at, grace_ms),
    };
    out.push(code);
    put_text(out, Some(guard.subject.tenant_column()));
    put_text(out, Some(guard.subject.name_column()));
    put_number(out, first);
    put_number(out, second);
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, CodecError> {
        let (first, rest) = self.bytes.split_first().ok_or(CodecError("rest"))?;
        self.bytes = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, CodecError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 || shift > 0 && byte == 0 {
                return Err(CodecError("number"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(CodecError("number"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], CodecError> {
        let length = usize::try_from(length).map_err(|_| CodecError("length"))?;
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(CodecError("length"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn text(&mut self) -> Result<Option<Text>, CodecError> {
        let length = self.number()?;
        if length == 0 {
            return Ok(None);
        }
        let bytes = self.take(length - 1)?;
        std::str::from_utf8(bytes).map(|text| Some(text.into())).map_err(|_| CodecError("text"))
    }

    fn guard(&mut self) -> Result<Option<Guard>, CodecError> {
        let code = self.byte()?;
        if code == 0 {
            return Ok(None);
        }
        let tenant = self.text()?.ok_or(CodecError("guard"))?;
        let name = self.text()?.ok_or(CodecError("guard"))?;
        let (first, second) = (self.number()?, self.number()?);
        let rule = match (code, second) {
            (1, 0) => Rule::Exactly { expected: first },
            (2, 0) => Rule::Next { position: first },
            (3, 0) => Rule::Above { position: first },
            (4, grace_ms) => Rule::NotBefore { at: first, grace_ms },
            _ => return Err(CodecError("guard")),
        };
        let subject = Subject::from_columns(&tenant, &name).map_err(|_| CodecError("guard"))?;
        Guard::new(subject, rule).map(Some).map_err(|_| CodecError("guard"))
    }
}
