//! The bench of the embedded store, in three parts: writes beside what the file system and bare
//! SQLite can do, replays beside bare reads, and writes on stores that already hold many records.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

use super::Plan;
use super::baseline::{Append, BareRows, Baseline, PointReads, SingleStatements, bytes_per_record};
use super::callers::{Act, Callers};
use super::load::Keys;
use super::machine::cores;
use super::measure::{Cpu, ROUNDS, Series};
use super::report::Report;
use crate::failure::Failure;

const TENANT: &str = "acme";
/// Records that are replayed at most: more than the store's page caches hold.
const REPLAYED_MAX: u64 = 100_000;
/// Records of which the bytes are counted.
const SEEN: u64 = 1_000;
/// A store up to this size is made anew for each round, because the round itself would make it
/// several times as large.
const SMALL: u64 = 10_000;

/// Measures everything.
pub(crate) async fn measure(
    folder: &Path,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    if plan.parts.has("writes") {
        writes(folder, plan, report).await?;
        report.part_ended("writes");
    }
    if plan.parts.has("replays") {
        replays(folder, plan, report).await?;
        report.part_ended("replays");
    }
    if plan.parts.has("sizes") {
        sizes(folder, plan, report).await?;
        report.part_ended("sizes");
    }
    Ok(())
}

async fn writes(folder: &Path, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let bytes = bytes_of_a_pair(folder, plan).await?;
    let least = Baseline::new(BareRows::open(folder, "least-rows.db", 0)?);
    let bare = Baseline::new(BareRows::open(folder, "bare-rows.db", bytes)?);
    let append = Baseline::new(Append::open(folder)?);
    let single = Baseline::new(SingleStatements::open(folder)?);
    let time = plan.round;
    let callers = open(&folder.join("writes.db"), 10, plan).await?;
    let mut series = [
        Series::new("bare SQLite, keys and outcomes, 256 rows"),
        Series::new(format!("bare SQLite, the same {bytes} bytes, 256 rows")),
        Series::new("append + fdatasync, rows in syncs of 256"),
        Series::new("single statements, insert + update pairs"),
        Series::new("claim + complete pairs"),
        Series::new("one commit"),
    ];
    plan.progress.part("writes, and their limits", u64::from(ROUNDS) * series.len() as u64);
    for _ in 0..ROUNDS {
        for (which, series) in series.iter_mut().enumerate() {
            let before = Cpu::now();
            series.add(
                before,
                &match which {
                    0 => least.on_thread(move |least| least.round(time)).await?,
                    1 => bare.on_thread(move |bare| bare.round(time)).await?,
                    2 => append.on_thread(move |append| append.round(time)).await?,
                    3 => single.on_thread(move |single| single.round(time)).await?,
                    4 => callers.round(Act::Pair, plan.round).await?,
                    _ => callers.round(Act::OneCommit, plan.round).await?,
                },
            );
            plan.progress.step();
        }
    }
    callers.engine.close().await?;
    let [least, bare, append, single, pairs, once] = &series;
    report.add(&[least, bare, append, single, pairs, once]);
    report.ratio("pairs_vs_sqlite_limit", pairs.versus(bare));
    report.ratio("pairs_vs_single_statements", pairs.versus(single));
    report.ratio("one_commit_vs_single_statements", once.versus(single));
    report.ratio("one_commit_vs_two", once.versus(pairs));
    Ok(())
}

/// The bytes that a pair leaves behind, seen on a store that holds some.
async fn bytes_of_a_pair(folder: &Path, plan: &Plan) -> Result<usize, Failure> {
    let path = folder.join("bytes.db");
    fill(&path, SEEN, plan).await?;
    let bytes = bytes_per_record(&path, SEEN)?;
    remove(&path);
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}

