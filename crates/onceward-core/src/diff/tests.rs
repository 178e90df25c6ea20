//! Diffs: which pointers, in which order, with which values, and within which bounds.

use super::*;
use crate::fingerprint::{FingerprintPolicy, canonical_bytes};
use crate::payload::{KeepPayload, MAX_KEPT_LEAVES};

const KEY: [u8; 32] = [3; 32];

fn canonical(body: &str, arrays: Arrays) -> Vec<u8> {
    let policy = FingerprintPolicy { arrays, ..FingerprintPolicy::default() };
    canonical_bytes(body.as_bytes(), &policy).expect("canonical JSON")
}

fn full(old: &str, new: &str, arrays: Arrays) -> Diff {
    let (old, new) = (canonical(old, arrays), canonical(new, arrays));
    diff_full(&old, &new, arrays, &default_mask()).expect("JSON")
}

/// Each change as `+pointer new`, `-pointer old` or `*pointer old -> new`.
fn lines(diff: &Diff) -> Vec<String> {
    let shown = |value: &Option<String>| value.clone().unwrap_or_default();
    let line = |change: &Change| match change.kind {
        ChangeKind::Added => format!("+{} {}", change.pointer, shown(&change.new)),
        ChangeKind::Removed => format!("-{} {}", change.pointer, shown(&change.old)),
        ChangeKind::Changed => {
            format!("*{} {} -> {}", change.pointer, shown(&change.old), shown(&change.new))
        }
    };
    diff.changes.iter().map(line).collect()
}

#[track_caller]
fn check(arrays: Arrays, table: &[(&str, &str, &[&str])]) {
    for (old, new, expected) in table {
        let diff = full(old, new, arrays);
        assert_eq!(&lines(&diff), expected, "{old} {new}");
        assert!(!diff.truncated);
    }
}

fn kept(old: &str, keep: KeepPayload) -> KeptPayload {
    let body = CanonicalBody::Json(canonical(old, Arrays::Ordered));
    KeptPayload::keep(&body, keep, &KEY).expect("JSON")
}

fn pointers(old: &str, new: &str, keep: KeepPayload) -> DifferingPointers {
    let new = CanonicalBody::Json(canonical(new, Arrays::Ordered));
    differing_pointers(&kept(old, keep), &new, Arrays::Ordered, &KEY)
        .expect("JSON")
        .expect("something was kept")
}

#[track_caller]
fn check_hashed(table: &[(&str, &str, &[&str])]) {
    for (old, new, expected) in table {
        let found = pointers(old, new, KeepPayload::Hashed);
        assert_eq!(&found.pointers, expected, "{old} {new}");
        assert!(!found.truncated);
    }
}

