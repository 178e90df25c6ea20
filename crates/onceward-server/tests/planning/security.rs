//! A28: the security categories of the strategy, each a test: isolation of records and jobs,
//! tampered headers, and that a key tells nobody about others. Its other categories have numbers of
//! their own; `docs/planning.md` says where.

use serde_json::json;

use super::world::{ORGANISATION_A, Service, eventually, post};

/// Organisation of demo-b.
const ORGANISATION_B: &str = "22222222-2222-2222-2222-222222222222";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_records_and_jobs_of_two_organisations_never_meet() {
    let service = Service::start("a28_isolation");
    for token in ["demo-a", "demo-b"] {
        let made = post("/v1/projects").by(token).key("one").json(&json!({ "name": "Bridge" }));
        assert!(!made.send(&service).await.must_be(201).is_replay(), "{token}");
    }
    for (ours, theirs) in [(ORGANISATION_A, ORGANISATION_B), (ORGANISATION_B, ORGANISATION_A)] {
        eventually("its jobs are done", async || {
            let records = service.records(ours).await;
            let jobs: Vec<_> = records.iter().filter(|record| record["kind"] == "job").collect();
            !jobs.is_empty() && jobs.iter().all(|job| job["state"] == "done")
        })
        .await;
        let records = service.records(ours).await;
        assert!(records.iter().all(|record| record["tenant"] == ours), "{records:?}");
        let shown = json!(records).to_string();
        assert!(!shown.contains(theirs), "{shown}");
        let requests = records.iter().filter(|record| record["kind"] == "request");
        assert_eq!(requests.filter(|record| record["id"] == "one").count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_tampered_headers_are_refused_or_change_nothing() {
    let service = Service::start("a28_headers");
    let body = json!({ "name": "Bridge" });
    let two_keys = post("/v1/projects").key("a").header("idempotency-key", "b").json(&body);
    two_keys.send(&service).await.refuses(400, "idempotency.key_invalid");
    let unknown = post("/v1/projects").by("demo-a,demo-b").json(&body);
    unknown.send(&service).await.refuses(401, "auth.required");
    // Whose request it is, and whether it is a first one, is not the client's to say.
    let first = post("/v1/projects").key("mine").json(&body);
    let tampered = [
        ("idempotency-replayed", "true"),
        ("onceward-fence", "1"),
        ("onceward-permit", "forged"),
        ("onceward-tenant", ORGANISATION_B),
        ("x-tenant", ORGANISATION_B),
        ("x-organization-id", ORGANISATION_B),
        ("x-actor", "actor-admin"),
    ];
    let sent = tampered.iter().fold(first.clone(), |call, (name, value)| call.header(name, value));
    let made = sent.send(&service).await.must_be(201);
    assert!(!made.is_replay());
    for (name, _) in tampered {
        assert_eq!(made.header(name), "", "{name}");
    }
    let again = first.send(&service).await.must_be(201);
    assert!(again.is_replay() && again.body == made.body, "it was demo-a's");
    assert!(service.records(ORGANISATION_B).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a28_a_key_tells_nobody_whether_others_have_used_it() {
    let service = Service::start("a28_inference");
    let used = post("/v1/projects").key("used").json(&json!({ "name": "Bridge" }));
    used.send(&service).await.must_be(201);
    // Another caller of the organisation, and another organisation: as for a key that nobody had,
    // with the same payload and with another one.
    for (token, name) in [("demo-a2", "Bridge"), ("demo-b", "Bridge"), ("demo-admin", "Tunnel")] {
        let asked =
            |key: &str| post("/v1/projects").by(token).key(key).json(&json!({ "name": name }));
        let there = asked("used").send(&service).await.must_be(201);
        let fresh = asked("fresh").send(&service).await.must_be(201);
        let names = |answer: &super::world::Answer| {
            let mut names: Vec<_> = answer.headers.keys().map(ToString::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(names(&there), names(&fresh), "{token}");
        assert!(!there.is_replay() && there.body.len() == fresh.body.len(), "{token}");
    }
}
