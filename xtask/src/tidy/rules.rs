//! The rules over single Rust files: style, leftovers, and which module may do what.
//!
//! The rule kept here: a rule reads one file and nothing else, looks at code and not at comments
//! where it speaks of code, and its finding says what to do instead.
//! Rules over the repository as a whole are in `repository`.

use super::Finding;
use super::code::Source;

/// The widest line.
const COLUMNS_MAX: usize = 100;

/// The longest file, not counting the test module at its end.
const LINES_MAX: usize = 600;

/// The opening comment has to begin within this many lines.
const HEADER_LINES_MAX: usize = 3;

const CORE: &str = "crates/onceward-core/src/";
const LIBRARY: &str = "crates/onceward/src/";

/// Where a store's `commit` may be called: the engine, and the stores and suites themselves.
const COMMITTERS: &[&str] = &["engine", "store", "testing"];

/// Who may read flags and the environment.
const ENVIRONMENT_READERS: &[&str] = &["crates/onceward-server/", "xtask/"];

/// Calls of `std::env` that read no variable; tests need them.
const HARMLESS_ENVIRONMENT: &[&str] = &["temp_dir", "current_dir", "current_exe", "consts"];

/// What a sleep in a test has to be excused with.
const SLEEP_EXCUSE: &str = "// sleeps because";

/// All findings in one file.
pub(super) fn all(source: &Source) -> Vec<Finding> {
    let rules = [
        header,
        columns,
        length,
        leftovers,
        sleeps,
        core_is_pure,
        one_commit_loop,
        no_policy,
        environment,
    ];
    rules.iter().flat_map(|rule| rule(source)).collect()
}

fn finding(source: &Source, line: usize, rule: &'static str, message: String) -> Finding {
    Finding { path: source.path.clone(), line, rule, message }
}

fn header(source: &Source) -> Vec<Finding> {
    if source.text.lines().take(HEADER_LINES_MAX).any(|line| line.starts_with("//!")) {
        return Vec::new();
    }
    let message = "the file opens without `//!`: say what it is and the rule it keeps".to_owned();
    vec![finding(source, 1, "header", message)]
}

fn columns(source: &Source) -> Vec<Finding> {
    let widths = source.text.lines().map(|line| line.chars().count()).enumerate();
    widths
        .filter(|(_, width)| *width > COLUMNS_MAX)
        .map(|(at, width)| {
            let message = format!("{width} columns where {COLUMNS_MAX} is the most");
            finding(source, at + 1, "columns", message)
        })
        .collect()
}

fn length(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count().min(source.tests_from.saturating_sub(1));
    if source.is_test_file() || lines <= LINES_MAX {
        return Vec::new();
    }
    let message = format!("{lines} lines without tests where {LINES_MAX} is the most: divide it");
    vec![finding(source, 0, "length", message)]
}

fn leftovers(source: &Source) -> Vec<Finding> {
    let refused = [
        ("#[ignore", "an ignored test proves nothing: make it run or delete it"),
        ("todo!(", "unfinished code is not merged"),
        ("unimplemented!(", "unfinished code is not merged"),
        ("dbg!(", "debugging output is not merged"),
    ];
    let mut findings = Vec::new();
    for (what, why) in refused {
        for line in source.lines_with(what) {
            findings.push(finding(source, line, "leftovers", format!("`{what}`: {why}")));
        }
    }
    findings
}

fn sleeps(source: &Source) -> Vec<Finding> {
    let text: Vec<&str> = source.text.lines().collect();
    let is_excused = |line: usize| {
        let above = line.checked_sub(2).and_then(|at| text.get(at));
        text[line - 1].contains(SLEEP_EXCUSE)
            || above.is_some_and(|above| above.trim_start().starts_with(SLEEP_EXCUSE))
    };
    let mut lines = source.lines_with("sleep(");
    lines.extend(source.lines_with("sleep_until("));
    // Defining one's own (a simulated clock has one) is not sleeping.
    lines.retain(|line| {
        source.is_test_line(*line) && !is_excused(*line) && !text[line - 1].contains("fn sleep")
    });
    lines
        .into_iter()
        .map(|line| {
            let message =
                format!("a test awaits what it waits for; or a comment begins `{SLEEP_EXCUSE}`");
            finding(source, line, "sleep", message)
        })
        .collect()
}

/// Invariant 1: the core has no clock, no I/O, no randomness, nothing asynchronous.
fn core_is_pure(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with(CORE) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut refuse = |lines: Vec<usize>, what: &str| {
        for line in lines {
            let message = format!("`{what}` in the core: pass the value in, the edge acts");
            findings.push(finding(source, line, "core", message));
        }
    };
    for module in ["time", "fs", "net", "env", "thread", "process"] {
        refuse(source.lines_with_path("std", module), &format!("std::{module}"));
    }
    for word in ["SystemTime", "Instant::now", "rand::", "getrandom", "async fn", "tokio"] {
        refuse(source.lines_with(word), word);
    }
    findings
}

