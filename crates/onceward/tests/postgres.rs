//! The Postgres store against a real server: what the contract asks for, races, and losses.
//!
//! Each test has a schema of its own. Interleavings are forced by locks that the test holds, never
//! hoped for. What every store has to do is tested by the conformance suite as well; here is what
//! only this one can get wrong.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what helps a test fails as a test does"
)]

#[path = "postgres/proxy.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod proxy;
#[path = "postgres/support.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use onceward::core::audit::Entry;
use onceward::core::batch::{Answer, Batch, Condition, There, Write};
use onceward::core::decide::{Enqueue, NewJob};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::core::limits::MAX_BATCH_WRITES;
use onceward::core::record::{Body, FenceWrite, State, Time};
use onceward::core::stamp::{At, Fence};
use onceward::engine::{Engine, Take};
use onceward::store::memory::MemoryStore;
use onceward::store::postgres::{PostgresOptions, PostgresStore};
use onceward::store::{
    AuditFilter, Cursor, Durability, Fact, Items, List, Read, Store, StoreError,
};
use proxy::{Cut, CutAt, Proxy};
use support::*;

#[tokio::test]
async fn a_claim_is_there_as_it_was_written() {
    let place = Place::new("claim").await;
    place.manual_clock(1_000).await;
    let store = place.store().await;
    let key = request("k\0:é");
    let claim = claim(&key);
    let answer = applied(&commit(&store, &claim).await);
    assert_eq!((answer.now, answer.again), (At(1_000), false));
    let (rev, fence) = answer.first.unwrap();
    assert_eq!(fence, Some(Fence(rev.0)));

    let found = find(&store, &key).await.unwrap();
    let Write::Put(draft) = &claim.writes[0] else { unreachable!() };
    assert_eq!(found.stored.record, draft.resolve(claim.token, At(1_000), rev.0));
    assert_eq!((found.stored.outcome, found.payload), (None, None));
    assert_eq!(find(&store, &request("other")).await, None);
    place.remove().await;
}

#[tokio::test]
async fn a_load_answers_each_read_in_its_place() {
    let place = Place::new("load").await;
    let store = place.store().await;
    let (a, b) = (request("a"), key(Kind::Job, "a"));
    let mut with_payload = draft(record(&b, State::Pending));
    with_payload.record.has_payload = true;
    with_payload.payload = Body::Set(b"payload"[..].into());
    applied(&commit(&store, &claim(&a)).await);
    let writes = vec![put(with_payload), mark("m", 7, Body::Set(b"doc"[..].into()))];
    applied(&commit(&store, &batch(vec![], writes)).await);

    let record = |key: &Key, payload| Read::Record { key: key.clone(), payload };
    let reads = vec![
        Read::Mark(subject("none")),
        record(&b, true),
        record(&request("none"), false),
        record(&b, false),
        Read::Mark(subject("m")),
        record(&a, true),
    ];
    let facts = store.load(reads).await.unwrap().facts;
    let payload_of = |fact: &Fact| match fact {
        Fact::Record(Some(found)) => Some((found.stored.record.key.clone(), found.payload.clone())),
        _ => None,
    };
    assert_eq!(facts[0], Fact::Mark(None));
    assert_eq!(payload_of(&facts[1]), Some((b.clone(), Some(b"payload"[..].into()))));
    assert_eq!(facts[2], Fact::Record(None));
    assert_eq!(payload_of(&facts[3]), Some((b, None)));
    let Fact::Mark(Some(there)) = &facts[4] else { panic!("{:?}", facts[4]) };
    assert_eq!((there.position, there.value.as_deref()), (7, Some(&b"doc"[..])));
    assert_eq!(payload_of(&facts[5]), Some((a, None)));
    place.remove().await;
}

#[tokio::test]
async fn a_refusal_shows_what_is_there_and_writes_nothing() {
    let place = Place::new("refusal").await;
    let store = place.store().await;
    let key = request("k");
    applied(&commit(&store, &claim(&key)).await);
    let running = find(&store, &key).await.unwrap().stored.record;
    let finish = batch(
        vec![Condition::FenceIs(key.clone(), running.fence.unwrap())],
        vec![put(done(running.clone(), b"outcome")), mark("m", 5, Body::Set(b"v"[..].into()))],
    );
    applied(&commit(&store, &finish).await);

    let late = batch(
        vec![
            Condition::PositionAtMost(subject("m"), 5),
            Condition::Absent(key.clone()),
            Condition::RevIs(key.clone(), running.rev),
            Condition::PositionIs(subject("m"), 4),
            Condition::PositionIs(subject("none"), 1),
            Condition::FenceIs(request("none"), Fence(1)),
        ],
        vec![mark("m", 9, Body::Clear), put(draft(record(&request("x"), State::Running)))],
    );
    let refused = refused(&commit(&store, &late).await);
    let indexes: Vec<usize> = refused.failed.iter().map(|(index, _)| *index).collect();
    assert_eq!(indexes, [1, 2, 3, 4, 5]);
    let There::Record(Some(there)) = &refused.failed[0].1 else { panic!("{refused:?}") };
    assert_eq!(there.record.state, State::Done);
    assert_eq!(there.outcome.as_deref(), Some(&b"outcome"[..]));
    let There::Mark(Some(there)) = &refused.failed[2].1 else { panic!("{refused:?}") };
    assert_eq!((there.position, there.value.as_deref()), (5, Some(&b"v"[..])));
    assert_eq!(refused.failed[3].1, There::Mark(None));
    assert_eq!(refused.failed[4].1, There::Record(None));
    assert_eq!(find(&store, &request("x")).await, None);
    assert_eq!(place.count("SELECT position FROM marks").await, 5);
    place.remove().await;
}

#[tokio::test]
async fn i09_a_batch_that_comes_again_is_recognised() {
    let place = Place::new("again").await;
    let store = place.store().await;
    let claim = claim(&request("k"));
    let first = applied(&commit(&store, &claim).await);
    let again = applied(&commit(&store, &claim).await);
    assert_eq!((again.first, again.again), (first.first, true));

    let entry = Write::Audit(Box::new(Entry::new("acme", "thing.done")));
    for writes in [
        vec![Write::Delete(request("k")), mark("m", 1, Body::Keep)],
        vec![mark("m", 2, Body::Keep)],
        vec![entry],
    ] {
        let batch = batch(vec![], writes);
        assert!(!applied(&commit(&store, &batch).await).again);
        let again = applied(&commit(&store, &batch).await);
        assert_eq!((again.first, again.again), (None, true));
    }
    assert_eq!(place.count("SELECT count(*) FROM audit").await, 1);
    place.remove().await;
}

