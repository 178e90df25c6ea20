//! The files of the embedded store: what is in which of them when, and what is told of files that
//! are not what they were.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail the test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::core::audit::Trace;
use onceward::core::batch::Write;
use onceward::core::decide::{Change, Claim, Completion, Effects, Resolution, Resolved, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::guard::{Guard, Rule};
use onceward::core::record::Body;
use onceward::core::stamp::{At, Fence};
use onceward::engine::Engine;
use onceward::store::clock::StoreClock;
use onceward::store::sqlite::{Announced, SqliteDurability, SqliteOptions, SqliteStore};
use onceward::store::{NamesCheck, Standing, Store, StoreError};

use super::support::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Copies a database, with the files beside it that are named, as they are now.
fn copy(from: &Path, to: &Path, suffixes: &[&str]) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    for suffix in ["", "-wal", "-shm", ".reach", ".lock"] {
        let _ = std::fs::remove_file(beside(to, suffix));
    }
    for suffix in std::iter::once(&"").chain(suffixes) {
        std::fs::copy(beside(from, suffix), beside(to, suffix)).unwrap();
    }
}

fn options() -> SqliteOptions {
    SqliteOptions::default()
}

async fn finish_all(store: &dyn Store, ids: std::ops::Range<usize>) {
    for id in ids {
        finish(store, &key(&format!("k{id}")), b"outcome").await;
    }
}

/// How many of so many keys are there.
async fn there(store: &dyn Store, ids: std::ops::Range<usize>) -> usize {
    let mut there = 0;
    for id in ids {
        there += usize::from(find(store, &key(&format!("k{id}"))).await.unwrap().is_some());
    }
    there
}

/// Tries again until there is something.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        // sleeps because files are looked at, and nothing tells when they change
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How a store is once its names are checked.
async fn standing(store: &dyn Store) -> Standing {
    until("all names are checked", async || {
        Some(store.standing()).filter(|standing| standing.names == NamesCheck::Checked)
    })
    .await
}

/// Works with a store and copies its files on the way, until the note beside the copy tells more
/// than its database holds: without the log, the copy is refused. Answers why, and how many keys
/// there are. Nothing is copied into the file as long as something comes.
async fn noted_copy(store: &SqliteStore, from: &Path, to: &Path) -> (String, usize) {
    let mut keys = 0;
    let why = until("the note", async || {
        finish_all(store, keys..keys + 5).await;
        keys += 5;
        copy(from, to, &[".reach"]);
        SqliteStore::open(to, options()).err()
    })
    .await;
    copy(from, to, &["-wal", ".reach"]);
    (why.to_string(), keys)
}

#[tokio::test]
async fn h2_after_a_clean_stop_the_database_is_in_its_file() {
    let folder = Folder::new("clean-stop");
    for round in 0..8 {
        let store = folder.open();
        finish_all(&store, round * 20..(round + 1) * 20).await;
        if round % 2 == 0 {
            store.close().await.unwrap();
        }
        drop(store);
        assert!(!beside(&folder.database(), "-wal").exists(), "round {round}");
        let image = folder.path().join(format!("copy-{round}")).join("store.db");
        copy(&folder.database(), &image, &[]);
        let copied = SqliteStore::open(&image, options()).unwrap();
        assert_eq!(there(&copied, 0..(round + 1) * 20).await, (round + 1) * 20);
        assert_eq!(standing(&copied).await, Standing::default());
    }
}

#[tokio::test]
async fn h2_what_is_idle_is_in_the_file_while_the_log_keeps_its_length() {
    let folder = Folder::new("idle");
    let store = folder.open();
    finish_all(&store, 0..20).await;
    let length = |path: &Path| path.metadata().unwrap().len();
    let log = beside(&folder.database(), "-wal");
    let image = folder.path().join("copy").join("store.db");
    until("all is in the file", async || {
        copy(&folder.database(), &image, &[]);
        let copied = SqliteStore::open(&image, options()).unwrap();
        (there(&copied, 0..20).await == 20).then_some(())
    })
    .await;
    assert!(length(&log) > 0);
    finish_all(&store, 20..21).await;
    store.close().await.unwrap();
}

