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
use crate::form::urlencoded;
use crate::json::{Flow, Node, Pointer, Seen, Tape, walk_leaves};
use crate::limits::MAX_FULL_PAYLOAD_BYTES;

/// How many leaves `hashed` keeps; a payload with more is marked as truncated.
pub const MAX_KEPT_LEAVES: usize = 256;

/// The longest pointer that is kept or reported, in bytes. A leaf below a longer one is passed
/// over and counts as truncated: a pointer cut short would name another place.
pub const MAX_POINTER_BYTES: usize = 512;

/// How many bytes of a leaf's hash are kept.
pub const LEAF_HASH_BYTES: usize = 8;

/// How many fields a query may have that is explained by them.
const MAX_QUERY_FIELDS: usize = 64;

/// What stands before query and body of a payload that is kept in full, at most.
const FULL_HEAD_BYTES: usize = 5;

/// The longest query that is kept in full.
const MAX_QUERY_BYTES: usize = u16::MAX as usize;

/// Where the query is among the leaves; its fields are `?name`. No JSON pointer begins like this.
pub(crate) const QUERY: &str = "?";

/// The first byte of every encoded payload.
const VERSION: u8 = 1;
const KIND_NONE: u8 = 0;
const KIND_HASHED: u8 = 1;
const KIND_FULL: u8 = 2;
const KIND_FULL_REQUEST: u8 = 3;

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
    /// The canonical JSON, or the fields of a form: a mismatch can show values. Bodies that are
    /// compared byte for byte have no values to show, and are kept as one hash.
    Full,
}

/// A payload as it is kept and compared: a body, and the query that came with it.
#[derive(Debug, Clone, Copy)]
pub struct Payload<'p> {
    /// The body.
    pub body: &'p CanonicalBody<'p>,
    /// The query as it came, without its question mark; empty when there is none.
    pub query: &'p str,
}

impl<'p> From<&'p CanonicalBody<'p>> for Payload<'p> {
    fn from(body: &'p CanonicalBody<'p>) -> Self {
        Self { body, query: "" }
    }
}

/// What was kept of a payload.
#[derive(Clone, PartialEq, Eq)]
pub enum KeptPayload {
    /// Nothing.
    None,
    /// Hashes of its leaves.
    Hashed(KeptLeaves),
    /// All of it.
    Full(FullPayload),
}

/// A payload that was kept in full.
#[derive(Clone, PartialEq, Eq)]
pub struct FullPayload {
    /// The canonical JSON of its body, or the fields of a form as JSON (see [`crate::form`]).
    pub body: Vec<u8>,
    /// Whether the body was a form or an upload.
    pub is_form: bool,
    /// The query as it came.
    pub query: String,
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
    /// A query is not UTF-8, or is none where one must be.
    #[error("kept payload: its query can't be read")]
    Query,
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

impl FullPayload {
    /// Whether it may be kept in full: what is masked may be longer than it was.
    #[must_use]
    pub fn fits(&self) -> bool {
        fits(&self.body, &self.query)
    }
}

fn fits(body: &[u8], query: &str) -> bool {
    query.len() <= MAX_QUERY_BYTES
        && FULL_HEAD_BYTES + query.len() + body.len() <= MAX_FULL_PAYLOAD_BYTES
}

impl KeptPayload {
    /// Keeps of a payload what the policy asks for. Raw bytes have no leaves and no values to show:
    /// under `Full` too they are kept as one hash, and what is too large to be kept as
    /// hashes. Fails only if `Json` holds no valid JSON.
    pub fn keep<'p>(
        payload: impl Into<Payload<'p>>,
        keep: KeepPayload,
        key: &[u8; 32],
    ) -> Result<Self, CanonicalError> {
        let payload: Payload<'_> = payload.into();
        let is_form = matches!(payload.body, CanonicalBody::Form(_) | CanonicalBody::Multipart(_));
        match (keep, payload.body) {
            (KeepPayload::None, _) => Ok(Self::None),
            (
                KeepPayload::Full,
                CanonicalBody::Json(body)
                | CanonicalBody::Form(body)
                | CanonicalBody::Multipart(body),
            ) if fits(body, payload.query) => {
                let query = payload.query.to_owned();
                Ok(Self::Full(FullPayload { body: body.clone(), is_form, query }))
            }
            _ => Ok(Self::Hashed(hash_leaves(payload, key)?)),
        }
    }

    /// The bytes a store keeps.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::None => vec![VERSION, KIND_NONE],
            Self::Full(FullPayload { body, is_form: false, query }) if query.is_empty() => {
                [&[VERSION, KIND_FULL], body.as_slice()].concat()
            }
            Self::Full(FullPayload { body, is_form, query }) => {
                let mut out = vec![VERSION, KIND_FULL_REQUEST, u8::from(*is_form)];
                // It fits: longer ones are not kept in full.
                out.extend_from_slice(&(query.len() as u16).to_le_bytes());
                out.extend_from_slice(query.as_bytes());
                out.extend_from_slice(body);
                out
            }
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
            KIND_FULL => Self::Full(FullPayload {
                body: reader.canonical()?,
                is_form: false,
                query: String::new(),
            }),
            KIND_FULL_REQUEST => Self::Full(reader.full_request()?),
            other => {
                let (value, bound) = (usize::from(other), usize::from(KIND_FULL_REQUEST));
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
            Self::Full(full) => write!(formatter, "{full:?}"),
        }
    }
}

impl fmt::Debug for FullPayload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Full({} bytes)", self.body.len() + self.query.len())
    }
}

