//! Running other programs: echo what is run, fail with the command that failed.
//!
//! The rule kept here: a program that cannot be started or exits other than 0 is an error that
//! shows the whole command line, so that it can be pasted and run again.
//! Not responsible for what the programs mean.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The folder of the workspace. Cargo names it at run time; a path fixed at compile time would be
/// wrong when several checkouts share one target folder.
pub(crate) fn root() -> Result<PathBuf> {
    if let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR")
        && let Some(parent) = Path::new(&manifest).parent()
    {
        return Ok(parent.to_path_buf());
    }
    let here = std::env::current_dir().context("cannot tell the current folder")?;
    here.ancestors()
        .find(|folder| folder.join("xtask/Cargo.toml").is_file())
        .map(Path::to_path_buf)
        .with_context(|| format!("{} is not inside the workspace", here.display()))
}

/// Cargo, run at the root of the workspace. On CI nothing is compiled a second time from the same
/// folder, so incremental artefacts would only cost time and disk.
pub(crate) fn cargo(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(root()?);
    // What cargo told us about ourselves is not for the next one: build scripts that look at it
    // (ring's does) would make all that stands on them be built again.
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    if is_ci() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    Ok(command)
}

/// Whether this runs on a CI machine, by the variable that all of them set.
pub(crate) fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// Runs with output going straight through.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Runs quietly and answers what was written to stdout; an error carries what went to stderr.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Where `program` is on PATH, if it is.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// A word as a shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The command line with the variables that were set for it, ready to be pasted.
fn shown(command: &Command) -> String {
    let text = |word: &OsStr| quoted(&word.to_string_lossy());
    let variables = command.get_envs().filter_map(|(name, value)| {
        value.map(|value| format!("{}={}", name.to_string_lossy(), text(value)))
    });
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(text);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_command_and_what_it_said() {
        let error = capture(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"]))
            .expect_err("exit 3 is a failure");
        let text = error.to_string();
        assert!(text.contains("sh -c 'echo no luck >&2; exit 3'"), "{text}");
        assert!(text.contains("exit status: 3: no luck"), "{text}");
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(
            quoted("postgres://postgres@127.0.0.1:5/x"),
            "postgres://postgres@127.0.0.1:5/x"
        );
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
