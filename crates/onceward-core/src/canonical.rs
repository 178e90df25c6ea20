//! The canonical form of a JSON body (contract A07, E02).
//!
//! Rule: two bodies that mean the same have the same canonical bytes, and two that differ in a key,
//! a string or an integer never do. It is RFC 8785 (keys in UTF-16 order, shortest string escapes,
//! ECMAScript number spelling) with two changes: integers are exact, duplicate keys are refused.
//! `json/number.rs` says what that means for each kind of number.
//!
//! Not responsible for choosing what is hashed or kept (`fingerprint.rs`, `payload.rs`), nor for
//! media types: the caller decides that a body is meant to be JSON.

use thiserror::Error;

use crate::json::{Node, Tape, plain_end};

/// The largest body, and the largest canonical form, in bytes: 8 MiB.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// How many arrays and objects may lie inside each other. It bounds every recursion of this crate.
pub const MAX_JSON_DEPTH: usize = 128;

/// What is shown in place of a masked value.
pub(crate) const MASKED: &str = "\"***\"";

/// Why a body has no canonical form. The first thing found wrong, reading from left to right.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// The body is not JSON at all. The caller hashes its bytes and leaves it to the handler.
    #[error("the body is not JSON: {reason} at byte {offset}")]
    NotJson {
        /// Where in the body, counted in bytes from 0.
        offset: usize,
        /// What was found there.
        reason: NotJson,
    },
    /// The body reads as JSON, but what it means depends on who reads it. It must be refused.
    #[error("the body has no canonical form: {reason} at byte {offset}")]
    NotCanonical {
        /// Where in the body, counted in bytes from 0.
        offset: usize,
        /// What was found there.
        reason: NotCanonical,
    },
}

impl CanonicalError {
    /// The stable code of the error: `body.not_json` or `body.not_canonical`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotJson { .. } => "body.not_json",
            Self::NotCanonical { .. } => "body.not_canonical",
        }
    }

    /// Where in the body the error was found, in bytes from 0.
    #[must_use]
    pub const fn offset(&self) -> usize {
        match self {
            Self::NotJson { offset, .. } | Self::NotCanonical { offset, .. } => *offset,
        }
    }

    /// Whether the body is no JSON at all, so that its bytes are hashed instead.
    #[must_use]
    pub const fn is_not_json(&self) -> bool {
        matches!(self, Self::NotJson { .. })
    }

    pub(crate) const fn not_json(offset: usize, reason: NotJson) -> Self {
        Self::NotJson { offset, reason }
    }

    pub(crate) const fn not_canonical(offset: usize, reason: NotCanonical) -> Self {
        Self::NotCanonical { offset, reason }
    }
}

/// What makes a body something else than JSON (RFC 8259).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotJson {
    /// The bytes are not UTF-8.
    #[error("a byte that is not UTF-8")]
    Utf8,
    /// The body ends inside a value, or is empty.
    #[error("the end came too early")]
    End,
    /// A byte that cannot stand there.
    #[error("the unexpected byte 0x{0:02x}")]
    Byte(u8),
    /// An unescaped control character inside a string.
    #[error("the unescaped control character 0x{0:02x}")]
    Control(u8),
    /// A backslash that starts no escape.
    #[error("an unknown escape")]
    Escape,
    /// A number that breaks the grammar (`01`, `1.`, `+1`, `1e`).
    #[error("a malformed number")]
    Number,
    /// Something follows the value.
    #[error("bytes after the value")]
    Trailing,
}

