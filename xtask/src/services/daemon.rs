//! Servers that are one program without a set-up: started on a free port in a folder of their own.
//!
//! The rules kept here: the server writes to a file, outlives us, and is ready once it has answered
//! a real request; it is stopped only while it works in the folder that was created for it.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::memory::Remembered;
use super::process;

/// Another program may take the free port before the server does.
const START_ATTEMPTS_MAX: u32 = 5;
/// How long it may take from the start to the first answer.
const START_WITHIN: Duration = Duration::from_secs(20);
/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// One such server.
pub(super) struct Daemon {
    /// What it is called in messages and folders.
    pub(super) name: &'static str,
    /// Its arguments in a folder and on a port.
    pub(super) arguments: fn(command: &mut Command, dir: &Path, port: u16),
    /// What its log says when somebody else has the port.
    pub(super) port_taken: &'static str,
    /// Where it is, on a port.
    pub(super) url: fn(port: u16) -> String,
    /// Sends one real request.
    pub(super) probe: fn(url: &str) -> Result<()>,
}

impl Daemon {
    /// Starts it, and returns once it answers.
    pub(super) fn start(&self, program: &Path) -> Result<Remembered> {
        let dir = process::temporary_folder(self.name)?;
        self.start_in(program, &dir).inspect_err(|_| {
            // The first error is the one to tell; a folder that stays behind harms nobody.
            let _ = process::remove_folder(&dir);
        })
    }

    fn start_in(&self, program: &Path, dir: &Path) -> Result<Remembered> {
        let name = self.name;
        for _ in 0..START_ATTEMPTS_MAX {
            let port = process::free_port()?;
            let log = dir.join("log");
            let output = File::create(&log).with_context(|| format!("the log of {name}"))?;
            let mut command = Command::new(program);
            (self.arguments)(&mut command, dir, port);
            let mut server = command
                .current_dir(dir)
                // Ctrl-C at our terminal is not meant for it: it outlives us.
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(output.try_clone().with_context(|| format!("the log of {name}"))?)
                .stderr(output)
                .spawn()
                .with_context(|| format!("cannot start {}", program.display()))?;
            let url = (self.url)(port);
            let begun = Instant::now();
            let said = || fs::read_to_string(&log).unwrap_or_default().trim().to_owned();
            loop {
                // Asked first: once it has ended, whoever answers on that port is somebody else.
                if let Some(status) = server.try_wait().with_context(|| format!("is {name} up?"))? {
                    if said().contains(self.port_taken) {
                        break;
                    }
                    bail!("{name} does not start ({status}); its log says:\n{}", said());
                }
                if (self.probe)(&url).is_ok() {
                    return Ok(Remembered { url, pid: server.id(), dir: dir.to_path_buf() });
                }
                if begun.elapsed() > START_WITHIN {
                    let _ = server.kill();
                    let _ = server.wait();
                    bail!("{name} gives no answer; its log says:\n{}", said());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        bail!("{name} found its port taken {START_ATTEMPTS_MAX} times in a row")
    }
}

/// Whether the process of a server still runs.
pub(super) fn is_running(known: &Remembered) -> Result<bool> {
    // The number may be somebody else's by now. The server works in its own folder.
    Ok(process::is_alive(known.pid)?
        && process::working_folder(known.pid).is_none_or(|folder| folder == known.dir))
}

/// Ends it, and returns once it is gone.
pub(super) fn stop(known: &Remembered) -> Result<()> {
    process::terminate(known.pid)?;
    process::wait_until_gone(known.pid)
}

/// A connection to a server, whose answers are awaited only so long.
pub(super) fn connect(authority: &str) -> Result<TcpStream> {
    let address: SocketAddr = authority
        .to_socket_addrs()
        .with_context(|| format!("cannot tell where {authority} is"))?
        .next()
        .with_context(|| format!("{authority} has no address"))?;
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)
        .with_context(|| format!("cannot reach {authority}"))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).context("a time-out")?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")] // Elsewhere the system does not tell where a process works.
    fn somebody_elses_process_is_never_taken_for_the_server() {
        let dir = process::temporary_folder("daemon").unwrap();
        let url = "redis://127.0.0.1:1/".to_owned();
        let known = Remembered { url, pid: std::process::id(), dir: dir.clone() };
        assert!(!is_running(&known).unwrap());
        process::remove_folder(&dir).unwrap();
    }

    #[test]
    fn a_server_that_ends_at_once_is_told_with_what_it_said() {
        let daemon = Daemon {
            name: "test",
            arguments: |command, _, port| {
                command.args(["-c", &format!("echo no room for {port}; exit 3")]);
            },
            port_taken: "taken",
            url: |port| format!("127.0.0.1:{port}"),
            probe: |_| bail!("nobody is there"),
        };
        let error = daemon.start("sh".as_ref()).unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("no room for"), "{error}");
    }
}
