//! Paths that are read in two ways: as they stand here, and tidied up behind us.
//!
//! Routes are matched as they are sent, segment by segment. Many servers (nginx, Envoy and most
//! frameworks, each in its own measure) first resolve `.` and `..`, encoded or not, and make one
//! slash of several. A path that becomes a protected one that way would be served there without
//! key, permission and limit, so it is refused. What matches no route either way is passed on as it
//! came. Of an upstream with a path in front, nobody climbs out.

use http::Method;
use onceward::http::{Routes, one_spelling};

/// Why a path can't be passed on.
pub(super) fn ambiguous(method: &Method, path: &str, routes: &Routes) -> Option<&'static str> {
    // Nearly always there is nothing to tidy up.
    let plain = |segment: &str| !segment.is_empty() && dots(segment).is_none();
    let mut segments = path.strip_prefix('/')?.split('/');
    let last = segments.next_back()?;
    if segments.all(plain) && dots(last).is_none() {
        return None;
    }
    let Some(tidied) = tidied(path) else {
        return Some("its path climbs above the root: send it without `..`");
    };
    let is_written = routes.list().next().is_some();
    (is_written && routes.find(method, &tidied).is_some()).then_some(
        "its path would be a protected one without `.`, `..` and empty segments: send it without \
         them",
    )
}

/// A path as those behind us may read it; none when it climbs above the root.
fn tidied(path: &str) -> Option<String> {
    let mut kept: Vec<&str> = Vec::new();
    let mut is_open = false;
    for segment in path.split('/') {
        match dots(segment) {
            Some(2) => {
                kept.pop()?;
            }
            Some(_) => {}
            None if segment.is_empty() => {}
            None => kept.push(segment),
        }
        is_open = segment.is_empty() || dots(segment).is_some();
    }
    let end = if is_open && !kept.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", kept.join("/")))
}

/// How many dots a segment consists of, if it is one that stands for a place.
fn dots(segment: &str) -> Option<usize> {
    match &*one_spelling(segment) {
        "." => Some(1),
        ".." => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onceward::http::{Policy, Route};

    #[test]
    fn a_path_that_is_protected_once_tidied_up_is_refused() {
        let route = |text| Route::new(text, Policy::default()).unwrap();
        let routes = Routes::written(vec![route("POST /dot/x"), route("POST /v1/{id}")]);
        let why = |path| ambiguous(&Method::POST, path, &routes);
        for twice in [
            "/dot/./x",
            "/dot/y/../x",
            "//dot/x",
            "/dot//x",
            "/dot/%2e/x",
            "/dot/y/%2E%2e/x",
            "/./dot/x",
            "/a/../v1/7",
            "/v1/./7",
            "/../dot/x",
            "/dot/x/../../..",
        ] {
            assert!(why(twice).is_some(), "{twice}");
        }
        for once in [
            "/",
            "/dot/x",
            "/dot/x/",
            "/v1/7",
            "/v1/a.b",
            "/v1/...",
            "/v1/.a",
            "/x//y",
            "/x/./y",
            "/fetch/http://dot/x",
            "*",
            "/dot/x/.",
            "/v1/7//",
        ] {
            assert_eq!(why(once), None, "{once}");
        }
        assert_eq!(ambiguous(&Method::GET, "/dot/./x", &routes), None, "never protected");
        let every = Routes::every(Policy::unwritten()).unwrap();
        assert_eq!(ambiguous(&Method::POST, "/dot/./x", &every), None, "protected as it stands");
    }
}
