//! A throw-away Redis on loopback, from Debian's `redis-server`.
//!
//! The rules kept here: it appends every write to a file, as a cache that survives a restart does,
//! because stale values after a restart are part of what the tests prove; it is stopped only while
//! it works in the folder that was created for it. Ready means that a value comes back.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::memory::Remembered;
use super::{Service, apt, process};
use crate::shell;

pub(super) const SERVICE: Service = Service {
    name: "redis",
    variable: "ONCEWARD_TEST_REDIS_URL",
    by_default: true,
    start,
    probe,
    is_running,
    stop,
};

/// Another program may take the free port before the server does.
const START_ATTEMPTS_MAX: u32 = 5;
/// How long it may take from the start to the first answer.
const START_WITHIN: Duration = Duration::from_secs(20);
/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

fn start() -> Result<Remembered> {
    let program = find_or_install()?;
    let dir = process::temporary_folder("redis")?;
    start_in(&program, &dir).inspect_err(|_| {
        // The first error is the one to tell; a folder that stays behind harms nobody.
        let _ = process::remove_folder(&dir);
    })
}

fn start_in(program: &Path, dir: &Path) -> Result<Remembered> {
    for _ in 0..START_ATTEMPTS_MAX {
        let port = process::free_port()?;
        let log = dir.join("log");
        let output = File::create(&log).context("the log of redis")?;
        let mut server = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--appendonly", "yes"])
            .args(["--save", "", "--daemonize", "no", "--dir"])
            .arg(dir)
            .current_dir(dir)
            // Ctrl-C at our terminal is not meant for it: it outlives us.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("the log of redis")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let url = format!("redis://127.0.0.1:{port}/");
        let begun = Instant::now();
        loop {
            // Asked first: once it has ended, whoever answers on that port is somebody else.
            if let Some(status) = server.try_wait().context("the state of redis")? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                if said.contains("Address already in use") {
                    break;
                }
                bail!("redis does not start ({status}); its log says:\n{}", said.trim());
            }
            if probe(&url).is_ok() {
                return Ok(Remembered { url, pid: server.id(), dir: dir.to_path_buf() });
            }
            if begun.elapsed() > START_WITHIN {
                let _ = server.kill();
                let _ = server.wait();
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("redis gives no answer; its log says:\n{}", said.trim());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    bail!("redis found its port taken {START_ATTEMPTS_MAX} times in a row")
}

/// Writes a value and reads it back, in the server's own protocol.
fn probe(url: &str) -> Result<()> {
    let rest = url.strip_prefix("redis://").context("the URL does not begin with redis://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        bail!("a URL with a login is not supported here");
    }
    let authority =
        if authority.contains(':') { authority.to_owned() } else { format!("{authority}:6379") };
    let address = authority
        .to_socket_addrs()
        .with_context(|| format!("cannot tell where {authority} is"))?
        .next()
        .with_context(|| format!("{authority} has no address"))?;
    let stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)
        .with_context(|| format!("cannot reach {authority}"))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).context("a time-out")?;
    let key = format!("onceward:probe:{}", std::process::id());
    let mut answers = BufReader::new(stream.try_clone().context("the connection")?);
    for (line, expected) in [
        (format!("SET {key} 42 EX 5\r\n"), "+OK"),
        (format!("GET {key}\r\n"), "$2"),
        (String::new(), "42"),
    ] {
        (&stream).write_all(line.as_bytes()).context("the server does not listen")?;
        let mut answer = String::new();
        answers.read_line(&mut answer).context("the server does not answer")?;
        if answer.trim_end() != expected {
            bail!("the server answers {:?} where {expected:?} is right", answer.trim_end());
        }
    }
    Ok(())
}

fn is_running(known: &Remembered) -> Result<bool> {
    // The number may be somebody else's by now. The server works in its own folder.
    Ok(process::is_alive(known.pid)?
        && process::working_folder(known.pid).is_none_or(|folder| folder == known.dir))
}

fn stop(known: &Remembered) -> Result<()> {
    process::terminate(known.pid)?;
    process::wait_until_gone(known.pid)
}

fn find_or_install() -> Result<PathBuf> {
    match shell::which("redis-server") {
        Some(program) => Ok(program),
        None => {
            apt::install("redis-server")?;
            shell::which("redis-server").context("redis-server was installed but is not found")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_told_apart_from_one_that_answers() {
        // Nobody listens on port 1, and no other test is given it.
        let error = probe("redis://127.0.0.1:1/").unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1"), "{error}");
        probe("http://127.0.0.1/").expect_err("another protocol");
    }

    #[test]
    #[cfg(target_os = "linux")] // Elsewhere the system does not tell where a process works.
    fn somebody_elses_process_is_never_taken_for_the_server() {
        let dir = process::temporary_folder("redis").unwrap();
        let url = "redis://127.0.0.1:1/".to_owned();
        let known = Remembered { url, pid: std::process::id(), dir: dir.clone() };
        assert!(!is_running(&known).unwrap());
        process::remove_folder(&dir).unwrap();
    }
}
