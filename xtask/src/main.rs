//! The project's own chores, run as `cargo xtask <chore>`.
//!
//! `ci` is the one command that CI and people run alike; `tidy` keeps by machine what
//! ARCHITECTURE.md promises in prose; `services` starts the real servers that tests need.
//! This file only reads the command line; each chore lives in a module of its own.
//! Dependencies stay few on purpose: everybody compiles this crate before anything else.

#![expect(clippy::print_stdout, reason = "talking to the person who ran it is a chore's output")]
#![expect(clippy::print_stderr, reason = "errors and progress go to stderr, results to stdout")]

mod ci;
mod crash;
mod deny;
mod python;
mod services;
mod shell;
mod tidy;

use std::process::ExitCode;

use anyhow::{Result, bail};

const HELP: &str = "\
cargo xtask <chore>

  ci [--list] [--only STEP]... [--keep-going]
        Everything that must be green. Stops at the first failing step unless --keep-going.
  tidy
        The invariants and style rules that a machine can check.
  deny [--advisories]
        Licences, banned crates and sources of the dependency graph; with --advisories also
        the RustSec database, which has to be reachable.
  crash [--runs N]
        Kills processes at every named point of an event's course, N times each (50), on SQLite and
        on Postgres, and audits what is left.
  services up [NAME]... [--print-env]
  services down [NAME]...
  services status [NAME]...
        Real servers for the tests, on free loopback ports: postgres, redis, kafka, opensearch.
        Without a name, `up` means the first two, which all tests need; the others mean all.
        eval \"$(cargo xtask services up --print-env)\"
  help
        This text.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Result<()> {
    match words {
        ["ci", rest @ ..] => ci::main(rest),
        ["tidy"] => tidy::main(),
        ["deny"] => deny::main(deny::Scope::Graph),
        ["deny", "--advisories"] => deny::main(deny::Scope::GraphAndAdvisories),
        ["crash", rest @ ..] => crash::main(rest),
        ["services", rest @ ..] => services::main(rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        _ => bail!("`{}` is not a chore; `cargo xtask help` lists them", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_chore_is_an_error_that_names_it() {
        let error = dispatch(&["frobnicate", "now"]).unwrap_err();
        assert!(error.to_string().contains("`frobnicate now` is not a chore"), "{error}");
    }

    #[test]
    fn a_chore_refuses_words_that_it_does_not_know() {
        for words in [
            &["tidy", "--fix"][..],
            &["deny", "--all"],
            &["ci", "--fast"],
            &["crash", "--runs", "x"],
        ] {
            dispatch(words).expect_err(&words.join(" "));
        }
    }
}
