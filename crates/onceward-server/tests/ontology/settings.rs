//! The service's variables: a bad one is named, a weak one shows.

use serde_json::json;

use super::world::{Service, command, create, get, update};

#[test]
fn c11_a_variable_that_makes_no_sense_is_named_and_nothing_starts() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("ontology-variables");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    for (variable, value) in [
        ("EVENT_PUBLISHER_BATCH_SIZE", "many"),
        ("ENABLE_PROCESSED_EVENT_REGISTRY", "perhaps"),
        ("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE", "random"),
        ("PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS", "800"),
    ] {
        let mut command = command(&folder, &["demo", "ontology", "--no-traffic"]);
        let output = command.env(variable, value).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{variable}: {said}");
        assert!(said.contains(variable), "{variable}: {said}");
    }
}

#[test]
fn c11_events_are_put_aside_in_a_folder_or_nothing_starts() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("ontology-aside");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = command(&folder, &["demo", "ontology", "--no-traffic"]);
    command.args(["--store", "memory:", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let variable = "PROCESSED_EVENT_ON_REGISTRY_DOWN";
    let output = command.env(variable, "dead_letter").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(variable) && said.contains("--events"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_a_registry_that_is_switched_off_shows_and_the_views_still_follow() {
    let variables = [("ENABLE_PROCESSED_EVENT_REGISTRY", "false")];
    let service = Service::start_named("ontology", "registry-off", &variables);
    let health = get("/healthz").anonymous().try_send(service.admin).await.unwrap().must_be(200);
    let warnings = health.json()["warnings"].to_string();
    assert!(warnings.contains("ENABLE_PROCESSED_EVENT_REGISTRY"), "{warnings}");
    service.tell(&create("a", "e1", &json!({ "n": 1 }))).await.must_be(201);
    service.tell(&update("a", "e2", 1, &json!({ "n": 2 }))).await.must_be(201);
    assert_eq!(service.instance_at("a", 2).await["n"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_c11_in_warn_mode_another_payload_is_a_no_op_with_a_warning() {
    let variables = [
        ("EVENT_STORE_IDEMPOTENCY_MISMATCH_MODE", "warn"),
        ("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE", "legacy"),
        ("EVENT_STORE_SEQUENCE_SCHEMA", "other"),
    ];
    let service = Service::start_named("ontology", "warn", &variables);
    let first = service.tell(&create("a", "e1", &json!({ "n": 1 }))).await.must_be(201);
    let other = service.tell(&create("a", "e1", &json!({ "n": 2 }))).await.must_be(200);
    assert_eq!(other.body, first.body);
    assert!(other.header("warning").starts_with("299 "), "{other:?}");
    assert_eq!(service.events("a").await[0]["payload"]["n"], 1);
    // The first result names the aggregate that it was about.
    let elsewhere = service.tell(&create("b", "e1", &json!({ "n": 1 }))).await.must_be(200);
    assert_eq!(elsewhere.body, first.body);
    assert!(service.events("b").await.is_empty());
    let health = get("/healthz").anonymous().try_send(service.admin).await.unwrap();
    let warnings = health.json()["warnings"].to_string();
    assert!(warnings.contains("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c11_numbers_are_counted_where_they_were_or_nothing_starts() {
    let mut service = Service::start("space");
    service.tell(&create("a", "e1", &json!({ "n": 1 }))).await.must_be(201);
    assert_eq!(service.terminated(), Some(0));
    for variable in ["EVENT_STORE_SEQUENCE_SCHEMA", "EVENT_STORE_SEQUENCE_HANDLER_PREFIX"] {
        let start = ["demo", "ontology", "--no-traffic", "--listen", "127.0.0.1:0"];
        for arguments in [&start[..], &["streams", "list"]] {
            let output = service.beside(arguments).env(variable, "other").output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success() && said.contains(variable), "{arguments:?}: {said}");
        }
    }
    let service = service.started_again();
    service.tell(&create("a", "e1", &json!({ "n": 1 }))).await.must_be(200);
    service.tell(&update("a", "e2", 1, &json!({ "n": 2 }))).await.must_be(201);
    assert_eq!(service.events("a").await.len(), 2);
}
