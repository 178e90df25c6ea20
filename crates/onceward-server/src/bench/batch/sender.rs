//! The load: measurements that were never sent before, one per request or many.
//!
//! Every answer is looked at: a figure over measurements that were refused is none.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::http::load::on_thread;
use super::super::http::wire::{Connection, Request};
use super::super::measure::Round;
use super::server::TOKEN;
use crate::failure::Failure;

/// Users that measurements are spread over.
const USERS: u64 = 100;
/// Where timestamps start; each measurement is a second later than the one before.
const START_S: u64 = 1_600_000_000;

/// Sends measurements to one server.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    address: SocketAddr,
    name: &'static str,
    each: u64,
    sent: Arc<AtomicU64>,
}

impl Sender {
    /// Sends so many at a time, under ids that start with a name.
    pub(super) fn new(address: SocketAddr, name: &'static str, each: u64) -> Self {
        Self { address, name, each, sent: Arc::default() }
    }

    /// All connections send for a time.
    pub(super) async fn round(&self, connections: u32, time: Duration) -> Result<Round, Failure> {
        let sender = self.clone();
        on_thread(move || async move { sender.send_all(connections, time).await }).await
    }

    async fn send_all(&self, connections: u32, time: Duration) -> Result<Round, Failure> {
        let mut opened = Vec::new();
        for _ in 0..connections {
            opened.push(Connection::open(self.address).await?);
        }
        let started = Instant::now();
        let tasks: Vec<_> = opened
            .into_iter()
            .map(|connection| {
                let sender = self.clone();
                tokio::task::spawn_local(
                    async move { sender.send_for(connection, started, time).await },
                )
            })
            .collect();
        let mut all = Round::default();
        for task in tasks {
            let ended = |error| Failure::failed("bench.load", format!("it ended early: {error}"));
            all.join(&task.await.map_err(ended)??);
        }
        Ok(all)
    }

    async fn send_for(
        &self,
        mut connection: Connection,
        started: Instant,
        time: Duration,
    ) -> Result<Round, Failure> {
        let mut round = Round::default();
        while started.elapsed() < time {
            let request = self.request();
            let before = Instant::now();
            let (status, body) = connection.ask(&request).await?;
            let accepted = match (self.each, status) {
                (1, 201) => 1,
                (1, _) => 0,
                (_, 200) => {
                    let text = String::from_utf8_lossy(body);
                    text.matches(r#""status":"accepted""#).count() as u64
                }
                _ => 0,
            };
            if accepted != self.each {
                let message = format!(
                    "of {} measurements {accepted} were accepted ({status}): {}",
                    self.each,
                    connection.shown()
                );
                return Err(Failure::failed("bench.answer", message));
            }
            round.latencies.add(before.elapsed());
            round.operations += self.each;
        }
        round.elapsed = started.elapsed();
        Ok(round)
    }

    fn request(&self) -> Request {
        let first = self.sent.fetch_add(self.each, Ordering::Relaxed);
        let name = self.name;
        let (path, body) = if self.each == 1 {
            let path = format!("/v1/users/{name}-{}/measurements", first % USERS);
            (path, format!("{{{}}}", self.members(first)))
        } else {
            let mut body = String::from(r#"{"measurements":["#);
            for n in first..first + self.each {
                let comma = if n == first { "" } else { "," };
                // Writing into a string can't fail.
                let _ = write!(
                    body,
                    r#"{comma}{{"user_id":"{name}-{}",{}}}"#,
                    n % USERS,
                    self.members(n)
                );
            }
            body.push_str("]}");
            ("/v1/measurements/batch".into(), body)
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {TOKEN}\r\n\
             x-idempotency-key: {name}-{first}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        Request::of(request.into_bytes())
    }

    fn members(&self, n: u64) -> String {
        let seconds = i64::try_from(START_S + n).unwrap_or_default();
        let at = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        format!(
            "\"measurement_id\":\"{}-{n:08}\",\"weight\":{}.{:02},\"unit\":\"kg\",\
             \"timestamp\":\"{at}\",\"source\":\"scale\"",
            self.name,
            50 + n % 80,
            n % 100
        )
    }
}
