//! What memory alone answers: that a record is not there, and nothing else.

mod damage;

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onceward_core::batch::{Answer, Batch, Condition, Write};
use onceward_core::decide::{Claim, Facts, Step, claim};
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::stamp::Token;

use super::super::{Fact, Loaded, Read, Store};
use super::check::Check;
use super::failure::Failure;
use super::notices::Notices;
use super::{Reading, SqliteOptions, SqliteStore, StoreClock, open};

/// A folder of its own, removed when it is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let name = format!("onceward-sqlite-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What can't be removed lies in the system's temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn key(id: u64) -> Key {
    Key::new(Kind::Request, "acme", "POST /payments", &format!("k{id}")).unwrap()
}

fn read(id: u64) -> Read {
    Read::Record { key: key(id), payload: false }
}

pub(super) fn first_claim(id: u64) -> Arc<Batch> {
    let claimed = Claim::new(key(id), fingerprint_bytes(b"{}"));
    match claim(&claimed, Token(u128::from(id) + 1), &Facts::default()) {
        Step::Commit(batch, _) => Arc::new(batch),
        other => panic!("{other:?}"),
    }
}

async fn apply(store: &SqliteStore, batch: Arc<Batch>) {
    let answers = store.commit(vec![batch]).await.unwrap().answers;
    assert!(matches!(answers[..], [Answer::Applied(_)]), "{answers:?}");
}

/// Waits until memory tells that a record is not there: a thread reads the names of the index, and
/// who holds a lock for a moment is not waited for.
async fn told(store: &SqliteStore, reads: &[Read]) -> Loaded {
    let tells = async {
        loop {
            if let Some(loaded) = store.nothing_there(reads) {
                return loaded;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), tells).await.expect("memory tells")
}

/// Waits until all names of the index are known, also where memory is not asked.
async fn until_known(store: &SqliteStore) {
    let known = async {
        while store.shared.known.lacks_now(&key(u64::MAX)).is_none()
            || store.shared.young.lacks(&key(u64::MAX)).is_none()
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), known).await.expect("names are read");
}

#[tokio::test]
async fn only_records_that_were_never_there_are_told_from_memory() {
    let folder = Folder::new("never");
    let store = SqliteStore::open(folder.file("x.db"), SqliteOptions::default()).unwrap();
    until_known(&store).await;
    apply(&store, first_claim(1)).await;
    let loaded = told(&store, &[read(2), read(3)]).await;
    assert!(matches!(loaded.facts[..], [Fact::Record(None), Fact::Record(None)]));
    assert!(store.nothing_there(&[read(1)]).is_none());
    assert!(store.nothing_there(&[read(2), read(1)]).is_none());
    assert!(store.nothing_there(&[]).is_none(), "who asks for the time wants the file to answer");
    let mark = Read::Mark(Subject::new("acme", "calendar", "1").unwrap());
    assert!(store.nothing_there(&[mark]).is_none());

    let gone = Batch {
        token: Token(9),
        conditions: Vec::<Condition>::new(),
        writes: vec![Write::Delete(key(1))],
    };
    apply(&store, Arc::new(gone)).await;
    assert!(store.nothing_there(&[read(1)]).is_none(), "the file tells that it is gone");
    assert!(matches!(store.load(vec![read(1)]).await.unwrap().facts[..], [Fact::Record(None)]));
    store.close().await.unwrap();
    assert!(store.nothing_there(&[read(2)]).is_none(), "a closed store answers nothing");
    store.load(vec![read(2)]).await.unwrap_err();
}

