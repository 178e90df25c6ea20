//! Merge patches (RFC 7396) on JSON as it was sent: numbers and texts keep their spelling.
//!
//! Rule: one pass over both sides, whatever they hold, and nothing is taken that has more than one
//! meaning (`canonical.rs` says what that is). Recursion ends at `MAX_JSON_DEPTH`.

use std::cmp::Ordering;

use crate::canonical::CanonicalError;
use crate::json::{Node, Tape, key_order};

/// What becomes of a value when a patch is merged into it; members come in canonical order.
///
/// # Errors
/// When one of the two is not JSON, or none with one meaning.
pub fn merge_patch(target: Option<&[u8]>, patch: &[u8]) -> Result<Vec<u8>, CanonicalError> {
    let target = target.map(Tape::parse).transpose()?;
    let patch = Tape::parse(patch)?;
    let mut out = Vec::with_capacity(patch.source_len());
    merge(target.as_ref().map(|tape| (tape, 0)), (&patch, 0), &mut out);
    Ok(out)
}

/// A value on its tape.
type Place<'t, 'a> = (&'t Tape<'a>, usize);

/// Appends the merged value.
fn merge(target: Option<Place<'_, '_>>, (patch, at): Place<'_, '_>, out: &mut Vec<u8>) {
    if !matches!(patch.node(at), Node::Object { .. }) {
        out.extend_from_slice(patch.source(at));
        return;
    }
    // What is no object is replaced: it has no members.
    let mut kept = target.map(|(tape, at)| (tape, tape.members(at).peekable()));
    let mut changes = patch.members(at).peekable();
    let start = out.len();
    out.push(b'{');
    loop {
        let next = kept.as_mut().and_then(|(tape, keys)| Some((*tape, *keys.peek()?)));
        let order = match (next, changes.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((tape, key)), Some(change)) => {
                key_order(tape.text_bytes(key), patch.text_bytes(*change))
            }
        };
        // A member that is there already, or is now; then the change to it.
        let there = next.filter(|_| order.is_le());
        let change = if order.is_ge() { changes.next() } else { None };
        if let (Some(_), Some((_, keys))) = (there, kept.as_mut()) {
            keys.next();
        }
        write_member(there, change.map(|key| (patch, key)), out, start);
    }
    out.push(b'}');
}

/// Appends a member, unless the change takes it away. Keys come with their values behind them.
fn write_member(
    there: Option<Place<'_, '_>>,
    change: Option<Place<'_, '_>>,
    out: &mut Vec<u8>,
    object: usize,
) {
    if change.is_some_and(|(tape, key)| tape.source(key + 1) == b"null") {
        return;
    }
    let Some((tape, key)) = there.or(change) else { return };
    if out.len() > object + 1 {
        out.push(b',');
    }
    out.extend_from_slice(tape.source(key));
    out.push(b':');
    match change {
        None => out.extend_from_slice(tape.source(key + 1)),
        Some((patch, change)) => {
            merge(there.map(|(tape, key)| (tape, key + 1)), (patch, change + 1), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canonical::MAX_JSON_DEPTH;

    #[track_caller]
    fn check(before: Option<&str>, patch: &str, after: &str) {
        let merged = merge_patch(before.map(str::as_bytes), patch.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(merged).unwrap(), after, "{before:?} + {patch}");
    }

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn a_patch_is_merged() {
        for (before, patch, after) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            check(Some(before), patch, after);
        }
        check(None, r#"{"a":{"b":null}}"#, r#"{"a":{}}"#);
    }

    #[test]
    fn what_is_not_changed_keeps_its_spelling_and_names_are_compared_unescaped() {
        check(
            Some(r#" { "n" : 1.50, "z":[ 1 ,2e0], "\u0061":{"x":1} } "#),
            r#"{"b":18446744073709551617,"a":{"y":0.10}}"#,
            "{\"\\u0061\":{\"x\":1,\"y\":0.10},\"b\":18446744073709551617,\"n\":1.50,\
             \"z\":[ 1 ,2e0]}",
        );
    }

    #[test]
    fn what_has_no_one_meaning_is_refused_and_the_deepest_is_merged() {
        for bad in ["", "{\"a\":1,\"a\":2}", "{\"a\":1e400}", "{\"a\":}"] {
            merge_patch(None, bad.as_bytes()).unwrap_err();
            merge_patch(Some(bad.as_bytes()), b"{}").unwrap_err();
        }
        let deep = |levels: usize| format!("{}1{}", "{\"\":".repeat(levels), "}".repeat(levels));
        let deepest = deep(MAX_JSON_DEPTH);
        check(Some(&deepest), &deepest, &deepest);
        merge_patch(None, deep(MAX_JSON_DEPTH + 1).as_bytes()).unwrap_err();
    }
}
