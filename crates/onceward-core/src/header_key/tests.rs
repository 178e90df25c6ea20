//! Header values: what is one key, and what is none.

use super::*;

#[track_caller]
fn check(table: &[(&[u8], Result<&str, HeaderKeyError>)]) {
    for (value, expected) in table {
        let found = parse_header_key(value);
        let shown = String::from_utf8_lossy(value);
        assert_eq!(found.as_deref().map_err(|error| *error), *expected, "{shown}");
    }
}

#[test]
fn a05_raw_and_quoted_values_are_one_key() {
    let longest = "k".repeat(MAX_HEADER_KEY_CHARS);
    let quoted = format!("\"{longest}\"");
    let escaped = format!("\"{}\"", "\\\"".repeat(MAX_HEADER_KEY_CHARS));
    check(&[
        (b"abc", Ok("abc")),
        (b"\"abc\"", Ok("abc")),
        (b" \tabc\t ", Ok("abc")),
        (b" \"abc\" ", Ok("abc")),
        (b"\" abc \"", Ok("abc")),
        (b"!~", Ok("!~")),
        (b"a\"b", Ok("a\"b")),
        (b"\"a\\\"b\"", Ok("a\"b")),
        (b"a\\b", Ok("a\\b")),
        (b"\"a\\\\b\"", Ok("a\\b")),
        (b"\"\\\"\"", Ok("\"")),
        (b"a;b=c,d", Ok("a;b=c,d")),
        (b"8e03978e-40d5-43dd-bc93-6894a57f9324", Ok("8e03978e-40d5-43dd-bc93-6894a57f9324")),
        (longest.as_bytes(), Ok(&longest)),
        (quoted.as_bytes(), Ok(&longest)),
        (escaped.as_bytes(), Ok(&"\"".repeat(MAX_HEADER_KEY_CHARS))),
    ]);
}

#[test]
fn a05_everything_else_is_refused_by_name() {
    let long = "k".repeat(MAX_HEADER_KEY_CHARS + 1);
    let quoted = format!("\"{long}\"");
    let character = |byte, offset, length| Err(HeaderKeyError::Character { byte, offset, length });
    check(&[
        (b"", Err(HeaderKeyError::Empty)),
        (b" \t ", Err(HeaderKeyError::Empty)),
        (b"\"\"", Err(HeaderKeyError::Empty)),
        (b"\"  \"", Err(HeaderKeyError::Empty)),
        (b"a b", character(b' ', 1, 3)),
        (b"a, b", character(b' ', 2, 4)),
        (b"\"a b\"", character(b' ', 1, 3)),
        (b"a\x7f", character(0x7f, 1, 2)),
        (b"a\n", character(b'\n', 1, 2)),
        (b"\x00", character(0, 0, 1)),
        ("clé".as_bytes(), character(0xc3, 2, 4)),
        (b"\"\xff\"", character(0xff, 0, 1)),
        (b"\"", Err(HeaderKeyError::Unclosed { length: 1 })),
        (b"\"abc", Err(HeaderKeyError::Unclosed { length: 4 })),
        (b"\"abc\\\"", Err(HeaderKeyError::Unclosed { length: 6 })),
        (b"\"abc\\", Err(HeaderKeyError::Unclosed { length: 5 })),
        (b"\"a\\b\"", Err(HeaderKeyError::Escape { offset: 2 })),
        (b"\"abc\";p=1", Err(HeaderKeyError::Trailing { offset: 5 })),
        (b"\"abc\" ;p", Err(HeaderKeyError::Trailing { offset: 5 })),
        (b"\"abc\", \"def\"", Err(HeaderKeyError::Trailing { offset: 5 })),
        (b"\"abc\"x", Err(HeaderKeyError::Trailing { offset: 5 })),
        (long.as_bytes(), Err(HeaderKeyError::TooLong { length: 129 })),
        (quoted.as_bytes(), Err(HeaderKeyError::TooLong { length: 129 })),
    ]);
}

#[test]
fn a05_errors_name_length_and_bound_and_not_the_key() {
    let error = parse_header_key(&[b'k'; 200]).expect_err("too long");
    let expected = "the idempotency key has 200 characters; at most 128 are allowed";
    assert_eq!((error.to_string().as_str(), error.code()), (expected, "idempotency.key_invalid"));
    let error = parse_header_key(b"my secret").expect_err("a space");
    assert!(!error.to_string().contains("secret"), "{error}");
}
