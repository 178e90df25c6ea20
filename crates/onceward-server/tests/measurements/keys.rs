//! Keys of requests (D06): a stored answer for a day, echoed, refused for anything else.

use futures_util::future::join_all;
use serde_json::json;

use super::world::{Service, batch, get, measurement, of, post, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_a_request_with_its_key_again_is_answered_as_before() {
    let service = Service::start("d06");
    let sent = || {
        let path = "/v1/users/ada/measurements";
        post(path).keyless().header("x-idempotency-key", "k").json(&measurement("m1", 0))
    };
    let first = sent().send(&service).await.must_be(201);
    assert_eq!(first.header("x-idempotency-key"), "k");
    assert_eq!(first.header("warning"), "");
    let again = sent().send(&service).await.must_be(201);
    assert!(again.is_replay() && again.body == first.body);
    assert_eq!(again.header("x-idempotency-key"), "k");
    // A refusal is an answer too.
    let mut other = measurement("m1", 0);
    other["weight"] = json!(90);
    let refused = || submit("ada", &other).key("r");
    let one = refused().send(&service).await.must_be(409);
    let two = refused().send(&service).await.must_be(409);
    assert!(two.is_replay() && one.body == two.body);
    assert_eq!(two.header("x-duplicate-of"), "m1");
    // A recorded duplicate is named again as well.
    let known = || submit("ada", &measurement("m1", 0)).key("known");
    known().send(&service).await.must_be(200);
    let known = known().send(&service).await.must_be(200);
    assert!(known.is_replay() && known.header("x-duplicate-of") == "m1");
    let service = service.killed_and_started();
    let later = sent().send(&service).await.must_be(201);
    assert!(later.is_replay() && later.body == first.body, "it survives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_d12_idempotency_key_reuse_with_another_request_is_409() {
    let service = Service::start("d06_reuse");
    submit("ada", &measurement("m1", 0)).key("k").send(&service).await.must_be(201);
    let other = submit("ada", &measurement("m2", 0)).key("k").send(&service).await;
    assert_eq!(other.error(), (409, "IdempotencyKeyReused".into()));
    assert_eq!(other.header("x-idempotency-key"), "k");
    assert_eq!(other.header("x-duplicate-of"), "", "it is the key that was known");
    // Another caller and another user have keys of their own.
    let theirs = submit("ada", &measurement("m2", 0)).key("k").by("demo-a2");
    theirs.send(&service).await.must_be(201);
    submit("bob", &measurement("m1", 0)).key("k").send(&service).await.must_be(201);
    let mixed = submit("ada", &measurement("m3", 0)).key("a").header("x-idempotency-key", "b");
    assert_eq!(mixed.send(&service).await.error(), (400, "InvalidIdempotencyKey".into()));
    let both = submit("ada", &measurement("m3", 0)).key("a").header("x-idempotency-key", "a");
    both.send(&service).await.must_be(201);
    let bad = submit("ada", &measurement("m4", 0)).key("with space").send(&service).await;
    assert_eq!(bad.error(), (400, "InvalidIdempotencyKey".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_d12_missing_idempotency_key_is_processed_with_a_warning() {
    let service = Service::start("d06_missing");
    let single = submit("ada", &measurement("m1", 0)).keyless().send(&service).await.must_be(201);
    let many = batch(&[of("ada", "m2", 0)]).keyless().send(&service).await.must_be(200);
    for answer in [&single, &many] {
        assert!(answer.header("warning").starts_with("299 "), "{answer:?}");
        assert_eq!(answer.header("x-idempotency-key"), "");
    }
    // The id still counts once.
    submit("ada", &measurement("m1", 0)).keyless().send(&service).await.must_be(200);
    // Who has no identity submits nothing, with or without a key.
    for call in [submit("ada", &measurement("x", 0)), batch(&[of("ada", "x", 0)])] {
        assert_eq!(call.clone().anonymous().send(&service).await.status, 401);
        assert_eq!(call.anonymous().keyless().send(&service).await.status, 401);
    }
    assert_eq!(get("/v1/users/ada/measurements").anonymous().send(&service).await.status, 401);
    for call in [get("/v1/nowhere"), post("/v1/nowhere"), post("/v1/users/ada/audit")] {
        assert_eq!(call.clone().anonymous().send(&service).await.status, 401);
        assert!([404, 405].contains(&call.send(&service).await.status));
    }
    assert!(service.listed("ada").await.iter().all(|found| found["measurement_id"] != "x"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_d12_ttl_expiration_is_a_day_for_requests() {
    let service = Service::start("d06_ttl");
    let document = get("/.well-known/idempotency-policy").send(&service).await.json();
    let routes = document["routes"].as_array().unwrap();
    assert_eq!(routes.len(), 2);
    for route in routes {
        let retention = &route["retention"];
        assert_eq!(
            (&retention["success_s"], &retention["error_s"]),
            (&json!(86_400), &json!(86_400))
        );
        assert_eq!(route["key"]["missing"], "allow");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_a_duplicate_of_a_running_batch_waits_or_is_told_when_to_come_again() {
    let service = Service::start("d06_running");
    let items: Vec<_> =
        (0..3_000).map(|n| of(&format!("u{}", n % 7), &format!("m{n}"), n)).collect();
    let sent = (0..6).map(|_| batch(&items).key("k").send(&service));
    let answers = join_all(sent).await;
    let mut whole = None;
    for answer in &answers {
        match answer.status {
            200 => {
                let first = whole.get_or_insert_with(|| answer.body.clone());
                assert_eq!(*first, answer.body, "one answer");
            }
            _ => {
                assert_eq!(answer.error(), (409, "RequestInProgress".into()));
                assert!(answer.header("retry-after").parse::<u32>().unwrap() >= 1);
                assert_eq!(answer.header("retry-after"), answer.header("x-retry-after"));
            }
        }
    }
    assert!(whole.is_some());
    // D07: whoever was told to come again has tried, with each of the items.
    let told = answers.iter().filter(|answer| answer.status == 409).count();
    let tried = "onceward_measurements_refused_total{error=\"RequestInProgress\"}";
    let told = u32::try_from(told * items.len()).unwrap();
    assert_eq!(service.metric(tried).await, f64::from(told));
    let last = batch(&items).key("k").send(&service).await.must_be(200);
    assert!(last.is_replay());
    assert!(last.statuses().iter().all(|status| status == "accepted"), "it ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d06_a_path_that_is_spelled_otherwise_is_the_same_user_and_key() {
    let service = Service::start("d06_spelled");
    let sent = |user: &str| submit(user, &measurement("m1", 0)).key("k");
    let first = sent("a%C3%A9").send(&service).await.must_be(201);
    for spelled in ["%61%C3%A9", "a%c3%a9", "%61%c3%A9"] {
        let again = sent(spelled).send(&service).await.must_be(201);
        assert!(again.is_replay() && again.body == first.body, "{spelled}: {again:?}");
    }
    let spelled = post("/v1/%75sers/a%C3%A9/measurements").key("k").json(&measurement("m1", 0));
    assert!(spelled.send(&service).await.must_be(201).is_replay());
    let anew = post("/v1/%75sers/b/measurements").key("b").json(&measurement("m2", 0));
    anew.send(&service).await.must_be(201);
    let other = sent("%2561%C3%A9").send(&service).await.must_be(201);
    assert_eq!(other.json()["user_id"], "%61é", "decoded once");
    assert_eq!(service.listed("a%C3%A9").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_text_or_too_large_is_refused_in_the_same_words() {
    let service = Service::start("words");
    let nobody = submit("%FF", &measurement("m1", 0)).send(&service).await;
    assert_eq!(nobody.error(), (404, "NotFound".into()));
    for path in ["/v1/users/%FF/measurements", "/v1/users/%FF/audit"] {
        assert_eq!(get(path).send(&service).await.error(), (404, "NotFound".into()), "{path}");
    }
    let large = || {
        let item = json!({ "source": "x".repeat(9 * 1024 * 1024) });
        batch(&[item])
    };
    for call in [large(), large().keyless()] {
        assert_eq!(call.send(&service).await.error(), (413, "body.too_large".into()));
    }
}
