//! Names on their way to the index: enough records that they really move, with deletions, keys that
//! come again, a reopening halfway, a second writer, and looks from outside. Whatever the store
//! answers meanwhile is what the memory store answers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail the test")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::*;
use onceward::core::batch::{Answer, Batch, There, Write};
use onceward::core::key::Key;
use onceward::core::record::{Record, State};
use onceward::core::stamp::{At, Token};
use onceward::store::clock::StoreClock;
use onceward::store::memory::MemoryStore;
use onceward::store::sqlite::{SqliteDurability, SqliteOptions, SqliteStore};
use onceward::store::{Fact, Items, List, Loaded, Page, Read, Store};

/// Batches that share a commit.
const GROUP: u32 = 256;
/// Commits within which names have moved, however slow the thread is that sorts them.
const TURNS_MAX: u32 = 2_000;
/// Where all clocks of a test stand.
const NOW: At = At(1_000);
/// Nothing is killed here, so nothing has to wait for the disk.
const OPTIONS: SqliteOptions = SqliteOptions {
    durability: SqliteDurability::WalNormal,
    readers: 2,
    exclusive: true,
    accept_older: false,
};

fn open(folder: &Folder) -> SqliteStore {
    let (clock, _) = StoreClock::manual(NOW);
    SqliteStore::open_with_clock(folder.database(), OPTIONS, clock).unwrap()
}

/// One that leaves the file to others too.
fn open_shared(folder: &Folder) -> SqliteStore {
    let (clock, _) = StoreClock::manual(NOW);
    let options = SqliteOptions { exclusive: false, ..OPTIONS };
    SqliteStore::open_with_clock(folder.database(), options, clock).unwrap()
}

/// Keys whose names are in another order than their numbers.
fn scattered(number: u32) -> Key {
    key(&format!("{:08x}", number.wrapping_mul(2_654_435_761)))
}

fn delete(number: u32) -> Arc<Batch> {
    batch(vec![], vec![Write::Delete(scattered(number))])
}