/// Invariant 2: only the engine loops load → decide → commit. A `commit()` without arguments ends
/// a database's own transaction and is another thing.
fn one_commit_loop(source: &Source) -> Vec<Finding> {
    let is_library = source.path.starts_with("crates/") && source.is_in("src");
    let is_allowed = source.path.strip_prefix(LIBRARY).is_some_and(|rest| {
        COMMITTERS.iter().any(|part| {
            rest.strip_prefix(part).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    });
    if !is_library || is_allowed {
        return Vec::new();
    }
    let commits = |line: &str| {
        line.match_indices(".commit(").any(|(at, call)| !line[at + call.len()..].starts_with(')'))
    };
    let lines = source.code.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines
        .filter(|(at, line)| commits(line) && !source.is_test_line(*at))
        .map(|(at, _)| {
            let message = "only the engine commits to a store: call the engine".to_owned();
            finding(source, at, "commit", message)
        })
        .collect()
}

/// Invariant 3: stores hold no policy, so they have nothing to decide. A test of one may.
fn no_policy(source: &Source) -> Vec<Finding> {
    if !source.path.starts_with(&format!("{LIBRARY}store")) || source.is_test_file() {
        return Vec::new();
    }
    let lines = source.lines_with_path("onceward_core", "decide");
    let message = "a store does not decide: it applies batches under their conditions";
    lines.into_iter().map(|line| finding(source, line, "policy", message.to_owned())).collect()
}

/// Invariant 5: only the server reads flags, files and environment. Tests may read where their
/// servers are.
fn environment(source: &Source) -> Vec<Finding> {
    if ENVIRONMENT_READERS.iter().any(|reader| source.path.starts_with(reader)) {
        return Vec::new();
    }
    let text: Vec<&str> = source.text.lines().collect();
    let code: Vec<&str> = source.code.lines().collect();
    // The name may stand on the next lines when rustfmt has broken the call.
    let names_a_test_server =
        |line: usize| text[line - 1..].iter().take(3).any(|line| line.contains("ONCEWARD_TEST_"));
    let is_harmless = |line: usize| {
        let code = code[line - 1].trim();
        code.starts_with("use ") || HARMLESS_ENVIRONMENT.iter().any(|name| code.contains(name))
    };
    // An example is a program of its own: its flags are its reader's.
    let is_example = source.is_in("examples");
    let reads_its_flags = |line: usize| is_example && code[line - 1].contains("env::args()");
    let mut lines = source.lines_with_path("std", "env");
    lines.extend(source.lines_with("env::"));
    lines.sort_unstable();
    lines.dedup();
    lines.retain(|line| {
        let is_test = source.is_test_line(*line) || is_example;
        let harmless = names_a_test_server(*line) || is_harmless(*line);
        !(is_test && harmless || reads_its_flags(*line))
    });
    lines.extend(source.lines_with("clap"));
    let message = "only the server reads flags and environment: take it as an argument";
    lines.into_iter().map(|at| finding(source, at, "environment", message.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: &str = "crates/onceward/src/engine/claim.rs";
    const HTTP: &str = "crates/onceward/src/http/layer.rs";
    const STORE: &str = "crates/onceward/src/store/memory.rs";
    const SUITE: &str = "crates/onceward/src/testing/suite.rs";
    const TEST: &str = "crates/onceward/tests/claims.rs";
    const CORE_FILE: &str = "crates/onceward-core/src/decide.rs";
    const SERVER: &str = "crates/onceward-server/src/main.rs";

    /// Checks that a file with these lines after its header has exactly these findings.
    #[track_caller]
    fn check(path: &str, body: &str, expected: &[(&str, usize)]) {
        let source = Source::new(path, &format!("//! A file.\n{body}\n"));
        let found = all(&source);
        let found: Vec<_> = found.iter().map(|f| (f.rule, f.line)).collect();
        assert_eq!(found, expected, "in {path}:\n{body}");
    }

    #[test]
    fn a_file_opens_with_its_purpose() {
        let opens = |text: &str| header(&Source::new(ENGINE, text)).is_empty();
        assert!(opens("//! A file.\n"));
        assert!(opens("#![forbid(unsafe_code)]\n\n//! A file.\n"));
        assert!(!opens("fn a() {}\n"));
        assert!(!opens("// One.\n// Two.\n// Three.\n//! Too late.\n"));
        assert!(!opens(""));
    }

    #[test]
    fn lines_are_narrow() {
        check(ENGINE, &"é".repeat(100), &[]);
        check(ENGINE, &"é".repeat(101), &[("columns", 2)]);
    }

    #[test]
    fn files_are_short_but_for_their_tests() {
        let long = |count: usize| "fn a() {}\n".repeat(count);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}", "    // One.\n".repeat(500));
        check(ENGINE, long(599).trim_end(), &[]);
        check(ENGINE, long(600).trim_end(), &[("length", 0)]);
        check(TEST, long(900).trim_end(), &[]);
        check(SUITE, long(900).trim_end(), &[("length", 0)]);
        check(ENGINE, &format!("{}{tests}", long(500)), &[]);
        check(ENGINE, &format!("{}{tests}", long(700)), &[("length", 0)]);
    }

    #[test]
    fn nothing_unfinished_is_left() {
        check(TEST, "#[ignore]\nfn a() {}", &[("leftovers", 2)]);
        check(TEST, "#[ignore = \"slow\"]\nfn a() {}", &[("leftovers", 2)]);
        check(ENGINE, "fn a() { todo!() }", &[("leftovers", 2)]);
        check(ENGINE, "fn a() { unimplemented!(\"x\") }", &[("leftovers", 2)]);
        check(ENGINE, "let x = dbg!(y);", &[("leftovers", 2)]);
        check(ENGINE, "// todo!() in a comment\nlet x = \"dbg!(y)\";", &[]);
    }

    #[test]
    fn tests_do_not_sleep_without_an_excuse() {
        let sleep = "tokio::time::sleep(ONE).await;";
        check(TEST, sleep, &[("sleep", 2)]);
        check(SUITE, sleep, &[("sleep", 2)]);
        check(TEST, "sleep_until(then).await;", &[("sleep", 2)]);
        check(ENGINE, &format!("#[cfg(test)]\nmod tests {{\n    {sleep}\n}}"), &[("sleep", 4)]);
        check(ENGINE, sleep, &[]);
        check(TEST, &format!("{sleep} // sleeps because the kernel says so"), &[]);
        check(TEST, &format!("// sleeps because the kernel says so\n{sleep}"), &[]);
        check(TEST, &format!("// sleeps because\n\n{sleep}"), &[("sleep", 4)]);
        check(SUITE, "fn sleep(&self, ms: u64) {}", &[]);
    }

    #[test]
    fn the_core_is_pure() {
        for body in [
            "use std::time::Duration;",
            "use std::{fmt, fs};",
            "let now = SystemTime::UNIX_EPOCH;",
            "let now = Instant::now();",
            "std::net::lookup();",
            "std::env::var(X);",
            "std::thread::spawn(f);",
            "std::process::exit(1);",
            "let n = rand::random();",
            "getrandom::fill(b);",
            "async fn a() {}",
            "use tokio as t;",
        ] {
            let source = Source::new(CORE_FILE, &format!("//! A file.\n{body}\n"));
            let found: Vec<_> = core_is_pure(&source).iter().map(|f| (f.rule, f.line)).collect();
            assert_eq!(found, [("core", 2)], "{body}");
        }
        check(CORE_FILE, "// No tokio, no std::time.\nfn operand(random: u64) {}", &[]);
        check(ENGINE, "use std::time::Duration;\nasync fn a() {}", &[]);
    }

    #[test]
    fn only_the_engine_commits() {
        check(HTTP, "store.commit(group).await", &[("commit", 2)]);
        check(HTTP, "store\n    .commit(\n        group)", &[("commit", 3)]);
        check(SERVER, "store.commit(group)", &[("commit", 2)]);
        for path in [ENGINE, STORE, SUITE, TEST, "crates/onceward/src/engine.rs"] {
            check(path, "store.commit(group)", &[]);
        }
        check("crates/onceward/src/engineering.rs", "store.commit(group)", &[("commit", 2)]);
        check(SERVER, "transaction.commit()?;", &[]);
        check(HTTP, "// store.commit(group)", &[]);
    }

    #[test]
    fn stores_do_not_decide() {
        check(STORE, "use onceward_core::decide;", &[("policy", 2)]);
        check(STORE, "use onceward_core::{Record, decide::decide};", &[("policy", 2)]);
        check(STORE, "onceward_core::decide(facts)", &[("policy", 2)]);
        check(STORE, "use onceward_core::Record;", &[]);
        check(ENGINE, "use onceward_core::decide;", &[]);
    }

    #[test]
    fn only_the_server_reads_the_environment() {
        check(ENGINE, "std::env::var(NAME)", &[("environment", 2)]);
        check(ENGINE, "use std::{env, fmt};", &[("environment", 2)]);
        check(ENGINE, "env::args()", &[("environment", 2)]);
        check(ENGINE, "use clap::Parser;", &[("environment", 2)]);
        check(SERVER, "std::env::var(NAME);\nuse clap::Parser;", &[]);
        check("xtask/src/main.rs", "std::env::args()", &[]);
        check(ENGINE, "let folder = env!(\"CARGO_MANIFEST_DIR\");", &[]);
        let example = "crates/onceward/examples/simulate.rs";
        check(example, "std::env::args()", &[]);
        check(example, "std::env::var(NAME)", &[("environment", 2)]);
    }

    #[test]
    fn tests_read_only_where_their_servers_are() {
        for path in [TEST, SUITE] {
            check(path, "std::env::var(\"ONCEWARD_TEST_POSTGRES_URL\")", &[]);
            check(path, "std::env::var(\n    \"ONCEWARD_TEST_POSTGRES_URL\",\n)", &[]);
            check(path, "use std::env;\nenv::temp_dir()", &[]);
            check(path, "std::env::var(\"HOME\")", &[("environment", 2)]);
        }
        check(ENGINE, "std::env::var(\"ONCEWARD_TEST_POSTGRES_URL\")", &[("environment", 2)]);
    }
}
