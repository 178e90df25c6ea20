//! The ready file: tells programs where we listen, once everything accepts connections.
//!
//! It appears whole or not at all; one that an earlier run left is removed first, so that nobody
//! waits for a process that is gone.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::failure::Failure;

/// Removes what an earlier run left.
pub(crate) fn clear(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failed(path, "can't be removed", &error))
        }
        _ => Ok(()),
    }
}

/// Says that everything accepts connections.
pub(crate) fn write(path: &Path, listen: &str, admin: &str) -> Result<(), Failure> {
    let pid = std::process::id();
    write_json(path, &json!({ "listen": listen, "admin": admin, "pid": pid }))
}

/// Writes what is to be told, whole or not at all.
pub(crate) fn write_json(path: &Path, told: &Value) -> Result<(), Failure> {
    let pid = std::process::id();
    let text = told.to_string();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{pid}"));
    let beside = PathBuf::from(beside);
    let written = std::fs::File::create(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&beside, path));
    written.map_err(|error| failed(path, "can't be written", &error))
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Failure {
    let message = format!("--ready-file {} {what}: {error}", path.display());
    Failure::failed("ready_file", message)
}
