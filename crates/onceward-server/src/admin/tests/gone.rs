//! Clients that go away between a claim's commit and its answer.
//!
//! The store is a real one behind a gate: a commit is under way for as long as a test wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{Capabilities, Committed, Cursor, List, Loaded, Page, Read};
use onceward::store::{Store, StoreFuture};
use onceward_core::batch::Batch;
use onceward_core::key::Key;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{RwLock, RwLockWriteGuard};

use super::{OPERATOR, Server, folder};

/// A store whose commits wait while the gate is closed.
struct Gated {
    inner: SqliteStore,
    gate: RwLock<()>,
    came: AtomicUsize,
}

impl Gated {
    async fn close_gate(&self) -> RwLockWriteGuard<'_, ()> {
        let closed = self.gate.write().await;
        self.came.store(0, Ordering::SeqCst);
        closed
    }

    /// Waits until a commit stands before the gate.
    async fn commit_waits(&self) {
        while self.came.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    }
}

impl Store for Gated {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.inner.load(reads)
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        Box::pin(async move {
            self.came.fetch_add(1, Ordering::SeqCst);
            let _open = self.gate.read().await;
            self.inner.commit(group).await
        })
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        self.inner.list(what, after, limit)
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

fn claim(id: &str) -> Value {
    json!({
        "tenant": "acme", "scope": "s", "id": id, "payload": {"amount": 5},
        "lease_ms": 60_000, "owner": "w1",
    })
}

/// Sends a request and leaves while its commit is under way; returns once the server knows.
async fn leave_in_the_middle(server: &Server, store: &Gated, path: &str, body: &Value) {
    let closed = store.close_gate().await;
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OPERATOR}\r\ncontent-length: \
         {}\r\n\r\n{body}",
        body.len()
    );
    let mut client = TcpStream::connect(server.address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    store.commit_waits().await;
    drop(client);
    // Under way is only the request that asks.
    loop {
        let text = server.get("/metrics").await.body;
        if String::from_utf8_lossy(&text).contains("onceward_in_flight 1\n") {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(closed);
}

/// Claims until the verdict is another than busy: a release may be on its way.
async fn verdict_at_last(server: &Server, id: &str) -> Value {
    loop {
        let answer = server.post("/v1/claims", claim(id)).await.ok();
        if answer["verdict"] != "busy" {
            return answer;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_grant_that_nobody_hears_of_is_given_back() {
    let folder = folder("gone");
    let inner = SqliteStore::open(folder.join("onceward.db"), SqliteOptions::default()).unwrap();
    let store = Arc::new(Gated { inner, gate: RwLock::default(), came: AtomicUsize::new(0) });
    let server = Server::over(folder, Engine::new(store.clone())).await;
    leave_in_the_middle(&server, &store, "/v1/claims", &claim("one")).await;
    let batch = json!({"claims": [claim("two"), claim("three")]});
    leave_in_the_middle(&server, &store, "/v1/claims/batch", &batch).await;
    for id in ["one", "two", "three"] {
        let deadline = std::time::Duration::from_secs(30);
        let answer = tokio::time::timeout(deadline, verdict_at_last(&server, id)).await;
        assert_eq!(answer.expect("the lease is a minute long")["verdict"], "run", "{id}");
    }
    // Under an attempt's id the client asks again, and gets what it was granted.
    let mut named = claim("named");
    named["attempt_id"] = "a1".into();
    leave_in_the_middle(&server, &store, "/v1/claims", &named).await;
    let again = server.post("/v1/claims", named).await.ok();
    assert_eq!((&again["verdict"], &again["attempt"]), (&"run".into(), &1.into()));
    let body = json!({"permit": again["permit"], "outcome": 1});
    server.post("/v1/permits/complete", body).await.ok();
    server.stop().await;
}
