//! A running reference service (`onceward demo …`) and calls to it: for the suites that drive one.
//!
//! On SQLite, unless `ONCEWARD_TEST_SERVICES_ON` says `postgres` or `dynamodb`: then every test has
//! a database, or a table, of its own on the server that `ONCEWARD_TEST_POSTGRES_URL` or
//! `ONCEWARD_TEST_DYNAMODB_URL` names, and fails where it can't be had. A suite includes this file
//! by its path and adds calls of its own in an `impl Service`.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Nothing in these tests takes longer; a hang is a failure that names its place.
const PATIENCE: Duration = Duration::from_secs(60);

/// Organisation of demo-a.
pub(crate) const ORGANISATION_A: &str = "11111111-1111-1111-1111-111111111111";

/// A running `onceward demo NAME --no-traffic`. Killed when it is dropped.
pub(crate) struct Service {
    name: &'static str,
    child: Child,
    pub(crate) listen: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) folder: PathBuf,
    store: String,
}

/// The store that the run is to be on, if it is not SQLite, and its server.
fn server() -> Option<(String, String)> {
    let on = std::env::var("ONCEWARD_TEST_SERVICES_ON").ok()?;
    let variable = match on.as_str() {
        "postgres" => "ONCEWARD_TEST_POSTGRES_URL",
        "dynamodb" => "ONCEWARD_TEST_DYNAMODB_URL",
        other => panic!("ONCEWARD_TEST_SERVICES_ON={other}: postgres or dynamodb is meant"),
    };
    Some((on, std::env::var(variable).expect(variable)))
}

/// Whether other processes may write to the store: then nothing is cached.
pub(crate) fn is_shared() -> bool {
    server().is_some()
}

/// The store of a test: empty, and its own.
fn store(name: &str, test: &str, folder: &Path) -> String {
    match server() {
        None => format!("sqlite:{name}.db"),
        Some((on, server)) if on == "dynamodb" => {
            let table = own_name(name, test);
            migrated(format!("dynamodb://eu-central-1/{table}?endpoint={server}"), folder)
        }
        Some((_, server)) => database(&server, name, test, folder),
    }
}

/// An empty database on a Postgres server.
fn database(server: &str, name: &str, test: &str, folder: &Path) -> String {
    let (server, _) = server.rsplit_once('/').unwrap();
    let database = own_name(name, test);
    let made = Command::new("psql")
        .args([&format!("{server}/postgres"), "-qc", &format!("CREATE DATABASE {database}")])
        .status();
    assert!(made.unwrap().success(), "a database of its own on {server}");
    migrated(format!("{server}/{database}"), folder)
}

/// A name that SQL takes without quotes.
fn own_name(name: &str, test: &str) -> String {
    format!("{name}_{test}_{}", std::process::id()).replace('-', "_")
}

fn migrated(store: String, folder: &Path) -> String {
    let migrated = command(folder, &["migrate", "--store", &store]).output().unwrap();
    assert!(migrated.status.success(), "{migrated:?}");
    store
}

impl Service {
    /// A service by its name, on an empty store.
    pub(crate) fn start_named(name: &'static str, test: &str, variables: &[(&str, &str)]) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let store = store(name, test, &folder);
        Self::spawn_with(name, folder, &["demo", name, "--no-traffic"], &store, variables)
    }

    /// A service by its name, on an empty database, whatever the run is on.
    pub(crate) fn start_on_postgres(name: &'static str, test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{test}"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let server = std::env::var("ONCEWARD_TEST_POSTGRES_URL");
        let server = server.expect("ONCEWARD_TEST_POSTGRES_URL: this test is about Postgres");
        let store = database(&server, name, test, &folder);
        Self::spawn_with(name, folder, &["demo", name, "--no-traffic"], &store, &[])
    }

    /// Anew, on the store that is there.
    pub(crate) fn started_again(&self) -> Self {
        self.started_again_with(&[])
    }

    /// Anew, on an empty store: the one that was there is lost. Files of it are the caller's to
    /// remove.
    pub(crate) fn started_without_its_store(&self, test: &str) -> Self {
        let store = store(self.name, &format!("{test}-anew"), &self.folder);
        let arguments = ["demo", self.name, "--no-traffic"];
        Self::spawn_with(self.name, self.folder.clone(), &arguments, &store, &[])
    }

    /// Anew, on the store that is there, with these variables.
    pub(crate) fn started_again_with(&self, variables: &[(&str, &str)]) -> Self {
        let arguments = ["demo", self.name, "--no-traffic"];
        Self::spawn_with(self.name, self.folder.clone(), &arguments, &self.store, variables)
    }

    /// With these arguments.
    pub(crate) fn spawn(folder: PathBuf, arguments: &[&str], store: &str) -> Self {
        Self::spawn_with("planning", folder, arguments, store, &[])
    }

    fn spawn_with(
        name: &'static str,
        folder: PathBuf,
        arguments: &[&str],
        store: &str,
        variables: &[(&str, &str)],
    ) -> Self {
        let place = ("127.0.0.1:0", store);
        Self::spawn_at(name, folder, arguments, place, variables)
    }

