//! Texts that only we can read: permits, references to records, cursors of lists.
//!
//! A permit names key and fence and carries a MAC under the store's secret: a forged or mistyped
//! one is refused before the store is asked, so it never touches anybody's record. It holds no
//! secret itself. A reference is the key in an alphabet that fits into a path; it proves nothing,
//! and whoever shows one still needs a token for its tenant.

use onceward::store::Cursor;
use onceward_core::key::{Key, Kind};
use onceward_core::outcome_policy::Statuses;
use ring::hmac;

/// First byte of a permit.
const VERSION: u8 = 1;
/// First byte of one that tells which statuses its route moves.
const VERSION_MOVED: u8 = 2;
/// Bytes of the MAC.
const MAC_BYTES: usize = 32;
/// Longest permit or reference that is looked at.
const TEXT_BYTES_MAX: usize = 8 * 1024;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The keys that are made from the store's secret.
#[derive(Debug)]
pub(crate) struct Keys {
    permits: hmac::Key,
    /// Keys the hashes of payload leaves.
    pub(crate) leaves: [u8; 32],
}

/// What a permit says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Whose permit it is.
    pub(crate) key: Key,
    /// Which acquisition.
    pub(crate) fence: u64,
}

impl Keys {
    /// Makes the keys; one for each purpose, so that none serves for two.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = |purpose: &str| hmac::sign(&root, purpose.as_bytes());
        let mut leaves = [0; 32];
        leaves.copy_from_slice(&derived("control api: leaves").as_ref()[..32]);
        let permits = derived("control api: permits");
        Self { permits: hmac::Key::new(hmac::HMAC_SHA256, permits.as_ref()), leaves }
    }

    /// Writes a permit, for one who records what is no answer of HTTP.
    pub(crate) fn permit(&self, key: &Key, fence: u64) -> String {
        self.permit_under(key, fence, &Statuses::default())
    }

    /// Writes a permit with the statuses that its route moves: `onceward.complete` goes by them.
    pub(crate) fn permit_under(&self, key: &Key, fence: u64, moved: &Statuses) -> String {
        let text = key.to_string();
        let mut bytes = Vec::with_capacity(1 + 8 + text.len() + MAC_BYTES);
        let is_moved = *moved != Statuses::default();
        bytes.push(if is_moved { VERSION_MOVED } else { VERSION });
        bytes.extend_from_slice(&fence.to_be_bytes());
        if is_moved {
            for list in [&moved.stored, &moved.released] {
                // No list has more than there are error statuses.
                bytes.push(u8::try_from(list.len()).unwrap_or(u8::MAX));
                list.iter().for_each(|status| bytes.extend_from_slice(&status.to_be_bytes()));
            }
        }
        bytes.extend_from_slice(text.as_bytes());
        let mac = hmac::sign(&self.permits, &bytes);
        bytes.extend_from_slice(mac.as_ref());
        encode(&bytes)
    }

    /// Reads a permit; none when we did not write it.
    pub(crate) fn read_permit(&self, text: &str) -> Option<Shown> {
        let bytes = decode(text)?;
        let (said, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        hmac::verify(&self.permits, said, mac).ok()?;
        let (&version, rest) = said.split_first()?;
        let (fence, mut key) = rest.split_first_chunk::<8>()?;
        let lists = match version {
            VERSION => 0,
            VERSION_MOVED => 2,
            _ => return None,
        };
        for _ in 0..lists {
            let (&count, rest) = key.split_first()?;
            key = rest.get(usize::from(count) * 2..)?;
        }
        let key = Key::parse(std::str::from_utf8(key).ok()?).ok()?;
        Some(Shown { key, fence: u64::from_be_bytes(*fence) })
    }
}

/// The reference to a record.
pub(crate) fn reference(key: &Key) -> String {
    encode(key.to_string().as_bytes())
}

/// Reads a reference, or a key in its text form: `tenant:kind:scope:id`.
pub(crate) fn read_reference(text: &str) -> Option<Key> {
    if text.contains(':') {
        return Key::parse(text).ok();
    }
    Key::parse(std::str::from_utf8(&decode(text)?).ok()?).ok()
}

/// A cursor in an alphabet that fits into a query as it is.
pub(crate) fn cursor(cursor: &Cursor) -> String {
    encode(cursor.0.as_bytes())
}

/// Reads a cursor; one that a command printed, straight from the store, is good too.
pub(crate) fn read_cursor(text: &str) -> Cursor {
    let read = decode(text).and_then(|bytes| String::from_utf8(bytes).ok());
    Cursor(read.unwrap_or_else(|| text.to_string()))
}

/// The job's type and resource, when the key is a job's.
pub(crate) fn job_parts(key: &Key) -> Option<(String, String)> {
    if key.kind() != Kind::Job {
        return None;
    }
    let kind = key.within_parts().next().map(std::borrow::Cow::into_owned).unwrap_or_default();
    Some((kind, key.id().into_owned()))
}

/// RFC 4648 §5, without padding.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..=chunk.len() {
            let index = bits >> (18 - 6 * place) & 63;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}

/// Accepts exactly what [`encode`] writes: one spelling for each sequence of bytes.
fn decode(text: &str) -> Option<Vec<u8>> {
    if text.is_empty() || text.len() > TEXT_BYTES_MAX || text.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chunk in text.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for place in 0..4 {
            let value = match chunk.get(place) {
                Some(byte) => ALPHABET.iter().position(|letter| letter == byte)?,
                None => 0,
            };
            bits = bits << 6 | u32::try_from(value).ok()?;
        }
        let group = bits.to_be_bytes();
        let whole = chunk.len() * 6 / 8;
        if group[1 + whole..].iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&group[1..=whole]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(Kind::Request, "ac:me", "POST /v1/päyments", "k/1").unwrap()
    }

    #[test]
    fn bytes_survive_and_have_one_spelling() {
        for length in 0..70_u8 {
            let bytes: Vec<u8> = (0..length).map(|n| n.wrapping_mul(37)).collect();
            let text = encode(&bytes);
            assert_eq!(decode(&text).unwrap_or_default(), bytes);
        }
        assert_eq!(encode(b"\xfb\xff"), "-_8");
        // The last letter carries bits that must be zero.
        for bad in ["-_9", "A", "AA=", "A A", "ÄA"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_permit_is_read_back_by_its_own_secret_only() {
        let keys = Keys::new(&[7; 32]);
        let moved = Statuses { stored: vec![409, 599], released: (400..600).step_by(3).collect() };
        let text = keys.permit_under(&key(), 42, &moved);
        assert_eq!(keys.read_permit(&text), Some(Shown { key: key(), fence: 42 }));
        let text = keys.permit(&key(), 42);
        assert_eq!(keys.read_permit(&text), Some(Shown { key: key(), fence: 42 }));
        assert_eq!(Keys::new(&[8; 32]).read_permit(&text), None);
        for at in 0..text.len() {
            let mut forged = text.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(keys.read_permit(std::str::from_utf8(&forged).unwrap()), None, "{at}");
        }
        assert_eq!(keys.read_permit(&text[..text.len() - 4]), None);
        assert_eq!(keys.read_permit(""), None);
    }

    #[test]
    fn references_fit_into_a_path() {
        let text = reference(&key());
        assert!(text.bytes().all(|byte| ALPHABET.contains(&byte)), "{text}");
        assert_eq!(read_reference(&text), Some(key()));
        assert_eq!(read_reference(&key().to_string()), Some(key()));
        assert_eq!(read_reference("nonsense"), None);
    }
}
