//! Commands and their events: numbers, repetitions, refusals.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::world::{Service, create, delete, get, post, send, update};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c02_a_command_becomes_an_event_that_is_read_as_it_was_sent() {
    let service = Service::start("c02");
    let body = r#"{"event_id":"e1","aggregate_id":"bike","kind":"create",
        "payload":{ "big": 12345678901234567890123, "text":"\u00e4", "x":1.50 }}"#;
    let call = post("/v1/commands").keyless().raw(body).header("x-correlation-id", "trip-1");
    let made = call.send(&service).await.must_be(201);
    let expected = json!({ "event_id": "e1", "aggregate_id": "bike", "sequence_number": 1 });
    assert_eq!(made.json(), expected);
    assert!(!made.header("x-request-id").is_empty());
    // At once, not after a while: the event store is the truth.
    let read = get("/v1/aggregates/bike/events").send(&service).await.must_be(200);
    let payload = r#"{ "big": 12345678901234567890123, "text":"\u00e4", "x":1.50 }"#;
    let text = std::str::from_utf8(&read.body).unwrap();
    assert!(text.contains(payload), "byte for byte: {text}");
    let items: Vec<Value> =
        serde_json::from_str::<Value>(text).unwrap()["items"].as_array().unwrap().clone();
    assert_eq!(items.len(), 1);
    for (member, value) in [
        ("event_id", json!("e1")),
        ("aggregate_id", json!("bike")),
        ("sequence_number", json!(1)),
        ("kind", json!("create")),
        ("target", json!("instance")),
        ("correlation_id", json!("trip-1")),
    ] {
        assert_eq!(items[0][member], value, "{member}");
    }
    assert_eq!(read.json()["next"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_may_be_spelled_otherwise() {
    let service = Service::start("spelled");
    let sent = create("bike", "e1", &json!({ "colour": "red" }));
    post("/v1/%63ommands").json(&sent).send(&service).await.must_be(201);
    let again = post("/v1/commands").json(&sent).send(&service).await;
    again.must_be(200);
    let read = get("/v1/%61ggregates/b%69ke/events").send(&service).await.must_be(200);
    assert_eq!(read.json()["items"][0]["event_id"], "e1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c03_numbers_rise_by_one_and_pages_follow_each_other() {
    let service = Service::start("c03");
    service.tell(&create("a", "e1", &json!({}))).await.must_be(201);
    for number in 1..12 {
        let event_id = format!("e{}", number + 1);
        let done = service.tell(&update("a", &event_id, number, &json!({ "n": number }))).await;
        assert_eq!(done.must_be(201).json()["sequence_number"], number + 1);
    }
    let (mut after, mut numbers) = (String::new(), Vec::new());
    loop {
        let path = format!("/v1/aggregates/a/events?limit=5{after}");
        let page = get(&path).send(&service).await.must_be(200).json();
        let items = page["items"].as_array().unwrap().clone();
        numbers.extend(items.iter().map(|item| item["sequence_number"].as_u64().unwrap()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
    for bad in ["limit=0", "limit=1001", "after=x"] {
        let path = format!("/v1/aggregates/a/events?{bad}");
        get(&path).send(&service).await.refuses(422, "events.validation_failed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c04_c05_of_many_writers_that_expect_one_number_one_appends() {
    let service = Service::start("c05");
    service.tell(&create("a", "e1", &json!({}))).await.must_be(201);
    let commands: Vec<_> =
        (0..16).map(|n| update("a", &format!("race-{n}"), 1, &json!({ "n": n }))).collect();
    let answers = join_all(commands.iter().map(|command| service.tell(command))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    for lost in answers.iter().filter(|answer| answer.status != 201) {
        lost.refuses(409, "events.sequence_mismatch");
        assert_eq!(lost.json()["current_seq"], 2);
    }
    assert_eq!(service.events("a").await.len(), 2);
    for expected in [0, 2, 5] {
        let mut again = create("a", "e9", &json!({}));
        again["expected_seq"] = json!(expected);
        let refused = service.tell(&again).await;
        refused.refuses(409, "events.sequence_mismatch");
        assert_eq!(refused.json()["current_seq"], 2, "create on what exists");
    }
    for (id, expected, current) in [("none", 3, 0), ("none", 0, 0), ("a", 0, 2), ("a", 1, 2)] {
        let refused = service.tell(&update(id, "e8", expected, &json!({}))).await;
        refused.refuses(409, "events.sequence_mismatch");
        assert_eq!(refused.json()["current_seq"], current, "{id} at {expected}");
    }
    assert_eq!(service.events("a").await.len(), 2);
    assert!(service.events("none").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_updates_and_deletes_say_what_they_expect() {
    let service = Service::start("c05-required");
    service.tell(&create("a", "e1", &json!({}))).await.must_be(201);
    for kind in ["update", "delete"] {
        let command = json!({ "event_id": "e2", "aggregate_id": "a", "kind": kind, "payload": {} });
        service.tell(&command).await.refuses(400, "events.expected_seq_required");
    }
    assert_eq!(service.events("a").await.len(), 1);
    service.tell(&delete("a", "e2", 1)).await.must_be(201);
    service.tell(&update("a", "e3", 2, &json!({}))).await.refuses(409, "events.aggregate_deleted");
    // The same command again is its first answer, whatever has happened since.
    service.tell(&delete("a", "e2", 1)).await.must_be(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_what_was_deleted_is_created_again_by_one_who_knows_of_it() {
    let service = Service::start("c05-again");
    service.tell(&create("a", "e1", &json!({ "old": 1 }))).await.must_be(201);
    service.tell(&delete("a", "e2", 1)).await.must_be(201);
    let unaware = service.tell(&create("a", "e3", &json!({ "new": 1 }))).await;
    unaware.refuses(409, "events.sequence_mismatch");
    assert_eq!(unaware.json()["current_seq"], 2);
    let mut aware = create("a", "e3", &json!({ "new": 1 }));
    aware["expected_seq"] = json!(2);
    assert_eq!(service.tell(&aware).await.must_be(201).json()["sequence_number"], 3);
    service.tell(&aware).await.must_be(200);
    let again = json!({ "id": "a", "sequence_number": 3, "new": 1 });
    assert_eq!(service.instance_at("a", 3).await, again);
    // The first create, late: it brings nothing back.
    service.tell(&create("a", "e1", &json!({ "old": 1 }))).await.must_be(200);
    assert_eq!(service.instance_at("a", 3).await, again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_a_number_that_was_passed_is_a_mismatch_whatever_was_there() {
    let service = Service::start("c05-passed");
    service.tell(&create("a", "e1", &json!({}))).await.must_be(201);
    service.tell(&delete("a", "e2", 1)).await.must_be(201);
    let mut again = create("a", "e3", &json!({}));
    again["expected_seq"] = json!(2);
    service.tell(&again).await.must_be(201);
    service.tell(&update("a", "e4", 3, &json!({}))).await.must_be(201);
    // The second event is a delete, but not the last one: the aggregate is there.
    let mut other = update("a", "x", 1, &json!({}));
    other["target"] = json!("class");
    for late in [update("a", "x", 2, &json!({})), delete("a", "x", 2), other] {
        let refused = service.tell(&late).await;
        refused.refuses(409, "events.sequence_mismatch");
        assert_eq!(refused.json()["current_seq"], 4, "{late}");
    }
    assert_eq!(service.events("a").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_who_follows_the_number_that_a_refusal_told_is_never_sent_away() {
    let service = Service::start("c05-follow");
    service.tell(&create("a", "e1", &json!({}))).await.must_be(201);
    let writer = async |writer: u64| {
        let mut expected = 1;
        for number in 0..25 {
            loop {
                let event_id = format!("{writer}-{number}");
                let answer = service.tell(&update("a", &event_id, expected, &json!({}))).await;
                if answer.status == 201 {
                    expected = answer.json()["sequence_number"].as_u64().unwrap();
                    break;
                }
                // Its event may not be durable yet, which is no trouble of the store.
                answer.refuses(409, "events.sequence_mismatch");
                expected = answer.json()["current_seq"].as_u64().unwrap();
            }
        }
    };
    join_all((0..4).map(writer)).await;
    assert_eq!(service.events("a").await.len(), 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c05_what_an_aggregate_is_about_does_not_change() {
    let service = Service::start("c05-target");
    let about = |mut command: Value, target: &str| {
        command["target"] = json!(target);
        command
    };
    for (id, own, other) in [("a", "instance", "class"), ("b", "class", "instance")] {
        let made = about(create(id, &format!("{id}1"), &json!({ "n": 1 })), own);
        service.tell(&made).await.must_be(201);
        let changed = about(update(id, "x", 1, &json!({})), other);
        for command in [changed, about(delete(id, "x", 1), other)] {
            let refused = service.tell(&command).await;
            refused.refuses(409, "events.target_mismatch");
            assert_eq!(refused.json()["target"], own);
            assert_eq!(refused.json()["current_seq"], 1);
        }
        // Not by making it anew either.
        let gone = about(delete(id, &format!("{id}2"), 1), own);
        service.tell(&gone).await.must_be(201);
        let mut anew = about(create(id, "x", &json!({})), other);
        anew["expected_seq"] = json!(2);
        service.tell(&anew).await.refuses(409, "events.target_mismatch");
        service.tell(&gone).await.must_be(200);
        assert_eq!(service.events(id).await.len(), 2);
    }
    assert!(service.events("x").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a07_an_expected_number_may_be_spelled_in_any_way() {
    let service = Service::start("a07-expected");
    service.tell(&create("a", "e1", &json!({}))).await.must_be(201);
    let spelled = |id: &str, expected: &str| {
        post("/v1/commands").keyless().raw(&format!(
            r#"{{"event_id":"{id}","aggregate_id":"a","kind":"update","expected_seq":{expected}}}"#
        ))
    };
    for expected in ["1.5", "-1.0", "1e300", r#""1""#, "9007199254740993.0"] {
        spelled("x", expected).send(&service).await.refuses(422, "events.validation_failed");
    }
    spelled("e2", "1.0").send(&service).await.must_be(201);
    spelled("e3", "2e0").send(&service).await.must_be(201);
    spelled("e4", "30E-1").send(&service).await.must_be(201);
    assert_eq!(service.events("a").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c06_the_same_command_again_is_its_first_answer() {
    let service = Service::start("c06");
    let command = create("a", "e1", &json!({ "name": "Red", "n": 1 }));
    let copies: Vec<_> = vec![command.clone(); 8];
    let answers = join_all(copies.iter().map(|command| service.tell(command))).await;
    assert_eq!(answers.iter().filter(|answer| answer.status == 201).count(), 1);
    assert!(answers.iter().all(|answer| [200, 201].contains(&answer.status)));
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    service.tell(&update("a", "e2", 1, &json!({}))).await.must_be(201);
    let again = service.tell(&command).await.must_be(200);
    assert_eq!(again.body, answers[0].body);
    let spelled = r#"{"payload":{"n":1.0,"name":"Red"},"kind":"create","aggregate_id":"a",
        "event_id":"e1"}"#;
    post("/v1/commands").keyless().raw(spelled).send(&service).await.must_be(200);
    for expected in [0, 1, 2, 9] {
        let mut expecting = command.clone();
        expecting["expected_seq"] = json!(expected);
        assert_eq!(service.tell(&expecting).await.must_be(200).body, again.body, "{expected}");
        let update = update("a", "e2", expected, &json!({}));
        assert_eq!(service.tell(&update).await.must_be(200).json()["sequence_number"], 2);
    }
    let other = service.tell(&create("a", "e1", &json!({ "name": "Blue", "n": 1 }))).await;
    other.refuses(409, "events.payload_mismatch");
    assert_eq!(other.json()["differs"], json!(["/payload/name"]));
    assert_eq!(other.json()["key_advice"], "rotate");
    let other = service.tell(&create("b", "e1", &json!({ "name": "Red", "n": 1 }))).await;
    other.refuses(409, "events.payload_mismatch");
    assert_eq!(other.json()["differs"], json!(["/aggregate_id"]));
    let mut other = command.clone();
    other["target"] = json!("class");
    assert_eq!(service.tell(&other).await.json()["differs"], json!(["/target"]));
    other["kind"] = json!("update");
    other["expected_seq"] = json!(2);
    assert_eq!(service.tell(&other).await.json()["differs"], json!(["/kind", "/target"]));
    assert_eq!(service.events("a").await.len(), 2);
    assert!(service.events("b").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_ids_are_compared_byte_for_byte() {
    let service = Service::start("c10");
    let ids = ["a", "A", "a ", " a", "ä", "a\u{308}", "a/b", "a%2Fb", "a:b", "a?b#c", "日本", ".."];
    for (n, id) in ids.iter().enumerate() {
        let made = service.tell(&create(id, &format!("e{n}"), &json!({ "n": n }))).await;
        assert_eq!(made.must_be(201).json()["sequence_number"], 1, "{id:?}");
    }
    for (n, id) in ids.iter().enumerate() {
        let events = service.events(id).await;
        assert_eq!(events.len(), 1, "{id:?}");
        assert_eq!(events[0]["event_id"], format!("e{n}"), "{id:?}");
    }
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(service.instance_at(id, 1).await["n"], n, "{id:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a01_organisations_never_see_each_other() {
    let service = Service::start("a01");
    let command = create("a", "e1", &json!({ "word": "ours" }));
    service.tell(&command).await.must_be(201);
    service.instance_at("a", 1).await;
    let theirs = |path: &str| get(path).by("demo-b");
    assert!(theirs("/v1/aggregates/a/events").send(&service).await.items().is_empty());
    theirs("/v1/instances/a").send(&service).await.refuses(404, "events.not_found");
    assert!(theirs("/v1/search?q=ours").send(&service).await.items().is_empty());
    // The same ids are theirs to use, with a payload of their own.
    let other = create("a", "e1", &json!({ "word": "theirs" }));
    send(&other).by("demo-b").send(&service).await.must_be(201);
    assert_eq!(service.events("a").await[0]["payload"]["word"], "ours");
    // Another user of the organisation is not another writer of the event.
    send(&command).by("demo-a2").send(&service).await.must_be(200);
    for path in ["/v1/aggregates/a/events", "/v1/instances/a", "/v1/search?q=a"] {
        get(path).anonymous().send(&service).await.refuses(401, "auth.required");
    }
    send(&command).anonymous().send(&service).await.refuses(401, "auth.required");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_command_is_refused_and_leaves_nothing() {
    let service = Service::start("refused");
    for (body, status, code) in [
        ("{", 400, "body.not_canonical"),
        ("[]", 400, "body.not_canonical"),
        (r#"{"event_id":"e","event_id":"f"}"#, 400, "body.not_canonical"),
        ("{}", 422, "events.validation_failed"),
        (r#"{"event_id":"e","aggregate_id":"a","kind":"burn"}"#, 422, "events.validation_failed"),
        (r#"{"event_id":"","aggregate_id":"a","kind":"create"}"#, 422, "events.validation_failed"),
        (
            r#"{"event_id":"e","aggregate_id":"a","kind":"create","payload":[1]}"#,
            422,
            "events.validation_failed",
        ),
        (
            r#"{"event_id":"e","aggregate_id":"a","kind":"create","target":"x"}"#,
            422,
            "events.validation_failed",
        ),
        (
            r#"{"event_id":"e","aggregate_id":"a","kind":"update","expected_seq":-1}"#,
            422,
            "events.validation_failed",
        ),
    ] {
        let refused = post("/v1/commands").keyless().raw(body).send(&service).await;
        refused.refuses(status, code);
    }
    let long = format!(r#"{{"event_id":"{}"}}"#, "x".repeat(2 * 1024 * 1024));
    let refused = post("/v1/commands").keyless().raw(&long).send(&service).await;
    refused.refuses(413, "body.too_large");
    get("/v1/nothing").send(&service).await.refuses(404, "events.not_found");
    get("/v1/commands").send(&service).await.refuses(405, "request.method_not_allowed");
    assert!(service.events("a").await.is_empty());
}
