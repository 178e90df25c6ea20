//! The embedded store, beyond what every store must do: its file, its lock, its schema, what it
//! does about damage, a full disk and a kill. What all stores share is in the conformance suite.

#![cfg(feature = "sqlite")]

#[path = "sqlite/clock.rs"]
mod clock;
#[path = "sqlite/crash.rs"]
mod crash;
#[path = "sqlite/files.rs"]
mod files;
#[path = "sqlite/names.rs"]
mod names;
#[path = "sqlite/room.rs"]
mod room;
#[path = "sqlite/support.rs"]
mod support;

use std::sync::Arc;

use onceward::core::batch::{Answer, Condition, There, Write};
use onceward::core::decide::{Enqueue, NewJob};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::core::record::{Body, Mark, State, Time};
use onceward::core::stamp::{At, Rev};
use onceward::engine::{Engine, Take};
use onceward::store::clock::StoreClock;
use onceward::store::sqlite::{SqliteDurability, SqliteOptions, SqliteStore};
use onceward::store::{Durability, Fact, Items, List, Read, Store, StoreError};
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
    let store = SqliteStore::open_with_clock(folder.database(), options, clock).unwrap();
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

/// The secret behind every identity is in it, and what people have sent.
#[cfg(unix)]
#[tokio::test]
async fn what_a_store_makes_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("modes");
    let store = folder.open();
    let modes = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
        let mode = |file: std::fs::DirEntry| file.metadata().unwrap().permissions().mode() & 0o777;
        let named = files.map(|file| (file.file_name().into_string().unwrap(), mode(file)));
        named.collect::<std::collections::BTreeMap<_, _>>()
    };
    let files = ["store.db", "store.db-shm", "store.db-wal", "store.db.lock", "store.db.reach"];
    let expected = files.map(|name| (name.to_string(), 0o600));
    assert_eq!(modes(), expected.into());
    store.close().await.unwrap();
    drop(store);
    // Who lets others in does so on purpose.
    std::fs::set_permissions(folder.database(), PermissionsExt::from_mode(0o640)).unwrap();
    let store = folder.open();
    assert_eq!(modes()["store.db"], 0o640);
    store.close().await.unwrap();
}

#[test]
fn a_second_server_is_refused_and_told_who_holds_the_file() {
    let folder = Folder::new("second");
    let first = folder.open();
    let why = folder.refusal();
    assert!(why.contains(&format!("in use by process {}", std::process::id())), "{why}");
    assert!(why.contains("store.db.lock") && why.contains("stop it"), "{why}");
    drop(first);
    drop(folder.open());
}

#[test]
fn whatever_is_wrong_with_the_file_is_said_with_what_to_do() {
    let folder = Folder::new("wrong");
    let options = SqliteOptions::default;
    let missing = folder.path().join("missing").join("store.db");
    let why = refusal(SqliteStore::open(missing, options()));
    assert!(why.contains("missing does not exist; create it"), "{why}");
    let why = refusal(SqliteStore::open(folder.path(), options()));
    assert!(why.contains("is a folder; name a file in it"), "{why}");
    let why = refusal(SqliteStore::open_read_only(folder.database()));
    assert!(why.contains("there is no database at"), "{why}");

    std::fs::write(folder.database(), "no database, but longer than its header".repeat(9)).unwrap();
    let why = folder.refusal();
    assert!(why.contains("is not a database; choose another path"), "{why}");
    let why = refusal(SqliteStore::open_read_only(folder.database()));
    assert!(why.contains("is not a database; choose another path"), "{why}");
    std::fs::remove_file(folder.database()).unwrap();

    folder.raw().execute_batch("CREATE TABLE theirs (id INTEGER)").unwrap();
    let why = folder.refusal();
    assert!(why.contains("is a database of another program"), "{why}");
    std::fs::remove_file(folder.database()).unwrap();

    drop(folder.open());
    let mut permissions = std::fs::metadata(folder.database()).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(folder.database(), permissions).unwrap();
    let why = folder.refusal();
    assert!(why.contains("is read-only; make it writable"), "{why}");
}

