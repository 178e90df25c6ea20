//! `onceward bench http`: what protection costs, beside the same handler without it.
//!
//! A bare axum handler, the same behind the layer with two commits, with one and replayed, and the
//! gateway beside nginx: all on loopback, all with the same 200 bytes of JSON, durable SQLite with
//! audit. Servers in this process have runtimes of their own; the load comes from one thread.
//! What is compared alternates in short rounds. At the end a crowd of idle connections and one of
//! slow bodies show what the gateway's memory comes to.

mod crowd;
mod duplicates;
mod gateway;
pub(super) mod load;
mod nginx;
mod server;
pub(super) mod wire;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onceward::engine::Engine;
use onceward::http::Commits;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::json;

use super::callers::{Act, Callers};
use super::load::Keys;
use super::measure::{Cpu, ROUNDS, Series};
use super::progress::Progress;
use super::report::Report;
use crate::failure::Failure;
use load::{Ask, Load, TENANT};
use server::{Kind, Server};

/// Bytes of the JSON that is sent and answered.
pub(crate) const BODY_BYTES: usize = 200;
/// Keys that are replayed.
const KNOWN: u64 = 10_000;

/// What is to be measured, and how long.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) round: Duration,
    pub(crate) connections: u32,
    /// Keys that duplicates are sent of.
    pub(crate) keys: u64,
    pub(super) parts: super::Parts,
    pub(crate) progress: Progress,
}

/// Measures everything.
pub(crate) async fn measure(
    folder: &Path,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let servers = Servers {
        bare: Server::start(Kind::Bare, None).await?,
        two: Server::start(Kind::Layer(Commits::Two), Some(folder.join("two.db"))).await?,
        one: Server::start(Kind::Layer(Commits::One), Some(folder.join("one.db"))).await?,
    };
    if plan.parts.has("layer") {
        layer(&servers, plan, report).await?;
        report.part_ended("layer");
    }
    if plan.parts.has("duplicates") {
        plan.progress.part("duplicates", plan.keys);
        duplicates::measure(&servers.two, plan, report).await?;
        report.part_ended("duplicates");
    }
    let mut waits = None;
    if plan.parts.has("latency") {
        waits = Some(latency(&servers, folder, plan, report).await?);
        report.part_ended("latency");
    }
    gateway::measure(&servers.bare, waits, folder, plan, report).await?;
    report.part_ended("gateway");
    let Servers { bare, two, one } = servers;
    for server in [bare, two, one] {
        server.stop().await?;
    }
    Ok(())
}

struct Servers {
    bare: Server,
    two: Server,
    one: Server,
}

/// What one connection waits for.
#[derive(Debug, Clone, Copy)]
struct Latency {
    /// The bare handler's median.
    bare_ms: f64,
    /// The median of the two commits alone.
    commits_ms: f64,
}

/// The layer beside the bare handler.
async fn layer(servers: &Servers, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let load = |server: &Server, seed| Load::new(server.address(), seed, plan.connections);
    let bare = load(&servers.bare, 1);
    let first = load(&servers.two, 2);
    let once = load(&servers.one, 3);
    let replays = load(&servers.two, 4);
    plan.progress.part("making answers to replay", 1);
    replays.make(KNOWN).await?;
    let mut series = [
        Series::new("bare axum handler"),
        Series::new("layer, first executions, two commits"),
        Series::new("layer, first executions, one commit"),
        Series::new("layer, replays"),
    ];
    plan.progress.part("layer", u64::from(ROUNDS) * series.len() as u64);
    for _ in 0..ROUNDS {
        for (which, series) in series.iter_mut().enumerate() {
            let before = Cpu::now();
            let round = match which {
                0 => bare.round(Ask::Unkeyed, plan.round).await?,
                1 => first.round(Ask::Fresh, plan.round).await?,
                2 => once.round(Ask::Fresh, plan.round).await?,
                _ => {
                    let executed = servers.two.executed();
                    let round = replays.round(Ask::Known(KNOWN), plan.round).await?;
                    not_executed(servers.two.executed() - executed)?;
                    round
                }
            };
            series.add(before, &round);
            plan.progress.step();
        }
    }
    let [bare, first, once, replays] = &series;
    report.add(&[bare, first, once, replays]);
    report.ratio("layer_first_vs_bare", first.versus(bare));
    report.ratio("layer_one_commit_vs_bare", once.versus(bare));
    report.ratio("layer_replay_vs_bare", replays.versus(bare));
    Ok(())
}

/// One connection: what the layer adds beyond the commits themselves.
async fn latency(
    servers: &Servers,
    folder: &Path,
    plan: &Plan,
    report: &mut Report,
) -> Result<Latency, Failure> {
    let bare = Load::new(servers.bare.address(), 11, 1);
    let first = Load::new(servers.two.address(), 12, 1);
    let store = SqliteStore::open(folder.join("commits.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let commits = Callers::new(engine.clone(), Keys::new(TENANT, 13), 1);
    let mut series = [
        Series::new("bare axum handler, 1 connection"),
        Series::new("layer, first executions, 1 connection"),
        Series::new("the two commits alone, 1 caller"),
    ];
    plan.progress.part("latency", u64::from(ROUNDS) * series.len() as u64);
    for _ in 0..ROUNDS {
        for (which, series) in series.iter_mut().enumerate() {
            let before = Cpu::now();
            let round = match which {
                0 => bare.round(Ask::Unkeyed, plan.round).await?,
                1 => first.round(Ask::Fresh, plan.round).await?,
                _ => commits.round(Act::Pair, plan.round).await?,
            };
            series.add(before, &round);
            plan.progress.step();
        }
    }
    engine.close().await?;
    let [bare, first, commits] = &series;
    report.add(&[bare, first, commits]);
    let latency = Latency { bare_ms: bare.figure().p50_ms, commits_ms: commits.figure().p50_ms };
    let added = first.figure().p50_ms - latency.bare_ms - latency.commits_ms;
    report.note("layer_added_p50_ms", json!((added * 1_000.0).round() / 1_000.0));
    Ok(latency)
}

/// A replay that ran the handler is no replay, and its figure none either.
fn not_executed(executions: u64) -> Result<(), Failure> {
    if executions == 0 {
        return Ok(());
    }
    let message = format!("{executions} requests that should have been replays ran the handler");
    Err(Failure::failed("bench.replay", message))
}
