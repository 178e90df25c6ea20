//! Which readings of a request match what: the table of habits, cases by hand, and random paths
//! read by random servers.

use std::fmt::Write as _;

use onceward::http::{Policy, Route};
use proptest::prelude::*;

use super::super::readings::{DECODINGS_MAX, Habit, TABLE};
use super::super::settings::EncodedSlash;
use super::*;

const STRICT: PathRules =
    PathRules { encoded_slash: EncodedSlash::Separator, spelling: Spelling::Strict };
const EXACT: PathRules = PathRules { encoded_slash: EncodedSlash::Data, spelling: Spelling::Exact };

const ROUTES: [&str; 9] = [
    "POST /pay/special",
    "POST /pay/{id}",
    "DELETE /pay/{id}",
    "POST /users/@me",
    "PUT /a/{x}/b",
    "POST /Things/é",
    "POST /open/",
    "POST /both",
    "POST /BOTH/",
];

fn guard(texts: &[&str], rules: PathRules, has_base: bool) -> Guard {
    let route = |text: &&str| Route::new(text, Policy::default()).unwrap();
    Guard::of(Routes::written(texts.iter().map(route).collect()), rules, has_base)
}

fn why(guard: &Guard, method: &Method, path: &str) -> Option<&'static str> {
    guard.refuses(Asked { method, path, overrides: &[], rewrites: &[] })
}

/// Spellings of a path (that of a literal route) under a habit.
fn spelled(habit: Habit, path: &str) -> Vec<String> {
    let (first, rest) = path[1..].split_once('/').unwrap();
    match habit {
        Habit::Slash(slash) => [slash.to_string(), slash.to_lowercase()]
            .iter()
            .flat_map(|slash| [format!("/{first}{slash}{rest}"), format!("/{slash}{first}/{rest}")])
            .collect(),
        Habit::Parameters(begin) => vec![
            format!("/{first}{begin}a=b/{rest}"),
            format!("{path}{begin}"),
            format!("/x/..{begin}/{first}/{rest}"),
        ],
        Habit::Dots => vec![format!("/./{first}/{rest}"), format!("/{first}/x/%2e./{rest}")],
        Habit::Merged => vec![format!("/{path}"), format!("/{first}//{rest}")],
        Habit::Decoded => {
            let mut encoded = vec![rest.to_string()];
            for _ in 0..DECODINGS_MAX {
                let last = encoded.last().unwrap();
                // A letter, then the `%` of its encoding.
                encoded.push(format!("%{:02X}{}", last.as_bytes()[0], &last[1..]));
            }
            // One encoding of a letter is the path's own spelling.
            encoded[2..].iter().map(|rest| format!("/{first}/{rest}")).collect()
        }
        Habit::End(end) => vec![format!("{path}{end}")],
        Habit::Case => vec![path.to_uppercase(), format!("/{first}/{}", rest.to_uppercase())],
        Habit::LastSlash => vec![format!("{path}/")],
    }
}

#[test]
fn h1_every_habit_of_the_table_is_refused_where_the_rules_have_it() {
    for row in TABLE {
        let rules = [STRICT, EXACT];
        for (rules, template) in
            rules.iter().flat_map(|rules| [(rules, "/pay/now"), (rules, "/a/b")])
        {
            let guard = guard(&[&format!("POST {template}")], *rules, false);
            let is_on = row.habit.is_on(*rules);
            for path in spelled(row.habit, template) {
                let told = why(&guard, &Method::POST, &path);
                assert_eq!(told.is_some(), is_on, "{:?} {rules:?} {path}: {told:?}", row.habit);
                assert_eq!(why(&guard, &Method::GET, &path), None, "{path}");
                assert_eq!(why(&guard, &Method::PUT, &path), None, "{path}");
            }
        }
    }
}

