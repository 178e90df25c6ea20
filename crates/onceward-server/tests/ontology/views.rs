//! What workers make of events: instances, classes, the search.

use std::path::Path;

use serde_json::json;

use super::world::{Service, create, delete, encoded, eventually, get, post, update};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c01_c09_instances_follow_their_events() {
    let service = Service::start("c09");
    service.tell(&create("bike", "e1", &json!({ "name": "Red", "gears": 3 }))).await.must_be(201);
    let expected = json!({ "id": "bike", "sequence_number": 1, "name": "Red", "gears": 3 });
    assert_eq!(service.instance_at("bike", 1).await, expected);
    service.tell(&update("bike", "e2", 1, &json!({ "gears": 7 }))).await.must_be(201);
    let expected = json!({ "id": "bike", "sequence_number": 2, "name": "Red", "gears": 7 });
    assert_eq!(service.instance_at("bike", 2).await, expected);
    // The same command again has no second effect.
    service.tell(&update("bike", "e2", 1, &json!({ "gears": 7 }))).await.must_be(200);
    service.tell(&delete("bike", "e3", 2)).await.must_be(201);
    eventually("the instance is gone", async || {
        get("/v1/instances/bike").send(&service).await.status == 404
    })
    .await;
    get("/v1/instances/bike").send(&service).await.refuses(404, "events.not_found");
    assert_eq!(service.events("bike").await.len(), 3, "its events stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_numbers_of_an_instance_are_exactly_those_of_its_events() {
    let service = Service::start("c09_numbers");
    let create =
        r#"{"event_id":"e1","aggregate_id":"n","kind":"create","payload":{"a":{"b":1.50}}}"#;
    post("/v1/commands").keyless().raw(create).send(&service).await.must_be(201);
    let update = r#"{"event_id":"e2","aggregate_id":"n","kind":"update","expected_seq":1,
        "payload":{"a":{"c":1180591620717411303424},"d":0.12345678901234567890123,
        "e":[1.0,1E3,-0,5e-324,18446744073709551616,-9223372036854775809]}}"#;
    post("/v1/commands").keyless().raw(update).send(&service).await.must_be(201);
    service.instance_at("n", 2).await;
    let shown = get("/v1/instances/n").send(&service).await.must_be(200);
    let text = String::from_utf8(shown.body.to_vec()).unwrap();
    let members = r#""a":{"b":1.50,"c":1180591620717411303424},"d":0.12345678901234567890123"#;
    assert!(text.contains(members), "{text}");
    let spelled = r#""e":[1.0,1E3,-0,5e-324,18446744073709551616,-9223372036854775809]"#;
    let events = get("/v1/aggregates/n/events").send(&service).await.must_be(200);
    for shown in [shown.body, events.body] {
        let text = String::from_utf8(shown.to_vec()).unwrap();
        assert!(text.contains(spelled), "{text}");
    }
    let beyond = update.replace("\"e2\"", "\"e3\"").replace("1.0,", "1e400,");
    post("/v1/commands").keyless().raw(&beyond).send(&service).await.must_be(400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_the_search_finds_words_by_their_beginning() {
    let service = Service::start("search");
    for (id, name) in [("b1", "Red racing bike"), ("b2", "Blue bike"), ("b3", "Redwood table")] {
        service.tell(&create(id, id, &json!({ "name": name }))).await.must_be(201);
    }
    eventually("all are found", async || {
        service.found("red").await.len() == 2 && service.found("bik").await.len() == 2
    })
    .await;
    assert_eq!(service.found("RED bik").await, [json!({ "id": "b1", "sequence_number": 1 })]);
    assert!(service.found("ed").await.is_empty());
    assert!(service.found("").await.is_empty());
    service
        .tell(&update("b1", "u1", 1, &json!({ "name": "Green racing bike" })))
        .await
        .must_be(201);
    eventually("the update is found", async || {
        service.found("green").await == [json!({ "id": "b1", "sequence_number": 2 })]
    })
    .await;
    assert_eq!(service.found("red").await, [json!({ "id": "b3", "sequence_number": 1 })]);
    service.tell(&delete("b1", "d1", 2)).await.must_be(201);
    eventually("the deleted one is gone", async || service.found("green").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c09_words_of_every_script_are_found_and_pages_follow_each_other() {
    let service = Service::start("scripts");
    let words = ["हिन्दी", "ไทย", "Straße", "Привет", "日本語", "𞤀𞤁", "naïve", "x²", "or", "near"];
    for (n, word) in words.iter().enumerate() {
        let payload = json!({ "word": word, "all": "together" });
        service.tell(&create(&format!("id {n}"), word, &payload)).await.must_be(201);
    }
    eventually("all are found", async || service.found("together").await.len() == 10).await;
    for (n, word) in words.iter().enumerate() {
        let expected = json!({ "id": format!("id {n}"), "sequence_number": 1 });
        assert_eq!(service.found(word).await, std::slice::from_ref(&expected), "{word}");
        let beginning: String = word.chars().take(1).collect();
        assert!(service.found(&beginning).await.contains(&expected), "{beginning}");
    }
    let (mut after, mut ids) = (String::new(), Vec::new());
    loop {
        let path = format!("/v1/search?q=TOG&limit=3{after}");
        let page = get(&path).send(&service).await.must_be(200).json();
        let items = page["items"].as_array().unwrap().clone();
        assert!(items.len() <= 3);
        ids.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    ids.sort();
    assert_eq!(ids, (0..10).map(|n| format!("id {n}")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c08_classes_are_the_ontology_workers() {
    let service = Service::start("classes");
    let mut class = create("Bike", "c1", &json!({ "label": "Bicycle" }));
    class["target"] = json!("class");
    service.tell(&class).await.must_be(201);
    let path = "/v1/classes/Bike";
    eventually("the class", async || get(path).send(&service).await.status == 200).await;
    let expected = json!({ "id": "Bike", "sequence_number": 1, "label": "Bicycle" });
    assert_eq!(get(path).send(&service).await.json(), expected);
    // It is no instance, and no search for instances finds it.
    service.tell(&create("i1", "e1", &json!({ "word": "after" }))).await.must_be(201);
    service.instance_at("i1", 1).await;
    eventually("the search is up to date", async || !service.found("after").await.is_empty()).await;
    get("/v1/instances/Bike").send(&service).await.refuses(404, "events.not_found");
    assert!(service.found("bicycle").await.is_empty());
    assert_eq!(service.events("Bike").await[0]["target"], "class");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_none_can_have_is_one_that_nothing_has() {
    let service = Service::start("long-id");
    for id in ["g".repeat(480), "g".repeat(513), "é".repeat(257)] {
        for kind in ["instances", "classes"] {
            let path = format!("/v1/{kind}/{}", encoded(&id));
            assert_eq!(get(&path).send(&service).await.status, 404, "{} bytes", id.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_the_search_goes_on_behind_what_was_deleted_in_memory_too() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ontology-memory-search");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let place = ("127.0.0.1:0", "memory:");
    let arguments = ["demo", "ontology", "--no-traffic"];
    let service = Service::spawn_at("ontology", folder, &arguments, place, &[]);
    for number in 0..5 {
        let id = format!("i{number}");
        service.tell(&create(&id, &id, &json!({ "word": "red" }))).await.must_be(201);
    }
    eventually("all are found", async || service.found("red").await.len() == 5).await;
    let page = get("/v1/search?q=red&limit=2").send(&service).await.must_be(200);
    let (last, next) = (page.items()[1]["id"].clone(), page.json()["next"].clone());
    service.tell(&delete(last.as_str().unwrap(), "gone", 1)).await.must_be(201);
    eventually("it is gone", async || service.found("red").await.len() == 4).await;
    let rest = format!("/v1/search?q=red&after={}", next.as_str().unwrap());
    assert_eq!(get(&rest).send(&service).await.must_be(200).items().len(), 3);
}
