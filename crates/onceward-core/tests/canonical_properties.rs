//! Properties of canonical JSON, fingerprints, kept payloads and diffs, on random documents.
//!
//! Rule: where plain RFC 8785 is exact, our bytes are its bytes (`serde_json_canonicalizer` is the
//! oracle); everywhere, equal values have equal bytes and different values different ones.

#![expect(clippy::expect_used, reason = "a test's helpers may fail the test")]

use std::borrow::Cow;
use std::fmt::Write as _;

use onceward_core::canonical::{Arrays, CanonicalError};
use onceward_core::diff::{MAX_DIFF_VALUE_BYTES, diff_full, differing_pointers};
use onceward_core::fingerprint::{
    CanonicalBody, FingerprintPolicy, canonical_bytes, fingerprint_json,
};
use onceward_core::header_key::{MAX_HEADER_KEY_CHARS, parse_header_key};
use onceward_core::payload::{KeepPayload, KeptPayload};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::Value;

const KEY: [u8; 32] = [9; 32];

/// The largest integer that plain RFC 8785 keeps exact.
const MAX_SAFE: i64 = 1 << 53;

/// Strings with what matters to escaping and order: controls, quotes, both sides of U+E000.
fn text() -> impl Strategy<Value = String> {
    let character = prop_oneof![
        8 => prop::char::range('a', 'e'),
        2 => prop::sample::select(&['"', '\\', '/', '~', '\n', '\u{0}', '\u{1f}', '\u{7f}'][..]),
        2 => prop::sample::select(&['é', '\u{2028}', '\u{D7FF}', '\u{E000}', '\u{FFFD}', '😀'][..]),
        1 => any::<char>(),
    ];
    vec(character, 0..6).prop_map(|characters| characters.into_iter().collect())
}

fn number() -> impl Strategy<Value = Value> {
    // Above 10^21 RFC 8785 spells integers with an exponent where ours may be exact digits.
    let float = any::<f64>().prop_filter("in the range where spellings agree", |float| {
        float.is_finite() && float.abs() < 1e21
    });
    let decimal = (-99_999_999_i64..99_999_999, 0..9_u32)
        .prop_map(|(digits, scale)| digits as f64 / 10_f64.powi(scale.cast_signed()));
    prop_oneof![
        (-MAX_SAFE..=MAX_SAFE).prop_map(Value::from),
        (-9..10_i64).prop_map(Value::from),
        float.prop_map(Value::from),
        decimal.prop_map(Value::from),
    ]
}

