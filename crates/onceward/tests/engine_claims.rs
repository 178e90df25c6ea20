//! Claims through the engine on the oracle: every verdict, every end of a permit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use common::*;
use onceward::core::decide::{Effects, Finish, Resolution, Resolved, Retry, Verdict};
use onceward::core::guard::{Guard, Misfit, Rule};
use onceward::core::record::{OnAbandoned, State};
use onceward::core::stamp::Fence;
use onceward::core::{audit::Trace, decide::Change, record::Body};
use onceward::engine::OnceVerdict;

#[tokio::test]
async fn a08_replay_returns_the_original_outcome() {
    let (engine, ..) = engine();
    let granted = permit(engine.claim(&claim("k", "pay 5")).await.unwrap());
    assert_eq!(granted.record.attempt, 1);
    assert_eq!(engine.complete(&granted, &outcome("paid")).await.unwrap(), Finish::Ok);
    for _ in 0..2 {
        assert_eq!(replayed(engine.claim(&claim("k", "pay 5")).await.unwrap()), "paid");
        let looked = engine.look_before(&claim("k", "pay 5")).await.unwrap().unwrap();
        assert_eq!(replayed(looked), "paid");
    }
}

#[tokio::test]
async fn a09_another_payload_is_a_mismatch_while_running_and_when_done() {
    let (engine, ..) = engine();
    let granted = permit(engine.claim(&claim("k", "pay 5")).await.unwrap());
    let other = engine.claim(&claim("k", "pay 6")).await.unwrap();
    assert!(matches!(other, Verdict::Mismatch(_)), "{other:?}");
    engine.complete(&granted, &outcome("paid")).await.unwrap();
    let other = engine.claim(&claim("k", "pay 6")).await.unwrap();
    assert!(matches!(other, Verdict::Mismatch(_)), "{other:?}");
    assert_eq!(replayed(engine.claim(&claim("k", "pay 5")).await.unwrap()), "paid");
}

#[tokio::test]
async fn a01_the_same_id_of_another_tenant_runs_on_its_own() {
    let (engine, ..) = engine();
    let granted = permit(engine.claim(&claim("k", "pay 5")).await.unwrap());
    engine.complete(&granted, &outcome("paid")).await.unwrap();
    let mut other = claim("k", "pay 5");
    other.key = onceward::core::key::Key::new(
        onceward::core::key::Kind::Request,
        "umbrella",
        "POST /payments",
        "k",
    )
    .unwrap();
    permit(engine.claim(&other).await.unwrap());
}

#[tokio::test]
async fn i05_i06_a_takeover_has_a_higher_fence_and_the_old_attempt_fits_nothing() {
    let (engine, _, clock) = engine();
    let old = permit(engine.claim(&claim("k", "p")).await.unwrap());
    assert!(matches!(
        engine.claim(&claim("k", "p")).await.unwrap(),
        Verdict::Busy { retry_after_ms: 30_000 }
    ));
    clock.advance(30_000);
    // The same worker claims again: the fence belongs to the acquisition, not to the worker.
    let new = permit(engine.claim(&claim("k", "p")).await.unwrap());
    assert!(new.fence > old.fence);
    assert_eq!(new.record.attempt, 2);
    assert_eq!(engine.renew(&old, None).await.unwrap(), Finish::Lost);
    assert_eq!(engine.complete(&old, &outcome("zombie")).await.unwrap(), Finish::Lost);
    assert_eq!(engine.fail(&old, "zombie", Retry::In(0)).await.unwrap(), Finish::Lost);
    assert_eq!(engine.release(&old).await.unwrap(), Finish::Lost);
    assert_eq!(engine.complete(&new, &outcome("paid")).await.unwrap(), Finish::Ok);
    assert_eq!(engine.complete(&old, &outcome("zombie")).await.unwrap(), Finish::Lost);
    assert_eq!(replayed(engine.claim(&claim("k", "p")).await.unwrap()), "paid");
}

#[tokio::test]
async fn i24_a_renewed_lease_is_not_stolen() {
    let (engine, _, clock) = engine();
    let held = permit(engine.claim(&claim("k", "p")).await.unwrap());
    clock.advance(29_000);
    assert_eq!(engine.renew(&held, None).await.unwrap(), Finish::Ok);
    clock.advance(29_000);
    let other = engine.claim(&claim("k", "p")).await.unwrap();
    assert_eq!(other, Verdict::Busy { retry_after_ms: 1_000 });
}

