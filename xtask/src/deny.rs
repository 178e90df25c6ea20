//! `cargo deny` with the rules of `deny.toml`, installing it when the machine lacks it.
//!
//! The rule kept here: the check is really run, never skipped because the tool is missing.
//! Advisories are apart: their database is a git repository, which machines that reach only
//! package registries cannot load; asking for them where it cannot be reached is an error.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::shell;

/// The version that is installed when none is there. It has to build on the pinned toolchain.
const VERSION: &str = "0.20.2";

/// How much is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Banned crates, licences and sources: all that needs no network.
    Graph,
    /// The above, and the RustSec advisories.
    GraphAndAdvisories,
}

/// Checks the dependency graph.
pub(crate) fn main(scope: Scope) -> Result<()> {
    let root = shell::root()?;
    let mut command = Command::new(tool(&root)?);
    command.current_dir(&root).args(["--all-features", "check", "bans", "licenses", "sources"]);
    if scope == Scope::GraphAndAdvisories {
        command.arg("advisories");
    }
    shell::run(&mut command)
}

fn tool(root: &Path) -> Result<PathBuf> {
    if let Some(found) = shell::which("cargo-deny") {
        return Ok(found);
    }
    let folder = root.join(".cache/tools");
    let installed = folder.join("bin/cargo-deny");
    if !installed.is_file() {
        install(root, &folder)?;
    }
    Ok(installed)
}

/// Builds the tool once into the git-ignored cache. Its own release profile links with fat LTO;
/// for a check of a few seconds that time is better spent elsewhere.
fn install(root: &Path, folder: &Path) -> Result<()> {
    let build = root.join(".cache/tools-build");
    println!("cargo-deny is not on PATH: building {VERSION} into .cache/tools (minutes, once)");
    let started = Instant::now();
    let mut command = shell::cargo(&["install", "cargo-deny", "--locked", "--version", VERSION])?;
    command
        .arg("--root")
        .arg(folder)
        .arg("--target-dir")
        .arg(&build)
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    shell::run(&mut command)?;
    println!("cargo-deny was built in {} s", started.elapsed().as_secs());
    std::fs::remove_dir_all(&build)
        .with_context(|| format!("cannot remove the build folder {}", build.display()))
}