#[test]
fn a_newer_schema_is_left_alone() {
    let folder = Folder::new("newer");
    drop(folder.open());
    let raw = folder.raw();
    raw.execute("INSERT INTO migrations VALUES (99, 'later', x'00', 0)", []).unwrap();
    drop(raw);
    for why in [folder.refusal(), refusal(SqliteStore::open_read_only(folder.database()))] {
        assert!(
            why.contains("schema version 99") && why.contains("use the newer version"),
            "{why}"
        );
    }
}

#[test]
fn a_changed_migration_is_noticed() {
    let folder = Folder::new("checksum");
    drop(folder.open());
    let raw = folder.raw();
    raw.execute("UPDATE migrations SET checksum = x'00'", []).unwrap();
    drop(raw);
    for why in [folder.refusal(), refusal(SqliteStore::open_read_only(folder.database()))] {
        assert!(why.contains("migration 1") && why.contains("another checksum"), "{why}");
    }
}

#[test]
fn an_older_schema_is_not_changed_by_looking() {
    let folder = Folder::new("older");
    drop(folder.open());
    let raw = folder.raw();
    raw.execute("DELETE FROM migrations", []).unwrap();
    drop(raw);
    let why = refusal(SqliteStore::open_read_only(folder.database()));
    assert!(why.contains("schema version 0") && why.contains("onceward migrate"), "{why}");
}

#[tokio::test]
async fn a_store_can_be_looked_at_while_a_server_holds_it() {
    let folder = Folder::new("look");
    let store = folder.open();
    finish(&store, &key("1"), b"outcome").await;
    let look = SqliteStore::open_read_only(folder.database()).unwrap();
    let found = find(&look, &key("1")).await.unwrap().unwrap();
    assert_eq!(found.stored.outcome.as_deref(), Some(&b"outcome"[..]));
    finish(&store, &key("2"), b"later").await;
    assert!(find(&look, &key("2")).await.unwrap().is_some(), "a look is fresh each time");
    let refused = look.commit(vec![claim(&key("3"))]).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unsupported { store: "sqlite", .. }), "{refused:?}");
    look.close().await.unwrap();
    finish(&store, &key("3"), b"the server goes on").await;
}

/// Ways to change stored bytes behind the store's back. `one` and `two` are done, with payloads.
const DAMAGES: &[&str] = &[
    "UPDATE outcomes SET body = CAST('x' || substr(body, 2) AS BLOB)",
    "UPDATE outcomes SET body = substr(body, 1, length(body) - 1)",
    "UPDATE outcomes SET body = x''",
    "DELETE FROM outcomes",
    "UPDATE records SET outcome_id = \
     (SELECT max(outcome_id + 0) FROM records r WHERE r.id <> records.id)",
    "UPDATE records SET outcome_id = NULL",
    "UPDATE records SET outcome = NULL",
    "UPDATE records SET state = 3",
    "UPDATE records SET state = 7",
    "UPDATE records SET rev = rev + 1",
    "UPDATE records SET fence = 1",
    "UPDATE records SET last_fence = 0",
    "UPDATE records SET token = zeroblob(16)",
    "UPDATE records SET token = zeroblob(15)",
    "UPDATE records SET fingerprint = zeroblob(33)",
    "UPDATE records SET fingerprint = x''",
    "UPDATE records SET attempt = attempt + 1",
    "UPDATE records SET attempt = -1",
    "UPDATE records SET priority = 9",
    "UPDATE records SET created_at = created_at + 1",
    "UPDATE records SET updated_at = updated_at - 1",
    "UPDATE records SET due_at = 1",
    "UPDATE records SET expires_at = expires_at + 1",
    "UPDATE records SET sweep_at = NULL",
    "UPDATE records SET has_payload = 1 - has_payload",
    "UPDATE records SET rest = substr(rest, 1, length(rest) - 1)",
    "UPDATE records SET rest = x''",
    "UPDATE records SET rest = CAST(substr(rest, 1, 5) || x'ff' || substr(rest, 7) AS BLOB)",
    "UPDATE records SET name = name || 'x', id = id + 100 WHERE name LIKE '%two'; \
     UPDATE records SET name = replace(name, 'one', 'two'); \
     UPDATE records SET name = replace(name, 'twox', 'one')",
    "UPDATE payloads SET body = CAST('x' || substr(body, 2) AS BLOB)",
    "UPDATE payloads SET seal = zeroblob(8)",
    "UPDATE payloads SET seal = x''",
    "DELETE FROM payloads",
    "UPDATE records SET payload_id = \
     (SELECT max(payload_id + 0) FROM records r WHERE r.id <> records.id)",
];