#[tokio::test]
async fn i25_stamps_rise_across_deletion_which_takes_everything() {
    let place = Place::new("deletion").await;
    let store = place.store().await;
    let key = key(Kind::Job, "k");
    let mut last = 0;
    for _ in 0..3 {
        let mut draft = done(record(&key, State::Done), b"outcome");
        draft.record.has_payload = true;
        draft.payload = Body::Set(b"payload"[..].into());
        let put = batch(vec![Condition::Absent(key.clone())], vec![put(draft)]);
        let (rev, _) = applied(&commit(&store, &put).await).first.unwrap();
        assert!(rev.0 > last);
        last = rev.0;
        let delete =
            batch(vec![Condition::RevIs(key.clone(), rev)], vec![Write::Delete(key.clone())]);
        applied(&commit(&store, &delete).await);
        assert_eq!(find(&store, &key).await, None);
        let beside = "SELECT (SELECT count(*) FROM outcomes) + (SELECT count(*) FROM payloads)";
        assert_eq!(place.count(beside).await, 0);
    }
    place.remove().await;
}

#[tokio::test]
async fn i29_marks_never_move_back_and_keep_their_value() {
    let place = Place::new("marks").await;
    let store = place.store().await;
    let set = || Body::Set(b"v"[..].into());
    let steps = [
        (5, Body::Keep, 5, None),
        (3, set(), 5, Some(&b"v"[..])),
        (9, Body::Keep, 9, Some(b"v")),
        (1, Body::Keep, 9, Some(b"v")),
        (9, Body::Clear, 9, None),
    ];
    for (to, body, position, value) in steps {
        applied(&commit(&store, &batch(vec![], vec![mark("m", to, body)])).await);
        let loaded = store.load(vec![Read::Mark(subject("m"))]).await.unwrap();
        let Fact::Mark(Some(there)) = &loaded.facts[0] else { panic!("{loaded:?}") };
        assert_eq!((there.position, there.value.as_deref()), (position, value));
    }
    let beyond = batch(vec![], vec![mark("m", u64::MAX, Body::Keep)]);
    let error = try_commit(&store, &beyond).await.unwrap_err();
    assert!(error.to_string().starts_with("position is 18446744073709551615"), "{error}");
    place.remove().await;
}

/// A queue may hold very many: who lists the first ten reads ten, whatever the server knows of it.
#[tokio::test]
async fn a_list_of_due_jobs_reads_no_more_than_it_shows() {
    let place = Place::new("due_plan").await;
    place.sql("ALTER TABLE records_job SET (autovacuum_enabled = off)").await;
    place
        .sql(
            "INSERT INTO records (tenant, kind, name, state, fingerprint, rev, last_fence, token, \
                 attempt, priority, created_at, updated_at, due_at, has_payload, rest) \
             SELECT 'filler', 1, 'q:t:' || n, 0, '', 1, 0, '', 0, n % 3, 1, 1, n / 7, false, '' \
             FROM generate_series(1, 5000) AS n",
        )
        .await;
    let fetched = "SELECT idx_tup_fetch::bigint FROM pg_stat_all_tables \
                   WHERE schemaname = current_schema() AND relname = 'records_job'";
    for analysed in ["never", "now"] {
        place.sql("SELECT pg_stat_force_next_flush()").await;
        let before = place.count(fetched).await;
        let list = "SELECT count(*) FROM due('q', 256::smallint, -1, '', '', 10, 0)";
        assert_eq!(place.count(list).await, 11, "ten and the instant");
        place.sql("SELECT pg_stat_force_next_flush()").await;
        let rows = place.count(fetched).await - before;
        assert!(rows < 20, "analysed {analysed}: fetched {rows} rows");
        place.sql("ANALYZE records_job").await;
    }
    place.remove().await;
}

/// Rows of several tenants and kinds in turn: each is found where it is, and all commit together.
#[tokio::test]
async fn i09_a_group_of_many_tenants_and_kinds_is_one_transaction() {
    let place = Place::new("tenants").await;
    let store = place.store().await;
    let kinds = [Kind::Request, Kind::Job];
    let key = |number: usize| {
        let tenant = ["a", "b", "c"][number % 3];
        Key::new(kinds[number % 2], tenant, "scope", &number.to_string()).unwrap()
    };
    let keys: Vec<_> = (0..12).map(key).collect();
    let claims: Vec<_> = keys.iter().map(claim).collect();
    let granted = store.commit(claims).await.unwrap().answers;
    let finishes = keys.iter().zip(&granted).map(|(key, answer)| {
        let fence = applied(answer).first.unwrap().1.unwrap();
        let draft = done(record(key, State::Done), key.to_string().as_bytes());
        batch(vec![Condition::FenceIs(key.clone(), fence)], vec![put(draft)])
    });
    for answer in store.commit(finishes.collect()).await.unwrap().answers {
        assert!(!applied(&answer).again);
    }
    for key in &keys {
        let found = find(&store, key).await.unwrap();
        assert_eq!(found.stored.outcome.as_deref(), Some(key.to_string().as_bytes()));
    }
    let transactions = "SELECT count(DISTINCT xmin::text) FROM records";
    assert_eq!(place.count(transactions).await, 1, "a group that failed is applied one by one");
    place.remove().await;
}

