//! One Rust source file as the rules see it: the text, the code alone, where the tests begin.
//!
//! The rule kept here: line and column stay the same in all views, so a finding in one is a place
//! in the others. The views are good enough for rules over names and calls; this is no parser.

/// A source file.
pub(super) struct Source {
    /// From the root of the repository, with slashes.
    pub(super) path: String,
    /// As written.
    pub(super) text: String,
    /// As written, with comments and the insides of literals blanked out.
    pub(super) code: String,
    /// The first line (from 1) of a test module that ends the file; past the end without one.
    pub(super) tests_from: usize,
}

impl Source {
    /// Prepares a file for the rules.
    pub(super) fn new(path: &str, text: &str) -> Self {
        let code = code_only(text);
        let tests_from = trailing_tests(&code).unwrap_or(usize::MAX);
        Self { path: path.to_owned(), text: text.to_owned(), code, tests_from }
    }

    /// Whether the whole file is test code: integration tests, or a test module in its own file.
    pub(super) fn is_test_file(&self) -> bool {
        self.is_in("tests") || self.path.ends_with("/tests.rs")
    }

    /// Whether a line is test code, or part of the public `testing` module.
    pub(super) fn is_test_line(&self, line: usize) -> bool {
        self.is_test_file() || self.is_in("testing") || line >= self.tests_from
    }

    /// Whether a folder of this name leads to the file.
    pub(super) fn is_in(&self, folder: &str) -> bool {
        self.path.split('/').rev().skip(1).any(|part| part == folder)
    }

    /// Lines of code that mention `needle` as a word of its own, from 1.
    pub(super) fn lines_with(&self, needle: &str) -> Vec<usize> {
        let has = |line: &str| !words_at(line, needle).is_empty();
        self.code.lines().enumerate().filter(|(_, line)| has(line)).map(|(at, _)| at + 1).collect()
    }

    /// Lines of code that name the path `head::tail`, alone or inside `head::{…}`.
    pub(super) fn lines_with_path(&self, head: &str, tail: &str) -> Vec<usize> {
        let start = format!("{head}::");
        let mut lines = Vec::new();
        for at in words_at(&self.code, &start) {
            let rest = &self.code[at + start.len()..];
            let named = match rest.strip_prefix('{') {
                Some(group) => in_group(group, tail),
                None => words_at(rest, tail).first() == Some(&0),
            };
            if named {
                lines.push(self.code[..at].matches('\n').count() + 1);
            }
        }
        lines
    }
}

/// Where `needle` stands with no letter, digit or underscore directly before or after it, as far
/// as its own ends are such characters.
fn words_at(text: &str, needle: &str) -> Vec<usize> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (first, last) = (needle.starts_with(is_word), needle.ends_with(is_word));
    text.match_indices(needle)
        .map(|(at, _)| at)
        .filter(|at| {
            let before = text[..*at].chars().next_back().is_some_and(is_word);
            let after = text[at + needle.len()..].chars().next().is_some_and(is_word);
            !(first && before || last && after)
        })
        .collect()
}

/// Whether an item of an import group (after its opening brace) begins with `tail`.
fn in_group(group: &str, tail: &str) -> bool {
    let mut depth = 0_usize;
    let mut item = String::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if words_at(item.trim_start(), tail).first() == Some(&0) {
                    return true;
                }
                item.clear();
                continue;
            }
            _ => {}
        }
        item.push(c);
    }
    words_at(item.trim_start(), tail).first() == Some(&0)
}

/// The first line of a `#[cfg(test)] mod … { … }` with nothing after it. rustfmt puts its braces
/// at the left margin, which is all that has to be known.
fn trailing_tests(code: &str) -> Option<usize> {
    let lines: Vec<&str> = code.lines().map(str::trim_end).collect();
    let is_attribute = |line: &str| line.starts_with("#[");
    let start = lines.iter().rposition(|line| {
        line.starts_with("#[cfg(") && !words_at(line, "test").is_empty() && line.ends_with(']')
    })?;
    let module = (start..lines.len()).find(|at| !is_attribute(lines[*at]))?;
    if !(lines[module].starts_with("mod ") && lines[module].ends_with('{')) {
        return None;
    }
    let end = (module..lines.len()).find(|at| lines[*at] == "}")?;
    lines[end + 1..].iter().all(|line| line.is_empty()).then_some(start + 1)
}

/// Blanks out comments and the insides of string and character literals, keeping every line.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
            continue;
        }
        code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    code
}

