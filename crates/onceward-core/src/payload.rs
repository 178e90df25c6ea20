//! What is kept of a payload, so that a later mismatch can be explained (`keep_payload`).
//!
//! Rule: `hashed`, the default, keeps which leaves a payload had but none of their values: a keyed
//! hash of eight bytes each, useless without the key. Everything is bounded, and decoding accepts
//! exactly what encoding writes.
//!
//! Not responsible for comparing (`diff.rs`), nor for where the bytes or the key are stored.

use std::collections::HashSet;
use std::fmt;

use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::canonical::{CanonicalError, MAX_BODY_BYTES};
use crate::fingerprint::CanonicalBody;
use crate::json::{Flow, Node, Seen, Tape, walk_leaves};

/// How many leaves `hashed` keeps; a payload with more is marked as truncated.
pub const MAX_KEPT_LEAVES: usize = 256;

/// The longest pointer that is kept or reported, in bytes. A leaf below a longer one is passed
/// over and counts as truncated: a pointer cut short would name another place.
pub const MAX_POINTER_BYTES: usize = 512;

/// How many bytes of a leaf's hash are kept.
pub const LEAF_HASH_BYTES: usize = 8;

/// The first byte of every encoded payload.
const VERSION: u8 = 1;
const KIND_NONE: u8 = 0;
const KIND_HASHED: u8 = 1;
const KIND_FULL: u8 = 2;

/// The kind under which a masked value is hashed: no leaf has it.
const MASKED_VALUE: u8 = 255;

/// How much of a payload is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeepPayload {
    /// Nothing: a mismatch is only known to be one.
    None,
    /// A keyed hash per leaf: a mismatch can name the pointers that differ.
    #[default]
    Hashed,
    /// The canonical JSON: a mismatch can show values.
    Full,
}

/// What was kept of a payload.
#[derive(Clone, PartialEq, Eq)]
pub enum KeptPayload {
    /// Nothing.
    None,
    /// Hashes of its leaves.
    Hashed(KeptLeaves),
    /// Its canonical JSON.
    Full(Vec<u8>),
}

/// Pointers of leaves with the hashes of their values, in canonical order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptLeaves {
    leaves: Vec<(String, [u8; LEAF_HASH_BYTES])>,
    truncated: bool,
}

impl KeptLeaves {
    /// The leaves: pointer and hash. Pointers are unique.
    #[must_use]
    pub fn leaves(&self) -> &[(String, [u8; LEAF_HASH_BYTES])] {
        &self.leaves
    }

    /// Whether the payload had leaves that were not kept.
    #[must_use]
    pub const fn truncated(&self) -> bool {
        self.truncated
    }
}

/// Why stored bytes are not a kept payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The bytes end too early.
    #[error("kept payload: the bytes end too early, at {offset}")]
    End {
        /// How many bytes there were.
        offset: usize,
    },
    /// Bytes are left over.
    #[error("kept payload: {bytes} bytes too many")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// The version is not one this program knows.
    #[error("kept payload: version {version}, this program reads version {VERSION}")]
    Version {
        /// The version found.
        version: u8,
    },
    /// A field has a value that was never written.
    #[error("kept payload: {field} is {value}, at most {bound}")]
    Bound {
        /// Which field.
        field: &'static str,
        /// What it holds.
        value: usize,
        /// The largest value it may have.
        bound: usize,
    },
    /// A pointer is not UTF-8, not a JSON pointer, or occurs twice.
    #[error("kept payload: leaf {leaf} has no valid pointer of its own")]
    Pointer {
        /// Which leaf, from 0.
        leaf: usize,
    },
}

impl PayloadError {
    /// The stable code of every such error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "payload.corrupt"
    }
}

impl KeptPayload {
    /// Keeps of a body what the policy asks for. Raw bytes have no leaves and no values to show:
    /// under `Full` too they are kept as one hash. Fails only if `Json` holds no valid JSON.
    pub fn keep(
        body: &CanonicalBody<'_>,
        keep: KeepPayload,
        key: &[u8; 32],
    ) -> Result<Self, CanonicalError> {
        match (keep, body) {
            (KeepPayload::None, _) => Ok(Self::None),
            (KeepPayload::Full, CanonicalBody::Json(canonical)) => {
                Ok(Self::Full(canonical.clone()))
            }
            (_, CanonicalBody::Json(canonical)) => Ok(Self::Hashed(hash_leaves(canonical, key)?)),
            (_, CanonicalBody::Bytes(bytes)) => {
                let leaves = vec![(String::new(), bytes_hash(key, bytes))];
                Ok(Self::Hashed(KeptLeaves { leaves, truncated: false }))
            }
        }
    }

    /// The bytes a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::None => vec![VERSION, KIND_NONE],
            Self::Full(canonical) => [&[VERSION, KIND_FULL], canonical.as_slice()].concat(),
            Self::Hashed(KeptLeaves { leaves, truncated }) => {
                let mut out = vec![VERSION, KIND_HASHED, u8::from(*truncated)];
                // Both lengths fit: leaves are only made here, within the two bounds.
                out.extend_from_slice(&(leaves.len() as u16).to_le_bytes());
                for (pointer, hash) in leaves {
                    out.extend_from_slice(&(pointer.len() as u16).to_le_bytes());
                    out.extend_from_slice(pointer.as_bytes());
                    out.extend_from_slice(hash);
                }
                out
            }
        }
    }

    /// Reads what `encode` wrote, and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self, PayloadError> {
        let mut reader = Reader { bytes, at: 0 };
        let [version, kind] = reader.array()?;
        if version != VERSION {
            return Err(PayloadError::Version { version });
        }
        let kept = match kind {
            KIND_NONE => Self::None,
            KIND_HASHED => Self::Hashed(reader.leaves()?),
            KIND_FULL => {
                let canonical = reader.rest();
                check_bound("the canonical body's length", canonical.len(), MAX_BODY_BYTES)?;
                Self::Full(canonical.to_vec())
            }
            other => {
                let (value, bound) = (usize::from(other), usize::from(KIND_FULL));
                return Err(PayloadError::Bound { field: "the kind", value, bound });
            }
        };
        match reader.rest().len() {
            0 => Ok(kept),
            bytes => Err(PayloadError::Trailing { bytes }),
        }
    }
}

