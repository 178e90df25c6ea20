//! The sealed audit: sealing, verifying, dropping, and what an attacker who edits rows can't hide.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod support;

use std::sync::{Arc, Mutex};

use onceward::audit::{Bad, SealKey, SealReport, Sealer, Verified, verify};
use onceward::core::audit::Entry;
use onceward::core::batch::Batch;
use onceward::core::key::{Key, Subject};
use onceward::core::seal::{SEGMENT_MAX, Settled, Wrong};
use onceward::engine::{Engine, Put, STORE_TENANT};
use onceward::store::memory::MemoryStore;
use onceward::store::{
    AuditFilter, Capabilities, Committed, Cursor, Items, List, Loaded, Page, Read, Store,
    StoreFuture,
};
use onceward::testing::harness::{Harness, MemoryHarness, START};
#[cfg(feature = "dynamodb")]
use support::dynamodb::DynamoDbHarness;
#[cfg(feature = "postgres")]
use support::postgres::PostgresHarness;
use support::sqlite::SqliteHarness;

fn key() -> SealKey {
    SealKey::new([7; 32])
}

/// An engine and a sealer on a harness's store.
struct Bed<'h> {
    harness: &'h dyn Harness,
    engine: Engine,
    sealer: Sealer,
}

async fn bed(harness: &dyn Harness) -> Bed<'_> {
    let engine = Engine::new(harness.open().await.unwrap());
    Bed { harness, sealer: Sealer::new(engine.clone(), key()), engine }
}

impl Bed<'_> {
    /// Entries of a tenant, each at an instant of its own.
    async fn write(&self, tenant: &str, actions: impl IntoIterator<Item = String>) {
        for action in actions {
            self.engine.audit(&Entry::new(tenant, &action)).await.unwrap();
            self.harness.advance(10).await.unwrap();
        }
    }

    async fn verified(&self) -> Verified {
        self.harness.settle().await.unwrap();
        verify(&self.engine, &key(), None, |_| ()).await.unwrap()
    }

    async fn seal(&self) -> u64 {
        self.harness.settle().await.unwrap();
        let report = self.sealer.pass().await.unwrap();
        assert_eq!((report.elsewhere, report.broken), (false, 0));
        report.sealed
    }

    /// Ids of a tenant's entries, in order.
    async fn ids(&self, tenant: &str) -> Vec<u64> {
        let filter = AuditFilter { tenant: Some(tenant.into()), ..AuditFilter::default() };
        let page = self.engine.list(List::Audit(filter), None, 1_000).await.unwrap();
        let Items::Audit(entries) = page.items else { panic!("{page:?}") };
        entries.iter().map(|audited| audited.id).collect()
    }
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (1..=count).map(|n| format!("do.{n}"))
}

fn sound(tenants: u64, sealed: u64, unsealed: u64) -> Verified {
    Verified { tenants, sealed, unsealed, ..Verified::default() }
}

async fn what_is_written_is_sealed_and_verified(harness: &dyn Harness) {
    let bed = bed(harness).await;
    assert_eq!(bed.verified().await, sound(0, 0, 0), "nothing is sound");
    assert_eq!(bed.sealer.pass().await.unwrap(), SealReport::default(), "and nothing is written");
    bed.write("acme", names(5)).await;
    bed.write("beta", names(3)).await;
    assert_eq!(bed.verified().await, sound(2, 0, 8), "not sealed yet is no fault");
    assert_eq!(bed.seal().await, 8);
    assert_eq!(bed.verified().await, sound(2, 8, 0));
    assert_eq!(bed.seal().await, 0, "once");
    bed.write("acme", names(2)).await;
    assert_eq!(bed.verified().await, sound(2, 8, 2));
    assert_eq!(bed.seal().await, 2);
    assert_eq!(bed.verified().await, sound(2, 10, 0));
    let one = verify(&bed.engine, &key(), Some("beta"), |_| ()).await.unwrap();
    assert_eq!(one, sound(1, 3, 0), "one tenant's");
    let other = verify(&bed.engine, &SealKey::new([8; 32]), None, |_| ()).await.unwrap();
    assert!(!other.is_sound(), "another key fits nothing");
}

