//! Methods and paths that a request asks to be taken for: many frameworks serve a POST as the
//! DELETE that a header or a query names, and some old ones the path that a header names. In a
//! form's field they are not looked for: that is the body's.

use http::{HeaderMap, Method};

use super::headers::as_services_read;
use super::readings::undone;

/// Headers that name another method.
const HEADERS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
/// Headers that name another path: IIS's rewriting sets them, Symfony and Zend took them for it.
const PATHS: [&str; 2] = ["x-original-url", "x-rewrite-url"];
/// The name of the query's field, without its first character: PHP reads `.` and a blank as `_`.
const FIELD: &str = "method";

/// The paths that a request names beside its own.
pub(super) fn rewrites(headers: &HeaderMap) -> Vec<String> {
    let is_long = |name: &str| PATHS.iter().any(|known| known.len() == name.len());
    let named = headers
        .iter()
        .filter(|(name, _)| is_long(name.as_str()) && PATHS.contains(&&*as_services_read(name)));
    named.filter_map(|(_, value)| path_of(&String::from_utf8_lossy(value.as_bytes()))).collect()
}

/// The path of a URL, or of what is one without scheme and host.
fn path_of(url: &str) -> Option<String> {
    let url = url.split(['?', '#']).next().unwrap_or_default().trim();
    let path = match url.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => url,
    };
    match path {
        "" => None,
        path if path.starts_with('/') => Some(path.into()),
        path => Some(format!("/{path}")),
    }
}

/// The methods that a request names beside its own, but those that only read.
pub(super) fn overrides(headers: &HeaderMap, query: Option<&str>) -> Vec<Method> {
    let mut named = Vec::new();
    // Nearly always there is none: no header is looked up that can't be one.
    let is_long = |name: &str| HEADERS.iter().any(|known| known.len() == name.len());
    for (name, value) in headers.iter().filter(|(name, _)| is_long(name.as_str())) {
        if HEADERS.contains(&&*as_services_read(name)) {
            let text = String::from_utf8_lossy(value.as_bytes());
            text.split(',').for_each(|word| push(&mut named, word));
        }
    }
    for field in query.unwrap_or_default().split(['&', ';']) {
        if field.len() <= FIELD.len() {
            continue;
        }
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let name = decoded(name);
        // PHP takes a name up to there.
        let name = name.split('\0').next().unwrap_or_default();
        let mut rest = name.trim_start().chars();
        let first = rest.next().is_some_and(|first| "_.[".contains(first));
        if first && rest.as_str().trim_end().eq_ignore_ascii_case(FIELD) {
            push(&mut named, &decoded(value));
        }
    }
    named
}

fn push(named: &mut Vec<Method>, word: &str) {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS];
    let meant = Method::from_bytes(word.trim().to_ascii_uppercase().as_bytes()).ok();
    if let Some(method) = meant.filter(|method| !reads.contains(method) && !named.contains(method))
    {
        named.push(method);
    }
}

/// A name or value of a query as text.
fn decoded(text: &str) -> String {
    String::from_utf8_lossy(&undone(&text.replace('+', " "))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[track_caller]
    fn check(header: Option<(&'static str, &str)>, query: Option<&str>, expected: &[&str]) {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            let value = HeaderValue::from_str(value).unwrap();
            headers.insert(HeaderName::from_static(name), value);
        }
        let named = overrides(&headers, query);
        let named: Vec<_> = named.iter().map(Method::as_str).collect();
        assert_eq!(named, expected, "{header:?} {query:?}");
    }

    #[test]
    fn h1_paths_that_a_request_names_are_found() {
        for (name, value, expected) in [
            ("x-original-url", "/admin?a=b", Some("/admin")),
            ("x_original_url", "/admin", Some("/admin")),
            ("x-rewrite-url", "https://host/a/b#c", Some("/a/b")),
            ("x-rewrite-url", "https://host?c", Some("/")),
            ("x-rewrite-url", "admin", Some("/admin")),
            ("x-rewrite-url", "", None),
            ("x-rewritten-url", "/admin", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            assert_eq!(rewrites(&headers).first().map(String::as_str), expected, "{name} {value}");
        }
    }

    #[test]
    fn h1_methods_that_a_request_names_are_found() {
        for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
            for value in ["DELETE", "delete", " Delete ", "GET, delete"] {
                check(Some((name, value)), None, &["DELETE"]);
            }
            check(Some((name, "GET")), None, &[]);
            check(Some((name, "")), None, &[]);
        }
        check(Some(("x_http_method_override", "put")), None, &["PUT"]);
        check(Some(("x-other", "put")), None, &[]);
        check(Some(("x-http-methods", "put")), None, &[]);
        for query in [
            "_method=patch",
            "a=b&_method=PATCH",
            "a;_method=PATCH",
            "%5Fmethod=PATCH",
            "%5fm%65thod=%50ATCH",
            "_METHOD=+patch",
            ".method=patch",
            "%20_method=patch",
            "+.method=patch",
            "_method%00=patch",
            "_method%00x=patch",
        ] {
            check(None, Some(query), &["PATCH"]);
        }
        for query in ["", "_method", "_method=", "method=PUT", "x_method=PUT", "a=_method=PUT", "%"]
        {
            check(None, Some(query), &[]);
        }
        check(Some(("x-http-method", "put")), Some("_method=put&_method=post"), &["PUT", "POST"]);
    }
}
