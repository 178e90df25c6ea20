//! Power loss: whatever anyone was told is in what the disk had been told to keep by then.
//!
//! The log's sync is replaced by one that notes how long the log was when it began. Cut to that
//! length, beside the database as it was at the start, the log is what a power loss leaves in the
//! worst case: nothing that was not synced. The runs stay below the size at which the log is
//! copied into the database, so nothing else is synced meanwhile.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use onceward_core::batch::{Answer, Batch, Condition, Write};
use onceward_core::stamp::Token;

use super::super::tests::{Folder, first_claim, key};
use super::super::{Reading, SqliteDurability, SqliteOptions, SqliteStore, StoreClock};
use crate::store::{Fact, Read, Store};

const WRITERS: u64 = 8;
const EACH: u64 = 60;

/// What someone was told, and how much of the log was on the disk by then.
type Told = Arc<Mutex<Vec<(u64, u64)>>>;

async fn is_there(store: &SqliteStore, id: u64) -> bool {
    let read = Read::Record { key: key(id), payload: false };
    let facts = store.load(vec![read]).await.unwrap().facts;
    matches!(facts[..], [Fact::Record(Some(_))])
}

/// Someone who works with the store, and notes what they are told.
#[derive(Clone)]
struct Someone {
    store: Arc<SqliteStore>,
    told: Told,
    synced: Arc<AtomicU64>,
}

impl Someone {
    fn note(&self, id: u64) {
        self.told.lock().unwrap().push((id, self.synced.load(Ordering::SeqCst)));
    }

    /// Claims key after key; is refused because of a neighbour's key, which tells of it too.
    async fn write(self, writer: u64) {
        for id in writer * EACH..(writer + 1) * EACH {
            let answers = self.store.commit(vec![first_claim(id)]).await.unwrap().answers;
            assert!(matches!(answers[..], [Answer::Applied(_)]), "{answers:?}");
            self.note(id);
            let neighbour = (id + EACH) % (WRITERS * EACH);
            let refused = Arc::new(Batch {
                token: Token(u128::from(id + 1) << 64),
                conditions: vec![Condition::Absent(key(neighbour))],
                writes: Vec::<Write>::new(),
            });
            let answers = self.store.commit(vec![refused]).await.unwrap().answers;
            if let [Answer::Refused(_)] = answers[..] {
                self.note(neighbour);
            }
        }
    }

    /// Looks at key after key until it is there.
    async fn read(self, writer: u64) {
        for id in writer * EACH..(writer + 1) * EACH {
            while !is_there(&self.store, id).await {}
            self.note(id);
        }
    }
}

/// Writers and readers at once. What they were told, and how much was on the disk by then.
async fn work(store: &Arc<SqliteStore>, synced: &Arc<AtomicU64>) -> Vec<(u64, u64)> {
    let told = Told::default();
    let someone = Someone { store: store.clone(), told: told.clone(), synced: synced.clone() };
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        tasks.spawn(someone.clone().write(writer));
        tasks.spawn(someone.clone().read(writer));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let told = told.lock().unwrap();
    told.clone()
}

/// Ids of what was told and is not in the log's first bytes, for some of the places where it might
/// have been cut.
async fn lost(folder: &Folder, told: &[(u64, u64)], log: &[u8]) -> Vec<u64> {
    let mut cuts: Vec<u64> = told.iter().map(|(_, synced)| *synced).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let step = (cuts.len() / 12).max(1);
    let mut lost = Vec::new();
    for (n, cut) in cuts.into_iter().step_by(step).enumerate() {
        let image = folder.file(&format!("image-{n}.db"));
        std::fs::copy(folder.file("begun.db"), &image).unwrap();
        let length = usize::try_from(cut).unwrap();
        std::fs::write(beside(&image, "-wal"), &log[..length]).unwrap();
        let store = SqliteStore::open(&image, SqliteOptions::default()).unwrap();
        for (id, synced) in told {
            if *synced <= cut && !is_there(&store, *id).await {
                lost.push(*id);
            }
        }
        store.close().await.unwrap();
    }
    lost
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    super::super::open::beside(path, suffix)
}

