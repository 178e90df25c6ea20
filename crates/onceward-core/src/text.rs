//! Escaping, so that parts joined by `:` can never imitate one another.
//!
//! `%`, `:` and control characters become `%XX`; everything else stays as it is. The mapping is
//! injective and works character by character, so an escaped prefix is a prefix of the escaped
//! text. NUL never survives, because some stores can't hold it.
//!
//! Also here: how stored text, which is other people's, is shown without steering a terminal.

use std::borrow::Cow;

/// Escapes one part.
#[must_use]
pub fn escape(part: &str) -> Cow<'_, str> {
    if !part.bytes().any(must_escape) {
        return Cow::Borrowed(part);
    }
    let mut out = String::with_capacity(part.len() + 8);
    for character in part.chars() {
        match u8::try_from(character) {
            Ok(byte) if must_escape(byte) => {
                out.push('%');
                out.push(hex_digit(byte >> 4));
                out.push(hex_digit(byte & 15));
            }
            _ => out.push(character),
        }
    }
    Cow::Owned(out)
}

/// Undoes [`escape`]. `None` when the text is not something that `escape` writes.
#[must_use]
pub fn unescape(text: &str) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| byte == b'%' || must_escape(byte)) {
        return Some(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character == '%' {
            let byte = hex_value(rest.next()?)? << 4 | hex_value(rest.next()?)?;
            // Only the one spelling that `escape` writes is accepted, or two texts would be one.
            if !must_escape(byte) {
                return None;
            }
            out.push(char::from(byte));
        } else if u8::try_from(character).is_ok_and(must_escape) {
            return None;
        } else {
            out.push(character);
        }
    }
    Some(Cow::Owned(out))
}

fn must_escape(byte: u8) -> bool {
    byte == b'%' || byte == b':' || byte < 0x20 || byte == 0x7f
}

fn hex_digit(nibble: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(nibble & 15)])
}

fn hex_value(digit: char) -> Option<u8> {
    match digit {
        '0'..='9' => Some(digit as u8 - b'0'),
        'A'..='F' => Some(digit as u8 - b'A' + 10),
        _ => None,
    }
}

/// Whether a terminal would be steered by a character: a control character or a direction mark.
#[must_use]
pub fn steers(character: char) -> bool {
    let control = character.is_control() && character != '\n' && character != '\t';
    control || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text without what would steer a terminal: that is escaped as `\u{1b}`.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |character, out| out.extend(character.escape_unicode()))
}

/// JSON text without what would steer a terminal. It says the same: such characters only ever stand
/// inside its strings, where they may be escaped.
#[must_use]
pub fn plain_json(json: &str) -> Cow<'_, str> {
    // None of them lies beyond the plane that four digits reach.
    escaped(json, |character, out| out.push_str(&format!("\\u{:04x}", u32::from(character))))
}

fn escaped(text: &str, write: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        if steers(character) {
            write(character, &mut out);
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// A text as a JSON string.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", control as u32)),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::{escape, unescape};
    use proptest::prelude::*;

    #[test]
    fn the_separator_and_the_escape_itself_are_escaped() {
        assert_eq!(escape("a:b%c"), "a%3Ab%25c");
        assert_eq!(escape("nul\0"), "nul%00");
        assert_eq!(escape("né 日本"), "né 日本");
    }

    #[test]
    fn only_the_one_spelling_is_read_back() {
        for foreign in ["%", "%4", "%41", "%3a", "a:b", "\u{7}"] {
            assert_eq!(unescape(foreign), None, "{foreign:?}");
        }
    }

    proptest! {
        #[test]
        fn escape_is_injective_and_reversible(text in any::<String>()) {
            let escaped = escape(&text).into_owned();
            prop_assert!(!escaped.contains(':') && !escaped.contains('\0'));
            prop_assert_eq!(unescape(&escaped).unwrap(), text);
        }

        #[test]
        fn what_is_read_back_writes_the_same(text in "[%:A-F0-9a-c\u{0}]{0,12}") {
            if let Some(plain) = unescape(&text) {
                prop_assert_eq!(escape(&plain), &text[..]);
            }
        }
    }
}
