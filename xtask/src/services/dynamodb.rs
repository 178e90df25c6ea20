//! A throw-away DynamoDB on loopback: dynoxide, from npm's archive of its binary.
//!
//! The rules kept here: what was fetched is kept in `.cache`, which git ignores, and is complete or
//! absent (fetched aside, then renamed); the version is fixed. Ready means that it lists its
//! tables.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::daemon::Daemon;
use super::memory::Remembered;
use super::{Service, apt, daemon};
use crate::shell;

pub(super) const SERVICE: Service = Service {
    name: "dynamodb",
    variable: "ONCEWARD_TEST_DYNAMODB_URL",
    by_default: true,
    start,
    probe,
    is_running: daemon::is_running,
    stop: daemon::stop,
};

const VERSION: &str = "1.2.1";
const DAEMON: Daemon = Daemon {
    name: "dynamodb",
    arguments: |command, _, port| {
        // In memory: nothing has to outlive a run, and tests take half the time.
        command.args(["serve", "--host", "127.0.0.1", "--port", &port.to_string()]);
    },
    port_taken: "in use",
    url: |port| format!("http://127.0.0.1:{port}"),
    probe,
};

fn start() -> Result<Remembered> {
    DAEMON.start(&find_or_fetch()?)
}

/// Lists the tables, in the server's own protocol.
fn probe(url: &str) -> Result<()> {
    let rest = url.strip_prefix("http://").context("the URL does not begin with http://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let mut stream = daemon::connect(authority)?;
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\nContent-Length: 2\r\n\
         Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: DynamoDB_20120810.ListTables\r\n\
         X-Amz-Date: 20260101T000000Z\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/eu-central-1/dynamodb/\
         aws4_request, SignedHeaders=host, Signature=00\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).context("the server does not listen")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the server does not answer")?;
    if !answer.starts_with("HTTP/1.1 200") || !answer.contains("TableNames") {
        bail!("the server answers {:?}", answer.lines().next().unwrap_or_default());
    }
    Ok(())
}

/// The binary of this machine's kind, from the cache or from npm.
fn find_or_fetch() -> Result<PathBuf> {
    let kind = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64",
        ("linux", "aarch64") => "linux-arm64",
        ("macos", "aarch64") => "darwin-arm64",
        ("macos", "x86_64") => "darwin-x64",
        (os, arch) => bail!("dynoxide has no binary for {os} on {arch}"),
    };
    let cache = shell::root()?.join(".cache/services");
    let folder = cache.join(format!("dynoxide-{VERSION}"));
    if !folder.is_dir() {
        let aside = cache.join(format!("dynoxide.new-{}", std::process::id()));
        fs::create_dir_all(&aside).with_context(|| format!("cannot create {}", aside.display()))?;
        let kept = fetch(kind, &aside).and_then(|()| {
            fs::rename(aside.join("package"), &folder)
                .with_context(|| format!("cannot keep {}", folder.display()))
        });
        // Only what was aside goes; what is kept was renamed away.
        let _ = fs::remove_dir_all(&aside);
        kept?;
    }
    Ok(folder.join("dynoxide"))
}

fn fetch(kind: &str, aside: &Path) -> Result<()> {
    let npm = match shell::which("npm") {
        Some(npm) => npm,
        None => {
            apt::install("npm")?;
            shell::which("npm").context("npm was installed but is not found")?
        }
    };
    let package = format!("@dynoxide/{kind}@{VERSION}");
    eprintln!("fetching {package} with npm; this happens once");
    let archive =
        shell::capture(Command::new(npm).args(["pack", "--silent", &package]).current_dir(aside))
            .with_context(|| format!("npm does not get {package}"))?;
    let archive = archive.lines().last().unwrap_or_default().to_owned();
    shell::capture(Command::new("tar").args(["-xzf", &archive]).current_dir(aside)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_told_apart_from_one_that_answers() {
        // Nobody listens on port 1, and no other test is given it.
        let error = probe("http://127.0.0.1:1").unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:1"), "{error}");
        probe("redis://127.0.0.1/").expect_err("another protocol");
    }
}
