//! Kept payloads: what is kept, that nothing more is, and that decoding is strict.

use super::*;

const KEY: [u8; 32] = [7; 32];

fn json(text: &str) -> CanonicalBody<'static> {
    CanonicalBody::Json(text.as_bytes().to_vec())
}

fn form(text: &str) -> CanonicalBody<'static> {
    CanonicalBody::Form(text.as_bytes().to_vec())
}

#[track_caller]
fn hashed(body: &CanonicalBody<'_>, key: &[u8; 32]) -> KeptLeaves {
    match KeptPayload::keep(body, KeepPayload::Hashed, key) {
        Ok(KeptPayload::Hashed(leaves)) => leaves,
        other => panic!("not hashed: {other:?}"),
    }
}

#[track_caller]
fn check_leaves(table: &[(&str, &[&str])]) {
    for (body, expected) in table {
        let kept = hashed(&json(body), &KEY);
        let pointers: Vec<_> = kept.leaves().iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(&pointers, expected, "{body}");
        assert!(!kept.truncated(), "{body}");
    }
}

#[track_caller]
fn check_refused(table: &[(&[u8], PayloadError)]) {
    for (bytes, expected) in table {
        assert_eq!(KeptPayload::decode(bytes), Err(*expected), "{bytes:?}");
        assert_eq!(expected.code(), "payload.corrupt");
    }
}

