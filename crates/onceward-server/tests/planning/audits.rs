//! Ids end to end (A25), audit entries (A26, B09), logs (A27), and the order of an outbox (A03).

use serde_json::{Value, json};

use super::world::{ORGANISATION_A, Service, eventually, get, is_shared, patch, post};

/// Audit entries, as an admin finds them.
pub(crate) async fn entries(service: &Service, by: &str, value: &str) -> Vec<Value> {
    let path = format!("/v1/audit?limit=1000&{by}={value}");
    get(&path).by("demo-admin").send(service).await.must_be(200).items()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a25_ids_travel_from_the_request_to_its_audit_and_jobs() {
    let service = Service::start("a25");
    let made = post("/v1/projects").json(&json!({ "name": "Bridge" }));
    let made = made.header("x-request-id", "r-1").header("x-correlation-id", "c-1");
    let made = made.send(&service).await.must_be(201);
    assert_eq!((made.header("x-request-id"), made.header("x-correlation-id")), ("r-1", "c-1"));
    let ours = |entry: &Value| entry["request_id"] == "r-1" && entry["correlation_id"] == "c-1";
    let all = entries(&service, "from", "0").await;
    for action in ["project.create", "request.done", "job.enqueued"] {
        let found = all.iter().find(|entry| entry["action"] == action).unwrap();
        assert!(ours(found), "{found}");
    }
    eventually("a notification with the correlation id", async || {
        let told = get("/v1/notifications").send(&service).await.items();
        told.iter()
            .any(|told| told["correlation_id"] == "c-1" && told["action"] == "project.create")
    })
    .await;
    // Without any, both are made.
    let made = service.project().await;
    assert!(!made.header("x-request-id").is_empty());
    assert_eq!(made.header("x-correlation-id"), made.header("x-request-id"));
    let read = get("/v1/projects").header("x-request-id", "r-2").send(&service).await;
    assert_eq!(read.header("x-request-id"), "r-2");
    let refused = post("/v1/projects").keyless().header("x-request-id", "r-3").send(&service).await;
    assert_eq!(
        (refused.header("x-request-id"), &refused.json()["instance"]),
        ("r-3", &json!("urn:request:r-3"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_b09_a_first_execution_is_audited_and_a_replay_leaves_a_marker() {
    let service = Service::start("a26");
    let mission = service.mission().await;
    let path = format!("/v1/missions/{}", mission.id());
    let change = || patch(&path).key("the-key").seen("\"1\"").json(&json!({ "title": "Boat" }));
    change().send(&service).await.must_be(200);
    let found = entries(&service, "key", "the-key").await;
    let actions: Vec<&str> = found.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions.len(), 2, "{found:?}");
    assert!(actions.contains(&"mission.update") && actions.contains(&"request.done"));
    let own = found.iter().find(|entry| entry["action"] == "mission.update").unwrap();
    assert_eq!(own["subject"], format!("mission/{}", mission.id()));
    assert_eq!(
        (&own["actor"], &own["endpoint"]),
        (&json!("actor-a"), &json!("PATCH /v1/missions/{id}"))
    );
    assert_eq!((&own["prior_revision"], &own["new_revision"]), (&json!("1"), &json!("2")), "B09");
    assert_eq!(own["version"], 2);
    for member in ["id", "at", "payload_hash", "request_id", "correlation_id"] {
        assert!(!own[member].is_null(), "{member}");
    }
    let named = format!("mission/{}@2", mission.id());
    let jobs = service.records(ORGANISATION_A).await;
    let jobs = jobs.iter().filter(|job| job["kind"] == "job" && job["id"] == named.as_str());
    assert_eq!(jobs.count(), 2, "a notification and an index, of resource and version");
    let told = entries(&service, "action", "job.enqueued").await;
    let told = told.iter().filter(|entry| entry["detail"] == named.as_str());
    for job in told.clone() {
        assert_eq!(job["endpoint"], "PATCH /v1/missions/{id}");
        assert_eq!((&job["version"], &job["actor"]), (&json!(2), &json!("actor-a")));
    }
    assert_eq!(told.count(), 2, "each scheduled job is in the audit");
    // A replay writes nothing but its marker.
    let before = entries(&service, "subject", &mission.id()).await.len();
    assert!(change().header("x-request-id", "r-again").send(&service).await.is_replay());
    eventually("the replay is in the audit", async || {
        let found = entries(&service, "action", "audit.replay").await;
        found.len() == 1 && found[0]["request_id"] == "r-again"
    })
    .await;
    assert_eq!(entries(&service, "subject", &mission.id()).await.len(), before);
    let replay = &entries(&service, "action", "audit.replay").await[0];
    let original = found.iter().find(|entry| entry["action"] == "request.done").unwrap();
    assert!(replay["detail"].to_string().contains(&original["id"].to_string()), "{replay}");
    assert_eq!(replay["key_hash"], original["key_hash"]);
    let everything = entries(&service, "from", "0").await;
    assert!(!json!(everything).to_string().contains("the-key"), "A27: never a raw key");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_the_audit_is_searched_paged_and_exported() {
    let service = Service::start("a26_export");
    let project = service.project().await;
    let path = format!("/v1/projects/{}", project.id());
    patch(&path)
        .seen("\"1\"")
        .json(&json!({ "name": "a, \"b\"" }))
        .send(&service)
        .await
        .must_be(200);
    let updates = entries(&service, "action", "project.update").await;
    assert_eq!(updates.len(), 1);
    let id = updates[0]["id"].as_u64().unwrap();
    let at = updates[0]["at"].as_str().unwrap().to_string();
    let since = entries(&service, "action=project.update&from", &at).await;
    assert_eq!((since.len(), entries(&service, "to", "1").await.len()), (1, 0));
    let subject = format!("project/{}", project.id());
    assert_eq!(entries(&service, "subject", &subject).await.len(), 2);
    let ids = |entries: &[Value]| entries.iter().map(|e| e["id"].clone()).collect::<Vec<_>>();
    // Jobs add their own meanwhile.
    let before = ids(&entries(&service, "from", "0").await);
    let mut paged = Vec::new();
    let mut asked = "/v1/audit?limit=2".to_string();
    loop {
        let page = get(&asked).by("demo-admin").send(&service).await;
        paged.extend(page.items());
        assert!(page.items().len() <= 2);
        let next = page.json()["next"].clone();
        let Some(next) = next.as_str() else { break };
        asked = format!("/v1/audit?limit=2&after={next}");
    }
    let (paged, after) = (ids(&paged), ids(&entries(&service, "from", "0").await));
    assert!(paged.starts_with(&before) && after.starts_with(&paged), "{before:?} {paged:?}");
    let export = async |format: &str| {
        let path = format!("/v1/audit?subject={subject}&format={format}");
        let answer = get(&path).by("demo-admin").send(&service).await.must_be(200);
        (
            answer.header("content-type").to_string(),
            String::from_utf8(answer.body.to_vec()).unwrap(),
        )
    };
    let (media_type, ndjson) = export("ndjson").await;
    assert_eq!((media_type.as_str(), ndjson.lines().count()), ("application/x-ndjson", 2));
    let last: Value = serde_json::from_str(ndjson.lines().last().unwrap()).unwrap();
    assert_eq!(last["id"], id);
    let (media_type, csv) = export("csv").await;
    assert!(media_type.starts_with("text/csv"));
    let lines: Vec<&str> = csv.split("\r\n").collect();
    assert!(lines[0].starts_with("id,at,action,subject,actor,endpoint,payload_hash,version,"));
    assert!(lines[2].starts_with(&format!("{id},{at},project.update,{subject},actor-a,")), "{csv}");
    for bad in ["format=xml", "from=soon", "limit=0", "limit=1001", "after=zz"] {
        let refused = get(&format!("/v1/audit?{bad}")).by("demo-admin").send(&service).await;
        refused.refuses(400, "request.malformed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a03_a_job_names_its_own_organisation() {
    let service = Service::start("a03");
    service.project().await;
    post("/v1/projects")
        .by("demo-b")
        .json(&json!({ "name": "Theirs" }))
        .send(&service)
        .await
        .must_be(201);
    let records = service.records(ORGANISATION_A).await;
    assert!(records.iter().any(|record| record["kind"] == "job"));
    assert!(records.iter().all(|record| record["tenant"] == ORGANISATION_A));
    eventually("each is told of its own", async || {
        let told = async |token| get("/v1/notifications").by(token).send(&service).await.items();
        told("demo-a").await.len() == 1 && told("demo-b").await.len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_logs_carry_a_truncated_hash_and_never_the_key_or_a_body() {
    let service = Service::start("a27");
    let made = post("/v1/projects").key("raw-key-of-a27").json(&json!({ "name": "Secretive" }));
    made.send(&service).await.must_be(201);
    eventually("a line of the log", async || service.said().contains("POST /v1/projects")).await;
    let said = service.said();
    let line = said.lines().find(|line| line.contains("POST /v1/projects")).unwrap();
    assert!(line.contains(ORGANISATION_A) && line.contains("201"), "{line}");
    for secret in ["raw-key-of-a27", "Secretive", "demo-a\""] {
        assert!(!said.contains(secret), "{secret} in {said}");
    }
    let metrics = service.operate("GET", "/metrics").await.must_be(200);
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    assert!(metrics.contains("endpoint=\"POST /v1/projects\""), "{metrics}");
    assert!(!metrics.contains("raw-key-of-a27") && !metrics.contains(ORGANISATION_A));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_a_key_in_quotes_is_the_same_key() {
    let service = Service::start("a26_quoted");
    let make = post("/v1/projects").key("\"k-1\"");
    make.json(&json!({ "name": "Bridge" })).send(&service).await.must_be(201);
    let plain = entries(&service, "key", "k-1").await;
    assert!(!plain.is_empty());
    assert_eq!(entries(&service, "key", "%22k-1%22").await, plain);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_last_is_sealed_when_the_demo_ends() {
    let mut service = Service::start("last-seals");
    let make = || post("/v1/projects").key("k").json(&json!({ "name": "Bridge" }));
    make().send(&service).await.must_be(201);
    assert!(make().send(&service).await.is_replay(), "and its entry waits in memory");
    assert_eq!(service.terminated(), Some(0));
    let verified = service.beside(&["audit", "verify", "--json"]).output().unwrap();
    assert_eq!(verified.status.code(), Some(0));
    let verified: Value = serde_json::from_slice(&verified.stdout).unwrap();
    // On a server that others use too, what they are in the middle of holds seals up.
    if !is_shared() {
        assert!(verified["sealed"].as_u64().unwrap() > 0, "{verified}");
        assert_eq!(verified["unsealed"], 0, "{verified}");
    }
}
