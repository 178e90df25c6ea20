//! The order of a user's timestamps, grace that does not creep, and overrides (D03, D04).

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::world::{ORGANISATION_A, Service, at, measurement, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_d12_out_of_order_timestamps_are_422_and_leave_nothing_under_their_id() {
    let service = Service::start("d03");
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(201);
    let refused = submit("ada", &measurement("m2", 0)).send(&service).await;
    assert_eq!(refused.error(), (422, "OutOfOrderTimestamp".into()));
    let expected = json!({
        "error": "OutOfOrderTimestamp",
        "message": "Timestamp older than last accepted",
        "last_accepted": at(3_600),
        "submitted": at(0),
        "user_id": "ada",
        "resubmit_after": at(3_300),
    });
    assert_eq!(refused.json(), expected);
    let records = service.records(ORGANISATION_A).await;
    let ids = records.iter().filter(|record| record["scope"] == "measurements").count();
    assert_eq!(ids, 1, "nothing under its id: {records:?}");
    // So that a corrected one is accepted, at the very instant that was suggested.
    submit("ada", &measurement("m2", 3_300)).send(&service).await.must_be(201);
    // Another user has an order of its own.
    submit("bob", &measurement("m2", 0)).send(&service).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_d12_clock_skew_within_the_grace_is_accepted_and_i29_does_not_creep() {
    let service = Service::start("i29");
    submit("ada", &measurement("first", 0)).send(&service).await.must_be(201);
    let mut accepted = 0;
    for step in 1..=20_i64 {
        let late = measurement(&format!("late-{step}"), -299 * step);
        match submit("ada", &late).send(&service).await.status {
            201 => accepted += 1,
            status => assert_eq!(status, 422),
        }
    }
    assert_eq!(accepted, 1, "only the first is within the grace of the latest");
    submit("ada", &measurement("edge", -300)).send(&service).await.must_be(201);
    let beyond = submit("ada", &measurement("beyond", -301)).send(&service).await;
    assert_eq!(beyond.error(), (422, "OutOfOrderTimestamp".into()));
    assert_eq!(beyond.json()["last_accepted"], at(0), "the last timestamp never moves back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_the_last_second_that_can_be_written_is_the_future_and_no_mistake() {
    let service = Service::start("d03_last");
    for written in ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59.123456789012+00:00"] {
        let mut far = measurement("far", 0);
        far["timestamp"] = json!(written);
        let refused = submit("ada", &far).send(&service).await;
        assert_eq!(refused.error(), (422, "FutureTimestamp".into()));
        let submitted = refused.json()["submitted"].as_str().unwrap().to_string();
        assert!(submitted.starts_with("9999-12-31T23:59:59"), "{submitted}");
    }
    let mut nowhere = measurement("far", 0);
    nowhere["timestamp"] = json!("2025-09-15T10:00:00+24:00");
    let refused = submit("ada", &nowhere).send(&service).await;
    assert_eq!(refused.error(), (422, "InvalidMeasurement".into()), "no such offset");
    submit("ada", &measurement("far", 0)).send(&service).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_d12_exactly_same_timestamp_is_allowed_under_another_id() {
    let service = Service::start("d03_equal");
    for id in ["scale", "phone", "watch"] {
        submit("ada", &measurement(id, 0)).send(&service).await.must_be(201);
    }
    assert_eq!(service.listed("ada").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_d12_clock_adjustment_daylight_saving_changes_nothing() {
    let service = Service::start("d03_dst");
    // The hour that comes twice: the second time the clock on the wall shows the same.
    for (id, timestamp, status) in [
        ("before", "2024-10-27T02:50:00+02:00", 201),
        ("again", "2024-10-27T02:10:00+01:00", 201),
        ("spring", "2025-03-30T03:00:00+02:00", 201),
        ("gap", "2025-03-30T01:59:00+01:00", 201),
        ("late", "2025-03-30T02:50:00+02:00", 422),
    ] {
        let mut body = measurement(id, 0);
        body["timestamp"] = json!(timestamp);
        submit("ada", &body).send(&service).await.must_be(status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d03_what_lies_more_than_a_day_in_the_future_is_422() {
    let service = Service::start("d03_future");
    let in_hours = |hours: i64| {
        let mut body = measurement(&format!("in-{hours}"), 0);
        let at = Timestamp::now() + SignedDuration::from_hours(hours);
        body["timestamp"] = json!(at.to_string());
        body
    };
    let refused = submit("ada", &in_hours(25)).send(&service).await;
    assert_eq!(refused.error(), (422, "FutureTimestamp".into()));
    submit("ada", &measurement("now", 0)).send(&service).await.must_be(201);
    submit("ada", &in_hours(23)).send(&service).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d04_d12_retroactive_data_takes_an_admin_and_the_switch() {
    let service = Service::start_with("d04", &[("ALLOW_TIMESTAMP_OVERRIDE", "true")]);
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(201);
    let forced = |token| {
        let late = submit("ada", &measurement("m2", 0)).by(token);
        late.header("x-force-override", "true")
    };
    let refused = forced("demo-a").send(&service).await;
    assert_eq!(refused.error(), (403, "OverrideNotAllowed".into()));
    let unforced = submit("ada", &measurement("m2", 0)).by("demo-admin").send(&service).await;
    assert_eq!(unforced.error(), (422, "OutOfOrderTimestamp".into()), "an admin has to insist");
    let made = forced("demo-admin").send(&service).await.must_be(201);
    assert_eq!(made.json()["status"], "overridden");
    assert_eq!(forced("demo-admin").send(&service).await.must_be(200).body, made.body);
    let audit = service.audit("ada").await;
    let told = |entry: &serde_json::Value| {
        (
            entry["action"].as_str().unwrap().to_string(),
            entry["actor"].as_str().unwrap().to_string(),
        )
    };
    let actions: Vec<_> = audit.iter().map(told).collect();
    let expected = [
        ("accepted", "actor-a"),
        ("rejected", "actor-a"),
        ("rejected", "actor-admin"),
        ("overridden", "actor-admin"),
        ("duplicate", "actor-admin"),
    ];
    assert_eq!(actions, expected.map(|(action, actor)| (action.to_string(), actor.to_string())));
    assert!(audit[1]["reason"].as_str().unwrap().starts_with("OverrideNotAllowed"));
    // It did not move the last timestamp back.
    let late = submit("ada", &measurement("m3", 600)).send(&service).await;
    assert_eq!(late.json()["last_accepted"], at(3_600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d04_without_the_switch_nobody_overrides() {
    let service = Service::start("d04_off");
    let forced = submit("ada", &measurement("m1", 0)).header("x-force-override", "true");
    let refused = forced.by("demo-admin").key("k").send(&service).await;
    assert_eq!(refused.error(), (403, "OverrideNotAllowed".into()));
    // Nothing is recorded under the key: the same request is welcome without insisting.
    let plain = submit("ada", &measurement("m1", 0)).by("demo-admin").key("k");
    plain.send(&service).await.must_be(201);
}
