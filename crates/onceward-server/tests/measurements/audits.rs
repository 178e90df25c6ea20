//! The audit (D07): every attempt, found by user, time and measurement, exported. Metrics (D09).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::world::{ORGANISATION_A, Service, batch, get, measurement, of, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_every_attempt_is_audited_before_its_answer() {
    let service = Service::start("d07");
    let correlated = submit("ada", &measurement("m1", 0)).header("x-correlation-id", "corr-1");
    let first = correlated.key("k").send(&service).await.must_be(201);
    assert_eq!(first.header("x-correlation-id"), "corr-1");
    submit("ada", &measurement("m1", 0)).send(&service).await.must_be(200);
    let mut other = measurement("m1", 0);
    other["weight"] = json!(90);
    submit("ada", &other).send(&service).await.must_be(409);
    submit("ada", &measurement("m2", -1_000)).send(&service).await.must_be(422);
    let mut invalid = measurement("m3", 0);
    invalid["unit"] = json!("ton");
    submit("ada", &invalid).send(&service).await.must_be(422);
    // What never reaches a handler is an attempt all the same.
    submit("ada", &measurement("m1", 0)).key("k").send(&service).await.must_be(201);
    submit("ada", &measurement("m4", 0)).key("k").send(&service).await.must_be(409);
    submit("ada", &measurement("m5", 0)).key("no key").send(&service).await.must_be(400);
    let twice = r#"{"measurement_id":"m6","note":1,"note":2}"#;
    submit("ada", &json!({})).raw(twice).send(&service).await.must_be(400);
    // Nothing is awaited: an entry is there when its answer is.
    let audit = service.audit("ada").await;
    let told: Vec<(String, String, String)> = audit
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap_or_default().to_string();
            (text("action"), text("measurement_id"), text("reason"))
        })
        .collect();
    let expected = [
        ("accepted", "m1", ""),
        ("duplicate", "m1", "the same measurement is known"),
        ("rejected", "m1", "DuplicateMeasurement"),
        ("rejected", "m2", "OutOfOrderTimestamp"),
        ("rejected", "m3", "InvalidMeasurement: unit must be kg, lb, st or g"),
        ("duplicate", "m1", "the request was replayed"),
        ("rejected", "m4", "IdempotencyKeyReused"),
        ("rejected", "m5", "InvalidIdempotencyKey"),
        ("rejected", "m6", "InvalidMeasurement"),
    ];
    let expected = expected.map(|(a, b, c)| (a.to_string(), b.to_string(), c.to_string()));
    assert_eq!(told, expected);
    let first = &audit[0];
    assert_eq!(first["correlation_id"], "corr-1");
    assert_eq!(first["actor"], "actor-a");
    assert_eq!(first["payload"]["weight"], 80.5);
    assert_eq!(first["payload"]["source"], "scale");
    assert_eq!(first["payload_hash"], audit[1]["payload_hash"]);
    assert_ne!(first["payload_hash"], audit[2]["payload_hash"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_a_replayed_batch_is_audited_item_by_item() {
    let service = Service::start("d07_batch");
    let items = [of("ada", "m1", 0), of("bob", "m1", 0), of("ada", "m2", 0)];
    batch(&items).key("k").send(&service).await.must_be(200);
    assert!(batch(&items).key("k").send(&service).await.must_be(200).is_replay());
    assert_eq!(service.actions("ada").await, ["accepted", "accepted", "duplicate", "duplicate"]);
    assert_eq!(service.actions("bob").await, ["accepted", "duplicate"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_a_retry_whose_answer_was_not_stored_is_audited() {
    let service = Service::start("d07_unstored");
    // The answer repeats what each was about: 1.5 MiB of that are not stored.
    let filling = json!({ "user_id": "x".repeat(128) });
    let mut items = vec![of("ada", "m1", 0)];
    items.resize(6_000, filling);
    batch(&items).key("k").send(&service).await.must_be(200);
    let again = batch(&items).key("k").send(&service).await;
    assert_eq!(again.error(), (409, "idempotency.response_not_stored".into()));
    let audit = service.audit("ada").await;
    let told: Vec<_> = audit.iter().map(|entry| (&entry["action"], &entry["reason"])).collect();
    let (reason, rejected) = (json!("idempotency.response_not_stored"), json!("rejected"));
    assert_eq!(told, [(&json!("accepted"), &Value::Null), (&rejected, &reason)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_an_attempt_that_is_refused_as_a_whole_is_audited() {
    let service = Service::start("d07_whole");
    // Of a body that is too large nothing is kept, also not what could be read of it.
    let large = format!(r#"{{"measurement_id":"m1","x":"{}"}}"#, "x".repeat(70_000));
    let single = || submit("ada", &json!({})).raw(&large);
    let keyed = single().key("k").send(&service).await;
    assert_eq!(keyed.error(), (413, "body.too_large".into()));
    assert_eq!(keyed.header("x-idempotency-key"), "k");
    let keyless = single().keyless().send(&service).await.must_be(413);
    assert_eq!((keyless.header("warning"), keyless.header("x-idempotency-key")), ("", ""));
    let members = ["action", "reason", "measurement_id", "payload"];
    let audit = service.audit("ada").await;
    let told: Vec<_> = audit.iter().map(|entry| members.map(|name| entry[name].clone())).collect();
    let refused = [json!("rejected"), json!("body.too_large"), Value::Null, Value::Null];
    assert_eq!(told, [refused.clone(), refused]);
    // A batch of which no item is looked at is about nobody: the operator finds it.
    let many = batch(&vec![of("bob", "m1", 0); 10_001]).key("many");
    many.clone().send(&service).await.must_be(422);
    assert!(many.send(&service).await.must_be(422).is_replay());
    batch(&[]).keyless().raw(r#"{"measurements":{}}"#).send(&service).await.must_be(422);
    let large = format!(r#"{{"measurements":[],"x":"{}"}}"#, "x".repeat(8 << 20));
    let keyless = batch(&[]).keyless().raw(&large).send(&service).await.must_be(413);
    assert_eq!(keyless.header("warning"), "", "nothing ran");
    batch(&[]).raw(&large).send(&service).await.must_be(413);
    assert!(service.audit("bob").await.is_empty(), "its items were not looked at");
    let path = format!("/v1/audit?tenant={ORGANISATION_A}&subject=user/&limit=1000");
    let entries = service.operate("GET", &path).await.must_be(200).items();
    let told: Vec<(String, String)> = entries
        .iter()
        .map(|entry| {
            let detail: Value = serde_json::from_str(entry["detail"].as_str().unwrap()).unwrap();
            assert_eq!(detail["payload"], Value::Null);
            let text = |value: &Value| value.as_str().unwrap().to_string();
            (text(&entry["action"]), text(&detail["reason"]))
        })
        .collect();
    let expected = [
        ("measurement.rejected", "InvalidMeasurement: measurements must be at most 10000"),
        ("measurement.duplicate", "the request was replayed"),
        (
            "measurement.rejected",
            "InvalidMeasurement: body must be a JSON object with the list measurements",
        ),
        ("measurement.rejected", "body.too_large"),
        ("measurement.rejected", "body.too_large"),
    ];
    assert_eq!(told, expected.map(|(action, reason)| (action.into(), reason.into())));
    let counted = |name: &str| format!("onceward_measurements_{name}");
    let large = service.metric(&counted(r#"refused_total{error="body.too_large"}"#)).await;
    let entries = service.metric(&counted("audit_entries_total")).await;
    assert!((large - 4.0).abs() < f64::EPSILON && (entries - 7.0).abs() < f64::EPSILON);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_payloads_are_shown_and_exported_as_they_were_sent() {
    let service = Service::start("d07_sent");
    // Texts, because no value holds these.
    let payloads = [
        r#"{"weight":80.00499999999999999,"source":"scale"}"#.to_string(),
        r#"{"weight":1e400,"source":"\ud800"}"#.to_string(),
        format!(r#"{{"weight":{}{}}}"#, "[".repeat(200), "]".repeat(200)),
    ];
    for payload in &payloads {
        let refused = submit("ada", &json!({})).keyless().raw(payload).send(&service).await;
        assert!(matches!(refused.status, 400 | 422), "{refused:?}");
    }
    let long = format!(r#"{{"weight":1,"source":"{}"}}"#, "x".repeat(1_024));
    submit("ada", &json!({})).keyless().raw(&long).send(&service).await.must_be(422);
    for format in ["json", "ndjson", "csv"] {
        let path = format!("/v1/users/ada/audit?format={format}");
        let answer = get(&path).send(&service).await.must_be(200);
        let mut text = String::from_utf8(answer.body.to_vec()).unwrap();
        if format == "csv" {
            text = text.replace("\"\"", "\"");
        }
        for payload in &payloads {
            assert!(text.contains(payload.as_str()), "{format}: {payload} in {text}");
        }
        assert!(!text.contains("xxx"), "too long to be kept: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d07_attempts_are_found_by_user_time_and_measurement_and_exported() {
    let service = Service::start("d07_search");
    for n in 0..3 {
        submit("ada", &measurement(&format!("m{n}"), n)).send(&service).await.must_be(201);
        submit("bob", &measurement(&format!("m{n}"), n)).send(&service).await.must_be(201);
    }
    submit("ada", &measurement("m1", 1)).send(&service).await.must_be(200);
    let path = "/v1/users/ada/audit";
    let found = |query: &str| get(&format!("{path}?{query}"));
    let of_m1 = found("measurement_id=m1").send(&service).await.items();
    let actions: Vec<&Value> = of_m1.iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["accepted", "duplicate"]);
    assert!(of_m1.iter().all(|entry| entry["user_id"] == "ada"));
    let all = service.audit("ada").await;
    assert_eq!(all.len(), 4);
    let middle = all[2]["at"].as_str().unwrap();
    let from = found(&format!("from={middle}")).send(&service).await.items();
    let to = found(&format!("to={middle}")).send(&service).await.items();
    // As instants: texts with fractions of different lengths do not sort by time.
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let not_before = |entry: &Value| at(entry["at"].as_str().unwrap()) >= at(middle);
    assert!(from.iter().all(not_before) && from.len() >= 2, "{from:?} from {middle}");
    assert_eq!(from.len() + to.len(), 4, "half-open");
    // Pages.
    let page = found("limit=3").send(&service).await.json();
    let next = page["next"].as_str().unwrap();
    let rest = found(&format!("limit=3&after={next}")).send(&service).await.json();
    assert_eq!(rest["items"].as_array().unwrap()[..], all[3..]);
    // Exports.
    let ndjson = found("format=ndjson").send(&service).await.must_be(200);
    assert_eq!(ndjson.header("content-type"), "application/x-ndjson");
    let text = String::from_utf8(ndjson.body.to_vec()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines, all);
    let csv = found("format=csv").send(&service).await.must_be(200);
    assert!(csv.header("content-type").starts_with("text/csv"));
    let text = String::from_utf8(csv.body.to_vec()).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(lines.len(), 6, "a header line, four entries, an end: {text}");
    assert!(lines[0].starts_with("id,at,user_id,measurement_id,action,reason,payload,"));
    assert!(lines[1].contains(",ada,m0,accepted,"), "{text}");
    // Numbers that are no milliseconds of ours would be instants right after 1970.
    for bad in ["format=xml", "from=yesterday", "from=2027", "to=20270101", "limit=0", "after=zz"] {
        assert_eq!(found(bad).send(&service).await.status, 400, "{bad}");
    }
    assert_eq!(found("from=2025-01-01&to=9999999999999").send(&service).await.items(), all);
    // Another organisation sees nothing of it.
    assert!(get(path).by("demo-b").send(&service).await.items().is_empty());
    let theirs = get("/v1/users/ada/measurements").by("demo-b").send(&service).await;
    assert!(theirs.items().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d09_rates_follow_from_what_is_counted() {
    let service = Service::start("d09");
    // The first replay comes from the store and fills the cache, the second from there.
    for _ in 0..3 {
        submit("ada", &measurement("m1", 0)).key("k").send(&service).await.must_be(201);
    }
    submit("ada", &measurement("m1", 0)).send(&service).await.must_be(200);
    submit("ada", &measurement("m2", -1_000)).send(&service).await.must_be(422);
    batch(&[of("bob", "m1", 0), of("bob", "m1", 0)]).send(&service).await.must_be(200);
    for (name, value) in [
        (r#"attempts_total{action="accepted"}"#, 2.0),
        (r#"attempts_total{action="duplicate"}"#, 4.0),
        (r#"attempts_total{action="rejected"}"#, 1.0),
        (r#"refused_total{error="OutOfOrderTimestamp"}"#, 1.0),
        ("conflict_seconds_count", 5.0),
        ("audit_entries_total", 7.0),
        ("batches_total", 1.0),
        ("batch_items_total", 2.0),
        ("cache_compared_total", 1.0),
        ("cache_differences_total", 0.0),
    ] {
        let found = service.metric(&format!("onceward_measurements_{name}")).await;
        assert!((found - value).abs() < f64::EPSILON, "{name}: {found}");
    }
    let looks = service.metric("onceward_measurements_cache_hits_total").await
        + service.metric("onceward_measurements_cache_misses_total").await;
    assert!((looks - 6.0).abs() < f64::EPSILON, "each request looks once: {looks}");
}
