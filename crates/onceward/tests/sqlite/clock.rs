//! Clocks that people set, and machines that start again: no lease ends whose work may go on.

#![expect(clippy::unwrap_used, reason = "helpers of a test fail the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use onceward::core::decide::{Claim, Finish, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::record::OnAbandoned;
use onceward::core::stamp::At;
use onceward::engine::Engine;
use onceward::store::Store;
use onceward::store::clock::{Boot, Reading};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

const HOUR: u64 = 3_600_000;

/// The machine's clocks, with the one that people set this far ahead, in this boot or another.
fn reading(ahead_ms: u64, other_boot: bool) -> Reading {
    let now = Reading::now();
    let other = Boot { id: [9; 16], up_ms: 40_000 };
    let boot = if other_boot { Some(other) } else { now.boot };
    assert!(boot.is_some(), "the system tells which boot it is");
    Reading { wall: At(now.wall.0 + ahead_ms), boot }
}

fn open(folder: &Folder, reading: Reading) -> Engine {
    let options = SqliteOptions::default();
    let store = SqliteStore::open_reading(folder.database(), options, reading).unwrap();
    Engine::new(Arc::new(store))
}

fn request(lease_ms: u64, on_abandoned: OnAbandoned) -> Claim {
    let mut claim = Claim::new(key("1"), fingerprint_bytes(b"payload"));
    (claim.terms.lease_ms, claim.terms.on_abandoned) = (lease_ms, on_abandoned);
    claim
}

#[tokio::test]
async fn m8_a_clock_that_was_set_ahead_ends_no_lease_at_a_restart() {
    for on_abandoned in [OnAbandoned::Rerun, OnAbandoned::Hold] {
        let folder = Folder::new("clock-ahead");
        let claim = request(30_000, on_abandoned);
        let engine = open(&folder, reading(0, false));
        let Verdict::Run { permit, .. } = engine.claim(&claim).await.unwrap() else { panic!() };
        engine.close().await.unwrap();
        let engine = open(&folder, reading(HOUR, false));
        assert_eq!(engine.capabilities().leases_anew, None, "the time since is known");
        let second = engine.claim(&claim).await.unwrap();
        let Verdict::Busy { retry_after_ms } = second else { panic!("{second:?}") };
        assert!(retry_after_ms <= 30_000, "{retry_after_ms}");
        // Its holder still may say how it ended.
        assert_eq!(engine.renew(&permit, None).await.unwrap(), Finish::Ok);
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn m8_after_the_machine_was_started_again_a_lease_is_granted_once_more_in_full() {
    let lease = Duration::from_millis(1_200);
    for on_abandoned in [OnAbandoned::Rerun, OnAbandoned::Hold] {
        let folder = Folder::new("clock-boot");
        let claim = request(1_200, on_abandoned);
        let engine = open(&folder, reading(0, false));
        assert!(matches!(engine.claim(&claim).await.unwrap(), Verdict::Run { .. }));
        engine.close().await.unwrap();
        let opened = Instant::now();
        let engine = open(&folder, reading(HOUR, true));
        let second = engine.claim(&claim).await.unwrap();
        let Verdict::Busy { retry_after_ms } = second else { panic!("{second:?}") };
        assert!((1..=1_200).contains(&retry_after_ms), "{retry_after_ms}");
        engine.sweep(|_| ()).await.unwrap();
        let ended = engine.claim_waiting(&claim, Duration::from_secs(20)).await.unwrap();
        assert!(opened.elapsed() >= lease, "{:?}", opened.elapsed());
        match on_abandoned {
            OnAbandoned::Rerun => assert!(matches!(ended, Verdict::Run { .. }), "{ended:?}"),
            OnAbandoned::Hold => assert!(matches!(ended, Verdict::Unknown(_)), "{ended:?}"),
        }
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn m8_a_clock_that_is_not_the_machines_is_said() {
    let folder = Folder::new("clock-apart");
    let mut told = Vec::new();
    for ahead in [HOUR, 2 * HOUR, HOUR + 1_000, 0] {
        let options = SqliteOptions::default();
        let reading = reading(ahead, false);
        let store = SqliteStore::open_reading(folder.database(), options, reading).unwrap();
        told.push(store.standing().warnings.join("; "));
        store.close().await.unwrap();
    }
    assert!(told[0].is_empty() && told[2].is_empty(), "{told:?}");
    assert!(told[1].contains("s behind the machine's"), "{told:?}");
    assert!(told[3].contains("s ahead of the machine's"), "{told:?}");
}

/// In the boot that [`reading`] calls another one, when so much has passed there since the last
/// commit.
fn later(ahead_ms: u64, passed_ms: u64) -> Reading {
    let mut later = reading(ahead_ms, true);
    let now = Reading::now().boot.unwrap();
    later.boot.as_mut().unwrap().up_ms = now.up_ms + passed_ms;
    later
}

#[tokio::test]
async fn m8_later_openings_in_a_boot_know_what_was_granted_before_it() {
    for on_abandoned in [OnAbandoned::Rerun, OnAbandoned::Hold] {
        for works in [false, true] {
            let folder = Folder::new("clock-second");
            let claim = request(30_000, on_abandoned);
            let engine = open(&folder, reading(0, false));
            assert!(matches!(engine.claim(&claim).await.unwrap(), Verdict::Run { .. }));
            engine.close().await.unwrap();
            // The machine was off for less than it says; one start after the other.
            let day = 24 * HOUR;
            let engine = open(&folder, later(day, 0));
            if works {
                let mut other = request(30_000, on_abandoned);
                other.key = key("2");
                assert!(matches!(engine.claim(&other).await.unwrap(), Verdict::Run { .. }));
            }
            engine.close().await.unwrap();
            for (ahead, passed, busy) in
                [(day, 5_000, true), (2 * day, 10_000, true), (day, 120_000, false)]
            {
                let engine = open(&folder, later(ahead, passed));
                engine.sweep(|_| ()).await.unwrap();
                let found = engine.claim(&claim).await.unwrap();
                if busy {
                    assert!(matches!(found, Verdict::Busy { .. }), "{passed}: {found:?}");
                } else {
                    assert!(!matches!(found, Verdict::Busy { .. }), "it is not for ever");
                }
                engine.close().await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn m8_what_is_granted_after_the_start_is_judged_by_the_clock_again() {
    let folder = Folder::new("clock-again");
    let engine = open(&folder, reading(0, false));
    engine.close().await.unwrap();
    let store =
        SqliteStore::open_reading(folder.database(), SqliteOptions::default(), reading(HOUR, true));
    let store = Arc::new(store.unwrap());
    let ahead = store.load(vec![]).await.unwrap().now;
    assert!(ahead.0 + 60_000 > reading(HOUR, true).wall.0, "nothing else tells the time");
    let engine = Engine::new(store);
    let claim = request(300, OnAbandoned::Rerun);
    assert!(matches!(engine.claim(&claim).await.unwrap(), Verdict::Run { .. }));
    let second = engine.claim_waiting(&claim, Duration::from_secs(20)).await.unwrap();
    assert!(matches!(second, Verdict::Run { .. }), "{second:?}");
    engine.close().await.unwrap();
}
