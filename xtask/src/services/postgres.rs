//! A throw-away PostgreSQL cluster on loopback, durable as in production.
//!
//! The rules kept here: `fsync` and `synchronous_commit` stay on, because durability is part of
//! what the tests prove; the server never runs as root; it is stopped only while its own
//! `postmaster.pid` says that the process serves the folder that was created for it.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::memory::Remembered;
use super::{Service, apt, process};
use crate::shell;

pub(super) const SERVICE: Service = Service {
    name: "postgres",
    variable: "ONCEWARD_TEST_POSTGRES_URL",
    by_default: true,
    start,
    probe,
    is_running,
    stop,
};

/// The oldest server that the project supports.
const MAJOR_VERSION_MIN: u32 = 15;

/// Another program may take the free port before the server does; that often is no accident.
const START_ATTEMPTS_MAX: u32 = 5;

/// Where Debian keeps the server's programs, one folder per major version, not on PATH.
const DEBIAN_HOME: &str = "/usr/lib/postgresql";

/// Who owns the server when we are root, the first that exists.
const UNPRIVILEGED_USERS: &[&str] = &["postgres", "nobody"];

fn start() -> Result<Remembered> {
    let bin = find_or_install()?;
    let dir = process::temporary_folder("pg")?;
    start_in(&bin, &dir).inspect_err(|_| {
        // The first error is the one to tell; a folder that stays behind harms nobody.
        let _ = process::remove_folder(&dir);
    })
}

fn start_in(bin: &Path, dir: &Path) -> Result<Remembered> {
    let owner = unprivileged_user()?;
    if let Some((_, uid, gid)) = owner {
        chown(dir, Some(uid), Some(gid))
            .with_context(|| format!("cannot give {} to another user", dir.display()))?;
    }
    let user = owner.map(|(name, ..)| name);
    let data = dir.join("data");
    // `--no-sync` is about these first files only; the server syncs all that it writes later.
    shell::capture(
        program(bin, "initdb", user, dir)
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data),
    )?;
    for _ in 0..START_ATTEMPTS_MAX {
        let port = process::free_port()?;
        if let Some(pid) = try_port(bin, user, dir, port)? {
            let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
            return Ok(Remembered { url, pid, dir: dir.to_path_buf() });
        }
    }
    bail!("postgres found its port taken {START_ATTEMPTS_MAX} times in a row")
}

/// Starts the server; `None` when somebody else took the port first.
fn try_port(bin: &Path, user: Option<&str>, dir: &Path, port: u16) -> Result<Option<u32>> {
    let (data, log) = (dir.join("data"), dir.join("log"));
    let options = format!(
        "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={} \
         -c fsync=on -c synchronous_commit=on -c max_connections=200 -c timezone=UTC",
        dir.display()
    );
    // `pg_ctl -w` comes back when the server says in its pid file that it is ready. The server
    // itself lives in a session of its own, with its output in the log, so it outlives us.
    let mut command = program(bin, "pg_ctl", user, dir);
    command.args(["start", "-w", "-t", "60", "-o", &options]);
    command.arg("-D").arg(&data).arg("-l").arg(&log).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("cannot start pg_ctl")?;
    if status.success() {
        let served = served(&data)?.context("postgres runs but has no postmaster.pid")?;
        return Ok(Some(served.pid));
    }
    let said = fs::read_to_string(&log).unwrap_or_default();
    if said.contains("Address already in use") {
        fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
        return Ok(None);
    }
    bail!("postgres does not start ({status}); its log says:\n{}", said.trim())
}

fn probe(url: &str) -> Result<()> {
    let psql = match installed() {
        Some(bin) if bin.join("psql").is_file() => bin.join("psql"),
        _ => shell::which("psql").context("there is no psql to ask the server with")?,
    };
    let mut command = Command::new(psql);
    command.args(["-X", "-A", "-t", "-q", "-d", url, "-c", "SELECT 40 + 2"]);
    let answer = shell::capture(plain(&mut command).env("PGCONNECT_TIMEOUT", "10"))?;
    if answer != "42" {
        bail!("the server answers {answer:?} where 42 is right");
    }
    Ok(())
}

fn is_running(known: &Remembered) -> Result<bool> {
    let data = known.dir.join("data");
    let Some(served) = served(&data)? else { return Ok(false) };
    if served.pid != known.pid || served.data != data || !process::is_alive(known.pid)? {
        return Ok(false);
    }
    // After a crash the pid file stays and the number may be somebody else's by now. The server
    // works in its data folder; a process that works elsewhere is not it.
    Ok(process::working_folder(known.pid).is_none_or(|folder| folder == data))
}

fn stop(known: &Remembered) -> Result<()> {
    let bin = installed().context("the programs of postgres are gone; stop it by hand")?;
    let user = unprivileged_user()?.map(|(name, ..)| name);
    let mut command = program(&bin, "pg_ctl", user, &known.dir);
    // Its folder is removed next: syncing the tens of thousands of files that the tests' schemas
    // leave in it took more than the minute that `pg_ctl` waits.
    command.args(["stop", "-w", "-m", "immediate", "-D"]).arg(known.dir.join("data"));
    shell::capture(&mut command)?;
    process::wait_until_gone(known.pid)
}

/// What a data folder's `postmaster.pid` says about its server.
struct Served {
    pid: u32,
    data: PathBuf,
}