/// Names in the index, and the number up to which all are there.
fn indexed(folder: &Folder) -> (i64, i64) {
    let question = "SELECT (SELECT count(*) FROM names), indexed FROM meta";
    folder.raw().query_row(question, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

/// Keys that were claimed in order, except those that are deleted now.
struct Keys {
    claimed: u32,
    deleted: BTreeSet<u32>,
}

impl Keys {
    /// The next claims, some deletions all over, and some of the deleted ones again, all in one
    /// commit; claims of what is there, which are refused, too.
    fn group(&mut self) -> Vec<Arc<Batch>> {
        let mut group = Vec::new();
        for _ in 0..GROUP - 32 {
            group.push(claim(&scattered(self.claimed)));
            self.claimed += 1;
        }
        for step in 0..12 {
            let number = (self.claimed.wrapping_mul(7_919) + step * 4_099) % self.claimed;
            group.push(delete(number));
            self.deleted.insert(number);
            if step % 3 == 0 {
                group.push(claim(&scattered(number)));
                self.deleted.remove(&number);
            }
        }
        if let Some(number) = self.deleted.pop_first() {
            group.push(claim(&scattered(number)));
            group.push(claim(&scattered(number)));
        }
        group
    }
}

/// A record, as far as both stores must agree on it.
type Seen = (Key, State, Token);

/// What both stores must agree on. Stamps are each store's own; the token tells which write it was.
fn seen(record: &Record) -> Seen {
    (record.key.clone(), record.state, record.token)
}

fn there(found: &There) -> Option<Seen> {
    let There::Record(found) = found else { panic!("a record was asked for") };
    found.as_ref().map(|stored| seen(&stored.record))
}

/// What an answer says, and whether it was applied again or what it was refused for.
fn said(answer: &Answer) -> Result<(bool, bool), Vec<Option<Seen>>> {
    match answer {
        Answer::Applied(applied) => Ok((applied.first.is_some(), applied.again)),
        Answer::Refused(refused) => Err(refused.failed.iter().map(|(_, at)| there(at)).collect()),
        other => panic!("{other:?}"),
    }
}

fn facts(loaded: &Loaded) -> Vec<Option<Seen>> {
    let found = |fact: &Fact| match fact {
        Fact::Record(found) => found.as_ref().map(|found| seen(&found.stored.record)),
        Fact::Mark(_) => panic!("records were asked for"),
    };
    loaded.facts.iter().map(found).collect()
}

fn items(page: &Page) -> Vec<Seen> {
    let Items::Records(records) = &page.items else { panic!("records were asked for") };
    records.iter().map(seen).collect()
}

/// Commits to both and compares the answers.
async fn commit(store: &SqliteStore, memory: &MemoryStore, group: Vec<Arc<Batch>>) {
    let mut expected = Vec::new();
    for batch in &group {
        // One by one: batches of a group are about different keys for it.
        expected.push(one(memory, batch).await);
    }
    let answers = store.commit(group).await.unwrap().answers;
    let said_by_both = answers.iter().map(said).zip(expected.iter().map(said));
    let differs = said_by_both.enumerate().find(|(_, (one, other))| one != other);
    assert_eq!(differs, None);
    assert_eq!(answers.len(), expected.len());
}

/// Compares a sample of the records, and all of them as lists.
async fn compare(store: &SqliteStore, memory: &MemoryStore, keys: &Keys) {
    let sample = (0..keys.claimed + 300).step_by(4_001).chain(keys.deleted.iter().copied().take(3));
    let read = |number| Read::Record { key: scattered(number), payload: false };
    let reads: Vec<_> = sample.map(read).collect();
    let expected = facts(&memory.load(reads.clone()).await.unwrap());
    assert!(expected.iter().any(Option::is_some) && expected.iter().any(Option::is_none));
    assert_eq!(facts(&store.load(reads).await.unwrap()), expected);
    for tenant in [None, Some("acme".to_string())] {
        let what = List::Records { tenant, scope: None, state: None };
        let mut after = None;
        loop {
            let expected = memory.list(what.clone(), after.clone(), 29_999).await.unwrap();
            let page = store.list(what.clone(), after, 29_999).await.unwrap();
            assert!(items(&page) == items(&expected), "a page differs");
            assert_eq!(page.next, expected.next);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn i17_names_move_and_nobody_notices() {
    let folder = Folder::new("names");
    let mut store = open(&folder);
    let (memory, _) = MemoryStore::manual(NOW);
    let look = SqliteStore::open_read_only(folder.database()).unwrap();
    let mut keys = Keys { claimed: 0, deleted: BTreeSet::new() };
    let mut reopened = false;
    for turn in 0.. {
        assert!(turn < TURNS_MAX, "names do not move");
        commit(&store, &memory, keys.group()).await;
        if turn == 80 {
            compare(&look, &memory, &keys).await;
        }
        let (names, all) = if turn > 140 && turn % 8 == 0 { indexed(&folder) } else { (0, 0) };
        if names > 0 && !reopened {
            assert_eq!(all, 0, "reopened halfway");
            store.close().await.unwrap();
            store = open(&folder);
            compare(&store, &memory, &keys).await;
            reopened = true;
        }
        if all > 30_000 {
            assert!(names > 30_000 && reopened);
            break;
        }
    }
    compare(&store, &memory, &keys).await;
    compare(&look, &memory, &keys).await;
    // A second writer, in turns: each learns what the other did.
    store.close().await.unwrap();
    let (store, other) = (open_shared(&folder), open_shared(&folder));
    for _ in 0..3 {
        commit(&other, &memory, keys.group()).await;
        commit(&store, &memory, keys.group()).await;
    }
    commit(&other, &memory, keys.group()).await;
    compare(&store, &memory, &keys).await;
}

#[tokio::test]
async fn a_record_is_seen_at_every_moment_while_its_name_moves_or_it_is_replaced() {
    let folder = Folder::new("names-seen");
    let store = open(&folder);
    let claims = |from: u32| (from..from + GROUP).map(|number| claim(&scattered(number))).collect();
    for turn in 0..260 {
        store.commit(claims(turn * GROUP)).await.unwrap();
    }
    let ended = AtomicBool::new(false);
    // Names move while these are read; a list beside them makes a snapshot last.
    let reading = async {
        let what = List::Records { tenant: None, scope: None, state: None };
        let mut from = 0;
        while !ended.load(Ordering::Relaxed) {
            let numbers = (from..from + 66_000).step_by(661).map(|number| number % 66_000);
            let read = |number| find_one(&store, scattered(number));
            let looks = futures_util::future::join_all(numbers.map(read));
            let (listed, _) = tokio::join!(store.list(what.clone(), None, 5), looks);
            listed.unwrap();
            from += 1;
        }
    };
    let moving = async {
        for turn in 260.. {
            assert!(turn < TURNS_MAX, "names do not move");
            store.commit(claims(turn * GROUP)).await.unwrap();
            if turn % 8 == 0 && indexed(&folder).1 > 60_000 {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
    };
    tokio::join!(reading, moving);
    // Now their names are in the index. Deleted and claimed in one commit, they are never absent.
    for turn in 0..100 {
        let numbers = turn * 300..turn * 300 + 100;
        let replace = |number| [delete(number), claim(&scattered(number))];
        let group = numbers.clone().flat_map(replace).collect();
        let replaced = AtomicBool::new(false);
        let reading = async {
            while !replaced.load(Ordering::Relaxed) {
                let reads = numbers.clone().map(|number| find_one(&store, scattered(number)));
                futures_util::future::join_all(reads).await;
            }
        };
        let replacing = async {
            store.commit(group).await.unwrap();
            replaced.store(true, Ordering::Relaxed);
        };
        tokio::join!(reading, replacing);
    }
}

async fn find_one(store: &SqliteStore, key: Key) {
    assert!(find(store, &key).await.unwrap().is_some(), "{key} is there");
}

/// A random number below a bound, from a seed that goes on.
fn below(seed: &mut u64, bound: u32) -> u32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    u32::try_from((*seed >> 33) % u64::from(bound)).unwrap()
}

/// Batches in no order: first claims, claims of what is there, deletions, keys that are deleted and
/// claimed in one commit, and batches that come again.
fn random_group(seed: &mut u64, claimed: &mut u32, sent: &mut Vec<Arc<Batch>>) -> Vec<Arc<Batch>> {
    let mut group = Vec::new();
    for _ in 0..GROUP / 2 + below(seed, GROUP / 2) {
        let number = below(seed, *claimed);
        match below(seed, 8) {
            0..5 => {
                group.push(claim(&scattered(*claimed)));
                *claimed += 1;
            }
            5 if below(seed, 2) == 0 => group.push(claim(&scattered(number))),
            5 => group.push(delete(number)),
            6 if below(seed, 2) == 0 => group.extend([delete(number), claim(&scattered(number))]),
            6 => group.extend([delete(number), claim(&scattered(number)), delete(number)]),
            _ if !sent.is_empty() => {
                let again = below(seed, u32::try_from(sent.len()).unwrap());
                group.push(sent[again as usize].clone());
            }
            _ => {}
        }
    }
    sent.extend(group.iter().step_by(5).cloned());
    group
}

/// Compares this many keys all over: what both say of them now, together and one by one.
async fn compare_random(
    (store, memory): (&SqliteStore, &MemoryStore),
    seed: &mut u64,
    (count, claimed): (u32, u32),
) {
    let read = |number| Read::Record { key: scattered(number), payload: false };
    let reads: Vec<_> = (0..count).map(|_| read(below(seed, claimed + 10))).collect();
    let expected = facts(&memory.load(reads.clone()).await.unwrap());
    assert_eq!(facts(&store.load(reads.clone()).await.unwrap()), expected);
    for (read, expected) in reads.into_iter().zip(expected) {
        assert_eq!(facts(&store.load(vec![read]).await.unwrap()), [expected]);
    }
}

#[tokio::test]
async fn i17_random_lives_of_keys_are_what_the_oracle_says() {
    let mut seed = 1;
    let folder = Folder::new("names-random");
    let mut store = open(&folder);
    let (memory, _) = MemoryStore::manual(NOW);
    let look = SqliteStore::open_read_only(folder.database()).unwrap();
    let mut claimed = 0;
    // Nearly as many as begin to move.
    while claimed < 65_000 {
        let group = (claimed..claimed + GROUP).map(|number| claim(&scattered(number)));
        commit(&store, &memory, group.collect()).await;
        claimed += GROUP;
    }
    let mut sent = Vec::new();
    let (mut moved, mut reopened) = (false, false);
    for turn in 0..TURNS_MAX {
        let group = random_group(&mut seed, &mut claimed, &mut sent);
        commit(&store, &memory, group).await;
        let (names, all) = if turn % 8 == 0 { indexed(&folder) } else { (0, 0) };
        // Names that were on their way begin anew: once, or they would never arrive.
        if names > 0 && !reopened {
            store.close().await.unwrap();
            store = open(&folder);
            reopened = true;
        }
        if turn % 4 == 0 {
            // Who looks from outside has no memory of young names, and looks through all of them.
            let from_outside = below(&mut seed, 3) == 0;
            let (reader, count) = if from_outside { (&look, 4) } else { (&store, 300) };
            compare_random((reader, &memory), &mut seed, (count, claimed)).await;
        }
        moved |= all > 0;
        if moved && below(&mut seed, 8) == 0 {
            break;
        }
    }
    assert!(moved && reopened, "names do not move");
    // Some that nobody has claimed yet, too.
    let keys = Keys { claimed, deleted: (claimed..claimed + 3).collect() };
    compare(&store, &memory, &keys).await;
    compare(&look, &memory, &keys).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn i05_a_remembered_place_is_only_a_guess() {
    let folder = Folder::new("places");
    let job = key("remembered");
    let store = open(&folder);
    let granted = fence(&one(&store, &claim(&job)).await);
    // Until its name has come to the index.
    let mut claimed = 0;
    while indexed(&folder).1 == 0 {
        assert!(claimed < TURNS_MAX * GROUP, "names do not move");
        for _ in 0..16 {
            let group = (claimed..claimed + GROUP).map(|number| claim(&scattered(number)));
            store.commit(group.collect()).await.unwrap();
            claimed += GROUP;
        }
    }
    // Found by its name once; from here on the place is remembered.
    applied(&one(&store, &complete(&job, granted, b"done")).await);
    applied(&one(&store, &batch(vec![], vec![Write::Delete(job.clone())])).await);
    let late = one(&store, &complete(&job, granted, b"late")).await;
    assert!(matches!(late, Answer::Refused(_)), "{late:?}");
    assert!(find(&store, &job).await.unwrap().is_none(), "nothing came back");
    let again = fence(&one(&store, &claim(&job)).await);
    let late = one(&store, &complete(&job, granted, b"late")).await;
    assert!(matches!(late, Answer::Refused(_)), "{late:?}");
    applied(&one(&store, &complete(&job, again, b"again")).await);
    let found = find(&store, &job).await.unwrap().unwrap();
    assert_eq!(found.stored.outcome.as_deref(), Some(&b"again"[..]));
    store.close().await.unwrap();
}