async fn segments_fill_up_and_old_ones_are_dropped(harness: &dyn Harness) {
    let bed = bed(harness).await;
    let most = SEGMENT_MAX;
    bed.write("acme", names(most - 1)).await;
    bed.write("beta", names(2)).await;
    bed.seal().await;
    bed.write("acme", names(most + 5)).await;
    bed.seal().await;
    let sealed = 2 * most as u64 + 6;
    assert_eq!(bed.verified().await, sound(2, sealed, 0));
    let keep = 1_000_000;
    let nothing = bed.sealer.retain(keep, |_| ()).await.unwrap();
    assert_eq!((nothing.dropped, nothing.segments), (0, 0), "all are young");
    harness.advance(keep).await.unwrap();
    let mut told = Vec::new();
    let dropped = bed.sealer.retain(keep, |so_far| told.push(so_far.dropped)).await.unwrap();
    assert_eq!((dropped.dropped, dropped.segments), (sealed, 4), "three of acme's, one of beta's");
    assert_eq!(told, [most as u64, 2 * most as u64, 2 * most as u64 + 4, sealed]);
    let must_be = Verified { dropped: sealed, ..sound(2, 0, 2) };
    assert_eq!(bed.verified().await, must_be, "anchors are accepted; what went is told");
    assert_eq!(bed.sealer.retain(keep, |_| ()).await.unwrap().dropped, 0, "once");
    bed.write("acme", names(most)).await;
    let ids = bed.ids("acme").await;
    assert_eq!(ids.len(), most + 1, "and the note about those that went");
    assert!(ids.iter().all(|id| *id > sealed), "no number comes twice");
    bed.seal().await;
    let must_be = Verified { dropped: sealed, ..sound(2, most as u64 + 2, 0) };
    assert_eq!(bed.verified().await, must_be, "the chain goes on behind the anchor");
    // Only what is old goes: the second half of a tenant's life stays.
    harness.advance(keep / 2).await.unwrap();
    bed.write("acme", names(3)).await;
    bed.seal().await;
    harness.advance(keep / 2 + 1).await.unwrap();
    assert_eq!(bed.sealer.retain(keep, |_| ()).await.unwrap().dropped, most as u64 + 1);
    assert!(bed.verified().await.is_sound());
}

async fn two_sealers_and_a_dead_one_link_everything_once(harness: &dyn Harness) {
    let bed = bed(harness).await;
    let other = Sealer::new(bed.engine.clone(), key());
    for round in 1..=5 {
        for tenant in ["a", "b", "c"] {
            bed.write(tenant, names(round * 7)).await;
        }
        let (one, two) = tokio::join!(bed.sealer.pass(), other.pass());
        let (one, two) = (one.unwrap(), two.unwrap());
        assert_eq!(one.sealed + two.sealed, round as u64 * 21);
        assert!(bed.verified().await.is_sound());
    }
    // A sealer that died before it moved the frontier: everything comes again, nothing is linked
    // twice.
    let frontier = Subject::new(STORE_TENANT, "onceward.sealed", "frontier").unwrap();
    let version = bed.engine.mark(&frontier).await.unwrap().unwrap().position;
    let put = bed.engine.put(&frontier, version, Some(b"lost"[..].into())).await.unwrap();
    assert_eq!(put, Put::Written(version + 1));
    bed.write("a", names(1)).await;
    assert_eq!(bed.seal().await, 1);
    assert_eq!(bed.verified().await, sound(3, 5 * 63 + 1, 0));
}

