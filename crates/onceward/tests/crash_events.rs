//! The crash table of events: real processes killed at named points, on SQLite and on Postgres, and
//! an independent auditor who reads every sink afterwards and counts effects (C10).
//!
//! This program is both sides: started as a test it kills, audits and compares with
//! `docs/crash-table-events.md`; told a folder and a point by its environment, it is the process
//! that is killed. `ONCEWARD_TEST_CRASH_RUNS=50` makes more runs of each (`cargo xtask crash`),
//! `ONCEWARD_TEST_WRITE=1` writes the page anew.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "a test talks")]

#[path = "crash_events/audit.rs"]
mod audit;
#[path = "crash_events/child.rs"]
mod child;
#[path = "crash_events/file_log.rs"]
mod file_log;
#[path = "crash_events/place.rs"]
mod place;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use onceward::testing::points::Point;
use place::{On, Place};

/// Runs of each case when nobody says.
const RUNS: usize = 3;
/// Cases under way at once: most of their time is spent waiting for leases.
const AT_ONCE: usize = 6;

const HEAD: &str = "# What a crash leaves of events

Each line is a number of real runs: a process was killed (SIGKILL) at that point, another one went
on, and an auditor read every sink afterwards, by a way of its own. Three aggregates with four
events each pass through a relay, a broker's log that is a plain file, and consumers.

The worker's event has two effects: a line in a document, handed back and so committed with the
registry (transactional), and a line in a file (foreign). A transactional effect is there once,
always. A foreign effect happens at least once; where the process was killed between the effect and
its record it happens again, under a higher fence and with the same effect key. A projection's view
is compared with a fold of the event store.

Written by `ONCEWARD_TEST_WRITE=1 cargo test -p onceward --all-features --test crash_events`, and
compared with a run on every test. `cargo xtask crash --runs 50` makes more runs of each.

| process | killed at | store | transactional effects per event | foreign effects per event | view |
|---|---|---|---|---|---|
";

/// Which process is killed where, and whether the foreign effect of one event may be repeated.
const CASES: [(&str, Point, bool); 10] = [
    ("relay", Point::BeforePublish, false),
    ("relay", Point::BeforeCheckpoint, false),
    ("relay", Point::AfterCheckpoint, false),
    ("worker", Point::AfterClaim, false),
    ("worker", Point::BeforeEffect, false),
    ("worker", Point::AfterEffect, true),
    ("worker", Point::BeforeDone, true),
    ("projection", Point::BeforeWrite, false),
    ("projection", Point::AfterWrite, false),
    ("projection", Point::BeforeOffset, false),
];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Starts a child and waits for its word.
#[expect(clippy::zombie_processes, reason = "it is killed, or has ended, and is waited for")]
fn start(place: &Place, role: &str, point: &str, word: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    place.tell(&mut command);
    command.env("ONCEWARD_TEST_CRASH_ROLE", role).env("ONCEWARD_TEST_CRASH_POINT", point);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let output = child.stdout.take().unwrap();
    for line in BufReader::new(output).lines() {
        let line = line.unwrap();
        if line == format!("{}{word}", child::SAYS) {
            return child;
        }
    }
    panic!("{role} at {point}: the child ended before it said {word:?}");
}

/// One run: a process is killed at the point, and others go on.
fn run(role: &str, point: Point, on: On, repeats: bool) {
    let case = format!("{role} at {} on {on:?}", point.as_str());
    let place = Place::make(on);
    runtime().block_on(place.append());
    let mut killed = start(&place, role, point.as_str(), "reached");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut last = start(&place, "all", "nowhere", "done");
    assert!(last.wait().unwrap().success(), "{case}");
    let left = runtime().block_on(audit::audit(&place));
    assert_eq!(left.events, place::EVENTS, "{case}: {left:?}");
    assert!(left.transactional.iter().all(|effects| *effects == 1), "{case}: {left:?}");
    assert!(left.fences_rise && left.one_key_per_event, "{case}: {left:?}");
    let repeated = left.foreign.iter().filter(|effects| **effects == 2).count();
    assert!(left.foreign.iter().all(|effects| (1..=2).contains(effects)), "{case}: {left:?}");
    assert_eq!(repeated, usize::from(repeats), "{case}: {left:?}");
    assert_eq!(left.view, None, "{case}: the view is not the fold of the log");
    if (role, point) == ("relay", Point::BeforeCheckpoint) {
        assert!(left.published > place::EVENTS, "{case}: nothing was published twice");
    }
    assert!(left.published >= place::EVENTS && left.same_bytes, "{case}: {left:?}");
    place.remove();
}

fn line(role: &str, point: Point, on: On, repeats: bool) -> String {
    let foreign = if repeats { "1; 2 for the event that was hit" } else { "1" };
    format!("| {role} | {} | {} | 1 | {foreign} | equal |\n", point.as_str(), on.as_str())
}

fn main() {
    if let Some(told) = child::told() {
        return runtime().block_on(child::run(told));
    }
    let runs = std::env::var("ONCEWARD_TEST_CRASH_RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    let mut page = String::from(HEAD);
    let mut cases = Vec::new();
    for on in [On::Sqlite, On::Postgres] {
        for (role, point, repeats) in CASES {
            page.push_str(&line(role, point, on, repeats));
            cases.extend(std::iter::repeat_n((role, point, on, repeats), runs));
        }
    }
    let total = cases.len();
    let cases = std::sync::Mutex::new(cases);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some((role, point, on, repeats)) = cases.lock().unwrap().pop() else {
                        return;
                    };
                    run(role, point, on, repeats);
                }
            });
        }
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/crash-table-events.md");
    let _ = write!(page, "\nRuns of each line in CI: {RUNS}.\n");
    if std::env::var("ONCEWARD_TEST_WRITE").is_ok() {
        std::fs::write(&path, page).unwrap();
    } else {
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        let stale = "docs/crash-table-events.md is stale: run this test with ONCEWARD_TEST_WRITE=1";
        assert_eq!(there, page, "{stale}");
    }
    println!("test c10_events_after_a_crash_at_every_point ... ok ({total} runs)");
}
