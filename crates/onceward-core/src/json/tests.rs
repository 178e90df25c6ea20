//! Parser and canonical form: tables of what is accepted, refused, and how it is spelled.

use crate::canonical::{CanonicalError, MAX_BODY_BYTES, MAX_JSON_DEPTH, NotCanonical, NotJson};
use crate::fingerprint::{FingerprintPolicy, canonical_bytes};

fn canonical(body: &[u8]) -> Result<String, CanonicalError> {
    canonical_bytes(body, &FingerprintPolicy::default())
        .map(|bytes| String::from_utf8(bytes).expect("canonical JSON is UTF-8"))
}

#[track_caller]
fn check(table: &[(&str, &str)]) {
    for (body, expected) in table {
        assert_eq!(canonical(body.as_bytes()).as_deref(), Ok(*expected), "{body}");
        assert_eq!(canonical(expected.as_bytes()).as_deref(), Ok(*expected), "again: {body}");
    }
}

#[track_caller]
fn check_not_json(table: &[(&[u8], usize, NotJson)]) {
    for (body, offset, reason) in table {
        let expected = CanonicalError::NotJson { offset: *offset, reason: *reason };
        let shown = String::from_utf8_lossy(body);
        assert_eq!(canonical(body), Err(expected), "{shown}");
    }
}

#[track_caller]
fn check_not_canonical(table: &[(&str, usize, NotCanonical)]) {
    for (body, offset, reason) in table {
        let expected = CanonicalError::NotCanonical { offset: *offset, reason: *reason };
        assert_eq!(canonical(body.as_bytes()), Err(expected), "{body}");
    }
}

