//! A `Content-Type` as it is compared (RFC 9110, section 8.3).
//!
//! Rule: two values have the same compared form only if every reader takes them for the same: the
//! case of names, space around `;`, quotes and the order of parameters don't count, everything else
//! does. A value that breaks the grammar is compared as it stands.
//!
//! Not responsible for what a body means under its type (`fingerprint.rs`).

use std::borrow::Cow;

/// The essence of a type that is compared by all that is said of it. No header has such a value.
const OPAQUE: char = '\0';

/// A media type with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentType {
    /// Type and subtype in lower case; empty when there is none, [`OPAQUE`] when nobody can tell.
    essence: String,
    /// The parameters as they were written; none if they can't be read.
    params: Option<Vec<Param>>,
    /// What follows the essence, as it stands there.
    rest: Vec<u8>,
}

/// A parameter: its name in lower case, its value without the quotes around it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Param {
    pub(crate) name: String,
    /// Escapes are left as they were: readers of `multipart/form-data` disagree about them.
    pub(crate) raw: Vec<u8>,
    quoted: bool,
}

impl Param {
    /// The value with the escapes of a quoted string resolved (RFC 9110, section 5.6.4).
    fn value(&self) -> Vec<u8> {
        let mut escaped = false;
        let escape = |byte: &&u8| {
            escaped = self.quoted && !escaped && **byte == b'\\';
            !escaped
        };
        self.raw.iter().filter(escape).copied().collect()
    }
}

impl Default for ContentType {
    /// None.
    fn default() -> Self {
        Self { essence: String::new(), params: Some(Vec::new()), rest: Vec::new() }
    }
}

impl ContentType {
    /// Reads the lines of `Content-Type` and `Content-Encoding`. Of several types readers take one
    /// or another, and what is encoded is not what its type says: the body is opaque then.
    #[must_use]
    pub fn of_lines(types: &[&[u8]], encodings: &[&[u8]]) -> Self {
        let encoded = |line: &&&[u8]| !line.trim_ascii().eq_ignore_ascii_case(b"identity");
        match types {
            [] if !encodings.iter().any(|line| encoded(&line)) => Self::default(),
            [one] if !encodings.iter().any(|line| encoded(&line)) => Self::parse(one),
            _ => Self::opaque(types, encodings),
        }
    }

    /// Reads a header's value. Nothing is refused.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
        let (essence, rest) = value.split_at(end);
        match std::str::from_utf8(essence.trim_ascii()) {
            Ok(essence) if !essence.contains(OPAQUE) => {
                let essence = essence.to_ascii_lowercase();
                Self { essence, params: params(rest), rest: rest.to_vec() }
            }
            _ => Self::opaque(&[value], &[]),
        }
    }

    /// All lines as they stand there, so that they can be told from all others.
    fn opaque(types: &[&[u8]], encodings: &[&[u8]]) -> Self {
        let mut rest = Vec::new();
        for lines in [types, encodings] {
            rest.extend_from_slice(&(lines.len() as u64).to_le_bytes());
            for line in lines {
                rest.extend_from_slice(&(line.len() as u64).to_le_bytes());
                rest.extend_from_slice(line);
            }
        }
        Self { essence: OPAQUE.into(), params: None, rest }
    }

    /// Whether a body of this type is compared byte for byte, whatever a policy says of it.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.essence.starts_with(OPAQUE)
    }

    /// Type and subtype in lower case; empty when there is none.
    #[must_use]
    pub fn essence(&self) -> &str {
        &self.essence
    }

    /// Whether bodies of this type are JSON. One that nobody called anything may be.
    #[must_use]
    pub fn is_json(&self) -> bool {
        matches!(&*self.essence, "" | "application/json") || self.essence.ends_with("+json")
    }

    /// The value of a parameter that is there once.
    pub(crate) fn param(&self, name: &str) -> Option<Vec<u8>> {
        let mut found = self.params.iter().flatten().filter(|param| param.name == name);
        let first = found.next()?;
        found.next().is_none().then(|| first.value())
    }

    /// What two equal types have in common, without one parameter that says nothing of what the
    /// body means.
    pub(crate) fn compared(&self, without: Option<&str>) -> Cow<'_, [u8]> {
        if self.params.as_ref().is_some_and(Vec::is_empty) {
            return Cow::Borrowed(self.essence.as_bytes());
        }
        let mut text = self.essence.clone().into_bytes();
        let Some(params) = &self.params else {
            // No parameter has an empty name: this is never taken for one that was read.
            text.extend_from_slice(b";;");
            text.extend_from_slice(&self.rest);
            return Cow::Owned(text);
        };
        let mut params: Vec<_> =
            params.iter().filter(|param| Some(&*param.name) != without).collect();
        params.sort_by(|one, other| one.name.cmp(&other.name));
        for param in params {
            let mut value = param.value();
            if param.name == "charset" {
                value.make_ascii_lowercase();
            }
            text.push(b';');
            text.extend_from_slice(param.name.as_bytes());
            text.extend_from_slice(b"=\"");
            for byte in value {
                if matches!(byte, b'"' | b'\\') {
                    text.push(b'\\');
                }
                text.push(byte);
            }
            text.push(b'"');
        }
        Cow::Owned(text)
    }
}

