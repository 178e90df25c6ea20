//! Uploads: what RFC 7578 and RFC 2046 let a retry change, and that nothing else is lost.

use super::*;
use crate::canonical::Arrays;
use crate::form::MAX_FIELDS;

const B: &str = "b0undary";

/// A body of these parts, with its lines as they are.
fn body(boundary: &str, parts: &[&str]) -> String {
    let parts = parts.iter().map(|part| format!("--{boundary}\r\n{part}\r\n"));
    parts.chain([format!("--{boundary}--\r\n")]).collect()
}

fn part(disposition: &str, more: &str, content: &str) -> String {
    format!("Content-Disposition: form-data; {disposition}\r\n{more}\r\n{content}")
}

fn read(boundary: &str, body: &[u8]) -> Option<String> {
    let canonical = parts(body, boundary.as_bytes())?.write(&[], Arrays::Ordered)?;
    Some(String::from_utf8(canonical).expect("JSON is text"))
}

/// The form of one part.
#[track_caller]
fn of(part: &str) -> String {
    read(B, body(B, &[part]).as_bytes()).unwrap_or_else(|| panic!("not well-formed: {part:?}"))
}

#[track_caller]
fn check_same(parts: &[&str]) {
    for part in parts {
        assert_eq!(of(part), of(parts[0]), "{part:?}");
    }
}

