//! Duplicates: an id counts once, and what differs is told (D01, D02, D05).

use serde_json::json;

use super::world::{NOON, ORGANISATION_A, Service, at, measurement, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d01_d12_same_measurement_submitted_twice_gets_the_stored_result() {
    let service = Service::start("d01_same");
    let first = submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    assert_eq!(first.header("x-duplicate-of"), "");
    let again = submit("ada", &measurement("m1", 0)).send(&service).await.must_be(200);
    assert_eq!(again.body, first.body, "byte for byte");
    assert_eq!(again.header("x-duplicate-of"), "m1");
    let result = first.json();
    for (member, value) in [
        ("measurement_id", json!("m1")),
        ("user_id", json!("ada")),
        ("weight", json!(80.5)),
        ("unit", json!("kg")),
        ("timestamp", json!(at(0))),
        ("source", json!("scale")),
        ("status", json!("accepted")),
    ] {
        assert_eq!(result[member], value, "{member}");
    }
    assert_eq!(service.listed("ada").await, [result]);
    assert!(service.listed("bob").await.is_empty(), "an id is a user's own");
    submit("bob", &measurement("m1", 0)).send(&service).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d01_d12_different_payload_same_id_is_409_with_diff_and_advice() {
    let service = Service::start("d01_other");
    let first = submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    let mut other = measurement("m1", 60);
    other["weight"] = json!(81.25);
    let refused = submit("ada", &other).send(&service).await;
    assert_eq!(refused.error(), (409, "DuplicateMeasurement".into()));
    assert_eq!(refused.header("x-duplicate-of"), "m1");
    let body = refused.json();
    assert_eq!(body["message"], "Measurement already exists with different payload");
    assert_eq!(body["measurement_id"], "m1");
    assert_eq!(body["original_result"], first.json());
    let expected = json!({
        "weight": { "original": 80.5, "submitted": 81.25 },
        "timestamp": { "original": at(0), "submitted": at(60) },
    });
    assert_eq!(body["payload_diff"], expected);
    assert!(body["resolution"].as_str().unwrap().contains("measurement_id"));
    assert_eq!(service.listed("ada").await, [first.json()], "nothing changes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d02_the_hash_looks_at_the_normal_form_alone() {
    let service = Service::start("d02");
    let first = submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    for (weight, unit, timestamp, source) in [
        (json!(80.50), "KG", "2025-09-15T14:00:00+02:00", "  Scale "),
        (json!(80500), "g", "2025-09-15T12:00:00.000Z", "SCALE"),
        (json!(8.05e1), "kg", "2025-09-15t12:00:00z", "scale"),
        (json!(177.472121), "lb", "2025-09-15T07:30:00-04:30", "scale"),
        (json!(12.676_579_9), "st", "2025-09-15T12:00:00Z", "scale"),
    ] {
        let same = json!({
            "source": source, "timestamp": timestamp, "unit": unit, "weight": weight,
            "measurement_id": "m1", "app_version": "9.1",
        });
        let again = submit("ada", &same).send(&service).await.must_be(200);
        assert_eq!(again.body, first.body, "{same}");
    }
    for (member, value) in [
        ("weight", json!(80.51)),
        ("timestamp", json!(at(1))),
        ("source", json!("phone")),
        ("unit", json!("lb")),
    ] {
        let mut other = measurement("m1", 0);
        other[member] = value;
        let refused = submit("ada", &other).send(&service).await;
        assert_eq!(refused.error(), (409, "DuplicateMeasurement".into()), "{other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d02_weights_are_decimal_and_rounded_half_up() {
    let service = Service::start("d02_decimal");
    // Sent as text, because what is measured is how digits are read.
    for (n, (weight, unit, kept)) in [
        ("80.005", "kg", "80.01"),
        ("1.005", "kg", "1.01"),
        ("80.0049999999999999", "kg", "80.00"),
        ("177.5", "lb", "80.51"),
        ("12.5", "st", "79.38"),
        ("5", "g", "0.01"),
        ("1e3", "kg", "1000.00"),
    ]
    .into_iter()
    .enumerate()
    {
        let body = format!(
            r#"{{"measurement_id":"w{n}","weight":{weight},"unit":"{unit}","timestamp":"{NOON}",
                "source":"s"}}"#
        );
        let made = submit("ada", &json!(null)).raw(&body).send(&service).await.must_be(201);
        let text = String::from_utf8(made.body.to_vec()).unwrap();
        assert!(text.contains(&format!("\"weight\":{kept},")), "{weight} {unit}: {text}");
    }
    for bad in [
        json!({ "weight": 0 }),
        json!({ "weight": -1 }),
        json!({ "weight": 1000.01 }),
        json!({ "weight": "80" }),
        json!({ "weight": null }),
        json!({ "unit": "ton" }),
        json!({ "timestamp": "yesterday" }),
        json!({ "timestamp": "2025-09-15T12:00:00" }),
        json!({ "source": "" }),
        json!({ "measurement_id": "" }),
        json!({ "measurement_id": 7 }),
        json!({ "user_id": "bob" }),
    ] {
        let mut body = measurement("bad", 0);
        for (name, value) in bad.as_object().unwrap() {
            body[name] = value.clone();
        }
        let refused = submit("ada", &body).send(&service).await;
        assert_eq!(refused.error(), (422, "InvalidMeasurement".into()), "{bad}");
        let field = bad.as_object().unwrap().keys().next().unwrap();
        assert_eq!(refused.json()["errors"][0]["field"], *field, "{refused:?}");
    }
    for broken in ["", "nonsense", "[]"] {
        let refused = submit("ada", &json!(null)).raw(broken).send(&service).await;
        assert_eq!(refused.error(), (422, "InvalidMeasurement".into()), "{broken}");
    }
    assert_eq!(service.listed("ada").await.len(), 7, "what is refused leaves nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d05_the_record_points_at_the_document_for_seven_days_and_holds_no_copy() {
    let service = Service::start("d05");
    submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    let records = service.records(ORGANISATION_A).await;
    let of_id: Vec<_> = records.iter().filter(|record| record["scope"] == "measurements").collect();
    let [record] = of_id[..] else { panic!("one record: {records:?}") };
    assert_eq!(record["state"], "done");
    let reference = record["ref"].as_str().unwrap();
    let shown = service.operate("GET", &format!("/v1/records/{reference}")).await.must_be(200);
    let shown = String::from_utf8(shown.body.to_vec()).unwrap();
    assert!(shown.contains("ada/m1"), "it points: {shown}");
    assert!(!shown.contains("80.5"), "it holds no copy: {shown}");
    let instant = |name: &str| -> jiff::Timestamp {
        let body: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let found = &body[name];
        found.as_str().unwrap_or_else(|| panic!("{name} of {body}")).parse().unwrap()
    };
    let kept = instant("expires_at").duration_since(instant("created_at"));
    assert_eq!(kept.as_secs(), 7 * 86_400);
}
