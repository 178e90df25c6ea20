//! Fingerprints: what counts as the same request, and that nothing else does.

use super::*;
use crate::canonical::NotCanonical;

fn policy(ignore: &[&str], arrays: Arrays) -> FingerprintPolicy {
    let ignore = ignore.iter().map(ToString::to_string).collect();
    FingerprintPolicy { ignore, arrays, body: Body::Json }
}

#[track_caller]
fn check_canonical(policy: &FingerprintPolicy, table: &[(&str, &str)]) {
    for (body, expected) in table {
        let canonical = canonical_bytes(body.as_bytes(), policy).expect("it has a canonical form");
        assert_eq!(String::from_utf8_lossy(&canonical), *expected, "{body}");
    }
}

#[test]
fn a07_spelling_does_not_matter_and_values_do() {
    let plain = FingerprintPolicy::default();
    let print = |body: &str| fingerprint_json(body.as_bytes(), &plain).expect("JSON");
    assert_eq!(print(r#"{"a":1,"b":[1.0,2e0]}"#), print("{ \"b\" : [1,2], \"a\" : 1.00 }"));
    assert_ne!(print("9007199254740993"), print("9007199254740992"));
    assert_ne!(print("[1,2]"), print("[2,1]"));
    assert_ne!(print("\"1\""), print("1"));
    assert_ne!(print("{}"), print("{\"a\":null}"));
}

#[test]
fn e02_volatile_fields_and_item_order_do_not_count() {
    let one = r#"{"items":[{"sku":"A","qty":1,"timestamp":1},{"sku":"B","qty":2}],
                  "created_at":"x","updated_at":"y","_metadata":{"deep":[1]},
                  "request_id":1,"trace_id":2,"session_id":3,"timestamp":4,"note":{"trace_id":5}}"#;
    let two = r#"{"note":{},"items":[{"qty":2,"sku":"B"},{"qty":1,"sku":"A"}]}"#;
    let volatile = FingerprintPolicy::volatile();
    let print = |body: &str| fingerprint_json(body.as_bytes(), &volatile).expect("JSON");
    assert_eq!(print(one), print(two));
    assert_ne!(print(one), print(&two.replace("\"qty\":2", "\"qty\":3")));
    check_canonical(
        &volatile,
        &[
            (one, r#"{"items":[{"qty":1,"sku":"A"},{"qty":2,"sku":"B"}],"note":{}}"#),
            (r#"{"Timestamp":1,"timestamps":2}"#, r#"{"Timestamp":1,"timestamps":2}"#),
            (r#"{"\u0074imestamp":1,"a":"timestamp"}"#, r#"{"a":"timestamp"}"#),
        ],
    );
}

/// Ignoring fields and ordering arrays are two things; each body here is otherwise canonical.
#[test]
fn e02_fields_are_ignored_in_ordered_arrays_too() {
    check_canonical(
        &policy(&["x"], Arrays::Ordered),
        &[
            (r#"{"x":2}"#, "{}"),
            (r#"{"a":{"x":1},"b":[2,{"x":1},1]}"#, r#"{"a":{},"b":[2,{},1]}"#),
            (r#"[{"w":1,"x":{"y":1},"z":2}]"#, r#"[{"w":1,"z":2}]"#),
        ],
    );
}

#[test]
fn a_json_pointer_ignores_a_field_at_its_place_only() {
    check_canonical(
        &policy(&["/at", "/meta/sent~1at", "/meta/absent", "/list/0/at", "/x"], Arrays::Unordered),
        &[
            (r#"{"at":1,"b":{"at":2}}"#, r#"{"b":{"at":2}}"#),
            (r#"{"meta":{"a":1,"sent/at":2},"sent/at":3}"#, r#"{"meta":{"a":1},"sent/at":3}"#),
            // Items have no place of their own.
            (r#"{"list":[{"at":1}]}"#, r#"{"list":[{"at":1}]}"#),
            (r#"{"x":{"y":1}}"#, "{}"),
            ("[1]", "[1]"),
        ],
    );
    check_canonical(&policy(&["/a"], Arrays::Ordered), &[(r#"{"a":1,"b":2}"#, r#"{"b":2}"#)]);
}

#[test]
fn e02_unordered_arrays_are_multisets() {
    check_canonical(
        &policy(&[], Arrays::Unordered),
        &[
            ("[2,1]", "[1,2]"),
            ("[1,1,2]", "[1,1,2]"),
            ("[1,2,2]", "[1,2,2]"),
            ("[]", "[]"),
            ("[[3,2],[1]]", "[[1],[2,3]]"),
            (r#"[{"b":[2,1]},{"a":1}]"#, r#"[{"a":1},{"b":[1,2]}]"#),
            (r#"["b",null,"a",10,9,true]"#, r#"["a","b",10,9,null,true]"#),
        ],
    );
}

/// Ignored fields must not hide that a body has no canonical form.
#[test]
fn a07_duplicates_are_refused_inside_ignored_fields() {
    let error = fingerprint_json(br#"{"x":{"a":1,"a":2}}"#, &policy(&["x"], Arrays::Ordered));
    let reason = NotCanonical::DuplicateKey;
    assert_eq!(error, Err(CanonicalError::NotCanonical { offset: 12, reason }));
}

#[test]
fn a07_kinds_of_body_never_meet() {
    let json = fingerprint_json(b"[1]", &FingerprintPolicy::default()).expect("JSON");
    let bytes = fingerprint_bytes(b"[1]");
    let parts = FingerprintBuilder::new().part("body", b"[1]").finish();
    let json_part = FingerprintBuilder::new().body(&CanonicalBody::Json(b"[1]".to_vec())).finish();
    let bytes_part = FingerprintBuilder::new().body(&CanonicalBody::Bytes(b"[1]")).finish();
    let all = [json, bytes, parts, json_part];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[index + 1..].contains(one), "{index}");
    }
    assert_eq!(parts, bytes_part);
}

#[test]
fn a07_parts_are_injective() {
    let lists: &[&[(&str, &[u8])]] = &[
        &[],
        &[("a", b"")],
        &[("", b"a")],
        &[("a", b"b")],
        &[("ab", b"")],
        &[("a", b"b"), ("c", b"d")],
        &[("c", b"d"), ("a", b"b")],
        &[("a", b"bcd")],
        &[("a", b"b"), ("", b"")],
        &[("", b""), ("a", b"b")],
        &[("path", b"/a"), ("query", b"b")],
        &[("path", b"/ab"), ("query", b"")],
        &[("path", b"/a?b"), ("query", b"")],
    ];
    let print = |list: &[(&str, &[u8])]| {
        list.iter()
            .fold(FingerprintBuilder::new(), |builder, (label, value)| builder.part(label, value))
            .finish()
    };
    for (index, one) in lists.iter().enumerate() {
        for other in &lists[index + 1..] {
            assert_ne!(print(one), print(other), "{one:?} {other:?}");
        }
    }
}

#[test]
fn a07_a_body_that_is_not_json_is_hashed_as_bytes() {
    let json = FingerprintPolicy::default();
    let bytes = FingerprintPolicy { body: Body::Bytes, ..json.clone() };
    assert_eq!(CanonicalBody::new(b"a=1", &json), Ok(CanonicalBody::Bytes(b"a=1")));
    assert_eq!(CanonicalBody::new(b"", &json), Ok(CanonicalBody::Bytes(b"")));
    assert_eq!(CanonicalBody::new(b"{ }", &json), Ok(CanonicalBody::Json(b"{}".to_vec())));
    assert_eq!(CanonicalBody::new(b"{ }", &bytes), Ok(CanonicalBody::Bytes(b"{ }")));
    assert_eq!(CanonicalBody::new(b"1e400", &bytes), Ok(CanonicalBody::Bytes(b"1e400")));
    assert!(CanonicalBody::new(b"1e400", &json).is_err());
}

/// The bytes that are hashed, spelled out: whoever changes them must change the rules' version.
#[test]
fn a07_rules_version_1_is_fixed() {
    let by_hand = |tail: &[u8]| {
        let mut hashed = b"onceward.fingerprint\x01".to_vec();
        hashed.extend_from_slice(tail);
        Fingerprint::from_stored(1, Sha256::digest(&hashed).into())
    };
    let json = fingerprint_json(b"{ }", &FingerprintPolicy::default()).expect("JSON");
    assert_eq!(json, by_hand(b"\x01{}"));
    assert_eq!(fingerprint_bytes(b"xy"), by_hand(b"\x02xy"));
    let part = FingerprintBuilder::new().part("m", b"PUT").finish();
    let expected = b"\x03\x02\x01\0\0\0\0\0\0\0m\x03\0\0\0\0\0\0\0PUT";
    assert_eq!(part, by_hand(expected));
    assert_eq!((part.rules(), FINGERPRINT_RULES), (1, 1));
}

#[test]
fn e01_content_hash_is_the_plain_sha256_of_the_canonical_bytes() {
    // SHA-256 of "{}" and of nothing, as any other tool prints them.
    assert_eq!(content_hash16(b"{}"), "44136fa355b3678a");
    assert_eq!(content_hash16(b""), "e3b0c44298fc1c14");
}

#[test]
fn fingerprints_are_shown_as_hexadecimal_digits() {
    let print = Fingerprint::from_stored(1, [0xab; 32]);
    assert_eq!(print.to_string(), "ab".repeat(32));
    assert_eq!(print.short_hex(16), "ab".repeat(8));
    assert_eq!(print.short_hex(999), "ab".repeat(32));
    assert_eq!(format!("{print:?}"), format!("Fingerprint(v1, {print})"));
    let body = CanonicalBody::Json(b"{\"pin\":1234}".to_vec());
    assert_eq!(format!("{body:?}"), "Json(12 bytes)");
}
