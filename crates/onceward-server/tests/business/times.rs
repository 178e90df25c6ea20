//! E03: how long each route keeps its outcomes.

use serde_json::json;

use super::world::{ORGANISATION_A, Service, book, command, hold, link, post, put};

/// Milliseconds that each route's record is kept.
async fn kept(service: &Service) -> Vec<(String, u64)> {
    let at = |value: &serde_json::Value| {
        let stamp: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
        stamp.as_millisecond()
    };
    let records = service.requests(ORGANISATION_A).await;
    let mut kept: Vec<(String, u64)> = records
        .iter()
        .map(|record| {
            let ms = at(&record["expires_at"]) - at(&record["created_at"]);
            (record["scope"].as_str().unwrap().to_string(), u64::try_from(ms).unwrap())
        })
        .collect();
    kept.sort();
    kept
}

async fn one_of_each(service: &Service) {
    book(&hold("+1", 10)).send(service).await.must_be(201);
    let items = json!({ "items": [{ "sku": "a", "qty": 1 }] });
    post("/estimates/draft").keyless().json(&items).send(service).await.must_be(201);
    let made = post("/payments/link").keyless().json(&link(5)).send(service).await.must_be(201);
    let pay = format!("/payments/link/{}/pay", made.id());
    post(&pay).keyless().send(service).await.must_be(200);
    put("/customers/c1").keyless().json(&json!({ "name": "Ada" })).send(service).await.must_be(201);
    put("/jobs/j1").keyless().json(&json!({})).send(service).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e03_each_route_keeps_its_outcomes_for_a_time_of_its_own() {
    const MINUTE: u64 = 60_000;
    let service = Service::start("e03_defaults");
    one_of_each(&service).await;
    let expected = [
        ("POST /bookings/hold", 30 * MINUTE),
        ("POST /estimates/draft", 24 * 60 * MINUTE),
        ("POST /payments/link", 7 * 24 * 60 * MINUTE),
        ("POST /payments/link/{id}/pay", 60 * MINUTE),
        ("PUT /customers/{id}", 60 * MINUTE),
        ("PUT /jobs/{id}", 4 * 60 * MINUTE),
    ];
    let expected = expected.map(|(scope, ms)| (scope.to_string(), ms));
    assert_eq!(kept(&service).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e03_the_times_are_configured_and_a_wrong_one_is_named() {
    let variables = [
        ("ONCEWARD_BUSINESS_RETAIN_HOLDS", "11m"),
        ("ONCEWARD_BUSINESS_RETAIN_ESTIMATES", "12m"),
        ("ONCEWARD_BUSINESS_RETAIN_PAYMENT_LINKS", "13m"),
        ("ONCEWARD_BUSINESS_RETAIN_CUSTOMERS", "14m"),
        ("ONCEWARD_BUSINESS_RETAIN_JOBS", "15m"),
        ("ONCEWARD_BUSINESS_RETAIN_OTHERS", "16m"),
    ];
    let service = Service::start_with("e03_set", &variables);
    one_of_each(&service).await;
    let minutes: Vec<u64> = kept(&service).await.iter().map(|(_, ms)| ms / 60_000).collect();
    assert_eq!(minutes, [11, 12, 13, 16, 14, 15]);
    for (name, value) in [
        ("ONCEWARD_BUSINESS_RETAIN_HOLDS", "soon"),
        // A client would still be retrying.
        ("ONCEWARD_BUSINESS_RETAIN_HOLDS", "1s"),
        ("ONCEWARD_BUSINESS_RETAIN_BOATS", "1h"),
    ] {
        let mut command = command(&service.folder, &["demo", "business", "--store", "memory:"]);
        let output = command.env(name, value).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("ONCEWARD_BUSINESS_RETAIN_"), "{said}");
    }
}
