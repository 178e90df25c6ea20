//! A throw-away Redis on loopback, from Debian's `redis-server`.
//!
//! The rules kept here: it appends every write to a file, as a cache that survives a restart does,
//! because stale values after a restart are part of what the tests prove. Ready means that a value
//! comes back.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::daemon::Daemon;
use super::memory::Remembered;
use super::{Service, apt, daemon};
use crate::shell;

pub(super) const SERVICE: Service = Service {
    name: "redis",
    variable: "ONCEWARD_TEST_REDIS_URL",
    by_default: true,
    start,
    probe,
    is_running: daemon::is_running,
    stop: daemon::stop,
};

const DAEMON: Daemon = Daemon {
    name: "redis",
    arguments: |command, dir, port| {
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--appendonly", "yes"]);
        command.args(["--save", "", "--daemonize", "no", "--dir"]).arg(dir);
    },
    port_taken: "Address already in use",
    url: |port| format!("redis://127.0.0.1:{port}/"),
    probe,
};

fn start() -> Result<Remembered> {
    DAEMON.start(&find_or_install()?)
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
    let stream = daemon::connect(&authority)?;
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
}
