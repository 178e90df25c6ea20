//! Idempotency keys: A01, A04 to A09, A12, A15 and B04, B05 as a client sees them.

use serde_json::json;

use super::world::{ORGANISATION_A, Service, call, get, patch, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a01_nothing_crosses_organisations() {
    let service = Service::start("a01");
    let body = json!({ "name": "Bridge" });
    let ours = post("/v1/projects").key("shared").json(&body).send(&service).await.must_be(201);
    let theirs = post("/v1/projects").by("demo-b").key("shared").json(&body);
    let theirs = theirs.send(&service).await.must_be(201);
    assert!(!theirs.is_replay() && theirs.id() != ours.id(), "the same key, another organisation");
    let path = format!("/v1/projects/{}", ours.id());
    for (method, path) in [
        ("GET", path.clone()),
        ("PATCH", path.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/archive")),
        ("POST", format!("{path}/missions")),
        ("GET", format!("{path}/missions")),
        ("GET", format!("{path}/summary")),
    ] {
        let asked = call(method, &path).by("demo-b").seen("\"1\"").json(&json!({ "name": "x" }));
        assert_eq!(asked.send(&service).await.problem().0, 404, "{method} {path}");
    }
    let listed = get("/v1/projects").by("demo-b").send(&service).await.items();
    assert_eq!(listed.len(), 1);
    let changed = get(&path).send(&service).await;
    assert_eq!(changed.json(), ours.json(), "nobody touched it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a04_reads_write_nothing() {
    let service = Service::start("a04");
    let project = service.project().await.id();
    let path = format!("/v1/projects/{project}");
    service
        .summary_becomes(&project, &json!({ "missions": 0, "assignments": 0, "by_state": {} }))
        .await;
    let settled = async || {
        let records = service.records(ORGANISATION_A).await;
        records.iter().all(|record| record["state"] == "done").then_some(records.len())
    };
    super::world::eventually("jobs are done", async || settled().await.is_some()).await;
    let before = settled().await;
    let audited =
        async || get("/v1/audit?limit=1000").by("demo-admin").send(&service).await.items().len();
    let entries = audited().await;
    for asked in [&path, "/v1/projects", "/v1/organization", "/v1/notifications", "/v1/search?q=b"]
    {
        get(asked).key("a-key").send(&service).await.must_be(200);
        let head = call("HEAD", asked).key("a-key").send(&service).await.must_be(200);
        assert!(head.body.is_empty() && !head.etag().is_empty(), "HEAD {asked}");
    }
    assert_eq!((settled().await, audited().await), (before, entries));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a05_a_write_needs_a_key_of_1_to_128_visible_characters() {
    let service = Service::start("a05");
    let body = json!({ "name": "Bridge" });
    let project = service.project().await.id();
    let path = format!("/v1/projects/{project}");
    for (method, path) in [
        ("POST", "/v1/projects".to_string()),
        ("PATCH", path.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/archive")),
        ("PUT", "/v1/missions/7".to_string()),
    ] {
        let asked = call(method, &path).keyless().seen("\"1\"").json(&body);
        asked.send(&service).await.refuses(400, "idempotency.key_required");
    }
    let long = "x".repeat(129);
    for bad in ["", "two words", &long, "\"unclosed", "caf\u{e9}"] {
        let answer = post("/v1/projects").key(bad).json(&body).send(&service).await;
        answer.refuses(400, "idempotency.key_invalid");
        assert_eq!(answer.json()["alias"], "planning.idempotency_key_invalid");
    }
    let twice = post("/v1/projects").key("one").header("idempotency-key", "two").json(&body);
    twice.send(&service).await.refuses(400, "idempotency.key_invalid");
    let longest = "x".repeat(128);
    post("/v1/projects").key(&longest).json(&body).send(&service).await.must_be(201);
    assert_eq!(get("/v1/projects").send(&service).await.items().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a06_b05_a_key_is_its_callers_endpoints_and_paths_own() {
    let service = Service::start("a06");
    let body = json!({ "name": "Bridge" });
    let one = post("/v1/projects").key("k").json(&body).send(&service).await.must_be(201);
    let other = post("/v1/projects").by("demo-a2").key("k").json(&body);
    let other = other.send(&service).await.must_be(201);
    assert!(!other.is_replay() && other.id() != one.id(), "B05: another caller");
    for project in [&one, &other] {
        let path = format!("/v1/projects/{}/archive", project.id());
        let archived = post(&path).key("k").seen("\"1\"").send(&service).await.must_be(200);
        assert!(!archived.is_replay(), "another endpoint and another path");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a07_spelling_does_not_matter() {
    let service = Service::start("a07");
    let spellings = [
        r#"{"name":"Bridge","budget":{"a":1,"b":20}}"#,
        r#" { "budget" : { "b" : 2e1, "a" : 1.0 } , "name" : "Bri\u0064ge" } "#,
    ];
    let first = post("/v1/projects").key("k").raw(spellings[0]).send(&service).await.must_be(201);
    let again = post("/v1/projects").key("k").raw(spellings[1]).send(&service).await.must_be(201);
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);
    let twice = post("/v1/projects").raw(r#"{"name":"a","name":"b"}"#).send(&service).await;
    twice.refuses(400, "body.not_canonical");
    post("/v1/projects").raw("{nothing").send(&service).await.refuses(400, "request.malformed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a08_a_replay_is_the_first_answer_byte_for_byte() {
    let service = Service::start("a08");
    let made = || post("/v1/projects").key("\"k\"").json(&json!({ "name": "Bridge" }));
    let first = made().header("x-correlation-id", "c-1").send(&service).await.must_be(201);
    let later = made().key("k").header("x-correlation-id", "c-2").header("x-request-id", "r-2");
    let again = later.send(&service).await;
    assert!(again.is_replay() && !first.is_replay());
    assert_eq!((again.status, &again.body), (201, &first.body));
    for name in ["content-type", "etag", "location"] {
        assert_eq!(again.header(name), first.header(name), "{name}");
        assert!(!first.header(name).is_empty(), "{name}");
    }
    assert_eq!((again.header("x-correlation-id"), again.header("x-request-id")), ("c-1", "r-2"));
    assert_eq!(get("/v1/projects").send(&service).await.items().len(), 1);
    let forged = made().key("forged").header("idempotency-replayed", "true").send(&service).await;
    assert!(!forged.is_replay(), "a client's own mark is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a09_another_payload_is_409_and_changes_nothing() {
    let service = Service::start("a09");
    let made = |name: &str| post("/v1/projects").key("k").json(&json!({ "name": name }));
    let first = made("Bridge").send(&service).await.must_be(201);
    let other = made("Tunnel").send(&service).await;
    other.refuses(409, "idempotency.payload_mismatch");
    let problem = other.json();
    assert_eq!(problem["alias"], "planning.idempotency_replay_conflict");
    assert_eq!(
        (&problem["differs"], &problem["key_advice"]),
        (&json!(["/name"]), &json!("rotate"))
    );
    assert_eq!(made("Bridge").send(&service).await.body, first.body);
    assert_eq!(get("/v1/projects").send(&service).await.items().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a12_successes_are_kept_a_day_and_errors_four_hours_and_a_sweep_harms_nothing() {
    let service = Service::start("a12");
    let document = get("/.well-known/idempotency-policy").send(&service).await.json();
    let routes = document["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 20);
    for route in routes {
        let retention = &route["retention"];
        assert_eq!(
            (&retention["success_s"], &retention["error_s"]),
            (&json!(86_400), &json!(14_400))
        );
        assert_eq!(route["key"]["missing"], "require");
    }
    let made = || post("/v1/projects").key("k").json(&json!({ "name": "Bridge" }));
    made().send(&service).await.must_be(201);
    let (one, two) =
        tokio::join!(service.operate("POST", "/v1/sweep"), service.operate("POST", "/v1/sweep"));
    assert_eq!((one.status, two.status), (200, 200), "{one:?}");
    assert!(made().send(&service).await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b04_what_was_refused_is_refused_the_same_way_again() {
    let service = Service::start("b04");
    let invalid = || post("/v1/projects").key("invalid").json(&json!({ "name": "" }));
    let first = invalid().send(&service).await;
    first.refuses(422, "planning.validation_failed");
    let errors =
        json!([{ "pointer": "/name", "message": "must be a text of 1 to 200 characters" }]);
    assert_eq!(first.json()["errors"], errors);
    let project = service.project().await;
    let path = format!("/v1/projects/{}", project.id());
    let change =
        |key: &str| patch(&path).key(key).seen("\"1\"").json(&json!({ "name": "Long bridge" }));
    change("won").send(&service).await.must_be(200);
    let lost = change("lost").send(&service).await;
    lost.refuses(412, "planning.concurrency_mismatch");
    assert_eq!(lost.json()["current_revision"], "2");
    // The world moves on; the answers stay.
    let renamed = patch(&path).seen("\"2\"").json(&json!({ "name": "Bridge" }));
    renamed.send(&service).await.must_be(200);
    for (again, first) in [(invalid(), &first), (change("lost"), &lost)] {
        let again = again.send(&service).await;
        assert!(again.is_replay(), "{again:?}");
        assert_eq!((again.status, &again.body), (first.status, &first.body));
    }
    // Not every refusal is one for good: nothing is kept of these.
    let unseen = || patch(&path).key("unseen").json(&json!({ "name": "x" }));
    unseen().send(&service).await.refuses(428, "planning.concurrency_etag_required");
    unseen().seen("\"3\"").send(&service).await.must_be(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a06_another_spelling_of_a_path_is_the_same_address() {
    let service = Service::start("a06_spelled");
    let make = |path: &str| post(path).key("k").json(&json!({ "name": "Bridge" }));
    let first = make("/v1/%70rojects").send(&service).await.must_be(201);
    let again = make("/v1/projects").send(&service).await;
    assert!(again.is_replay() && again.body == first.body, "{again:?}");
    let read = get(&format!("/v1/project%73/{}", first.id())).send(&service).await.must_be(200);
    assert_eq!(read.json(), first.json());
    // A slash that is part of a value stays one: there is no such project, and no such address.
    get(&format!("/v1/projects/{}%2Fmissions", first.id())).send(&service).await.must_be(404);
    get(&format!("/v1/projects%2F{}", first.id())).send(&service).await.must_be(404);
}
