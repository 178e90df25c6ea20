//! `onceward streams`: looks at a store's events, beside a running service.

use serde_json::{Value, json};

use super::world::{ORGANISATION_A, Service, command, create, is_shared, send, update};

/// Organisation of demo-b.
const ORGANISATION_B: &str = "22222222-2222-2222-2222-222222222222";

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
        { "tenant": ORGANISATION_A, "aggregate_id": "a", "sequence_number": 2 },
        { "tenant": ORGANISATION_A, "aggregate_id": "b", "sequence_number": 1 },
    ]);
    assert_eq!(listed["items"], expected);
    // Without a tenant: everybody's, and the aggregate of whoever has it.
    send(&create("b", "e4", &json!({}))).by("demo-b").send(&service).await.must_be(201);
    let all: Value = serde_json::from_str(&run(&["streams", "list", "--json"])).unwrap();
    let tenants: Vec<_> = all["items"].as_array().unwrap().iter().map(|i| &i["tenant"]).collect();
    assert_eq!(tenants, [ORGANISATION_A, ORGANISATION_A, ORGANISATION_B]);
    let shown: Value = serde_json::from_str(&run(&["streams", "show", "a", "--json"])).unwrap();
    assert_eq!(shown["items"].as_array().unwrap().len(), 2);
    let mut both = command(&service.folder, &["streams", "show", "b"]);
    let both = both.args(["--store", service.store_url()]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{both:?}");
    assert!(String::from_utf8_lossy(&both.stderr).contains("--tenant"), "{both:?}");
    let page = run(&["streams", "list", "--tenant", ORGANISATION_A, "--limit", "1"]);
    assert!(page.contains("--after 'a'"), "{page}");
    let shown = run(&["streams", "show", "a", "--tenant", ORGANISATION_A, "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["items"][1]["payload"], json!({ "n": 2 }));
    assert_eq!(shown["items"][1]["sequence_number"], 2);
    // A page says that there is more, and how to go on.
    let of_a = ["streams", "show", "a", "--tenant", ORGANISATION_A];
    let page = run(&[&of_a[..], &["--limit", "1"]].concat());
    assert!(page.contains("There are more: go on with --after 1\n"), "{page}");
    let page = |more: &[&str]| -> Value {
        serde_json::from_str(&run(&[&of_a[..], &["--json"], more].concat())).unwrap()
    };
    let first = page(&["--limit", "1"]);
    assert_eq!((&first["items"][0]["event_id"], &first["next"]), (&json!("e1"), &json!("1")));
    let second = page(&["--limit", "1", "--after", "1"]);
    assert_eq!((&second["items"][0]["event_id"], &second["next"]), (&json!("e2"), &Value::Null));
    let mut nobody = command(&service.folder, &["streams", "show", "a", "--tenant", ""]);
    let nobody = nobody.args(["--store", service.store_url()]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2), "{nobody:?}");
    let tail = run(&["streams", "tail", "--last", "2", "--json"]);
    let ids: Vec<Value> = tail
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event_id"].clone())
        .collect();
    assert_eq!(ids, ["e3", "e4"]);
    if !is_shared() {
        let mut nowhere = command(&service.folder, &["streams", "tail", "--events", "no/such"]);
        let output = nowhere.args(["--store", service.store_url()]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
}