#[test]
fn a07_field_order_and_white_space_do_not_matter() {
    check(&[
        ("null", "null"),
        (" \t\r\n true \n", "true"),
        ("[ ]", "[]"),
        ("{ \n }", "{}"),
        ("[ 1 , [ ] , { } ]", "[1,[],{}]"),
        (r#"{"b":1,"a":{"d":[2, 1],"c":false}}"#, r#"{"a":{"c":false,"d":[2,1]},"b":1}"#),
        (r#"{"aa":1,"a":2,"":3,"B":4}"#, r#"{"":3,"B":4,"a":2,"aa":1}"#),
    ]);
}

/// U+10000 and above sort as surrogates, before U+E000: where UTF-16 and UTF-8 disagree.
#[test]
fn a07_keys_sort_by_utf16_code_units() {
    check(&[
        (
            "{\"\u{FB33}\":1,\"\u{1F600}\":2,\"\u{20AC}\":3}",
            "{\"\u{20AC}\":3,\"\u{1F600}\":2,\"\u{FB33}\":1}",
        ),
        (
            "{\"\u{E000}\":1,\"\u{D7FF}\":2,\"\u{10FFFF}\":3}",
            "{\"\u{D7FF}\":2,\"\u{10FFFF}\":3,\"\u{E000}\":1}",
        ),
        ("{\"x\u{FFFD}\":1,\"x\u{10000}\":2}", "{\"x\u{10000}\":2,\"x\u{FFFD}\":1}"),
        (r#"{"\ufb33":1,"\ud83d\ude00":2}"#, "{\"\u{1F600}\":2,\"\u{FB33}\":1}"),
        (
            r#"{"\r":1,"1":2,"\u0080":3,"\u00f6":4}"#,
            "{\"\\r\":1,\"1\":2,\"\u{80}\":3,\"\u{f6}\":4}",
        ),
    ]);
}

#[test]
fn a07_strings_have_one_spelling() {
    check(&[
        (r#""\u0041\/\u007f""#, "\"A/\u{7f}\""),
        (
            r#""\u0000\u0008\u0009\u000a\u000b\u000c\u000d\u001F""#,
            r#""\u0000\b\t\n\u000b\f\r\u001f""#,
        ),
        (r#""\"\\\b\f\n\r\t""#, r#""\"\\\b\f\n\r\t""#),
        (r#""\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/""#, r#""€$\u000f\nA'B\"\\\\\"/""#),
        (r#""\uD83D\uDE00\uffff\u2028""#, "\"\u{1F600}\u{FFFF}\u{2028}\""),
        ("\"e\u{301}\"", "\"e\u{301}\""),
        (r#""0123456\n9012345678\"0123456""#, r#""0123456\n9012345678\"0123456""#),
    ]);
}

#[test]
fn a07_integers_are_exact_however_spelled() {
    let digits_309 = format!("17976931348623157{}", "1".repeat(292));
    check(&[
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("0e999999999999999999999", "0"),
        ("0.000e-99999999999999999999", "0"),
        ("1.0", "1"),
        ("1e2", "100"),
        ("10e-1", "1"),
        ("-12.50e1", "-125"),
        ("100.00", "100"),
        ("9007199254740992", "9007199254740992"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740993"),
        ("-18446744073709551616", "-18446744073709551616"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("1234567890123456789012345678.90e2", "123456789012345678901234567890"),
        ("1e20", "100000000000000000000"),
        ("100000000000000000000", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("1000000000000000000000", "1e+21"),
        ("-1.5e300", "-1.5e+300"),
        ("12e21", "1.2e+22"),
        ("1200000000000000000001", "1200000000000000000001"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        (&digits_309, &digits_309),
    ]);
}

#[test]
fn a07_other_numbers_are_spelled_as_floats() {
    check(&[
        ("0.1", "0.1"),
        ("1.50", "1.5"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("1.25e-7", "1.25e-7"),
        ("12E-1", "1.2"),
        ("0.1000000000000000055", "0.1"),
        ("333333333.33333329", "333333333.3333333"),
        ("4.50", "4.5"),
        ("2e-3", "0.002"),
        ("0.000000000000000000000000001", "1e-27"),
        ("-5e-324", "-5e-324"),
        ("4.9406564584124654e-324", "5e-324"),
        ("2.2250738585072011e-308", "2.225073858507201e-308"),
        ("1.0000000000000002", "1.0000000000000002"),
        ("123456789012345.6", "123456789012345.6"),
    ]);
}

/// The nearest float of each of these is an integer, whose bytes belong to that integer alone.
#[test]
fn a07_no_fraction_imitates_an_integer() {
    check(&[
        ("9007199254740993.5", "9007199254740993.5"),
        ("1.00000000000000000001", "1.00000000000000000001"),
        ("0.99999999999999999999999", "0.99999999999999999999999"),
        ("123456789012345678901234567890.5", "123456789012345678901234567890.5"),
    ]);
}

#[test]
fn what_is_not_json_is_told_from_what_is_not_canonical() {
    check_not_json(&[
        (b"", 0, NotJson::End),
        (b"  ", 2, NotJson::End),
        (b"hello", 0, NotJson::Byte(b'h')),
        (b"name=x", 1, NotJson::Byte(b'a')),
        (b"tru", 3, NotJson::End),
        (b"nulL", 3, NotJson::Byte(b'L')),
        (b"[1,]", 3, NotJson::Byte(b']')),
        (b"[1 2]", 3, NotJson::Byte(b'2')),
        (b"[", 1, NotJson::End),
        (b"{", 1, NotJson::End),
        (b"{\"a\"}", 4, NotJson::Byte(b'}')),
        (b"{\"a\":1,}", 7, NotJson::Byte(b'}')),
        (b"{a:1}", 1, NotJson::Byte(b'a')),
        (b"{\"a\":1", 6, NotJson::End),
        (b"1 1", 2, NotJson::Trailing),
        (b"{}x", 2, NotJson::Trailing),
        (b"01", 0, NotJson::Number),
        (b"-", 1, NotJson::Number),
        (b"-a", 1, NotJson::Number),
        (b"1.", 2, NotJson::Number),
        (b"1.e1", 2, NotJson::Number),
        (b"1e", 2, NotJson::Number),
        (b"1e+", 3, NotJson::Number),
        (b"+1", 0, NotJson::Byte(b'+')),
        (b".5", 0, NotJson::Byte(b'.')),
        (b"NaN", 0, NotJson::Byte(b'N')),
        (b"\"abc", 4, NotJson::End),
        (b"\"a\\", 3, NotJson::End),
        (b"\"\\x\"", 1, NotJson::Escape),
        (b"\"\\u12\"", 1, NotJson::Escape),
        (b"\"\\u+123\"", 1, NotJson::Escape),
        (b"\"a\nb\"", 2, NotJson::Control(b'\n')),
        (b"\"0123456789\x000\"", 11, NotJson::Control(0)),
        (b"\"\xff\"", 1, NotJson::Utf8),
        (b"\"\xed\xa0\x80\"", 1, NotJson::Utf8),
        (b"\xef\xbb\xbf1", 0, NotJson::Byte(0xef)),
    ]);
}

#[test]
fn a07_bodies_without_one_meaning_are_refused() {
    check_not_canonical(&[
        (r#"{"a":1,"a":1}"#, 7, NotCanonical::DuplicateKey),
        (r#"{"a":1,"\u0061":2}"#, 7, NotCanonical::DuplicateKey),
        (r#"{"\u0061":1,"b":0,"a":2}"#, 18, NotCanonical::DuplicateKey),
        (r#"[{"x":{"k":1,"j":2,"k":3}}]"#, 19, NotCanonical::DuplicateKey),
        (r#"{"":1,"":2}"#, 6, NotCanonical::DuplicateKey),
        ("[1e400]", 1, NotCanonical::NumberRange),
        ("-1e400", 0, NotCanonical::NumberRange),
        ("1.7976931348623159e308", 0, NotCanonical::NumberRange),
        ("1e99999999999999999999999", 0, NotCanonical::NumberRange),
        ("1e-400", 0, NotCanonical::NumberRange),
        ("2e-324", 0, NotCanonical::NumberRange),
        ("1e-99999999999999999999999", 0, NotCanonical::NumberRange),
        (&format!("1{}", "0".repeat(400)), 0, NotCanonical::NumberRange),
        (r#""\ud800""#, 1, NotCanonical::LoneSurrogate),
        (r#""x\udc00""#, 2, NotCanonical::LoneSurrogate),
        (r#""\ud800\ud800""#, 1, NotCanonical::LoneSurrogate),
        (r#""\ud800\u0041""#, 1, NotCanonical::LoneSurrogate),
        (r#"{"\udfff":1}"#, 2, NotCanonical::LoneSurrogate),
    ]);
}

#[test]
fn depth_is_bounded_and_never_costs_the_stack() {
    let nested = |open: &str, inner: &str, close: &str, levels: usize| {
        format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
    };
    let deepest = nested("[", "", "]", MAX_JSON_DEPTH);
    assert_eq!(canonical(deepest.as_bytes()), Ok(deepest.clone()));
    let deepest = nested("{\"a\":", "1", "}", MAX_JSON_DEPTH);
    assert_eq!(canonical(deepest.as_bytes()), Ok(deepest.clone()));
    let bound = MAX_JSON_DEPTH;
    check_not_canonical(&[
        (&nested("[", "", "]", MAX_JSON_DEPTH + 1), bound, NotCanonical::TooDeep),
        (&nested("[", "", "]", 100_000), bound, NotCanonical::TooDeep),
        (&"[".repeat(100_000), bound, NotCanonical::TooDeep),
        (&nested("{\"a\":", "1", "}", 100_000), 5 * bound, NotCanonical::TooDeep),
    ]);
}

#[test]
fn size_is_bounded_before_and_after() {
    let largest = format!("\"{}\"", "x".repeat(MAX_BODY_BYTES - 2));
    assert_eq!(canonical(largest.as_bytes()).map(|text| text.len()), Ok(MAX_BODY_BYTES));
    let bytes = MAX_BODY_BYTES + 1;
    let too_large = NotCanonical::TooLarge { bytes };
    check_not_canonical(&[(&" ".repeat(bytes), MAX_BODY_BYTES, too_large)]);
    // Five bytes of input are twenty-two of output here.
    let growing = format!("[{}1]", "1e20,".repeat(MAX_BODY_BYTES / 5 - 1));
    let error = canonical(growing.as_bytes()).expect_err("its canonical form is too large");
    let bytes = (MAX_BODY_BYTES / 5 - 1) * 22 + 3;
    let reason = NotCanonical::TooLarge { bytes };
    assert_eq!(error, CanonicalError::NotCanonical { offset: growing.len(), reason });
}

#[test]
fn errors_say_what_where_and_how_much() {
    let duplicate = canonical(br#"{"a":1,"a":1}"#).expect_err("a duplicate");
    assert_eq!(duplicate.to_string(), "the body has no canonical form: a duplicate key at byte 7");
    assert_eq!((duplicate.code(), duplicate.offset()), ("body.not_canonical", 7));
    let text = canonical(b"hi").expect_err("no JSON");
    assert_eq!(text.to_string(), "the body is not JSON: the unexpected byte 0x68 at byte 0");
    assert_eq!((text.code(), text.is_not_json()), ("body.not_json", true));
    let large = canonical(&vec![b' '; MAX_BODY_BYTES + 1]).expect_err("too large");
    assert!(large.to_string().contains("8388609 bytes where at most 8388608 are allowed"));
}
