//! The measured server: the measurements service on a runtime of its own.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use onceward_reference::measurements::{Measurements, Options, Settings};
use onceward_reference::principals::{Principal, Role};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::super::machine::cores;
use super::place::StoreAt;
use crate::failure::Failure;

/// What the load shows.
pub(super) const TOKEN: &str = "bench";

/// A server; it ends when it is stopped or dropped.
pub(super) struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Server {
    /// Starts one. Its callers are of an organisation that is named like the store, so that several
    /// can share a schema.
    pub(super) async fn start(store: StoreAt, settings: Settings) -> Result<Self, Failure> {
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            // The load has the other half of the machine.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads((cores() / 2).max(1))
                .enable_all()
                .build()
                .map_err(|error| failed(&error))?;
            runtime.block_on(serve(store, settings, tell, stopped))
        });
        let address = ([127, 0, 0, 1], 0).into();
        let mut server = Self { address, stop: Some(stop), thread: Some(thread) };
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
        // Its files are about to be removed: it must not write any more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn serve(
    store: StoreAt,
    settings: Settings,
    tell: oneshot::Sender<SocketAddr>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), Failure> {
    let engine = store.open().await?;
    let organisation = if settings.idempotency { "checked" } else { "unchecked" };
    let principals = vec![Principal::new(TOKEN, organisation, "bench", Role::Editor)];
    let options = Options { principals, settings, rate: None, observer: None };
    let router = Measurements::open(engine.clone(), options)?.router();
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| failed(&error))?;
    // Nobody waits for it only when the bench was ended.
    let _ = tell.send(listener.local_addr().map_err(|error| failed(&error))?);
    tokio::select! {
        served = async { axum::serve(listener, router).await } => served.map_err(|e| failed(&e))?,
        _ = stopped => {}
    }
    Ok(engine.close().await?)
}

fn failed(error: &dyn std::fmt::Display) -> Failure {
    Failure::failed("bench.server", format!("a measured server can't run: {error}"))
}