/// Where the comment or literal that begins at `at` ends; `at` itself when none does.
fn literal_or_comment_end(chars: &[char], at: usize) -> usize {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => {
            chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| at + n)
        }
        '/' if next == Some('*') => block_comment_end(chars, at),
        '"' => string_end(chars, at + 1),
        'r' if at == 0 || !is_word(&chars[at - 1]) || is_byte_prefix(chars, at) => {
            raw_string_end(chars, at + 1).unwrap_or(at)
        }
        // A lifetime has no closing quote two characters on; a character literal has.
        '\'' if next == Some('\\') => {
            let close = (at + 3..chars.len()).find(|n| chars[*n] == '\'');
            close.map_or(chars.len(), |n| n + 1)
        }
        '\'' if chars.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

/// Whether the `r` at `at` follows a lone `b` or `c`, as in `br"…"`.
fn is_byte_prefix(chars: &[char], at: usize) -> bool {
    let lone = at == 1 || !(chars[at - 2].is_alphanumeric() || chars[at - 2] == '_');
    lone && matches!(chars[at - 1], 'b' | 'c')
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut n) = (0_usize, at);
    while n < chars.len() {
        match (chars[n], chars.get(n + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                n += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                n += 2;
                if depth == 0 {
                    return n;
                }
            }
            _ => n += 1,
        }
    }
    chars.len()
}

fn string_end(chars: &[char], inside: usize) -> usize {
    let mut n = inside;
    while n < chars.len() {
        match chars[n] {
            '\\' => n += 2,
            '"' => return n + 1,
            _ => n += 1,
        }
    }
    chars.len()
}

/// The end of a raw string whose hashes begin at `hashes`; `None` for a raw identifier.
fn raw_string_end(chars: &[char], hashes: usize) -> Option<usize> {
    let count = chars[hashes..].iter().take_while(|c| **c == '#').count();
    if chars.get(hashes + count) != Some(&'"') {
        return None;
    }
    let closes = |n: usize| {
        chars[n] == '"'
            && chars.get(n + 1..n + 1 + count).is_some_and(|tail| tail.iter().all(|c| *c == '#'))
    };
    let close = (hashes + count + 1..chars.len()).find(|n| closes(*n));
    Some(close.map_or(chars.len(), |n| n + 1 + count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_code(text: &str, code: &str) {
        let seen: Vec<_> = code_only(text).lines().map(|l| l.trim_end().to_owned()).collect();
        assert_eq!(seen.join("\n"), code);
        assert_eq!(code_only(text).chars().count(), text.chars().count(), "columns moved");
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        check_code("a // b\nc", "a\nc");
        check_code("a /* b /* c */ d */ e", "a                   e");
        check_code(r#"f("x\"y // z") + g"#, "f(           ) + g");
        check_code("f(r#\"a \" b\"#) + g", "f(          ) + g");
        check_code("f(br\"a\\\") + g", "f(b     ) + g");
        check_code("'\"' + '\\'' + 'x'", "    +      +");
        check_code("fn f<'a>(x: &'a str, r#type: u8)", "fn f<'a>(x: &'a str, r#type: u8)");
        check_code("let s = \"a\nb\"; c", "let s =\n  ; c");
    }

    #[test]
    fn words_stand_alone() {
        let source = Source::new("a.rs", "operand(rand);\nrandom();\nx.rand()\n// rand\n");
        assert_eq!(source.lines_with("rand"), [1, 3]);
    }

    #[test]
    fn paths_are_found_alone_and_in_groups() {
        let text = "use std::time::Instant;\nuse std::{fs::File,\n    time};\nuse std::timer;\n\
                    use std::{io::{time, Read}, fmt};\nlet x = ::std::time::now();\nmystd::time;";
        assert_eq!(Source::new("a.rs", text).lines_with_path("std", "time"), [1, 2, 6]);
    }

    #[test]
    fn test_modules_count_only_at_the_end() {
        let ends = "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    fn b() {\n    }\n}\n";
        assert_eq!(Source::new("a.rs", ends).tests_from, 3);
        let goes_on = format!("{ends}fn c() {{}}\n");
        assert_eq!(Source::new("a.rs", &goes_on).tests_from, usize::MAX);
        let gated = "#[cfg(all(test, unix))]\n#[expect(x)]\nmod tests {\n}\n";
        assert_eq!(Source::new("a.rs", gated).tests_from, 1);
        assert_eq!(Source::new("a.rs", "fn a() {}\n").tests_from, usize::MAX);
    }

    #[test]
    fn test_code_is_told_by_folder_file_and_module() {
        let is_test = |path: &str| Source::new(path, "fn a() {}\n").is_test_line(1);
        assert!(is_test("crates/onceward/tests/a.rs"));
        assert!(is_test("crates/onceward/src/testing/a.rs"));
        assert!(is_test("crates/onceward/src/engine/tests.rs"));
        assert!(!is_test("crates/onceward/src/engine/claim.rs"));
    }
}
