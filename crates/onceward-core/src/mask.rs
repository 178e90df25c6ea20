//! Masked values: what is hidden of a stored body before it is kept in full, and wherever one is
//! shown.
//!
//! Rule: the value of a member whose name is masked is hidden as a whole, at whatever depth. What
//! is kept has a keyed hash in its place, so that a later payload can be told from it; what is
//! shown has nothing. Which names are masked is the policy's to say.

use std::borrow::Cow;
use std::ops::Range;

use crate::canonical::{Arrays, CanonicalError, Form, MASKED, is_masked};
use crate::form::decoded;
use crate::json::{Node, Tape};
use crate::payload::masked_hash;

/// A canonical body as it is kept: masked values are hashes under this key. None when it has no
/// masked member.
///
/// # Errors
/// When the body is not canonical JSON.
pub fn mask_kept(
    canonical: &[u8],
    mask: &[String],
    arrays: Arrays,
    key: &[u8; 32],
) -> Result<Option<Vec<u8>>, CanonicalError> {
    let tape = Tape::parse(canonical)?;
    let hidden = hidden(&tape, mask);
    if hidden.is_empty() {
        return Ok(None);
    }
    // Hashed without the order of items: who compares may have another one.
    let plain = Form { ignore: &[], mask: &[], arrays: Arrays::Unordered, skip: Vec::new() };
    let mut hashes = Vec::with_capacity(hidden.len());
    for member in &hidden {
        let value = plain.document(&Tape::parse(&canonical[member.value.clone()])?)?;
        let hash = masked_hash(key, &member.name, &value);
        let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        hashes.push(format!("\"***{digits}\""));
    }
    let masked = spliced(canonical, &hidden, hashes.iter().map(String::as_str));
    // Items may stand in another order now.
    let form = Form { ignore: &[], mask: &[], arrays, skip: Vec::new() };
    form.document(&Tape::parse(&masked)?).map(Some)
}

/// Whether a field's value, as text, seems to have a masked value in it: JSON, XML or a form in a
/// field of a form. Nothing of it can be hidden where it stands.
///
/// # Errors
/// When the form is not canonical JSON.
pub fn has_masked_text(form: &[u8], mask: &[String]) -> Result<bool, CanonicalError> {
    let tape = Tape::parse(form)?;
    Ok(!mask.is_empty() && texts(&tape, 0, &|text| *mask_shown(text, mask) != *text))
}

/// Whether one of the texts in a value is such a one. Recursion ends at `MAX_JSON_DEPTH`.
fn texts(tape: &Tape<'_>, at: usize, is_one: &impl Fn(&[u8]) -> bool) -> bool {
    match tape.node(at) {
        Node::Object { .. } => tape.members(at).any(|key| texts(tape, key + 1, is_one)),
        Node::Array { .. } => tape.items(at).any(|item| texts(tape, item, is_one)),
        Node::Text { .. } | Node::Escaped { .. } => is_one(tape.text_bytes(at)),
        _ => false,
    }
}

/// A stored body as people may see it. One that is no JSON with one meaning is hidden as a whole
/// when a masked name seems to have a value in it.
#[must_use]
pub fn mask_shown<'b>(stored: &'b [u8], mask: &[String]) -> Cow<'b, [u8]> {
    let Ok(tape) = Tape::parse(stored) else {
        let named = mask.iter().any(|name| has_value(stored, name.as_bytes()));
        return if named { Cow::Borrowed(b"***") } else { Cow::Borrowed(stored) };
    };
    match hidden(&tape, mask) {
        hidden if hidden.is_empty() => Cow::Borrowed(stored),
        hidden => Cow::Owned(spliced(stored, &hidden, std::iter::repeat(MASKED))),
    }
}

/// A stored query as people may see it: the values of masked fields are hidden.
#[must_use]
pub fn mask_query(query: &str, mask: &[String]) -> String {
    masked_query(query, mask, |_| "***".into())
}

/// A query as it is kept: masked values are hashes under this key.
#[must_use]
pub fn mask_kept_query(query: &str, mask: &[String], key: &[u8; 32]) -> String {
    masked_query(query, mask, |value| {
        let hash = masked_hash(key, b"?", value.as_bytes());
        hash.iter().fold("***".into(), |shown, byte| format!("{shown}{byte:02x}"))
    })
}