/// With the group's function broken, whatever can do without it still works.
#[tokio::test]
async fn groups_in_which_all_is_well_go_the_shorter_way() {
    let place = Place::new("shorter").await;
    let define = "SELECT pg_get_functiondef('apply_group'::regproc)";
    let group: String = place.sql.query_one(define, &[]).await.unwrap().get(0);
    let broken = group.replacen("BEGIN", "BEGIN RAISE EXCEPTION 'the longer way';", 1);
    place.sql(&broken).await;
    let store = place.store().await;
    let key = |number: usize| {
        let kind = [Kind::Request, Kind::Job, Kind::Event, Kind::Append][number % 4];
        Key::new(kind, ["a", "b"][number % 2], "scope", &number.to_string()).unwrap()
    };
    let keys: Vec<_> = (0..16).map(key).collect();
    let claims = keys.iter().map(|key| {
        let entry = Write::Audit(Box::new(Entry::new(key.tenant_column(), "thing.claimed")));
        let mut draft = draft(record(key, State::Running));
        draft.record.has_payload = true;
        draft.payload = Body::Set(b"payload"[..].into());
        batch(vec![Condition::Absent(key.clone())], vec![put(draft), entry])
    });
    let claims: Vec<_> = claims.collect();
    let granted = store.commit(claims.clone()).await.unwrap().answers;
    let renewals = keys.iter().zip(&granted).map(|(key, answer)| {
        let (rev, fence) = applied(answer).first.unwrap();
        let mut draft = draft(record(key, State::Running));
        (draft.fresh, draft.fence, draft.record.has_payload) = (false, FenceWrite::Keep, true);
        (draft.record.fence, draft.record.last_fence) = (fence, fence.unwrap());
        batch(vec![Condition::RevIs(key.clone(), rev)], vec![put(draft)])
    });
    let renewed = store.commit(renewals.collect()).await.unwrap().answers;
    let ends = keys.iter().zip(&renewed).map(|(key, answer)| {
        let fence = applied(answer).first.unwrap().1.unwrap();
        let mut end = done(record(key, State::Done), key.to_string().as_bytes());
        end.record.has_payload = true;
        batch(vec![Condition::FenceIs(key.clone(), fence)], vec![put(end)])
    });
    for answer in store.commit(ends.collect()).await.unwrap().answers {
        assert!(!applied(&answer).again);
    }
    for key in &keys {
        let found = find(&store, key).await.unwrap();
        assert_eq!(found.stored.record.state, State::Done);
        assert_eq!(found.stored.outcome.as_deref(), Some(key.to_string().as_bytes()));
        assert_eq!(found.payload.as_deref(), Some(&b"payload"[..]));
    }
    assert_eq!(place.count("SELECT count(*) FROM audit").await, 16);
    // One that comes again, and so one that is refused, is told by the longer way alone.
    let error = try_commit(&store, &claims[0]).await.unwrap_err();
    assert!(error.to_string().contains("the longer way"), "{error}");
    place.remove().await;
}

/// One that is refused changes nothing for its neighbours, nor anything of its own.
#[tokio::test]
async fn i26_a_group_with_one_that_is_refused_goes_the_longer_way_whole() {
    let place = Place::new("longer").await;
    let store = place.store().await;
    let taken = request("taken");
    applied(&commit(&store, &claim(&taken)).await);
    let group = vec![claim(&request("a")), claim(&taken), claim(&request("b"))];
    let answers = store.commit(group).await.unwrap().answers;
    applied(&answers[0]);
    refused(&answers[1]);
    applied(&answers[2]);
    assert_eq!(place.count("SELECT count(*) FROM records").await, 3);
    // Bytes that have to go: the record had an outcome.
    let rev = applied(&answers[0]).first.unwrap().0;
    let set = |rev, outcome: &[u8]| {
        let done = put(done(record(&request("a"), State::Done), outcome));
        batch(vec![Condition::RevIs(request("a"), rev)], vec![done])
    };
    let first = applied(&commit(&store, &set(rev, b"one")).await).first.unwrap().0;
    applied(&commit(&store, &set(first, b"two")).await);
    let found = find(&store, &request("a")).await.unwrap();
    assert_eq!(found.stored.outcome.as_deref(), Some(&b"two"[..]));
    assert_eq!(place.count("SELECT count(*) FROM outcomes").await, 1, "the first one is dropped");
    place.remove().await;
}

#[tokio::test]
async fn i26_a_group_of_very_many_writes_is_a_few_transactions() {
    let place = Place::new("numbers").await;
    let store = place.store().await;
    let most = store.capabilities().group_max;
    let entry = || Write::Audit(Box::new(Entry::new("acme", "tested")));
    let full = |number: usize| {
        let mut full = (*claim(&request(&number.to_string()))).clone();
        full.writes.resize_with(MAX_BATCH_WRITES, entry);
        Arc::new(full)
    };
    let answers = store.commit((0..most).map(full).collect()).await.unwrap().answers;
    assert_eq!(answers.len(), most);
    let mut fences: Vec<_> = answers.iter().map(|answer| applied(answer).first.unwrap()).collect();
    assert!(fences.is_sorted(), "numbers of a later part are higher");
    fences.dedup();
    assert_eq!(fences.len(), most);
    let transactions = place.count("SELECT count(DISTINCT xact) FROM audit").await;
    assert_eq!(transactions, 2, "a group that failed is applied one by one");
    place.remove().await;
}

/// Looks that go together are answered each on its own: damage is told to who meets it.
#[tokio::test]
async fn looks_that_go_together_are_answered_one_by_one() {
    let place = Place::new("looks").await;
    let store = place.store().await;
    let keys: Vec<_> = (0..40).map(|number| request(&number.to_string())).collect();
    for key in &keys {
        let draft = done(record(key, State::Done), key.to_string().as_bytes());
        applied(&commit(&store, &batch(vec![], vec![put(draft)])).await);
    }
    place.sql("UPDATE records SET attempt = attempt + 1 WHERE name = 'scope:7'").await;
    let look = |key: &Key| {
        store.load(vec![
            Read::Mark(subject("none")),
            Read::Record { key: key.clone(), payload: true },
            Read::Record { key: request("none"), payload: false },
        ])
    };
    let looked = futures_util::future::join_all(keys.iter().map(look)).await;
    for (number, (key, loaded)) in keys.iter().zip(looked).enumerate() {
        if number == 7 {
            assert_eq!(loaded.unwrap_err().code(), "store.corrupt");
            continue;
        }
        let facts = loaded.unwrap().facts;
        let [Fact::Mark(None), Fact::Record(Some(found)), Fact::Record(None)] = &facts[..] else {
            panic!("{facts:?}");
        };
        assert_eq!(found.stored.outcome.as_deref(), Some(key.to_string().as_bytes()));
    }
    place.remove().await;
}

