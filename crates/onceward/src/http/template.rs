//! The path of a route as people write it: what it may look like, and what is said of one that
//! could never match what its writer meant.
//!
//! Every framework writes parameters in its own way, and what is one elsewhere is plain text here:
//! such a route would protect nothing, and nobody would notice. So it is refused, with whose way it
//! looks like and what to write instead.

use super::spelling::one_spelling;

/// What a rest of a path is written as instead.
const REST: &str = "which matches segments of any number: write a route for each number, as in \
                    /{a} and /{a}/{b}";

/// A form that other frameworks have.
struct Foreign {
    is_it: fn(&str) -> bool,
    /// Whose it is.
    of: &'static str,
    /// What to write instead; none where that is the parameter's name in braces.
    instead: Option<&'static str>,
}

/// In this order: the first that fits is told.
const FOREIGN: [Foreign; 11] = [
    Foreign {
        is_it: |segment| segment.starts_with(':'),
        of: "how Express, Rails and Gin write a parameter",
        instead: None,
    },
    Foreign {
        is_it: |segment| segment.starts_with("<path:") && segment.ends_with('>'),
        of: "Flask's and Django's rest of a path",
        instead: Some(REST),
    },
    Foreign {
        is_it: |segment| segment.starts_with('<') && segment.ends_with('>'),
        of: "how Flask and Django write a parameter",
        instead: None,
    },
    Foreign {
        is_it: |segment| segment.starts_with("[...") || segment.starts_with("[[..."),
        of: "Next.js' rest of a path",
        instead: Some(REST),
    },
    Foreign {
        is_it: |segment| segment.starts_with('[') && segment.ends_with(']'),
        of: "how Next.js and SvelteKit write a parameter",
        instead: None,
    },
    Foreign {
        is_it: |segment| segment.starts_with('*') && !segment.trim_start_matches('*').is_empty(),
        of: "how Rails and Gin write the rest of a path",
        instead: Some(REST),
    },
    Foreign {
        is_it: |segment| inner(segment).is_some_and(|inner| inner.starts_with('*')),
        of: "how axum, Spring and ASP.NET write the rest of a path",
        instead: Some(REST),
    },
    Foreign {
        is_it: |segment| inner(segment).is_some_and(|inner| inner.ends_with("...")),
        of: "how Go writes the rest of a path",
        instead: Some(REST),
    },
    Foreign {
        is_it: |segment| inner(segment).is_some_and(|inner| inner.ends_with(":path")),
        of: "how FastAPI and Starlette write the rest of a path",
        instead: Some(REST),
    },
    Foreign {
        is_it: |segment| inner(segment).is_some_and(|inner| inner.contains(':')),
        of: "a parameter with a pattern or a type, as Gorilla, Spring and ASP.NET write it",
        instead: None,
    },
    Foreign {
        is_it: |segment| inner(segment).is_some_and(|inner| inner.ends_with('?')),
        of: "an optional parameter, as ASP.NET and Laravel write it",
        instead: Some(
            "and here a segment is there or not: write one route with it and one without",
        ),
    },
];

/// What the path of a template must be, if it is not.
pub(super) fn check(template: &str) -> Result<(), String> {
    let fails = |bound: &str| Err(bound.to_string());
    if !template.starts_with('/') {
        return fails("METHOD /path/{parameter}");
    }
    let segments = || template.split('/').skip(1);
    for segment in segments() {
        if let Some(foreign) = FOREIGN.iter().find(|foreign| (foreign.is_it)(segment)) {
            return Err(told(foreign, segment));
        }
    }
    if segments().any(|segment| ["*", "**"].contains(&segment)) {
        return fails(
            "a path without wildcards: {name} matches any one segment, and what `*` stands for is \
             written as routes of its own",
        );
    }
    let in_part = |segment: &str| inner(segment).is_none() && segment.contains(['{', '}']);
    if segments().any(in_part) {
        return fails("METHOD /path/{parameter}, parameters as whole segments");
    }
    parameters_fit(template)?;
    if literals(template).any(|literal| literal.contains(is_never_sent)) {
        return fails(
            "a path as requests have it: leave out `?` and `#` and what follows them, and write \
             white space and the like encoded, as in %20",
        );
    }
    if literals(template).any(|literal| [".", ".."].contains(&&*one_spelling(literal))) {
        return fails(
            "a path without `.` and `..`, which servers resolve before they look for a route: \
             write the path that is left then",
        );
    }
    if template.contains("//") {
        return fails(
            "a path without empty segments, which servers leave out before they look for a \
             route: write one slash for `//`",
        );
    }
    Ok(())
}