#[test]
fn h1_only_what_may_be_another_route_is_refused() {
    let strict = guard(&ROUTES, STRICT, false);
    for refused in [
        "/pay%2F7",
        "/%2Fpay/7",
        "/pay;a=b/7",
        "/pay\\7",
        "/x/..;/pay/7",
        "/x/..%2fpay/7",
        "/x/%2e%2e%5cpay/7",
        "/x/..%3B/pay/7",
        "/x/..%253B/pay/7",
        "/x/%25252e./pay%252F7",
        "/pay/x/..\\7",
        "/pay//../7",
        "/PAY/7",
        "/pay/7/",
        "/pay/7/.",
        "/pay/7//",
        // Another route than the path as sent.
        "/pay/SPECIAL",
        "/pay/special;v=1",
        "/pay/sp%2565cial",
        "/users/%40me",
        "/USERS/@me/",
        "/things/%C3%89",
        "/things/%C3%A9",
        "/open",
        "/OPEN/",
        "/pay/%E2%84%AA/../special",
    ] {
        assert!(why(&strict, &Method::POST, refused).is_some(), "{refused}");
    }
    for passed in [
        "/pay/7",
        "/pay/special",
        "/users/@me",
        "/users/me",
        "/Things/é",
        "/Things/%c3%a9",
        "/open/",
        // Both are written: whoever does that means both.
        "/both",
        "/BOTH/",
        // The route's own, and more of a value than a server may see.
        "/pay/7%2F",
        "/pay/a%2Fb",
        "/pay/7;v=1",
        "/pay/A",
        "/pay/7%0A",
        "/pay/100%25",
        // Nobody's.
        "/",
        "*",
        "/%",
        "/pay",
        "/pay/7/8",
        "/x//y",
        "/x/./y",
        "/x%2F..%2Fy",
        "/fetch/http://pay/7",
        "/PAYMENTS",
        "/v1/...",
    ] {
        assert_eq!(why(&strict, &Method::POST, passed), None, "{passed}");
    }
    assert!(why(&strict, &Method::DELETE, "/pay%2Fspecial").is_some());
    assert_eq!(why(&strict, &Method::PUT, "/pay%2F7"), None, "no route has it");
    for above in ["/..", "/../pay/7", "/x/../../y", "/x/%2e%2E/%2e./y"] {
        for method in [Method::POST, Method::GET] {
            assert_eq!(why(&strict, &method, above), Some(CLIMBS), "{above}");
        }
    }
}

#[test]
fn h1_what_is_off_or_in_shadow_is_not_protected() {
    let route = |text: &str, mode| Route::new(text, Policy { mode, ..Policy::default() }).unwrap();
    let routes = vec![
        route("POST /pay/test", Mode::Off),
        route("POST /pay/{id}", Mode::Enforce),
        route("POST /seen/{id}", Mode::Shadow),
    ];
    let guard = Guard::of(Routes::written(routes), STRICT, false);
    for passed in ["/pay/test", "/pay/7", "/pay/TEST", "/seen%2F7", "/SEEN/7", "/seen/7/"] {
        assert_eq!(why(&guard, &Method::POST, passed), None, "{passed}");
    }
    for refused in ["/pay/test/../7", "/pay%2F7"] {
        assert!(why(&guard, &Method::POST, refused).is_some(), "{refused}");
    }
}

#[test]
fn h1_another_method_that_is_a_route_is_refused() {
    let guard = guard(&ROUTES, STRICT, false);
    let every = Guard::of(Routes::every(Policy::unwritten()).unwrap(), STRICT, false);
    let is_refused = |guard: &Guard, method: Method, named: &Method, path: &str| {
        let overrides = std::slice::from_ref(named);
        guard.refuses(Asked { method: &method, path, overrides, rewrites: &[] }).is_some()
    };
    for (method, named, path, refused, refused_unwritten) in [
        (Method::POST, Method::DELETE, "/pay/7", true, false),
        (Method::PUT, Method::DELETE, "/pay/7", true, false),
        (Method::GET, Method::DELETE, "/pay/7", true, true),
        (Method::GET, Method::POST, "/PAY%2F7", true, true),
        (Method::POST, Method::PUT, "/pay/7", false, false),
        (Method::POST, Method::POST, "/pay/7", false, false),
        (Method::GET, Method::POST, "/other", false, true),
    ] {
        assert_eq!(is_refused(&guard, method.clone(), &named, path), refused, "{method} {path}");
        let unwritten = is_refused(&every, method.clone(), &named, path);
        assert_eq!(unwritten, refused_unwritten, "{method} {named} {path}");
    }
}

