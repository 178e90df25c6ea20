//! One spelling per path: what keys, fingerprints and routes compare (RFC 3986, section 6.2.2).
//!
//! `%61` is `a` and `%c3` is `%C3` to everyone who reads addresses by the book, and a proxy is free
//! to send a retry on spelled otherwise. Characters that the book reserves are not the same with
//! and without encoding: `a%2Fb` is one value and `a/b` are two, `%40` and `@` may be told apart.
//! Whoever is asked behind us still sees the path as it was sent.

use std::borrow::Cow;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// The path in its one spelling: what never needs an encoding has none, what is not ASCII has one,
/// and digits of encodings are in upper case. A `%` that begins no encoding is left alone.
#[must_use]
pub fn one_spelling(path: &str) -> Cow<'_, str> {
    if path.bytes().all(|byte| byte.is_ascii() && byte != b'%') {
        return Cow::Borrowed(path);
    }
    let bytes = path.as_bytes();
    let mut out = String::with_capacity(path.len() + 8);
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let encoded = (byte == b'%').then(|| encoded(bytes.get(at + 1..at + 3)?)).flatten();
        at += if encoded.is_some() { 3 } else { 1 };
        match encoded {
            Some(byte) if is_unreserved(byte) => out.push(char::from(byte)),
            Some(byte) => push_encoded(&mut out, byte),
            None if byte.is_ascii() => out.push(char::from(byte)),
            None => push_encoded(&mut out, byte),
        }
    }
    Cow::Owned(out)
}

/// Whether a byte stands for itself, encoded or not (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn encoded(digits: &[u8]) -> Option<u8> {
    let digit = |at: usize| char::from(digits[at]).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

fn push_encoded(out: &mut String, byte: u8) {
    out.push('%');
    for nibble in [byte >> 4, byte & 15] {
        out.push(char::from(HEX[usize::from(nibble)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_path_are_one() {
        for (path, expected) in [
            ("/v1/users/a", "/v1/users/a"),
            ("/v1/users/%61", "/v1/users/a"),
            ("/v1/%75sers/%7Ea%2d", "/v1/users/~a-"),
            ("/a%40b:c@%3a", "/a%40b:c@%3A"),
            ("/a%2fb", "/a%2Fb"),
            ("/a/b", "/a/b"),
            ("/a%20b", "/a%20b"),
            ("/%c3%a9", "/%C3%A9"),
            ("/é", "/%C3%A9"),
            ("/%00%7f", "/%00%7F"),
            // Decoded once, never twice.
            ("/%2561", "/%2561"),
            ("/%", "/%"),
            ("/%6", "/%6"),
            ("/%zz", "/%zz"),
            ("/%é", "/%%C3%A9"),
        ] {
            assert_eq!(one_spelling(path), expected, "{path}");
            assert_eq!(one_spelling(expected), expected, "once is enough: {path}");
        }
    }
}
