//! `onceward bench batch`: measurements in batches beside one by one, and checks beside none.
//!
//! The measurements service on a durable store, over HTTP on loopback; the load comes from a thread
//! of its own. What is compared alternates in short rounds. Without checks the same request still
//! writes document, last timestamp, its own key and its audit entries: what is measured is what the
//! checks of ids and order add.

mod place;
mod sender;
mod server;

use std::time::Duration;

use clap::Args;
use onceward_reference::measurements::Settings;
use serde_json::json;

use super::measure::{Cpu, ROUNDS, Series};
use super::progress::Progress;
use super::report::Report;
use super::{machine, unless_told_to_end};
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;
use place::Place;
use sender::Sender;
use server::Server;

/// Measurements of a batch.
const BATCH: u64 = 1_000;

/// How to measure batches. SQLite is measured in a temporary folder beside the `--store` path,
/// which itself is not touched; Postgres in a schema of its own, removed at the end.
#[derive(Debug, Args)]
pub(crate) struct BenchBatch {
    /// How long each part is measured, in seconds.
    #[arg(long, value_name = "N", env = "ONCEWARD_SECONDS", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=3_600))]
    seconds: u32,
    /// Concurrent connections where throughput is measured.
    #[arg(long, value_name = "N", env = "ONCEWARD_CONNECTIONS", default_value_t = 32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_024))]
    connections: u32,
}

/// Measures.
pub(crate) async fn run(url: &StoreUrl, args: &BenchBatch, out: &Out) -> Result<(), Failure> {
    let progress = Progress::new(out);
    let measured = unless_told_to_end(url, async {
        let place = Place::make(url).await?;
        let mut environment = machine::environment(place.folder());
        environment["store"] = json!(url.shown());
        environment["seconds"] = json!(args.seconds);
        environment["connections"] = json!(args.connections);
        environment["batch"] = json!(BATCH);
        let mut report = Report::new("batch", environment);
        let measured = measure(&place, args, &progress, &mut report).await;
        progress.part("removing what was made", 0);
        let removed = place.remove().await;
        measured?;
        removed.map(|()| report)
    })
    .await;
    progress.end();
    measured?.print(out)
}

async fn measure(
    place: &Place,
    args: &BenchBatch,
    progress: &Progress,
    report: &mut Report,
) -> Result<(), Failure> {
    let off = Settings { idempotency: false, ordering: false, ..Settings::default() };
    let checked = Server::start(place.store("checked"), Settings::default()).await?;
    let unchecked = Server::start(place.store("unchecked"), off).await?;
    let round = Duration::from_secs(args.seconds.into()) / ROUNDS;
    let single = Sender::new(checked.address(), "single", 1);
    let batches = Sender::new(checked.address(), "batch", BATCH);
    let many = Sender::new(checked.address(), "many", 1);
    let single_off = Sender::new(unchecked.address(), "single", 1);
    let many_off = Sender::new(unchecked.address(), "many", 1);
    let crowd = format!("{} connections", args.connections);
    let mut series = [
        (&single, 1, Series::new("one by one, 1 connection")),
        (&batches, 1, Series::new("batches of 1,000, 1 connection")),
        (&single_off, 1, Series::new("one by one, 1 connection, without checks")),
        (&many, args.connections, Series::new(format!("one by one, {crowd}"))),
        (&many_off, args.connections, Series::new(format!("one by one, {crowd}, without checks"))),
    ];
    progress.part("measurements", u64::from(ROUNDS) * series.len() as u64);
    for _ in 0..ROUNDS {
        for (sender, connections, series) in &mut series {
            let before = Cpu::now();
            series.add(before, &sender.round(*connections, round).await?);
            progress.step();
        }
    }
    let [(.., single), (.., batches), (.., single_off), (.., many), (.., many_off)] = &series;
    report.add(&[single, batches, single_off, many, many_off]);
    report.ratio("batch_vs_single", batches.versus(single));
    report.ratio("enforced_vs_off", many.versus(many_off));
    let p50 = single.figure().p50_ms / single_off.figure().p50_ms;
    report.ratio("enforced_vs_off_p50", p50);
    report.part_ended("measurements");
    checked.stop().await?;
    unchecked.stop().await
}