#[tokio::test]
async fn i25_the_fence_rises_across_release_and_sweep_of_a_key() {
    let (engine, _, clock) = engine();
    let first = permit(engine.claim(&claim("k", "p")).await.unwrap());
    engine.release(&first).await.unwrap();
    let second = permit(engine.claim(&claim("k", "p")).await.unwrap());
    assert!(second.fence > first.fence);
    assert_eq!(second.record.attempt, 1);
    engine.complete(&second, &outcome("one")).await.unwrap();
    clock.advance(2 * 86_400_000);
    engine.sweep(|_| {}).await.unwrap();
    clock.advance(2 * 86_400_000);
    engine.sweep(|_| {}).await.unwrap();
    assert_eq!(engine.look(&key("k")).await.unwrap(), None);
    let third = permit(engine.claim(&claim("k", "p")).await.unwrap());
    assert!(third.fence > second.fence);
    for zombie in [&first, &second] {
        assert_eq!(engine.complete(zombie, &outcome("zombie")).await.unwrap(), Finish::Lost);
    }
}

#[tokio::test]
async fn completing_again_is_fine_with_the_same_outcome_only() {
    let (engine, ..) = engine();
    let held = permit(engine.claim(&claim("k", "p")).await.unwrap());
    assert_eq!(engine.complete(&held, &outcome("paid")).await.unwrap(), Finish::Ok);
    assert_eq!(engine.complete(&held, &outcome("paid")).await.unwrap(), Finish::Ok);
    assert_eq!(engine.complete(&held, &outcome("other")).await.unwrap(), Finish::Lost);
    assert_eq!(replayed(engine.claim(&claim("k", "p")).await.unwrap()), "paid");
}

#[tokio::test]
async fn a_repeated_attempt_id_returns_the_same_permit() {
    let (engine, ..) = engine();
    let mut named = claim("k", "p");
    named.attempt_id = Some("try-1".into());
    let first = permit(engine.claim(&named).await.unwrap());
    let again = permit(engine.claim(&named).await.unwrap());
    assert_eq!(first.fence, again.fence);
    named.attempt_id = Some("try-2".into());
    assert!(matches!(engine.claim(&named).await.unwrap(), Verdict::Busy { .. }));
}

#[tokio::test]
async fn a_held_key_whose_lease_ran_out_is_unknown_until_resolved() {
    let resolutions = [
        (Resolution::Rerun { force: false }, State::Failed),
        (Resolution::Done { outcome: (bytes("by hand"), print("by hand")) }, State::Done),
        (Resolution::Dead { reason: "never happened".into() }, State::Dead),
    ];
    for (resolution, state) in resolutions {
        let (engine, _, clock) = engine();
        let mut held = claim("k", "p");
        held.terms.on_abandoned = OnAbandoned::Hold;
        let zombie = permit(engine.claim(&held).await.unwrap());
        let early = engine.resolve(&key("k"), &resolution, &Trace::default()).await.unwrap();
        assert!(matches!(early, Resolved::NotNow(_)), "a live lease belongs to its holder");
        clock.advance(30_000);
        assert!(matches!(engine.claim(&held).await.unwrap(), Verdict::Unknown(_)));
        assert!(matches!(engine.claim(&held).await.unwrap(), Verdict::Unknown(_)));
        let resolved = engine.resolve(&key("k"), &resolution, &Trace::default()).await.unwrap();
        assert_eq!(resolved, Resolved::Ok);
        let record = engine.look(&key("k")).await.unwrap().unwrap().stored.record;
        assert_eq!(record.state, state);
        assert_eq!(engine.complete(&zombie, &outcome("late")).await.unwrap(), Finish::Lost);
    }
}

#[tokio::test]
async fn the_owner_of_an_unknown_record_can_still_say_how_it_ended() {
    let (engine, _, clock) = engine();
    let mut held = claim("k", "p");
    held.terms.on_abandoned = OnAbandoned::Hold;
    let owner = permit(engine.claim(&held).await.unwrap());
    clock.advance(30_000);
    assert!(matches!(engine.claim(&held).await.unwrap(), Verdict::Unknown(_)));
    assert_eq!(engine.complete(&owner, &outcome("it worked")).await.unwrap(), Finish::Ok);
    assert_eq!(replayed(engine.claim(&held).await.unwrap()), "it worked");
}

#[tokio::test]
async fn an_abandoned_attempt_is_failed_under_rerun_and_unknown_under_hold() {
    let (engine, ..) = engine();
    let sent = permit(engine.claim(&claim("a", "p")).await.unwrap());
    engine.abandon(&sent, "the connection broke").await.unwrap();
    let again = permit(engine.claim(&claim("a", "p")).await.unwrap());
    assert!(again.fence > sent.fence);
    assert_eq!(again.record.attempt, 2);
    let mut held = claim("b", "p");
    held.terms.on_abandoned = OnAbandoned::Hold;
    let sent = permit(engine.claim(&held).await.unwrap());
    engine.abandon(&sent, "the connection broke").await.unwrap();
    assert!(matches!(engine.claim(&held).await.unwrap(), Verdict::Unknown(_)));
}