#[tokio::test]
async fn h2_the_log_stays_below_64_mib() {
    let folder = Folder::new("bound");
    let store = Arc::new(folder.open());
    let log = beside(&folder.database(), "-wal");
    let outcome = vec![7; 256 << 10];
    let mut longest = 0;
    for id in 0..600 {
        finish(&*store, &key(&format!("k{id}")), &outcome).await;
        longest = longest.max(log.metadata().unwrap().len());
    }
    assert!(longest > 16 << 20, "the log was hardly used: {longest}");
    assert!(longest <= 64 << 20, "{longest}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn h2_m9_an_older_copy_is_refused_and_with_leave_its_fences_leap() {
    let folder = Folder::new("older");
    let store = folder.open();
    finish_all(&store, 0..5).await;
    store.close().await.unwrap();
    drop(store);
    let backup = folder.path().join("backup").join("store.db");
    copy(&folder.database(), &backup, &[]);
    let store = folder.open();
    let later = fence(&one(&store, &claim(&key("later"))).await);
    store.close().await.unwrap();
    drop(store);
    std::fs::copy(&backup, folder.database()).unwrap();
    let why = folder.refusal();
    assert!(why.contains("is older than its note"), "{why}");
    assert!(why.contains("--accept-older") && why.contains("docs/operations.md"), "{why}");
    assert_eq!(std::fs::read(&backup).unwrap(), std::fs::read(folder.database()).unwrap());
    let accepting = SqliteOptions { accept_older: true, ..options() };
    let store = SqliteStore::open(folder.database(), accepting).unwrap();
    let again = fence(&one(&store, &claim(&key("later"))).await);
    assert!(again > later, "{again:?} after {later:?}");
    let now = store.standing();
    assert!(now.warnings[0].contains("opened all the same"), "{now:?}");
    assert_eq!(now.alarms, [""; 0]);
    store.close().await.unwrap();
    drop(store);
    // From here on this is the database.
    assert_eq!(standing(&folder.open()).await, Standing::default());
}

#[tokio::test]
async fn m9_fences_lie_above_the_clock_and_below_what_json_can_tell() {
    let folder = Folder::new("leap");
    let at = |ms| {
        let (clock, _) = StoreClock::manual(At(ms));
        SqliteStore::open_with_clock(folder.database(), options(), clock).unwrap()
    };
    let mut before = Fence(0);
    // The last ones come by a clock that was set back, and by one that is wrong by ages.
    for (n, (ms, least)) in
        [(5_000, 5_000 * 1_024), (9_000, 9_000 * 1_024), (10, 0), (u64::MAX >> 8, 0)]
            .into_iter()
            .enumerate()
    {
        let store = at(ms);
        let granted = fence(&one(&store, &claim(&key(&format!("k{n}")))).await);
        assert!(granted > before && granted.0 > least && granted.0 < 1 << 53, "{granted:?}");
        before = granted;
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn m9_an_older_copy_under_a_clock_that_was_set_back_is_an_alarm() {
    let folder = Folder::new("set-back");
    let at = |ms, accept_older| {
        let (clock, _) = StoreClock::manual(At(ms));
        let options = SqliteOptions { accept_older, ..options() };
        SqliteStore::open_with_clock(folder.database(), options, clock)
    };
    let store = at(5_000_000, false).unwrap();
    finish_all(&store, 0..2).await;
    store.close().await.unwrap();
    let backup = folder.path().join("backup").join("store.db");
    copy(&folder.database(), &backup, &[]);
    let store = at(9_000_000, false).unwrap();
    let later = fence(&one(&store, &claim(&key("later"))).await);
    store.close().await.unwrap();
    std::fs::copy(&backup, folder.database()).unwrap();
    at(6_000_000, false).unwrap_err();
    let store = at(6_000_000, true).unwrap();
    let alarms = store.standing().alarms;
    assert!(alarms.len() == 1 && alarms[0].contains("clock is 3000 s behind"), "{alarms:?}");
    // The note knows better than the clock.
    assert!(fence(&one(&store, &claim(&key("later"))).await) > later);
    store.close().await.unwrap();
}

#[tokio::test]
async fn h2_a_database_that_is_gone_is_not_made_anew_where_there_was_one() {
    let folder = Folder::new("gone");
    let store = folder.open();
    finish_all(&store, 0..2).await;
    store.close().await.unwrap();
    std::fs::remove_file(folder.database()).unwrap();
    let why = folder.refusal();
    assert!(why.contains("says that there was one") && why.contains("--accept-older"), "{why}");
    assert!(!folder.database().exists());
    std::fs::remove_file(beside(&folder.database(), ".reach")).unwrap();
    folder.open().close().await.unwrap();
}

#[tokio::test]
async fn h2_a_copy_without_its_log_is_refused_where_the_note_says_more() {
    let folder = Folder::new("no-log");
    let image = folder.path().join("copy").join("store.db");
    let store = folder.open();
    let (why, id) = noted_copy(&store, &folder.database(), &image).await;
    assert!(why.contains("--accept-older"), "{why}");
    // With its log it is whole.
    let copied = SqliteStore::open(&image, options()).unwrap();
    assert_eq!(there(&copied, 0..id).await, id);
    assert_eq!(standing(&copied).await, Standing::default());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_note_that_can_not_be_read_is_said_and_made_anew() {
    let folder = Folder::new("note");
    folder.open().close().await.unwrap();
    std::fs::write(beside(&folder.database(), ".reach"), "nonsense").unwrap();
    let store = folder.open();
    let warnings = store.standing().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("can't be read"), "{warnings:?}");
    store.close().await.unwrap();
    drop(store);
    assert_eq!(standing(&folder.open()).await, Standing::default());
}

/// Opens a copy whose log was changed, and tells what is said of it and how many keys are there.
async fn changed(
    (from, to): (&Path, &Path),
    suffixes: &[&str],
    change: impl FnOnce(&mut Vec<u8>),
    keys: usize,
) -> (Standing, usize) {
    copy(from, to, suffixes);
    let mut log = std::fs::read(beside(from, "-wal")).unwrap();
    change(&mut log);
    std::fs::write(beside(to, "-wal"), log).unwrap();
    let store = SqliteStore::open(to, options()).unwrap();
    let found = (standing(&store).await, there(&store, 0..keys).await);
    // It still takes work, and once that is in the file nothing of the damage comes back.
    finish(&store, &key("after"), b"outcome").await;
    store.close().await.unwrap();
    drop(store);
    // What was found is told until somebody has looked, and then no more.
    for (accept_older, told) in [(false, true), (true, false), (false, false)] {
        let options = SqliteOptions { accept_older, ..options() };
        let store = SqliteStore::open(to, options).unwrap();
        let alarms = standing(&store).await.alarms;
        let damaged = !found.0.alarms.is_empty();
        assert_eq!(!alarms.is_empty(), told && damaged, "{alarms:?}");
        store.close().await.unwrap();
    }
    found
}

#[tokio::test]
async fn m1_a_log_that_is_damaged_or_cut_is_told_and_a_torn_end_is_not() {
    let folder = Folder::new("log");
    let (image, taken) = (folder.path().join("copy.db"), folder.path().join("taken.db"));
    let store = folder.open();
    let (_, keys) = noted_copy(&store, &folder.database(), &taken).await;
    let from = (&*taken, &*image);
    let (standing, found) = changed(from, &[".reach"], |_| {}, keys).await;
    assert_eq!((standing, found), (Standing::default(), keys));
    for note in [&[][..], &[".reach"]] {
        let (standing, found) = changed(
            from,
            note,
            |log| {
                let middle = log.len() / 2;
                log[middle] ^= 4;
            },
            keys,
        )
        .await;
        assert!(found < keys, "{found}");
        assert!(
            standing.alarms[0].contains("SQLite dropped what followed"),
            "{found} {standing:?}"
        );
        assert!(standing.alarms[0].contains("docs/operations.md"), "{standing:?}");
        // A header that is not whole takes the whole log with it.
        let (standing, _) = changed(from, note, |log| log[17] ^= 1, keys).await;
        assert!(standing.alarms[0].contains("breaks behind frame 0"), "{standing:?}");
    }
    // Cut: without a note this is how a power loss looks.
    let half = |log: &mut Vec<u8>| log.truncate(log.len() / 2);
    let (standing, found) = changed(from, &[], half, keys).await;
    assert!(found < keys && standing == Standing::default(), "{found} {standing:?}");
    let (standing, _) = changed(from, &[".reach"], half, keys).await;
    assert!(standing.alarms[0].contains("was cut"), "{standing:?}");
    store.close().await.unwrap();
}

/// Leave to go on with an older database, whose note is not written again while it works.
fn accepting() -> SqliteOptions {
    let durability = SqliteDurability::WalNormal;
    SqliteOptions { accept_older: true, durability, ..options() }
}

/// A crash of whoever has a database open now: what is opened next finds it as it should be.
fn crashed(database: &Path, into: &Path) -> SqliteStore {
    copy(database, into, &["-wal", ".reach"]);
    SqliteStore::open(into, options()).unwrap()
}

#[tokio::test]
async fn h2_an_older_copy_that_was_accepted_is_no_older_copy_after_a_crash() {
    let folder = Folder::new("accepted");
    let store = folder.open();
    finish_all(&store, 0..2).await;
    store.close().await.unwrap();
    let backup = folder.path().join("backup").join("store.db");
    copy(&folder.database(), &backup, &[]);
    let store = folder.open();
    // More than the older one reaches after it, by its audit entries.
    finish_all(&store, 2..40).await;
    store.close().await.unwrap();
    drop(store);
    std::fs::copy(&backup, folder.database()).unwrap();
    folder.refusal();
    let store = SqliteStore::open(folder.database(), accepting()).unwrap();
    finish_all(&store, 2..4).await;
    let next = crashed(&folder.database(), &folder.path().join("crashed.db"));
    assert_eq!(standing(&next).await, Standing::default());
    assert_eq!(there(&next, 0..4).await, 4);
    next.close().await.unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn m1_a_damaged_log_is_no_older_copy_after_a_crash() {
    let folder = Folder::new("damaged-crash");
    let (image, taken) = (folder.path().join("copy.db"), folder.path().join("taken.db"));
    let store = folder.open();
    noted_copy(&store, &folder.database(), &taken).await;
    store.close().await.unwrap();
    for accept_older in [false, true] {
        copy(&taken, &image, &["-wal", ".reach"]);
        let mut log = std::fs::read(beside(&taken, "-wal")).unwrap();
        let middle = log.len() / 2;
        log[middle] ^= 4;
        std::fs::write(beside(&image, "-wal"), log).unwrap();
        let store = SqliteStore::open(&image, SqliteOptions { accept_older, ..accepting() });
        let store = store.unwrap();
        let next = crashed(&image, &folder.path().join("crashed.db"));
        // It is told until somebody has looked.
        let alarms = standing(&next).await.alarms;
        assert_eq!(alarms.len(), usize::from(!accept_older), "{alarms:?}");
        next.close().await.unwrap();
        store.close().await.unwrap();
    }
}

/// Does something to the files of a store, and waits until it says so and takes nothing more.
async fn vanished(name: &str, act: impl FnOnce(&Folder)) {
    let folder = Folder::new(name);
    let store = folder.open();
    finish_all(&store, 0..2).await;
    act(&folder);
    let begun = Instant::now();
    let alarm = until("an alarm", async || store.standing().alarms.pop()).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{name}");
    assert!(alarm.contains("deleted or replaced") && alarm.contains("stop the server"), "{alarm}");
    let refused = store.commit(vec![claim(&key("later"))]).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotApplied(_)), "{name}: {refused:?}");
    assert!(refused.to_string().contains("deleted or replaced"), "{refused}");
    assert_eq!(there(&store, 0..2).await, 2, "what is there is still answered");
    store.close().await.unwrap();
}

#[tokio::test]
async fn m2_a_file_that_is_deleted_or_replaced_ends_the_store() {
    let remove = |suffix: &'static str| {
        move |folder: &Folder| std::fs::remove_file(beside(&folder.database(), suffix)).unwrap()
    };
    vanished("deleted", remove("")).await;
    vanished("log-deleted", remove("-wal")).await;
    let moved = |folder: &Folder| folder.path().join("moved");
    vanished("moved", |folder| std::fs::rename(folder.database(), moved(folder)).unwrap()).await;
    vanished("replaced", |folder| {
        std::fs::copy(folder.database(), moved(folder)).unwrap();
        std::fs::rename(moved(folder), folder.database()).unwrap();
    })
    .await;
}

#[tokio::test]
async fn m2_a_deleted_log_is_in_the_file_after_a_clean_stop() {
    let folder = Folder::new("log-deleted");
    let store = folder.open();
    finish_all(&store, 0..20).await;
    std::fs::remove_file(beside(&folder.database(), "-wal")).unwrap();
    until("an alarm", async || store.standing().alarms.pop()).await;
    store.commit(vec![claim(&key("later"))]).await.unwrap_err();
    store.close().await.unwrap();
    drop(store);
    let store = folder.open();
    assert_eq!(there(&store, 0..20).await, 20);
    assert_eq!(standing(&store).await, Standing::default());
    store.close().await.unwrap();
}

const MARKER: &[u8] = b"ada.lovelace@example.org";

/// Files in which the marker stands, and how often.
fn marked(folder: &Folder) -> Vec<(String, usize)> {
    let mut marked = Vec::new();
    for file in std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap) {
        let bytes = std::fs::read(file.path()).unwrap();
        let count = bytes.windows(MARKER.len()).filter(|window| *window == MARKER).count();
        if count > 0 {
            marked.push((file.file_name().into_string().unwrap(), count));
        }
    }
    marked
}

