//! The value of an `Idempotency-Key` header (contract A05, `wire.md` section 3).
//!
//! Rule: a key is 1 to 128 characters from 0x21 to 0x7E, whether it comes raw or as a quoted
//! string of RFC 9651; `abc` and `"abc"` are one key. Anything else is refused before any lookup.
//!
//! Not responsible for a second header line, nor for what the key is unique in.

use std::borrow::Cow;

use thiserror::Error;

/// The longest key, in characters, after unquoting and trimming.
pub const MAX_HEADER_KEY_CHARS: usize = 128;

/// Why a header's value is not a key. Values are not repeated: keys don't belong in logs (A27).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderKeyError {
    /// Nothing is left after unquoting and trimming.
    #[error("the idempotency key is empty; send 1 to {MAX_HEADER_KEY_CHARS} characters")]
    Empty,
    /// It has too many characters.
    #[error(
        "the idempotency key has {length} characters; at most {MAX_HEADER_KEY_CHARS} are allowed"
    )]
    TooLong {
        /// How many it has.
        length: usize,
    },
    /// A character outside 0x21–0x7E: a space, a control character, anything not ASCII.
    #[error(
        "the idempotency key has the byte 0x{byte:02x} at position {offset} of its {length}; \
         only 0x21 to 0x7e are allowed"
    )]
    Character {
        /// The byte.
        byte: u8,
        /// Where it stands in the key, from 0.
        offset: usize,
        /// How long the key is.
        length: usize,
    },
    /// A quoted string that does not end.
    #[error("the idempotency key starts with a quote and has no closing one in its {length} bytes")]
    Unclosed {
        /// How long the header's value is.
        length: usize,
    },
    /// A backslash in a quoted string that stands before neither a quote nor a backslash.
    #[error("the idempotency key has a bad escape at {offset}; only \\\" and \\\\ are escapes")]
    Escape {
        /// Where the backslash stands in the header's value.
        offset: usize,
    },
    /// Something follows a quoted string: parameters, or a second key.
    #[error("the idempotency key is followed by more at {offset}; parameters are not allowed")]
    Trailing {
        /// Where it starts in the header's value.
        offset: usize,
    },
}

impl HeaderKeyError {
    /// The stable code of every such error.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        "idempotency.key_invalid"
    }
}

/// Reads the value of an `Idempotency-Key` header.
///
/// ```
/// use onceward_core::header_key::parse_header_key;
///
/// assert_eq!(parse_header_key(b"\"abc\""), parse_header_key(b" abc "));
/// assert!(parse_header_key(b"a b").is_err());
/// ```
pub fn parse_header_key(value: &[u8]) -> Result<Cow<'_, str>, HeaderKeyError> {
    let (start, end) = trim(value);
    let inner = match value[start..end].first() {
        None => return Err(HeaderKeyError::Empty),
        Some(b'"') => unquote(value, start, end)?,
        Some(_) => Cow::Borrowed(&value[start..end]),
    };
    // White space inside the quotes is trimmed like that around a raw key.
    let (start, end) = trim(&inner);
    let key = match inner {
        Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[start..end]),
        Cow::Owned(bytes) => Cow::Owned(bytes[start..end].to_vec()),
    };
    if let Some(offset) = key.iter().position(|byte| !byte.is_ascii_graphic()) {
        let (byte, length) = (key[offset], key.len());
        return Err(HeaderKeyError::Character { byte, offset, length });
    }
    match key.len() {
        0 => Err(HeaderKeyError::Empty),
        1..=MAX_HEADER_KEY_CHARS => Ok(match key {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }),
        length => Err(HeaderKeyError::TooLong { length }),
    }
}

/// Where a value starts and ends without the spaces and tabs around it (RFC 9110's OWS).
fn trim(value: &[u8]) -> (usize, usize) {
    let is_solid = |&byte: &u8| byte != b' ' && byte != b'\t';
    let start = value.iter().position(is_solid).unwrap_or(value.len());
    let end = value.iter().rposition(is_solid).map_or(start, |last| last + 1);
    (start, end)
}

/// What stands between the quotes of `value[start..end]`, which starts with one.
fn unquote(value: &[u8], start: usize, end: usize) -> Result<Cow<'_, [u8]>, HeaderKeyError> {
    let mut unescaped = Vec::new();
    let mut at = start + 1;
    while at < end {
        match value[at] {
            b'"' if at + 1 < end => return Err(HeaderKeyError::Trailing { offset: at + 1 }),
            // Nothing was unescaped if as much was collected as was read.
            b'"' if unescaped.len() == at - start - 1 => {
                return Ok(Cow::Borrowed(&value[start + 1..at]));
            }
            b'"' => return Ok(Cow::Owned(unescaped)),
            b'\\' => {
                match value[..end].get(at + 1) {
                    Some(&byte @ (b'"' | b'\\')) => unescaped.push(byte),
                    Some(_) => return Err(HeaderKeyError::Escape { offset: at }),
                    None => return Err(HeaderKeyError::Unclosed { length: value.len() }),
                }
                at += 1;
            }
            byte => unescaped.push(byte),
        }
        at += 1;
    }
    Err(HeaderKeyError::Unclosed { length: value.len() })
}

#[cfg(test)]
mod tests;