/// What the server can't read for one is no error of those who asked at the same time.
#[tokio::test]
async fn looks_that_the_server_refuses_together_are_looked_up_one_by_one() {
    let place = Place::new("refused").await;
    let store = place.store().await;
    let of = |tenant: &str| Key::new(Kind::Request, tenant, "scope", "k").unwrap();
    let keys: Vec<_> = (0..12).map(|number| of(&format!("t{number}"))).collect();
    for key in &keys {
        applied(&commit(&store, &claim(key)).await);
    }
    place
        .sql(
            "CREATE FUNCTION breaks(tenant text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN \
                 IF tenant = 't5' THEN RAISE EXCEPTION 'a bad page'; END IF; RETURN true; \
             END $$; \
             CREATE POLICY bad ON records_request AS RESTRICTIVE USING (breaks(tenant))",
        )
        .await;
    let look = |key: &Key| store.load(vec![Read::Record { key: key.clone(), payload: false }]);
    let looked = futures_util::future::join_all(keys.iter().map(look)).await;
    for (number, loaded) in looked.into_iter().enumerate() {
        match (number, loaded) {
            (5, loaded) => assert!(loaded.unwrap_err().to_string().contains("a bad page")),
            (_, loaded) => assert!(matches!(loaded.unwrap().facts[..], [Fact::Record(Some(_))])),
        }
    }
    place.remove().await;
}

/// The same writes on the oracle and on Postgres give the same pages.
#[tokio::test]
async fn lists_and_cursors_are_the_oracles() {
    let place = Place::new("lists").await;
    place.manual_clock(10_000).await;
    place.count_as_the_oracle().await;
    let store = place.store().await;
    let (oracle, _) = MemoryStore::manual(At(10_000));
    for batch in many_batches() {
        let ours = store.commit(vec![batch.clone()]).await.unwrap();
        assert_eq!(ours, oracle.commit(vec![batch]).await.unwrap());
    }
    let some = |text: &str| Some(text.to_string());
    let records = |tenant: Option<&str>, scope: Option<&str>, state| List::Records {
        tenant: tenant.map(String::from),
        scope: scope.map(String::from),
        state,
    };
    let marks = |tenant: &str, prefix: &str| List::Marks {
        tenant: (tenant != "*").then(|| tenant.to_string()),
        prefix: prefix.to_string(),
    };
    let audit = |filter| List::Audit(filter);
    let questions = [
        records(None, None, None),
        records(Some("t1"), None, None),
        records(Some("t1"), Some("s"), None),
        records(Some("t1"), Some("s"), Some(State::Running)),
        records(None, Some("s"), None),
        records(None, None, Some(State::Failed)),
        records(Some("none"), None, None),
        List::Due { queue: "s".into() },
        List::Due { queue: "s-longer".into() },
        List::Due { queue: "none".into() },
        List::Sweepable,
        marks("t1", ""),
        marks("t1", "space:"),
        marks("t1", "space:1"),
        marks("t2", "spac"),
        marks("none", ""),
        marks("*", ""),
        marks("*", "space:"),
        marks("*", "none"),
        audit(AuditFilter::default()),
        audit(AuditFilter { tenant: some("t1"), ..AuditFilter::default() }),
        audit(AuditFilter { subject: some("a\0\u{1}"), ..AuditFilter::default() }),
        audit(AuditFilter { action: some("x.1"), tenant: some("t2"), ..AuditFilter::default() }),
        audit(AuditFilter { key_hash: some("h2"), ..AuditFilter::default() }),
        audit(AuditFilter { from: Some(At(10_000)), ..AuditFilter::default() }),
        audit(AuditFilter { to: Some(At(10_000)), ..AuditFilter::default() }),
    ];
    for what in questions {
        for limit in [0, 1, 3, 1_000] {
            let (mut after, mut oracles_after): (Option<Cursor>, _) = (None, None);
            loop {
                let mut ours = store.list(what.clone(), after.clone(), limit).await.unwrap();
                let oracles = oracle.list(what.clone(), oracles_after, limit).await.unwrap();
                let next = ours.next.clone();
                without_payloads(&mut ours);
                if matches!(what, List::Audit(_)) && next.is_some() == oracles.next.is_some() {
                    // Entries have places of their own here.
                    ours.next.clone_from(&oracles.next);
                }
                assert_eq!(ours, oracles, "{what:?} after {after:?}, {limit} at a time");
                (after, oracles_after) = (next, oracles.next);
                if after.is_none() {
                    break;
                }
            }
        }
    }
    place.remove().await;
}

/// The oracle's lists bring no payloads along; these jobs have none.
fn without_payloads(page: &mut onceward::store::Page) {
    assert!(page.payloads.iter().all(Option::is_none));
    page.payloads.clear();
}

/// Records of all kinds and states, due and not, marks and entries, of two tenants.
fn many_batches() -> Vec<Arc<Batch>> {
    let mut batches = Vec::new();
    for number in 0..60u64 {
        let tenant = ["t1", "t2"][number as usize % 2];
        let kind = if number % 3 == 0 { Kind::ALL[number as usize / 3 % 4] } else { Kind::Job };
        let scope = ["s", "s-longer", "s"][number as usize % 3];
        let key = Key::new(kind, tenant, scope, &format!("k{}", number * 7 % 60)).unwrap();
        let mut draft = draft(record(&key, State::ALL[number as usize % 7]));
        draft.record.priority = (number % 10) as u8;
        draft.due = [Time::In(0), Time::In(1), Time::Clear, Time::Keep][number as usize % 4];
        draft.record.due_at = Some(At(9_000 + number % 5));
        draft.sweep = [Time::In(0), Time::In(1), Time::Keep, Time::Clear][number as usize % 4];
        draft.record.sweep_at = Some(At(9_000 + number % 3));
        let subject = onceward::core::key::Subject::new(tenant, "space", &number.to_string());
        let mut entry = Entry::new(tenant, &format!("x.{}", number % 3));
        entry.subject = Some("a\0\u{1}".into()).filter(|_| number % 4 == 0);
        entry.key_hash = Some(format!("h{}", number % 5).into());
        entry.version_after = Some(u64::MAX - number);
        let moved = Write::Mark {
            subject: subject.unwrap(),
            position: number,
            value: Body::Set(number.to_be_bytes()[..].into()),
        };
        batches.push(batch(vec![], vec![put(draft), moved, Write::Audit(Box::new(entry))]));
    }
    batches
}

