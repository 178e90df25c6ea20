//! Forms and uploads: every lawful way to send the same fields has one canonical form, and no two
//! lists of fields share one (contract A07, R11).

#![expect(clippy::expect_used, reason = "a test's helpers may fail the test")]

use std::collections::BTreeMap;

use onceward_core::content_type::ContentType;
use onceward_core::fingerprint::{Body, CanonicalBody, FingerprintPolicy};
use proptest::collection::vec;
use proptest::prelude::*;

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Values by name: what a form is, whatever the order of its names.
fn by_name<T: Clone>(fields: &[(Vec<u8>, T)]) -> BTreeMap<Vec<u8>, Vec<T>> {
    let mut found: BTreeMap<Vec<u8>, Vec<T>> = BTreeMap::new();
    for (name, value) in fields {
        found.entry(name.clone()).or_default().push(value.clone());
    }
    found
}

fn few_bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop::sample::select(&b"ab\0\"\\&=+%{}x0\xc3\xa9\xff\r\n-"[..]);
    vec(byte, 0..4)
}

fn fields() -> impl Strategy<Value = Fields> {
    vec((few_bytes(), few_bytes()), 0..5)
}

/// Other fields, mostly much like the first ones.
fn two() -> impl Strategy<Value = (Fields, Fields)> {
    (fields(), fields(), any::<prop::sample::Index>(), few_bytes(), 0..4_u8).prop_map(
        |(one, other, at, bytes, how)| {
            let mut near = one.clone();
            if near.is_empty() {
                return (one, other);
            }
            let at = at.index(near.len());
            match how {
                0 => near[at].1 = bytes,
                1 => near[at].0 = bytes,
                2 => drop(near.remove(at)),
                _ => near.swap(0, at),
            }
            (one, near)
        },
    )
}

fn encoded(bytes: &[u8], all: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() && !all;
    bytes
        .iter()
        .map(|byte| match byte {
            b' ' if !all => "+".to_owned(),
            byte if plain(*byte) => char::from(*byte).to_string(),
            byte => format!("%{byte:02x}"),
        })
        .collect()
}

fn urlencoded(fields: &Fields, all: bool) -> String {
    let pair = |(name, value): &(Vec<u8>, Vec<u8>)| {
        format!("{}={}", encoded(name, all), encoded(value, all))
    };
    fields.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Moves fields of different names past each other.
fn stirred(mut fields: Fields, by: &[usize]) -> Fields {
    for at in by {
        let at = at % fields.len().saturating_sub(1).max(1);
        if fields.len() > 1 && fields[at].0 != fields[at + 1].0 {
            fields.swap(at, at + 1);
        }
    }
    fields
}

fn form(body: &[u8]) -> CanonicalBody<'_> {
    let media_type = ContentType::parse(b"application/x-www-form-urlencoded");
    CanonicalBody::of_type(body, &media_type, &FingerprintPolicy::default()).expect("a form")
}

/// A part: what is written in quotes stands there raw.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    file_name: Option<String>,
    media_type: Option<String>,
    header: Option<String>,
    content: Vec<u8>,
}

fn parts() -> impl Strategy<Value = Vec<(Vec<u8>, Part)>> {
    let text = || prop::option::of(prop::sample::select(vec!["", "a", "b", "a; name=b", "%22"]));
    let text = move || text().prop_map(|text| text.map(str::to_owned));
    let part = (text(), text(), text(), few_bytes()).prop_map(
        |(file_name, media_type, header, content)| Part { file_name, media_type, header, content },
    );
    let name = prop::sample::select(vec!["a", "b", ""]).prop_map(|name| name.as_bytes().to_vec());
    vec((name, part), 0..4)
}

/// How many files come before each part: some readers ignore what comes behind one.
fn files_before(parts: &[(Vec<u8>, Part)]) -> Vec<(Vec<u8>, usize)> {
    let mut files = 0;
    let before = |(name, part): &(Vec<u8>, Part)| {
        let before = (name.clone(), files);
        files += usize::from(part.file_name.is_some());
        before
    };
    parts.iter().map(before).collect()
}

