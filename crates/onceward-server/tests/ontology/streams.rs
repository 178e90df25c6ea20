//! `onceward streams`: looks at a store's events, beside a running service.

use serde_json::{Value, json};

use super::world::{ORGANISATION_A, Service, command, create, is_shared, update};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_listed_shown_and_tailed_beside_a_running_service() {
    let service = Service::start("streams");
    service.tell(&create("a", "e1", &json!({ "n": 1 }))).await.must_be(201);
    service.tell(&update("a", "e2", 1, &json!({ "n": 2 }))).await.must_be(201);
    service.tell(&create("b", "e3", &json!({ "n": 3 }))).await.must_be(201);
    let run = |arguments: &[&str]| {
        let mut command = command(&service.folder, arguments);
        let output = command.args(["--store", service.store_url()]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        text
    };
    let listed = run(&["streams", "list", "--tenant", ORGANISATION_A, "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let expected = json!([
        { "aggregate_id": "a", "sequence_number": 2 },
        { "aggregate_id": "b", "sequence_number": 1 },
    ]);
    assert_eq!(listed["items"], expected);
    let page = run(&["streams", "list", "--tenant", ORGANISATION_A, "--limit", "1"]);
    assert!(page.contains("--after 'a'"), "{page}");
    let shown = run(&["streams", "show", "a", "--tenant", ORGANISATION_A, "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["items"][1]["payload"], json!({ "n": 2 }));
    assert_eq!(shown["items"][1]["sequence_number"], 2);
    let tail = run(&["streams", "tail", "--last", "2", "--json"]);
    let ids: Vec<Value> = tail
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event_id"].clone())
        .collect();
    assert_eq!(ids, ["e2", "e3"]);
    if !is_shared() {
        let mut nowhere = command(&service.folder, &["streams", "tail", "--events", "no/such"]);
        let output = nowhere.args(["--store", service.store_url()]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
}
