//! E07: what is counted, and the three questions, on whatever store the run is.

use serde_json::{Value, json};

use super::world::{ORGANISATION_A, ORGANISATION_B, Service, book, command, hold, link, post, put};

/// Three holds of A (one replayed), one of B, a customer, a conflict, a bad key.
async fn traffic(service: &Service) {
    for hour in [1, 2, 3, 3] {
        book(&hold("+1", hour)).send(service).await.must_be(201);
    }
    book(&hold("+1", 1)).by("demo-b").send(service).await.must_be(201);
    put("/customers/c1").json(&json!({ "name": "Ada" })).send(service).await.must_be(201);
    for amount in [5, 6, 7] {
        post("/payments/link").key("k").json(&link(amount)).send(service).await;
    }
    post("/payments/link").key("a b").json(&link(1)).send(service).await.must_be(400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e07_everything_that_the_seed_counts_is_counted() {
    let service = Service::start("e07_metrics");
    traffic(&service).await;
    service.operate("POST", "/v1/sweep").await.must_be(200);
    let hold = "endpoint=\"POST /bookings/hold\"";
    let link = "endpoint=\"POST /payments/link\"";
    let requests = format!("onceward_requests_total{{{hold},verdict=\"run\",status=\"201\"}}");
    assert_eq!(service.metric(&requests).await, 4.0);
    assert_eq!(service.metric(&format!("onceward_replays_total{{{hold}}}")).await, 1.0);
    assert_eq!(service.metric(&format!("onceward_conflicts_total{{{link}}}")).await, 2.0);
    assert_eq!(service.metric(&format!("onceward_key_errors_total{{{link}}}")).await, 1.0);
    // The service's own worker has swept too, if it was quick.
    assert!(service.metric("onceward_sweeps_total").await >= 1.0);
    let (hits, misses) = ("onceward_cache_hits_total", "onceward_cache_misses_total");
    let looked = service.metric(hits).await + service.metric(misses).await;
    assert_eq!(looked, 9.0, "each request that has a key is looked for");
    let text = service.operate("GET", "/metrics").await.body;
    let text = String::from_utf8(text.to_vec()).unwrap();
    for operation in ["load", "commit", "list"] {
        let label = format!("operation=\"{operation}\"");
        let count = text.lines().find(|line| {
            line.starts_with("onceward_store_seconds_count{") && line.contains(&label)
        });
        let count: f64 = count.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!(count > 0.0, "{operation}");
    }
    for name in ["expired", "store_errors", "sweep_errors"] {
        assert!(text.contains(&format!("# TYPE onceward_{name} counter")), "{name}");
    }
    assert!(!text.contains("11111111"), "A27: no tenant unless asked for");
}

/// What a report prints as JSON, asked for in this way.
fn report(service: &Service, question: &str, way: &[&str]) -> Value {
    let mut arguments = vec!["report", question, "--json"];
    arguments.extend(way);
    let output = command(&service.folder, &arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e07_the_three_questions_are_answered_directly_and_through_a_server() {
    let service = Service::start("e07_reports");
    traffic(&service).await;
    super::world::eventually("the audit has the conflicts", async || {
        service.entries(ORGANISATION_A, "idempotency_conflict").await.len() == 2
    })
    .await;
    let server = format!("http://{}", service.admin);
    let store = service.store_url().to_string();
    for way in [&["--store", &store][..], &["--server", &server, "--token", "demo-operator"]] {
        let usage = report(&service, "usage", way);
        let row = |tenant: &str, route: &str| {
            let items = usage["items"].as_array().unwrap();
            let fits =
                |item: &&Value| item["tenant_id"] == tenant && item["route_pattern"] == route;
            items.iter().find(fits).cloned().unwrap_or_default()
        };
        let held = row(ORGANISATION_A, "POST /bookings/hold");
        assert_eq!((&held["total_keys"], &held["completed"]), (&json!(3), &json!(3)), "{usage}");
        assert!(held["avg_processing_time"].is_number());
        assert_eq!(row(ORGANISATION_B, "POST /bookings/hold")["total_keys"], 1);
        assert_eq!(row(ORGANISATION_A, "PUT /customers/{id}")["total_keys"], 1);
        assert_eq!(usage["items"][0], held, "the most used first");
        assert_eq!((&usage["report"], &usage["truncated"]), (&json!("usage"), &json!(false)));
        let conflicts = report(&service, "conflicts", way);
        let hours = conflicts["items"].as_array().unwrap();
        let counted: u64 = hours.iter().map(|hour| hour["conflicts"].as_u64().unwrap()).sum();
        assert_eq!(counted, 2, "{conflicts}");
        assert!(hours[0]["hour"].as_str().unwrap().ends_with(":00:00.000Z"), "{conflicts}");
        let retention = report(&service, "retention", way);
        let items = retention["items"].as_array().unwrap();
        let held =
            items.iter().find(|item| item["route_pattern"] == "POST /bookings/hold").unwrap();
        assert_eq!(
            held,
            &json!({
                "route_pattern": "POST /bookings/hold", "total_keys": 4, "expired": 0,
                "avg_ttl_seconds": 1800.0,
            })
        );
        let mut one = way.to_vec();
        one.extend(["--tenant", ORGANISATION_B]);
        let theirs = report(&service, "usage", &one);
        assert_eq!(theirs["items"].as_array().unwrap().len(), 1, "{theirs}");
        let mut asked = command(&service.folder, &[&["report", "retention"][..], way].concat());
        let shown = asked.output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("KEPT FOR") && shown.contains("30 min"), "{shown}");
    }
    // A tenant's own token, and what is not a report.
    service.operate("GET", "/v1/reports/weather").await.must_be(404);
    let bad = service.operate("GET", "/v1/reports/usage?since=yesterday").await;
    assert_eq!(bad.must_be(400).json()["errors"][0]["pointer"], "/since");
}