fn document() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        number(),
        text().prop_map(Value::from),
    ];
    scalar.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(text(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Two documents, the second often a near copy of the first: most differences lie deep inside.
fn pair() -> impl Strategy<Value = (Value, Value)> {
    (document(), document(), any::<u32>()).prop_map(|(one, other, seed)| {
        let mut two = one.clone();
        match seed % 8 {
            0 => two = other,
            1 => {}
            edits => (0..edits).for_each(|_| edit(&mut two, &other, seed.rotate_left(edits * 4))),
        }
        (one, two)
    })
}

/// Puts `other` somewhere into a document, or takes something out of it.
fn edit(value: &mut Value, other: &Value, seed: u32) {
    let pick = seed as usize;
    let deeper = seed.rotate_left(7);
    match value {
        Value::Array(items) if !items.is_empty() => match pick % 4 {
            0 => drop(items.remove(pick / 4 % items.len())),
            1 => items.insert(pick / 4 % items.len(), other.clone()),
            _ => {
                let index = pick / 4 % items.len();
                edit(&mut items[index], other, deeper);
            }
        },
        Value::Object(members) if !members.is_empty() => {
            let key = members.keys().nth(pick / 4 % members.len()).cloned().unwrap_or_default();
            match pick % 4 {
                0 => drop(members.remove(&key)),
                1 => drop(members.insert(format!("{key}/"), other.clone())),
                _ => members.get_mut(&key).into_iter().for_each(|inner| edit(inner, other, deeper)),
            }
        }
        _ => *value = other.clone(),
    }
}

/// Writes a value in one of its many spellings: `noise` picks white space, escapes and order.
fn spell(value: &Value, noise: &mut impl FnMut() -> u32, out: &mut String) {
    let space = |noise: &mut dyn FnMut() -> u32, out: &mut String| {
        out.push_str(["", "", " ", "\n\t", "\r\n  "][noise() as usize % 5]);
    };
    space(noise, out);
    match value {
        Value::String(text) => spell_text(text, noise, out),
        Value::Number(number) => spell_number(&number.to_string(), noise, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                spell(item, noise, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().map(|member| (noise(), member)).collect();
            members.sort_by_key(|(order, _)| *order);
            out.push('{');
            for (index, (_, (key, value))) in members.into_iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(noise, out);
                spell_text(key, noise, out);
                space(noise, out);
                out.push(':');
                spell(value, noise, out);
            }
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
    space(noise, out);
}

fn spell_text(text: &str, noise: &mut impl FnMut() -> u32, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        if noise().is_multiple_of(4) || character < ' ' || character == '"' || character == '\\' {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04X}");
            }
        } else {
            out.push(character);
        }
    }
    out.push('"');
}

/// The same number with its point moved: `1.5` may become `15e-1` or `1.5000E+0`.
fn spell_number(plain: &str, noise: &mut impl FnMut() -> u32, out: &mut String) {
    let (mantissa, exponent) = plain.split_once('e').unwrap_or((plain, "0"));
    let exponent: i32 = exponent.parse().expect("an exponent");
    let (int, frac) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    match noise() % 3 {
        0 => out.push_str(plain),
        1 => {
            let digits = format!("{int}{frac}");
            let (sign, digits) = digits.split_at(usize::from(digits.starts_with('-')));
            let digits = digits.trim_start_matches('0');
            let digits = if digits.is_empty() { "0" } else { digits };
            let scale = i32::try_from(frac.len()).expect("short");
            let _ = write!(out, "{sign}{digits}e{}", exponent - scale);
        }
        _ => {
            let _ = write!(out, "{int}.{frac}000E{exponent:+}");
        }
    }
}

fn spelled(value: &Value, seed: u32) -> String {
    let mut state = seed | 1;
    let mut noise = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut out = String::new();
    spell(value, &mut noise, &mut out);
    out
}

fn canonical(body: &str, arrays: Arrays) -> Vec<u8> {
    let policy = FingerprintPolicy { arrays, ..FingerprintPolicy::default() };
    canonical_bytes(body.as_bytes(), &policy).expect("a document has a canonical form")
}

/// Floats that lie exactly between two shortest spellings: a random document hardly ever has one.
#[test]
fn a07_of_two_shortest_spellings_the_even_one_is_taken() {
    for (written, spelled) in [
        ("780879981006526.25", "780879981006526.2"),
        ("-780879981006526.25", "-780879981006526.2"),
        ("780879981006526.75", "780879981006526.8"),
        ("562949953421312.125", "562949953421312.1"),
        ("1125899906842624.25", "1125899906842624.2"),
        ("562949953421312.375", "562949953421312.4"),
    ] {
        let oracle: Value = serde_json::from_str(written).expect("a number");
        let expected = serde_json_canonicalizer::to_vec(&oracle).expect("the oracle accepts it");
        let found = canonical(written, Arrays::Ordered);
        assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
        assert_eq!(String::from_utf8_lossy(&found), spelled);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a07_canonical_bytes_are_those_of_rfc_8785(value in document()) {
        let expected = serde_json_canonicalizer::to_vec(&value).expect("the oracle accepts it");
        let found = canonical(&value.to_string(), Arrays::Ordered);
        prop_assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected));
    }

    #[test]
    fn a07_spelling_never_matters(value in document(), seed: u32) {
        let spelled = spelled(&value, seed);
        let found = canonical(&spelled, Arrays::Ordered);
        let expected = canonical(&value.to_string(), Arrays::Ordered);
        prop_assert_eq!(
            String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected), "{}", spelled
        );
    }

    #[test]
    fn a07_canonical_form_is_its_own_canonical_form(value in document(), seed: u32) {
        for arrays in [Arrays::Ordered, Arrays::Unordered] {
            let once = canonical(&spelled(&value, seed), arrays);
            let twice = canonical(std::str::from_utf8(&once).expect("UTF-8"), arrays);
            prop_assert_eq!(&once, &twice);
        }
    }

    #[test]
    fn a07_different_values_have_different_bytes((one, two) in pair()) {
        let bytes = |value: &Value| canonical(&value.to_string(), Arrays::Ordered);
        // The oracle's bytes are the measure: to serde_json itself 1 and 1.0 differ.
        let oracle = |value: &Value| serde_json_canonicalizer::to_vec(value).expect("JSON");
        prop_assert_eq!(oracle(&one) == oracle(&two), bytes(&one) == bytes(&two));
    }

    #[test]
    fn a07_integers_are_exact_and_have_one_spelling(
        digits in "[1-9][0-9]{0,60}", negative: bool, zeros in 0..25_usize, shift in 0..61_usize,
    ) {
        let sign = if negative { "-" } else { "" };
        let plain = format!("{sign}{digits}{}", "0".repeat(zeros));
        let point = shift.min(digits.len() - 1) + 1;
        let (int, frac) = digits.split_at(point);
        let moved = format!("{sign}{int}.{frac}0e{}", frac.len() + zeros);
        prop_assert_eq!(canonical(&plain, Arrays::Ordered), canonical(&moved, Arrays::Ordered));
        // The neighbour that differs in the last digit only.
        let (head, last) = plain.split_at(plain.len() - 1);
        let next = format!("{head}{}", if last == "1" { 2 } else { 1 });
        prop_assert_ne!(canonical(&plain, Arrays::Ordered), canonical(&next, Arrays::Ordered));
        let fraction = format!("{plain}.5");
        prop_assert_ne!(canonical(&plain, Arrays::Ordered), canonical(&fraction, Arrays::Ordered));
    }

    #[test]
    fn a07_fractions_are_the_nearest_float(int in "0|[1-9][0-9]{0,3}", frac in "[0-9]{1,30}") {
        let literal = format!("{int}.{frac}");
        let float: f64 = literal.parse().expect("a float");
        prop_assume!(float.fract() != 0.0);
        let expected = serde_json_canonicalizer::to_vec(&float).expect("a number");
        prop_assert_eq!(canonical(&literal, Arrays::Ordered), expected);
    }

    #[test]
    fn a07_parsing_never_panics_and_agrees_with_serde_json(
        body in prop_oneof![
            vec(any::<u8>(), 0..40),
            vec(prop::sample::select(&b"{}[]\",:\\u0123eE+-.truefalsn dD8\xc3\xa9"[..]), 0..24),
        ],
    ) {
        let ours = canonical_bytes(&body, &FingerprintPolicy::default());
        let theirs = serde_json::from_slice::<Value>(&body);
        match ours {
            Ok(_) => prop_assert!(theirs.is_ok()),
            Err(CanonicalError::NotJson { .. }) => prop_assert!(theirs.is_err()),
            // Duplicates are fine with serde_json, overflowing numbers are not.
            Err(_) => {}
        }
    }

    #[test]
    fn e02_the_order_of_items_does_not_matter(items in vec(document(), 0..8), seed: u32) {
        let policy = FingerprintPolicy::volatile();
        let print = |items: &[Value]| {
            let body = Value::from(items.to_vec()).to_string();
            fingerprint_json(body.as_bytes(), &policy).expect("JSON")
        };
        let mut shuffled = items.clone();
        if !shuffled.is_empty() {
            let middle = seed as usize % shuffled.len();
            shuffled.rotate_left(middle);
            shuffled.swap(0, middle);
        }
        prop_assert_eq!(print(&items), print(&shuffled));
        let mut doubled = items.clone();
        doubled.extend(items.first().cloned());
        prop_assert_eq!(print(&items) == print(&doubled), items.is_empty());
    }

    #[test]
    fn diffs_are_empty_exactly_when_payloads_are_equal((one, two) in pair()) {
        for arrays in [Arrays::Ordered, Arrays::Unordered] {
            let old = canonical(&one.to_string(), arrays);
            let new = canonical(&two.to_string(), arrays);
            let diff = diff_full(&old, &new, arrays, &[]).expect("JSON");
            prop_assert_eq!(diff.changes.is_empty() && !diff.truncated, old == new);
            let body = CanonicalBody::Json(new.clone());
            for keep in [KeepPayload::Hashed, KeepPayload::Full] {
                let kept = KeptPayload::keep(&CanonicalBody::Json(old.clone()), keep, &KEY)
                    .expect("JSON");
                prop_assert_eq!(KeptPayload::decode(&kept.encode()), Ok(kept.clone()));
                let found = differing_pointers(&kept, &body, arrays, &KEY).expect("JSON");
                let found = found.expect("something was kept");
                prop_assert_eq!(found.pointers.is_empty() && !found.truncated, old == new);
            }
        }
    }

    /// Every pointer of a diff leads to the value it shows.
    #[test]
    fn diffs_point_at_what_they_show((one, two) in pair()) {
        let old = canonical(&one.to_string(), Arrays::Ordered);
        let new = canonical(&two.to_string(), Arrays::Ordered);
        let diff = diff_full(&old, &new, Arrays::Ordered, &[]).expect("JSON");
        for change in diff.changes {
            for (document, shown) in [(&one, &change.old), (&two, &change.new)] {
                let there = document.pointer(&change.pointer).map(|value| {
                    let bytes = canonical(&value.to_string(), Arrays::Ordered);
                    match bytes.len() {
                        0..=MAX_DIFF_VALUE_BYTES => String::from_utf8_lossy(&bytes).into_owned(),
                        long => format!("\"({long} bytes)\""),
                    }
                });
                prop_assert_eq!(&there, shown);
            }
        }
    }

    #[test]
    fn a05_quoting_never_changes_a_key(key in "[!-~]{1,128}") {
        prop_assume!(!key.starts_with('"'));
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        prop_assert_eq!(parse_header_key(key.as_bytes()), Ok(Cow::Borrowed(key.as_str())));
        prop_assert_eq!(parse_header_key(quoted.as_bytes()), Ok(Cow::Borrowed(key.as_str())));
    }

    #[test]
    fn a05_whatever_is_accepted_is_a_key(value in vec(any::<u8>(), 0..200)) {
        if let Ok(key) = parse_header_key(&value) {
            prop_assert!((1..=MAX_HEADER_KEY_CHARS).contains(&key.len()));
            prop_assert!(key.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
        }
    }
}
