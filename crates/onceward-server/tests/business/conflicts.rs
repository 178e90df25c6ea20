//! E04: the same again, something else under the same key, and a key whose time is over.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::world::{
    Answer, ORGANISATION_A, SHORT, Service, book, eventually, hold, link, post, put,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e04_a_duplicate_is_the_original_answer_with_its_own_status() {
    let service = Service::start("e04_replay");
    let made = || put("/customers/c1").key("k").json(&json!({ "name": "Ada" }));
    let first = made().send(&service).await.must_be(201);
    assert_eq!(first.header("x-idempotency-replay"), "");
    put("/customers/c1").json(&json!({ "name": "Eve" })).send(&service).await.must_be(200);
    let again = made().send(&service).await.must_be(201);
    assert_eq!((again.is_again(), &again.body), (true, &first.body));
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(again.header("cache-control"), "no-store");
    // Nobody else marks an answer.
    let forged = made().header("x-idempotency-replay", "true").key("other").send(&service).await;
    assert_eq!(forged.must_be(200).header("x-idempotency-replay"), "");
}

/// The error of a conflict, which is the seed's, member for member.
#[track_caller]
pub(crate) fn conflict(answer: &Answer) -> Value {
    assert_eq!(answer.error(), (409, "IDEMPOTENCY_CONFLICT".into()), "{answer:?}");
    assert_eq!(answer.header("x-idempotency-conflict"), "body-mismatch");
    let members = |value: &Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let named = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let body = answer.json();
    assert_eq!(members(&body), named(&["error"]));
    let error = &body["error"];
    assert_eq!(members(error), named(&["code", "message", "details"]));
    assert_eq!(
        error["message"],
        "Request body differs from original request with same idempotency key"
    );
    let details = error["details"].clone();
    let expected = named(&[
        "original_key",
        "current_hash",
        "original_hash",
        "diff_summary",
        "original_timestamp",
        "retry_after",
    ]);
    assert_eq!(members(&details), expected);
    for hash in ["current_hash", "original_hash"] {
        let hash = details[hash].as_str().unwrap();
        assert!(hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{hash}");
    }
    details
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e04_a_conflict_says_what_differs_as_the_seed_does() {
    let service = Service::start("e04_conflict");
    let sent = async |body: &Value| post("/bookings/hold").key("k").json(body).send(&service).await;
    let first = hold("+1-512-555-0100", 10);
    let made = sent(&first).await.must_be(201);
    let details = conflict(&sent(&hold("+1-512-555-0200", 11)).await);
    assert_eq!(
        details["diff_summary"],
        json!([
            "customer_info.phone: '+1-512-555-0100' → '+1-512-555-0200'",
            "requested_time: '2031-02-16T10:00:00Z' → '2031-02-16T11:00:00Z'",
        ])
    );
    assert_eq!(details["original_key"], "k");
    assert_ne!(details["original_hash"], details["current_hash"]);
    let record = &service.requests(ORGANISATION_A).await[0];
    let second = |value: &Value| value.as_str().unwrap()[..19].to_string();
    assert_eq!(second(&details["original_timestamp"]), second(&record["created_at"]));
    let left = details["retry_after"].as_u64().unwrap();
    assert!((1_700..=1_800).contains(&left), "seconds until the original expires: {left}");
    // Nothing changed, and the original is still there.
    let again = sent(&first).await;
    assert!(again.is_again() && again.body == made.body);
    assert_eq!(service.entries(ORGANISATION_A, "hold.create").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e04_the_diff_knows_nesting_lists_additions_removals_and_masks_secrets() {
    let service = Service::start("e04_diff");
    let summary = async |key: &str, old: &Value, new: &Value| {
        let sent = async |body| post("/estimates/draft").key(key).json(body).send(&service).await;
        sent(old).await.must_be(201);
        conflict(&sent(new).await)["diff_summary"].clone()
    };
    let items = json!([{ "sku": "a", "qty": 1 }, { "sku": "b", "qty": 2 }]);
    let with = |more: Value| {
        let mut body = json!({ "items": items });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (name, old, new, expected) in [
        (
            "nested",
            with(json!({ "site": { "door": { "code": 1 } } })),
            with(json!({ "site": { "door": { "code": true } } })),
            json!(["site.door.code: 1 → true"]),
        ),
        (
            "added",
            with(json!({})),
            with(json!({ "note": "it's \"new\"" })),
            json!(["note: (absent) → 'it's \"new\"'"]),
        ),
        (
            "removed",
            with(json!({ "note": null, "site": { "door": 1 } })),
            with(json!({ "site": {} })),
            json!(["note: null → (absent)", "site.door: 1 → (absent)"]),
        ),
        (
            "lists",
            with(json!({})),
            json!({ "items": [{ "sku": "b", "qty": 2 }, { "sku": "a", "qty": 7 }] }),
            json!(["items.1.qty: 1 → 7"]),
        ),
        (
            "longer",
            with(json!({})),
            json!({ "items": [
                { "sku": "a", "qty": 1 }, { "sku": "b", "qty": 2 }, { "sku": "c", "qty": 3 }
            ] }),
            json!(["items.2: (absent) → {\"qty\":3,\"sku\":\"c\"}"]),
        ),
        (
            "masked",
            with(json!({ "card_number": "4000", "deep": [{ "password": "a", "seat": 1 }] })),
            with(json!({ "card_number": "5000", "deep": [{ "password": "b", "seat": 2 }] })),
            json!([
                "card_number: '***' → '***'",
                "deep.0.password: '***' → '***'",
                "deep.0.seat: 1 → 2",
            ]),
        ),
    ] {
        assert_eq!(summary(name, &old, &new).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e04_a_query_that_differs_is_a_conflict_too() {
    let service = Service::start("e04_query");
    post("/payments/link?to=a").key("k").json(&link(5)).send(&service).await.must_be(201);
    let other = post("/payments/link?to=b").key("k").json(&link(5)).send(&service).await;
    assert_eq!(conflict(&other)["diff_summary"], json!(["the query field to: 'a' → 'b'"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e04_e06_an_expired_key_runs_anew_and_says_so() {
    let retain = [("ONCEWARD_BUSINESS_RETAIN_HOLDS", SHORT)];
    let service = Service::start_with("e04_expired", &retain);
    let first = book(&hold("+1", 10)).send(&service).await.must_be(201);
    let keyed =
        async |hour| post("/bookings/hold").key("k").json(&hold("+1", hour)).send(&service).await;
    keyed(10).await.must_be(201);
    let left = conflict(&keyed(11).await)["retry_after"].as_u64().unwrap();
    assert!((1..=10).contains(&left), "{left}");
    let anew = std::cell::RefCell::new(None);
    eventually("the key expires", async || {
        let answer = book(&hold("+1", 10)).send(&service).await.must_be(201);
        if answer.is_again() {
            assert_eq!(answer.body, first.body, "until then it is the first answer");
            return false;
        }
        *anew.borrow_mut() = Some(answer);
        true
    })
    .await;
    let anew = anew.into_inner().unwrap();
    assert_eq!(anew.header("x-idempotency-expired"), "true");
    assert_ne!(anew.id(), first.id());
    // The new one is the answer from here on, and another body is no conflict any more.
    let again = book(&hold("+1", 10)).send(&service).await;
    assert_eq!((again.is_again(), &again.body), (true, &anew.body));
    assert_eq!(again.header("x-idempotency-expired"), "");
    eventually("the other key expires", async || {
        keyed(11).await.header("x-idempotency-expired") == "true"
    })
    .await;
    // Expiries are in the audit.
    eventually("the audit has them", async || {
        service.entries(ORGANISATION_A, "idempotency_expired").await.len() == 2
    })
    .await;
    assert_eq!(
        service.metric("onceward_expired_total{endpoint=\"POST /bookings/hold\"}").await,
        2.0
    );
}