#[tokio::test]
async fn a_page_goes_on_behind_the_place_where_the_last_ended() {
    let place = Place::new("due_cursor").await;
    place.manual_clock(10_000).await;
    place.count_as_the_oracle().await;
    let store = place.store().await;
    let (oracle, _) = MemoryStore::manual(At(10_000));
    let job = |id: &str, due_at| {
        let mut draft = draft(record(&key(Kind::Job, id), State::Pending));
        draft.due = Time::Keep;
        draft.record.due_at = Some(At(due_at));
        batch(vec![], vec![put(draft)])
    };
    let both = async |batch: Arc<Batch>| {
        applied(&commit(&store, &batch).await);
        oracle.commit(vec![batch]).await.unwrap();
    };
    let page = async |after: Option<Cursor>| {
        let what = List::Due { queue: "scope".into() };
        let mut ours = store.list(what.clone(), after.clone(), 1).await.unwrap();
        without_payloads(&mut ours);
        assert_eq!(ours, oracle.list(what, after, 1).await.unwrap());
        ours
    };
    for (id, due_at) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        both(job(id, due_at)).await;
    }
    let first = page(None).await;
    both(job("b", 20_000)).await; // Not due any more.
    both(job("a", 3)).await; // Behind its old place, so it comes again.
    let second = page(first.next).await;
    let Items::Records(records) = &second.items else { panic!("{second:?}") };
    assert_eq!(records[0].key, key(Kind::Job, "a"));
    let third = page(second.next).await;
    let Items::Records(records) = &third.items else { panic!("{third:?}") };
    assert_eq!(records[0].key, key(Kind::Job, "c"));
    place.remove().await;
}

#[tokio::test]
async fn an_unreadable_cursor_is_refused() {
    let place = Place::new("cursor").await;
    let store = place.store().await;
    for what in [
        List::Records { tenant: None, scope: None, state: None },
        List::Due { queue: "scope".into() },
        List::Sweepable,
        List::Marks { tenant: Some("acme".into()), prefix: String::new() },
        List::Marks { tenant: None, prefix: String::new() },
        List::Audit(AuditFilter::default()),
    ] {
        let error = store.list(what, Some(Cursor("?".into())), 1).await.unwrap_err();
        assert_eq!(error.code(), "store.limit");
    }
    place.remove().await;
}

#[tokio::test]
async fn changed_bytes_are_refused_as_corrupt() {
    let place = Place::new("corrupt").await;
    let store = place.store().await;
    let changes = [
        "UPDATE records SET state = 3",
        "UPDATE records SET state = 99",
        "UPDATE records SET rev = rev + 1",
        "UPDATE records SET due_at = 5",
        "UPDATE records SET rest = set_byte(rest, 2, get_byte(rest, 2) # 1)",
        "UPDATE records SET rest = ''",
        "UPDATE records SET token = ''",
        "UPDATE records SET name = 'scope:swapped'",
        "UPDATE outcomes SET bytes = set_byte(bytes, 0, get_byte(bytes, 0) # 1)",
        "DELETE FROM outcomes",
        "UPDATE payloads SET bytes = set_byte(bytes, 0, get_byte(bytes, 0) # 1)",
        "DELETE FROM payloads",
        "UPDATE marks SET value = set_byte(value, 0, get_byte(value, 0) # 1)",
        "UPDATE marks SET position = 6",
        "UPDATE marks SET value = NULL",
    ];
    for change in changes {
        place.sql("TRUNCATE records, outcomes, payloads, marks").await;
        let job = key(Kind::Job, "k");
        let mut draft = done(record(&job, State::Done), b"outcome");
        draft.record.has_payload = true;
        draft.payload = Body::Set(b"payload"[..].into());
        let writes = vec![put(draft), mark("m", 5, Body::Set(b"value"[..].into()))];
        applied(&commit(&store, &batch(vec![], writes)).await);
        let reads = vec![
            Read::Record { key: job.clone(), payload: true },
            Read::Record { key: key(Kind::Job, "swapped"), payload: true },
            Read::Mark(subject("m")),
        ];
        store.load(reads.clone()).await.unwrap();

        place.sql(change).await;
        let error = store.load(reads).await.unwrap_err();
        assert_eq!(error.code(), "store.corrupt", "{change}: {error}");
    }
    // A refusal does not show damage either, and its neighbours are not held up by it.
    place.sql("TRUNCATE records, outcomes").await;
    applied(&commit(&store, &claim(&request("bad"))).await);
    place.sql("UPDATE records SET attempt = 9").await;
    let error = try_commit(&store, &claim(&request("bad"))).await.unwrap_err();
    assert_eq!(error.code(), "store.corrupt");
    let group = vec![claim(&request("bad")), claim(&request("good"))];
    let answers = store.commit(group).await.unwrap().answers;
    assert_eq!(answers[0], Answer::Contended);
    applied(&answers[1]);
    place.remove().await;
}