    /// With these arguments, at this address.
    pub(crate) fn spawn_at(
        name: &'static str,
        folder: PathBuf,
        arguments: &[&str],
        (listen, store): (&str, &str),
        variables: &[(&str, &str)],
    ) -> Self {
        let mut command = command(&folder, arguments);
        command.envs(variables.iter().copied()).args(["--store", store]);
        command.args(["--listen", listen, "--admin", "127.0.0.1:0"]);
        command.args(["--ready-file", "ready.json"]);
        let said = std::fs::File::create(folder.join("stderr.txt")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(said).spawn().unwrap();
        // It speaks once everything accepts connections.
        let mut first = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
        if first.is_empty() {
            let why = std::fs::read_to_string(folder.join("stderr.txt")).unwrap();
            panic!("the service did not start: {why}");
        }
        let ready = std::fs::read_to_string(folder.join("ready.json")).unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        assert_eq!(ready["pid"], child.id());
        let address = |name: &str| {
            let url = ready[name].as_str().unwrap();
            url.strip_prefix("http://").unwrap().parse().unwrap()
        };
        let (listen, admin, store) = (address("listen"), address("admin"), store.to_string());
        Self { name, listen, admin, child, folder, store }
    }

    /// SIGKILL; then starts again on the same store.
    pub(crate) fn killed_and_started(mut self) -> Self {
        self.kill();
        self.started_again()
    }

    /// SIGKILL now; it can be started again later.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and its exit code.
    pub(crate) fn terminated(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let mut rest = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        self.child.wait().unwrap().code()
    }

    /// The URL of its store.
    pub(crate) fn store_url(&self) -> &str {
        &self.store
    }

    /// What it said on standard error so far.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.folder.join("stderr.txt")).unwrap()
    }

    /// A command on its store, in its folder; the embedded store must not be in use then.
    pub(crate) fn beside(&self, arguments: &[&str]) -> Command {
        let mut command = command(&self.folder, arguments);
        command.args(["--store", &self.store]);
        command
    }

    /// An answer of the control API.
    pub(crate) async fn operate(&self, method: &'static str, path: &str) -> Answer {
        let call = call(method, path).by("demo-operator").keyless();
        call.try_send(self.admin).await.unwrap()
    }

    /// All records of an organisation's scope.
    pub(crate) async fn records(&self, tenant: &str) -> Vec<Value> {
        let path = format!("/v1/records?tenant={tenant}&limit=1000");
        self.operate("GET", &path).await.json()["items"].as_array().unwrap().clone()
    }
}

impl Drop for Service {
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
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

/// Looks until it holds.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let looking = async {
        while !holds().await {
            // sleeps because what jobs derive has no signal that a client could wait for
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, looking).await.is_err() {
        panic!("in vain: {what}");
    }
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: &'static str,
    path: String,
    token: Option<&'static str>,
    key: Option<String>,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
}

/// A request by demo-a; a write has a key of its own.
pub(crate) fn call(method: &'static str, path: &str) -> Call {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    let key = format!("key-{}", KEYS.fetch_add(1, Ordering::Relaxed));
    let key = (method != "GET" && method != "HEAD").then_some(key);
    let (path, token) = (path.to_string(), Some("demo-a"));
    Call { method, path, token, key, headers: Vec::new(), body: None }
}

pub(crate) fn get(path: &str) -> Call {
    call("GET", path)
}

pub(crate) fn post(path: &str) -> Call {
    call("POST", path)
}

pub(crate) fn patch(path: &str) -> Call {
    call("PATCH", path)
}

impl Call {
    pub(crate) fn by(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    pub(crate) fn anonymous(mut self) -> Self {
        self.token = None;
        self
    }

    pub(crate) fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    pub(crate) fn keyless(mut self) -> Self {
        self.key = None;
        self
    }

    /// With `If-Match`.
    pub(crate) fn seen(self, tag: &str) -> Self {
        self.header("if-match", tag)
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.raw(&body.to_string())
    }

    pub(crate) fn raw(mut self, body: &str) -> Self {
        self.body = Some(body.into());
        self
    }

    pub(crate) async fn send(self, service: &Service) -> Answer {
        let shown = format!("{} {}", self.method, self.path);
        let sent = tokio::time::timeout(PATIENCE, self.try_send(service.listen)).await;
        sent.ok().flatten().unwrap_or_else(|| panic!("{shown}: no whole answer"))
    }

    /// None when the connection broke before a whole answer.
    pub(crate) async fn try_send(self, to: SocketAddr) -> Option<Answer> {
        let mut request = Request::builder()
            .method(self.method)
            .uri(&self.path)
            .header("host", to.to_string())
            .header("content-type", "application/json");
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(key) = &self.key {
            request = request.header("idempotency-key", key);
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let body = Full::new(Bytes::from(self.body.unwrap_or_default()));
        let stream = TcpStream::connect(to).await.ok()?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let response = sender.send_request(request.body(body).unwrap()).await.ok()?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        Some(Answer { status: head.status.as_u16(), headers: head.headers, body })
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    #[track_caller]
    pub(crate) fn must_be(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn id(&self) -> String {
        self.json()["id"].as_str().unwrap_or_else(|| panic!("no id: {self:?}")).to_string()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn etag(&self) -> String {
        self.header("etag").to_string()
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == "true"
    }

    /// Status and code of a problem, which has all its members (B08).
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        for member in ["type", "title", "detail", "code", "instance"] {
            assert!(problem[member].is_string(), "{member} of {problem}");
        }
        assert_eq!(problem["status"], self.status);
        (self.status, problem["code"].as_str().unwrap().to_string())
    }

    /// That it is this problem.
    #[track_caller]
    pub(crate) fn refuses(&self, status: u16, code: &str) {
        assert_eq!(self.problem(), (status, code.to_string()), "{self:?}");
    }

    /// The items of a list.
    #[track_caller]
    pub(crate) fn items(&self) -> Vec<Value> {
        self.json()["items"].as_array().unwrap_or_else(|| panic!("no list: {self:?}")).clone()
    }
}