/// A guard where nothing passes without a route.
fn refusing(texts: &[&str]) -> Guard {
    Guard { refuses_unmatched: true, ..guard(texts, STRICT, false) }
}

#[test]
fn r07_no_route_is_a_way_to_what_has_none_where_that_is_refused() {
    let (passing, refusing) = (guard(&ROUTES, STRICT, false), refusing(&ROUTES));
    for out in [
        "/pay/..%2Fadmin",
        "/pay/..%2fadmin%2Fusers",
        "/pay/..",
        "/pay/.",
        "/pay/..;",
        "/pay/..;a",
        "/pay/..%3B",
        "/pay/%252e%252e%252Fadmin",
        "/pay/..\\admin",
    ] {
        assert_eq!(why(&passing, &Method::POST, out), None, "{out}");
        assert_eq!(why(&refusing, &Method::POST, out), Some(LEADS_OUT), "{out}");
        // Reads pass anywhere.
        assert_eq!(why(&refusing, &Method::GET, out), None, "{out}");
    }
    for stays in ["/pay/7", "/pay/a%2Fb", "/pay/...", "/pay/..a", "/pay/..%2Fpay%2F7", "/pay/7;v=1"]
    {
        assert_eq!(why(&refusing, &Method::POST, stays), None, "{stays}");
    }
    let named = |guard: &Guard, method: Method, named: &str| {
        let overrides = &[Method::from_bytes(named.as_bytes()).unwrap()];
        guard.refuses(Asked { method: &method, path: "/pay/7", overrides, rewrites: &[] }).is_some()
    };
    for (method, other) in
        [(Method::POST, "PUT"), (Method::POST, "PURGE"), (Method::GET, "PATCH"), (Method::PUT, "X")]
    {
        assert!(named(&refusing, method.clone(), other), "{method} {other}");
        assert!(!named(&passing, method.clone(), other), "{method} {other}");
    }
    assert!(!named(&refusing, Method::POST, "POST"));
    let unwritten = Guard {
        refuses_unmatched: true,
        ..Guard::of(Routes::every(Policy::unwritten()).unwrap(), STRICT, false)
    };
    assert_eq!(why(&unwritten, &Method::POST, "/pay/..%2Fadmin"), None, "there each is a route");
}

#[test]
fn h1_a_path_that_a_header_names_is_no_way_to_another_route() {
    let (passing, refusing) = (guard(&ROUTES, STRICT, false), refusing(&ROUTES));
    let unwritten = Guard::of(Routes::every(Policy::unwritten()).unwrap(), STRICT, false);
    for (method, path, to, expected) in [
        (Method::POST, "/pay/7", "/pay/7", [false; 3]),
        (Method::POST, "/pay/7", "/pay/8", [false, false, true]),
        (Method::POST, "/other", "/pay/7", [true; 3]),
        (Method::POST, "*", "/pay/7", [true; 3]),
        (Method::POST, "/other", "/x/..%2fpay/7", [true; 3]),
        (Method::POST, "/pay/7", "/pay/special", [true; 3]),
        (Method::POST, "/pay/7", "/admin", [false, true, true]),
        (Method::GET, "/other", "/pay/7", [false; 3]),
    ] {
        let rewrites = &[to.to_string()];
        let asked = Asked { method: &method, path, overrides: &[], rewrites };
        let refused = [&passing, &refusing, &unwritten].map(|guard| guard.refuses(asked).is_some());
        assert_eq!(refused, expected, "{method} {path} {to}");
    }
}

#[test]
fn h1_an_encoded_brace_in_a_template_is_no_parameter() {
    let guard = guard(&["POST /pay/%7Bx%7D", "POST /pay/{id}"], STRICT, false);
    assert_eq!(why(&guard, &Method::POST, "/pay/%7Bx%7D"), None);
    assert_eq!(why(&guard, &Method::POST, "/pay/7;v=1"), None);
    assert!(why(&guard, &Method::POST, "/pay/%7BX%7D").is_some());
}