async fn forged_and_removed_seals_are_found(harness: &dyn Harness) {
    let head = Subject::new(STORE_TENANT, "onceward.seals", "acme").unwrap();
    let segment = |n: u64| Subject::new("acme", "onceward.segments", &format!("{n:020}")).unwrap();
    let bed = bed(harness).await;
    bed.write("acme", names(SEGMENT_MAX + 3)).await;
    bed.seal().await;
    let document = |subject: Subject| {
        let engine = bed.engine.clone();
        async move { engine.mark(&subject).await.unwrap().unwrap() }
    };
    let old_head = document(head.clone()).await;
    let of_seal =
        |n| Bad { tenant: "acme".into(), entry: None, segment: Some(n), wrong: Wrong::Seal };
    let second = document(segment(2)).await;
    for (subject, n) in [(segment(1), 1), (segment(2), 2), (head.clone(), 0)] {
        let mark = document(subject.clone()).await;
        let good = mark.value.clone().unwrap();
        let mut forged = good.to_vec();
        forged[20] ^= 1;
        for bad in [Some(forged.into()), None, second.value.clone()] {
            if bad == Some(good.clone()) {
                continue;
            }
            let version = document(subject.clone()).await.position;
            bed.engine.put(&subject, version, bad).await.unwrap();
            assert_eq!(bed.verified().await.bad, [of_seal(n)]);
            bed.write("acme", names(1)).await;
            if n != 1 {
                let report = bed.sealer.pass().await.unwrap();
                assert_eq!(report.broken, 1, "nothing is linked to a broken seal");
            }
        }
        let version = document(subject.clone()).await.position;
        bed.engine.put(&subject, version, Some(good)).await.unwrap();
        assert!(bed.verified().await.is_sound());
        // Put right, what was passed over is linked by the next process.
        let again = Sealer::new(bed.engine.clone(), key());
        assert_eq!(again.pass().await.unwrap().broken, 0);
        assert_eq!(bed.verified().await.unsealed, 0);
    }
    // The head of an earlier day, put back: what was sealed since is there and not confirmed.
    bed.write("acme", names(3)).await;
    bed.seal().await;
    let version = document(head.clone()).await.position;
    bed.engine.put(&head, version, old_head.value.clone()).await.unwrap();
    let found = bed.verified().await;
    assert!(matches!(&found.bad[..], [Bad { wrong: Wrong::Seal, .. }]), "{found:?}");
    bed.write("acme", names(1)).await;
    assert_eq!(bed.sealer.pass().await.unwrap().broken, 1, "nothing is linked to it");
}