#[test]
fn r11_a_part_is_told_by_its_name_file_name_type_and_content() {
    let file = part("name=\"file\"; filename=\"a.txt\"", "Content-Type: text/plain\r\n", "one");
    assert_eq!(of(&file), r#"{"file":{"content":"one","filename":"a.txt","type":"text/plain"}}"#);
    // What says nothing but its content is a field like any other.
    assert_eq!(of(&part("name=\"a\"", "", "1\r\n2")), r#"{"a":"1\r\n2"}"#);
    assert_eq!(of(&part("name=\"a\"", "", "")), r#"{"a":""}"#);
    let two = [&*part("name=a", "", "2"), &*part("name=b", "", "3"), &*part("name=a", "", "1")];
    let form = read(B, body(B, &two).as_bytes());
    assert_eq!(form.as_deref(), Some(r#"{"a":["2","1"],"b":"3"}"#));
    assert_eq!(read(B, body(B, &[]).as_bytes()).as_deref(), Some("{}"));
}

#[test]
fn r11_rfc_2046_section_5_1_1_the_boundary_is_no_part_of_the_content() {
    let file = part("name=\"f\"; filename=\"x\"", "", "a\r\n--b0undar\r\n-- b0undary");
    let plain = read(B, body(B, &[&file]).as_bytes());
    assert!(plain.is_some());
    // Any boundary of up to 70 characters, with all that may stand in one.
    let longest = "x".repeat(70);
    for other in ["x", "a b", "'()+_,-./:=?", &longest, "--b0undary"] {
        assert_eq!(read(other, body(other, &[&file]).as_bytes()), plain, "{other}");
    }
    // Transports may pad delimiters, and the last line may have no end.
    let padded = body(B, &[&file]).replace("--b0undary\r\nC", "--b0undary \t\r\nC");
    assert_eq!(read(B, padded.as_bytes()), plain);
    let padded = padded.replace("--b0undary--\r\n", "--b0undary-- ");
    assert_eq!(read(B, padded.as_bytes()), plain);
    assert_eq!(read(B, format!("\r\n{}", body(B, &[&file])).as_bytes()), plain);
}

#[test]
fn r11_rfc_2046_section_5_1_1_what_lies_around_the_parts_is_not_lost() {
    let plain = body(B, &[&part("name=a", "", "1")]);
    let around = [
        plain.clone(),
        format!("preamble\r\n{plain}"),
        format!("Preamble\r\n{plain}"),
        format!("\r\n\r\n{plain}"),
        format!("{plain}epilogue"),
        format!("{plain}\r\n"),
    ];
    let forms: Vec<_> = around.iter().map(|body| read(B, body.as_bytes())).collect();
    let distinct: std::collections::HashSet<_> = forms.iter().collect();
    assert!(distinct.len() == around.len() && !distinct.contains(&None), "{forms:?}");
    // A field can't say the same.
    let before = part("name=\"\0before\"", "", "preamble");
    assert_eq!(read(B, body(B, &[&before]).as_bytes()), None);
}

#[test]
fn r11_rfc_7578_section_4_2_spelling_that_says_nothing_does_not_count() {
    // RFC 2045: names of headers and parameters in any case, values in quotes or not; RFC 822:
    // headers and parameters in any order, folded lines.
    check_same(&[
        "Content-Disposition: form-data; name=\"a\"; filename=\"f\"\r\nContent-Type: t/x\r\n\r\n1",
        "content-disposition:form-data;name=a;filename=f\r\nCONTENT-TYPE:  t/x \r\n\r\n1",
        "Content-Type: t/x\r\nContent-Disposition: Form-Data; FileName=\"f\"; Name=\"a\"\r\n\r\n1",
        "Content-Disposition: form-data;\r\n name=\"a\";\r\n\tfilename=\"f\" ; \r\n\
         Content-Type: t/x\r\n\r\n1",
    ]);
}

#[test]
fn r11_every_difference_of_a_part_is_kept() {
    let disposition = |disposition: &str| part(disposition, "", "1");
    let headed = |more: &str| part("name=\"a\"", more, "1");
    let parts = [
        disposition("name=\"a\""),
        disposition("name=\"A\""),
        disposition("name=\"\""),
        disposition("name=\"a \""),
        disposition("name=\"a\"; filename=\"\""),
        disposition("name=\"a\"; filename=\"f\""),
        disposition("name=\"a\"; filename=\"F\""),
        // RFC 7578, section 4.2: file names come percent-encoded, escaped or raw; readers decode
        // one, another or none.
        disposition("name=\"a\"; filename=\"%22\""),
        disposition("name=\"a\"; filename=\"\\\"\""),
        disposition("name=\"a\"; filename=\"\u{e9}\""),
        disposition("name=\"a\"; filename*=utf-8''%C3%A9"),
        disposition("name=\"a\"; filename=\"f\"; filename*=utf-8''f"),
        disposition("name=\"a\"; size=1"),
        // Section 4.4: text/plain is what is meant without a type, but not what everyone sees.
        headed("Content-Type: text/plain\r\n"),
        headed("Content-Type: text/plain; charset=utf-8\r\n"),
        headed("Content-Type: \r\n"),
        // Section 4.7: deprecated, so some decode it and some don't.
        headed("Content-Transfer-Encoding: base64\r\n"),
        headed("Content-Transfer-Encoding: 8bit\r\n"),
        // Section 4.8: other headers are to be ignored; whoever does not may mean something.
        headed("X-A: 1\r\n"),
        headed("X-A: 1\r\nX-A: 2\r\n"),
        headed("X-A: 2\r\nX-A: 1\r\n"),
        headed("X-A: 1, 2\r\n"),
        headed("X-A: 1\r\nX-B: 1\r\n"),
        part("name=\"a\"", "", "1\r\n"),
        part("name=\"a\"", "", "\r\n1"),
        part("name=\"a\"", "", "{\"content\":\"1\"}"),
        part("name=\"a\"", "", "null"),
    ];
    let forms: std::collections::HashSet<_> = parts.iter().map(|part| of(part)).collect();
    assert_eq!(forms.len(), parts.len(), "{forms:#?}");
}

#[test]
fn r11_rfc_7578_section_4_3_a_multipart_in_a_part_is_its_content() {
    // The old way to send many files of one field: its inner boundary counts, nothing is nested.
    let inner = |boundary: &str| {
        let typed = format!("Content-Type: multipart/mixed; boundary={boundary}\r\n");
        part("name=\"f\"", &typed, &format!("--{boundary}\r\n\r\nx\r\n--{boundary}--"))
    };
    assert_ne!(of(&inner("x")), of(&inner("y")));
}

#[test]
fn r11_what_readers_may_take_for_something_else_is_not_well_formed() {
    let plain = part("name=\"a\"", "", "1");
    let whole = body(B, &[&plain]);
    assert!(read(B, whole.as_bytes()).is_some());
    let too_long = part("name=\"a\"", &format!("X: {}\r\n", "x".repeat(MAX_HEADER_BYTES)), "1");
    for (why, broken) in [
        ("no body", String::new()),
        ("no delimiter", "a=1".into()),
        ("the end is missing", whole.replace("--\r\n", "\r\n")),
        ("cut", whole[..whole.len() - 5].into()),
        ("bare line feeds", whole.replace("\r\n", "\n")),
        ("a line that goes on", whole.replace("\r\n1", "\r\n1\r\n--b0undaryx\r\n2")),
        ("an end that goes on", whole.replace("--\r\n", "--x")),
        (
            "a part right behind a delimiter",
            whole.replacen("--b0undary\r\n", "--b0undary\r\n--b0undary\r\n", 1),
        ),
        ("no headers", body(B, &["\r\n1"])),
        ("no empty line", body(B, &["Content-Disposition: form-data; name=\"a\""])),
        ("no disposition", body(B, &["Content-Type: text/plain\r\n\r\n1"])),
        ("no name", body(B, &[&part("filename=\"f\"", "", "1")])),
        ("another disposition", body(B, &["Content-Disposition: attachment; name=a\r\n\r\n1"])),
        (
            "two dispositions",
            body(B, &[&part("name=a", "Content-Disposition: form-data; name=b\r\n", "1")]),
        ),
        (
            "two types",
            body(B, &[&part("name=a", "Content-Type: a/b\r\nContent-type: a/c\r\n", "1")]),
        ),
        ("two names", body(B, &[&part("name=a; name=b", "", "1")])),
        ("an open quote", body(B, &[&part("name=\"a", "", "1")])),
        ("a quote that goes on", body(B, &[&part("name=\"a\"b", "", "1")])),
        ("a header without a colon", body(B, &[&part("name=a", "X\r\n", "1")])),
        ("a blank before the colon", body(B, &[&part("name=a", "X : 1\r\n", "1")])),
        ("a bare carriage return", body(B, &[&part("name=a", "X: 1\r2\r\n", "1")])),
        ("a first line that is folded", body(B, &[&format!(" {plain}")])),
        ("headers without an end", body(B, &[&too_long])),
    ] {
        assert_eq!(read(B, broken.as_bytes()), None, "{why}: {broken:?}");
    }
    for boundary in ["", "a ", "a\"", "a;b", &"x".repeat(71)] {
        assert_eq!(read(boundary, body(boundary, &[&plain]).as_bytes()), None, "{boundary:?}");
    }
    let many = |count: usize| read(B, body(B, &vec![&*plain; count]).as_bytes());
    assert!(many(MAX_FIELDS).is_some() && many(MAX_FIELDS + 1).is_none());
}

#[test]
fn a07_parts_of_one_root_and_parts_around_a_file_count_in_their_order() {
    let field = |name: &str| part(&format!("name=\"{name}\""), "", "1");
    let file = |name: &str| part(&format!("name=\"{name}\"; filename=\"f\""), "", "1");
    let (a, b, ax) = (field("a"), field("b"), field("a[x]"));
    let (f, g) = (file("f"), file("g"));
    let form = |parts: &[&str]| read(B, body(B, parts).as_bytes()).expect("an upload");
    for (one, other) in [
        ([&*a, &*ax, &*b], [&*ax, &*a, &*b]),
        // An upload to S3 ignores what comes behind the file.
        ([&*a, &*b, &*f], [&*a, &*f, &*b]),
        ([&*f, &*a, &*g], [&*g, &*a, &*f]),
        ([&*a, &*f, &*g], [&*a, &*g, &*f]),
    ] {
        assert_ne!(form(&one), form(&other), "{one:?}");
    }
    assert_eq!(form(&[&a, &b, &f]), form(&[&b, &a, &f]));
    assert_eq!(form(&[&f, &a, &b]), form(&[&f, &b, &a]));
}

#[test]
fn a07_an_escape_without_quotes_is_read_by_nobody_alike() {
    assert_eq!(read(B, body(B, &[&part("name=a\\b", "", "1")]).as_bytes()), None);
    assert_eq!(of(&part("name=\"a\\b\"", "", "1")), r#"{"a\\b":"1"}"#);
}

#[test]
fn a07_the_parameters_of_a_part_are_few() {
    let of = |count: usize| {
        let params: String = (1..count).map(|param| format!("; p{param}=1")).collect();
        read(B, body(B, &[&part(&format!("name=a{params}"), "", "1")]).as_bytes())
    };
    assert!(of(MAX_PARAMS).is_some() && of(MAX_PARAMS + 1).is_none());
    // As many as the headers of each part hold, in each of as many parts as fit into 8 MiB: all
    // pairs of them took minutes.
    let params: String = (0..2_500).map(|param| format!(";{param:04x}=1")).collect();
    let crowded = part(&format!("name=a{params}"), "", "1");
    let body = body(B, &vec![&*crowded; 400]);
    assert_eq!(read(B, body.as_bytes()), None);
}
