//! `cargo xtask tidy`: the invariants of ARCHITECTURE.md and the style, checked by machine.
//!
//! The rule kept here: every rule is a function from text to findings, so that each can be shown
//! to fire on a few lines; reading files and running cargo happens in this file alone.
//! Not responsible for what rustfmt and clippy check already.

mod code;
mod repository;
mod rules;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use self::code::Source;
use crate::shell;

/// Folders that hold no sources of ours.
const FOLDERS_SKIPPED: &[&str] = &[".git", ".cache", ".services", "node_modules", "target"];

/// Files that a program writes.
const FILES_SKIPPED: &[&str] = &["Cargo.lock", "package-lock.json"];

/// Something that is not as it should be.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// From 1; 0 where the whole file is meant.
    line: usize,
    rule: &'static str,
    message: String,
}

/// Checks the whole repository.
pub(crate) fn main() -> Result<()> {
    let root = shell::root()?;
    let mut findings = Vec::new();
    let files = read_all(&root)?;
    for (path, text) in &files {
        findings.extend(repository::words(path, text));
        if path.ends_with(".rs") {
            findings.extend(rules::all(&Source::new(path, text)));
        }
    }
    let read = |path: &str| files.iter().find(|(known, _)| known == path).map(|(_, text)| text);
    findings.extend(repository::documents(|path| read(path).map(String::as_str)));
    let manifest = "crates/onceward/Cargo.toml";
    findings.extend(repository::features(manifest, read(manifest).map_or("", String::as_str)));
    let tree = shell::capture(&mut shell::cargo(repository::CORE_TREE)?)?;
    findings.extend(repository::core_dependencies(&tree));

    findings.sort();
    for Finding { path, line, rule, message } in &findings {
        println!("{path}:{line}: {message} [{rule}]");
    }
    if !findings.is_empty() {
        bail!("tidy has {} findings", findings.len());
    }
    println!("tidy: {} files, nothing to complain about", files.len());
    Ok(())
}

/// All text files with their paths from the root, in the order of their names.
fn read_all(root: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let cannot = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let kind = entry.file_type().with_context(cannot)?;
            if kind.is_dir() {
                if !FOLDERS_SKIPPED.contains(&&*name) {
                    folders.push(path);
                }
                continue;
            }
            // In a second work tree `.git` is a file.
            if !kind.is_file() || FILES_SKIPPED.contains(&&*name) || name == ".git" {
                continue;
            }
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let shown = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            match String::from_utf8(bytes) {
                Ok(text) => files.push((shown, text)),
                Err(_) if shown.ends_with(".rs") => bail!("{shown} is not UTF-8"),
                // A picture, a fuzzing corpus: nothing that these rules could read.
                Err(_) => {}
            }
        }
    }
    files.sort();
    Ok(files)
}