/// Whether the parameters have names, each its own.
fn parameters_fit(template: &str) -> Result<(), String> {
    let mut seen: Vec<&str> = Vec::new();
    for segment in template.split('/') {
        let Some(inner) = inner(segment) else { continue };
        let Some(name) = parameter(segment) else {
            let name = name_in(inner);
            return Err(format!(
                "a path whose parameters are named with letters, digits and `_` alone, which \
                 `{segment}` is not: write {{{name}}}"
            ));
        };
        if seen.contains(&name) {
            return Err(format!(
                "a path whose parameters have names of their own, and {{{name}}} is there twice: \
                 call the second one {{{name}2}}"
            ));
        }
        seen.push(name);
    }
    Ok(())
}

/// The name of a segment that is a parameter.
pub(super) fn parameter(segment: &str) -> Option<&str> {
    inner(segment).filter(|name| !name.is_empty() && name.chars().all(is_of_names))
}

fn is_of_names(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// What stands between the braces of a segment that is nothing else.
fn inner(segment: &str) -> Option<&str> {
    segment.strip_prefix('{')?.strip_suffix('}')
}

/// What of a template is compared as it stands.
fn literals(template: &str) -> impl Iterator<Item = &str> {
    template.split('/').filter(|segment| parameter(segment).is_none())
}

/// Whether no request can have a character in its path: it ends one, or comes only encoded.
fn is_never_sent(character: char) -> bool {
    character.is_whitespace() || character.is_control() || "?#<>`".contains(character)
}

fn told(foreign: &Foreign, segment: &str) -> String {
    let Foreign { of, instead, .. } = foreign;
    match instead {
        Some(instead) => {
            format!("a path of parameters as {{name}}: `{segment}` looks like {of}, {instead}")
        }
        None => format!(
            "a path of parameters as {{name}}: `{segment}` looks like {of}; write {{{}}}, which \
             matches any one segment",
            name_in(segment)
        ),
    }
}

/// The name that somebody meant: of `<int:id>` what follows the colon, of `{id:[0-9]+}` what stands
/// before it.
fn name_in(segment: &str) -> String {
    let from = match segment.strip_prefix('<').and_then(|inner| inner.split_once(':')) {
        Some((_, name)) => name,
        None => segment,
    };
    let is_of_meant = |character: char| is_of_names(character) || character == '-';
    let start = from.find(is_of_meant).unwrap_or(from.len());
    let name = &from[start..];
    let name = &name[..name.find(|other| !is_of_meant(other)).unwrap_or(name.len())];
    if name.is_empty() { "name".into() } else { name.replace('-', "_") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h4_forms_of_other_frameworks_are_refused_with_what_to_write_instead() {
        for (segment, whose, instead) in [
            (":id", "Express", "write {id}"),
            (":order-id?", "Express", "write {order_id}"),
            (":id([0-9]+)", "Express", "write {id}"),
            ("*rest", "Rails and Gin", "a route for each number"),
            ("{*rest}", "axum", "a route for each number"),
            ("{**rest}", "ASP.NET", "a route for each number"),
            ("{rest...}", "Go writes", "a route for each number"),
            ("{id:[0-9]+}", "Gorilla", "write {id}"),
            ("{id:int}", "ASP.NET", "write {id}"),
            ("{p:path}", "FastAPI", "a route for each number"),
            ("{id?}", "Laravel", "one route with it and one without"),
            ("<id>", "Flask", "write {id}"),
            ("<int:id>", "Django", "write {id}"),
            ("<path:p>", "Flask", "a route for each number"),
            ("[id]", "Next.js", "write {id}"),
            ("[...rest]", "Next.js", "a route for each number"),
            ("*", "wildcards", "routes of its own"),
            ("{}", "letters, digits", "write {name}"),
            ("{order-id}", "letters, digits", "write {order_id}"),
            ("{$}", "letters, digits", "write {name}"),
            ("{a.b}", "letters, digits", "write {a}"),
        ] {
            for path in [format!("/v1/{segment}/cancel"), format!("/v1/{segment}")] {
                let bound = check(&path).expect_err(&path);
                assert!(bound.contains(whose) && bound.contains(instead), "{path}: {bound}");
            }
        }
    }

    #[test]
    fn h4_a_path_that_no_request_has_is_refused() {
        for (path, why) in [
            ("/{id}/x/{id}", "twice"),
            ("/a/./b", "`..`"),
            ("/a/../b", "`..`"),
            ("/a/%2e%2E/b", "`..`"),
            ("/a/..", "`..`"),
            ("//a", "one slash"),
            ("/a//b", "one slash"),
            ("/a//", "one slash"),
            ("/a/{id}.json", "whole segments"),
            ("a", "METHOD /path"),
        ] {
            let bound = check(path).expect_err(path);
            assert!(bound.contains(why), "{path}: {bound}");
        }
        for fine in [
            "/",
            "/a",
            "/a/",
            "/{id}",
            "/{Größe_2}/x",
            "/v1/things:batch",
            "/a*",
            "/$batch",
            "/a;v=1/(x)",
            "/...",
            "/.well-known/x",
            "/~bob/@me/a,b",
        ] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
    }
}
