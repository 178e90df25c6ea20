//! Batches (D08): grouped, sorted, each item with a status of its own.

use serde_json::json;

use super::world::{Service, at, batch, measurement, of, post, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_d12_batch_with_mixed_ordering_is_sorted_per_user() {
    let service = Service::start("d08");
    // As it comes it would be out of order; sorted it is not.
    let items = [
        of("ada", "late", 7_200),
        of("bob", "b1", 0),
        of("ada", "early", 0),
        of("ada", "middle", 3_600),
        of("bob", "b2", -10_000),
    ];
    let answer = batch(&items).send(&service).await;
    assert_eq!(answer.statuses(), ["accepted"; 5]);
    assert_eq!(answer.json()["suggested_retry_order"], json!([]));
    let line = &answer.json()["results"][2];
    assert_eq!((&line["user_id"], &line["measurement_id"]), (&json!("ada"), &json!("early")));
    assert_eq!(service.listed("ada").await.len(), 3);
    let late = submit("ada", &measurement("x", 3_600)).send(&service).await;
    assert_eq!(late.json()["last_accepted"], at(7_200));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_d12_batch_partial_failure_has_a_clear_status_per_item() {
    let service = Service::start("d08_partial");
    submit("ada", &measurement("known", 7_200)).send(&service).await.must_be(201);
    let mut conflict = of("ada", "known", 7_200);
    conflict["weight"] = json!(99);
    let mut invalid = of("ada", "bad", 0);
    invalid["unit"] = json!("ton");
    let items = [
        of("ada", "too-late", 3_600),
        of("ada", "known", 7_200),
        conflict,
        invalid,
        of("ada", "fresh", 7_300),
        of("ada", "later-too-late", 60),
        of("bob", "fresh", 0),
        of("ada", "fresh", 7_300),
        json!("nonsense"),
    ];
    let answer = batch(&items).send(&service).await;
    let expected = [
        "rejected",
        "duplicate",
        "rejected",
        "rejected",
        "accepted",
        "rejected",
        "accepted",
        "duplicate",
        "rejected",
    ];
    assert_eq!(answer.statuses(), expected);
    let results = answer.json()["results"].clone();
    for (index, error) in [
        (0, "OutOfOrderTimestamp"),
        (2, "DuplicateMeasurement"),
        (3, "InvalidMeasurement"),
        (5, "OutOfOrderTimestamp"),
        (8, "InvalidMeasurement"),
    ] {
        assert_eq!(results[index]["error"], error, "{results}");
        assert!(results[index]["message"].is_string());
    }
    assert!(results[4].get("error").is_none());
    assert_eq!(results[0]["resubmit_after"], at(6_900));
    // By time; what has none comes last.
    assert_eq!(answer.json()["suggested_retry_order"], json!([3, 5, 0, 2, 8]));
    let actions = service.actions("ada").await;
    let count = |action: &str| actions.iter().filter(|found| *found == action).count();
    assert_eq!(
        (count("accepted"), count("duplicate"), count("rejected")),
        (2, 2, 4),
        "{actions:?}"
    );
    // Sent again under another key, everything that was accepted is a duplicate.
    let again = batch(&items).send(&service).await.statuses();
    assert_eq!((&*again[4], &*again[6]), ("duplicate", "duplicate"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_fail_fast_stops_the_user_and_nobody_else() {
    let service = Service::start_with("d08_fast", &[("BATCH_FAIL_FAST", "true")]);
    for user in ["ada", "bob"] {
        submit(user, &measurement("known", 7_200)).send(&service).await.must_be(201);
    }
    let items = [
        of("ada", "fits", 7_300),
        of("ada", "too-late", 0),
        of("ada", "known", 7_200),
        of("bob", "fits", 7_300),
        of("bob", "known", 7_200),
    ];
    let answer = batch(&items).send(&service).await;
    assert_eq!(answer.statuses(), ["skipped", "rejected", "skipped", "accepted", "duplicate"]);
    assert_eq!(answer.json()["suggested_retry_order"], json!([1, 2, 0]));
    assert_eq!(service.listed("ada").await.len(), 1);
    assert_eq!(service.actions("ada").await, ["accepted", "rejected", "skipped", "skipped"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_ten_thousand_items_are_a_batch_and_one_more_is_too_many() {
    let service = Service::start("d08_large");
    let count = 10_000;
    let items = |count: i64| -> Vec<_> {
        (0..count).map(|n| of(&format!("u{}", n % 40), &format!("m{n}"), n / 40)).collect()
    };
    let answer = batch(&items(count)).send(&service).await;
    assert!(answer.statuses().iter().all(|status| status == "accepted"));
    assert_eq!(service.listed("u0").await.len() as i64, count / 40);
    let again = batch(&items(count)).send(&service).await;
    assert!(again.statuses().iter().all(|status| status == "duplicate"));
    let mut many = items(10_000);
    many.push(of("u0", "one more", 0));
    let refused = batch(&many).send(&service).await;
    assert_eq!(refused.error(), (422, "InvalidMeasurement".into()));
    assert_eq!(batch(&[]).send(&service).await.statuses(), [""; 0]);
    for broken in ["{}", "[]", "nonsense", r#"{"measurements":7}"#] {
        let refused = post("/v1/measurements/batch").raw(broken).send(&service).await;
        assert_eq!(refused.error(), (422, "InvalidMeasurement".into()), "{broken}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d08_d04_a_batch_may_be_forced_by_an_admin() {
    let service = Service::start_with("d08_forced", &[("ALLOW_TIMESTAMP_OVERRIDE", "true")]);
    submit("ada", &measurement("m1", 7_200)).send(&service).await.must_be(201);
    let forced = |token| {
        batch(&[of("ada", "m2", 0), of("ada", "m3", 7_300)])
            .by(token)
            .header("x-force-override", "true")
    };
    assert_eq!(forced("demo-a").send(&service).await.error(), (403, "OverrideNotAllowed".into()));
    assert_eq!(forced("demo-admin").send(&service).await.statuses(), ["accepted", "accepted"]);
    let actions = service.actions("ada").await;
    assert_eq!(actions, ["accepted", "rejected", "rejected", "overridden", "accepted"]);
}
