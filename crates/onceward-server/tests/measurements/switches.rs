//! Switches, roll-out and variables (D10, D11).

use serde_json::json;

use super::world::{Service, at, batch, command, measurement, of, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_switched_off_everything_is_taken_and_audited_as_unchecked() {
    let off = [("ENABLE_IDEMPOTENCY", "false"), ("ENABLE_ORDERING", "false")];
    let service = Service::start_with("d10_off", &off);
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(201);
    submit("ada", &measurement("m2", 0)).send(&service).await.must_be(201);
    let mut other = measurement("m1", 3_600);
    other["weight"] = json!(90);
    submit("ada", &other).send(&service).await.must_be(201);
    assert_eq!(service.actions("ada").await, ["unchecked"; 3]);
    let listed = service.listed("ada").await;
    assert_eq!((listed.len(), &listed[0]["weight"]), (2, &json!(90.0)), "the last one stands");
    // Switched on, what is there guards its ids, and the latest timestamp stands.
    let mut service = service;
    service.kill();
    let service = service.started_again();
    submit("ada", &other).send(&service).await.must_be(200);
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(409);
    let late = submit("ada", &measurement("m3", 0)).send(&service).await.must_be(422);
    assert_eq!(late.json()["last_accepted"], at(3_600));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_each_check_has_a_switch_of_its_own() {
    let service = Service::start_with("d10_order", &[("ENABLE_ORDERING", "false")]);
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(201);
    submit("ada", &measurement("m2", 0)).send(&service).await.must_be(201);
    submit("ada", &measurement("m2", 0)).send(&service).await.must_be(200);
    let audit = service.audit("ada").await;
    assert_eq!(audit[1]["action"], "unchecked");
    assert_eq!(audit[1]["reason"], "the order was not checked");
    let service = Service::start_with("d10_ids", &[("ENABLE_IDEMPOTENCY", "false")]);
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(201);
    submit("ada", &measurement("m1", 3_600)).send(&service).await.must_be(201);
    submit("ada", &measurement("m2", 0)).send(&service).await.must_be(422);
    assert_eq!(service.actions("ada").await, ["unchecked", "unchecked", "rejected"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_ids_that_are_not_checked_may_repeat_in_a_batch_as_often_as_they_like() {
    let service = Service::start_with("d10_repeats", &[("ENABLE_IDEMPOTENCY", "false")]);
    let twice = (0..130).map(|n| of("ada", &format!("m{}", n / 2), n));
    let one = (0..130).map(|n| {
        let mut item = of("bob", "m", n);
        item["weight"] = json!(1 + n);
        item
    });
    let items: Vec<_> = twice.chain(one).collect();
    let answer = batch(&items).send(&service).await;
    assert_eq!(answer.statuses(), ["accepted"; 260]);
    for user in ["ada", "bob"] {
        assert_eq!(service.actions(user).await, ["unchecked"; 130], "each once");
    }
    assert_eq!(service.listed("ada").await.len(), 65);
    let listed = service.listed("bob").await;
    assert_eq!((listed.len(), &listed[0]["weight"]), (1, &json!(130.0)), "the last one stands");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_a_roll_out_reaches_some_users_always_the_same() {
    const USERS: usize = 40;
    let half = [("IDEMPOTENCY_ROLLOUT_PERCENT", "50")];
    let mut service = Service::start_with("d10_rollout", &half);
    let mut before: Option<Vec<bool>> = None;
    for id in ["m1", "m2"] {
        let mut reached = Vec::new();
        for user in 0..USERS {
            let user = format!("user-{user}");
            submit(&user, &measurement(id, 0)).send(&service).await.must_be(201);
            let again = submit(&user, &measurement(id, 0)).send(&service).await;
            let last = service.actions(&user).await.last().unwrap().clone();
            match again.status {
                200 => assert_eq!(last, "duplicate"),
                _ => assert_eq!((again.status, &*last), (201, "unchecked")),
            }
            reached.push(again.status == 200);
        }
        let count = reached.iter().filter(|reached| **reached).count();
        assert!((USERS / 5..=USERS * 4 / 5).contains(&count), "{count} of {USERS}");
        // Another process tells the same.
        assert!(before.is_none_or(|before| before == reached));
        before = Some(reached);
        service.kill();
        service = service.started_again_with(&half);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d11_the_variables_are_heard() {
    let service = Service::start_with(
        "d11",
        &[("ORDERING_GRACE_PERIOD_SECONDS", "10"), ("IDEMPOTENCY_TTL_DAYS", "3")],
    );
    submit("ada", &measurement("m1", 100)).send(&service).await.must_be(201);
    submit("ada", &measurement("m2", 90)).send(&service).await.must_be(201);
    let late = submit("ada", &measurement("m3", 89)).send(&service).await.must_be(422);
    assert_eq!(late.json()["resubmit_after"], at(90));
    let records = service.records(super::world::ORGANISATION_A).await;
    let record = records.iter().find(|record| record["scope"] == "measurements").unwrap();
    let instant = |name: &str| record[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let kept = instant("expires_at").duration_since(instant("created_at"));
    assert_eq!(kept.as_secs(), 3 * 86_400);
}

#[test]
fn d11_a_bad_value_ends_the_start_and_names_its_variable() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("measurements-variables");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, value) in [
        ("ENABLE_IDEMPOTENCY", "maybe"),
        ("IDEMPOTENCY_TTL_DAYS", "0"),
        ("ENABLE_ORDERING", "si"),
        ("ORDERING_GRACE_PERIOD_SECONDS", "-5"),
        ("AUDIT_TTL_DAYS", "forever"),
        ("BATCH_FAIL_FAST", "2"),
        ("ALLOW_TIMESTAMP_OVERRIDE", ""),
        ("IDEMPOTENCY_ROLLOUT_PERCENT", "101"),
    ] {
        let arguments = ["demo", "measurements", "--no-traffic", "--store", "memory:"];
        let mut command = command(&folder, &arguments);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let output = command.env(name, value).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(name) && said.contains("must be"), "{said}");
    }
}
