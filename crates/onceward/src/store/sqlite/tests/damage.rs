//! Every byte of a small database and of its log, one flipped bit at a time, and pages swapped, cut
//! and lost: whatever is damaged, no acknowledged key runs again without an alarm, and nobody is
//! served a byte that was not written.
//!
//! `ONCEWARD_TEST_DAMAGES=all` flips a bit of each byte; without it a thousand bytes of both are
//! taken, evenly spread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use onceward_core::Bytes;
use onceward_core::batch::{Batch, Write};
use onceward_core::decide::{Claim, Completion, Enqueue, Finish, NewJob, Verdict};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Body, Stored};
use onceward_core::stamp::{At, Token};

use super::super::super::{NamesCheck, Store};
use super::super::open::beside;
use super::super::reach::NoteFile;
use super::super::{SqliteDurability, SqliteOptions, SqliteStore, StoreClock};
use super::{Folder, until_known};
use crate::engine::{Engine, Take};

const NOW: At = At(1_800_000_000_000);
/// Nothing is killed and no power is lost, so nothing has to wait for the disk.
const OPTIONS: SqliteOptions = SqliteOptions {
    durability: SqliteDurability::WalNormal,
    readers: 1,
    exclusive: true,
    accept_older: false,
};
/// Bytes of a file, at most.
const BYTES_MAX: usize = 64 * 1024;
/// Bytes of each file of which a bit is flipped when nobody asks for all.
const FLIPS: usize = 500;

/// What was acknowledged, and the bytes that tell it.
struct World {
    folder: Folder,
    database: Vec<u8>,
    /// What was committed and is not in the database yet, and the note beside both.
    log: Vec<u8>,
    note: Vec<u8>,
    /// Claims, with their outcomes where they are done.
    claims: Vec<(Claim, Option<Bytes>)>,
    jobs: Vec<(Key, Bytes)>,
    marks: Vec<(Subject, u64)>,
}

fn claim(id: usize) -> Claim {
    let key = Key::new(Kind::Request, "acme", "POST /payments", &format!("k{id:03}")).unwrap();
    Claim::new(key, fingerprint_bytes(b"{}"))
}

fn open(path: &Path) -> Result<SqliteStore, super::super::super::StoreError> {
    SqliteStore::open_with_clock(path, OPTIONS, StoreClock::manual(NOW).0)
}

async fn granted(engine: &Engine, claim: &Claim) -> onceward_core::decide::Permit {
    match engine.claim(claim).await.unwrap() {
        Verdict::Run { permit, .. } => permit,
        other => panic!("{other:?}"),
    }
}

