//! The measured servers: an axum handler, bare or behind the layer, on a runtime of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use onceward::engine::Engine;
use onceward::http::{Commits, Door, Identity, OncewardLayer, Policy, Route, Routes};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::super::machine::cores;
use super::wire::json;
use crate::failure::Failure;

/// What stands before the handler.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Nothing.
    Bare,
    /// The layer, with so many commits.
    Layer(Commits),
}

/// A server on a runtime of its own; it ends when it is stopped or dropped.
pub(super) struct Server {
    address: SocketAddr,
    executed: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Server {
    /// Starts one; a layer has its store in this file.
    pub(super) async fn start(kind: Kind, path: Option<PathBuf>) -> Result<Self, Failure> {
        let executed = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let counter = executed.clone();
        let thread = std::thread::spawn(move || {
            // The load has the other half of the machine.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads((cores() / 2).max(1))
                .enable_all()
                .build()
                .map_err(|error| failed(&error))?;
            runtime.block_on(serve(kind, path, counter, tell, stopped))
        });
        let mut server = Self {
            address: ([127, 0, 0, 1], 0).into(),
            executed,
            stop: Some(stop),
            thread: Some(thread),
        };
        match told.await {
            Ok(address) => server.address = address,
            // It ended before it could tell: its own words say why.
            Err(_) => {
                server.stop().await?;
                return Err(Failure::failed("bench.server", "a measured server did not start"));
            }
        }
        Ok(server)
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often the handler ran.
    pub(super) fn executed(&self) -> u64 {
        self.executed.load(Ordering::Relaxed)
    }

    /// Ends it.
    pub(super) async fn stop(mut self) -> Result<(), Failure> {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        let ended = || Failure::failed("bench.server", "a measured server ended early");
        joined.map_err(|_| ended())?.map_err(|_| ended())?
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Its files are about to be removed: it must not write any more. What it has to say about
        // its end is of no use to a bench that was ended.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(
    kind: Kind,
    path: Option<PathBuf>,
    executed: Arc<AtomicU64>,
    tell: oneshot::Sender<SocketAddr>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    let router = Router::new().route("/v1/payments", post(pay)).with_state(executed);
    let (router, engine) = match (kind, path) {
        (Kind::Layer(commits), Some(path)) => {
            let store = SqliteStore::open(path, SqliteOptions::default())?;
            let engine = Engine::new(Arc::new(store));
            (router.layer(OncewardLayer::new(door(&engine, commits)?)), Some(engine))
        }
        _ => (router, None),
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| failed(&error))?;
    // Nobody waits for it only when the bench was ended.
    let _ = tell.send(listener.local_addr().map_err(|error| failed(&error))?);
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served.map_err(|e| failed(&e))?,
        _ = stopped => {}
    }
    if let Some(engine) = engine {
        engine.close().await?;
    }
    Ok(())
}

/// The handler that everything is measured with.
async fn pay(State(executed): State<Arc<AtomicU64>>, body: Bytes) -> impl IntoResponse {
    std::hint::black_box(body);
    let number = executed.fetch_add(1, Ordering::Relaxed) + 1;
    (StatusCode::CREATED, [("content-type", "application/json")], json(number))
}

fn door(engine: &Engine, commits: Commits) -> Result<Door, Failure> {
    let policy = Policy { commits, ..Policy::default() };
    let routes = Routes::written(vec![Route::new("POST /v1/payments", policy)?]);
    let identity = Identity::Headers {
        tenant: HeaderName::from_static("x-tenant"),
        caller: HeaderName::from_static("x-caller"),
    };
    Ok(Door::new(engine.clone(), identity, routes).with_secret([7; 32]))
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed("bench.server", format!("a measured server can't run: {error}"))
}