#[tokio::test]
async fn a_later_attempt_that_is_released_does_not_forget_its_payload() {
    let (engine, _, clock) = engine();
    permit(engine.claim(&claim("k", "p")).await.unwrap());
    clock.advance(30_000);
    let second = permit(engine.claim(&claim("k", "p")).await.unwrap());
    engine.release(&second).await.unwrap();
    // The first attempt may have had its effect: another payload must not slip in.
    let other = engine.claim(&claim("k", "another")).await.unwrap();
    assert!(matches!(other, Verdict::Mismatch(_)), "{other:?}");
    assert_eq!(permit(engine.claim(&claim("k", "p")).await.unwrap()).record.attempt, 2);
}

#[tokio::test]
async fn attempts_that_are_used_up_make_a_record_dead() {
    let (engine, _, clock) = engine();
    let mut twice = claim("k", "p");
    twice.terms.max_attempts = 2;
    let first = permit(engine.claim(&twice).await.unwrap());
    assert_eq!(engine.fail(&first, "no", Retry::In(500)).await.unwrap(), Finish::Ok);
    let busy = engine.claim(&twice).await.unwrap();
    assert_eq!(busy, Verdict::Busy { retry_after_ms: 500 });
    clock.advance(500);
    let second = permit(engine.claim(&twice).await.unwrap());
    assert_eq!(engine.fail(&second, "no again", Retry::In(500)).await.unwrap(), Finish::Dead);
    match engine.claim(&twice).await.unwrap() {
        Verdict::Dead(record) => assert_eq!(record.error.as_deref(), Some("no again")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_guard_refuses_at_the_claim_with_the_current_position() {
    let (engine, ..) = engine();
    let put = engine.put(&subject("s"), 0, Some(bytes("v1"))).await.unwrap();
    assert_eq!(put, onceward::engine::Put::Written(1));
    let table = [
        (Rule::Exactly { expected: 0 }, Some(Misfit::VersionConflict)),
        (Rule::Exactly { expected: 1 }, None),
        (Rule::Next { position: 1 }, Some(Misfit::Stale)),
        (Rule::Next { position: 3 }, Some(Misfit::Gap)),
        (Rule::Next { position: 2 }, None),
        (Rule::Above { position: 1 }, Some(Misfit::Stale)),
        (Rule::Above { position: 7 }, None),
        (Rule::NotBefore { at: 0, grace_ms: 0 }, Some(Misfit::OutOfOrder)),
        (Rule::NotBefore { at: 0, grace_ms: 1 }, None),
    ];
    for (index, (rule, expected)) in table.into_iter().enumerate() {
        let mut guarded = claim(&format!("k{index}"), "p");
        guarded.guard = Some(Guard::new(subject("s"), rule).unwrap());
        match (engine.claim(&guarded).await.unwrap(), expected) {
            (Verdict::Refused(refusal), Some(why)) => {
                assert_eq!((refusal.why, refusal.current), (why, 1), "{rule:?}");
            }
            (Verdict::Run { permit, .. }, None) => {
                engine.release(&permit).await.unwrap();
            }
            (other, _) => panic!("{rule:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn the_guard_is_checked_again_at_completion_and_the_loser_is_released() {
    let (engine, ..) = engine();
    let guarded = |id: &str| {
        let mut claim = claim(id, id);
        claim.guard = Some(Guard::new(subject("s"), Rule::Exactly { expected: 0 }).unwrap());
        claim
    };
    let a = permit(engine.claim(&guarded("a")).await.unwrap());
    let b = permit(engine.claim(&guarded("b")).await.unwrap());
    assert_eq!(engine.complete(&a, &outcome("a")).await.unwrap(), Finish::Ok);
    match engine.complete(&b, &outcome("b")).await.unwrap() {
        Finish::Refused(refusal) => {
            assert_eq!((refusal.why, refusal.current), (Misfit::VersionConflict, 1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.look(&key("b")).await.unwrap(), None, "the loser's key is released");
    assert_eq!(engine.mark(&subject("s")).await.unwrap().unwrap().position, 1);
}

#[tokio::test]
async fn i11_one_commit_writes_effects_record_and_audit_together_or_nothing() {
    let (engine, store, _) = engine();
    let change = |expected, value: &str| Effects {
        changes: vec![Change {
            guard: Guard::new(subject("s"), Rule::Exactly { expected }).unwrap(),
            value: Body::Set(bytes(value)),
        }],
        ..Effects::default()
    };
    let ran = engine.run_once(&claim("a", "p"), &with_effects("a", change(0, "v1"))).await.unwrap();
    let OnceVerdict::Ran { record, was_expired: false } = ran else { panic!("{ran:?}") };
    assert_eq!(record.state, State::Done);
    assert_eq!(record.fence, None);
    assert!(record.last_fence > Fence(0));
    let audited = store.snapshot().audit().len();
    // Lost race: neither document, nor record, nor audit entry.
    let lost =
        engine.run_once(&claim("b", "p"), &with_effects("b", change(0, "v2"))).await.unwrap();
    match lost {
        OnceVerdict::Not(Verdict::Refused(refusal)) => assert_eq!(refusal.current, 1),
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.look(&key("b")).await.unwrap(), None);
    assert_eq!(store.snapshot().audit().len(), audited);
    assert_eq!(engine.get(&subject("s")).await.unwrap().unwrap().value, bytes("v1"));
    // The duplicate replays, although its guard would not hold any more.
    let again =
        engine.run_once(&claim("a", "p"), &with_effects("x", change(0, "v3"))).await.unwrap();
    match again {
        OnceVerdict::Not(Verdict::Replay(stored)) => {
            assert_eq!(stored.outcome.unwrap(), bytes("a"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a13_an_expired_record_counts_as_absent_and_says_so() {
    let (engine, _, clock) = engine();
    engine.run_once(&claim("k", "p"), &outcome("one")).await.unwrap();
    clock.advance(86_400_000);
    assert_eq!(engine.look_before(&claim("k", "other")).await.unwrap(), None);
    let again = engine.run_once(&claim("k", "other"), &outcome("two")).await.unwrap();
    assert!(matches!(again, OnceVerdict::Ran { was_expired: true, .. }), "{again:?}");
    assert_eq!(replayed(engine.claim(&claim("k", "other")).await.unwrap()), "two");
}

#[tokio::test]
async fn bounds_are_refused_with_field_value_and_bound() {
    let (engine, ..) = engine();
    let mut short = claim("k", "p");
    short.terms.lease_ms = 99;
    let error = engine.claim(&short).await.unwrap_err();
    assert_eq!(error.to_string(), "lease_ms is 99, but must be between 100 and 86400000");
    let held = permit(engine.claim(&claim("big", "p")).await.unwrap());
    let big = outcome(&"x".repeat(3 * 1024 * 1024));
    let error = engine.complete(&held, &big).await.unwrap_err();
    assert_eq!(error.code(), "limit");
    assert!(error.to_string().starts_with("bytes in a batch is 3145"), "{error}");
    // Nothing is lost: the permit is still good.
    assert_eq!(engine.complete(&held, &outcome("small")).await.unwrap(), Finish::Ok);
    let mut foreign = claim("f", "p");
    let theirs = onceward::core::key::Subject::new("umbrella", "account", "s").unwrap();
    foreign.guard = Some(Guard::new(theirs, Rule::Next { position: 1 }).unwrap());
    assert_eq!(engine.claim(&foreign).await.unwrap_err().code(), "limit");
}

#[tokio::test]
async fn m8_an_attempt_that_is_alive_here_is_not_taken_over_whatever_the_clock_says() {
    for on_abandoned in [OnAbandoned::Rerun, OnAbandoned::Hold] {
        let (engine, _, clock) = engine();
        let mut claim = claim("k", "p");
        claim.terms.on_abandoned = on_abandoned;
        let granted = permit(engine.claim(&claim).await.unwrap());
        let alive = engine.alive_here(&granted);
        clock.advance(48 * 3_600_000);
        for _ in 0..2 {
            let second = engine.claim(&claim).await.unwrap();
            let Verdict::Busy { retry_after_ms } = second else { panic!("{second:?}") };
            assert_eq!(retry_after_ms, granted.record.terms.lease_ms);
            engine.sweep(|_| ()).await.unwrap();
        }
        assert_eq!(engine.renew(&granted, None).await.unwrap(), Finish::Ok);
        clock.advance(48 * 3_600_000);
        drop(alive);
        // A guard that another attempt has left behind says nothing about this one.
        let second = engine.claim(&claim).await.unwrap();
        match on_abandoned {
            OnAbandoned::Rerun => {
                let again = permit(second);
                let old = engine.alive_here(&granted);
                clock.advance(48 * 3_600_000);
                assert!(permit(engine.claim(&claim).await.unwrap()).fence > again.fence);
                drop(old);
            }
            OnAbandoned::Hold => assert!(matches!(second, Verdict::Unknown(_)), "{second:?}"),
        }
    }
}