fn masked_query(query: &str, mask: &[String], hide: impl Fn(&str) -> String) -> String {
    let shown = query.split('&').map(|pair| match pair.split_once('=') {
        // A name that can't be read may be any.
        Some((name, value))
            if decoded(name.as_bytes()).is_none_or(|name| is_masked(mask, &name)) =>
        {
            format!("{name}={}", hide(value))
        }
        _ => pair.to_owned(),
    });
    shown.collect::<Vec<_>>().join("&")
}

/// A member whose value is hidden.
struct Hidden {
    name: Vec<u8>,
    value: Range<usize>,
}

/// The masked members of a document, in the order in which they stand in it.
fn hidden(tape: &Tape<'_>, mask: &[String]) -> Vec<Hidden> {
    let mut found = Vec::new();
    if !mask.is_empty() {
        find(tape, 0, mask, &mut found);
    }
    found.sort_by_key(|member| member.value.start);
    found
}

/// Recursion ends at `MAX_JSON_DEPTH`.
fn find(tape: &Tape<'_>, at: usize, mask: &[String], found: &mut Vec<Hidden>) {
    match tape.node(at) {
        Node::Object { .. } => {
            for key in tape.members(at) {
                let name = tape.text_bytes(key);
                if is_masked(mask, name) {
                    let (name, value) = (name.to_vec(), tape.source_range(key + 1));
                    found.push(Hidden { name, value });
                } else {
                    find(tape, key + 1, mask, found);
                }
            }
        }
        Node::Array { .. } => tape.items(at).for_each(|item| find(tape, item, mask, found)),
        _ => {}
    }
}

/// The body with these texts in place of what is hidden, one each.
fn spliced<'t>(body: &[u8], hidden: &[Hidden], shown: impl Iterator<Item = &'t str>) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut from = 0;
    for (member, shown) in hidden.iter().zip(shown) {
        out.extend_from_slice(&body[from..member.value.start]);
        out.extend_from_slice(shown.as_bytes());
        from = member.value.end;
    }
    out.extend_from_slice(&body[from..]);
    out
}

