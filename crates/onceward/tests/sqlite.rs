//! The embedded store, beyond what every store must do: its file, its lock, its schema, what it
//! does about damage, a full disk and a kill. What all stores share is in the conformance suite.

#![cfg(feature = "sqlite")]

#[path = "sqlite/support.rs"]
mod support;

use onceward::core::batch::{Answer, Condition, There, Write};
use onceward::core::record::{Body, Mark, State};
use onceward::core::stamp::{At, Rev};
use onceward::store::clock::StoreClock;
use onceward::store::sqlite::{SqliteDurability, SqliteOptions, SqliteStore};
use onceward::store::{Durability, Fact, Read, Store, StoreError};
use support::*;

#[tokio::test]
async fn a_claim_is_one_insert_and_a_refusal_shows_what_is_there() {
    let folder = Folder::new("claim");
    let store = folder.open();
    let (first, second) = (claim(&key("1")), claim(&key("1")));
    let granted = fence(&one(&store, &first).await);
    let Answer::Refused(refused) = one(&store, &second).await else { panic!("granted twice") };
    let [(0, There::Record(Some(there)))] = &refused.failed[..] else { panic!("{refused:?}") };
    assert_eq!(there.record.fence, Some(granted));
    assert_eq!(there.record.state, State::Running);
    applied(&one(&store, &complete(&key("1"), granted, b"outcome")).await);
    let Answer::Refused(refused) = one(&store, &second).await else { panic!("granted again") };
    let [(0, There::Record(Some(there)))] = &refused.failed[..] else { panic!("{refused:?}") };
    assert_eq!(there.outcome.as_deref(), Some(&b"outcome"[..]));
}

#[tokio::test]
async fn i09_a_batch_that_comes_again_is_recognised_by_its_token() {
    let folder = Folder::new("token");
    let store = folder.open();
    let batch_claim = claim(&key("1"));
    let first = applied(&one(&store, &batch_claim).await);
    let again = applied(&one(&store, &batch_claim).await);
    assert!(again.again && again.first == first.first);
    let granted = first.first.unwrap().1.unwrap();
    // A renewal leaves its own condition true, so only the token tells that it came before.
    let mut renewed = draft(record(&key("1"), State::Running));
    renewed.record.fence = Some(granted);
    renewed.record.last_fence = granted;
    let renewal = batch(vec![Condition::FenceIs(key("1"), granted)], vec![put(renewed)]);
    let first = applied(&one(&store, &renewal).await);
    let again = applied(&one(&store, &renewal).await);
    assert!(!first.again && again.again && again.first == first.first);
    let release = batch(vec![Condition::FenceIs(key("1"), granted)], vec![Write::Delete(key("1"))]);
    assert!(!applied(&one(&store, &release).await).again);
    assert!(applied(&one(&store, &release).await).again);
    assert_eq!(find(&store, &key("1")).await.unwrap(), None);
}

#[tokio::test]
async fn i25_stamps_rise_across_deletion_and_reopening() {
    let folder = Folder::new("stamps");
    let store = folder.open();
    let first = fence(&one(&store, &claim(&key("1"))).await);
    let release = batch(vec![], vec![Write::Delete(key("1"))]);
    applied(&one(&store, &release).await);
    let second = fence(&one(&store, &claim(&key("1"))).await);
    assert!(second > first);
    store.close().await.unwrap();
    drop(store);
    let store = folder.open();
    assert!(applied(&one(&store, &release).await).again, "tokens survive");
    let third = fence(&one(&store, &claim(&key("2"))).await);
    assert!(third > second);
}

#[tokio::test]
async fn i29_marks_never_move_back() {
    let folder = Folder::new("marks");
    let store = folder.open();
    let to = |position, value| {
        batch(vec![], vec![Write::Mark { subject: subject("1"), position, value }])
    };
    applied(&one(&store, &to(7, Body::Set(b"seven"[..].into()))).await);
    let now = applied(&one(&store, &to(3, Body::Keep)).await).now;
    let loaded = store.load(vec![Read::Mark(subject("1"))]).await.unwrap();
    let mark = Mark { position: 7, value: Some(b"seven"[..].into()), updated_at: now };
    assert_eq!(loaded.facts, [Fact::Mark(Some(mark.clone()))]);
    let late = batch(vec![Condition::PositionAtMost(subject("1"), 6)], vec![]);
    let Answer::Refused(refused) = one(&store, &late).await else { panic!("moved back") };
    assert_eq!(refused.failed, [(0, There::Mark(Some(mark)))]);
}

#[tokio::test]
async fn i26_a_refusal_leaves_its_neighbours_alone() {
    let folder = Folder::new("neighbours");
    let store = folder.open();
    finish(&store, &key("taken"), b"outcome").await;
    let stale = batch(
        vec![Condition::RevIs(key("taken"), Rev(1))],
        vec![put(draft(record(&key("taken"), State::Failed)))],
    );
    let group = vec![claim(&key("a")), claim(&key("taken")), stale, claim(&key("b"))];
    let answers = store.commit(group).await.unwrap().answers;
    let applied: Vec<bool> = answers.iter().map(|a| matches!(a, Answer::Applied(_))).collect();
    assert_eq!(applied, [true, false, false, true]);
    let there = find(&store, &key("taken")).await.unwrap().unwrap();
    assert_eq!(there.stored.outcome.as_deref(), Some(&b"outcome"[..]));
}

#[tokio::test]
async fn time_never_runs_back_across_restarts() {
    let folder = Folder::new("time");
    let (clock, _) = StoreClock::manual(At(5_000));
    let options = SqliteOptions::default();
    let store = SqliteStore::open_with_clock(folder.database(), options.clone(), clock).unwrap();
    assert_eq!(applied(&one(&store, &claim(&key("1"))).await).now, At(5_000));
    drop(store);
    let (clock, hand) = StoreClock::manual(At(1_000));
    let store = SqliteStore::open_with_clock(folder.database(), options, clock).unwrap();
    assert_eq!(store.load(vec![]).await.unwrap().now, At(5_000));
    assert_eq!(applied(&one(&store, &claim(&key("2"))).await).now, At(5_000));
    hand.advance(9_000);
    assert_eq!(applied(&one(&store, &claim(&key("3"))).await).now, At(10_000));
}

#[tokio::test]
async fn a_closed_store_does_nothing_and_says_so() {
    let folder = Folder::new("closed");
    let store = folder.open();
    store.close().await.unwrap();
    let refused = store.commit(vec![claim(&key("1"))]).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotApplied(_)), "{refused:?}");
    let refused = store.load(vec![]).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotApplied(_)), "{refused:?}");
    // The file is free although the closed store still lives.
    drop(folder.open());
}

#[tokio::test]
async fn a_weaker_durability_is_asked_for_by_name_and_shown() {
    let folder = Folder::new("weak");
    let options =
        SqliteOptions { durability: SqliteDurability::WalNormal, ..SqliteOptions::default() };
    let store = SqliteStore::open(folder.database(), options).unwrap();
    assert_eq!(store.capabilities().durability, Durability::Weak("wal-normal"));
    drop(store);
    assert_eq!(folder.open().capabilities().durability, Durability::Full);
}
