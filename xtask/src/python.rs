//! The Python package that one example needs: found, or put into a folder that git ignores.
//!
//! The rule kept here: the machine's own Python is left as it is; what is installed lies in the
//! build folder and is seen by the tests alone.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::services::apt;
use crate::shell;

/// What the example imports, and what it is installed as.
const MODULE: &str = "psycopg";
const PACKAGE: &str = "psycopg[binary]";

/// The variable that makes Python see the folder, and its value.
pub(crate) fn path() -> Result<(&'static str, String)> {
    let folder = shell::root()?.join("target/python");
    if !imports(&folder) {
        if shell::capture(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
            apt::install("python3-pip")?;
        }
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(&folder).arg(PACKAGE);
        shell::run(&mut pip).with_context(|| format!("an example needs {PACKAGE}"))?;
    }
    Ok(("PYTHONPATH", folder.display().to_string()))
}

fn imports(folder: &Path) -> bool {
    let import = format!("import {MODULE}");
    let mut python = Command::new("python3");
    shell::capture(python.args(["-c", &import]).env("PYTHONPATH", folder)).is_ok()
}
