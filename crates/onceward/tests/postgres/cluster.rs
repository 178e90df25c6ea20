//! A Postgres server of a test's own, to be killed: its folder is new, its port free.
//!
//! Rule: the server that other tests share is never touched. Without the server's programs on this
//! machine the test fails and says so.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Cluster {
    programs: PathBuf,
    folder: PathBuf,
    port: u16,
}

impl Cluster {
    /// Makes a server and starts it.
    pub(crate) fn start() -> Self {
        let cluster = Self::empty();
        let data = shown(&cluster.data());
        cluster.must("initdb", &["-A", "trust", "-U", "postgres", "-E", "UTF8", "-D", &data]);
        cluster.restart();
        cluster
    }

    /// Makes a standby that follows this server, and starts it. It is ready to be read.
    pub(crate) fn standby(&self) -> Self {
        let standby = Self::empty();
        let (data, port) = (shown(&standby.data()), self.port.to_string());
        let from = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
        let mut all = vec!["-R", "-X", "stream", "-c", "fast", "-D", &data];
        all.extend(from);
        standby.must("pg_basebackup", &all);
        standby.restart();
        standby
    }

    /// A folder and a port, and nothing in them yet.
    fn empty() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("onceward-cluster-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        if is_root() {
            assert!(run("chown", &["postgres", &shown(&folder)]).status.success());
        }
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        Self { programs: programs(), folder, port }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Kills the server as a crash would: nothing is written or answered any more.
    pub(crate) fn kill(&self) {
        let pid_file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap();
        let pid = pid_file.lines().next().unwrap();
        assert!(run("kill", &["-9", pid]).status.success());
    }

    /// Starts the server, also after a crash, once the processes of the killed one are gone.
    pub(crate) fn restart(&self) {
        let settings = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={} -c fsync=on",
            self.port,
            shown(&self.folder)
        );
        let (data, log) = (shown(&self.data()), shown(&self.folder.join("log")));
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let started =
                self.program("pg_ctl", &["-w", "-D", &data, "-l", &log, "-o", &settings, "start"]);
            if started.status.success() {
                return;
            }
            assert!(Instant::now() < deadline, "the server does not start: {started:?}");
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn must(&self, program: &str, arguments: &[&str]) {
        let output = self.program(program, arguments);
        assert!(output.status.success(), "{program}: {output:?}");
    }

    /// Runs one of the server's programs, which refuse to be run by root.
    fn program(&self, program: &str, arguments: &[&str]) -> Output {
        let program = shown(&self.programs.join(program));
        if !is_root() {
            return run(&program, arguments);
        }
        let mut all = vec!["-u", "postgres", "--", &program];
        all.extend(arguments);
        run("runuser", &all)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = shown(&self.data());
        self.program("pg_ctl", &["-D", &data, "-m", "immediate", "-w", "stop"]);
        // What can't be removed lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn is_root() -> bool {
    String::from_utf8_lossy(&run("id", &["-u"]).stdout).trim() == "0"
}

fn run(program: &str, arguments: &[&str]) -> Output {
    // Not in our folder, which the server's user may not enter.
    Command::new(program).args(arguments).current_dir("/").output().unwrap_or_else(|error| {
        panic!("{program} can't be run: {error}; these tests need PostgreSQL's server programs")
    })
}

/// Where the server's programs are: seldom on the path.
fn programs() -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|folder| folder.flatten().map(|version| version.path().join("bin")).collect())
        .unwrap_or_default();
    found.retain(|folder| folder.join("initdb").exists());
    found.sort();
    found.pop().unwrap_or_else(|| {
        let told = run("pg_config", &["--bindir"]);
        PathBuf::from(String::from_utf8_lossy(&told.stdout).trim())
    })
}