/// A payload or an outcome of about this length that tells of somebody.
fn personal(length: usize) -> Vec<u8> {
    let mut body = MARKER.repeat(length / MARKER.len() + 1);
    body.extend(length.to_be_bytes());
    body
}

async fn run(engine: &Engine, id: &str, length: usize) {
    let mut claim = Claim::new(key(id), fingerprint_bytes(b"{}"));
    claim.payload = Some(personal(length).into());
    let Verdict::Run { permit, .. } = engine.claim(&claim).await.unwrap() else {
        panic!("{id} ran before")
    };
    let guard = Guard::new(subject(id), Rule::Exactly { expected: 0 }).unwrap();
    let value = Body::Set(personal(length).into());
    let effects = Effects { changes: vec![Change { guard, value }], ..Effects::default() };
    let mut completion = Completion::new(personal(length).into());
    completion.effects = effects;
    engine.complete(&permit, &completion).await.unwrap();
}

async fn erase(engine: &Engine, id: &str) {
    let by = Trace::default();
    let erased = engine.resolve(&key(id), &Resolution::Erase, &by).await.unwrap();
    assert_eq!(erased, Resolved::Ok);
}

#[tokio::test]
async fn m6_what_is_erased_is_in_no_file_when_that_is_answered() {
    let folder = Folder::new("erased");
    let store: Arc<dyn Store> = Arc::new(folder.open());
    let engine = Engine::new(store.clone());
    let mut ids = Vec::new();
    for (n, length) in [10, 700, 3_000, 20_000, 100].into_iter().cycle().take(60).enumerate() {
        ids.push(format!("p{n}"));
        run(&engine, &ids[n], length).await;
    }
    assert!(!marked(&folder).is_empty());
    // The documents go with them.
    for id in &ids {
        let clear = Write::Mark { subject: subject(id), position: 2, value: Body::Clear };
        applied(&one(&*store, &batch(vec![], vec![clear])).await);
    }
    // Out of their order, and many at once.
    let (odd, even): (Vec<_>, Vec<_>) = ids.iter().enumerate().partition(|(n, _)| n % 2 == 1);
    futures_util::future::join_all(odd.iter().map(|(_, id)| erase(&engine, id))).await;
    for (_, id) in even {
        erase(&engine, id).await;
    }
    assert_eq!(marked(&folder), []);
    engine.close().await.unwrap();
    assert_eq!(marked(&folder), []);
}

