//! The Python packages that tests need: found, or put into a folder that git ignores.
//!
//! The rule kept here: the machine's own Python is left as it is; what is installed lies in the
//! build folder and is seen by the tests alone.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::services::apt;
use crate::shell;

/// A package: what is imported, and what it is installed as.
struct Package {
    module: &'static str,
    name: &'static str,
}

const PACKAGES: &[Package] = &[
    // An example speaks to Postgres with it.
    Package { module: "psycopg", name: "psycopg[binary]" },
    // The description of the control API is judged by it.
    Package { module: "openapi_spec_validator", name: "openapi-spec-validator==0.7.2" },
];

/// The variable that makes Python see the folder, and its value.
pub(crate) fn path() -> Result<(&'static str, String)> {
    let folder = shell::root()?.join("target/python");
    for package in PACKAGES {
        if !imports(&folder, package.module) {
            install(&folder, package.name)?;
        }
    }
    Ok(("PYTHONPATH", folder.display().to_string()))
}

fn install(folder: &Path, package: &str) -> Result<()> {
    if shell::capture(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
        apt::install("python3-pip")?;
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(folder).arg(package);
    shell::run(&mut pip).with_context(|| format!("the tests need {package}"))
}

fn imports(folder: &Path, module: &str) -> bool {
    let import = format!("import {module}");
    let mut python = Command::new("python3");
    shell::capture(python.args(["-c", &import]).env("PYTHONPATH", folder)).is_ok()
}
