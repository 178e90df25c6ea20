//! Jobs, documents and the sweep through the engine on the oracle.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use onceward::core::decide::{
    Effects, Enqueue, Finish, JobOrder, NewJob, Resolution, Resolved, Retry, Verdict,
};
use onceward::core::record::{OnAbandoned, OnDead, State};
use onceward::core::{audit::Trace, key::Key, key::Kind};
use onceward::engine::{Engine, OnceVerdict, Put, Take, Taken};
use onceward::store::memory::MemoryStore;
use onceward::store::timed::{Ended, Operation, Timed};
use onceward::store::{AuditFilter, Items, List};

fn job(id: &str) -> NewJob {
    NewJob::new(job_key(id), print(id), bytes(id))
}

fn ordered(id: &str, subject: &str) -> NewJob {
    let mut job = job(id);
    job.order = Some(JobOrder::new(&job.key, subject).unwrap());
    job
}

async fn take(engine: &Engine, max: usize) -> Vec<Taken> {
    let take = Take { queue: "mail".into(), owner: "w".into(), max, lease_ms: Some(1_000) };
    engine.take(&take).await.unwrap()
}

fn payloads(taken: &[Taken]) -> Vec<String> {
    taken.iter().map(|t| String::from_utf8(t.payload.to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn a19_a_duplicate_enqueue_answers_the_first_job() {
    let (engine, ..) = engine();
    assert_eq!(engine.enqueue(&job("a")).await.unwrap(), Enqueue::Made);
    assert!(matches!(engine.enqueue(&job("a")).await.unwrap(), Enqueue::There(_)));
    let mut other = job("a");
    other.fingerprint = print("another payload");
    assert!(matches!(engine.enqueue(&other).await.unwrap(), Enqueue::Mismatch(_)));
    let taken = take(&engine, 9).await;
    assert_eq!(payloads(&taken), ["a"]);
    assert_eq!(engine.complete(&taken[0].permit, &outcome("sent")).await.unwrap(), Finish::Ok);
    assert!(matches!(engine.enqueue(&job("a")).await.unwrap(), Enqueue::There(_)));
    assert!(take(&engine, 9).await.is_empty(), "a completed key is not run again");
}

#[tokio::test]
async fn due_jobs_come_by_priority_and_time() {
    let (engine, _, clock) = engine();
    for (id, priority, run_in_ms) in [("low", 0, 0), ("high", 9, 0), ("later", 9, 5_000)] {
        let mut job = job(id);
        job.priority = priority;
        job.run_in_ms = run_in_ms;
        engine.enqueue(&job).await.unwrap();
    }
    assert_eq!(payloads(&take(&engine, 1).await), ["high"]);
    assert_eq!(payloads(&take(&engine, 9).await), ["low"]);
    clock.advance(900);
    assert!(take(&engine, 9).await.is_empty());
    clock.advance(4_100);
    // The first two were not completed: their leases ran out, so they are visible again.
    assert_eq!(payloads(&take(&engine, 9).await), ["high", "later", "low"]);
}

#[tokio::test]
async fn a23_a_lapsed_job_is_taken_again_and_the_late_worker_is_refused() {
    let (engine, _, clock) = engine();
    engine.enqueue(&job("a")).await.unwrap();
    let late = take(&engine, 1).await.remove(0).permit;
    clock.advance(999);
    assert!(take(&engine, 1).await.is_empty());
    clock.advance(1);
    let next = take(&engine, 1).await.remove(0).permit;
    assert!(next.fence > late.fence);
    assert_eq!(next.record.attempt, 2);
    assert_eq!(engine.complete(&late, &outcome("late")).await.unwrap(), Finish::Lost);
    assert_eq!(engine.complete(&next, &outcome("sent")).await.unwrap(), Finish::Ok);
}

#[tokio::test]
async fn jobs_of_one_subject_run_one_at_a_time_in_the_order_of_their_making() {
    let (engine, ..) = engine();
    let jobs = [ordered("m1", "mission/7"), ordered("m2", "mission/7"), ordered("x", "mission/8")];
    for answer in engine.enqueue_many(&jobs).await {
        assert_eq!(answer.unwrap(), Enqueue::Made);
    }
    let first = take(&engine, 9).await;
    assert_eq!(payloads(&first), ["m1", "x"]);
    assert!(take(&engine, 9).await.is_empty());
    engine.complete(&first[0].permit, &outcome("ok")).await.unwrap();
    assert_eq!(payloads(&take(&engine, 9).await), ["m2"]);
}

#[tokio::test]
async fn a22_a_dead_job_is_passed_over_or_blocks_as_its_terms_say() {
    for (on_dead, follows) in [(OnDead::Skip, true), (OnDead::Block, false)] {
        let (engine, ..) = engine();
        let mut poison = ordered("m1", "mission/7");
        poison.terms.on_dead = on_dead;
        engine.enqueue(&poison).await.unwrap();
        engine.enqueue(&ordered("m2", "mission/7")).await.unwrap();
        let taken = take(&engine, 9).await.remove(0);
        let dead = engine.fail(&taken.permit, "bad address", Retry::Never).await.unwrap();
        assert_eq!(dead, Finish::Dead);
        let next = take(&engine, 9).await;
        assert_eq!(payloads(&next), if follows { vec!["m2"] } else { vec![] });
        let rerun = Resolution::Rerun { force: false };
        let resolved = engine.resolve(&poison.key, &rerun, &Trace::default()).await.unwrap();
        if follows {
            assert_eq!(resolved, Resolved::Stale { current: 1 });
            let force = Resolution::Rerun { force: true };
            let forced = engine.resolve(&poison.key, &force, &Trace::default()).await.unwrap();
            assert_eq!(forced, Resolved::Ok);
        } else {
            assert_eq!(resolved, Resolved::Ok);
        }
        assert_eq!(payloads(&take(&engine, 9).await), ["m1"]);
    }
}

#[tokio::test]
async fn a_job_whose_workers_vanish_every_time_is_dead() {
    let (engine, _, clock) = engine();
    let mut twice = job("a");
    twice.terms.max_attempts = 2;
    engine.enqueue(&twice).await.unwrap();
    for _ in 0..2 {
        assert_eq!(take(&engine, 1).await.len(), 1);
        clock.advance(1_000);
    }
    assert!(take(&engine, 1).await.is_empty());
    let record = engine.look(&twice.key).await.unwrap().unwrap().stored.record;
    assert_eq!(record.state, State::Dead);
}

#[tokio::test]
async fn a_released_job_is_pending_again_and_keeps_its_attempts() {
    let (engine, ..) = engine();
    engine.enqueue(&job("a")).await.unwrap();
    let taken = take(&engine, 1).await.remove(0);
    engine.release(&taken.permit).await.unwrap();
    let again = take(&engine, 1).await.remove(0);
    assert_eq!(again.permit.record.attempt, 1);
    assert!(again.permit.fence > taken.permit.fence);
}

#[tokio::test]
async fn a21_jobs_of_a_write_commit_with_it_or_not_at_all() {
    let (engine, ..) = engine();
    let jobs = || Effects {
        jobs: vec![ordered("mission/7@1", "mission/7"), ordered("mission/7@2", "mission/7")],
        ..Effects::default()
    };
    let mut request = claim("r", "p");
    request.trace.request_id = Some("req-1".into());
    let ran = engine.run_once(&request, &with_effects("ok", jobs())).await.unwrap();
    assert!(matches!(ran, OnceVerdict::Ran { .. }), "{ran:?}");
    let taken = take(&engine, 9).await;
    assert_eq!(payloads(&taken), ["mission/7@1"]);
    // A25: the request's id travels with the job.
    let trace = &taken[0].permit.record.trace;
    assert_eq!(trace.correlation_id.as_deref(), Some("req-1"));
    // A second write that makes the same job again finds it there and commits.
    let mut second = claim("r2", "p");
    second.trace.request_id = Some("req-2".into());
    let ran = engine.run_once(&second, &with_effects("ok", jobs())).await.unwrap();
    assert!(matches!(ran, OnceVerdict::Ran { .. }), "{ran:?}");
    // With another payload it is refused, and nothing of the write is there.
    let mut other = jobs();
    other.jobs[0].fingerprint = print("tampered");
    let refused = engine.run_once(&claim("r3", "p"), &with_effects("ok", other)).await.unwrap();
    assert!(matches!(refused, OnceVerdict::Not(Verdict::Mismatch(_))), "{refused:?}");
    assert_eq!(engine.look(&key("r3")).await.unwrap(), None);
}

#[tokio::test]
async fn a03_an_outbox_entry_can_only_name_its_own_organisation() {
    let (engine, ..) = engine();
    let mut foreign = job("a");
    foreign.key = Key::new(Kind::Job, "umbrella", "mail", "a").unwrap();
    let effects = Effects { jobs: vec![foreign], ..Effects::default() };
    let error = engine.run_once(&claim("r", "p"), &with_effects("ok", effects)).await.unwrap_err();
    assert_eq!(error.code(), "limit");
    assert_eq!(engine.look(&key("r")).await.unwrap(), None);
}

#[tokio::test]
async fn a24_documents_have_versions_and_the_first_valid_write_wins() {
    let (engine, ..) = engine();
    assert_eq!(engine.put(&subject("a"), 0, Some(bytes("1"))).await.unwrap(), Put::Written(1));
    let puts = [(subject("a"), 1, Some(bytes("x"))), (subject("a"), 1, Some(bytes("y")))];
    let answers: Vec<Put> = engine.put_many(&puts).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, [Put::Written(2), Put::Conflict { current: 2 }]);
    assert_eq!(engine.get(&subject("a")).await.unwrap().unwrap().value, bytes("x"));
    // A deleted document keeps its version, so that an old writer can't bring it back.
    assert_eq!(engine.put(&subject("a"), 2, None).await.unwrap(), Put::Written(3));
    assert_eq!(engine.get(&subject("a")).await.unwrap(), None);
    let late = engine.put(&subject("a"), 2, Some(bytes("late"))).await.unwrap();
    assert_eq!(late, Put::Conflict { current: 3 });
}

#[tokio::test]
async fn documents_are_listed_by_prefix_and_page() {
    let (engine, ..) = engine();
    for id in ["a/1", "a/2", "a/3", "b/1"] {
        engine.put(&subject(id), 0, Some(bytes(id))).await.unwrap();
    }
    let (first, next) = engine.documents("acme", "account", "a/", None, 2).await.unwrap();
    let ids: Vec<_> = first.iter().map(|document| document.subject.id().into_owned()).collect();
    assert_eq!(ids, ["a/1", "a/2"]);
    let (rest, end) = engine.documents("acme", "account", "a/", next, 2).await.unwrap();
    assert_eq!((rest.len(), end), (1, None));
    let (none, _) = engine.documents("umbrella", "account", "", None, 9).await.unwrap();
    assert!(none.is_empty());
}

#[tokio::test]
async fn a12_the_sweep_drops_outcomes_then_keys_and_leaves_the_living() {
    let (engine, store, clock) = engine();
    engine.run_once(&claim("done", "p"), &outcome("one")).await.unwrap();
    let mut held = claim("held", "p");
    held.terms.on_abandoned = OnAbandoned::Hold;
    permit(engine.claim(&held).await.unwrap());
    let mut poison = claim("dead", "p");
    poison.terms.max_attempts = 1;
    let dying = permit(engine.claim(&poison).await.unwrap());
    engine.fail(&dying, "no", Retry::In(0)).await.unwrap();
    engine.enqueue(&job("waiting")).await.unwrap();
    let failed = permit(engine.claim(&claim("failed", "p")).await.unwrap());
    engine.fail(&failed, "no", Retry::In(0)).await.unwrap();
    let nothing = engine.sweep(|_| {}).await.unwrap();
    assert_eq!(nothing, Default::default());
    clock.advance(86_400_000);
    let mut long = claim("live", "p");
    long.terms.lease_ms = 86_400_000;
    permit(engine.claim(&long).await.unwrap());
    // E06: two sweeps at once do no harm, and each tenant that lost something has an entry.
    let (a, b) = tokio::join!(engine.sweep(|_| {}), engine.sweep(|_| {}));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.expired + b.expired, a.unknown + b.unknown), (1, 1));
    clock.advance(86_399_999);
    let report = engine.sweep(|_| {}).await.unwrap();
    assert_eq!(report.forgotten, 0, "the expired key is remembered a day");
    clock.advance(1);
    let report = engine.sweep(|_| {}).await.unwrap();
    assert_eq!((report.forgotten, report.expired, report.unknown), (2, 0, 0));
    let left: Vec<_> = store
        .snapshot()
        .records()
        .map(|record| (record.key.id().into_owned(), record.state))
        .collect();
    let expected = [
        ("dead", State::Dead),
        ("held", State::Unknown),
        ("live", State::Running),
        ("waiting", State::Pending),
    ];
    assert_eq!(left, expected.map(|(id, state)| (id.to_string(), state)));
    let filter = AuditFilter { action: Some("sweep".into()), ..AuditFilter::default() };
    let page = engine.list(List::Audit(filter), None, 100).await.unwrap();
    let Items::Audit(entries) = page.items else { panic!("audit") };
    let details: Vec<_> = entries.iter().map(|e| e.entry.detail.as_deref().unwrap()).collect();
    assert_eq!(details.last(), Some(&r#"{"expired":0,"forgotten":2,"unknown":0}"#));
    assert!(entries.iter().all(|entry| &*entry.entry.tenant == "acme"));
}

/// What a take of one job may read when many wait behind another of their subject.
const LINE: usize = 400;

#[tokio::test]
async fn a_long_line_behind_one_subject_is_not_read_for_each_of_its_jobs() {
    let (store, _clock) = MemoryStore::manual(START);
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let told = move |ended: Ended<'_>| {
        counted.fetch_add(usize::from(ended.operation == Operation::List), Ordering::SeqCst);
    };
    let engine = Engine::new(Timed::new(Arc::new(store), told));
    for n in 0..LINE {
        engine.enqueue(&ordered(&format!("{n}"), "mission/7")).await.unwrap();
    }
    for n in 0..LINE {
        let taken = take(&engine, 2).await;
        assert_eq!(payloads(&taken), [n.to_string()], "one at a time, in order");
        assert!(take(&engine, 2).await.is_empty());
        assert_eq!(engine.complete(&taken[0].permit, &outcome("")).await.unwrap(), Finish::Ok);
        if n == LINE / 2 {
            // What comes meanwhile is found at once.
            engine.enqueue(&job("else")).await.unwrap();
            let found = take(&engine, 2).await;
            let next = (n + 1).to_string();
            assert_eq!(payloads(&found), [next.as_str(), "else"]);
            engine.release(&found[0].permit).await.unwrap();
            engine.complete(&found[1].permit, &outcome("")).await.unwrap();
        }
    }
    assert!(take(&engine, 2).await.is_empty());
    let lists = lists.load(Ordering::SeqCst);
    assert!(lists < LINE / 4, "{lists} pages were read for {LINE} jobs");
}

#[tokio::test]
async fn a_long_line_behind_one_subject_does_not_hide_what_stands_behind_it() {
    let (engine, _, clock) = engine();
    for n in 0..LINE {
        engine.enqueue(&ordered(&format!("{n}"), "mission/7")).await.unwrap();
    }
    engine.enqueue(&job("else")).await.unwrap();
    let mut takes = 0;
    loop {
        takes += 1;
        let taken = take(&engine, 2).await;
        for taken in &taken {
            engine.complete(&taken.permit, &outcome("")).await.unwrap();
        }
        if payloads(&taken).contains(&"else".to_string()) {
            break;
        }
        assert_eq!(taken.len(), 1, "the line goes on meanwhile");
        clock.advance(60);
    }
    assert!(takes < 10, "it was seen by take {takes}");
}

#[tokio::test]
async fn a_job_that_falls_due_behind_a_long_line_is_taken_when_it_does() {
    let (engine, _, clock) = engine();
    engine.enqueue(&ordered("m1", "mission/7")).await.unwrap();
    engine.enqueue(&ordered("m2", "mission/7")).await.unwrap();
    let mut later = job("later");
    later.run_in_ms = 500;
    engine.enqueue(&later).await.unwrap();
    let first = take(&engine, 9).await;
    assert_eq!(payloads(&first), ["m1"]);
    assert!(take(&engine, 9).await.is_empty());
    clock.advance(500);
    assert_eq!(payloads(&take(&engine, 9).await), ["later"]);
    // And so is one whose worker has vanished.
    clock.advance(501);
    assert_eq!(payloads(&take(&engine, 9).await), ["m1"]);
}