async fn replays(folder: &Path, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let records = plan.records.iter().copied().max().unwrap_or(REPLAYED_MAX).min(REPLAYED_MAX);
    plan.progress.part("making records to replay", records);
    let bare = Baseline::new(PointReads::new(folder, records, cores()));
    bare.on_thread(PointReads::fill).await?;
    let path = folder.join("replays.db");
    fill(&path, records, plan).await?;
    let mut callers = open(&path, records, plan).await?;
    callers.keys = Arc::new(Keys::new(TENANT, records).with_drawn(records));
    let mut reads = Series::new("bare SQLite, point reads");
    let mut looks = Series::new("replays, looked up");
    let mut claims = Series::new("replays, claimed");
    let time = plan.round;
    plan.progress.part("replays", ROUNDS.into());
    for _ in 0..ROUNDS {
        let before = Cpu::now();
        reads.add(before, &bare.on_thread(move |bare| bare.round(time)).await?);
        let before = Cpu::now();
        looks.add(before, &callers.round(Act::Look, plan.round).await?);
        let before = Cpu::now();
        claims.add(before, &callers.round(Act::Replay, plan.round).await?);
        plan.progress.step();
    }
    callers.engine.close().await?;
    report.add(&[&reads, &looks, &claims]);
    report.ratio("replays_vs_bare_reads", looks.versus(&reads));
    Ok(())
}

/// A store of one size, and what was measured on it.
struct Size {
    records: u64,
    path: PathBuf,
    series: Series,
    kept: Option<Callers>,
}

async fn sizes(folder: &Path, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let mut sizes = Vec::new();
    for &records in &plan.records {
        let path = folder.join(format!("size-{records}.db"));
        let mut kept = None;
        if records > SMALL {
            let name = format!("making {} records", short(records));
            plan.progress.part(&name, records);
            kept = Some(made(&path, records, plan).await?);
        }
        let series = Series::new(format!("pairs on {} records", short(records)));
        sizes.push(Size { records, path, series, kept });
    }
    plan.progress.part("pairs by size", u64::from(ROUNDS) * sizes.len() as u64);
    for _ in 0..ROUNDS {
        for size in &mut sizes {
            let callers = match &size.kept {
                Some(callers) => callers.clone(),
                None => made(&size.path, size.records, plan).await?,
            };
            let before = Cpu::now();
            size.series.add(before, &callers.round(Act::Pair, plan.round).await?);
            if size.kept.is_none() {
                callers.engine.close().await?;
                remove(&size.path);
            }
            plan.progress.step();
        }
    }
    for size in &sizes {
        report.add(&[&size.series]);
        if let Some(callers) = &size.kept {
            callers.engine.close().await?;
        }
    }
    if let [least, larger @ ..] = sizes.as_slice() {
        for size in larger {
            let name = format!("at_{}_vs_{}", short(size.records), short(least.records));
            report.ratio(name, size.series.versus(&least.series));
        }
    }
    Ok(())
}

/// A store with this many records, and callers that have other keys.
async fn made(path: &Path, records: u64, plan: &Plan) -> Result<Callers, Failure> {
    fill(path, records, plan).await?;
    open(path, u64::MAX ^ records, plan).await
}

fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm", ".lock", ".reach"] {
        let mut file = path.to_path_buf().into_os_string();
        file.push(suffix);
        // The next round says more clearly than we could when a file could not be removed.
        let _ = std::fs::remove_file(file);
    }
}

/// Fills a store through the engine itself, so that its rows are what the engine writes.
async fn fill(path: &Path, records: u64, plan: &Plan) -> Result<(), Failure> {
    let callers = open(path, records, plan).await?;
    callers.fill(records, plan.progress.counter()).await?;
    Ok(callers.engine.close().await?)
}

/// Callers of an engine on a file, with keys of this seed.
async fn open(path: &Path, seed: u64, plan: &Plan) -> Result<Callers, Failure> {
    let store = SqliteStore::open(path, SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    Ok(Callers::new(engine, Keys::new(TENANT, seed), plan.callers))
}

/// A number of records in a ratio's name: 1k, 1m, 10m.
pub(crate) fn short(records: u64) -> String {
    match records {
        1_000_000.. if records.is_multiple_of(1_000_000) => format!("{}m", records / 1_000_000),
        1_000.. if records.is_multiple_of(1_000) => format!("{}k", records / 1_000),
        _ => records.to_string(),
    }
}
