//! What a crowd takes of the gateway's memory: connections that do nothing, and bodies that hardly
//! come in. Both come twice: memory that is flat does not grow with the second.
//!
//! No rate is measured here; the report has the memory and the limits that bound it.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use onceward::http::DoorLimits;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::super::report::Report;
use super::gateway::Gateway;
use super::wire::{Connection, Request};
use super::{Plan, load};
use crate::failure::Failure;

/// Idle connections.
const IDLE: usize = 10_000;
/// Connections whose bodies hardly come in.
const SLOW: usize = 2_000;
/// Bytes that a slow body promises, and that come at once.
const PROMISED: usize = 1 << 20;
const SENT: usize = 256 << 10;
/// Connections that are opened at a time.
const OPENING: usize = 64;
/// Bytes of a slow body that come at a time, and the pause before the next.
const DRIP: usize = 64;
const DRIPS: usize = 10;
const DRIP_PAUSE: Duration = Duration::from_millis(100);

/// Measures both.
pub(super) async fn measure(
    gateway: &Gateway,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    plan.progress.part("a crowd of connections", 4);
    let mut idle = Vec::new();
    let mut slow = Vec::new();
    let before = gateway.own_kb();
    for _ in 0..2 {
        let crowd = open_idle(gateway.address).await?;
        idle.push(gateway.own_kb());
        drop(crowd);
        plan.progress.step();
    }
    for _ in 0..2 {
        let crowd = open_slow(gateway.address).await?;
        let crowd = drip(crowd).await;
        slow.push((crowd.len(), gateway.own_kb()));
        drop(crowd);
        plan.progress.step();
    }
    let mb = |kb: Option<u64>| json!(kb.map(|kb| kb / 1024));
    report.note(
        "gateway_memory",
        json!({
            "before_mb": mb(before),
            "idle_connections": IDLE,
            "idle_mb": idle.iter().map(|kb| mb(*kb)).collect::<Vec<Value>>(),
            "slow_bodies": SLOW,
            "slow_bodies_still_open": slow.iter().map(|(open, _)| *open).collect::<Vec<_>>(),
            "slow_mb": slow.iter().map(|(_, kb)| mb(*kb)).collect::<Vec<Value>>(),
            "limits": {
                "connections": crate::config::sections::Limits::default().connections,
                "body_bytes": DoorLimits::default().body_bytes_max,
                "request_bytes": onceward::http::Policy::default().max_request_bytes,
            },
        }),
    );
    Ok(())
}

/// Connections that asked once and are kept.
async fn open_idle(address: SocketAddr) -> Result<Vec<Connection>, Failure> {
    let one = || async {
        let mut connection = Connection::open(address).await?;
        let (status, _) = connection.ask(&Request::post(false)).await?;
        match status {
            load::CREATED => Ok(connection),
            _ => Err(load::unexpected(status, &connection)),
        }
    };
    stream::iter(0..IDLE).map(|_| one()).buffer_unordered(OPENING).try_collect().await
}

/// Requests with a key whose bodies have begun.
async fn open_slow(address: SocketAddr) -> Result<Vec<TcpStream>, Failure> {
    let one = |number: usize| async move {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!(
            "POST /v1/payments HTTP/1.1\r\nhost: bench\r\nx-tenant: acme\r\nx-caller: bench\r\n\
             content-type: text/plain\r\nidempotency-key: slow-{number}\r\n\
             content-length: {PROMISED}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await?;
        // One that is refused closes before it has all: that is what is wanted.
        let _ = stream.write_all(&[b'x'; SENT]).await;
        Ok(stream)
    };
    let opened = stream::iter(0..SLOW).map(one).buffer_unordered(OPENING).try_collect().await;
    opened.map_err(|error: std::io::Error| {
        Failure::failed("bench.connection", format!("a connection can't be opened: {error}"))
    })
}

/// Lets a little of each body come in, now and then. Gives back those that are still open.
async fn drip(mut crowd: Vec<TcpStream>) -> Vec<TcpStream> {
    for _ in 0..DRIPS {
        let mut open = Vec::with_capacity(crowd.len());
        for mut stream in crowd {
            if stream.write_all(&[b'x'; DRIP]).await.is_ok() {
                open.push(stream);
            }
        }
        crowd = open;
        tokio::time::sleep(DRIP_PAUSE).await;
    }
    crowd
}
