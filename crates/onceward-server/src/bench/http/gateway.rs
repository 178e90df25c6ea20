//! The gateway beside nginx, both in front of the same bare handler: `onceward serve` of this very
//! binary as a process of its own, unprotected, with first executions and with replays.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::CommandFactory;
use serde_json::{Value, json};

use super::super::machine;
use super::super::measure::{Cpu, ROUNDS, Series};
use super::super::report::Report;
use super::load::{Ask, Load};
use super::nginx::Nginx;
use super::server::Server;
use super::{KNOWN, Latency, Plan, crowd, not_executed};
use crate::cli::Cli;
use crate::failure::Failure;

/// Slices that each figure is cut into: many short ones, because four processes on a few cores are
/// never scheduled the same way twice. Odd, so that the median is one of them.
const SLICES: u32 = 15;
/// How long a process may take until it accepts connections.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// Measures the gateway, and nginx when there is one.
pub(super) async fn measure(
    upstream: &Server,
    latency: Option<Latency>,
    folder: &Path,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    if Cli::command().find_subcommand("serve").is_none() {
        report.note("gateway", json!("this build has no `serve`: not measured"));
        return Ok(());
    }
    plan.progress.part("starting the gateway", 1);
    let gateway = Gateway::start(upstream.address(), folder).await?;
    if plan.parts.has("gateway") {
        let nginx = Nginx::start(upstream.address(), folder).await?;
        if nginx.is_none() {
            let missing = "not found in PATH: gateway_plain_vs_nginx is not measured";
            report.note("nginx", json!(missing));
        }
        rounds(upstream, &gateway, nginx.as_ref(), plan, report).await?;
    }
    if let Some(latency) = latency {
        one_connection(&gateway, latency, plan, report).await?;
    }
    drop(gateway);
    if plan.parts.has("crowd") {
        // A fresh one: what the load above left in its memory would hide what a crowd takes.
        let gateway = Gateway::start(upstream.address(), &folder.join("crowd")).await?;
        crowd::measure(&gateway, plan, report).await?;
    }
    Ok(())
}

async fn rounds(
    upstream: &Server,
    gateway: &Gateway,
    nginx: Option<&Nginx>,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let load = |address, seed| Load::new(address, seed, plan.connections);
    let beside = nginx.map(|nginx| load(nginx.address(), 31));
    let plain = load(gateway.address, 32);
    let first = load(gateway.address, 33);
    let replays = load(gateway.address, 34);
    plan.progress.part("making answers to replay", 1);
    replays.make(KNOWN).await?;
    let mut series = [
        Series::new("nginx, the same upstream"),
        Series::new("gateway, unprotected"),
        Series::new("gateway, first executions"),
        Series::new("gateway, replays"),
    ];
    plan.progress.part("gateway", u64::from(SLICES) * series.len() as u64);
    let time = plan.round * ROUNDS / SLICES;
    for slice in 0..SLICES as usize {
        for turn in 0..series.len() {
            // What one leaves behind (a log to be copied, warm caches) falls to each in turn.
            let which = (turn + slice) % series.len();
            let before = Cpu::now();
            let round = match (which, &beside) {
                (0, None) => continue,
                (0, Some(beside)) => beside.round(Ask::Unkeyed, time).await?,
                (1, _) => plain.round(Ask::Unkeyed, time).await?,
                (2, _) => first.round(Ask::Fresh, time).await?,
                _ => {
                    let executed = upstream.executed();
                    let round = replays.round(Ask::Known(KNOWN), time).await?;
                    not_executed(upstream.executed() - executed)?;
                    round
                }
            };
            series[which].add(before, &round);
            plan.progress.step();
        }
    }
    let [beside, plain, first, replays] = &series;
    if nginx.is_some() {
        report.add(&[beside]);
        report.ratio("gateway_plain_vs_nginx", plain.versus(beside));
    }
    report.add(&[plain, first, replays]);
    report.ratio("gateway_first_vs_plain", first.versus(plain));
    report.ratio("gateway_replay_vs_plain", replays.versus(plain));
    Ok(())
}

/// One connection: what the gateway adds beyond the handler and the commits themselves.
async fn one_connection(
    gateway: &Gateway,
    latency: Latency,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let first = Load::new(gateway.address, 35, 1);
    let mut series = Series::new("gateway, first executions, 1 connection");
    plan.progress.part("gateway, latency", ROUNDS.into());
    for _ in 0..ROUNDS {
        let before = Cpu::now();
        series.add(before, &first.round(Ask::Fresh, plan.round).await?);
        plan.progress.step();
    }
    report.add(&[&series]);
    let added = series.figure().p50_ms - latency.bare_ms - latency.commits_ms;
    report.note("gateway_added_p50_ms", json!((added * 1_000.0).round() / 1_000.0));
    Ok(())
}

/// `onceward serve` as a process of its own; it is killed when it is dropped.
pub(super) struct Gateway {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Gateway {
    async fn start(upstream: SocketAddr, folder: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed("bench.gateway", format!("`onceward serve` can't be run: {error}"))
        };
        std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let ready = folder.join("gateway-ready.json");
        let log = folder.join("gateway.log");
        let errors = File::create(&log).map_err(|error| failed(&error))?;
        let binary = std::env::current_exe().map_err(|error| failed(&error))?;
        // Without our own variables: the flags say everything.
        let child = Command::new(binary)
            .env_clear()
            .arg("serve")
            .args(["--upstream", &format!("http://{upstream}")])
            .args(["--store", &format!("sqlite:{}", folder.join("gateway.db").display())])
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--identity", "header"])
            .args(["--tenant-header", "x-tenant", "--caller-header", "x-caller"])
            .arg("--ready-file")
            .arg(&ready)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .map_err(|error| failed(&error))?;
        let mut gateway = Self { child, address: ([127, 0, 0, 1], 0).into() };
        // It speaks once everything accepts connections, or ends.
        let said = gateway.child.stdout.take().map(BufReader::new);
        let first = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            said.map(|mut said| said.read_line(&mut line)).transpose().map(drop)
        });
        let spoke = tokio::time::timeout(READY_WITHIN, first).await;
        match listens_at(&ready) {
            Some(address) if spoke.is_ok() => gateway.address = address,
            _ => return Err(failed(&tail(log))),
        }
        Ok(gateway)
    }

    /// What the process holds in memory that is not mapped files, in KB.
    pub(super) fn own_kb(&self) -> Option<u64> {
        machine::own_kb(self.child.id())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Its files are the bench's own and go with it: nothing to drain.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the ready file, once it is whole.
fn listens_at(ready: &Path) -> Option<SocketAddr> {
    let ready: Value = serde_json::from_slice(&std::fs::read(ready).ok()?).ok()?;
    ready["listen"].as_str()?.strip_prefix("http://")?.parse().ok()
}

/// The end of what a process had to say.
fn tail(log: PathBuf) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().rev().take(5).collect();
    match lines.is_empty() {
        true => "it did not become ready in time".into(),
        false => lines.into_iter().rev().collect::<Vec<_>>().join(" · "),
    }
}
