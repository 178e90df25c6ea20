//! The ready file: tells programs where we listen, once everything accepts connections.
//!
//! It appears whole or not at all; one that an earlier run left is removed first, so that nobody
//! waits for a process that is gone. That of a process that lives stays until what it stands on is
//! ours: one who fails to take its place must not make it look gone.

use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;
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

/// As [`clear`], unless whoever wrote it still lives.
pub(crate) fn clear_left(path: &Path) -> Result<(), Failure> {
    let told = std::fs::read(path).ok();
    let told: Option<Value> = told.and_then(|told| serde_json::from_slice(&told).ok());
    let pid = told.and_then(|told| i32::try_from(told.get("pid")?.as_i64()?).ok());
    if pid.is_some_and(lives) { Ok(()) } else { clear(path) }
}

/// Whether another process has this number. Where numbers are few, as in a container, it may be
/// our own.
fn lives(pid: i32) -> bool {
    let other = Pid::from_raw(pid).filter(|pid| *pid != rustix::process::getpid());
    let asked = other.map(rustix::process::test_kill_process);
    asked.is_some_and(|asked| matches!(asked, Ok(()) | Err(Errno::PERM)))
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
