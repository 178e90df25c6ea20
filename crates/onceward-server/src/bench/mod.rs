//! `onceward bench store`: figures of the engine on a store, beside baselines of the same run.
//!
//! Everything that is compared alternates in short rounds. SQLite is measured in a temporary folder
//! of its own; a store elsewhere under a tenant of its own, erased at the end. What a figure means
//! is told by its name and, at length, by the file that measures it.

mod baseline;
mod callers;
mod elsewhere;
mod embedded;
mod folder;
mod load;
mod machine;
mod measure;
mod progress;
mod report;

use std::time::Duration;

use serde_json::json;

use crate::cli::BenchStore;
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;
use measure::ROUNDS;
use progress::Progress;
use report::Report;

/// Records that `--big` adds.
const BIG_RECORDS: u64 = 10_000_000;

/// What is to be measured, and how long.
#[derive(Debug, Clone)]
struct Plan {
    round: Duration,
    callers: u32,
    records: Vec<u64>,
    progress: Progress,
}

/// Measures a store.
pub(crate) async fn store(url: &StoreUrl, args: &BenchStore, out: &Out) -> Result<(), Failure> {
    let mut records = args.records.clone();
    records.extend(args.big.then_some(BIG_RECORDS));
    records.sort_unstable();
    records.dedup();
    let plan = Plan {
        round: Duration::from_secs(args.seconds.into()) / ROUNDS,
        callers: args.callers,
        records,
        progress: Progress::new(out),
    };
    let measured = tokio::select! {
        measured = measure(url, args, &plan) => measured,
        heard = tokio::signal::ctrl_c() => Err(interrupted(url, heard)),
    };
    plan.progress.end();
    measured?.print(out)
}

fn interrupted(url: &StoreUrl, heard: std::io::Result<()>) -> Failure {
    let message = match (heard, url) {
        (Err(error), _) => format!("can't listen for interrupts: {error}"),
        (Ok(()), StoreUrl::Sqlite(_)) => "the bench was interrupted; its files are removed".into(),
        (Ok(()), _) => {
            "the bench was interrupted; what it made stays under its tenant, whose name \
                        starts with onceward-bench"
                .into()
        }
    };
    Failure::failed("interrupted", message)
}

async fn measure(url: &StoreUrl, args: &BenchStore, plan: &Plan) -> Result<Report, Failure> {
    let folder = match url {
        StoreUrl::Sqlite(path) => Some(folder::Folder::beside(path)?),
        _ => None,
    };
    let mut environment = machine::environment(folder.as_ref().map(folder::Folder::path));
    environment["store"] = json!(url.shown());
    environment["callers"] = json!(args.callers);
    environment["seconds"] = json!(args.seconds);
    environment["outcome_bytes"] = json!(load::OUTCOME_BYTES);
    let mut report = Report::new(environment);
    match &folder {
        Some(folder) => embedded::measure(folder.path(), plan, &mut report).await?,
        None => elsewhere::measure(url, plan, &mut report).await?,
    }
    Ok(report)
}
