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
use crate::stamp::{At, Token};

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
    let mut out = encode_body(record);
    let seal = seal(record, &out);
    out.extend_from_slice(&seal);
    out
}

/// What [`encode_rest`] writes, without the seal: for a store that stamps records itself and
/// therefore closes them itself. See [`seal_base`].
#[must_use]
pub fn encode_body(record: &Record) -> Vec<u8> {
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

/// The part of a record's seal that is known before the store stamps the record: a hash of its
/// key, its state, its body and all columns but stamps and instants. The seal is the beginning of
/// a hash of this, followed by rev, fence, last fence and the instants of making, of writing, due,
/// expires and sweep, each as eight bytes, and each that is missing as eight bytes of ones.
#[must_use]
pub fn seal_base(record: &Record, token: Token, body: &[u8]) -> [u8; 32] {
    let mut columns = Vec::with_capacity(192 + body.len());
    let parts = [record.key.tenant_column(), record.key.kind().as_str(), record.key.name_column()];
    for part in parts {
        put_text(&mut columns, Some(part));
    }
    columns.push(record.state as u8);
    columns.push(record.fingerprint.rules());
    columns.extend_from_slice(record.fingerprint.hash());
    columns.extend_from_slice(&record.attempt.to_be_bytes());
    columns.push(record.priority);
    columns.push(record.has_payload.into());
    columns.extend_from_slice(&token.0.to_be_bytes());
    match &record.outcome {
        None => columns.push(0),
        Some(outcome) => {
            columns.push(1);
            columns.push(outcome.rules());
            columns.extend_from_slice(outcome.hash());
        }
    }
    columns.extend_from_slice(body);
    Sha256::digest(&columns).into()
}

/// Covers every column and the encoded body.
fn seal(record: &Record, body: &[u8]) -> [u8; SEAL_BYTES] {
    let mut hash = Sha256::new();
    hash.update(seal_base(record, record.token, body));
    let instant = |at: Option<At>| at.map_or(u64::MAX, |at| at.0);
    let numbers = [
        record.rev.0,
        record.fence.map_or(u64::MAX, |fence| fence.0),
        record.last_fence.0,
        record.created_at.0,
        record.updated_at.0,
        instant(record.due_at),
        instant(record.expires_at),
        instant(record.sweep_at),
    ];
    for number in numbers {
        hash.update(number.to_be_bytes());
    }
    first_bytes(&hash.finalize())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::Fingerprint;
    use crate::key::{Key, Kind};
    use crate::record::State;
    use crate::stamp::{Fence, Rev};
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = Option<Text>> {
        prop::option::of("\\PC{0,24}".prop_map(|text| Text::from(text.as_str())))
    }

    fn at() -> impl Strategy<Value = Option<At>> {
        prop::option::of(any::<u64>().prop_map(At))
    }

    fn digest() -> impl Strategy<Value = Fingerprint> {
        (any::<u8>(), any::<[u8; 32]>())
            .prop_map(|(rules, hash)| Fingerprint::from_stored(rules, hash))
    }

    fn terms() -> impl Strategy<Value = Terms> {
        (any::<[u64; 3]>(), any::<u32>(), any::<bool>(), any::<bool>()).prop_map(
            |([lease_ms, retain_ms, remember_ms], max_attempts, hold, block)| Terms {
                lease_ms,
                retain_ms,
                remember_ms,
                max_attempts,
                on_abandoned: if hold { OnAbandoned::Hold } else { OnAbandoned::Rerun },
                on_dead: if block { OnDead::Block } else { OnDead::Skip },
            },
        )
    }

    fn guard() -> impl Strategy<Value = Option<Guard>> {
        let number = 1..u64::from(u32::MAX);
        let rule = (0..4, number.clone(), number).prop_map(|(code, first, second)| match code {
            0 => Rule::Exactly { expected: first },
            1 => Rule::Next { position: first },
            2 => Rule::Above { position: first },
            _ => Rule::NotBefore { at: first, grace_ms: second },
        });
        let subject = ("\\PC{1,8}", "\\PC{1,8}", "\\PC{1,8}");
        prop::option::of((subject, rule).prop_map(|((tenant, space, id), rule)| {
            Guard::new(Subject::new(&tenant, &space, &id).unwrap(), rule).unwrap()
        }))
    }

    fn key() -> impl Strategy<Value = Key> {
        let parts = ("\\PC{1,8}", "\\PC{1,8}", "\\PC{1,8}");
        (0..Kind::ALL.len(), parts).prop_map(|(kind, (tenant, scope, id))| {
            Key::new(Kind::ALL[kind], &tenant, &scope, &id).unwrap()
        })
    }

    fn record() -> impl Strategy<Value = Record> {
        let names = (key(), 0..State::ALL.len(), digest(), prop::option::of(digest()));
        let stamps = (any::<u64>(), prop::option::of(any::<u64>()), any::<u64>(), any::<u128>());
        let instants = (any::<[u64; 2]>(), at(), at(), at());
        let small = (any::<u32>(), any::<u8>(), any::<bool>());
        let rest = (terms(), [text(), text(), text(), text(), text(), text()], guard());
        (names, stamps, instants, small, rest).prop_map(|(names, stamps, instants, small, rest)| {
            let (terms, [owner, attempt_id, error, actor, request_id, correlation_id], guard) =
                rest;
            Record {
                key: names.0,
                state: State::ALL[names.1],
                fingerprint: names.2,
                outcome: names.3,
                rev: Rev(stamps.0),
                fence: stamps.1.map(Fence),
                last_fence: Fence(stamps.2),
                token: Token(stamps.3),
                created_at: At(instants.0[0]),
                updated_at: At(instants.0[1]),
                due_at: instants.1,
                expires_at: instants.2,
                sweep_at: instants.3,
                attempt: small.0,
                priority: small.1,
                has_payload: small.2,
                trace: Trace { actor, request_id, correlation_id },
                terms,
                owner,
                attempt_id,
                error,
                guard,
            }
        })
    }

    /// The record as its columns alone give it.
    fn columns(record: &Record) -> Record {
        Record {
            terms: Terms::default(),
            owner: None,
            attempt_id: None,
            error: None,
            guard: None,
            trace: Trace::default(),
            ..record.clone()
        }
    }

    /// Records that differ from this one in exactly one column.
    fn neighbours(record: &Record) -> Vec<(&'static str, Record)> {
        let mut all = Vec::new();
        let mut with = |column, change: &dyn Fn(&mut Record)| {
            let mut changed = columns(record);
            change(&mut changed);
            all.push((column, changed));
        };
        let other = |at: Option<At>| at.map_or(Some(At(0)), |_| None);
        let (tenant, name) = (record.key.tenant_column(), record.key.name_column());
        with("tenant", &|r| {
            r.key = Key::from_columns(&format!("{tenant}x"), r.key.kind(), name).unwrap();
        });
        with("name", &|r| {
            r.key = Key::from_columns(tenant, r.key.kind(), &format!("{name}x")).unwrap();
        });
        with("kind", &|r| {
            let kind = Kind::ALL[(r.key.kind() as usize + 1) % Kind::ALL.len()];
            r.key = Key::from_columns(tenant, kind, name).unwrap();
        });
        with("state", &|r| r.state = State::ALL[(r.state as usize + 1) % State::ALL.len()]);
        with("fingerprint", &|r| {
            let (rules, mut hash) = (r.fingerprint.rules(), *r.fingerprint.hash());
            hash[31] ^= 1;
            r.fingerprint = Fingerprint::from_stored(rules, hash);
        });
        with("fingerprint rules", &|r| {
            let (rules, hash) = (r.fingerprint.rules() ^ 1, *r.fingerprint.hash());
            r.fingerprint = Fingerprint::from_stored(rules, hash);
        });
        with("rev", &|r| r.rev.0 ^= 1);
        with("fence", &|r| r.fence = r.fence.map_or(Some(Fence(0)), |_| None));
        with("last_fence", &|r| r.last_fence.0 ^= 1 << 40);
        with("token", &|r| r.token.0 ^= 1 << 127);
        with("attempt", &|r| r.attempt ^= 1);
        with("priority", &|r| r.priority ^= 1);
        with("created_at", &|r| r.created_at.0 ^= 1);
        with("updated_at", &|r| r.updated_at.0 ^= 1);
        with("due_at", &|r| r.due_at = other(r.due_at));
        with("expires_at", &|r| r.expires_at = other(r.expires_at));
        with("sweep_at", &|r| r.sweep_at = other(r.sweep_at));
        with("has_payload", &|r| r.has_payload = !r.has_payload);
        with("outcome", &|r| {
            let none = Some(Fingerprint::from_stored(0, [0; 32]));
            r.outcome = r.outcome.map_or(none, |_| None);
        });
        all
    }

    proptest! {
        #[test]
        fn a_record_gives_everything_back(record in record()) {
            let mut read = columns(&record);
            prop_assert_eq!(decode_rest(&mut read, &encode_rest(&record)), Ok(()));
            prop_assert_eq!(read, record);
        }

        #[test]
        fn i18_every_flipped_bit_is_refused(record in record()) {
            let mut rest = encode_rest(&record);
            for bit in 0..rest.len() * 8 {
                rest[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(decode_rest(&mut columns(&record), &rest).is_err(), "bit {}", bit);
                rest[bit / 8] ^= 1 << (bit % 8);
            }
        }

        #[test]
        fn i18_every_cut_and_every_tail_is_refused(record in record()) {
            let rest = encode_rest(&record);
            for length in 0..rest.len() {
                let cut = &rest[..length];
                prop_assert!(decode_rest(&mut columns(&record), cut).is_err(), "length {}", length);
            }
            for byte in [0, 1, 0xff] {
                let longer = [&rest[..], &[byte]].concat();
                prop_assert!(decode_rest(&mut columns(&record), &longer).is_err());
            }
        }

        #[test]
        fn i18_every_changed_column_breaks_the_seal(record in record()) {
            let rest = encode_rest(&record);
            for (column, mut changed) in neighbours(&record) {
                let read = decode_rest(&mut changed, &rest);
                prop_assert_eq!(read, Err(CodecError("seal")), "{}", column);
            }
        }

        #[test]
        fn foreign_bytes_never_panic(
            record in record(),
            bytes in prop::collection::vec(any::<u8>(), 0..96),
        ) {
            prop_assert!(decode_rest(&mut columns(&record), &bytes).is_err());
        }
    }

    #[test]
    fn sealed_parts_can_not_imitate_one_another() {
        assert_ne!(seal_parts(&[b"ab", b"c"]), seal_parts(&[b"a", b"bc"]));
        assert_ne!(seal_parts(&[b"a", b""]), seal_parts(&[b"a"]));
        assert_eq!(seal_parts(&[b"a", b"b"]), seal_parts(&[b"a", b"b"]));
    }
}
