//! Base64 with the URL alphabet and without padding (RFC 4648 §5), as JWTs are written.
//!
//! Strict: one text per sequence of bytes, so that a signature can't be respelt.

/// Decodes, or none when the text is not in the one canonical spelling.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0_u32, 0);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits & 0xff) as u8);
            held &= (1 << bits) - 1;
        }
    }
    // Six left-over bits are half a byte too few; others have to be zero.
    (bits < 6 && held == 0).then_some(bytes)
}

#[cfg(test)]
pub(super) fn encode(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut held = 0_u32;
        for at in 0..3 {
            held = held << 8 | u32::from(chunk.get(at).copied().unwrap_or(0));
        }
        for at in 0..=chunk.len() {
            text.push(ALPHABET[(held >> (18 - 6 * at) & 63) as usize] as char);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_spelling() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg", b"f"), ("Zm8", b"fo"), ("Zm9v", b"foo"), ("-_8", b"\xfb\xff")]
        {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
            assert_eq!(encode(bytes), text);
        }
        for bad in ["Z", "Zh", "Zg==", "Zm9", "Zm+v", "Zm/v", "Zm9v ", "Zm9vA"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