/// Runs the work and answers what a power loss would have taken back.
async fn run(name: &str, durability: SqliteDurability) -> (usize, Vec<u64>) {
    let folder = Folder::new(name);
    let path = folder.file("onceward.db");
    // Made and closed before, so that everything that a start writes is in the database.
    SqliteStore::open(&path, SqliteOptions::default()).unwrap().close().await.unwrap();
    std::fs::copy(&path, folder.file("begun.db")).unwrap();
    let options = SqliteOptions { durability, ..SqliteOptions::default() };
    let on_machine = |last| StoreClock::going_on(last, Reading::now());
    let synced = Arc::new(AtomicU64::new(0));
    let noted = synced.clone();
    let store = SqliteStore::open_for_writing(&path, options, on_machine, |log| {
        Box::new(move || {
            let length = log.metadata()?.len();
            log.sync_data()?;
            noted.store(length, Ordering::SeqCst);
            Ok(())
        })
    });
    let store = Arc::new(store.unwrap());
    let told = work(&store, &synced).await;
    let log = std::fs::read(beside(&path, "-wal")).unwrap();
    let lost = lost(&folder, &told, &log).await;
    store.close().await.unwrap();
    (told.len(), lost)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i02_what_was_told_survives_a_power_loss() {
    let (told, lost) = run("full", SqliteDurability::Full).await;
    assert!(told as u64 >= 2 * WRITERS * EACH, "{told}");
    assert_eq!(lost, [0; 0], "told, and gone with the power");
    // The same check where answers don't wait for the disk: it can find what is lost.
    let (_, lost) = run("weak", SqliteDurability::WalNormal).await;
    assert!(!lost.is_empty(), "without a sync everything that was told is lost");
}

/// What a power loss leaves: the log as far as it was synced, and a note that may have come since.
type Images = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2_the_note_is_never_ahead_of_what_a_power_loss_leaves() {
    let folder = Folder::new("note");
    let path = folder.file("onceward.db");
    SqliteStore::open(&path, SqliteOptions::default()).unwrap().close().await.unwrap();
    std::fs::copy(&path, folder.file("begun.db")).unwrap();
    let (images, reach) = (Images::default(), beside(&path, ".reach"));
    let noted = images.clone();
    let on_machine = |last| StoreClock::going_on(last, Reading::now());
    let store = SqliteStore::open_for_writing(&path, SqliteOptions::default(), on_machine, |log| {
        let synced = Mutex::new(0);
        Box::new(move || {
            let note = std::fs::read(&reach)?;
            let (length, mut synced) = (log.metadata()?.len(), synced.lock().unwrap());
            noted.lock().unwrap().push((*synced, note));
            log.sync_data()?;
            *synced = length;
            Ok(())
        })
    });
    let store = store.unwrap();
    let kinds = || {
        let mut notes: Vec<_> =
            images.lock().unwrap().iter().map(|image| image.1.clone()).collect();
        notes.dedup();
        notes.len()
    };
    let mut id = 0;
    while kinds() < 4 {
        store.commit(vec![first_claim(id)]).await.unwrap();
        id += 1;
        // sleeps because a log that outgrows its bound is copied, and begins anew
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let log = std::fs::read(beside(&path, "-wal")).unwrap();
    store.close().await.unwrap();
    let mut images = std::mem::take(&mut *images.lock().unwrap());
    // The first image of each note has the shortest log.
    images.dedup_by(|later, earlier| later.1 == earlier.1);
    for (n, (synced, note)) in images.into_iter().enumerate() {
        let image = folder.file(&format!("image-{n}.db"));
        std::fs::copy(folder.file("begun.db"), &image).unwrap();
        std::fs::write(beside(&image, "-wal"), &log[..usize::try_from(synced).unwrap()]).unwrap();
        std::fs::write(beside(&image, ".reach"), note).unwrap();
        let store = SqliteStore::open(&image, SqliteOptions::default());
        let store = store.unwrap_or_else(|why| panic!("image {n}: {why}"));
        assert_eq!(store.standing().alarms, [""; 0], "image {n}");
        store.close().await.unwrap();
    }
}