/// What leaves a JSON body without one meaning that every reader shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotCanonical {
    /// A key occurs twice in one object (compared after unescaping).
    #[error("a duplicate key")]
    DuplicateKey,
    /// Half of a surrogate pair, which no Unicode text can hold.
    #[error("a lone surrogate")]
    LoneSurrogate,
    /// A number so large that it is infinite, or so small that it is zero, for most readers.
    #[error("a number outside the range of a 64-bit float")]
    NumberRange,
    /// Arrays and objects lie too deep in each other.
    #[error("nesting deeper than {MAX_JSON_DEPTH} levels")]
    TooDeep,
    /// The body, or its canonical form, has too many bytes.
    #[error("{bytes} bytes where at most {MAX_BODY_BYTES} are allowed")]
    TooLarge {
        /// How many there are.
        bytes: usize,
    },
}

/// Whether the order of array items has a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Arrays {
    /// `[1,2]` and `[2,1]` differ.
    #[default]
    Ordered,
    /// Items are compared as a multiset: `[1,2]` equals `[2,1]`, `[1,1,2]` differs from `[1,2,2]`.
    Unordered,
}

/// A member of a JSON object as it stands in the body, byte for byte: `None` when the body is no
/// object or has no such member.
///
/// # Errors
/// When the body is not JSON, or none with one meaning.
pub fn member_source<'b>(body: &'b [u8], name: &str) -> Result<Option<&'b [u8]>, CanonicalError> {
    let tape = Tape::parse(body)?;
    let key = tape.members(0).find(|key| tape.text(*key) == name);
    Ok(key.map(|key| &body[tape.source_range(key + 1)]))
}

/// A member of an object: its name, and its value as it stands in the body.
pub type Member<'b> = (String, &'b [u8]);

/// The members of a JSON object, each as it stands in the body; `None` when the body is no object.
///
/// # Errors
/// When the body is not JSON, or none with one meaning.
pub fn members_source(body: &[u8]) -> Result<Option<Vec<Member<'_>>>, CanonicalError> {
    let tape = Tape::parse(body)?;
    let member = |key| (tape.text(key).to_string(), &body[tape.source_range(key + 1)]);
    let is_object = matches!(tape.node(0), Node::Object { .. });
    Ok(is_object.then(|| tape.members(0).map(member).collect()))
}

/// How a parsed value is written: which fields are left out, which masked, how arrays are ordered.
pub(crate) struct Form<'p> {
    pub(crate) ignore: &'p [String],
    pub(crate) mask: &'p [String],
    pub(crate) arrays: Arrays,
    /// Members that are left out where they are, by the place of their names on the tape.
    pub(crate) skip: Vec<usize>,
}

