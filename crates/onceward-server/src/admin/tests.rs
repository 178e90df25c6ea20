//! The control API as a client sees it: a real listener, a real database file, real requests.

mod api;
mod claims;
mod discovery;
mod gone;
mod jobs;
mod masks;
mod records;
mod tokens;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

/// The operator's token.
pub(crate) const OPERATOR: &str = "operator-token";
/// The token of tenant acme.
pub(crate) const ACME: &str = "acme-token";

/// A running control API on a database of its own.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) health: Arc<Health>,
    pub(crate) folder: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.json());
        self.json()
    }

    /// The code of a problem with this status.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16) -> Value {
        let problem = self.json();
        assert_eq!(self.status, status, "{problem}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["status"], status);
        problem
    }
}

impl Server {
    pub(crate) async fn start(test: &str) -> Self {
        Self::in_folder(folder(test)).await
    }

    /// Starts on whatever database is in the folder.
    pub(crate) async fn in_folder(folder: PathBuf) -> Self {
        let options = SqliteOptions::default();
        let store = SqliteStore::open(folder.join("onceward.db"), options).unwrap();
        Self::over(folder, Engine::new(Arc::new(store))).await
    }

    /// Starts over an engine whose store is in the folder.
    pub(crate) async fn over(folder: PathBuf, engine: Engine) -> Self {
        let secret = crate::identity::Secret::load(None, &engine).await.unwrap().derive("permits");
        let principals = Principals::new(vec![
            Principal::with_token("operator", Reach::Operator, OPERATOR),
            Principal::with_token("acme", Reach::Tenant("acme".into()), ACME),
        ]);
        let health = Arc::new(Health::default());
        let state = AdminState::new(AdminOptions {
            engine: engine.clone(),
            secret,
            principals,
            metrics: Arc::new(Metrics::new("sqlite", false)),
            health: health.clone(),
            door: None,
            views: None,
            open_metrics: false,
            queues: HashMap::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(serve(listener, state, async {
            let _ = stopped.await;
        }));
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (stop, served) = (Some(stop), Some(served));
        Self { address, engine, health, folder, stop, served, client }
    }

    pub(crate) async fn call(
        &self,
        token: Option<&str>,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        let mut request =
            Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let (head, body) = self.client.request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: head.status, headers: head.headers, body }
    }

    /// Posts JSON with the operator's token.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.call(Some(OPERATOR), Method::POST, path, body.to_string()).await
    }

    /// Gets with the operator's token.
    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call(Some(OPERATOR), Method::GET, path, "").await
    }

    /// Ends the listener, waits for it, and closes the store.
    pub(crate) async fn stop(mut self) -> PathBuf {
        drop(self.stop.take());
        self.served.take().unwrap().await.unwrap();
        self.engine.close().await.unwrap();
        self.folder.clone()
    }
}

/// A folder of its own for a test, empty at its start.
pub(crate) fn folder(test: &str) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("onceward-admin-{}-{number}-{test}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}
