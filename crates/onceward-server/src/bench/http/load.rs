//! The load generator: many connections on one thread of their own, each asking over and over.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::LocalSet;

use super::super::load::{Keys, mixed};
use super::super::measure::Round;
use super::wire::{Connection, Request};
use crate::failure::Failure;

/// Whose requests they are.
pub(super) const TENANT: &str = "acme";
/// What the measured handler answers with.
pub(super) const CREATED: u16 = 201;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// A request without a key.
    Unkeyed,
    /// A key that was never used.
    Fresh,
    /// One of the first keys, so many of which were used before.
    Known(u64),
}

/// Requests to one server.
#[derive(Debug, Clone)]
pub(super) struct Load {
    address: SocketAddr,
    keys: Arc<Keys>,
    connections: u32,
}

impl Load {
    /// Load with keys of this seed.
    pub(super) fn new(address: SocketAddr, seed: u64, connections: u32) -> Self {
        Self { address, keys: Arc::new(Keys::new(TENANT, seed)), connections }
    }

    /// All connections ask for a time.
    pub(super) async fn round(&self, ask: Ask, time: Duration) -> Result<Round, Failure> {
        let load = self.clone();
        on_thread(move || async move { load.connect_and_ask(ask, time, u64::MAX).await }).await
    }

    /// Uses the first `count` keys once, so that they can be replayed.
    pub(super) async fn make(&self, count: u64) -> Result<(), Failure> {
        let load = self.clone();
        let each = count.div_ceil(self.connections.into());
        let for_ever = Duration::from_secs(3_600);
        let made =
            on_thread(
                move || async move { load.connect_and_ask(Ask::Fresh, for_ever, each).await },
            );
        made.await.map(drop)
    }

    /// Each connection asks until the time is over or it has asked `most` times.
    async fn connect_and_ask(&self, ask: Ask, time: Duration, most: u64) -> Result<Round, Failure> {
        let mut connections = Vec::new();
        for _ in 0..self.connections {
            connections.push(Connection::open(self.address).await?);
        }
        let started = Instant::now();
        let tasks: Vec<_> = (0_u64..)
            .zip(connections)
            .map(|(number, connection)| {
                let load = self.clone();
                tokio::task::spawn_local(async move {
                    load.one(connection, number, ask, (started, time, most)).await
                })
            })
            .collect();
        let mut all = Round::default();
        for task in tasks {
            let ended = |error| Failure::failed("bench.load", format!("it ended early: {error}"));
            all.join(&task.await.map_err(ended)??);
        }
        Ok(all)
    }

    async fn one(
        &self,
        mut connection: Connection,
        number: u64,
        ask: Ask,
        (started, time, most): (Instant, Duration, u64),
    ) -> Result<Round, Failure> {
        let mut request = Request::post(ask != Ask::Unkeyed);
        let mut random = mixed(number);
        let mut round = Round::default();
        let mut before = Instant::now();
        while before.duration_since(started) < time && round.operations < most {
            random = mixed(random);
            match ask {
                Ask::Unkeyed => {}
                Ask::Fresh => request.set_key(&self.keys.id(self.keys.draw())),
                Ask::Known(count) => request.set_key(&self.keys.id(random % count.max(1))),
            }
            let (status, _) = connection.ask(&request).await?;
            if status != CREATED {
                return Err(unexpected(status, &connection));
            }
            let after = Instant::now();
            round.latencies.add(after - before);
            round.operations += 1;
            before = after;
        }
        round.elapsed = started.elapsed();
        Ok(round)
    }
}

/// An answer that the load can't have asked for.
pub(super) fn unexpected(status: u16, connection: &Connection) -> Failure {
    let message = format!("a request was answered with {status}: {}", connection.shown());
    Failure::failed("bench.answer", message)
}

/// Runs work on a thread with a runtime of its own, so that it shares nothing with the servers.
pub(crate) async fn on_thread<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
    T: Send + 'static,
{
    let failed = |error: &dyn std::fmt::Display| Failure::failed("bench.load", format!("{error}"));
    let thread = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        LocalSet::new().block_on(&runtime, work())
    });
    thread.await.map_err(|error| failed(&error))?
}
