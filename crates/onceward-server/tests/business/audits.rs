//! E06: what is swept, refused and run anew is in the audit, by organisation.

use serde_json::{Value, json};

use super::world::{
    ORGANISATION_A, ORGANISATION_B, SHORT, Service, book, eventually, get, hold, link, post,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_ids_travel_from_a_request_to_its_audit_and_jobs() {
    let service = Service::start_with("a25", &[("ONCEWARD_BUSINESS_HOLD_FOR", "1s")]);
    let made = book(&hold("+1", 1)).send(&service).await.must_be(201);
    let made_up = made.header("x-correlation-id").to_string();
    assert!(!made_up.is_empty() && made_up == made.header("x-request-id"), "{made:?}");
    let told = book(&hold("+1", 2)).header("x-correlation-id", "c-1").send(&service).await;
    assert_eq!(told.must_be(201).header("x-correlation-id"), "c-1");
    // A replay tells the original's.
    let again = book(&hold("+1", 2)).header("x-correlation-id", "c-2").send(&service).await;
    assert!(again.is_again() && again.header("x-correlation-id") == "c-1", "{again:?}");
    let seen = get("/bookings/none").header("x-correlation-id", "c-3").send(&service).await;
    assert_eq!(seen.must_be(404).header("x-correlation-id"), "c-3");
    let ids = async |action: &str| -> Vec<Value> {
        let entries = service.entries(ORGANISATION_A, action).await;
        entries.iter().map(|entry| entry["correlation_id"].clone()).collect()
    };
    let expected = [json!(made_up), json!("c-1")];
    assert_eq!(ids("hold.create").await, expected);
    eventually("both holds end, each under the id of its request", async || {
        let ended = ids("hold.expire").await;
        ended.len() == 2 && expected.iter().all(|id| ended.contains(id))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e06_a_sweep_tells_each_organisation_what_it_lost() {
    let service = Service::start_with("e06_sweep", &[("ONCEWARD_BUSINESS_RETAIN_HOLDS", SHORT)]);
    for (token, hours) in [("demo-a", 2), ("demo-b", 1)] {
        for hour in 0..hours {
            book(&hold("+1", hour)).by(token).send(&service).await.must_be(201);
        }
    }
    // One that stays, and one of an organisation that loses nothing.
    post("/payments/link").json(&link(5)).send(&service).await.must_be(201);
    let lost = async |tenant: &str| -> u64 {
        let entries = service.entries(tenant, "sweep").await;
        let detail = |entry: &Value| -> Value {
            serde_json::from_str(entry["detail"].as_str().unwrap()).unwrap()
        };
        let each = entries.iter().map(|entry| detail(entry)["expired"].as_u64().unwrap());
        let each: Vec<u64> = each.collect();
        assert!(each.iter().all(|count| *count > 0), "an entry only for who lost something");
        each.iter().sum()
    };
    eventually("all three are swept, and each organisation is told of its own", async || {
        service.operate("POST", "/v1/sweep").await.must_be(200);
        (lost(ORGANISATION_A).await, lost(ORGANISATION_B).await) == (2, 1)
    })
    .await;
    let all = service.operate("GET", "/v1/audit?action=sweep&limit=1000").await.items();
    let tenants: std::collections::BTreeSet<_> =
        all.iter().map(|entry| entry["tenant"].as_str().unwrap()).collect();
    assert_eq!(tenants, [ORGANISATION_A, ORGANISATION_B].into());
    assert!(service.metric("onceward_sweeps_total").await >= 1.0);
    assert_eq!(service.metric("onceward_swept_total{what=\"expired\"}").await, 3.0);
    assert_eq!(service.metric("onceward_sweep_errors_total").await, 0.0);
    // What was swept is gone from the store, its payload with it.
    let states: Vec<_> = service
        .requests(ORGANISATION_A)
        .await
        .iter()
        .map(|record| record["state"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(states, ["expired", "expired", "done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e06_conflicts_and_replays_are_audited_with_what_they_point_at() {
    let service = Service::start("e06_conflict");
    let sent = async |amount, request: &'static str| {
        let call = post("/payments/link").key("k").json(&link(amount));
        call.header("x-request-id", request).send(&service).await
    };
    sent(5, "first").await.must_be(201);
    sent(5, "second").await.must_be(201);
    sent(6, "third").await.must_be(409);
    for (action, request) in [("idempotency_conflict", "third"), ("audit.replay", "second")] {
        eventually(action, async || !service.entries(ORGANISATION_A, action).await.is_empty())
            .await;
        let entries = service.entries(ORGANISATION_A, action).await;
        assert_eq!(entries.len(), 1, "{entries:?}");
        let entry = &entries[0];
        assert_eq!(
            (&entry["subject"], &entry["actor"]),
            (&json!("POST /payments/link"), &json!("actor-a"))
        );
        assert_eq!(entry["request_id"], request);
        let detail: Value = serde_json::from_str(entry["detail"].as_str().unwrap()).unwrap();
        assert_eq!(detail["request_id"], "first", "the original");
        assert!(!entries[0].to_string().contains("\"k\""), "A27: never the key");
    }
}