#[tokio::test]
async fn a_record_of_an_earlier_run_is_never_told_to_be_absent() {
    let folder = Folder::new("reopened");
    let store = SqliteStore::open(folder.file("x.db"), SqliteOptions::default()).unwrap();
    for id in 0..200 {
        apply(&store, first_claim(id)).await;
    }
    store.close().await.unwrap();
    // Each time from the first moment on, while the names are still being read.
    for _ in 0..20 {
        let store = SqliteStore::open(folder.file("x.db"), SqliteOptions::default()).unwrap();
        for id in 0..200 {
            assert!(store.nothing_there(&[read(id)]).is_none());
        }
        until_known(&store).await;
        for id in 0..200 {
            assert!(store.nothing_there(&[read(id)]).is_none());
        }
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn who_shares_the_file_asks_the_file() {
    let folder = Folder::new("shared");
    let options = SqliteOptions { exclusive: false, ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.file("x.db"), options).unwrap();
    until_known(&store).await;
    assert!(store.nothing_there(&[read(1)]).is_none());
    let other = SqliteStore::open(folder.file("x.db"), options).unwrap();
    apply(&other, first_claim(1)).await;
    let facts = store.load(vec![read(1)]).await.unwrap().facts;
    assert!(matches!(facts[..], [Fact::Record(Some(_))]));
}

/// A disk that can be held up. Let go of when this is dropped, or a failed test would never end.
#[derive(Default)]
struct HeldUp(Arc<(Mutex<bool>, Condvar)>);

impl HeldUp {
    fn set(&self, held: bool) {
        *self.0.0.lock().unwrap() = held;
        self.0.1.notify_all();
    }

    fn disk(&self, log: std::fs::File) -> Box<super::sync::Disk> {
        let state = self.0.clone();
        Box::new(move || {
            drop(state.1.wait_while(state.0.lock().unwrap(), |held| *held).unwrap());
            log.sync_data()
        })
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_commit_in_flight_has_made_or_forgotten_is_left_to_the_file() {
    let folder = Folder::new("flight");
    let options = SqliteOptions::default();
    let clock = |last| StoreClock::going_on(last, Reading::now());
    let path = folder.file("x.db");
    let held = HeldUp::default();
    let store = SqliteStore::open_for_writing(&path, options, clock, |log| held.disk(log));
    let store = Arc::new(store.unwrap());
    // Dropped before the store.
    let held = held;
    until_known(&store).await;
    apply(&store, first_claim(1)).await;
    held.set(true);
    let claiming = store.clone();
    let pending = tokio::spawn(async move { apply(&claiming, first_claim(2)).await });
    while store.shared.sync.seen() < 2 {
        tokio::task::yield_now().await;
    }
    assert!(store.nothing_there(&[read(2)]).is_none(), "it is being made");
    told(&store, &[read(3)]).await;
    // As if names of deleted records had left with that commit: it has to be durable first.
    store.shared.young.forgot_in(store.shared.sync.seen());
    assert!(store.nothing_there(&[read(3)]).is_none());
    held.set(false);
    pending.await.unwrap();
    told(&store, &[read(3)]).await;
    // A commit that may or may not have happened: nothing is known until it is read anew.
    store.shared.young.doubt();
    assert!(store.nothing_there(&[read(3)]).is_none());
    apply(&store, first_claim(4)).await;
    until_known(&store).await;
    told(&store, &[read(3)]).await;
    assert!(store.nothing_there(&[read(1)]).is_none());
    store.close().await.unwrap();
}

#[tokio::test]
async fn m1_names_that_could_not_be_read_for_now_are_not_told_as_damaged() {
    use rusqlite::{Error, ffi};

    let folder = Folder::new("unread");
    let path = folder.file("x.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    store.close().await.unwrap();
    for (code, damaged) in [
        (ffi::SQLITE_NOMEM, false),
        (ffi::SQLITE_CANTOPEN, false),
        (ffi::SQLITE_IOERR_READ, false),
        (ffi::SQLITE_CORRUPT, true),
    ] {
        let (notices, reader) = (Notices::default(), open::reader(&path).unwrap());
        let mut check = Check::new(&notices, &path);
        let error = Error::SqliteFailure(ffi::Error::new(code), None);
        check.beside(&reader, &|| true, |_| Err(Failure::Sqlite(error))).unwrap_err();
        let standing = notices.standing();
        assert_eq!(standing.alarms.len(), usize::from(damaged), "{code}: {standing:?}");
        let told = [standing.alarms, standing.warnings].concat();
        let what = if damaged { "are damaged" } else { "could not be checked" };
        assert!(told.len() == 1 && told[0].contains(what), "{code}: {told:?}");
    }
}
