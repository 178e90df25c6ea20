//! The other half of the crash table: a process killed at each step of closing its database, of
//! cutting its log, and of noting what was reached.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward::core::audit::Trace;
use onceward::core::decide::{Claim, Completion, Resolution, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::engine::Engine;
use onceward::store::NamesCheck;
use onceward::testing::points::{Point, on_point};

use super::{open, runtime};

pub(super) const HEAD: &str = "
## What a crash leaves of the files

A process had answered 20 keys and was killed at that step: while it closed its database, while it
cut the log after an erasure, or while it noted, beside its work, what the database had reached. The
next one opened the file as it lay there.

| doing | killed at | keys that ran again | alarms |
|---|---|---|---|
";

/// What the process was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Closing,
    Erasing,
    Working,
}

impl Doing {
    const ALL: [Self; 3] = [Self::Closing, Self::Erasing, Self::Working];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Closing => "closing",
            Self::Erasing => "erasing",
            Self::Working => "working",
        }
    }
}

pub(super) const CASES: [(Doing, Point); 10] = [
    (Doing::Closing, Point::BeforeFold),
    (Doing::Closing, Point::AfterFold),
    (Doing::Closing, Point::BeforeNote),
    (Doing::Closing, Point::NoteWritten),
    (Doing::Closing, Point::AfterNote),
    (Doing::Erasing, Point::BeforeFold),
    (Doing::Erasing, Point::AfterFold),
    (Doing::Working, Point::BeforeNote),
    (Doing::Working, Point::NoteWritten),
    (Doing::Working, Point::AfterNote),
];

const KEYS: usize = 20;

fn claim(id: &str) -> Claim {
    let key = Key::new(Kind::Request, "acme", "POST /payments", id).unwrap();
    Claim::new(key, fingerprint_bytes(b"{}"))
}

/// Runs a key; false when it was answered before.
async fn runs(engine: &Engine, id: &str) -> bool {
    match engine.claim(&claim(id)).await.unwrap() {
        Verdict::Run { permit, .. } => {
            engine.complete(&permit, &Completion::new(b"done"[..].into())).await.unwrap();
            true
        }
        Verdict::Replay(_) => false,
        other => panic!("{id}: {other:?}"),
    }
}

/// Notes that a key was answered.
fn answered(folder: &Path, id: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("answered"));
    writeln!(file.unwrap(), "{id}").unwrap();
}

/// The process that is killed, if this is it.
pub(super) fn told(folder: &Path, at: &str) -> bool {
    let Some((doing, point)) = at.split_once(' ') else { return false };
    let doing = Doing::ALL.into_iter().find(|known| known.as_str() == doing).unwrap();
    let point = Point::parse(point).unwrap();
    let armed = Arc::new(AtomicBool::new(false));
    let here = armed.clone();
    on_point(move |reached| {
        if reached == point && here.load(Ordering::SeqCst) {
            std::process::abort();
        }
    });
    runtime().block_on(child(folder, doing, &armed));
    true
}

async fn child(folder: &Path, doing: Doing, armed: &AtomicBool) {
    let engine = open(folder);
    runs(&engine, "erased").await;
    for n in 0..KEYS {
        let id = format!("k{n}");
        runs(&engine, &id).await;
        answered(folder, &id);
    }
    armed.store(true, Ordering::SeqCst);
    match doing {
        Doing::Closing => engine.close().await.unwrap(),
        Doing::Erasing => {
            let key = claim("erased").key;
            engine.resolve(&key, &Resolution::Erase, &Trace::default()).await.unwrap();
        }
        // sleeps because the note comes by itself, and this process ends with it
        Doing::Working => tokio::time::sleep(Duration::from_secs(60)).await,
    }
}

/// Kills a process, and looks at what it left.
pub(super) fn run(doing: Doing, point: Point) -> (usize, usize) {
    let (doing, point) = (doing.as_str(), point.as_str());
    let name = format!("onceward-crash-files-{}-{doing}-{point}", std::process::id());
    let folder: PathBuf = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .env("ONCEWARD_TEST_CRASH_FOLDER", &folder)
        .env("ONCEWARD_TEST_CRASH_POINT", format!("{doing} {point}"))
        .stderr(std::process::Stdio::null())
        .status();
    assert!(!status.unwrap().success(), "{doing}, {point}: it was not killed");
    let left = runtime().block_on(left(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
    left
}

/// How many answered keys run again, and how many alarms there are.
async fn left(folder: &Path) -> (usize, usize) {
    let answered = std::fs::read_to_string(folder.join("answered")).unwrap();
    assert_eq!(answered.lines().count(), KEYS);
    // Twice: the first one closes the file as it should be.
    let mut left = (0, 0);
    for _ in 0..2 {
        let engine = open(folder);
        while engine.standing().names == NamesCheck::Checking {
            tokio::task::yield_now().await;
        }
        left.1 += engine.standing().alarms.len();
        for id in answered.lines() {
            left.0 += usize::from(runs(&engine, id).await);
        }
        engine.close().await.unwrap();
        assert!(!folder.join("crash.db-wal").exists());
    }
    left
}

/// The line of a case, as it has to be.
pub(super) fn line(doing: Doing, point: Point) -> String {
    format!("| {} | {} | 0 of {KEYS} | none |\n", doing.as_str(), point.as_str())
}
