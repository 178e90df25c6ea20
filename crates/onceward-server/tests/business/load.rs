//! E10, under load: many duplicates, many keys at once, expiry meanwhile, and storage's limits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use futures_util::stream::iter;
use serde_json::{Value, json};

use super::conflicts::conflict;
use super::world::{
    Answer, Call, ORGANISATION_A, SHORT, Service, book, eventually, hold, link, post,
};

/// Requests under way at once.
const AT_ONCE: usize = 32;

/// Sends them, so many at once; answers in their order.
async fn sent(service: &Service, calls: impl Iterator<Item = Call>) -> Vec<Answer> {
    let sends = calls.map(|call| call.send(service)).collect::<Vec<_>>();
    iter(sends).buffered(AT_ONCE).collect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_load_high_volume_duplicates_run_once_each() {
    const KEYS: usize = 10;
    const EACH: usize = 80;
    let service = Service::start("e10_duplicates");
    let calls = (0..KEYS * EACH).map(|n| {
        let call = book(&hold(&format!("+{}", n % KEYS), 10));
        call.by(["demo-a", "demo-a2"][n / KEYS % 2])
    });
    let answers = sent(&service, calls).await;
    let mut bodies: BTreeMap<usize, BTreeSet<Vec<u8>>> = BTreeMap::new();
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.status, 201, "{answer:?}");
        bodies.entry(n % KEYS).or_default().insert(answer.body.to_vec());
    }
    assert!(bodies.values().all(|bodies| bodies.len() == 1), "i03: one answer per key");
    let ran = answers.iter().filter(|answer| !answer.is_again()).count();
    assert_eq!(ran, KEYS);
    assert_eq!(service.entries(ORGANISATION_A, "hold.create").await.len(), KEYS);
    let replays = service.metric("onceward_replays_total{endpoint=\"POST /bookings/hold\"}").await;
    assert_eq!(replays as usize, KEYS * EACH - KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_load_concurrent_keys_do_not_disturb_each_other() {
    const KEYS: usize = 300;
    let service = Service::start("e10_concurrent");
    let calls =
        (0..KEYS).map(|n| post("/payments/link").key(&format!("k{n}")).json(&link(1 + n as u64)));
    let answers = sent(&service, calls).await;
    let ids: BTreeSet<String> = answers.iter().map(Answer::id).collect();
    assert_eq!(ids.len(), KEYS);
    for (n, answer) in answers.iter().enumerate() {
        assert!(!answer.is_again() && answer.json()["amount"] == json!(1 + n), "{answer:?}");
    }
    // All of one customer: each is written, one after the other.
    let writes = (0..40)
        .map(|n| super::world::put("/customers/c").json(&json!({ "name": format!("name {n}") })));
    let written = sent(&service, writes).await;
    let versions: BTreeSet<u64> =
        written.iter().map(|answer| answer.json()["version"].as_u64().unwrap()).collect();
    assert_eq!(versions, (1..=40).collect(), "no write is lost, none is there twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_load_expiry_under_load_runs_anew_once_per_life() {
    let retain = [("ONCEWARD_BUSINESS_RETAIN_HOLDS", SHORT)];
    let service = Service::start_with("e10_expiry", &retain);
    const KEYS: usize = 4;
    let done = AtomicBool::new(false);
    // Everybody sends the same few requests until each has expired, while sweeps run.
    let sending = async {
        let mut anew: BTreeMap<String, usize> = BTreeMap::new();
        let mut ids: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        let calls = iter(0_usize..)
            .take_while(|_| std::future::ready(!done.load(Ordering::Relaxed)))
            .map(|n| {
                let (key, service) = (n % KEYS, &service);
                let call = book(&hold(&format!("+{key}"), 10));
                async move { (key, call.send(service).await) }
            });
        let mut calls = std::pin::pin!(calls.buffer_unordered(4));
        while let Some((key, answer)) = calls.next().await {
            if answer.status == 429 {
                // Faster than a caller may be.
                continue;
            }
            assert_eq!(answer.status, 201, "{answer:?}");
            ids.entry(key).or_default().insert(answer.id());
            if !answer.is_again() {
                let expired = answer.header("x-idempotency-expired").to_string();
                *anew.entry(expired).or_default() += 1;
            }
            if ids.len() == KEYS && ids.values().all(|ids| ids.len() >= 2) {
                done.store(true, Ordering::Relaxed);
            }
        }
        (anew, ids)
    };
    let sweeping = async {
        while !done.load(Ordering::Relaxed) {
            service.operate("POST", "/v1/sweep").await.must_be(200);
            // sleeps because a sweep without a pause would be all that the machine does
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let ((anew, ids), ()) = tokio::join!(sending, sweeping);
    let made = service.entries(ORGANISATION_A, "hold.create").await.len();
    let lives: usize = ids.values().map(BTreeSet::len).sum();
    assert_eq!(made, lives, "each life of a key has one hold");
    assert_eq!(anew[""], KEYS, "the first life of each says nothing");
    assert_eq!(anew["true"], lives - KEYS, "every later one says that it is one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_load_storage_limits_are_refused_before_anything_runs() {
    let service = Service::start("e10_limits");
    let padded = |bytes: usize| {
        let mut body = link(5);
        body["pad"] = json!("x".repeat(bytes));
        body
    };
    // As large as may be: kept, replayed, and explained.
    let large = padded(255 * 1024);
    let made = post("/payments/link").key("large").json(&large).send(&service).await.must_be(201);
    let again = post("/payments/link").key("large").json(&large).send(&service).await;
    assert!(again.is_again() && again.body == made.body);
    let mut other = large.clone();
    other["amount"] = json!(6);
    let details = conflict(&post("/payments/link").key("large").json(&other).send(&service).await);
    assert_eq!(details["diff_summary"], json!(["amount: 5 → 6"]));
    let mut other = large.clone();
    other["pad"] = json!("y");
    let details = conflict(&post("/payments/link").key("large").json(&other).send(&service).await);
    let line = details["diff_summary"][0].as_str().unwrap();
    assert!(line.len() < 200 && line.starts_with("pad: '(") && line.ends_with("'y'"), "{line}");
    // Larger is not.
    let refused = post("/payments/link").json(&padded(257 * 1024)).send(&service).await;
    assert_eq!(refused.error(), (413, "BODY_TOO_LARGE".into()));
    // Very many changes are bounded, and the answer says so.
    let many = |n: u64| {
        let fields = (0..200).map(|field| (format!("f{field:03}"), json!(n)));
        let mut body = link(5);
        body.as_object_mut().unwrap().extend(fields);
        body
    };
    post("/payments/link").key("many").json(&many(1)).send(&service).await.must_be(201);
    let refused = post("/payments/link").key("many").json(&many(2)).send(&service).await;
    let summary = conflict(&refused)["diff_summary"].as_array().unwrap().clone();
    assert_eq!(summary.len(), 65);
    assert_eq!(summary[64], "(more changes are not shown)");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let refused = post("/payments/link").raw(&deep).send(&service).await;
    assert_eq!(refused.error(), (400, "BODY_NOT_CANONICAL".into()));
    assert_eq!(service.requests(ORGANISATION_A).await.len(), 2);
    // A restart finds all of it.
    let service = service.killed_and_started();
    let again = post("/payments/link").key("large").json(&large).send(&service).await;
    assert!(again.is_again() && again.body == made.body);
    eventually("the store answers", async || {
        let health: Value = service.operate("GET", "/healthz").await.json();
        health["status"] == "ok"
    })
    .await;
}