impl Form<'_> {
    /// The canonical bytes of a whole document.
    pub(crate) fn document(&self, tape: &Tape<'_>) -> Result<Vec<u8>, CanonicalError> {
        let mut out = Vec::with_capacity(tape.source_len());
        self.write(tape, 0, &mut out);
        if out.len() > MAX_BODY_BYTES {
            // Only numbers and small fractions grow (1e20 becomes 21 digits); refusing here keeps
            // the canonical form of a canonical form defined.
            let reason = NotCanonical::TooLarge { bytes: out.len() };
            return Err(CanonicalError::not_canonical(tape.source_len(), reason));
        }
        Ok(out)
    }

    /// Appends the canonical bytes of one value. Recursion ends at `MAX_JSON_DEPTH`.
    pub(crate) fn write(&self, tape: &Tape<'_>, at: usize, out: &mut Vec<u8>) {
        match tape.node(at) {
            Node::Plain { .. } | Node::Text { .. } => out.extend_from_slice(tape.source(at)),
            Node::Respelled { .. } => out.extend_from_slice(tape.text_bytes(at)),
            Node::Escaped { .. } => quote(tape.text_bytes(at), out),
            node if self.is_plain() && node.is_verbatim() => {
                out.extend_from_slice(tape.source(at));
            }
            Node::Object { .. } => self.write_object(tape, at, out),
            Node::Array { .. } => match self.arrays {
                Arrays::Ordered => self.write_ordered(tape, at, out),
                Arrays::Unordered => self.write_unordered(tape, at, out),
            },
        }
    }

    /// Whether nothing is left out, masked or reordered, so that canonical input is its own form.
    fn is_plain(&self) -> bool {
        self.ignore.is_empty() && self.mask.is_empty() && self.arrays == Arrays::Ordered
    }

    fn write_object(&self, tape: &Tape<'_>, at: usize, out: &mut Vec<u8>) {
        out.push(b'{');
        let is_plain = self.is_plain();
        let start = out.len();
        for key in tape.members(at) {
            let name = tape.text_bytes(key);
            let ignored = self.ignore.iter().any(|ignored| ignored.as_bytes() == name);
            if ignored || self.skip.contains(&key) {
                continue;
            }
            if out.len() > start {
                out.push(b',');
            }
            if let Some(member) = tape.verbatim_member(key).filter(|_| is_plain) {
                out.extend_from_slice(member);
                continue;
            }
            self.write(tape, key, out);
            out.push(b':');
            if is_masked(self.mask, name) {
                out.extend_from_slice(MASKED.as_bytes());
            } else {
                self.write(tape, key + 1, out);
            }
        }
        out.push(b'}');
    }

    fn write_ordered(&self, tape: &Tape<'_>, at: usize, out: &mut Vec<u8>) {
        out.push(b'[');
        let start = out.len();
        for item in tape.items(at) {
            if out.len() > start {
                out.push(b',');
            }
            self.write(tape, item, out);
        }
        out.push(b']');
    }

    /// Writes the items one after another, then puts them in the order of their bytes.
    fn write_unordered(&self, tape: &Tape<'_>, at: usize, out: &mut Vec<u8>) {
        out.push(b'[');
        let base = out.len();
        let mut items = Vec::new();
        for item in tape.items(at) {
            if out.len() > base {
                out.push(b',');
            }
            let start = out.len();
            self.write(tape, item, out);
            items.push(start..out.len());
        }
        if !items.is_sorted_by(|a, b| out[a.clone()] <= out[b.clone()]) {
            items.sort_by(|a, b| out[a.clone()].cmp(&out[b.clone()]));
            let mut sorted = Vec::with_capacity(out.len() - base);
            for item in items {
                if !sorted.is_empty() {
                    sorted.push(b',');
                }
                sorted.extend_from_slice(&out[item]);
            }
            out.truncate(base);
            out.extend_from_slice(&sorted);
        }
        out.push(b']');
    }
}

/// Where the member that a JSON pointer names has its name on the tape. Pointers lead through
/// objects only: an index would name another item once the order of items does not count.
pub(crate) fn member_at(tape: &Tape<'_>, pointer: &str) -> Option<usize> {
    let mut at = 0;
    let mut found = None;
    for step in pointer.strip_prefix('/')?.split('/') {
        let Node::Object { .. } = tape.node(at) else { return None };
        let name = step.replace("~1", "/").replace("~0", "~");
        let key = tape.members(at).find(|key| tape.text_bytes(*key) == name.as_bytes())?;
        (found, at) = (Some(key), key + 1);
    }
    found
}

/// Whether a field's value is hidden: by its name, or by a step of a name that leads into what
/// readers build out of it (`user[password]`, `card.cvc`). Case does not matter: `Password` is a
/// password too.
pub(crate) fn is_masked(mask: &[String], name: &[u8]) -> bool {
    let named = |name: &[u8]| mask.iter().any(|one| one.as_bytes().eq_ignore_ascii_case(name));
    let is_step = |byte: &u8| matches!(byte, b'[' | b']' | b'.');
    named(name) || name.split(is_step).any(|step| !step.is_empty() && named(step))
}

/// Writes a string with the escapes of RFC 8785 section 3.2.2.2.
pub(crate) fn quote(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut from = 0;
    loop {
        let at = plain_end(text, from);
        out.extend_from_slice(&text[from..at]);
        let Some(&byte) = text.get(at) else { break };
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x08 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
        from = at + 1;
    }
    out.push(b'"');
}
