//! A throw-away DynamoDB on loopback: dynoxide, from npm's archive of its binary.
//!
//! The rules kept here: what was fetched is kept in `.cache`, which git ignores, and is complete or
//! absent (fetched aside, then renamed); the version is fixed; the server writes to a file, is
//! stopped only while it works in the folder that was created for it, and is ready once it lists
//! its tables.

use std::fs::{self, File};
use std::io::{Read, Write};
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
    name: "dynamodb",
    variable: "ONCEWARD_TEST_DYNAMODB_URL",
    by_default: true,
    start,
    probe,
    is_running,
    stop,
};

const VERSION: &str = "1.2.1";
/// Another program may take the free port before the server does.
const START_ATTEMPTS_MAX: u32 = 5;
/// How long it may take from the start to the first answer.
const START_WITHIN: Duration = Duration::from_secs(20);
/// How long one answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

fn start() -> Result<Remembered> {
    let program = find_or_fetch()?;
    let dir = process::temporary_folder("dynamodb")?;
    start_in(&program, &dir).inspect_err(|_| {
        // The first error is the one to tell; a folder that stays behind harms nobody.
        let _ = process::remove_folder(&dir);
    })
}

fn start_in(program: &Path, dir: &Path) -> Result<Remembered> {
    for _ in 0..START_ATTEMPTS_MAX {
        let port = process::free_port()?;
        let log = dir.join("log");
        let output = File::create(&log).context("the log of dynoxide")?;
        let mut server = Command::new(program)
            .args(["serve", "--host", "127.0.0.1", "--port", &port.to_string(), "--db-path"])
            .arg(dir.join("tables.db"))
            .current_dir(dir)
            // Ctrl-C at our terminal is not meant for it: it outlives us.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("the log of dynoxide")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let url = format!("http://127.0.0.1:{port}");
        let begun = Instant::now();
        loop {
            // Asked first: once it has ended, whoever answers on that port is somebody else.
            if let Some(status) = server.try_wait().context("the state of dynoxide")? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                if said.contains("in use") {
                    break;
                }
                bail!("dynoxide does not start ({status}); its log says:\n{}", said.trim());
            }
            if probe(&url).is_ok() {
                return Ok(Remembered { url, pid: server.id(), dir: dir.to_path_buf() });
            }
            if begun.elapsed() > START_WITHIN {
                let _ = server.kill();
                let _ = server.wait();
                let said = fs::read_to_string(&log).unwrap_or_default();
                bail!("dynoxide gives no answer; its log says:\n{}", said.trim());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    bail!("dynoxide found its port taken {START_ATTEMPTS_MAX} times in a row")
}

/// Lists the tables, in the server's own protocol.
fn probe(url: &str) -> Result<()> {
    let rest = url.strip_prefix("http://").context("the URL does not begin with http://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let address = authority
        .to_socket_addrs()
        .with_context(|| format!("cannot tell where {authority} is"))?
        .next()
        .with_context(|| format!("{authority} has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WITHIN)
        .with_context(|| format!("cannot reach {authority}"))?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).context("a time-out")?;
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

fn is_running(known: &Remembered) -> Result<bool> {
    // The number may be somebody else's by now. The server works in its own folder.
    Ok(process::is_alive(known.pid)?
        && process::working_folder(known.pid).is_none_or(|folder| folder == known.dir))
}

fn stop(known: &Remembered) -> Result<()> {
    process::terminate(known.pid)?;
    process::wait_until_gone(known.pid)
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