/// Reads `*( OWS ";" OWS [ name "=" value ] )`. A value without quotes may have bytes that the
/// grammar wants quoted (`boundary=a=b`), as long as no reader could end or unescape it.
pub(crate) fn params(mut rest: &[u8]) -> Option<Vec<Param>> {
    let mut params = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        let Some(after) = rest.strip_prefix(b";") else {
            return rest.is_empty().then_some(params);
        };
        rest = after.trim_ascii_start();
        if rest.is_empty() || rest.starts_with(b";") {
            continue;
        }
        let end = rest.iter().position(|byte| !is_token(*byte))?;
        let name = String::from_utf8_lossy(&rest[..end]).to_ascii_lowercase();
        rest = rest[end..].strip_prefix(b"=").filter(|_| !name.is_empty())?;
        let (raw, quoted) = match rest.strip_prefix(b"\"") {
            Some(inside) => {
                let end = quoted_end(inside)?;
                rest = &inside[end + 1..];
                (&inside[..end], true)
            }
            None => {
                let ends =
                    |byte: &u8| !byte.is_ascii_graphic() || matches!(byte, b';' | b'"' | b'\\');
                let end = rest.iter().position(ends).unwrap_or(rest.len());
                let raw = &rest[..end];
                rest = &rest[end..];
                (raw, false)
            }
        };
        if raw.is_empty() && !quoted {
            return None;
        }
        params.push(Param { name, raw: raw.to_vec(), quoted });
    }
}

/// Where a quoted string ends whose opening quote was read.
fn quoted_end(inside: &[u8]) -> Option<usize> {
    let mut escaped = false;
    inside.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })
}

/// A byte of a token (RFC 9110, section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(value: &str) -> String {
        String::from_utf8(ContentType::parse(value.as_bytes()).compared(None).into_owned())
            .expect("text")
    }

    #[test]
    fn a07_what_readers_take_for_the_same_type_is_compared_as_one() {
        // RFC 9110, section 8.3.1: all of these are equivalent.
        for value in [
            "text/html;charset=utf-8",
            "Text/HTML;Charset=\"utf-8\"",
            "text/html; charset=\"utf-8\"",
            " text/html;charset=UTF-8 ; ",
        ] {
            assert_eq!(compared(value), "text/html;charset=\"utf-8\"", "{value}");
        }
        assert_eq!(compared("a/b; y=1; x=2"), compared("a/b;x=2;y=\"\\1\""));
        assert_eq!(compared("a/b"), "a/b");
        assert_eq!(compared(""), "");
    }

    #[test]
    fn a07_everything_else_in_a_type_counts() {
        let values = [
            "",
            "a/b",
            "a/b;x=1",
            "a/b;x=2",
            "a/b;x=A",
            "a/b;x=a",
            "a/b;x=1;x=2",
            "a/b;x=2;x=1",
            "a/b;x=\"1;y=2\"",
            "a/b;x=1;y=2",
            "a/b;x=\"\\\"\"",
            "a/b;x=\"\\\\\"",
            "a/b;x=\"",
            "a/b;x",
            "a/b;x =1",
            "a/b;x=",
            "a/b;x=\"\"",
            "a/b;=1",
        ];
        let forms: std::collections::HashSet<_> = values.into_iter().map(compared).collect();
        assert_eq!(forms.len(), values.len(), "{forms:?}");
    }

    #[test]
    fn a_parameter_is_read_where_it_is_there_once() {
        let boundary = |value: &str| ContentType::parse(value.as_bytes()).param("boundary");
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some(&b"abc"[..]));
        assert_eq!(boundary("m/f; BOUNDARY=\"a b\"; x=1").as_deref(), Some(&b"a b"[..]));
        assert_eq!(boundary("m/f; boundary===a==").as_deref(), Some(&b"==a=="[..]));
        for value in
            ["m/f", "m/f; boundary=a; boundary=b", "m/f; boundary=\"a", "m/f; boundary=a b"]
        {
            assert_eq!(boundary(value), None, "{value}");
        }
    }

    #[test]
    fn a07_what_readers_may_take_for_another_type_is_opaque_and_told_apart() {
        type Lines<'l> = (&'l [&'l [u8]], &'l [&'l [u8]]);
        let all: [Lines<'_>; 9] = [
            (&[b"a/b"], &[]),
            (&[b"a/b", b"c/d"], &[]),
            (&[b"c/d", b"a/b"], &[]),
            (&[b"a/b", b"a/b"], &[]),
            (&[b"a/b"], &[b"gzip"]),
            (&[b"a/b"], &[b"gzip", b"gzip"]),
            (&[], &[b"gzip"]),
            (&[b"a/\xff"], &[]),
            (&[b"a/\xfe"], &[]),
        ];
        let types = all.map(|(types, encodings)| ContentType::of_lines(types, encodings));
        assert!(!types[0].is_opaque() && types[1..].iter().all(ContentType::is_opaque));
        assert!(!types.iter().any(ContentType::is_json));
        let forms: std::collections::HashSet<_> =
            types.iter().map(|one| one.compared(None).into_owned()).collect();
        assert_eq!(forms.len(), all.len(), "{forms:?}");
        let plain = ContentType::of_lines(&[b"a/b"], &[b" Identity"]);
        assert_eq!(plain, ContentType::parse(b"a/b"));
        assert_eq!(ContentType::of_lines(&[], &[]), ContentType::default());
        // A backslash without quotes is escaped for some.
        assert_ne!(compared("a/b;x=c\\d"), compared("a/b;x=\"c\\d\""));
        assert_ne!(compared("a/b;x=c\\d"), compared("a/b;x=\"c\\\\d\""));
    }
}