#[test]
fn h1_nobody_climbs_out_of_an_upstream_s_path_in_any_reading() {
    for routes in [&ROUTES[..], &[]] {
        let behind = guard(routes, STRICT, true);
        let open = guard(routes, STRICT, false);
        for path in ["/..%2fx", "/x/..;/..;/y", "/..\\x", "/%252e%252e/x"] {
            for method in [Method::GET, Method::POST] {
                assert_eq!(why(&behind, &method, path), Some(CLIMBS), "{path}");
                assert_eq!(why(&open, &method, path), None, "{path}");
            }
        }
        assert_eq!(why(&behind, &Method::POST, "/x/..%2fy"), None);
    }
}

#[test]
fn h1_a_path_of_many_readings_costs_little() {
    let guard = guard(&ROUTES, STRICT, true);
    let mut bad = String::new();
    for at in 0..3_000 {
        let _ = write!(bad, "/a{at};b%252Fc%5Cd\\e%25252e..%2F.");
    }
    let begun = std::time::Instant::now();
    assert!(why(&guard, &Method::POST, &bad).is_some());
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    let deep = format!("/{}2Fpay", "%25".repeat(20_000));
    assert_eq!(why(&guard, &Method::POST, &deep), None, "no server decodes as often");
}

/// What a server does to a path, said without the code that is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Decodes,
    DecodesSlashes,
    DecodesBackslashes,
    TurnsBackslashes,
    DropsParameters,
    Resolves,
    Merges,
    Trims,
}

fn done(does: Does, path: &str) -> String {
    let replaced = |pairs: &[(&str, &str)]| {
        pairs.iter().fold(path.to_string(), |path, (from, to)| path.replace(from, to))
    };
    match does {
        Does::Decodes => {
            let mut out = String::new();
            let mut left = path.chars().collect::<std::collections::VecDeque<_>>();
            while let Some(character) = left.pop_front() {
                let digits: String = left.iter().take(2).collect();
                let byte = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                match byte {
                    Some(byte)
                        if character == '%'
                            && ('!'..='~').contains(&byte)
                            && !"/\\".contains(byte) =>
                    {
                        out.push(byte);
                        left.drain(..2);
                    }
                    _ => out.push(character),
                }
            }
            out
        }
        Does::DecodesSlashes => replaced(&[("%2F", "/"), ("%2f", "/")]),
        Does::DecodesBackslashes => replaced(&[("%5C", "/"), ("%5c", "/")]),
        Does::TurnsBackslashes => replaced(&[("\\", "/")]),
        Does::DropsParameters => {
            let plain = path.split('/').map(|segment| segment.split(';').next().unwrap());
            plain.collect::<Vec<_>>().join("/")
        }
        Does::Resolves => {
            let mut kept: Vec<&str> = Vec::new();
            let mut open = "";
            for segment in path.split('/').skip(1) {
                open = "";
                match segment.replace("%2e", ".").replace("%2E", ".").as_str() {
                    "." => open = "/",
                    ".." => {
                        kept.pop();
                        open = "/";
                    }
                    _ => kept.push(segment),
                }
            }
            format!("/{}{}", kept.join("/"), if kept.is_empty() { "" } else { open })
        }
        Does::Merges => {
            let mut path = path.to_string();
            while path.contains("//") {
                path = path.replace("//", "/");
            }
            path
        }
        Does::Trims => path.strip_suffix("%0A").unwrap_or(path).to_string(),
    }
}

/// A server: what it does to paths, and what it looks at when it routes.
#[derive(Debug, Clone)]
struct Server {
    does: Vec<Does>,
    case: bool,
    last_slash: bool,
}