/// A body is never shown in a log (A27), only how much of it there is.
impl fmt::Debug for KeptPayload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("None"),
            Self::Hashed(kept) => write!(formatter, "Hashed({} leaves)", kept.leaves.len()),
            Self::Full(canonical) => write!(formatter, "Full({} bytes)", canonical.len()),
        }
    }
}

/// The keyed hash of one leaf of a JSON payload.
pub(crate) fn leaf_hash(
    key: &[u8; 32],
    pointer: &str,
    node: Node,
    text: &str,
) -> [u8; LEAF_HASH_BYTES] {
    // A string is hashed unescaped; its kind keeps "1" from being 1.
    let kind = u8::from(matches!(node, Node::Text { .. } | Node::Escaped { .. }));
    keyed_hash(key, kind, pointer, text.as_bytes())
}

/// The keyed hash of a body that has no leaves.
pub(crate) fn bytes_hash(key: &[u8; 32], bytes: &[u8]) -> [u8; LEAF_HASH_BYTES] {
    keyed_hash(key, 2, "", bytes)
}

/// The keyed hash of a masked member's value, which stands in its place.
pub(crate) fn masked_hash(key: &[u8; 32], name: &[u8], value: &[u8]) -> [u8; LEAF_HASH_BYTES] {
    keyed_hash(key, MASKED_VALUE, &String::from_utf8_lossy(name), value)
}

/// The key comes first and has a fixed length; only eight bytes are kept, so that nobody can go on
/// hashing from the result (which is what HMAC's second pass would prevent).
fn keyed_hash(key: &[u8; 32], kind: u8, pointer: &str, leaf: &[u8]) -> [u8; LEAF_HASH_BYTES] {
    let mut hasher = Sha256::new();
    hasher.update(key);
    hasher.update([kind]);
    hasher.update((pointer.len() as u64).to_le_bytes());
    hasher.update(pointer.as_bytes());
    hasher.update(leaf);
    let whole: [u8; 32] = hasher.finalize().into();
    let mut kept = [0; LEAF_HASH_BYTES];
    kept.copy_from_slice(&whole[..LEAF_HASH_BYTES]);
    kept
}

fn hash_leaves(canonical: &[u8], key: &[u8; 32]) -> Result<KeptLeaves, CanonicalError> {
    let tape = Tape::parse(canonical)?;
    let mut kept = KeptLeaves::default();
    walk_leaves(&tape, |pointer, seen| {
        if pointer.len() > MAX_POINTER_BYTES {
            kept.truncated = true;
            return Flow::Past;
        }
        if let Seen::Leaf(node, text) = seen {
            if kept.leaves.len() == MAX_KEPT_LEAVES {
                kept.truncated = true;
                return Flow::Stop;
            }
            kept.leaves.push((pointer.to_owned(), leaf_hash(key, pointer, node, text)));
        }
        Flow::On
    });
    Ok(kept)
}

const fn check_bound(field: &'static str, value: usize, bound: usize) -> Result<(), PayloadError> {
    if value > bound { Err(PayloadError::Bound { field, value, bound }) } else { Ok(()) }
}

/// RFC 6901: empty, or steps that start with `/`, with `~` only as `~0` and `~1`.
fn is_pointer(text: &str) -> bool {
    let tildes = text.match_indices('~');
    (text.is_empty() || text.starts_with('/'))
        && tildes
            .into_iter()
            .all(|(at, _)| matches!(text.as_bytes().get(at + 1), Some(b'0' | b'1')))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], PayloadError> {
        let end = PayloadError::End { offset: self.bytes.len() };
        let taken = self.bytes.get(self.at..self.at + count).ok_or(end)?;
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PayloadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    fn bounded(&mut self, field: &'static str, bound: usize) -> Result<usize, PayloadError> {
        let value = usize::from(u16::from_le_bytes(self.array()?));
        check_bound(field, value, bound).map(|()| value)
    }

    fn leaves(&mut self) -> Result<KeptLeaves, PayloadError> {
        let [truncated] = self.array()?;
        check_bound("the truncated flag", usize::from(truncated), 1)?;
        let count = self.bounded("the number of leaves", MAX_KEPT_LEAVES)?;
        let mut leaves = Vec::with_capacity(count);
        let mut known = HashSet::with_capacity(count);
        for leaf in 0..count {
            let length = self.bounded("a pointer's length", MAX_POINTER_BYTES)?;
            let pointer = std::str::from_utf8(self.take(length)?)
                .ok()
                .filter(|pointer| is_pointer(pointer) && known.insert(*pointer))
                .ok_or(PayloadError::Pointer { leaf })?;
            leaves.push((pointer.to_owned(), self.array()?));
        }
        Ok(KeptLeaves { leaves, truncated: truncated == 1 })
    }
}

#[cfg(test)]
mod tests;
