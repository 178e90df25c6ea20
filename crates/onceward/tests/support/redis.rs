//! A Redis of a test's own, which it may kill, stop and restart; and the server that all share.
//!
//! Own servers are the real `redis-server`, on loopback, ended with the test. The shared one is
//! what `ONCEWARD_TEST_REDIS_URL` names, and a test that needs it fails without it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// Where the shared server is.
pub(crate) fn shared_url() -> String {
    std::env::var("ONCEWARD_TEST_REDIS_URL").unwrap_or_else(|_| {
        panic!(
            "ONCEWARD_TEST_REDIS_URL is not set: these tests need a Redis server, for instance \
             redis://127.0.0.1:6379/; `cargo xtask services up redis` starts one"
        )
    })
}

/// A server of a test's own.
pub(crate) struct RedisServer {
    child: Option<Child>,
    folder: PathBuf,
    port: u16,
}

impl RedisServer {
    /// Starts one that keeps what it is told over a restart.
    pub(crate) fn start() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
        let name = format!("onceward-redis-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let mut server = Self { child: None, folder, port };
        server.restart();
        server
    }

    /// Starts it again, on the same port and files.
    pub(crate) fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--dir"])
            .arg(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("redis-server: {error}; `cargo xtask services up redis` installs it")
            });
        self.child = Some(child);
        let begun = Instant::now();
        while self.try_ask::<String>(&redis::cmd("PING")).is_none() {
            assert!(begun.elapsed() < PATIENCE, "redis does not answer");
            std::thread::yield_now();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGSTOP: it takes connections and says nothing.
    pub(crate) fn stop(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Asks it something, from a connection that nobody else has.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> T {
        self.try_ask(command).unwrap_or_else(|| panic!("redis gives no answer"))
    }

    fn try_ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Option<T> {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection_with_timeout(PATIENCE).ok()?;
        command.query(&mut connection).ok()
    }

    /// The names of everything that it holds.
    pub(crate) fn names(&self) -> Vec<String> {
        self.ask(redis::cmd("KEYS").arg("*"))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // SIGKILL ends a stopped process too.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
