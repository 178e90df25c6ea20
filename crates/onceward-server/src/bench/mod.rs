//! `onceward bench`: figures of the engine on a store and over HTTP, beside baselines of the same
//! run.
//!
//! Everything that is compared alternates in short rounds. SQLite is measured in a temporary folder
//! of its own, Postgres in a schema of its own, both removed at the end. What a figure means
//! is told by its name and, at length, by the file that measures it.

#[cfg(feature = "postgres")]
mod bare;
mod baseline;
pub(crate) mod batch;
mod callers;
mod elsewhere;
mod embedded;
mod events;
mod folder;
mod goals;
mod http;
mod jobs;
mod load;
mod machine;
mod measure;
pub(crate) mod page;
#[cfg(feature = "postgres")]
mod peers;
#[cfg(feature = "postgres")]
mod postgres;
mod progress;
mod report;

use std::time::Duration;

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{BenchEvents, BenchHttp, BenchJobs, BenchStore};
use crate::failure::Failure;
use crate::open::StoreUrl;
use crate::output::Out;
use measure::ROUNDS;
use progress::Progress;
use report::Report;

/// Records that `--big` adds.
const BIG_RECORDS: u64 = 10_000_000;

/// Jobs of a round, for each second that a part may take.
const JOBS_PER_SECOND: u64 = 2_000;

/// What is to be measured, and how long.
#[derive(Debug, Clone)]
struct Plan {
    round: Duration,
    callers: u32,
    records: Vec<u64>,
    parts: Parts,
    progress: Progress,
}

/// The parts that were asked for; all, if none was named.
#[derive(Debug, Clone)]
struct Parts(Vec<String>);

impl Parts {
    fn has(&self, part: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|named| named == part)
    }
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
        parts: Parts(args.parts.clone()),
        progress: Progress::new(out),
    };
    #[cfg(feature = "postgres")]
    if let (Some(schema), StoreUrl::Postgres(url)) = (&args.beside, url) {
        return postgres::beside(url, schema, &plan, out).await;
    }
    let measured = unless_told_to_end(url, measure(url, args, &plan)).await;
    plan.progress.end();
    measured?.print(out)
}

/// Measures the layer and the gateway over HTTP, on the embedded store.
pub(crate) async fn http(url: &StoreUrl, args: &BenchHttp, out: &Out) -> Result<(), Failure> {
    let StoreUrl::Sqlite(path) = url else {
        let message = "bench http measures the embedded store: name a file with --store \
                       sqlite:PATH; it is not touched, the bench works beside it";
        return Err(Failure::usage("bench.store", message));
    };
    let plan = http::Plan {
        round: Duration::from_secs(args.seconds.into()) / ROUNDS,
        connections: args.connections,
        keys: args.keys.into(),
        parts: Parts(args.parts.clone()),
        progress: Progress::new(out),
    };
    let measured = unless_told_to_end(url, async {
        let folder = folder::Folder::beside(path)?;
        let mut environment = machine::environment(Some(folder.path()));
        environment["connections"] = json!(args.connections);
        environment["seconds"] = json!(args.seconds);
        environment["body_bytes"] = json!(http::BODY_BYTES);
        let mut report = Report::new("http", environment);
        http::measure(folder.path(), &plan, &mut report).await?;
        Ok(report)
    })
    .await;
    plan.progress.end();
    measured?.print(out)
}

/// Measures jobs, from enqueue to done.
pub(crate) async fn jobs(url: &StoreUrl, args: &BenchJobs, out: &Out) -> Result<(), Failure> {
    let plan = jobs::Plan {
        round: Duration::from_secs(args.seconds.into()) / ROUNDS,
        jobs: u64::from(args.seconds) * JOBS_PER_SECOND,
        waiting: args.waiting,
        #[cfg(feature = "postgres")]
        peers: peers::folder(args.peers.as_deref())?,
        parts: Parts(args.parts.clone()),
        progress: Progress::new(out),
    };
    let measured = unless_told_to_end(url, async {
        let folder = match url {
            StoreUrl::Sqlite(path) => Some(folder::Folder::beside(path)?),
            _ => None,
        };
        let mut environment = machine::environment(folder.as_ref().map(folder::Folder::path));
        environment["store"] = json!(url.shown());
        environment["seconds"] = json!(args.seconds);
        environment["waiting"] = json!(args.waiting);
        let mut report = Report::new("jobs", environment);
        jobs::measure(url, folder.as_ref().map(folder::Folder::path), &plan, &mut report).await?;
        Ok(report)
    })
    .await;
    plan.progress.end();
    measured?.print(out)
}

/// Measures events, from append to the views.
pub(crate) async fn events(url: &StoreUrl, args: &BenchEvents, out: &Out) -> Result<(), Failure> {
    let mut held = args.held.clone();
    held.sort_unstable();
    held.dedup();
    let plan = events::Plan {
        round: Duration::from_secs(args.seconds.into()) / ROUNDS,
        seconds: args.seconds,
        held,
        progress: Progress::new(out),
    };
    let measured = unless_told_to_end(url, async {
        let folder = match url {
            StoreUrl::Sqlite(path) => folder::Folder::beside(path)?,
            _ => folder::Folder::beside("onceward.events".as_ref())?,
        };
        let mut environment = machine::environment(Some(folder.path()));
        environment["store"] = json!(url.shown());
        environment["seconds"] = json!(args.seconds);
        let mut report = Report::new("events", environment);
        events::measure(url, folder.path(), &plan, &mut report).await?;
        Ok(report)
    })
    .await;
    plan.progress.end();
    measured?.print(out)
}

/// Measures, unless someone ends the bench: then it is dropped, and its files with it.
async fn unless_told_to_end(
    url: &StoreUrl,
    measure: impl Future<Output = Result<Report, Failure>>,
) -> Result<Report, Failure> {
    // Armed before anything is made: whoever ends the bench finds no files left behind.
    let armed = |kind| {
        signal(kind).map_err(|error| {
            Failure::failed("bench.signal", format!("can't listen for signals: {error}"))
        })
    };
    let (mut interrupt, mut terminate) =
        (armed(SignalKind::interrupt())?, armed(SignalKind::terminate())?);
    tokio::select! {
        biased;
        _ = interrupt.recv() => Err(interrupted(url)),
        _ = terminate.recv() => Err(interrupted(url)),
        measured = measure => measured,
    }
}

fn interrupted(url: &StoreUrl) -> Failure {
    let message = match url {
        StoreUrl::Sqlite(_) => "the bench was interrupted; its files are removed",
        _ => {
            "the bench was interrupted; what it made stays: in Postgres a schema whose name starts \
             with onceward_bench"
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
    let mut report = Report::new("store", environment);
    match (&folder, url) {
        (Some(folder), _) => embedded::measure(folder.path(), plan, &mut report).await?,
        #[cfg(feature = "postgres")]
        (None, StoreUrl::Postgres(url)) => postgres::measure(url, plan, &mut report).await?,
        (None, _) => elsewhere::measure(url, plan, &mut report).await?,
    }
    Ok(report)
}
