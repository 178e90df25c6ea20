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