#[tokio::test]
async fn the_longest_key_fits_every_index() {
    let place = Place::new("longest").await;
    place.manual_clock(10_000).await;
    let store = place.store().await;
    // No character follows another twice, so that nothing can be compressed.
    let mut state = 1u64;
    let mut noise = |bytes: usize| -> String {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from(b'0' + (state >> 57) as u8 % 74)
        };
        (0..bytes).map(|_| next()).filter(|c| *c != ':').chain("xxxxx".chars()).collect()
    };
    let (tenant, scope) = (noise(500), noise(500));
    let (a, b, id) = (noise(500), noise(500), noise(500));
    let key = Key::within(Kind::Job, &tenant, &scope, &[&a, &b], &id).unwrap();
    let mut draft = draft(record(&key, State::Pending));
    (draft.due, draft.sweep) = (Time::In(0), Time::In(0));
    applied(&commit(&store, &batch(vec![], vec![put(draft)])).await);
    let due = List::Due { queue: key.scope_column().to_string() };
    for what in [due, List::Sweepable] {
        let Items::Records(records) = store.list(what, None, 9).await.unwrap().items else {
            panic!("not records")
        };
        assert_eq!(records[0].key, key);
    }
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_race_for_one_key_and_one_wins() {
    let place = Place::new("race").await;
    let (a, b) = (Arc::new(place.store().await), Arc::new(place.store().await));
    for round in 0..40 {
        let key = request(&format!("k{round}"));
        let race = [&a, &b].map(|store| {
            let (store, claim) = (store.clone(), claim(&key));
            tokio::spawn(async move { until_answered(&store, &claim).await })
        });
        let mut won = 0;
        for answer in race {
            match answer.await.unwrap() {
                Answer::Applied(_) => won += 1,
                Answer::Refused(refused) => {
                    assert!(matches!(refused.failed[0].1, There::Record(Some(_))));
                }
                Answer::Contended => unreachable!(),
            }
        }
        assert_eq!(won, 1);
    }
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_concurrent_conflicting_batches_one_is_applied() {
    let place = Place::new("conflict").await;
    let store = Arc::new(place.store().await);
    // Several rounds, because only the first batches of each can meet while the key is absent.
    for round in 0..10 {
        let key = request(&format!("k{round}"));
        let tasks: Vec<_> = (0..64)
            .map(|_| {
                let (store, claim) = (store.clone(), claim(&key));
                tokio::spawn(async move { until_answered(&store, &claim).await })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += usize::from(matches!(task.await.unwrap(), Answer::Applied(_)));
        }
        assert_eq!(won, 1);
    }
    assert_eq!(place.count("SELECT count(*) FROM records").await, 10);
    place.until_no_transaction_is_open().await;
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i04_conditional_moves_from_two_stores_are_all_counted() {
    const EACH: u64 = 25;
    let place = Place::new("moves").await;
    let stores: Vec<_> = [place.store().await, place.store().await].map(Arc::new).into();
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let store = stores[number % 2].clone();
            tokio::spawn(async move {
                let mut position = 0;
                for _ in 0..EACH {
                    loop {
                        let is = Condition::PositionIs(subject("m"), position);
                        let next = mark("m", position + 1, Body::Keep);
                        let answer = until_answered(&store, &batch(vec![is], vec![next])).await;
                        let Answer::Refused(refused) = answer else { break };
                        let There::Mark(Some(there)) = &refused.failed[0].1 else {
                            panic!("{refused:?}")
                        };
                        assert!(there.position > position);
                        position = there.position;
                    }
                    position += 1;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(place.count("SELECT position FROM marks").await, 4 * EACH as i64);
    place.remove().await;
}

/// Sends a batch until nobody is in its way.
async fn until_answered(store: &PostgresStore, batch: &Arc<Batch>) -> Answer {
    loop {
        match commit(store, batch).await {
            Answer::Contended => tokio::task::yield_now().await,
            answer => return answer,
        }
    }
}

#[tokio::test]
async fn i26_a_held_key_makes_its_batch_leave_and_delays_nobody() {
    let place = Place::new("held").await;
    let store = place.store().await;
    applied(&commit(&store, &claim(&request("first"))).await);
    let held = [
        (&["record", "acme", "request", "scope:held"][..], claim(&request("held"))),
        (&["mark", "acme", "space:held"], batch(vec![], vec![mark("held", 1, Body::Keep)])),
    ];
    for (number, (name, batch)) in held.into_iter().enumerate() {
        let other = place.hold(name).await;
        // The fastest of some: a slow disk may delay one commit, a wait for the lock delays all.
        let mut fastest = Duration::MAX;
        for round in 0..5 {
            let neighbour = claim(&request(&format!("neighbour {number} {round}")));
            let started = Instant::now();
            let answers = store.commit(vec![batch.clone(), neighbour]).await.unwrap().answers;
            fastest = fastest.min(started.elapsed());
            assert_eq!(answers[0], Answer::Contended);
            applied(&answers[1]);
        }
        assert!(fastest < Duration::from_millis(50), "{fastest:?}");
        other.batch_execute("COMMIT").await.unwrap();
        applied(&commit(&store, &batch).await);
    }
    place.remove().await;
}

#[tokio::test]
async fn i26_a_batch_that_the_server_rejects_does_not_fail_its_group() {
    let place = Place::new("rejected").await;
    place.sql("ALTER TABLE marks ADD CONSTRAINT poison CHECK (name <> 'space:poison')").await;
    let store = place.store().await;
    let poison = batch(vec![], vec![mark("poison", 1, Body::Keep)]);
    let group = vec![claim(&request("a")), poison.clone(), claim(&request("b"))];
    let answers = store.commit(group).await.unwrap().answers;
    applied(&answers[0]);
    assert_eq!(answers[1], Answer::Contended);
    applied(&answers[2]);
    let error = try_commit(&store, &poison).await.unwrap_err();
    assert!(matches!(&error, StoreError::NotApplied(text) if text.contains("poison")), "{error}");
    place.until_no_transaction_is_open().await;
    place.remove().await;
}

#[tokio::test]
async fn i26_one_key_twice_in_a_group_is_applied_once() {
    let place = Place::new("twice").await;
    let store = place.store().await;
    let group = vec![claim(&request("k")), claim(&request("other")), claim(&request("k"))];
    let answers = store.commit(group).await.unwrap().answers;
    applied(&answers[0]);
    applied(&answers[1]);
    refused(&answers[2]);
    place.remove().await;
}

#[tokio::test]
async fn now_is_that_of_the_try_that_got_its_locks() {
    let place = Place::new("now").await;
    place.manual_clock(1_000).await;
    let store = place.store().await;
    let other = place.hold(&["record", "acme", "request", "scope:k"]).await;
    let claim = claim(&request("k"));
    assert_eq!(commit(&store, &claim).await, Answer::Contended);
    place.set_clock(5_000).await;
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(applied(&commit(&store, &claim).await).now, At(5_000));
    let due_at = find(&store, &request("k")).await.unwrap().stored.record.due_at;
    assert_eq!(due_at, Some(At(35_000)));
    place.remove().await;
}

#[tokio::test]
async fn old_tokens_are_dropped() {
    let place = Place::new("tokens").await;
    place.manual_clock(1_000).await;
    let store = place.store().await;
    let batches = |n| (0..n).map(|_| batch(vec![], vec![])).collect::<Vec<_>>();
    for _ in 0..8 {
        store.commit(batches(64)).await.unwrap();
    }
    assert_eq!(place.count("SELECT count(*) FROM tokens").await, 512);
    place.set_clock(1_000 + 15 * 60_000 + 1).await;
    for _ in 0..8 {
        store.commit(batches(64)).await.unwrap();
    }
    assert_eq!(place.count("SELECT count(*) FROM tokens WHERE at = 1000").await, 0);
    assert_eq!(place.count("SELECT count(*) FROM tokens").await, 512);
    place.remove().await;
}

#[tokio::test]
async fn sessions_that_end_between_calls_are_replaced() {
    let place = Place::new("ended").await;
    let store = place.store().await;
    for round in 0..3 {
        let key = request(&format!("k{round}"));
        let claim = claim(&key);
        // The end may reach us before the call, or meet it on its way.
        let answer = loop {
            match try_commit(&store, &claim).await {
                Ok(answer) => break answer,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        applied(&answer);
        let loaded = loop {
            let read = Read::Record { key: key.clone(), payload: false };
            match store.load(vec![read]).await {
                Ok(loaded) => break loaded,
                Err(error) => assert!(matches!(error, StoreError::NotApplied(_)), "{error}"),
            }
        };
        assert!(matches!(loaded.facts[0], Fact::Record(Some(_))));
        assert!(place.kill_sessions().await >= 2);
    }
    place.remove().await;
}

#[tokio::test]
async fn i09_a_session_that_ends_within_a_commit_leaves_it_unknown() {
    let place = Place::new("within").await;
    let store = Arc::new(place.store().await);
    let claim = claim(&request("k"));
    let other = place.freeze("records_request").await;
    let task = tokio::spawn({
        let (store, claim) = (store.clone(), claim.clone());
        async move { try_commit(&store, &claim).await }
    });
    place.until_one_waits().await;
    place.kill_sessions().await;
    let error = task.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error}");
    other.batch_execute("COMMIT").await.unwrap();
    // It had not happened, and now does; the store needs no restart.
    assert!(!applied(&commit(&store, &claim).await).again);
    assert!(applied(&commit(&store, &claim).await).again);
    place.remove().await;
}

async fn proxied(place: &Place) -> (Proxy, PostgresStore) {
    let (host, port) = server();
    let proxy = Proxy::to(format!("{host}:{port}"), CutAt::Group).await;
    let port = proxy.address().port().to_string();
    let store = place.store_with(&[("host", "127.0.0.1"), ("port", &port)]).await.unwrap();
    (proxy, store)
}

#[tokio::test]
async fn i09_a_lost_answer_is_asked_for_by_token() {
    let place = Place::new("lost").await;
    let (proxy, store) = proxied(&place).await;
    let delete = batch(vec![], vec![Write::Delete(request("gone")), mark("m", 1, Body::Keep)]);
    for batch in [claim(&request("k")), delete] {
        proxy.arm(Cut::AfterAnswer);
        let error = try_commit(&store, &batch).await.unwrap_err();
        assert!(matches!(error, StoreError::Unknown(_)), "{error}");
        assert!(applied(&commit(&store, &batch).await).again);
    }
    place.remove().await;
}

#[tokio::test]
async fn a_server_that_went_away_is_told_of_once() {
    let place = Place::new("gone").await;
    let (proxy, store) = proxied(&place).await;
    proxy.arm(Cut::AfterAnswer);
    try_commit(&store, &claim(&request("k"))).await.unwrap_err();
    drop(proxy);
    // The first looks for the server, the second hears what the first has found.
    for _ in 0..2 {
        let error = try_commit(&store, &claim(&request("l"))).await.unwrap_err().to_string();
        assert_eq!(error.matches("the store did nothing").count(), 1, "{error}");
    }
    place.remove().await;
}

#[tokio::test]
async fn i27_a_first_copy_that_is_delayed_and_a_second_are_applied_once() {
    let place = Place::new("delayed").await;
    let (proxy, store) = proxied(&place).await;
    let entry = Write::Audit(Box::new(Entry::new("acme", "thing.done")));
    let marks = batch(vec![], vec![mark("m", 1, Body::Keep), entry.clone()]);
    let mut writes = claim(&request("k")).writes.clone();
    writes.push(entry);
    let absent = vec![Condition::Absent(request("k"))];
    let cases = [("records_request", batch(absent, writes)), ("marks", marks)];
    for (number, (table, batch)) in cases.into_iter().enumerate() {
        // Both lanes are open before the table is frozen, which would keep a new one from opening.
        let (a, b) =
            (claim(&request(&format!("a{number}"))), claim(&request(&format!("b{number}"))));
        tokio::join!(commit(&store, &a), commit(&store, &b));
        let other = place.freeze(table).await;
        proxy.arm(Cut::BeforeAnswer);
        let error = try_commit(&store, &batch).await.unwrap_err();
        assert!(matches!(error, StoreError::Unknown(_)), "{error}");
        place.until_one_waits().await;
        // The first copy waits in the server: nothing is to be seen of it, and yet it will happen.
        assert_eq!(find(&store, &request("k")).await.is_some(), number == 1);
        assert_eq!(commit(&store, &batch).await, Answer::Contended);
        other.batch_execute("COMMIT").await.unwrap();
        assert!(applied(&until_answered(&store, &batch).await).again);
        assert_eq!(place.count("SELECT count(*) FROM audit").await, number as i64 + 1);
    }
    place.remove().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_no_transaction_open() {
    let place = Place::new("away").await;
    let store = Arc::new(place.store().await);
    let claim = claim(&request("k"));
    let other = place.freeze("records_request").await;
    let task = tokio::spawn({
        let (store, claim) = (store.clone(), claim.clone());
        async move { try_commit(&store, &claim).await }
    });
    place.until_one_waits().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    other.batch_execute("COMMIT").await.unwrap();
    // Closing waits for what is under way, so the commit has come to its end.
    store.close().await.unwrap();
    place.until_no_transaction_is_open().await;
    let store = place.store().await;
    assert!(applied(&commit(&store, &claim).await).again);
    place.remove().await;
}

/// What whoever marks a key as wanted is told of it: otherwise it is told to look again at once,
/// and looks, and marks it, and so on.
#[tokio::test]
async fn a_key_that_waits_for_its_own_time_has_not_changed() {
    let place = Place::new("own_time").await;
    place.manual_clock(1_000).await;
    let store = place.store().await;
    let key = request("k");
    let may_have_changed = async || {
        let name = key.name_column();
        let state = format!("SELECT wanted_state('acme', 0::smallint, '{name}', 7)::bigint");
        place.count(&state).await == 0
    };
    assert_eq!(key.tenant_column(), "acme");
    assert!(may_have_changed().await, "it is not there");
    applied(&commit(&store, &claim(&key)).await);
    assert!(!may_have_changed().await, "it runs");
    let mut failed = find(&store, &key).await.unwrap().stored.record;
    let rev = failed.rev;
    failed.state = State::Failed;
    let mut failed = draft(failed);
    (failed.fence, failed.fresh, failed.due) = (FenceWrite::End, false, Time::In(5_000));
    let fail = batch(vec![Condition::RevIs(key.clone(), rev)], vec![put(failed)]);
    applied(&commit(&store, &fail).await);
    assert!(!may_have_changed().await, "its time has not come");
    place.set_clock(6_000).await;
    assert!(may_have_changed().await, "its time has come");
    place.remove().await;
}

#[tokio::test]
async fn a_closed_store_refuses_and_lets_go() {
    let place = Place::new("closed").await;
    let store = place.store().await;
    assert_eq!(store.capabilities().durability, Durability::Full);
    let running = request("running");
    applied(&commit(&store, &claim(&running)).await);
    // A bell may ring for nothing; a store that closes ends every wait.
    let watched = async { while store.watch(vec![running.clone()]).await.is_ok() {} };
    let ((), closed) = tokio::join!(watched, store.close());
    closed.unwrap();
    assert!(store.watch(vec![running]).await.is_err());
    let error = try_commit(&store, &claim(&request("k"))).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "{error}");
    assert!(store.load(vec![]).await.is_err());
    place.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_migrate_at_once() {
    let place = Place::empty("migrate").await;
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let options = place.options();
            tokio::spawn(async move { PostgresStore::migrate(&url(), options).await })
        })
        .collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap().unwrap();
    }
    assert_eq!(done, PostgresStore::schema_version());
    place.store().await;
    place.remove().await;
}

#[tokio::test]
async fn a_schema_that_is_not_ours_is_not_opened() {
    let place = Place::empty("versions").await;
    let none = place.store_with(&[]).await.unwrap_err().to_string();
    assert!(none.contains("holds no store; run `onceward migrate --store postgres://"), "{none}");
    let hint = none.split("--store ").nth(1).unwrap_or_default();
    assert!(hint.contains('@'), "{none}");
    // Who follows it literally comes as the same user, and nobody reads a password.
    let as_someone = [("user", "some one"), ("password", "secret")];
    let refused = place.store_with(&as_someone).await.map(drop);
    let none = refused.unwrap_err().to_string();
    assert!(none.contains("postgres://some%20one@") && !none.contains("secret"), "{none}");
    PostgresStore::migrate(&url(), place.options()).await.unwrap();
    let schema = &place.schema;
    let steps = [
        ("UPDATE {}.migrations SET checksum = ''", "another checksum"),
        ("DELETE FROM {}.migrations", "is at version 0, but this program needs"),
    ];
    for (change, says) in steps {
        place.sql(&change.replace("{}", schema)).await;
        let error = place.store_with(&[]).await.unwrap_err();
        assert!(matches!(error, StoreError::Schema(_)));
        assert!(error.to_string().contains(says), "{error}");
    }
    place.remove().await;

    let place = Place::new("newer").await;
    // The next version's schema, which this one may share, and the one after that.
    let version = PostgresStore::schema_version();
    place
        .sql(&format!("INSERT INTO migrations VALUES ({}, 'next', '', {version})", version + 1))
        .await;
    place.store().await;
    assert_eq!(PostgresStore::migrate(&url(), place.options()).await.unwrap(), 0);
    place.sql(&format!("INSERT INTO migrations VALUES (999, 'later', '', {})", version + 1)).await;
    let newer = place.store_with(&[]).await.unwrap_err().to_string();
    assert!(newer.contains("migrated to version 999 by a newer version"), "{newer}");
    let migrated = PostgresStore::migrate(&url(), place.options()).await.unwrap_err();
    assert_eq!(migrated.code(), "store.schema");
    place.remove().await;
}

#[tokio::test]
async fn wrong_addresses_and_options_are_told_by_name() {
    let options = PostgresOptions { schema: "Robert\"; DROP".into(), ..PostgresOptions::default() };
    let error = PostgresStore::connect(&url(), options).await.unwrap_err();
    assert!(error.to_string().starts_with("schema is \"Robert"), "{error}");

    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = closed.local_addr().unwrap().port();
    drop(closed);
    let nobody = format!("postgres://u:secret@127.0.0.1:{port}/d");
    let error = PostgresStore::connect(&nobody, PostgresOptions::default()).await.unwrap_err();
    assert!(matches!(&error, StoreError::NotApplied(_)), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn a_put_that_keeps_replaces_or_clears_what_lies_beside_it() {
    let place = Place::new("beside").await;
    let store = place.store().await;
    let key = request("k");
    applied(
        &commit(&store, &batch(vec![], vec![put(done(record(&key, State::Done), b"1"))])).await,
    );
    let outcome = async || find(&store, &key).await.unwrap().stored.outcome;
    assert_eq!(outcome().await.as_deref(), Some(&b"1"[..]));

    let there = find(&store, &key).await.unwrap().stored.record;
    let mut kept = done(there.clone(), b"1");
    (kept.outcome, kept.fence) = (Body::Keep, FenceWrite::Keep);
    applied(&commit(&store, &batch(vec![], vec![put(kept)])).await);
    assert_eq!(outcome().await.as_deref(), Some(&b"1"[..]));

    applied(&commit(&store, &batch(vec![], vec![put(done(there.clone(), b"2"))])).await);
    assert_eq!(outcome().await.as_deref(), Some(&b"2"[..]));

    let mut cleared = draft(there);
    (cleared.record.outcome, cleared.outcome) = (None, Body::Clear);
    applied(&commit(&store, &batch(vec![], vec![put(cleared)])).await);
    assert_eq!(outcome().await, None);
    assert_eq!(place.count("SELECT count(*) FROM outcomes").await, 0);
    place.remove().await;
}

#[tokio::test]
async fn i18_a_job_whose_payload_is_gone_is_dead_and_does_not_run_without_it() {
    let place = Place::new("lost_payload").await;
    let engine = Engine::new(Arc::new(place.store().await));
    for (id, length) in [("a", 20), ("b", 20), ("c", 50_000), ("d", 50_000)] {
        let payload = vec![b'x'; length];
        let print = fingerprint_bytes(&payload);
        let job = NewJob::new(key(Kind::Job, id), print, payload.as_slice().into());
        assert!(matches!(engine.enqueue(&job).await.unwrap(), Enqueue::Made));
    }
    place
        .sql(
            "DELETE FROM payloads WHERE id IN \
             (SELECT payload_id FROM records WHERE name IN ('scope:b', 'scope:d'))",
        )
        .await;
    let take = Take { queue: "scope".into(), owner: "w".into(), max: 10, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    let ids: Vec<_> = taken.iter().map(|taken| taken.permit.key().id().to_string()).collect();
    assert_eq!(ids, ["a", "c"]);
    let dead = List::Records { tenant: None, scope: None, state: Some(State::Dead) };
    let Items::Records(dead) = engine.list(dead, None, 10).await.unwrap().items else { panic!() };
    let ids: Vec<_> = dead.iter().map(|job| job.key.id().to_string()).collect();
    assert_eq!(ids, ["b", "d"]);
    assert!(dead.iter().all(|job| job.error.as_deref().unwrap().contains("can't be read")));
    engine.close().await.unwrap();
    place.remove().await;
}
