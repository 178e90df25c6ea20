//! A cached outcome as bytes: what is kept in Redis.
//!
//! A value is sealed with a keyed hash over itself and the name it is kept under: a flipped byte, a
//! cut, a value of another key, of another store or of another version is not read. The seal does
//! not hide the outcome, and an old value of the same key passes it: age and erasures are judged by
//! the reader.

use std::sync::Arc;

use onceward_core::audit::Trace;
use onceward_core::fingerprint::Fingerprint;
use onceward_core::key::Key;
use onceward_core::note::Original;
use onceward_core::stamp::{At, Fence, Rev};
use onceward_core::{Bytes, Text};
use sha2::{Digest, Sha256};

/// The form of a value; another form is another first byte.
const FORM: u8 = 1;
/// Form, erasures, expiry, fingerprint, rev, instant, fence.
const HEAD_BYTES: usize = 1 + 16 + 8 + 1 + 32 + 3 * 8;
/// The length of a text that is not there.
const NO_TEXT: u16 = u16::MAX;
const SEAL_BYTES: usize = 32;

/// An outcome and what is needed to judge whether it may be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    /// The note of the latest erasure from before the record was looked at.
    pub(super) erasures: u128,
    /// When its retention ends, on the store's clock.
    pub(super) expires_at: At,
    /// Of the payload that it answers.
    pub(super) fingerprint: Fingerprint,
    /// Which life of the record it is.
    pub(super) rev: Rev,
    /// When that was written, on the store's clock.
    pub(super) at: At,
    /// The fence of the attempt that did.
    pub(super) fence: Fence,
    /// Who asked, and under which ids.
    pub(super) trace: Trace,
    /// What is replayed.
    pub(super) outcome: Bytes,
}

impl Value {
    /// What a note about its replay points back to.
    pub(super) fn original(&self, key: &Key) -> Arc<Original> {
        Original::new(key.clone(), self.rev, self.at, self.fence, self.trace.clone())
    }

    /// The value as it is kept under `name`.
    pub(super) fn seal(&self, secret: &[u8; 32], name: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.outcome.len() + SEAL_BYTES);
        bytes.push(FORM);
        bytes.extend(self.erasures.to_be_bytes());
        bytes.extend(self.expires_at.0.to_be_bytes());
        bytes.push(self.fingerprint.rules());
        bytes.extend(self.fingerprint.hash());
        for number in [self.rev.0, self.at.0, self.fence.0] {
            bytes.extend(number.to_be_bytes());
        }
        for text in [&self.trace.actor, &self.trace.request_id, &self.trace.correlation_id] {
            push_text(&mut bytes, text.as_deref());
        }
        bytes.extend(&*self.outcome);
        let seal = seal(secret, name, &bytes);
        bytes.extend(seal);
        bytes
    }

    /// Reads what was kept under `name`; `None` when it is not what we wrote there.
    pub(super) fn open(secret: &[u8; 32], name: &str, bytes: &[u8]) -> Option<Self> {
        let (body, theirs) = bytes.split_last_chunk::<SEAL_BYTES>()?;
        let ours = seal(secret, name, body);
        let differs = ours.iter().zip(theirs).fold(0, |differs, (a, b)| differs | (a ^ b));
        if std::hint::black_box(differs) != 0 {
            return None;
        }
        let (form, rest) = body.split_first()?;
        let (erasures, rest) = rest.split_first_chunk::<16>()?;
        let (expires_at, rest) = rest.split_first_chunk::<8>()?;
        let (rules, rest) = rest.split_first()?;
        let (hash, mut rest) = rest.split_first_chunk::<32>()?;
        let [rev, at, fence] = [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
        let trace = Trace {
            actor: text(&mut rest)?,
            request_id: text(&mut rest)?,
            correlation_id: text(&mut rest)?,
        };
        (*form == FORM).then(|| Self {
            erasures: u128::from_be_bytes(*erasures),
            expires_at: At(u64::from_be_bytes(*expires_at)),
            fingerprint: Fingerprint::from_stored(*rules, *hash),
            rev: Rev(rev),
            at: At(at),
            fence: Fence(fence),
            trace,
            outcome: rest.into(),
        })
    }
}