impl Server {
    /// The route that it serves a request as.
    fn route(&self, method: &str, path: &str) -> Option<usize> {
        let mut path = self.does.iter().fold(path.to_string(), |path, does| done(*does, &path));
        if self.does.contains(&Does::Decodes) {
            path = done(Does::Decodes, &path);
        }
        ROUTES.iter().position(|route| {
            let (its_method, mut template) = route.split_once(' ').unwrap();
            let mut path = path.replace("%C3%A9", "é").replace("%c3%a9", "é");
            if !self.case {
                path = path.to_lowercase();
            }
            let lower = template.to_lowercase();
            if !self.case {
                template = &lower;
            }
            let trim = |text: &str| match self.last_slash {
                false if text.len() > 1 => text.strip_suffix('/').unwrap_or(text).to_string(),
                _ => text.to_string(),
            };
            let (path, template) = (trim(&path), trim(template));
            let (wanted, given): (Vec<_>, Vec<_>) =
                (template.split('/').collect(), path.split('/').collect());
            its_method == method
                && wanted.len() == given.len()
                && wanted.iter().zip(&given).all(|(wanted, given)| match wanted.starts_with('{') {
                    true => !given.is_empty(),
                    false => wanted == given,
                })
        })
    }
}

fn servers() -> impl Strategy<Value = Server> {
    let does = prop::sample::select(vec![
        Does::Decodes,
        Does::DecodesSlashes,
        Does::DecodesBackslashes,
        Does::TurnsBackslashes,
        Does::DropsParameters,
        Does::Resolves,
        Does::Merges,
        Does::Trims,
    ]);
    let decodes_less = |does: &Vec<Does>| {
        does.iter().filter(|does| **does == Does::Decodes).count() < DECODINGS_MAX
    };
    let does = prop::collection::vec(does, 0..8).prop_filter("it decodes too often", decodes_less);
    (does, any::<bool>(), any::<bool>()).prop_map(|(does, case, last_slash)| Server {
        does,
        case,
        last_slash,
    })
}

/// A path in random spellings: pieces of routes, and of all that may stand between them.
fn paths() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/",
        "/",
        "/",
        "pay",
        "pay",
        "Pay",
        "special",
        "SPECIAL",
        "users",
        "@me",
        "%40me",
        "a",
        "b",
        "7",
        "x",
        "both",
        "open",
        "things",
        "Things",
        "é",
        "%C3%A9",
        "%2F",
        "%2f",
        "\\",
        "%5C",
        "%5c",
        ";",
        ";a=b",
        "%3B",
        "%253b",
        "..",
        ".",
        "%2e",
        "%2E%2e",
        "%252e",
        "..;",
        "/../",
        "%252F",
        "%255c",
        "%25",
        "2f",
        "2e",
        "%70ay",
        "%2570ay",
        "%252570ay",
        "//",
        "%0A",
        "%250A",
    ]);
    prop::collection::vec(piece, 1..12).prop_map(|pieces| format!("/{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8_000, ..ProptestConfig::default() })]

    /// Whatever a server would serve as a protected route is refused, or treated as that route.
    #[test]
    fn h1_no_server_serves_a_route_that_was_not_matched(
        server in servers(),
        path in paths(),
        method in prop::sample::select(vec!["POST", "DELETE", "PUT"]),
    ) {
        let guard = guard(&ROUTES, STRICT, false);
        let asked = Method::from_bytes(method.as_bytes()).unwrap();
        if let Some(served) = server.route(method, &path)
            && why(&guard, &asked, &path).is_none()
        {
            let (_, place) = guard.routes.find(&asked, &path).expect("treated as a route");
            // Those that are written in both spellings are one to such servers.
            let group = |at: usize| guard.templates[at].group;
            prop_assert_eq!(group(place.route.unwrap()), group(served), "{}", path);
        }
    }

    /// What no server could take for a route passes.
    #[test]
    fn h1_what_is_nobody_s_passes(
        pieces in prop::collection::vec(prop::sample::select(vec![
            "/", "q", "r", "%2F", "\\", ";", "%3B", ".", "%252F", "%25", "//", "%0A", "Q",
        ]), 1..12),
    ) {
        let guard = guard(&ROUTES, STRICT, false);
        let path = format!("/{}", pieces.concat());
        prop_assume!(!climbs(&path));
        prop_assert_eq!(why(&guard, &Method::POST, &path), None, "{}", path);
    }
}
