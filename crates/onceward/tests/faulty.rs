//! The faulty store does what its plan says: each fault once, on the call it is meant for.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::sync::Arc;
use std::time::Duration;

use onceward::core::batch::{Answer, Batch, Condition};
use onceward::core::stamp::Token;
use onceward::store::memory::MemoryStore;
use onceward::store::{Read, Store, StoreError};
use onceward::testing::conformance::bench::{all_records, draft, key, put};
use onceward::testing::faulty::{Fault, FaultPlan, FaultyStore, Injected, Method};

fn claim(id: &str, token: u128) -> Arc<Batch> {
    let key = key(id).unwrap();
    Arc::new(Batch {
        token: Token(token),
        conditions: vec![Condition::Absent(key.clone())],
        writes: vec![put(draft(&key))],
    })
}

fn over_memory(plan: FaultPlan) -> (Arc<MemoryStore>, FaultyStore) {
    let memory = Arc::new(MemoryStore::new());
    (memory.clone(), FaultyStore::new(memory, plan))
}

fn records(memory: &MemoryStore) -> usize {
    memory.snapshot().records().count()
}

#[tokio::test]
async fn a_failure_before_does_nothing() {
    let (memory, faulty) = over_memory(FaultPlan::Script(vec![Fault::Before]));
    let failed = faulty.commit(vec![claim("a", 1)]).await.unwrap_err();
    assert!(matches!(failed, StoreError::NotApplied(_)), "{failed}");
    assert_eq!(records(&memory), 0);
    faulty.commit(vec![claim("a", 1)]).await.unwrap();
    assert_eq!(records(&memory), 1);
    let injected = Injected { calls: 2, before: 1, ..Injected::default() };
    assert_eq!(faulty.injected(), injected);
}

#[tokio::test]
async fn a_lost_answer_was_applied() {
    for fault in [Fault::After, Fault::Lost(Duration::from_millis(1))] {
        let (memory, faulty) = over_memory(FaultPlan::Script(vec![fault]));
        let lost = faulty.commit(vec![claim("a", 1), claim("b", 2)]).await.unwrap_err();
        assert!(matches!(lost, StoreError::Unknown(_)), "{lost}");
        assert_eq!(records(&memory), 2);
        assert_eq!(faulty.injected().faults(), 1);
    }
}

#[tokio::test]
async fn a_refusal_whose_answer_is_lost_stays_unknown() {
    let (memory, faulty) = over_memory(FaultPlan::Script(vec![Fault::None, Fault::After]));
    faulty.commit(vec![claim("a", 1)]).await.unwrap();
    let lost = faulty.commit(vec![claim("a", 2)]).await.unwrap_err();
    assert!(matches!(lost, StoreError::Unknown(_)), "{lost}");
    assert_eq!(memory.snapshot().records().next().unwrap().token, Token(1));
}

#[tokio::test]
async fn i27_a_delayed_commit_lands_after_so_many_calls() {
    for calls in 0..4 {
        let (memory, faulty) = over_memory(FaultPlan::Script(vec![Fault::Delayed(calls)]));
        let unknown = faulty.commit(vec![claim("a", 1)]).await.unwrap_err();
        assert!(matches!(unknown, StoreError::Unknown(_)), "{unknown}");
        for _ in 0..calls {
            faulty.load(vec![]).await.unwrap();
            assert_eq!(records(&memory), 0, "{calls} calls come first");
            assert_eq!(faulty.waiting(), 1);
        }
        let read = Read::Record { key: key("a").unwrap(), payload: false };
        faulty.load(vec![read]).await.unwrap();
        assert_eq!(records(&memory), 1, "it overtakes the next call");
        assert_eq!((faulty.waiting(), faulty.injected().released), (0, 1));
    }
}

#[tokio::test]
async fn i27_delayed_commits_are_released_on_demand() {
    let script = vec![Fault::Delayed(1_000), Fault::Delayed(1_000)];
    let (memory, faulty) = over_memory(FaultPlan::Script(script));
    for token in [1, 2] {
        faulty.commit(vec![claim("a", token)]).await.unwrap_err();
    }
    assert_eq!((records(&memory), faulty.waiting()), (0, 2));
    assert_eq!(faulty.release_delayed().await, 2);
    assert_eq!(memory.snapshot().records().next().unwrap().token, Token(1), "in their order");
    assert_eq!(faulty.release_delayed().await, 0);
}

