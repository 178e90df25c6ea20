//! Concurrent submissions (D12): one id counts once, one user keeps one order.

use futures_util::future::join_all;
use serde_json::json;

use super::world::{Service, at, batch, measurement, of, submit};

/// How many at once.
const CROWD: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_concurrent_submissions_of_one_id_are_accepted_once() {
    let service = Service::start("d12_id");
    let body = measurement("m1", 0);
    let answers = join_all((0..CROWD).map(|_| submit("ada", &body).send(&service))).await;
    let made: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(made.len(), 1, "{answers:?}");
    for answer in &answers {
        assert!(matches!(answer.status, 200 | 201), "{answer:?}");
        assert_eq!(answer.body, made[0].body, "one result");
    }
    let actions = service.actions("ada").await;
    assert_eq!(actions.iter().filter(|action| *action == "accepted").count(), 1);
    assert_eq!(actions.len(), CROWD, "every attempt is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_concurrent_submissions_of_one_id_with_other_payloads_have_one_winner() {
    let service = Service::start("d12_payloads");
    let bodies: Vec<_> = (0..CROWD)
        .map(|n| {
            let mut body = measurement("m1", 0);
            body["weight"] = json!(50 + n);
            body
        })
        .collect();
    let answers = join_all(bodies.iter().map(|body| submit("ada", body).send(&service))).await;
    let won: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    let [winner] = won[..] else { panic!("one winner: {answers:?}") };
    for loser in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!(loser.error(), (409, "DuplicateMeasurement".into()));
        assert_eq!(loser.json()["original_result"], winner.json());
    }
    assert_eq!(service.listed("ada").await, [winner.json()]);
}

/// Singles and batches of one user with timestamps all over an hour, at once: whatever is accepted
/// was within the grace of the latest of those before it, and the latest is the last in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_concurrent_submissions_of_one_user_with_mixed_timestamps_keep_its_order() {
    let service = Service::start("d12_user");
    let seconds = |n: usize| i64::try_from((n * 7_919) % 3_600).unwrap();
    let singles = (0..CROWD).map(|n| submit("ada", &measurement(&format!("s{n}"), seconds(n))));
    let batches = (0..5_usize).map(|b| {
        let items: Vec<_> = (0..20_usize)
            .map(|n| of("ada", &format!("b{b}-{n}"), seconds(b * 31 + n * 3)))
            .collect();
        batch(&items)
    });
    let answers = join_all(singles.chain(batches).map(|call| call.send(&service))).await;
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 201 | 422)), "{answers:?}");
    // The audit is in the order of commits: each accepted one is judged by those before it.
    let audit = service.audit("ada").await;
    assert_eq!(audit.len(), CROWD + 100, "every attempt is there");
    let mut last: Option<jiff::Timestamp> = None;
    for entry in &audit {
        let at: jiff::Timestamp = entry["payload"]["timestamp"].as_str().unwrap().parse().unwrap();
        let late = last.is_some_and(|last| last.duration_since(at).as_secs() > 300);
        match entry["action"].as_str().unwrap() {
            "accepted" => {
                assert!(!late, "{entry} after {last:?}");
                last = last.max(Some(at));
            }
            "rejected" => assert!(late, "{entry} after {last:?}"),
            other => panic!("{other}: {entry}"),
        }
    }
    let accepted = audit.iter().filter(|entry| entry["action"] == "accepted").count();
    assert_eq!(service.listed("ada").await.len(), accepted, "what is told is there");
    let probe = submit("ada", &measurement("probe", -10_000)).send(&service).await.must_be(422);
    assert_eq!(probe.json()["last_accepted"], last.unwrap().to_string());
    assert!(probe.json()["last_accepted"].as_str().unwrap() > at(0).as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_the_same_batch_at_once_under_many_keys_is_accepted_once() {
    let service = Service::start("d12_batches");
    let items: Vec<_> = (0..60).map(|n| of(&format!("u{}", n % 3), &format!("m{n}"), n)).collect();
    let answers = join_all((0..8).map(|_| batch(&items).send(&service))).await;
    let mut accepted = vec![0; items.len()];
    for answer in &answers {
        for (place, status) in answer.statuses().iter().enumerate() {
            match status.as_str() {
                "accepted" => accepted[place] += 1,
                status => assert_eq!(status, "duplicate", "{answer:?}"),
            }
        }
    }
    assert!(accepted.iter().all(|count| *count == 1), "{accepted:?}");
}
