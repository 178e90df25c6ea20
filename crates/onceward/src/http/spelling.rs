//! One spelling per path: what keys, fingerprints and routes compare (RFC 3986, section 6.2.2).
//!
//! `%61` is `a` and `%c3` is `%C3` to everyone who reads addresses by the book, and a proxy is free
//! to send a retry on spelled otherwise. Characters that the book reserves are not the same with
//! and without encoding: `a%2Fb` is one value and `a/b` are two, `%40` and `@` may be told apart.
//!
//! Whoever judges or answers a protected request sees the path that its key was made of: or else a
//! spelling that nobody else compares would lead around a check, or to an answer that is not the
//! key's. Who forwards it still finds it [`AsSent`].

use std::borrow::Cow;

use http::Uri;
use http::uri::PathAndQuery;

/// The address of a request as the client sent it: among the extensions of a protected request
/// whose path was spelled otherwise. For services that forward it byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsSent(pub Uri);

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

/// Gives an address's path its one spelling, and keeps the query. What it was is given back, if
/// that was another.
pub fn spell_path(uri: &mut Uri) -> Option<AsSent> {
    let Cow::Owned(path) = one_spelling(uri.path()) else { return None };
    if path == uri.path() {
        return None;
    }
    let path_and_query = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut parts = uri.clone().into_parts();
    // Encodings are undone only where an address may have the character itself: it stays one.
    parts.path_and_query = Some(path_and_query.parse::<PathAndQuery>().ok()?);
    let spelled = Uri::from_parts(parts).ok()?;
    Some(AsSent(std::mem::replace(uri, spelled)))
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

    #[test]
    fn an_address_keeps_all_but_the_spelling_of_its_path() {
        for (sent, expected) in [
            ("/v1/%63ats/a%2fb?%63=%2f", "/v1/cats/a%2Fb?%63=%2f"),
            ("http://a.example:80/%7Ebob?x", "http://a.example:80/~bob?x"),
            ("/%é", "/%%C3%A9"),
        ] {
            let mut uri: Uri = sent.parse().unwrap();
            assert_eq!(spell_path(&mut uri).unwrap().0, sent);
            assert_eq!(uri, expected);
            assert_eq!(spell_path(&mut uri), None, "once is enough: {sent}");
        }
        for plain in ["/v1/cats?%63", "/a%2Fb", "http://a.example/", "*", "/%zz"] {
            let mut uri: Uri = plain.parse().unwrap();
            assert_eq!(spell_path(&mut uri), None, "{plain}");
            assert_eq!(uri, plain);
        }
    }
}