impl World {
    /// Keys that are done, run and were released, some of them in the index, jobs and marks; all in
    /// pages so small that tables and indexes have inner pages, and outcomes pages of their own.
    async fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let path = folder.file("x.db");
        let raw = rusqlite::Connection::open(&path).unwrap();
        raw.execute_batch("PRAGMA page_size = 1024; VACUUM").unwrap();
        drop(raw);
        let store = Arc::new(open(&path).unwrap());
        until_known(&store).await;
        let engine = Engine::new(store.clone());
        let (mut claims, mut jobs, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for id in 0..36 {
            store.shared.young.gather(5);
            let claim = claim(id);
            let permit = granted(&engine, &claim).await;
            let outcome: Bytes = format!("{id:04}").repeat(1 + id * 9).into_bytes().into();
            match id % 9 {
                7 => {
                    assert!(matches!(engine.release(&permit).await.unwrap(), Finish::Ok));
                    continue;
                }
                8 => claims.push((claim, None)),
                _ => {
                    let done = Completion::new(outcome.clone());
                    assert!(matches!(engine.complete(&permit, &done).await, Ok(Finish::Ok)));
                    claims.push((claim, Some(outcome)));
                }
            }
            if id % 6 == 0 {
                let key = Key::new(Kind::Job, "acme", "mail", &format!("j{id}")).unwrap();
                let payload: Bytes = format!("payload {id} ").repeat(id + 1).into_bytes().into();
                let job = NewJob::new(key.clone(), fingerprint_bytes(&payload), payload.clone());
                assert!(matches!(engine.enqueue(&job).await.unwrap(), Enqueue::Made));
                jobs.push((key, payload));
                let subject = Subject::new("acme", "orders", &format!("s{id}")).unwrap();
                let value = Body::Set(b"document"[..].into());
                let position = 7 + id as u64;
                let write = Write::Mark { subject: subject.clone(), position, value };
                let token = Token(0xd0c + id as u128);
                let batch = Batch { token, conditions: Vec::new(), writes: vec![write] };
                store.commit(vec![Arc::new(batch)]).await.unwrap();
                marks.push((subject, position));
            }
        }
        engine.close().await.unwrap();
        drop((engine, store));
        let raw = rusqlite::Connection::open(&path).unwrap();
        raw.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let counted = "SELECT (SELECT count(*) FROM names), (SELECT indexed FROM meta)";
        let (names, indexed): (i64, i64) =
            raw.query_row(counted, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        assert!(names > 10 && indexed > 0, "{names} names are in the index, up to {indexed}");
        drop(raw);
        let database = std::fs::read(&path).unwrap();
        assert!(database.len() <= BYTES_MAX, "{} bytes", database.len());
        let (log, note) = (Vec::new(), Vec::new());
        Self { folder, database, log, note, claims, jobs, marks }
    }

    /// What a server leaves that is killed: all commits in the log, which is on the disk, and a
    /// note that says so.
    async fn logged(name: &str) -> Self {
        let folder = Folder::new(name);
        let path = folder.file("x.db");
        let raw = rusqlite::Connection::open(&path).unwrap();
        raw.execute_batch("PRAGMA page_size = 512; VACUUM").unwrap();
        SqliteStore::open(&path, SqliteOptions::default()).unwrap().close().await.unwrap();
        let clock = StoreClock::manual(NOW).0;
        let options = SqliteOptions { readers: 1, ..SqliteOptions::default() };
        let store = Arc::new(SqliteStore::open_with_clock(&path, options, clock).unwrap());
        until_known(&store).await;
        // As long as this reads, nothing of the log is brought to the database.
        raw.execute_batch("BEGIN").unwrap();
        raw.query_row("SELECT stamp FROM meta", [], |row| row.get::<_, i64>(0)).unwrap();
        let engine = Engine::new(store.clone());
        let mut claims = Vec::new();
        for round in 0..3 {
            let some: Vec<Claim> = (round * 4..round * 4 + 4).map(claim).collect();
            let permits = join_all(some.iter().map(|claim| granted(&engine, claim))).await;
            let outcome: Bytes = format!("{round:04}").repeat(7).into_bytes().into();
            let done = Completion::new(outcome.clone());
            let ended = join_all(permits.iter().map(|permit| engine.complete(permit, &done))).await;
            assert!(ended.iter().all(|ended| matches!(ended, Ok(Finish::Ok))), "{ended:?}");
            claims.extend(some.into_iter().map(|claim| (claim, Some(outcome.clone()))));
        }
        let now = rusqlite::Connection::open(&path).unwrap();
        let stamp = || now.query_row("SELECT stamp FROM meta", [], |row| row.get::<_, i64>(0));
        let stamp = u64::try_from(stamp().unwrap()).unwrap();
        let noted = async {
            loop {
                let (note, _) = NoteFile::open(&path, false).unwrap();
                let noted = note.and_then(|note| note.noted);
                if noted.is_some_and(|note| note.reached.stamp == stamp && note.synced.is_some()) {
                    break;
                }
                // sleeps because the note is written about once a second, and rings for nobody
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), noted).await.expect("a note");
        let read = |suffix: &str| std::fs::read(beside(&path, suffix)).unwrap();
        let (database, log, note) = (read(""), read("-wal"), read(".reach"));
        assert!(log.len() <= BYTES_MAX && log.len() > 10_000, "{} bytes of log", log.len());
        drop((raw, now));
        engine.close().await.unwrap();
        Self { folder, database, log, note, claims, jobs: Vec::new(), marks: Vec::new() }
    }

    /// Puts files in the place of the store's.
    fn place(&self, database: &[u8], log: &[u8]) -> PathBuf {
        let path = self.folder.file("damaged.db");
        for suffix in ["-shm", ".lock", ".reach"] {
            let _ = std::fs::remove_file(beside(&path, suffix));
        }
        std::fs::write(&path, database).unwrap();
        std::fs::write(log_of(&path), log).unwrap();
        if !self.note.is_empty() {
            std::fs::write(beside(&path, ".reach"), &self.note).unwrap();
        }
        path
    }

    /// Opens files and asks for everything that was acknowledged. Tells whether the damage was
    /// told; an error says what was wrong.
    async fn judge(&self, database: &[u8], log: &[u8]) -> Result<bool, String> {
        let path = self.place(database, log);
        let Ok(store) = open(&path) else { return Ok(true) };
        let store = Arc::new(store);
        let checked = async {
            while store.standing().names == NamesCheck::Checking
                && store.standing().alarms.is_empty()
            {
                tokio::task::yield_now().await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), checked).await.is_err() {
            return Err("the check of names does not end".into());
        }
        let alarm = !store.standing().alarms.is_empty();
        let engine = Engine::new(store.clone());
        let judged = self.ask(&engine, alarm).await;
        drop(engine);
        store.close().await.unwrap();
        judged
    }

    async fn ask(&self, engine: &Engine, alarm: bool) -> Result<bool, String> {
        let mut told = alarm;
        let wrong = |what: String| if alarm { Ok(()) } else { Err(what) };
        let is = |stored: &Stored, outcome: &Option<Bytes>| stored.outcome == *outcome;
        for (claim, outcome) in &self.claims {
            match engine.look(&claim.key).await {
                Err(_) => told = true,
                Ok(None) => wrong(format!("{} is absent", claim.key))?,
                Ok(Some(found)) if is(&found.stored, outcome) => {}
                // An earlier moment of it: what came later is lost.
                Ok(Some(found)) if found.stored.outcome.is_none() => {
                    wrong(format!("{} is not done", claim.key))?;
                }
                Ok(Some(found)) => return Err(format!("another byte: {:?}", found.stored)),
            }
            match engine.claim(claim).await {
                Err(_) => told = true,
                Ok(Verdict::Run { .. }) => wrong(format!("{} runs again", claim.key))?,
                Ok(Verdict::Replay(stored)) if is(&stored, outcome) => {}
                Ok(Verdict::Busy { .. }) if outcome.is_none() => {}
                Ok(Verdict::Busy { .. }) => wrong(format!("{} runs still", claim.key))?,
                Ok(other) => return Err(format!("another byte: {other:?}")),
            }
        }
        for (subject, position) in &self.marks {
            match engine.mark(subject).await {
                Err(_) => told = true,
                Ok(Some(mark)) if mark.position == *position => {}
                Ok(other) => wrong(format!("the mark {subject} is {other:?}"))?,
            }
        }
        let take = Take { queue: "mail".into(), owner: "w".into(), max: 100, lease_ms: None };
        match engine.take(&take).await {
            Err(_) => told = true,
            Ok(taken) => {
                for job in taken {
                    let ours = (job.permit.key().clone(), job.payload);
                    if !self.jobs.contains(&ours) {
                        return Err(format!("another job: {ours:?}"));
                    }
                }
            }
        }
        Ok(told)
    }
}

fn log_of(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

/// Places of a file of so many bytes: all of them, or some.
fn places(bytes: usize) -> Vec<usize> {
    let asked = std::env::var("ONCEWARD_TEST_DAMAGES").ok();
    let count = match asked.as_deref() {
        None => FLIPS.min(bytes),
        Some("all") => bytes,
        Some(count) => count.parse().expect("ONCEWARD_TEST_DAMAGES is a number or `all`"),
    };
    (0..count).map(|at| at * bytes / count).collect()
}

/// Another bit for each byte, so that each of the eight is flipped somewhere.
fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 1 << (at.wrapping_mul(0x9e37) >> 8 & 7);
    bytes
}

#[track_caller]
fn none(wrong: &[String], told: usize, all: usize) {
    println!("{told} of {all} damages were told");
    let first = wrong.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {all}:\n{first}", wrong.len());
    assert!(told > all / 20, "only {told} of {all} were told");
}

#[tokio::test]
async fn m1_i18_a_flipped_bit_of_the_database_runs_no_key_again_without_an_alarm() {
    let world = World::new("damage-flip").await;
    assert_eq!(world.judge(&world.database, &[]).await, Ok(false), "nothing is damaged");
    let (mut wrong, mut told) = (Vec::new(), 0);
    let places = places(world.database.len());
    for at in &places {
        match world.judge(&flipped(&world.database, *at), &[]).await {
            Ok(noticed) => told += usize::from(noticed),
            Err(what) => wrong.push(format!("byte {at} (page {}): {what}", at / 1024 + 1)),
        }
    }
    none(&wrong, told, places.len());
}

#[tokio::test]
async fn m1_i18_swapped_lost_and_cut_pages_run_no_key_again_without_an_alarm() {
    let world = World::new("damage-pages").await;
    let pages: Vec<&[u8]> = world.database.chunks(1024).collect();
    let (mut wrong, mut told, mut all) = (Vec::new(), 0, 0);
    let mut note = |what: String, judged: Result<bool, String>| {
        all += 1;
        match judged {
            Ok(noticed) => told += usize::from(noticed),
            Err(why) => wrong.push(format!("{what}: {why}")),
        }
    };
    for first in 1..pages.len() {
        let mut zeroed = pages.clone();
        zeroed[first] = &[0; 1024];
        note(format!("page {} lost", first + 1), world.judge(&zeroed.concat(), &[]).await);
        let cut = &world.database[..first * 1024];
        note(format!("cut behind page {first}"), world.judge(cut, &[]).await);
        for second in (first + 1..pages.len()).step_by(3) {
            let mut swapped = pages.clone();
            swapped.swap(first, second);
            let what = format!("pages {} and {} swapped", first + 1, second + 1);
            note(what, world.judge(&swapped.concat(), &[]).await);
        }
    }
    none(&wrong, told, all);
}

#[tokio::test]
async fn m1_i18_a_flipped_bit_of_the_log_runs_no_key_again_without_an_alarm() {
    let world = World::logged("damage-log").await;
    let whole = world.judge(&world.database, &world.log).await;
    assert_eq!(whole, Ok(false), "nothing is damaged");
    assert_eq!(world.judge(&world.database, &[]).await, Ok(true), "all of it is in the log");
    let (mut wrong, mut told) = (Vec::new(), 0);
    let places = places(world.log.len());
    for at in &places {
        match world.judge(&world.database, &flipped(&world.log, *at)).await {
            Ok(noticed) => told += usize::from(noticed),
            Err(what) => wrong.push(format!("byte {at}: {what}")),
        }
    }
    none(&wrong, told, places.len());
    let (mut wrong, mut told, mut all) = (Vec::new(), 0, 0);
    for cut in (0..world.log.len()).step_by(536) {
        all += 1;
        match world.judge(&world.database, &world.log[..cut]).await {
            Ok(noticed) => told += usize::from(noticed),
            Err(what) => wrong.push(format!("cut at {cut}: {what}")),
        }
    }
    none(&wrong, told, all);
}
