//! The crash table: a worker's process killed and frozen at every boundary, effects counted; and a
//! process killed at every step of what it does with its files.
//!
//! This program is both sides: started as a test it runs the harness and compares what is left with
//! `docs/crash-table.md`; told a folder and a boundary by its environment, it is the process that
//! is hit. `ONCEWARD_TEST_WRITE=1 cargo test -p onceward --all-features --test crash_table` writes
//! the page anew.
//! The ledger is a plain append, in a document and in a file: nothing hides a duplicate.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test talks")]

#[path = "crash_table/files.rs"]
mod files;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use onceward::core::decide::NewJob;
use onceward::core::key::Subject;
use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::testing::crash::{Blow, Boundary, Harness, Left, Points, table};
use onceward::worker::{Context, Done, Job, JobError, Worker};

const LEASE: Duration = Duration::from_millis(2_000);

const HEAD: &str = "# What a crash leaves

Each line is a real run: a worker's process was hit at that boundary of its first attempt, and the
job went on afterwards, in a new process (killed) or in the same one (frozen with SIGSTOP until its
lease had run out, then continued). The job has two effects: a line in a document, handed back and
so committed with the job (transactional), and a line in a file (foreign).

A transactional effect is there once, always. A foreign effect happens at least once; where the
process was hit between the effect and its record, it may happen again, and then under a higher
fence, so that whatever checks fences or accepts the job's effect key refuses or recognises it.

Written by `ONCEWARD_TEST_WRITE=1 cargo test -p onceward --all-features --test crash_table`, and
compared with a run on every test.

";

fn job() -> NewJob {
    Job::new("acme", "mail", "send").resource("user/7@1").payload(*b"{}").build().unwrap()
}

fn open(folder: &Path) -> Engine {
    let store = SqliteStore::open(folder.join("crash.db"), SqliteOptions::default()).unwrap();
    Engine::new(Arc::new(store))
}

/// The process that is hit.
async fn child(folder: PathBuf, boundary: &str) {
    let engine = open(&folder);
    let points = Points::at(boundary);
    let job = job();
    engine.enqueue(&job).await.unwrap();
    let at = points.clone();
    let builder =
        Worker::builder(engine.clone()).queue("mail").lease(LEASE).handler(move |job: Context| {
            let (points, folder) = (at.clone(), folder.clone());
            async move {
                let seen = job.read("ledger", "all").await?;
                points.reach(Boundary::BeforeEffect);
                job.check()?;
                foreign_effect(&folder, job.fence());
                points.reach(Boundary::AfterEffect);
                let mut lines = seen.value.as_deref().unwrap_or_default().to_vec();
                lines.extend(format!("{}\n", job.fence()).into_bytes());
                let mut done = Done::new();
                done.put(&seen, lines)?;
                Ok::<_, JobError>(done)
            }
        });
    points.work(&engine, builder, &job.key).await.unwrap();
    engine.close().await.unwrap();
}

fn foreign_effect(folder: &Path, fence: u64) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("ledger"));
    let mut file = file.unwrap();
    writeln!(file, "{fence}").unwrap();
    file.sync_data().unwrap();
}

async fn left(folder: &Path, boundary: Boundary, blow: Blow) -> Left {
    let engine = open(folder);
    let ledger = engine.get(&Subject::new("acme", "ledger", "all").unwrap()).await.unwrap();
    let transactional =
        ledger.map_or(0, |lines| lines.value.iter().filter(|b| **b == b'\n').count());
    engine.close().await.unwrap();
    let text = std::fs::read_to_string(folder.join("ledger")).unwrap_or_default();
    let foreign = text.lines().map(|line| line.parse().unwrap()).collect();
    Left { boundary, blow, transactional, foreign }
}

fn run(boundary: Boundary, blow: Blow) -> Left {
    let name = format!("onceward-crash-table-{}-{boundary:?}-{blow:?}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let harness = Harness::new(LEASE, |boundary: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .env("ONCEWARD_TEST_CRASH_FOLDER", &folder)
            .env("ONCEWARD_TEST_CRASH_POINT", boundary);
        command
    });
    harness.hit(boundary, blow).unwrap_or_else(|error| panic!("{boundary:?}, {blow:?}: {error}"));
    let left = runtime().block_on(left(&folder, boundary, blow));
    std::fs::remove_dir_all(&folder).unwrap();
    left
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// What a boundary promises: whether the effect elsewhere can be repeated.
fn promised(run: &Left) -> String {
    let again = match (run.boundary, run.blow) {
        // The handler had its effect and nothing says so.
        (Boundary::AfterEffect | Boundary::BeforeComplete, Blow::Kill) => "2, the later one higher",
        // It goes on where it stood: its completion holds if nobody was faster.
        (Boundary::AfterEffect | Boundary::BeforeComplete, Blow::Freeze) => {
            "1, or 2 and the later one higher"
        }
        _ => "1",
    };
    let (blow, boundary) = (run.blow.as_str(), run.boundary.as_str());
    format!("| {blow} | {boundary} | {} | {again} |\n", run.transactional)
}

fn judge(run: &Left) {
    assert_eq!(run.wrong(), None, "{run:?}");
    let most = usize::from(promised(run).contains("2,") || promised(run).contains("or 2")) + 1;
    assert!(run.foreign.len() <= most, "{run:?}");
    if run.blow == Blow::Kill {
        assert_eq!(run.foreign.len(), most, "{run:?}");
    }
}

fn main() {
    let told = std::env::var("ONCEWARD_TEST_CRASH_POINT");
    if let (Ok(boundary), Ok(folder)) = (told, std::env::var("ONCEWARD_TEST_CRASH_FOLDER")) {
        if files::told(Path::new(&folder), &boundary) {
            return;
        }
        return runtime().block_on(child(folder.into(), &boundary));
    }
    let cases = Blow::ALL.into_iter().flat_map(|blow| Boundary::ALL.map(|at| (at, blow)));
    // All at once: most of the time is spent waiting for leases.
    let runs: Vec<_> = cases.map(|(at, blow)| std::thread::spawn(move || run(at, blow))).collect();
    let files = files::CASES.map(|(doing, at)| std::thread::spawn(move || files::run(doing, at)));
    let runs: Vec<Left> = runs.into_iter().map(|run| run.join().unwrap()).collect();
    println!("{}", table(&runs));
    runs.iter().for_each(judge);
    let mut page = format!(
        "{HEAD}| hit | at | transactional effects | foreign effects |\n|---|---|---|---|\n"
    );
    page.extend(runs.iter().map(promised));
    page.push_str(files::HEAD);
    for ((doing, at), run) in files::CASES.into_iter().zip(files) {
        assert_eq!(run.join().unwrap(), (0, 0), "{doing:?} {at:?}: keys that ran again, alarms");
        page.push_str(&files::line(doing, at));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/crash-table.md");
    if std::env::var("ONCEWARD_TEST_WRITE").is_ok() {
        std::fs::write(&path, page).unwrap();
        return;
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        there, page,
        "docs/crash-table.md is stale: run this test with ONCEWARD_TEST_WRITE=1"
    );
    println!("test i05_i10_effects_after_a_crash_at_every_boundary ... ok");
    println!("test h2_no_answered_key_runs_again_after_a_crash_at_any_step_with_the_files ... ok");
}
