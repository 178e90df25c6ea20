//! `onceward backfill measurements FILE` (D10): what came before, taken in once however often.

use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};

use super::world::{ORGANISATION_A, Service, measurement, of, submit};

/// Writes lines into the folder of a service that is not running, and takes them in.
fn backfill(service: &Service, lines: &[String], more: &[&str]) -> Output {
    std::fs::write(service.folder.join("old.ndjson"), lines.join("\n")).unwrap();
    service.beside(&[&["backfill", "measurements", "old.ndjson"], more].concat()).output().unwrap()
}

#[track_caller]
fn told(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_backfill_makes_documents_and_keys_and_may_be_run_again() {
    let mut service = Service::start("d10_backfill");
    submit("ada", &measurement("new", 0)).send(&service).await.must_be(201);
    service.kill();
    let mut lines: Vec<String> = (0..2_500)
        .map(|n| of(&format!("u{}", n % 5), &format!("old{n}"), -1_000_000 + n).to_string())
        .collect();
    // Older than what is there: its order does not count. Known: it stays.
    lines.push(of("ada", "ancient", -9_999_999).to_string());
    lines.push(of("ada", "new", 0).to_string());
    lines.push(String::new());
    let output = backfill(&service, &lines, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(told(&output), json!({ "made": 2_501, "keyed": 0, "there": 1, "refused": [] }));
    let again = backfill(&service, &lines, &["--json"]);
    assert_eq!(told(&again), json!({ "made": 0, "keyed": 0, "there": 2_502, "refused": [] }));
    let service = service.started_again();
    assert_eq!(service.listed("u0").await.len(), 500);
    let known = of("u0", "old0", -1_000_000);
    submit("u0", &known).send(&service).await.must_be(200);
    let mut other = known;
    other["weight"] = json!(99);
    submit("u0", &other).send(&service).await.must_be(409);
    // The last timestamp is that of the latest, and a later one's was not moved back.
    submit("u0", &measurement("late", -2_000_000)).send(&service).await.must_be(422);
    submit("ada", &measurement("next", 1)).send(&service).await.must_be(201);
    let actions = service.actions("ada").await;
    assert_eq!(actions, ["accepted", "backfilled", "accepted"]);
    let records = service.records(ORGANISATION_A).await;
    assert!(records.iter().any(|record| record["scope"] == "measurements"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_backfill_gives_unchecked_measurements_their_keys() {
    let mut service = Service::start_with("d10_keyed", &[("ENABLE_IDEMPOTENCY", "false")]);
    submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    service.kill();
    let lines = [of("ada", "m1", 0).to_string()];
    let first = told(&backfill(&service, &lines, &["--json"]));
    assert_eq!(first, json!({ "made": 0, "keyed": 1, "there": 0, "refused": [] }));
    let again = told(&backfill(&service, &lines, &["--json"]));
    assert_eq!(again, json!({ "made": 0, "keyed": 0, "there": 1, "refused": [] }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_a_byte_order_mark_is_no_part_of_the_first_line() {
    let mut service = Service::start("d10_mark");
    service.kill();
    let lines = [format!("\u{feff}{}", of("ada", "m1", 0)), of("ada", "m2", 0).to_string()];
    let output = told(&backfill(&service, &lines, &["--json"]));
    assert_eq!(output, json!({ "made": 2, "keyed": 0, "there": 0, "refused": [] }));
    // Elsewhere it is what it is: no JSON.
    let lines = [of("ada", "m1", 0).to_string(), format!("\u{feff}{}", of("ada", "m3", 0))];
    assert_eq!(told(&backfill(&service, &lines, &["--json"]))["refused"][0]["line"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_bad_lines_are_told_with_their_numbers_and_the_others_are_taken_in() {
    let mut service = Service::start("d10_bad");
    submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    service.kill();
    let mut conflict = of("ada", "m1", 0);
    conflict["weight"] = json!(99);
    let mut bad = of("ada", "m2", 0);
    bad["unit"] = json!("ton");
    let lines = [
        of("ada", "good", 0).to_string(),
        "nonsense".into(),
        bad.to_string(),
        conflict.to_string(),
        of("bob", "good", 0).to_string(),
    ];
    let output = backfill(&service, &lines, &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for expected in [
        "line 2: is not a JSON object",
        "line 3: unit must be kg, lb, st or g",
        "line 4: measurement m1 is there with another payload",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let output = service.beside(&["backfill", "measurements", "nowhere.ndjson"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let service = service.started_again();
    assert_eq!(service.listed("ada").await.len(), 2);
    assert_eq!(service.listed("bob").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d10_a_killed_backfill_is_run_again_and_ends_the_same() {
    let mut service = Service::start("d10_killed");
    service.kill();
    let lines: Vec<String> =
        (0..6_000).map(|n| of(&format!("u{}", n % 6), &format!("old{n}"), n).to_string()).collect();
    std::fs::write(service.folder.join("old.ndjson"), lines.join("\n")).unwrap();
    for ms in [60, 120, 250] {
        let mut child =
            service.beside(&["backfill", "measurements", "old.ndjson"]).spawn().unwrap();
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(ms)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = backfill(&service, &lines, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    let done = told(&output);
    let sum =
        ["made", "keyed", "there"].map(|name| done[name].as_u64().unwrap()).iter().sum::<u64>();
    assert_eq!(sum, 6_000);
    let service = service.started_again();
    for user in 0..6 {
        let user = format!("u{user}");
        assert_eq!(service.listed(&user).await.len(), 1_000);
        let actions = service.actions(&user).await;
        assert_eq!(actions, vec!["backfilled"; 1_000], "each once");
    }
}