/// Whether a name stands in a text with something behind it that starts a value: `name=`, `name:`,
/// `"name"`, `<name>`, `[name]`, `%5Bname%5D`. Of a text that nobody
/// can read, more is hidden rather than less.
fn has_value(text: &[u8], name: &[u8]) -> bool {
    !name.is_empty()
        && text.windows(name.len() + 1).any(|window| {
            let (found, behind) = window.split_at(name.len());
            found.eq_ignore_ascii_case(name) && b"=:>\"']%".contains(&behind[0])
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::default_mask;

    const KEY: [u8; 32] = [7; 32];

    #[test]
    fn m5_masked_values_are_hidden_at_any_depth_and_the_rest_stays_as_it_is() {
        let shown = |text: &str| {
            let shown = mask_shown(text.as_bytes(), &default_mask()).into_owned();
            String::from_utf8(shown).unwrap()
        };
        for (stored, expected) in [
            (r#"{"a": 1.50, "b":"x"}"#, r#"{"a": 1.50, "b":"x"}"#),
            (r#"{"card_number":"4242","a": 1}"#, r#"{"card_number":"***","a": 1}"#),
            (r#"{"z":[{"PassWord":{"deep":[1]}}], "cvc":7}"#, {
                r#"{"z":[{"PassWord":"***"}], "cvc":"***"}"#
            }),
            (r#"[{"token":null},{"b":{"secret":true}}]"#, {
                r#"[{"token":"***"},{"b":{"secret":"***"}}]"#
            }),
            (r#""password""#, r#""password""#),
            ("it says: invalid token", "it says: invalid token"),
            // Nobody can tell what a reader makes of these.
            (r#"{"password":"a","password":"b"}"#, "***"),
            ("name=ada&Password=hunter2", "***"),
            ("<secret>x</secret>", "***"),
            ("", ""),
        ] {
            assert_eq!(shown(stored), expected, "{stored}");
        }
        let long = format!("{{\"a\":1e400,\"cvc\":{}}}", 123);
        assert_eq!(shown(&long), "***");
        assert_eq!(mask_shown(b"\xff\xfe", &default_mask()), &b"\xff\xfe"[..]);
        assert_eq!(mask_shown(br#"{"cvc":1}"#, &[]), &br#"{"cvc":1}"#[..]);
    }

    #[test]
    fn m5_a_query_is_shown_without_the_values_of_masked_fields() {
        let shown = |query: &str| mask_query(query, &default_mask());
        assert_eq!(
            shown("page=1&%74oken=a%3Db&Token=&token&x"),
            "page=1&%74oken=***&Token=***&token&x"
        );
        assert_eq!((shown(""), shown("%4=1&a=%4")), (String::new(), "%4=***&a=%4".to_owned()));
        assert_eq!(mask_query("token=a", &[]), "token=a");
        let kept = |query: &str| mask_kept_query(query, &default_mask(), &KEY);
        assert_eq!(kept("page=1"), "page=1");
        assert!(kept("token=hunter2").starts_with("token=***") && kept("token=a").len() == 25);
        assert_ne!(kept("token=a"), kept("token=b"));
    }

    #[test]
    fn m5_what_is_kept_tells_values_apart_and_holds_none() {
        let kept = |text: &str| mask_kept(text.as_bytes(), &default_mask(), Arrays::Ordered, &KEY);
        assert_eq!(kept(r#"{"a":1}"#).unwrap(), None);
        let one = kept(r#"{"a":1,"cvc":"123"}"#).unwrap().unwrap();
        let text = String::from_utf8(one.clone()).unwrap();
        assert!(text.starts_with(r#"{"a":1,"cvc":"***"#) && !text.contains("123\""), "{text}");
        assert_eq!(text.len(), r#"{"a":1,"cvc":"***0123456789abcdef"}"#.len());
        assert_eq!(kept(r#"{"a":1,"cvc":"123"}"#).unwrap().unwrap(), one);
        for other in [r#"{"a":1,"cvc":"124"}"#, r#"{"a":1,"cvc":123}"#, r#"{"a":1,"token":"123"}"#]
        {
            assert_ne!(kept(other).unwrap().unwrap(), one, "{other}");
        }
        let other_key =
            mask_kept(br#"{"a":1,"cvc":"123"}"#, &default_mask(), Arrays::Ordered, &[8; 32]);
        assert_ne!(other_key.unwrap().unwrap(), one);
        // Items whose order does not count are in order again, whatever their hashes are.
        let mask = default_mask();
        let items = br#"[{"cvc":1},{"cvc":2},{"cvc":3},{"cvc":4},{"cvc":5}]"#;
        let sorted = mask_kept(items, &mask, Arrays::Unordered, &KEY).unwrap().unwrap();
        let items: Vec<&[u8]> = sorted[1..sorted.len() - 1].split(|byte| *byte == b',').collect();
        assert!(items.is_sorted(), "{}", String::from_utf8_lossy(&sorted));
    }

    #[test]
    fn m5_a_step_of_a_name_is_masked_as_a_name_is() {
        let mask = default_mask();
        for name in ["user[password]", "card[CVC]", "user.password", "a[][token]", "secret[x]"] {
            assert_eq!(mask_query(&format!("{name}=x&a=1"), &mask), format!("{name}=***&a=1"));
            let form = format!("{{\"{name}\":[\"x\",\"y\"]}}");
            let shown = format!("{{\"{name}\":\"***\"}}");
            assert_eq!(mask_shown(form.as_bytes(), &mask), shown.as_bytes(), "{name}");
        }
        assert_eq!(mask_query("user%5Bpassword%5D=x", &mask), "user%5Bpassword%5D=***");
        for name in ["user[passwords]", "a[]", "a.b", "[]"] {
            assert_eq!(mask_query(&format!("{name}=x"), &mask), format!("{name}=x"));
        }
        for text in ["%zz&user[password]=x", "%zz&user%5Bpassword%5D=x"] {
            assert_eq!(mask_shown(text.as_bytes(), &mask), &b"***"[..], "{text}");
        }
    }

    #[test]
    fn m5_masked_names_are_found_in_the_text_of_a_field() {
        let has = |form: &str| has_masked_text(form.as_bytes(), &default_mask()).unwrap();
        for form in [
            r#"{"a":{"content":"{\"password\":\"x\"}","type":"application/json"}}"#,
            r#"{"a":["1","{\"pass\\u0077ord\":1}"]}"#,
            r#"{"a":"<token>x</token>"}"#,
            r#"{"a":"b=1&cvc=2"}"#,
        ] {
            assert!(has(form), "{form}");
        }
        for form in [r#"{"a":"1","b":["password"]}"#, r#"{"a":{"content":"{\"b\":1}"}}"#, "{}"] {
            assert!(!has(form), "{form}");
        }
    }
}