fn multipart(parts: &[(Vec<u8>, Part)], boundary: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, part) in parts {
        let name = String::from_utf8_lossy(name);
        body.extend(
            format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"").bytes(),
        );
        for (before, text) in [
            ("; filename=\"", part.file_name.as_ref().map(|name| format!("{name}\""))),
            ("\r\nContent-Type: ", part.media_type.clone()),
            ("\r\nX-A: ", part.header.clone()),
        ] {
            body.extend(text.map(|text| format!("{before}{text}")).unwrap_or_default().bytes());
        }
        body.extend(b"\r\n\r\n");
        body.extend(&part.content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").bytes());
    body
}

fn upload<'b>(body: &'b [u8], boundary: &str) -> CanonicalBody<'b> {
    let media_type = format!("multipart/form-data; boundary=\"{boundary}\"");
    let media_type = ContentType::parse(media_type.as_bytes());
    CanonicalBody::of_type(body, &media_type, &FingerprintPolicy::default()).expect("an upload")
}

proptest! {
    #[test]
    fn a07_a_form_has_one_form_in_every_spelling_and_order(
        fields in fields(), by in vec(0..8_usize, 0..8), all: bool,
    ) {
        let one = urlencoded(&fields, false);
        let other = urlencoded(&stirred(fields, &by), all);
        prop_assert!(matches!(form(one.as_bytes()), CanonicalBody::Form(_)));
        prop_assert_eq!(form(one.as_bytes()), form(other.as_bytes()));
    }

    #[test]
    fn a07_forms_share_a_form_exactly_when_they_have_the_same_fields((one, two) in two()) {
        let (sent_one, sent_two) = (urlencoded(&one, false), urlencoded(&two, true));
        let same = by_name(&one) == by_name(&two);
        prop_assert_eq!(form(sent_one.as_bytes()) == form(sent_two.as_bytes()), same);
    }

    #[test]
    fn r11_an_upload_has_one_form_for_every_boundary(parts in parts(), tail in "[0-9a-f]{1,32}") {
        let (one, two) = (format!("----One{tail}"), format!("{tail}Two"));
        let (sent_one, sent_two) = (multipart(&parts, &one), multipart(&parts, &two));
        let (read_one, read_two) = (upload(&sent_one, &one), upload(&sent_two, &two));
        prop_assert!(matches!(read_one, CanonicalBody::Multipart(_)), "{parts:?}");
        prop_assert_eq!(read_one.fingerprint(), read_two.fingerprint());
    }

    #[test]
    fn r11_uploads_share_a_form_exactly_when_they_have_the_same_parts(
        one in parts(), other in parts(), at in any::<prop::sample::Index>(), replace: bool,
    ) {
        let mut two = other.clone();
        if replace && !one.is_empty() {
            two.clone_from(&one);
            let at = at.index(one.len());
            match other.first() {
                Some(part) => two[at] = part.clone(),
                None => drop(two.remove(at)),
            }
        }
        let (sent_one, sent_two) = (multipart(&one, "One"), multipart(&two, "Two"));
        let same = by_name(&one) == by_name(&two)
            && by_name(&files_before(&one)) == by_name(&files_before(&two));
        prop_assert_eq!(upload(&sent_one, "One") == upload(&sent_two, "Two"), same);
    }

    #[test]
    fn a07_no_bytes_panic_as_a_form_and_what_is_read_is_json(
        body in vec(prop::sample::select(&b"a=&+%4\xff\0\r\n-b:; \"\\"[..]), 0..60),
        content_type in vec(prop::sample::select(&b"a/=;\"\\ boundry\xff"[..]), 0..30),
    ) {
        let mut types = vec![content_type.clone()];
        types.push([b"multipart/form-data; boundary=b; ", &content_type[..]].concat());
        for (media_type, form) in
            types.iter().flat_map(|one| [Body::Form, Body::Multipart].map(|form| (one, form)))
        {
            let media_type = ContentType::parse(media_type);
            let policy = FingerprintPolicy { body: form, ..FingerprintPolicy::default() };
            let read = CanonicalBody::of_type(&body, &media_type, &policy).expect("no JSON");
            let _ = read.compared_type(&media_type);
            if let CanonicalBody::Form(json) | CanonicalBody::Multipart(json) = read {
                let again = CanonicalBody::new(&json, &FingerprintPolicy::default());
                prop_assert_eq!(again, Ok(CanonicalBody::Json(json.clone())), "not canonical");
            }
        }
    }
}
