//! The canonical form of a form body: its fields by name (contract A07).
//!
//! Rule: fields of different names may come in any order, those of one name count in theirs, and
//! nothing else of a body is lost: from the form one can tell every name and every value, byte for
//! byte, or the SHA-256 of a value that is too long or no text. A body that is not well-formed has
//! no such form, and its bytes are compared instead.
//!
//! The form is a JSON object, so that it is kept, shown, masked and compared as JSON is: a field is
//! a member, one that is repeated an array. `multipart.rs` makes the same of parts.
//!
//! Not responsible for what an ignored field is worth (`fingerprint.rs` passes them).

use sha2::{Digest as _, Sha256};

use crate::canonical::{Arrays, MAX_BODY_BYTES, quote};
use crate::json::key_order;

/// How many fields or parts a body may have that is compared by them.
pub const MAX_FIELDS: usize = 4_096;

/// The longest value that stands in the canonical form itself, in bytes. Of a longer one, and of
/// one that is not UTF-8, its length and its SHA-256 stand there.
pub const MAX_INLINE_BYTES: usize = 16 * 1024;

/// What no name begins with in a form, unless it says something else than a name.
const NO_NAME: char = '\0';

/// The fields of a body: names, and values as canonical JSON.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<(String, Vec<u8>)>);

impl Fields {
    /// Adds a field. None when there are too many.
    pub(crate) fn add(&mut self, name: &[u8], value: Vec<u8>) -> Option<()> {
        self.push(text(name), value)
    }

    /// Adds what is no field: no name is like this one.
    pub(crate) fn add_beside(&mut self, what: &str, value: Vec<u8>) -> Option<()> {
        self.push(format!("{NO_NAME}{what}"), value)
    }

    fn push(&mut self, name: String, value: Vec<u8>) -> Option<()> {
        (self.0.len() < MAX_FIELDS).then(|| self.0.push((name, value)))
    }

    /// The canonical form, without the fields that are ignored. None when it is too long.
    pub(crate) fn write(mut self, ignore: &[String], arrays: Arrays) -> Option<Vec<u8>> {
        self.0.retain(|(name, _)| !ignore.iter().any(|ignored| names(ignored, name)));
        // A stable sort: what is repeated stays in order.
        self.0.sort_by(|(one, _), (other, _)| key_order(one.as_bytes(), other.as_bytes()));
        let mut out = vec![b'{'];
        for same in self.0.chunk_by_mut(|(one, _), (other, _)| one == other) {
            if arrays == Arrays::Unordered {
                same.sort();
            }
            if out.len() > 1 {
                out.push(b',');
            }
            quote(same[0].0.as_bytes(), &mut out);
            out.push(b':');
            match same {
                [(_, value)] => out.extend_from_slice(value),
                _ => array(same.iter().map(|(_, value)| value), &mut out),
            }
            if out.len() >= MAX_BODY_BYTES {
                return None;
            }
        }
        out.push(b'}');
        Some(out)
    }
}

/// Whether an ignored field is this one: by its name, or as a JSON pointer.
fn names(ignored: &str, name: &str) -> bool {
    let pointed = ignored.strip_prefix('/').filter(|step| !step.contains('/'));
    ignored == name
        || pointed.is_some_and(|step| step.replace("~1", "/").replace("~0", "~") == name)
}

/// Appends a JSON array.
pub(crate) fn array<'v>(values: impl Iterator<Item = &'v Vec<u8>>, out: &mut Vec<u8>) {
    for (index, value) in values.enumerate() {
        out.push(if index == 0 { b'[' } else { b',' });
        out.extend_from_slice(value);
    }
    out.push(b']');
}

/// The fields of an `application/x-www-form-urlencoded` body: pairs between `&`, `+` for a blank,
/// `%XX` for any byte. None when a `%` stands alone, or there is too much of it.
pub(crate) fn urlencoded(body: &[u8]) -> Option<Fields> {
    if body.len() > MAX_BODY_BYTES {
        return None;
    }
    let mut fields = Fields::default();
    if body.is_empty() {
        return Some(fields);
    }
    for pair in body.split(|byte| *byte == b'&') {
        let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => (&pair[..at], content(&decoded(&pair[at + 1..])?)),
            // Not every reader takes this for an empty value.
            None => (pair, b"null".to_vec()),
        };
        fields.add(&decoded(name)?, value)?;
    }
    Some(fields)
}

/// What `+` and `%XX` stand for.
pub(crate) fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => hex_digit(*bytes.next()?)? << 4 | hex_digit(*bytes.next()?)?,
            other => *other,
        });
    }
    Some(out)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// A value as JSON: a string, or what tells a long one and one that is no text from every other.
pub(crate) fn content(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if bytes.len() <= MAX_INLINE_BYTES && std::str::from_utf8(bytes).is_ok() {
        quote(bytes, &mut out);
    } else {
        let sum = crate::fingerprint::hex(&Sha256::digest(bytes));
        out.extend_from_slice(
            format!("{{\"bytes\":{},\"sha256\":\"{sum}\"}}", bytes.len()).as_bytes(),
        );
    }
    out
}

/// A name as text, never the same for two. What is no text is written in hexadecimal behind a mark,
/// and so is what begins with the mark.
pub(crate) fn text(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.starts_with(NO_NAME) => text.into(),
        _ => format!("{NO_NAME}x{}", crate::fingerprint::hex(name)),
    }
}

#[cfg(test)]
mod tests;
