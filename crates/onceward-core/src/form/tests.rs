//! URL-encoded forms: what counts as the same fields, and that nothing else does.

use super::*;

fn form(body: &[u8]) -> Option<String> {
    let canonical = urlencoded(body)?.write(&[], Arrays::Ordered)?;
    Some(String::from_utf8(canonical).expect("JSON is text"))
}

#[track_caller]
fn check_forms(table: &[(&str, &str)]) {
    for (body, expected) in table {
        assert_eq!(form(body.as_bytes()).as_deref(), Some(*expected), "{body}");
    }
}

#[test]
fn a07_a_form_counts_by_field() {
    check_forms(&[
        ("", "{}"),
        ("b=2&a=1", r#"{"a":"1","b":"2"}"#),
        ("a=2&b=0&a=1", r#"{"a":["2","1"],"b":"0"}"#),
        // Neither a reader's empty value nor a pair of nothing is left out.
        ("a", r#"{"a":null}"#),
        ("a=", r#"{"a":""}"#),
        ("=1", r#"{"":"1"}"#),
        ("a=1&", r#"{"":null,"a":"1"}"#),
        ("&", r#"{"":[null,null]}"#),
        ("a=b=c", r#"{"a":"b=c"}"#),
        ("a;b=1;2", r#"{"a;b":"1;2"}"#),
        // Percent-encoding stands for bytes, in names too; a plus is a blank, and %2B is none.
        ("%61=%C3%A9+x%2B", "{\"a\":\"é x+\"}"),
        ("a=é", r#"{"a":"é"}"#),
        ("a=%c3%a9", r#"{"a":"é"}"#),
        ("a=%00%0A%22", r#"{"a":"\u0000\n\""}"#),
        ("a%26b=1%3D2", r#"{"a&b":"1=2"}"#),
        ("items[]=1&items[]=2", r#"{"items[]":["1","2"]}"#),
    ]);
}

#[test]
fn a07_a_field_that_is_no_text_is_told_from_every_other() {
    let bodies: [&[u8]; 11] = [
        b"a=%FF",
        b"a=%FE",
        b"a=%25FF",
        b"a=\xEF\xBF\xBD",
        b"%FF=a",
        b"%FE=a",
        b"%00xff=a",
        b"%00%FF=a",
        b"ff=a",
        b"%EF%BF%BD=a",
        b"a=%7B%22bytes%22:1,%22sha256%22:%22\
          a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89%22%7D",
    ];
    let forms: HashSet<_> = bodies.into_iter().map(form).collect();
    assert!(forms.len() == bodies.len() && !forms.contains(&None), "{forms:?}");
    let long = |last: char| format!("a={}{last}", "x".repeat(MAX_INLINE_BYTES - 1));
    assert!(form(long('y').as_bytes()).expect("a form").len() > MAX_INLINE_BYTES);
    let over = |last: char| form(format!("{}{last}", long('x')).as_bytes()).expect("a form");
    assert!(over('y').contains("\"bytes\":16385,") && over('y') != over('z'));
}

#[test]
fn a07_what_is_no_form_has_no_fields() {
    for body in ["%", "a=%", "a=%4", "a=%zz", "a=%+1", "%4=a", "100%=1"] {
        assert_eq!(form(body.as_bytes()), None, "{body}");
    }
    let many = |count: usize| vec!["a=1"; count].join("&");
    assert!(form(many(MAX_FIELDS).as_bytes()).is_some());
    assert_eq!(form(many(MAX_FIELDS + 1).as_bytes()), None);
    assert_eq!(form(&vec![b'a'; MAX_BODY_BYTES + 1]), None);
    // Small fields whose form is too long: control characters are six times as long in JSON.
    let pair = format!("&a={}", "\x01".repeat(MAX_INLINE_BYTES));
    let body = pair.repeat(MAX_BODY_BYTES / pair.len());
    assert!(form(body.as_bytes()).is_none() && body.len() <= MAX_BODY_BYTES);
}

#[test]
fn a07_ignored_fields_are_left_out_by_name() {
    let ignoring = |ignored: &[&str], arrays| {
        let ignored: Vec<_> = ignored.iter().map(ToString::to_string).collect();
        let fields = urlencoded(b"b=1&a/x=2&a=4&a=3&a~=5").expect("a form");
        String::from_utf8(fields.write(&ignored, arrays).expect("short")).expect("text")
    };
    let ordered = Arrays::Ordered;
    assert_eq!(ignoring(&["a"], ordered), r#"{"a/x":"2","a~":"5","b":"1"}"#);
    assert_eq!(ignoring(&["/a", "/b"], ordered), r#"{"a/x":"2","a~":"5"}"#);
    assert_eq!(ignoring(&["/a/x", "a~", "b", "x"], ordered), r#"{"a":["4","3"],"a/x":"2"}"#);
    assert_eq!(ignoring(&["/a~1x", "/a~0", "b"], ordered), r#"{"a":["4","3"]}"#);
    // Where the order of items does not count, that of equal names doesn't.
    assert_eq!(ignoring(&["a/x", "a~", "b"], Arrays::Unordered), r#"{"a":["3","4"]}"#);
}

#[test]
fn a07_fields_of_one_root_count_in_their_order() {
    let forms = |bodies: &[&str]| -> Vec<_> {
        bodies.iter().map(|body| form(body.as_bytes()).expect("a form")).collect()
    };
    for bodies in [
        // Rack: the third field begins another item, or is one of the first.
        &["a[][x]=1&a[][y]=2&a[][x]=3&a[][y]=4", "a[][x]=1&a[][x]=3&a[][y]=2&a[][y]=4"][..],
        // PHP: the last one wins.
        &["a=1&a[]=2", "a[]=2&a=1"],
        &["a.b=1&a=2", "a=2&a.b=1"],
        &["a[%FF]=1&a[b]=2", "a[b]=2&a[%FF]=1"],
    ] {
        let forms = forms(bodies);
        assert_ne!(forms[0], forms[1], "{bodies:?}");
    }
    let same = forms(&["a[x]=1&b=3&a[y]=2", "b=3&a[x]=1&a[y]=2", "a[x]=1&a[y]=2&b=3"]);
    assert!(same.iter().all(|form| *form == same[0]), "{same:?}");
    check_forms(&[("a[x]=1&a=2&a[x]=3", r#"{"\u0000order a":[1,0,1],"a":"2","a[x]":["1","3"]}"#)]);
    // Nor are items mixed up where the order of items does not count.
    let unordered = |body: &[u8]| urlencoded(body).expect("a form").write(&[], Arrays::Unordered);
    assert_ne!(
        unordered(b"a[][x]=1&a[][y]=1&a[][x]=2&a[][y]=2"),
        unordered(b"a[][x]=1&a[][y]=2&a[][x]=2&a[][y]=1")
    );
}
