//! A database with a record in every state, and the binary to look at it with.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use onceward::engine::{Engine, Take};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward_core::Bytes;
use onceward_core::decide::{
    Claim, Completion, Effects, Enqueue, Finish, JobOrder, NewJob, Permit, Retry, Verdict,
};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind};
use onceward_core::record::{OnAbandoned, OnDead, Terms};
use serde_json::Value;

/// The endpoint of the sample's requests.
pub(crate) const SCOPE: &str = "POST /v1/payments";

/// A folder of its own for a test, empty at its start.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// What a run of the binary came to.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        assert_eq!(self.stderr, "");
        self.stdout
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// The code of the error that a program reads.
    #[track_caller]
    pub(crate) fn error(&self) -> (String, String) {
        let error: Value = serde_json::from_str(&self.stderr).unwrap();
        let text = |field: &str| error["error"][field].as_str().unwrap().to_string();
        (text("code"), text("message"))
    }
}

/// Runs the binary in a folder, without a terminal and without our own variables.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> Ran {
    ran(command(folder, arguments).output().unwrap())
}

pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onceward"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONCEWARD_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(arguments).stdin(Stdio::null()).env("USER", "ada");
    command
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A running server; dropped, it ends.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that holds the folder's store.
pub(crate) fn serve(folder: &Path) -> Server {
    let arguments = [
        "serve",
        "--upstream",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let mut serve = command(folder, &arguments);
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("http://"), "{first}");
    Server(child)
}

pub(crate) fn request(id: &str) -> Key {
    Key::new(Kind::Request, "acme", SCOPE, id).unwrap()
}

/// Fills `onceward.db` in the folder: requests of acme and jobs of globex in every state.
pub(crate) fn make(folder: &Path) {
    runtime().block_on(async {
        let engine = engine(folder);
        done(&engine, "done-1", br#"{"id":"pay_1"}"#, Terms::default()).await;
        done(&engine, "a:b", b"colon", Terms::default()).await;
        done(&engine, "binary", &[0xff, 0x00, 0x1b], Terms::default()).await;
        let past = Terms { retain_ms: 1, remember_ms: 86_400_000, ..Terms::default() };
        done(&engine, "expired", b"old", past).await;
        done(&engine, "forgotten", b"older", Terms { remember_ms: 0, ..past }).await;
        let long = Terms { lease_ms: 86_400_000, ..Terms::default() };
        granted(&engine, "running", long).await;
        let hold = Terms { on_abandoned: OnAbandoned::Hold, ..Terms::default() };
        let held = granted(&engine, "unknown", hold).await;
        assert_eq!(engine.abandon(&held, "connection reset").await.unwrap(), Finish::Ok);
        let failed = granted(&engine, "failed", Terms::default()).await;
        let retry = Retry::In(3_600_000);
        assert_eq!(engine.fail(&failed, "503 upstream", retry).await.unwrap(), Finish::Ok);
        jobs(&engine).await;
        engine.close().await.unwrap();
    });
}

async fn jobs(engine: &Engine) {
    for id in ["m1", "m2"] {
        let key = Key::new(Kind::Job, "globex", "mail", id).unwrap();
        let mut job = NewJob::new(key.clone(), fingerprint_bytes(id.as_bytes()), id_bytes(id));
        job.order = Some(JobOrder::new(&key, "ada").unwrap());
        job.terms = Terms { on_dead: OnDead::Skip, ..Terms::job() };
        assert_eq!(engine.enqueue(&job).await.unwrap(), Enqueue::Made);
    }
    let take = Take { queue: "mail".into(), owner: "w1".into(), max: 1, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    let died = engine.fail(&taken[0].permit, "no such mailbox", Retry::Never).await.unwrap();
    assert!(matches!(died, Finish::Ok | Finish::Dead), "{died:?}");
}

fn id_bytes(id: &str) -> Bytes {
    format!(r#"{{"mail":"{id}"}}"#).into_bytes().into()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

pub(crate) fn engine(folder: &Path) -> Engine {
    let store = SqliteStore::open(folder.join("onceward.db"), SqliteOptions::default()).unwrap();
    Engine::new(Arc::new(store))
}

pub(crate) fn claim(id: &str) -> Claim {
    let mut claim = Claim::new(request(id), fingerprint_bytes(b"payload"));
    // Someone tries to clear the screen of whoever looks.
    claim.owner = Some("worker-7\u{1b}[2J".into());
    claim
}

async fn granted(engine: &Engine, id: &str, terms: Terms) -> Permit {
    let claim = Claim { terms, ..claim(id) };
    match engine.claim(&claim).await.unwrap() {
        Verdict::Run { permit, .. } => permit,
        other => panic!("{other:?}"),
    }
}

async fn done(engine: &Engine, id: &str, outcome: &[u8], terms: Terms) {
    let permit = granted(engine, id, terms).await;
    let completion = Completion {
        outcome: outcome.into(),
        digest: fingerprint_bytes(outcome),
        retain_ms: None,
        effects: Effects::default(),
    };
    assert_eq!(engine.complete(&permit, &completion).await.unwrap(), Finish::Ok);
}