#[test]
fn full_diffs_name_each_change_in_canonical_order() {
    check(
        Arrays::Ordered,
        &[
            ("1", "1", &[]),
            ("1", "2", &["* 1 -> 2"]),
            ("1", "\"1\"", &["* 1 -> \"1\""]),
            (r#"{"b":1,"a":2,"c":3}"#, r#"{"a":9,"c":3,"d":4}"#, &["*/a 2 -> 9", "-/b 1", "+/d 4"]),
            (r#"{"a":{"b":[1,2,3]}}"#, r#"{"a":{"b":[1,5]}}"#, &["*/a/b/1 2 -> 5", "-/a/b/2 3"]),
            ("[1]", "[1,{\"x\":null}]", &["+/1 {\"x\":null}"]),
            ("{}", "{\"a\":1}", &["+/a 1"]),
            ("{}", "[]", &["* {} -> []"]),
            (r#"{"a":{"b":1}}"#, r#"{"a":7}"#, &[r#"*/a {"b":1} -> 7"#]),
            (r#"{"m/n":{"a~b":1}}"#, r#"{"m/n":{"a~b":2}}"#, &["*/m~1n/a~0b 1 -> 2"]),
            ("{\"\u{1F600}\":1,\"\u{FB33}\":1}", "{}", &["-/\u{1F600} 1", "-/\u{FB33} 1"]),
            (r#"{"a":"x\ny"}"#, r#"{"a":"x\ty"}"#, &[r#"*/a "x\ny" -> "x\ty""#]),
        ],
    );
}

#[test]
fn e04_unordered_diffs_match_equal_items_first() {
    check(
        Arrays::Unordered,
        &[
            ("[1,2,3]", "[3,1,2]", &[]),
            ("[1,2,3]", "[4,3,2]", &["*/2 1 -> 4"]),
            ("[1,1,2]", "[1,2,2]", &["*/2 1 -> 2"]),
            ("[1,2,3]", "[3]", &["-/0 1", "-/1 2"]),
            ("[3]", "[1,2,3]", &["+/0 1", "+/1 2"]),
            (
                r#"{"items":[{"sku":"A","qty":1},{"sku":"B","qty":2}]}"#,
                r#"{"items":[{"sku":"B","qty":2},{"sku":"A","qty":7}]}"#,
                &["*/items/1/qty 1 -> 7"],
            ),
            // One line is changed and one is added: neither is told as another.
            (
                r#"{"items":[{"sku":"A","qty":1},{"sku":"B","qty":2}]}"#,
                r#"{"items":[{"sku":"A","qty":2},{"sku":"B","qty":2},{"sku":"C","qty":1}]}"#,
                &["*/items/1/qty 1 -> 2", r#"+/items/0 {"qty":1,"sku":"C"}"#],
            ),
            (
                r#"[{"sku":"A","qty":1,"at":"x"},{"sku":"B","qty":2,"at":"y"}]"#,
                r#"[{"sku":"B","qty":3,"at":"y"}]"#,
                &["*/0/qty 2 -> 3", r#"-/0 {"at":"x","qty":1,"sku":"A"}"#],
            ),
            (r#"["a\nb","a","a b"]"#, r#"["a b","a","a\nc"]"#, &[r#"*/2 "a\nb" -> "a\nc""#]),
        ],
    );
}

#[test]
fn e04_pointers_count_by_the_order_that_was_sent() {
    let old = canonical(r#"[{"n":5,"k":"a"},{"n":[2,1],"k":"b"}]"#, Arrays::Unordered);
    for (sent, expected) in [
        (r#"[{"n":5,"k":"a"},{"n":[1,2],"k":"b"}]"#, &[][..]),
        (r#"[{"n":5,"k":"a"},{"n":[3,2],"k":"b"}]"#, &["*/1/n/0 1 -> 3"]),
        (r#"[{"n":[2,3],"k":"b"},{"n":5,"k":"a"}]"#, &["*/0/n/1 1 -> 3"]),
    ] {
        let new = canonical(sent, Arrays::Ordered);
        let diff = diff_full(&old, &new, Arrays::Unordered, &[]).expect("JSON");
        assert_eq!(lines(&diff), expected, "{sent}");
    }
}

#[test]
fn masked_fields_are_hidden_at_any_depth() {
    check(
        Arrays::Ordered,
        &[
            (r#"{"token":"a"}"#, r#"{"token":"b"}"#, &[r#"*/token "***" -> "***""#]),
            (r#"{"token":"a"}"#, r#"{"token":"a"}"#, &[]),
            (r#"{"Password":"a"}"#, "{}", &[r#"-/Password "***""#]),
            ("{}", r#"{"u":{"cvc":123,"n":1}}"#, &[r#"+/u {"cvc":"***","n":1}"#]),
            (r#"{"secret":{"a":1}}"#, r#"{"secret":{"a":2}}"#, &[r#"*/secret "***" -> "***""#]),
            (r#"{"secret":[1]}"#, r#"{"secret":[2]}"#, &[r#"*/secret "***" -> "***""#]),
            ("[1]", r#"[[{"card_number":"4"}]]"#, &[r#"*/0 1 -> [{"card_number":"***"}]"#]),
        ],
    );
}

#[test]
fn full_diffs_are_bounded() {
    let wide = |count: usize, value: u32| format!("[{}]", vec![value.to_string(); count].join(","));
    let exact = full(&wide(MAX_DIFF_CHANGES, 1), &wide(MAX_DIFF_CHANGES, 2), Arrays::Ordered);
    assert_eq!((exact.changes.len(), exact.truncated), (MAX_DIFF_CHANGES, false));
    let more =
        full(&wide(MAX_DIFF_CHANGES + 1, 1), &wide(MAX_DIFF_CHANGES + 1, 2), Arrays::Ordered);
    assert_eq!((more.changes.len(), more.truncated), (MAX_DIFF_CHANGES, true));
    let long = format!("\"{}\"", "x".repeat(MAX_DIFF_VALUE_BYTES - 2));
    assert_eq!(full("1", &long, Arrays::Ordered).changes[0].new.as_ref(), Some(&long));
    let longer = format!("\"{}\"", "x".repeat(MAX_DIFF_VALUE_BYTES - 1));
    let shown = full("1", &longer, Arrays::Ordered).changes[0].new.clone();
    assert_eq!(shown.as_deref(), Some("\"(1025 bytes)\""));
    let named = format!("{{\"{}\":1,\"z\":1}}", "k".repeat(MAX_POINTER_BYTES));
    let diff = full(&named, &named.replace('1', "2"), Arrays::Ordered);
    assert_eq!((lines(&diff), diff.truncated), (vec!["*/z 1 -> 2".to_owned()], true));
}

#[test]
fn hashed_diffs_name_pointers_only() {
    check_hashed(&[
        ("1", "1", &[]),
        ("1", "2", &[""]),
        (r#"{"b":1,"a":2,"c":3}"#, r#"{"a":9,"c":3,"d":4}"#, &["/a", "/d", "/b"]),
        (r#"{"a":{"b":1,"c":2}}"#, r#"{"a":7}"#, &["/a"]),
        (r#"{"a":7}"#, r#"{"a":{"b":1,"c":2}}"#, &["/a"]),
        (r#"{"a":{}}"#, r#"{"a":{"b":1}}"#, &["/a"]),
        (r#"{"a":{}}"#, r#"{"a":[]}"#, &["/a"]),
        (r#"{"a":1,"a!":2}"#, r#"{"a!":2}"#, &["/a"]),
        ("[1,2,3]", "[1,5]", &["/1", "/2"]),
        ("{\"a\":1}", "[]", &[""]),
        ("1", "{\"a\":1}", &[""]),
    ]);
}

#[test]
fn hashed_diffs_admit_what_was_not_kept() {
    let wide = |count: usize, last: u32| format!("[{},{last}]", vec!["0"; count - 1].join(","));
    let found = pointers(&wide(300, 1), &wide(300, 2), KeepPayload::Hashed);
    assert_eq!(found, DifferingPointers { pointers: vec![], truncated: true });
    assert_eq!(found.named(), None, "an empty list would say that nothing differs");
    let found = pointers(&wide(300, 1), "[7]", KeepPayload::Hashed);
    assert_eq!((found.pointers.len(), found.truncated), (MAX_DIFF_CHANGES, true));
    assert_eq!(found.pointers[..2], ["/0", "/1"]);
    let found = pointers("[0]", &wide(MAX_KEPT_LEAVES, 1), KeepPayload::Hashed);
    assert_eq!((found.pointers.len(), found.truncated), (MAX_DIFF_CHANGES, true));
}

#[test]
fn what_can_be_said_follows_what_was_kept() {
    let ask = |kept: &KeptPayload, new: &CanonicalBody<'_>| {
        differing_pointers(kept, new, Arrays::Ordered, &KEY).expect("JSON")
    };
    let new = CanonicalBody::Json(b"{\"a\":2}".to_vec());
    let at = |pointer: &str| {
        Some(DifferingPointers { pointers: vec![pointer.to_owned()], truncated: false })
    };
    assert_eq!(ask(&KeptPayload::None, &new), None);
    assert_eq!(ask(&kept(r#"{"a":1}"#, KeepPayload::Hashed), &new), at("/a"));
    assert_eq!(ask(&kept(r#"{"a":1}"#, KeepPayload::Full), &new), at("/a"));
    let bytes = CanonicalBody::Bytes(b"{\"a\":1}");
    assert_eq!(ask(&kept(r#"{"a":1}"#, KeepPayload::Hashed), &bytes), at(""));
    assert_eq!(ask(&kept(r#"{"a":1}"#, KeepPayload::Full), &bytes), at(""));
    let kept_bytes = KeptPayload::keep(&bytes, KeepPayload::Hashed, &KEY).expect("bytes");
    assert_eq!(ask(&kept_bytes, &bytes), Some(DifferingPointers::default()));
    assert_eq!(ask(&kept_bytes, &CanonicalBody::Bytes(b"{\"a\":2}")), at(""));
    assert_eq!(ask(&kept_bytes, &CanonicalBody::Json(b"{\"a\":1}".to_vec())), at(""));
}

/// What is kept of a form with a query, and the names of what differs from it.
fn form_differs(
    (old, old_query): (&str, &str),
    (new, new_query): (&str, &str),
    keep: KeepPayload,
) -> Vec<String> {
    let form = |text: &str| CanonicalBody::Form(text.as_bytes().to_vec());
    let (old, new) = (form(old), form(new));
    let old = Payload { body: &old, query: old_query };
    let kept = KeptPayload::keep(old, keep, &KEY).expect("fields");
    let new = Payload { body: &new, query: new_query };
    let found = differing_pointers(&kept, new, Arrays::Ordered, &KEY).expect("fields");
    let found = found.expect("something was kept");
    assert!(!found.truncated);
    found.pointers
}

#[test]
fn r11_a_form_differs_by_field_and_a_query_by_its_own() {
    let plain = r#"{"a":"1","file":{"content":"x","filename":"f"},"list":["1","2"]}"#;
    let query = "page=1&size=2";
    for keep in [KeepPayload::Hashed, KeepPayload::Full] {
        let check = |new: &str, new_query: &str, expected: &[&str]| {
            let found = form_differs((plain, query), (new, new_query), keep);
            assert_eq!(found, expected, "{keep:?}: {new} {new_query}");
        };
        check(plain, query, &[]);
        check(&plain.replace("\"1\",\"file", "\"2\",\"file"), query, &["/a"]);
        check(&plain.replace("\"x\"", "\"y\""), query, &["/file"]);
        check(&plain.replace("\"f\"", "\"g\""), query, &["/file"]);
        check(&plain.replace(r#"["1","2"]"#, r#"["2","1"]"#), query, &["/list"]);
        check(&plain.replace(r#"["1","2"]"#, "\"1\""), query, &["/list"]);
        check(plain, "page=2&size=2", &["?page"]);
        check(plain, "page=1", &["?size"]);
        check(plain, "page=1&size=2&a/b=3", &["?a/b"]);
        check(plain, "", &["?page", "?size"]);
        check(plain, "size=2&page=1", &["?"]);
        check(plain, "page=%31&size=2", &["?"]);
        check(plain, "100%", if keep == KeepPayload::Full { &["?"] } else { &["?page", "?size"] });
        check(&plain.replace("\"x\"", "\"y\""), "page=2&size=2", &["/file", "?page"]);
    }
}

#[test]
fn r11_a_body_that_became_another_kind_differs_as_a_whole() {
    let (form, json) = (CanonicalBody::Form(b"{\"a\":\"1\"}".to_vec()), json_body("{\"a\":\"1\"}"));
    let bytes = CanonicalBody::Bytes(b"a=1");
    for (old, new) in [(&form, &json), (&json, &form), (&form, &bytes)] {
        let kept = KeptPayload::keep(old, KeepPayload::Full, &KEY).expect("JSON");
        let found = differing_pointers(&kept, new, Arrays::Ordered, &KEY).expect("JSON");
        assert_eq!(found.expect("kept").pointers, [""], "{old:?} {new:?}");
        let kept = KeptPayload::keep(old, KeepPayload::Hashed, &KEY).expect("JSON");
        let found = differing_pointers(&kept, new, Arrays::Ordered, &KEY).expect("JSON");
        assert!(!found.expect("kept").pointers.is_empty(), "{old:?} {new:?}");
    }
}

fn json_body(text: &str) -> CanonicalBody<'static> {
    CanonicalBody::Json(text.as_bytes().to_vec())
}

#[test]
fn r11_values_of_fields_are_shown_and_masked_in_the_query_too() {
    let form = |text: &str| CanonicalBody::Form(text.as_bytes().to_vec());
    let old = FullPayload {
        body: br#"{"amount":"1","password":"a"}"#.to_vec(),
        is_form: true,
        query: "page=1&token=x".to_owned(),
    };
    let new = form(r#"{"amount":"2","password":"b"}"#);
    let new = Payload { body: &new, query: "page=2&token=y" };
    let mask = default_mask();
    let diff = diff_payloads(&old, new, Arrays::Ordered, &mask).expect("fields");
    let shown: Vec<_> = diff
        .changes
        .iter()
        .map(|change| (&*change.pointer, change.old.as_deref(), change.new.as_deref()))
        .collect();
    let masked = Some(MASKED);
    assert_eq!(
        shown,
        [
            ("/amount", Some("\"1\""), Some("\"2\"")),
            ("/password", masked, masked),
            ("?page", Some("\"1\""), Some("\"2\"")),
            ("?token", masked, masked),
        ]
    );
}

#[test]
fn r11_what_differs_is_said_in_words() {
    let words = |pointers: &[&str]| {
        differs_text(&pointers.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(words(&["/amount"]), "the field amount");
    assert_eq!(words(&["?page"]), "the query field page");
    assert_eq!(words(&[""]), "the body");
    assert_eq!(words(&["?"]), "the query");
    assert_eq!(words(&["/a~1b/0", "?a~1b"]), "the field a/b/0 and the query field a~1b");
    assert_eq!(words(&["/a", "/b", "?c"]), "the field a, the field b and the query field c");
    assert_eq!(
        words(&["/1", "/2", "/3", "/4", "/5", "/6", "/7"]),
        "the field 1, the field 2, the field 3, the field 4, the field 5 and 2 more"
    );
    assert_eq!(words(&["/\0before", ""]), "the body");
    assert_eq!(words(&[]), "nothing that is kept");
}