#[tokio::test]
async fn entries_are_sealed_and_verified_in_memory() {
    what_is_written_is_sealed_and_verified(&MemoryHarness::default()).await;
    segments_fill_up_and_old_ones_are_dropped(&MemoryHarness::default()).await;
    two_sealers_and_a_dead_one_link_everything_once(&MemoryHarness::default()).await;
    forged_and_removed_seals_are_found(&MemoryHarness::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_sealed_and_verified_in_sqlite() {
    what_is_written_is_sealed_and_verified(&SqliteHarness::default()).await;
    segments_fill_up_and_old_ones_are_dropped(&SqliteHarness::default()).await;
    two_sealers_and_a_dead_one_link_everything_once(&SqliteHarness::default()).await;
    forged_and_removed_seals_are_found(&SqliteHarness::default()).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn entries_are_sealed_and_verified_in_postgres() {
    what_is_written_is_sealed_and_verified(&PostgresHarness::default()).await;
    segments_fill_up_and_old_ones_are_dropped(&PostgresHarness::default()).await;
    two_sealers_and_a_dead_one_link_everything_once(&PostgresHarness::default()).await;
    forged_and_removed_seals_are_found(&PostgresHarness::default()).await;
}

#[cfg(feature = "dynamodb")]
#[tokio::test(flavor = "multi_thread")]
async fn entries_are_sealed_and_verified_in_dynamodb() {
    what_is_written_is_sealed_and_verified(&DynamoDbHarness::default()).await;
    segments_fill_up_and_old_ones_are_dropped(&DynamoDbHarness::default()).await;
    two_sealers_and_a_dead_one_link_everything_once(&DynamoDbHarness::default()).await;
    forged_and_removed_seals_are_found(&DynamoDbHarness::default()).await;
}

/// A statement, and what is wrong after it.
type Edit = (&'static str, &'static [(&'static str, u64, Wrong)]);

/// An edit of rows, and what the verifier must say first: tenant, entry, what is wrong. Entries 1
/// to 8 are acme's, 9 to 12 beta's, 13 is acme's again, all sealed; 14 is acme's and is not.
const EDITS: &[Edit] = &[
    ("UPDATE audit SET action = 'x' WHERE id = 5", &[("acme", 5, Wrong::Changed)]),
    ("UPDATE audit SET actor = 'eve' WHERE id = 1", &[("acme", 1, Wrong::Changed)]),
    ("UPDATE audit SET detail = '' WHERE id = 8", &[("acme", 8, Wrong::Changed)]),
    ("UPDATE audit SET at = at + 1 WHERE id = 13", &[("acme", 13, Wrong::Changed)]),
    (
        "UPDATE audit SET action = 'x' WHERE id IN (3, 7, 10)",
        &[("acme", 3, Wrong::Changed), ("beta", 10, Wrong::Changed)],
    ),
    ("DELETE FROM audit WHERE id = 1", &[("acme", 1, Wrong::Missing)]),
    ("DELETE FROM audit WHERE id = 6", &[("acme", 6, Wrong::Missing)]),
    ("DELETE FROM audit WHERE id = 13", &[("acme", 13, Wrong::Missing)]),
    ("DELETE FROM audit WHERE id IN (13, 14)", &[("acme", 13, Wrong::Missing)]),
    ("DELETE FROM audit WHERE tenant = 'beta'", &[("beta", 9, Wrong::Missing)]),
    ("DELETE FROM audit", &[("acme", 1, Wrong::Missing), ("beta", 9, Wrong::Missing)]),
    (
        "UPDATE audit SET tenant = 'acme' WHERE id = 10",
        &[("acme", 10, Wrong::Inserted), ("beta", 10, Wrong::Missing)],
    ),
    (
        "UPDATE audit SET tenant = 'gamma' WHERE id = 10",
        &[("beta", 10, Wrong::Missing), ("gamma", 10, Wrong::Inserted)],
    ),
    (
        "CREATE TABLE kept AS SELECT * FROM audit WHERE id IN (3, 4);
         UPDATE audit SET
             action = (SELECT action FROM kept WHERE id = 7 - audit.id),
             at = (SELECT at FROM kept WHERE id = 7 - audit.id)
         WHERE id IN (3, 4);
         DROP TABLE kept",
        // Where entries are read by time, the first that is out of its place is the one missing.
        &[("acme", 3, Wrong::Moved)],
    ),
    (
        "CREATE TABLE kept AS SELECT * FROM audit WHERE id IN (3, 4);
         UPDATE audit SET action = (SELECT action FROM kept WHERE id = 7 - audit.id)
         WHERE id IN (3, 4);
         DROP TABLE kept",
        &[("acme", 3, Wrong::Changed)],
    ),
];

async fn prepared(harness: &dyn Harness) -> Bed<'_> {
    let bed = bed(harness).await;
    bed.write("acme", names(8)).await;
    bed.write("beta", names(4)).await;
    bed.write("acme", names(1)).await;
    assert_eq!(bed.seal().await, 13);
    bed.write("acme", names(1)).await;
    assert_eq!(bed.verified().await, sound(2, 13, 1));
    bed
}

fn told(found: &Verified) -> Vec<(&str, u64, Wrong)> {
    found.bad.iter().map(|bad| (&*bad.tenant, bad.entry.unwrap_or(0), bad.wrong)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn abuse_audit_rows_edited_removed_or_reordered_are_named_in_sqlite() {
    for (sql, must_be) in EDITS {
        let harness = SqliteHarness::default();
        let bed = prepared(&harness).await;
        harness.execute(sql);
        let found = bed.verified().await;
        let is = told(&found);
        // Entries that changed places in time as well are met in the wrong order.
        let moved = [("acme", 3, Wrong::Missing)];
        assert!(is == *must_be || (must_be[0].2 == Wrong::Moved && is == moved), "{sql}: {is:?}");
    }
    // Without any edit: the same entries are sound.
    let harness = SqliteHarness::default();
    assert!(prepared(&harness).await.verified().await.is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn abuse_removed_heads_leave_their_entries_unexplained_in_sqlite() {
    let harness = SqliteHarness::default();
    let bed = prepared(&harness).await;
    harness.execute("DELETE FROM marks WHERE name LIKE 'onceward.seals%'");
    let found = bed.verified().await;
    let must_be = [("acme", 1, Wrong::Inserted), ("beta", 9, Wrong::Inserted)];
    assert_eq!(told(&found), must_be);
}

/// A memory store whose settled entries come out changed.
struct Changed {
    inner: MemoryStore,
    change: Mutex<fn(Vec<Settled>) -> Vec<Settled>>,
}

impl Store for Changed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn load(&self, reads: Vec<Read>) -> StoreFuture<'_, Loaded> {
        self.inner.load(reads)
    }

    fn commit(&self, group: Vec<Arc<Batch>>) -> StoreFuture<'_, Committed> {
        self.inner.commit(group)
    }

    fn list(&self, what: List, after: Option<Cursor>, limit: usize) -> StoreFuture<'_, Page> {
        Box::pin(async move {
            let mut page = self.inner.list(what, after, limit).await?;
            if let Items::Settled(entries) = page.items {
                page.items = Items::Settled(self.change.lock().unwrap()(entries));
            }
            Ok(page)
        })
    }

    fn watch(&self, keys: Vec<Key>) -> StoreFuture<'_, ()> {
        self.inner.watch(keys)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}

type Change = fn(Vec<Settled>) -> Vec<Settled>;

#[tokio::test]
async fn abuse_audit_rows_edited_removed_or_reordered_are_named_in_memory() {
    let changes: [(Change, u64, Wrong); 6] = [
        (
            |mut all| {
                all[2].audited.entry.action = "x".into();
                all
            },
            3,
            Wrong::Changed,
        ),
        (
            |mut all| {
                all.remove(2);
                all
            },
            3,
            Wrong::Missing,
        ),
        (
            |mut all| {
                all.truncate(4);
                all
            },
            5,
            Wrong::Missing,
        ),
        (
            |mut all| {
                let twice = all[2].clone();
                all.insert(2, twice);
                all
            },
            3,
            Wrong::Inserted,
        ),
        (
            |mut all| {
                all.swap(1, 2);
                all
            },
            2,
            Wrong::Missing,
        ),
        (
            |mut all| {
                let (one, two) = (all[1].place, all[2].place);
                all.swap(1, 2);
                (all[1].place, all[2].place) = (one, two);
                all
            },
            2,
            Wrong::Moved,
        ),
    ];
    for (change, entry, wrong) in changes {
        let (inner, _clock) = MemoryStore::manual(START);
        let store = Arc::new(Changed { inner, change: Mutex::new(|all| all) });
        let engine = Engine::new(store.clone());
        for n in 1..=6 {
            engine.audit(&Entry::new("acme", &format!("do.{n}"))).await.unwrap();
        }
        let sealer = Sealer::new(engine.clone(), key());
        assert_eq!(sealer.pass().await.unwrap().sealed, 6);
        *store.change.lock().unwrap() = change;
        let found = verify(&engine, &key(), Some("acme"), |_| ()).await.unwrap();
        assert_eq!(told(&found), [("acme", entry, wrong)]);
    }
}
