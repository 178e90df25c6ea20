//! Effects beside a key: further keys, marks that several positions move, effects without a key.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

mod common;

use common::*;
use onceward::core::audit::Entry;
use onceward::core::decide::{Change, DoneKey, Effects, Span, Verdict};
use onceward::core::guard::{Guard, Misfit, Rule};
use onceward::core::record::Body;
use onceward::engine::OnceVerdict;

const GRACE_MS: u64 = 300;

fn span(first: u64, through: u64) -> Span {
    let rule = Rule::NotBefore { at: first, grace_ms: GRACE_MS };
    Span { guard: Guard::new(subject("last"), rule).unwrap(), through }
}

fn document(id: &str, expected: u64) -> Change {
    let guard = Guard::new(subject(id), Rule::Exactly { expected }).unwrap();
    Change { guard, value: Body::Set(bytes(id)) }
}

fn done(id: &str, payload: &str) -> DoneKey {
    DoneKey { claim: claim(id, payload), outcome: bytes("points at it") }
}

#[tokio::test]
async fn i11_a_further_key_is_done_with_its_request_or_not_at_all() {
    let (engine, store, _) = engine();
    let effects = |expected| Effects {
        changes: vec![document("item", expected)],
        keys: vec![done("item", "80 kg")],
        ..Effects::default()
    };
    let ran = engine.run_once(&claim("request", "p"), &with_effects("r", effects(0))).await;
    assert!(matches!(ran.unwrap(), OnceVerdict::Ran { .. }));
    assert_eq!(replayed(engine.claim(&claim("item", "80 kg")).await.unwrap()), "points at it");
    let other = engine.claim(&claim("item", "81 kg")).await.unwrap();
    assert!(matches!(other, Verdict::Mismatch(_)), "{other:?}");
    // Someone was first: the guard tells, nothing is written, the key stays as it is.
    let audited = store.snapshot().audit().len();
    let lost = engine.run_once(&claim("second", "p"), &with_effects("r", effects(0))).await;
    match lost.unwrap() {
        OnceVerdict::Not(Verdict::Refused(refusal)) => {
            assert_eq!((refusal.why, refusal.current), (Misfit::VersionConflict, 1));
        }
        other => panic!("{other:?}"),
    }
    // No guard tells: the key itself does.
    let taken = engine.run_once(&claim("third", "p"), &with_effects("r", effects(1))).await;
    match taken.unwrap() {
        OnceVerdict::Not(Verdict::Mismatch(record)) => assert_eq!(record.key, key("item")),
        other => panic!("{other:?}"),
    }
    for id in ["second", "third"] {
        assert_eq!(engine.look(&key(id)).await.unwrap(), None);
    }
    assert_eq!(store.snapshot().audit().len(), audited);
}

#[tokio::test]
async fn a13_a_further_key_takes_the_place_of_an_expired_one() {
    let (engine, _, clock) = engine();
    let keyed = |payload| Effects { keys: vec![done("k", payload)], ..Effects::default() };
    assert_eq!(engine.write("acme", &keyed("one")).await.unwrap(), None);
    let again = engine.write("acme", &keyed("one")).await.unwrap();
    assert!(matches!(again, Some(Verdict::Mismatch(_))), "{again:?}");
    clock.advance(86_400_000);
    assert_eq!(engine.write("acme", &keyed("two")).await.unwrap(), None);
    assert_eq!(replayed(engine.claim(&claim("k", "two")).await.unwrap()), "points at it");
}

#[tokio::test]
async fn i29_a_span_is_judged_by_its_first_and_moves_to_its_last() {
    let (engine, ..) = engine();
    let moved =
        |first, through| Effects { spans: vec![span(first, through)], ..Effects::default() };
    let position = async || engine.mark(&subject("last")).await.unwrap().unwrap().position;
    assert_eq!(engine.write("acme", &moved(1_000, 90_000)).await.unwrap(), None);
    assert_eq!(position().await, 90_000);
    // Its last lies ahead, its first too far behind: refused.
    match engine.write("acme", &moved(89_699, 100_000)).await.unwrap() {
        Some(Verdict::Refused(refusal)) => {
            assert_eq!((refusal.why, refusal.current), (Misfit::OutOfOrder, 90_000));
        }
        other => panic!("{other:?}"),
    }
    // Within the grace, and nothing moves back.
    assert_eq!(engine.write("acme", &moved(89_700, 89_800)).await.unwrap(), None);
    assert_eq!(position().await, 90_000);
}

#[tokio::test]
async fn effects_without_a_key_are_one_batch_of_one_tenant() {
    let (engine, store, _) = engine();
    let mut effects = Effects {
        changes: vec![document("a", 0), document("b", 7)],
        audit: vec![Entry::new("acme", "tried")],
        ..Effects::default()
    };
    let refused = engine.write("acme", &effects).await.unwrap();
    assert!(matches!(refused, Some(Verdict::Refused(_))), "{refused:?}");
    assert_eq!(engine.get(&subject("a")).await.unwrap(), None, "all or none");
    assert!(store.snapshot().audit().is_empty());
    effects.changes.pop();
    assert_eq!(engine.write("acme", &effects).await.unwrap(), None);
    assert_eq!(store.snapshot().audit().len(), 1);
    assert_eq!(engine.write("umbrella", &effects).await.unwrap_err().code(), "limit");
    let mut foreign = Effects { keys: vec![done("k", "p")], ..Effects::default() };
    assert_eq!(engine.write("umbrella", &foreign).await.unwrap_err().code(), "limit");
    foreign.keys.clear();
    assert!(foreign.is_empty());
}

#[tokio::test]
async fn many_subjects_are_seen_at_one_instant_with_and_without_a_value() {
    let (engine, ..) = engine();
    let effects =
        Effects { changes: vec![document("a", 0)], spans: vec![span(7, 9)], ..Effects::default() };
    engine.write("acme", &effects).await.unwrap();
    let wanted = ["a", "nothing", "last"].map(subject).to_vec();
    let (now, seen) = engine.see_many(wanted).await.unwrap();
    assert_eq!(now, START);
    let seen: Vec<_> = seen.into_iter().map(|seen| (seen.version, seen.value)).collect();
    assert_eq!(seen, [(1, Some(bytes("a"))), (0, None), (9, None)]);
}