#[test]
fn leaves_are_scalars_and_empty_containers_under_escaped_pointers() {
    check_leaves(&[
        ("1", &[""]),
        ("{}", &[""]),
        ("[]", &[""]),
        (r#"{"a":[],"b":{},"c":[{"d":1},2]}"#, &["/a", "/b", "/c/0/d", "/c/1"]),
        (r#"{"":1,"/":2,"a~b":3,"m/n":4}"#, &["/", "/~1", "/a~0b", "/m~1n"]),
    ]);
}

#[test]
fn a_leaf_hash_depends_on_key_pointer_kind_and_value() {
    let hash = |body: &str, key: &[u8; 32]| hashed(&json(body), key).leaves()[0].1;
    let all = [
        hash(r#"{"a":1}"#, &KEY),
        hash(r#"{"a":2}"#, &KEY),
        hash(r#"{"a":"1"}"#, &KEY),
        hash(r#"{"b":1}"#, &KEY),
        // Pointer and value run into each other, but for the pointer's length.
        hash(r#"{"a":"bc"}"#, &KEY),
        hash(r#"{"ab":"c"}"#, &KEY),
        hash(r#"{"a":[]}"#, &KEY),
        hash(r#"{"a":{}}"#, &KEY),
        hash(r#"{"a":"{}"}"#, &KEY),
        hash(r#"{"a":1}"#, &[8; 32]),
        hash("1", &KEY),
        hashed(&CanonicalBody::Bytes(b"1"), &KEY).leaves()[0].1,
    ];
    let distinct: HashSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
}

#[test]
fn leaves_and_pointers_are_bounded() {
    let many = |count: usize| format!("[{}]", vec!["1"; count].join(","));
    let kept = hashed(&json(&many(MAX_KEPT_LEAVES)), &KEY);
    assert_eq!((kept.leaves().len(), kept.truncated()), (MAX_KEPT_LEAVES, false));
    let kept = hashed(&json(&many(MAX_KEPT_LEAVES + 1)), &KEY);
    assert_eq!((kept.leaves().len(), kept.truncated()), (MAX_KEPT_LEAVES, true));
    let named = |length: usize| format!("{{\"{}\":{{\"b\":1}},\"z\":2}}", "a".repeat(length));
    let kept = hashed(&json(&named(MAX_POINTER_BYTES - 3)), &KEY);
    assert_eq!((kept.leaves().len(), kept.truncated()), (2, false));
    let kept = hashed(&json(&named(MAX_POINTER_BYTES - 2)), &KEY);
    assert_eq!((kept.leaves().len(), kept.truncated()), (1, true));
    assert_eq!(kept.leaves()[0].0, "/z");
}

#[test]
fn what_is_kept_follows_the_policy() {
    let body = json(r#"{"a":1}"#);
    let keep = |body: &CanonicalBody<'_>, keep| KeptPayload::keep(body, keep, &KEY).expect("JSON");
    assert_eq!(keep(&body, KeepPayload::None), KeptPayload::None);
    let all_of = |body: &[u8], is_form, query: &str| {
        KeptPayload::Full(FullPayload { body: body.to_vec(), is_form, query: query.to_owned() })
    };
    assert_eq!(keep(&body, KeepPayload::Full), all_of(br#"{"a":1}"#, false, ""));
    let queried = Payload { body: &body, query: "page=1" };
    let kept = KeptPayload::keep(queried, KeepPayload::Full, &KEY).expect("JSON");
    assert_eq!(kept, all_of(br#"{"a":1}"#, false, "page=1"));
    let bytes = CanonicalBody::Bytes(b"\xff\x00");
    assert_eq!(keep(&bytes, KeepPayload::None), KeptPayload::None);
    assert_eq!(keep(&bytes, KeepPayload::Full), keep(&bytes, KeepPayload::Hashed));
    let not_json = KeptPayload::keep(&json("x"), KeepPayload::Hashed, &KEY);
    assert!(not_json.is_err_and(|error| error.is_not_json()));
    assert_eq!(KeepPayload::default(), KeepPayload::Hashed);
}

#[test]
fn r12_a_form_is_kept_by_field() {
    let form = form(r#"{"a/b":"1","file":{"content":"x","filename":"f"},"list":["1","2"]}"#);
    let full = KeptPayload::keep(&form, KeepPayload::Full, &KEY).expect("fields");
    let body = form.bytes().to_vec();
    assert_eq!(full, KeptPayload::Full(FullPayload { body, is_form: true, query: String::new() }));
    let kept = hashed(&form, &KEY);
    let pointers: Vec<_> = kept.leaves().iter().map(|(pointer, _)| pointer.as_str()).collect();
    assert_eq!(pointers, ["/a~1b", "/file", "/list"]);
    // A field is no JSON value, whatever it holds.
    assert_ne!(hashed(&json(r#"{"a/b":"1"}"#), &KEY).leaves()[0].1, kept.leaves()[0].1);
}

#[test]
fn r11_the_query_is_kept_by_field() {
    let body = json(r#"{"a":1}"#);
    let pointers = |query: &str| {
        let kept = KeptPayload::keep(Payload { body: &body, query }, KeepPayload::Hashed, &KEY);
        let Ok(KeptPayload::Hashed(kept)) = kept else { panic!("not hashed: {kept:?}") };
        assert!(!kept.truncated(), "{query}");
        kept.leaves().iter().map(|(pointer, _)| pointer.clone()).collect::<Vec<_>>()
    };
    assert_eq!(pointers(""), ["/a"]);
    assert_eq!(pointers("page=1&a/b=2&page=3&=4"), ["?", "?a/b", "?page", "/a"]);
    // What is no form, and what has too many fields, is kept as a whole.
    assert_eq!(pointers("100%"), ["?", "/a"]);
    let many = |count: usize| vec!["a=1"; count].join("&");
    assert_eq!(pointers(&many(MAX_QUERY_FIELDS)), ["?", "?a", "/a"]);
    assert_eq!(pointers(&many(MAX_QUERY_FIELDS + 1)), ["?", "/a"]);
    let long = "x".repeat(MAX_QUERY_BYTES + 1);
    let kept = KeptPayload::keep(Payload { body: &body, query: &long }, KeepPayload::Full, &KEY);
    assert!(matches!(kept, Ok(KeptPayload::Hashed(_))));
}

#[test]
fn values_are_neither_in_the_hashed_bytes_nor_in_debug_output() {
    let body = json(r#"{"name":"Ada Lovelace"}"#);
    let kept = KeptPayload::Hashed(hashed(&body, &KEY));
    let bytes = kept.encode();
    assert!(!bytes.windows(3).any(|window| window == b"Ada"));
    assert_eq!(format!("{kept:?}"), "Hashed(1 leaves)");
    let full = KeptPayload::keep(&body, KeepPayload::Full, &KEY).expect("JSON");
    assert_eq!(format!("{full:?}"), "Full(23 bytes)");
}

#[test]
fn decoding_reads_back_what_was_encoded() {
    let wide = format!("[{}]", vec!["{\"k\":1}"; 300].join(","));
    for body in ["1", "{}", r#"{"a":{"b":[1,2,{}]},"~/":"ü"}"#, &wide] {
        let keeps = [KeepPayload::None, KeepPayload::Hashed, KeepPayload::Full];
        let queries = ["", "a=1&b=2"].into_iter();
        for (keep, query) in queries.flat_map(|query| keeps.map(|keep| (keep, query))) {
            let body_of = if query.is_empty() { json } else { form };
            let (sent, shown) = (body_of(body), json(body));
            let sent = if body.starts_with('{') { &sent } else { &shown };
            let payload = Payload { body: sent, query };
            let kept = KeptPayload::keep(payload, keep, &KEY).expect("JSON");
            let bytes = kept.encode();
            assert_eq!(KeptPayload::decode(&bytes), Ok(kept), "{body}");
            for end in 0..bytes.len() {
                if let Ok(other) = KeptPayload::decode(&bytes[..end]) {
                    assert!(matches!(other, KeptPayload::Full(_)), "{body} cut at {end}");
                }
            }
        }
    }
}

#[test]
fn decoding_refuses_everything_else() {
    let too_large = [&[1, 2], vec![b' '; MAX_BODY_BYTES + 1].as_slice()].concat();
    let bound = |field, value, bound| PayloadError::Bound { field, value, bound };
    check_refused(&[
        (b"", PayloadError::End { offset: 0 }),
        (b"\x01", PayloadError::End { offset: 1 }),
        (b"\x02\x00", PayloadError::Version { version: 2 }),
        (b"\x01\x04", bound("the kind", 4, 3)),
        (b"\x01\x03", PayloadError::End { offset: 2 }),
        (b"\x01\x03\x02\0\0{}", bound("the form flag", 2, 1)),
        (b"\x01\x03\x01\x02\0a", PayloadError::End { offset: 6 }),
        (b"\x01\x03\x01\x01\0\xff{}", PayloadError::Query),
        // There is one encoding of what has neither a form nor a query.
        (b"\x01\x03\0\0\0{}", PayloadError::Query),
        (b"\x01\x00x", PayloadError::Trailing { bytes: 1 }),
        (b"\x01\x01\x02\0\0", bound("the truncated flag", 2, 1)),
        (b"\x01\x01\0\x01\x01", bound("the number of leaves", 257, 256)),
        (b"\x01\x01\0\x01\0\x01\x02", bound("a pointer's length", 513, 512)),
        (b"\x01\x01\0\x01\0\0\x0012345678x", PayloadError::Trailing { bytes: 1 }),
        (b"\x01\x01\0\x01\0\0\x001234567", PayloadError::End { offset: 14 }),
        (b"\x01\x01\0\x01\0\x01\0a12345678", PayloadError::Pointer { leaf: 0 }),
        (b"\x01\x01\0\x01\0\x02\0/~12345678", PayloadError::Pointer { leaf: 0 }),
        (b"\x01\x01\0\x01\0\x02\0/\xff12345678", PayloadError::Pointer { leaf: 0 }),
        (b"\x01\x01\0\x02\0\0\x0012345678\0\x0012345678", PayloadError::Pointer { leaf: 1 }),
        (&too_large, bound("the canonical body's length", MAX_BODY_BYTES + 1, MAX_BODY_BYTES)),
    ]);
}