#[tokio::test]
async fn one_batch_of_a_group_is_contended() {
    for (index, expected) in [(0, 0), (1, 1), (2, 2), (7, 1)] {
        let (memory, faulty) = over_memory(FaultPlan::Script(vec![Fault::Contended(index)]));
        let group = vec![claim("a", 1), claim("b", 2), claim("c", 3)];
        let answers = faulty.commit(group).await.unwrap().answers;
        let contended: Vec<_> = answers.iter().map(|a| *a == Answer::Contended).collect();
        assert_eq!(contended.iter().position(|contended| *contended), Some(expected));
        assert_eq!((answers.len(), records(&memory)), (3, 2));
    }
    let (_, faulty) = over_memory(FaultPlan::Script(vec![Fault::Contended(0)]));
    assert_eq!(faulty.commit(vec![]).await.unwrap().answers, []);
}

#[tokio::test]
async fn faults_of_reads_never_claim_a_write() {
    let faults = [
        Fault::Before,
        Fault::After,
        Fault::Lost(Duration::ZERO),
        Fault::Delayed(0),
        Fault::Contended(0),
    ];
    for fault in faults {
        let (_, faulty) = over_memory(FaultPlan::Script(vec![fault, fault]));
        let load = faulty.load(vec![]).await.unwrap_err();
        let list = faulty.list(all_records(), None, 1).await.unwrap_err();
        for error in [load, list] {
            assert!(matches!(error, StoreError::NotApplied(_)), "{fault:?}: {error}");
        }
        assert_eq!((faulty.injected().faults(), faulty.waiting()), (2, 0));
    }
}

#[tokio::test]
async fn watch_and_close_suffer_faults_too() {
    let named = vec![(Method::Close, Fault::Before), (Method::Watch, Fault::Before)];
    let (memory, faulty) = over_memory(FaultPlan::Named(named));
    let watch = faulty.watch(vec![]).await.unwrap_err();
    assert!(matches!(watch, StoreError::NotApplied(_)), "{watch}");
    let close = faulty.close().await.unwrap_err();
    assert!(matches!(close, StoreError::NotApplied(_)), "{close}");
    assert!(memory.load(vec![]).await.is_ok(), "it is still open");
    faulty.set_plan(FaultPlan::Named(vec![(Method::Close, Fault::After)]));
    let close = faulty.close().await.unwrap_err();
    assert!(matches!(close, StoreError::Unknown(_)), "{close}");
    assert!(memory.load(vec![]).await.is_err(), "it was closed");
}

#[tokio::test]
async fn named_faults_wait_for_their_method() {
    let named = vec![(Method::Commit, Fault::Before), (Method::Commit, Fault::After)];
    let (memory, faulty) = over_memory(FaultPlan::Named(named));
    faulty.load(vec![]).await.unwrap();
    faulty.list(all_records(), None, 1).await.unwrap();
    assert!(matches!(faulty.commit(vec![]).await, Err(StoreError::NotApplied(_))));
    faulty.load(vec![]).await.unwrap();
    assert!(matches!(faulty.commit(vec![claim("a", 1)]).await, Err(StoreError::Unknown(_))));
    assert!(faulty.commit(vec![claim("a", 1)]).await.is_ok());
    assert_eq!(records(&memory), 1);
}

#[tokio::test]
async fn i23_the_same_seed_injects_the_same_faults() {
    let mut runs = Vec::new();
    for seed in [7, 7, 8] {
        let (memory, faulty) = over_memory(FaultPlan::Seeded { seed, per_mille: 500 });
        let mut trace = Vec::new();
        for token in 0..200 {
            let answer = faulty.commit(vec![claim(&(token % 9).to_string(), token)]).await;
            trace.push(match answer {
                Ok(committed) => format!("{:?}", committed.answers[0] == Answer::Contended),
                Err(error) => error.to_string(),
            });
            faulty.load(vec![]).await.ok();
        }
        faulty.release_delayed().await;
        let injected = faulty.injected();
        assert!(injected.before > 0 && injected.after > 0 && injected.lost > 0, "{injected:?}");
        assert!(injected.delayed > 0 && injected.contended > 0, "{injected:?}");
        assert_eq!(injected.released, injected.delayed);
        let tokens: Vec<_> = memory.snapshot().records().map(|record| record.token).collect();
        runs.push((trace, injected, tokens));
    }
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0], runs[2]);
}