fn served(data: &Path) -> Result<Option<Served>> {
    let path = data.join("postmaster.pid");
    match fs::read_to_string(&path) {
        Ok(text) => parse_postmaster(&text)
            .map(Some)
            .with_context(|| format!("cannot understand {}", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The first line is the process, the second the data folder.
fn parse_postmaster(text: &str) -> Result<Served> {
    let mut lines = text.lines();
    let pid = lines.next().unwrap_or_default().trim().parse().context("line 1 is no process id")?;
    let data = lines.next().filter(|line| !line.is_empty()).context("line 2 names no folder")?;
    Ok(Served { pid, data: PathBuf::from(data) })
}

fn find_or_install() -> Result<PathBuf> {
    let bin = match installed() {
        Some(bin) => bin,
        None => {
            apt::install("postgresql")?;
            installed().context("postgresql was installed but its programs are not found")?
        }
    };
    let said = shell::capture(Command::new(bin.join("postgres")).arg("--version"))?;
    let major = major_version(&said).with_context(|| format!("no version in {said:?}"))?;
    if major < MAJOR_VERSION_MIN {
        bail!("PostgreSQL {major} in {} is older than {MAJOR_VERSION_MIN}", bin.display());
    }
    Ok(bin)
}

/// The folder with the server's programs: Debian's newest, else what PATH leads to.
fn installed() -> Option<PathBuf> {
    let complete = |bin: &PathBuf| {
        ["postgres", "initdb", "pg_ctl"].iter().all(|program| bin.join(program).is_file())
    };
    let names = fs::read_dir(DEBIAN_HOME).into_iter().flatten().flatten();
    let newest_first = by_version(names.map(|entry| entry.path()).collect());
    let debian = newest_first.into_iter().map(|folder| folder.join("bin"));
    let configured = shell::which("pg_config")
        .and_then(|tool| shell::capture(Command::new(tool).arg("--bindir")).ok())
        .map(PathBuf::from);
    let on_path = shell::which("initdb").and_then(|tool| tool.parent().map(Path::to_path_buf));
    debian.chain(configured).chain(on_path).find(complete)
}

fn by_version(mut folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let version = |folder: &PathBuf| -> Option<u32> { folder.file_name()?.to_str()?.parse().ok() };
    folders.retain(|folder| version(folder).is_some());
    folders.sort_by_key(|folder| std::cmp::Reverse(version(folder)));
    folders
}

fn major_version(said: &str) -> Option<u32> {
    let number = said.split_whitespace().find(|word| word.starts_with(char::is_numeric))?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Whom the server runs as: `None` for ourselves, since it refuses only root.
fn unprivileged_user() -> Result<Option<(&'static str, u32, u32)>> {
    if !process::is_root()? {
        return Ok(None);
    }
    UNPRIVILEGED_USERS
        .iter()
        .find_map(|user| process::ids_of(user).map(|(uid, gid)| (*user, uid, gid)))
        .map(Some)
        .with_context(|| {
            format!("postgres refuses root, and none of {UNPRIVILEGED_USERS:?} exists")
        })
}

fn program(bin: &Path, name: &str, user: Option<&str>, folder: &Path) -> Command {
    let mut command = match user {
        Some(user) => {
            let mut command = Command::new("runuser");
            command.args(["-u", user, "--"]).arg(bin.join(name));
            command
        }
        None => Command::new(bin.join(name)),
    };
    // The other user may not be allowed to enter the folder we are called from.
    plain(&mut command).current_dir(folder).stdin(Stdio::null());
    command
}

/// Messages in English, and none of the `PG*` variables of the person who runs this.
fn plain(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first_by_number_and_not_by_letter() {
        let folders = ["9", "15", "100", "common"].map(PathBuf::from).to_vec();
        assert_eq!(by_version(folders), ["100", "15", "9"].map(PathBuf::from));
    }

    #[test]
    fn the_version_is_read_from_what_the_server_says() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"), Some(15));
        assert_eq!(major_version("postgres (PostgreSQL) 19beta1"), Some(19));
        assert_eq!(major_version("postgres"), None);
    }

    #[test]
    fn a_pid_file_names_process_and_folder() {
        let served = parse_postmaster("4711\n/tmp/x/data\n1700000000\n5432\n").unwrap();
        assert_eq!((served.pid, served.data), (4711, PathBuf::from("/tmp/x/data")));
        assert!(parse_postmaster("").is_err());
        assert!(parse_postmaster("4711\n").is_err());
    }

    #[test]
    #[cfg(target_os = "linux")] // Elsewhere the system does not tell where a process works.
    fn somebody_elses_process_is_never_taken_for_the_server() {
        // The pid file is there and names a process that runs, as after a crash and a reused
        // number: this very test, which does not work in that folder.
        let dir = process::temporary_folder("pg").unwrap();
        let data = dir.join("data");
        fs::create_dir(&data).unwrap();
        let pid = std::process::id();
        fs::write(data.join("postmaster.pid"), format!("{pid}\n{}\n", data.display())).unwrap();
        let url = "postgres://postgres@127.0.0.1:1/postgres".to_owned();
        let known = Remembered { url, pid, dir: dir.clone() };
        assert!(!is_running(&known).unwrap());
        process::remove_folder(&dir).unwrap();
        assert!(!is_running(&known).unwrap(), "without a pid file nothing runs");
    }
}