#[tokio::test]
async fn i18_whatever_is_changed_in_a_record_is_refused() {
    for damage in DAMAGES {
        let folder = Folder::new("damage");
        let store = folder.open();
        for id in ["one", "two"] {
            let mut claim = claim(&key(id)).as_ref().clone();
            if let Write::Put(draft) = &mut claim.writes[0] {
                draft.payload = Body::Set(format!("payload of {id}").into_bytes().into());
            }
            let granted = fence(&one(&store, &claim.into()).await);
            let outcome = format!("outcome of {id}");
            applied(&one(&store, &complete(&key(id), granted, outcome.as_bytes())).await);
        }
        assert!(find(&store, &key("one")).await.unwrap().is_some(), "{damage}: nothing to damage");
        folder.raw().execute_batch(damage).unwrap();
        let found = find(&store, &key("one")).await;
        assert!(matches!(found, Err(StoreError::Corrupt(_))), "{damage}: {found:?}");
    }
}

#[tokio::test]
async fn i18_whatever_is_changed_in_a_mark_is_refused() {
    let damages = [
        "UPDATE marks SET value = CAST('x' || substr(value, 2) AS BLOB)",
        "UPDATE marks SET value = NULL",
        "UPDATE marks SET position = position + 1",
        "UPDATE marks SET updated_at = 0",
        "UPDATE marks SET seal = x''",
        "UPDATE marks SET name = 'orders:3' WHERE name = 'orders:1'; \
         UPDATE marks SET name = 'orders:1' WHERE name = 'orders:2'",
    ];
    for damage in damages {
        let folder = Folder::new("damaged-mark");
        let store = folder.open();
        for id in ["1", "2"] {
            let value = Body::Set(b"document"[..].into());
            let write = Write::Mark { subject: subject(id), position: 1, value };
            applied(&one(&store, &batch(vec![], vec![write])).await);
        }
        folder.raw().execute_batch(damage).unwrap();
        let loaded = store.load(vec![Read::Mark(subject("1"))]).await;
        assert!(matches!(loaded, Err(StoreError::Corrupt(_))), "{damage}: {loaded:?}");
    }
}