/// A text behind its length; texts of a trace are shorter than a length can say.
fn push_text(bytes: &mut Vec<u8>, text: Option<&str>) {
    let length = text.map_or(NO_TEXT, |text| u16::try_from(text.len()).unwrap_or(NO_TEXT));
    bytes.extend(length.to_be_bytes());
    if length != NO_TEXT {
        bytes.extend(text.unwrap_or_default().as_bytes());
    }
}

fn text(rest: &mut &[u8]) -> Option<Option<Text>> {
    let (length, left) = rest.split_first_chunk::<2>()?;
    let length = u16::from_be_bytes(*length);
    if length == NO_TEXT {
        *rest = left;
        return Some(None);
    }
    let (text, left) = left.split_at_checked(length.into())?;
    *rest = left;
    Some(Some(std::str::from_utf8(text).ok()?.into()))
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let (number, left) = rest.split_first_chunk::<8>()?;
    *rest = left;
    Some(u64::from_be_bytes(*number))
}

/// HMAC-SHA-256 (RFC 2104) over the name, its length first, and the bytes.
fn seal(secret: &[u8; 32], name: &str, bytes: &[u8]) -> [u8; SEAL_BYTES] {
    const BLOCK: usize = 64;
    let mut pad = [0x36_u8; BLOCK];
    pad.iter_mut().zip(secret).for_each(|(pad, key)| *pad ^= key);
    let inner = Sha256::new()
        .chain_update(pad)
        .chain_update((name.len() as u64).to_be_bytes())
        .chain_update(name)
        .chain_update(bytes)
        .finalize();
    pad.iter_mut().for_each(|pad| *pad ^= 0x36 ^ 0x5c);
    Sha256::new().chain_update(pad).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Value {
        Value {
            erasures: 3,
            expires_at: At(1_800_000_000_000),
            fingerprint: Fingerprint::from_stored(1, [7; 32]),
            rev: Rev(9),
            at: At(1_700_000_000_000),
            fence: Fence(8),
            trace: Trace { actor: Some("ada".into()), ..Trace::default() },
            outcome: b"an outcome".as_slice().into(),
        }
    }

    #[test]
    fn what_is_sealed_is_opened() {
        let bytes = sample().seal(&[1; 32], "idempo:a:b:c:d");
        assert_eq!(Value::open(&[1; 32], "idempo:a:b:c:d", &bytes), Some(sample()));
        let empty = Value { outcome: b"".as_slice().into(), ..sample() };
        assert_eq!(Value::open(&[1; 32], "n", &empty.seal(&[1; 32], "n")), Some(empty));
    }

    #[test]
    fn a11_a_value_that_is_damaged_swapped_or_foreign_is_not_opened() {
        let bytes = sample().seal(&[1; 32], "idempo:a:b:c:d");
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(Value::open(&[1; 32], "idempo:a:b:c:d", &flipped), None, "{at} {bit}");
            }
            assert_eq!(Value::open(&[1; 32], "idempo:a:b:c:d", &bytes[..at]), None, "cut at {at}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Value::open(&[1; 32], "idempo:a:b:c:d", &longer), None);
        assert_eq!(Value::open(&[1; 32], "idempo:a:b:c:e", &bytes), None, "another key's");
        assert_eq!(Value::open(&[2; 32], "idempo:a:b:c:d", &bytes), None, "another store's");
    }

    #[test]
    fn the_seal_is_hmac_sha_256() {
        // Computed with another implementation, over the length, the name and the bytes.
        let mac = seal(&[0x0b; 32], "Hi", b" There");
        let hex: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "ba5b6c2cffce561ed545870e6a0f1bf8887ccbe4ed2ca7cb3122ed072665966f");
    }
}