/// What a walk over a payload comes to.
pub(crate) enum Leaf<'t> {
    /// An array or object that holds something.
    Container,
    /// Any other JSON value.
    Value(Node, &'t str),
    /// A field of a form or of the query, with all that it holds, as canonical JSON.
    Field(&'t [u8]),
    /// What has no leaves.
    Bytes(&'t [u8]),
}

impl Leaf<'_> {
    /// The keyed hash of this leaf. Its kind keeps "1" from being 1.
    pub(crate) fn hash(&self, key: &[u8; 32], pointer: &str) -> [u8; LEAF_HASH_BYTES] {
        let (kind, bytes) = match self {
            // A string is hashed unescaped.
            Self::Value(Node::Text { .. } | Node::Escaped { .. }, text) => (1, text.as_bytes()),
            Self::Value(_, text) => (0, text.as_bytes()),
            Self::Bytes(bytes) => (2, *bytes),
            Self::Field(value) => (3, *value),
            Self::Container => (4, &b""[..]),
        };
        keyed_hash(key, kind, pointer, bytes)
    }
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

/// Walks a payload: first the query, then the body in canonical order.
pub(crate) fn walk_payload(
    payload: Payload<'_>,
    mut visit: impl FnMut(&str, Leaf<'_>) -> Flow,
) -> Result<(), CanonicalError> {
    if !payload.query.is_empty() {
        if visit(QUERY, Leaf::Bytes(payload.query.as_bytes())) == Flow::Stop {
            return Ok(());
        }
        let fields = query_fields(payload.query).unwrap_or_else(|| b"{}".to_vec());
        if walk_fields(&fields, |name| format!("{QUERY}{name}"), &mut visit)? == Flow::Stop {
            return Ok(());
        }
    }
    match payload.body {
        CanonicalBody::Bytes(bytes) => {
            visit("", Leaf::Bytes(bytes));
        }
        CanonicalBody::Form(fields) | CanonicalBody::Multipart(fields) => {
            walk_fields(fields, pointer_to, &mut visit)?;
        }
        CanonicalBody::Json(canonical) => {
            let tape = Tape::parse(canonical)?;
            walk_leaves(&tape, |pointer, seen| match seen {
                Seen::Container => visit(pointer, Leaf::Container),
                Seen::Leaf(node, text) => visit(pointer, Leaf::Value(node, text)),
            });
        }
    }
    Ok(())
}

/// The fields of a query by name, as canonical JSON; none when it is no form, or too long a one.
pub(crate) fn query_fields(query: &str) -> Option<Vec<u8>> {
    let pairs = query.bytes().filter(|byte| *byte == b'&').count();
    let fields = urlencoded(query.as_bytes()).filter(|_| pairs < MAX_QUERY_FIELDS)?;
    fields.write_by_name()
}

fn pointer_to(name: &str) -> String {
    let mut pointer = Pointer::default();
    pointer.member(name);
    pointer.as_str().to_owned()
}

fn walk_fields(
    fields: &[u8],
    pointer: fn(&str) -> String,
    visit: &mut impl FnMut(&str, Leaf<'_>) -> Flow,
) -> Result<Flow, CanonicalError> {
    let tape = Tape::parse(fields)?;
    for key in tape.members(0) {
        let pointer = pointer(tape.text(key));
        // A field without a name is no other than the query itself.
        if pointer != QUERY && visit(&pointer, Leaf::Field(tape.source(key + 1))) == Flow::Stop {
            return Ok(Flow::Stop);
        }
    }
    Ok(Flow::On)
}

fn hash_leaves(payload: Payload<'_>, key: &[u8; 32]) -> Result<KeptLeaves, CanonicalError> {
    let mut kept = KeptLeaves::default();
    walk_payload(payload, |pointer, leaf| {
        if pointer.len() > MAX_POINTER_BYTES {
            kept.truncated = true;
            return Flow::Past;
        }
        if !matches!(leaf, Leaf::Container) {
            if kept.leaves.len() == MAX_KEPT_LEAVES {
                kept.truncated = true;
                return Flow::Stop;
            }
            kept.leaves.push((pointer.to_owned(), leaf.hash(key, pointer)));
        }
        Flow::On
    })?;
    Ok(kept)
}

const fn check_bound(field: &'static str, value: usize, bound: usize) -> Result<(), PayloadError> {
    if value > bound { Err(PayloadError::Bound { field, value, bound }) } else { Ok(()) }
}

/// RFC 6901: empty, or steps that start with `/`, with `~` only as `~0` and `~1`. A query's field
/// has its name behind the question mark as it is.
fn is_pointer(text: &str) -> bool {
    if text.starts_with(QUERY) {
        return true;
    }
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

    fn canonical(&mut self) -> Result<Vec<u8>, PayloadError> {
        let canonical = self.rest();
        check_bound("the canonical body's length", canonical.len(), MAX_BODY_BYTES)?;
        Ok(canonical.to_vec())
    }

    fn full_request(&mut self) -> Result<FullPayload, PayloadError> {
        let [is_form] = self.array()?;
        check_bound("the form flag", usize::from(is_form), 1)?;
        let length = self.bounded("the query's length", MAX_QUERY_BYTES)?;
        let query = std::str::from_utf8(self.take(length)?).map_err(|_| PayloadError::Query)?;
        if is_form == 0 && query.is_empty() {
            // The shorter kind is the only one for it.
            return Err(PayloadError::Query);
        }
        let query = query.to_owned();
        Ok(FullPayload { body: self.canonical()?, is_form: is_form == 1, query })
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
