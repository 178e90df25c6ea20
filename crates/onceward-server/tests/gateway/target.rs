//! What the cases run against: the binary in front of the API, or the API inside the tower layer.
//!
//! Both are reached over TCP and start anew, with an empty store, for every case.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use axum::Router;
use http_body_util::BodyExt;
use onceward::cache::{RedisCache, RedisCacheOptions};
use onceward::engine::Engine;
use onceward::http::{Door, Identity, OncewardLayer, Policy, Routes};
use onceward::store::Store;
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward_core::record::OnAbandoned;
use serde_json::Value;
use tokio::net::TcpListener;

use super::servers::{Database, On};
use super::upstream::App;

/// What a case changes of the defaults.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) on: On,
    pub(crate) lease_ms: u64,
    pub(crate) wait_ms: u64,
    pub(crate) hold: bool,
    pub(crate) max_request_bytes: u64,
    pub(crate) max_stored_bytes: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            on: On::default(),
            lease_ms: 30_000,
            wait_ms: 20_000,
            hold: false,
            max_request_bytes: 8 * 1024 * 1024,
            max_stored_bytes: 1024 * 1024,
        }
    }
}

impl Setup {
    fn policy(&self) -> Policy {
        Policy {
            lease_ms: self.lease_ms,
            wait_ms: self.wait_ms,
            on_abandoned: if self.hold { OnAbandoned::Hold } else { OnAbandoned::Rerun },
            max_request_bytes: self.max_request_bytes,
            max_stored_bytes: self.max_stored_bytes,
            ..Policy::unwritten()
        }
    }

    pub(crate) fn flags(&self) -> Vec<String> {
        [
            ("lease", format!("{}ms", self.lease_ms)),
            ("wait", format!("{}ms", self.wait_ms)),
            ("on-abandoned", if self.hold { "hold" } else { "rerun" }.into()),
            ("max-request-bytes", self.max_request_bytes.to_string()),
            ("max-stored-bytes", self.max_stored_bytes.to_string()),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into()
    }
}

/// A protected API.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) app: Arc<App>,
    /// The binary, when it is the gateway.
    pub(crate) gateway: Option<Gateway>,
    /// Where the records are, when that is not a file.
    _database: Option<Database>,
}

impl Target {
    /// The binary in front of the API.
    pub(crate) async fn gateway(name: &str, setup: &Setup) -> Arc<Self> {
        let app = App::new();
        let upstream = serve(app.router()).await;
        let (folder, mut flags) = (folder(name), setup.flags());
        let database = setup.on.database().await;
        flags.extend(database.as_ref().map(|database| format!("--store={}", database.url())));
        if let Some(url) = setup.on.redis_url() {
            flags.push(format!("--cache={url}"));
            std::fs::write(folder.join("onceward.toml"), "[cache]\nmax_bytes = 0\n").unwrap();
        }
        let gateway = Gateway::start(&folder, upstream, &flags);
        Arc::new(Self { address: gateway.listen, app, gateway: Some(gateway), _database: database })
    }

    /// The API inside the tower layer.
    pub(crate) async fn layer(name: &str, setup: &Setup) -> Arc<Self> {
        let app = App::new();
        let database = setup.on.database().await;
        let store: Arc<dyn Store> = match &database {
            #[cfg(feature = "dynamodb")]
            Some(database) if setup.on == On::DynamoDb => {
                use onceward::store::dynamodb::{DynamoDbOptions, DynamoDbStore};
                let options = DynamoDbOptions::parse(&database.url()).unwrap();
                Arc::new(DynamoDbStore::connect(&options).await.unwrap())
            }
            Some(database) => {
                let (url, options) = (database.url(), PostgresOptions::default());
                Arc::new(PostgresStore::connect(&url, options).await.unwrap())
            }
            None => {
                let file = folder(name).join("onceward.db");
                Arc::new(SqliteStore::open(file, SqliteOptions::default()).unwrap())
            }
        };
        let identity = Identity::Authorization { secret: [7; 32], strict: false };
        let routes = Routes::every(setup.policy()).unwrap();
        let mut door = Door::new(Engine::new(store), identity, routes);
        if let Some(url) = setup.on.redis_url() {
            // All cases share the server: each is a deployment of its own.
            let env = database.as_ref().map(|database| database.name.clone()).unwrap();
            let options = RedisCacheOptions { env, ..RedisCacheOptions::default() };
            door = door.with_cache_bytes(0).with_redis(RedisCache::open(&url, options).unwrap());
        }
        let address = serve(app.router().layer(OncewardLayer::new(door))).await;
        Arc::new(Self { address, app, gateway: None, _database: database })
    }
}

/// An empty folder of a test's own.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gateway-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Serves a router on any free port, for as long as the test runs.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A running `onceward serve`. Killed when it is dropped.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Gateway {
    /// Starts the binary in a folder and waits until it accepts connections.
    pub(crate) fn start(folder: &Path, upstream: SocketAddr, flags: &[String]) -> Self {
        Self::start_at(folder, &format!("http://{upstream}"), flags)
    }

    pub(crate) fn start_at(folder: &Path, upstream: &str, flags: &[String]) -> Self {
        let mut command = command(folder, &["serve", "--upstream", upstream]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(flags);
        Self::spawn(folder, command)
    }

    /// Spawns a `serve` command and waits until it accepts connections.
    pub(crate) fn spawn(folder: &Path, mut command: Command) -> Self {
        command.args(["--ready-file", "ready.json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // It speaks once everything accepts connections: no need to look for the file.
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        if first.is_empty() {
            let mut why = String::new();
            child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
            panic!("the gateway did not start: {why}");
        }
        let ready = std::fs::read_to_string(folder.join("ready.json")).unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        assert_eq!(ready["pid"], child.id());
        let address = |name: &str| {
            let url = ready[name].as_str().unwrap();
            url.split_once("://").unwrap().1.parse().unwrap()
        };
        Self { listen: address("listen"), admin: address("admin"), child }
    }

    /// SIGKILL: nothing is finished, nothing is flushed.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Any signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.child, name);
    }

    /// Waits for its end: exit code and what it said on standard error.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

/// Sends a signal, by its name.
pub(crate) fn signal(child: &Child, name: &str) {
    let (signal, pid) = (format!("-{name}"), child.id().to_string());
    assert!(Command::new("kill").args([&signal, &pid]).status().unwrap().success());
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The binary, without our own variables.
pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONCEWARD_")) {
        command.env_remove(name);
    }
    // A token of our own and no word about what goes well: then what is said is a complaint.
    command.env("ONCEWARD_ADMIN_TOKEN", "operator-of-the-tests").env("ONCEWARD_LOG_LEVEL", "warn");
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

/// Reads a body to its end; none when it broke off.
pub(crate) async fn whole<B>(body: B) -> Option<bytes::Bytes>
where
    B: http_body::Body,
{
    body.collect().await.ok().map(http_body_util::Collected::to_bytes)
}