/// Values that SQLite hands out and no column of ours can hold, at the places that a list goes by.
#[tokio::test]
async fn i18_values_that_are_never_written_stop_no_list() {
    let folder = Folder::new("odd-values");
    let store = folder.open();
    for id in ["a", "b", "c", "d", "e"] {
        let mut job =
            draft(record(&Key::new(Kind::Job, "acme", "mail", id).unwrap(), State::Pending));
        (job.due, job.sweep) = (Time::In(0), Time::In(0));
        applied(&one(&store, &batch(vec![], vec![put(job)])).await);
    }
    let odd = [
        "UPDATE records SET attempt = -1 WHERE name = 'mail:a'",
        "UPDATE records SET priority = -1, state = 99 WHERE name = 'mail:b'",
        "UPDATE records SET due_at = -7, sweep_at = -7, token = x'00' WHERE name = 'mail:c'",
    ];
    for change in odd {
        assert_eq!(folder.raw().execute(change, []).unwrap(), 1, "{change}");
    }
    for what in [List::Due { queue: "mail".into() }, List::Sweepable] {
        for limit in [1, 2, 10] {
            let mut names = Vec::new();
            let mut after = None;
            loop {
                let page = store.list(what.clone(), after, limit).await.unwrap();
                let Items::Records(records) = page.items else { panic!("{what:?}") };
                names.extend(records.iter().map(|record| record.key.id().to_string()));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(names, ["d", "e"], "{what:?}, pages of {limit}");
        }
    }
}

/// Payloads that are too large to come with the list are looked up together.
#[tokio::test]
async fn i18_a_job_whose_payload_is_damaged_is_dead_and_its_neighbours_run() {
    let folder = Folder::new("damaged-payload");
    let engine = Engine::new(Arc::new(folder.open()));
    let key = |id: &str| Key::new(Kind::Job, "acme", "mail", id).unwrap();
    let payload = vec![b'x'; 5_000];
    for id in ["a", "b", "c"] {
        let job = NewJob::new(key(id), fingerprint_bytes(&payload), payload.as_slice().into());
        assert!(matches!(engine.enqueue(&job).await.unwrap(), Enqueue::Made));
    }
    let damage = "UPDATE payloads SET body = x'00' \
                  WHERE id = (SELECT payload_id FROM records WHERE name = 'mail:b')";
    assert_eq!(folder.raw().execute(damage, []).unwrap(), 1);
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 10, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    let ids: Vec<_> = taken.iter().map(|taken| taken.permit.key().id().to_string()).collect();
    assert_eq!(ids, ["a", "c"]);
    assert!(taken.iter().all(|taken| taken.payload.len() == 5_000));
    let dead = List::Records { tenant: None, scope: None, state: Some(State::Dead) };
    let Items::Records(dead) = engine.list(dead, None, 10).await.unwrap().items else { panic!() };
    assert_eq!(dead.iter().map(|job| job.key.clone()).collect::<Vec<_>>(), [key("b")]);
    let why = dead[0].error.as_deref().unwrap();
    assert!(why.contains("can't be read"), "{why}");
    assert!(engine.take(&take).await.unwrap().is_empty());
}

/// Small payloads come with the list, larger ones are looked up.
#[tokio::test]
async fn i18_a_job_whose_payload_is_gone_is_dead_and_does_not_run_without_it() {
    let losses = [
        "DELETE FROM payloads WHERE id = (SELECT payload_id FROM records WHERE name = 'mail:b')",
        "UPDATE records SET payload_id = NULL WHERE name = 'mail:b'",
        "UPDATE records SET payload_id = 7777 WHERE name = 'mail:b'",
    ];
    for (loss, length) in losses.into_iter().flat_map(|loss| [(loss, 20), (loss, 5_000)]) {
        let folder = Folder::new("lost-payload");
        let engine = Engine::new(Arc::new(folder.open()));
        let key = |id: &str| Key::new(Kind::Job, "acme", "mail", id).unwrap();
        let payload = vec![b'x'; length];
        for id in ["a", "b", "c"] {
            let job = NewJob::new(key(id), fingerprint_bytes(&payload), payload.as_slice().into());
            assert!(matches!(engine.enqueue(&job).await.unwrap(), Enqueue::Made));
        }
        assert_eq!(folder.raw().execute(loss, []).unwrap(), 1, "{loss}");
        let take = Take { queue: "mail".into(), owner: "w".into(), max: 10, lease_ms: None };
        let taken = engine.take(&take).await.unwrap();
        let ids: Vec<_> = taken.iter().map(|taken| taken.permit.key().id().to_string()).collect();
        assert_eq!(ids, ["a", "c"], "{loss}, {length}");
        assert!(taken.iter().all(|taken| taken.payload.len() == length));
        let dead = List::Records { tenant: None, scope: None, state: Some(State::Dead) };
        let dead = engine.list(dead, None, 10).await.unwrap().items;
        let Items::Records(dead) = dead else { panic!() };
        assert_eq!(dead.iter().map(|job| job.key.clone()).collect::<Vec<_>>(), [key("b")]);
        let why = dead[0].error.as_deref().unwrap();
        assert!(why.contains("can't be read"), "{why}");
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn i26_a_damaged_record_does_not_fail_its_neighbours() {
    let folder = Folder::new("damaged-neighbour");
    let store = folder.open();
    finish(&store, &key("damaged"), b"outcome").await;
    folder.raw().execute_batch("UPDATE outcomes SET body = x'00'").unwrap();
    let group = vec![claim(&key("a")), claim(&key("damaged")), claim(&key("b"))];
    let answers = store.commit(group).await.unwrap().answers;
    applied(&answers[0]);
    assert_eq!(answers[1], Answer::Contended);
    applied(&answers[2]);
    let alone = store.commit(vec![claim(&key("damaged"))]).await;
    assert!(matches!(alone, Err(StoreError::Corrupt(_))), "{alone:?}");
    assert!(find(&store, &key("a")).await.unwrap().is_some());
    assert!(find(&store, &key("b")).await.unwrap().is_some());
}