#[tokio::test]
async fn m6_a_reader_that_keeps_the_log_is_waited_for_and_then_said() {
    let folder = Folder::new("kept");
    let store: Arc<dyn Store> = Arc::new(folder.open());
    let engine = Engine::new(store.clone());
    run(&engine, "p", 700).await;
    let clear = Write::Mark { subject: subject("p"), position: 2, value: Body::Clear };
    applied(&one(&*store, &batch(vec![], vec![clear])).await);
    let reader = folder.raw();
    reader.execute_batch("BEGIN; SELECT count(*) FROM records").unwrap();
    let begun = Instant::now();
    erase(&engine, "p").await;
    assert!(begun.elapsed() >= Duration::from_secs(9), "{:?}", begun.elapsed());
    let warnings = store.standing().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("was erased still"), "{warnings:?}");
    // Others don't wait for it.
    let begun = Instant::now();
    run(&engine, "q", 10).await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    drop(reader);
    until("it is gone", async || store.standing().warnings.is_empty().then_some(())).await;
    let left: usize = marked(&folder).iter().map(|(_, count)| count).sum();
    assert!(left < 10, "of p, nothing: {left}");
    engine.close().await.unwrap();
}

#[tokio::test]
async fn l1_a_file_has_one_server_under_all_of_its_names() {
    let folder = Folder::new("hard-link");
    let store = folder.open();
    finish_all(&store, 0..2).await;
    let linked = folder.path().join("linked.db");
    std::fs::hard_link(folder.database(), &linked).unwrap();
    let why = refusal(SqliteStore::open(&linked, options()));
    assert!(why.contains("in use under another name"), "{why}");
    store.close().await.unwrap();
    drop(store);
    let store = SqliteStore::open(&linked, options()).unwrap();
    let warnings = store.standing().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("1 other name"), "{warnings:?}");
    assert_eq!(there(&store, 0..2).await, 2);
    store.close().await.unwrap();
}

