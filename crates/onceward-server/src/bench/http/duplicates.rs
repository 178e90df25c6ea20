//! Duplicates at once: every connection sends the same key in the same moment, key after key.
//!
//! One execution per key and the same answer for all is no figure to be proud of but a condition:
//! a bench that finds anything else fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use tokio::sync::Barrier;

use super::super::load::Keys;
use super::super::measure::{Cpu, Round, Series};
use super::super::report::Report;
use super::Plan;
use super::load::{TENANT, on_thread, unexpected};
use super::server::Server;
use super::wire::{Connection, Request, number};
use crate::failure::Failure;

/// Sends them, and reports how fast.
pub(super) async fn measure(
    server: &Server,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let executed = server.executed();
    let (address, connections, keys) = (server.address(), plan.connections, plan.keys);
    let before = Cpu::now();
    let round = on_thread(move || at_once(address, connections, keys)).await?;
    let executions = server.executed() - executed;
    let name = format!("{connections} duplicates at once of each of {keys} keys");
    let mut series = Series::new(name);
    series.add(before, &round);
    report.add(&[&series]);
    report.note(
        "duplicates",
        json!({ "keys": keys, "duplicates": connections, "executions": executions }),
    );
    if executions != keys {
        let message = format!("{keys} keys were executed {executions} times");
        return Err(Failure::failed("bench.duplicates", message));
    }
    Ok(())
}

async fn at_once(address: SocketAddr, connections: u32, keys: u64) -> Result<Round, Failure> {
    let barrier = Arc::new(Barrier::new(connections as usize));
    // What the first duplicate of each key was answered; 0 until then.
    let answers: Arc<Vec<AtomicU64>> = Arc::new((0..keys).map(|_| AtomicU64::new(0)).collect());
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(address).await?);
    }
    let started = Instant::now();
    let tasks: Vec<_> = open
        .into_iter()
        .map(|connection| {
            let (barrier, answers) = (barrier.clone(), answers.clone());
            tokio::task::spawn_local(one(connection, barrier, answers, started))
        })
        .collect();
    let mut all = Round::default();
    let mut failure = None;
    for task in tasks {
        let ended = |error| Failure::failed("bench.load", format!("it ended early: {error}"));
        let (round, failed) = task.await.map_err(ended)?;
        all.join(&round);
        failure = failure.or(failed);
    }
    failure.map_or(Ok(all), Err)
}

/// One of the duplicates. It goes on after a failure, because the others wait for it.
async fn one(
    mut connection: Connection,
    barrier: Arc<Barrier>,
    answers: Arc<Vec<AtomicU64>>,
    started: Instant,
) -> (Round, Option<Failure>) {
    let keys = Keys::new(TENANT, 21);
    let mut request = Request::post(true);
    let mut round = Round::default();
    let mut failure = None;
    for (key, answer) in (0..).zip(answers.iter()) {
        request.set_key(&keys.id(key));
        barrier.wait().await;
        let before = Instant::now();
        if failure.is_some() {
            continue;
        }
        let said = match connection.ask(&request).await {
            Ok((201, body)) => number(body),
            Ok((status, _)) => {
                failure = Some(unexpected(status, &connection));
                continue;
            }
            Err(error) => {
                failure = Some(error);
                continue;
            }
        };
        round.latencies.add(before.elapsed());
        round.operations += 1;
        let said = said.unwrap_or_default();
        let first = answer.compare_exchange(0, said, Ordering::Relaxed, Ordering::Relaxed);
        if said == 0 || first.is_err_and(|first| first != said) {
            let message = "two duplicates of one key were answered differently";
            failure = Some(Failure::failed("bench.duplicates", message));
        }
    }
    round.elapsed = started.elapsed();
    (round, failure)
}
