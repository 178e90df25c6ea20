//! Processes, ports and temporary folders of the started servers.
//!
//! The rules kept here: nothing is signalled or removed unless it is shown to be ours, and an
//! answer that cannot be had (no permission) is an error, not a guess.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::shell;

/// Every temporary folder is called this and something; nothing else is ever removed.
const FOLDER_PREFIX: &str = "onceward-";

/// The longest path of a unix socket is 107 bytes on Linux and 103 on macOS; the folder has to
/// leave room for the socket's own name.
const FOLDER_BYTES_MAX: usize = 70;

/// How long a stopped server may take to leave the process table.
const EXIT_MS_MAX: u64 = 10_000;

/// A port on loopback that nobody uses now. Somebody else may take it before the server does, so
/// callers try again with another one.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
    Ok(listener.local_addr().context("the port of a listener")?.port())
}

/// Creates an empty temporary folder.
pub(crate) fn temporary_folder(kind: &str) -> Result<PathBuf> {
    let base = std::env::temp_dir().canonicalize().context("the temporary folder")?;
    let base = if base.as_os_str().len() > FOLDER_BYTES_MAX - 30 { "/tmp".into() } else { base };
    for attempt in 0..100 {
        let name = format!("{FOLDER_PREFIX}{kind}-{}-{attempt}", std::process::id());
        let folder = base.join(name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", folder.display()));
            }
        }
    }
    bail!("100 folders named {FOLDER_PREFIX}{kind}-* are left in {}; remove them", base.display())
}

/// Removes a folder that [`temporary_folder`] created. One that is gone already is fine.
pub(crate) fn remove_folder(folder: &Path) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with(FOLDER_PREFIX) {
        bail!("{} is not a folder of ours and stays", folder.display());
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Whether the process runs. One that has ended but was not yet collected by its parent does not:
/// in a container nobody may ever collect it.
pub(crate) fn is_alive(pid: u32) -> Result<bool> {
    if Path::new("/proc/self/stat").exists() {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return Ok(false) };
        // The name in brackets may hold anything; the state is the first word after it.
        let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
        return Ok(!matches!(state, None | Some("Z" | "X")));
    }
    let output = Command::new("ps")
        .args(["-o", "stat=", "-p", &pid.to_string()])
        .output()
        .context("cannot start `ps`")?;
    let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(!state.is_empty() && !state.starts_with('Z'))
}

/// The folder that the process works in, where the system tells.
pub(crate) fn working_folder(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/cwd")).ok()
}

/// Asks a process to end. Not our child any more, so the shell's own tool carries the signal.
pub(crate) fn terminate(pid: u32) -> Result<()> {
    shell::capture(Command::new("kill").args(["-TERM", &pid.to_string()])).map(drop)
}

/// Returns once the process is gone. It is not our child, so there is no signal to await.
pub(crate) fn wait_until_gone(pid: u32) -> Result<()> {
    let deadline = Instant::now() + Duration::from_millis(EXIT_MS_MAX);
    while is_alive(pid)? {
        if Instant::now() > deadline {
            bail!("process {pid} still runs {EXIT_MS_MAX} ms after it was stopped");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether this process is root, whom some servers refuse.
pub(crate) fn is_root() -> Result<bool> {
    Ok(shell::capture(Command::new("id").arg("-u"))? == "0")
}

/// The user and group numbers of a user, if there is such a user.
pub(crate) fn ids_of(user: &str) -> Option<(u32, u32)> {
    let number =
        |flag: &str| shell::capture(Command::new("id").args([flag, user])).ok()?.parse().ok();
    Some((number("-u")?, number("-g")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_is_collected_or_killed() {
        assert!(is_alive(std::process::id()).unwrap());
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        assert!(is_alive(child.id()).unwrap());
        // Killed and not collected: a zombie, which does not count as alive.
        child.kill().unwrap();
        wait_until_gone(child.id()).unwrap();
        child.wait().unwrap();
        assert!(!is_alive(child.id()).unwrap());
    }

    #[test]
    fn only_our_own_folders_are_removed() {
        let folder = temporary_folder("test").unwrap();
        assert!(folder.as_os_str().len() <= FOLDER_BYTES_MAX);
        let other = folder.join("precious");
        fs::create_dir(&other).unwrap();
        remove_folder(&other).expect_err("its name does not carry the prefix");
        assert!(other.exists());
        remove_folder(&folder).unwrap();
        assert!(!folder.exists());
        remove_folder(&folder).expect("gone already is fine");
    }

    #[test]
    fn two_temporary_folders_are_never_the_same() {
        let (one, two) = (temporary_folder("twin").unwrap(), temporary_folder("twin").unwrap());
        assert_ne!(one, two);
        remove_folder(&one).unwrap();
        remove_folder(&two).unwrap();
    }

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free_port().unwrap();
        TcpListener::bind(("127.0.0.1", port)).expect("nobody took it");
    }
}