#[tokio::test]
async fn l2_a_symbolic_link_leads_to_the_file_and_its_lock() {
    let folder = Folder::new("symbolic-link");
    let store = folder.open();
    finish_all(&store, 0..2).await;
    let linked = folder.path().join("linked.db");
    std::os::unix::fs::symlink("store.db", &linked).unwrap();
    let why = refusal(SqliteStore::open(&linked, options()));
    assert!(why.contains("in use by process"), "{why}");
    let announced = Announced { server: "http://127.0.0.1:1".into(), token: "t".into() };
    SqliteStore::announce(&linked, &announced).unwrap();
    assert_eq!(SqliteStore::announced(folder.database()), Some(announced));
    store.close().await.unwrap();
    drop(store);
    let store = SqliteStore::open(&linked, options()).unwrap();
    assert_eq!(there(&store, 0..2).await, 2);
    assert!(beside(&folder.database(), "-wal").exists());
    let look = SqliteStore::open_read_only(&linked).unwrap();
    assert_eq!(there(&look, 0..2).await, 2);
    look.close().await.unwrap();
    store.close().await.unwrap();
    assert!(!beside(&linked, ".lock").exists() && !beside(&linked, ".reach").exists());
    drop(store);
    std::fs::remove_file(folder.database()).unwrap();
    let why = refusal(SqliteStore::open(&linked, options()));
    assert!(why.contains("leads nowhere"), "{why}");
}

#[tokio::test]
async fn l3_a_lock_or_a_note_that_is_a_link_is_refused_and_its_target_left_alone() {
    let folder = Folder::new("lock-link");
    folder.open().close().await.unwrap();
    let target = folder.path().join("target");
    for suffix in [".lock", ".reach"] {
        let name = beside(&folder.database(), suffix);
        std::fs::write(&target, "precious").unwrap();
        std::fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(&target, &name).unwrap();
        let why = folder.refusal();
        assert!(why.contains("no plain file") && why.contains("move it away"), "{why}");
        let announced = Announced { server: "s".into(), token: "t".into() };
        if suffix == ".lock" {
            SqliteStore::announce(folder.database(), &announced).unwrap_err();
            assert_eq!(SqliteStore::announced(folder.database()), None);
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        std::fs::remove_file(&name).unwrap();
        folder.open().close().await.unwrap();
    }
}
