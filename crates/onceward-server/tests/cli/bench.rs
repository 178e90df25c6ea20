//! `onceward bench`: the shape of its reports, and that it leaves nothing behind. Figures are not
//! judged here: a test machine is no bench.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::sample::{command, folder, ran, run};

#[test]
fn the_report_has_its_fixed_shape() {
    let folder = folder("bench");
    let arguments =
        ["bench", "store", "--seconds", "1", "--callers", "8", "--records", "100,11000", "--json"];
    let report = run(&folder, &arguments).json();
    let results = report["results"].as_array().unwrap();
    for result in results {
        assert!(result["name"].is_string(), "{result}");
        for number in ["per_second", "p50_ms", "p99_ms"] {
            assert!(result[number].as_f64().unwrap() >= 0.0, "{result}");
        }
        assert!(result["per_second"].as_f64().unwrap() > 0.0, "{result}");
    }
    for ratio in [
        "pairs_vs_sqlite_limit",
        "pairs_vs_single_statements",
        "one_commit_vs_single_statements",
        "one_commit_vs_two",
        "replays_vs_bare_reads",
        "at_11k_vs_100",
    ] {
        assert!(report["ratios"][ratio].as_f64().unwrap() > 0.0, "{ratio}: {report}");
    }
    assert!(report["env"]["cores"].as_u64().unwrap() > 0);
    assert_eq!(report["env"]["callers"], 8);
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_store_elsewhere_is_measured_without_baselines() {
    let folder = folder("bench-memory");
    let arguments =
        ["bench", "store", "--store", "memory:", "--seconds", "1", "--callers", "4", "--json"];
    let report = run(&folder, &arguments).json();
    assert!(report["ratios"]["one_commit_vs_two"].as_f64().unwrap() > 0.0);
    assert_eq!(report["ratios"]["pairs_vs_sqlite_limit"], Value::Null);
    let file = folder.join("store.json");
    std::fs::write(&file, report.to_string()).unwrap();
    let page = run(&folder, &["bench", "page", "store.json"]).ok();
    assert!(page.contains("\n## `bench store` on memory\n"), "{page}");
    assert!(page.contains("\n| `one_commit_vs_two` | "), "{page}");
    std::fs::write(&file, "[]").unwrap();
    let refused = run(&folder, &["bench", "page", "store.json", "--json"]);
    assert_eq!((refused.code, refused.error().0.as_str()), (2, "bench.report"));
}

#[test]
fn a_bench_that_is_told_to_end_leaves_nothing_behind() {
    let folder = folder("bench-ended");
    let mut bench = command(&folder, &["bench", "store", "--seconds", "60", "--json"]);
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let made = folder.join(format!(".onceward-bench-{}", bench.id())).join("writes.db");
    while !made.exists() {
        // sleeps because another process makes the file and has nobody to tell
        std::thread::sleep(Duration::from_millis(5));
    }
    let told = Command::new("kill").args(["-TERM", &bench.id().to_string()]).status().unwrap();
    assert!(told.success());
    let ended = ran(bench.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.error().0.as_str()), (1, "interrupted"));
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_report_over_http_has_its_fixed_shape_and_duplicates_run_once() {
    let folder = folder("bench-http");
    let arguments = ["bench", "http", "--seconds", "1", "--connections", "4", "--keys", "50"];
    let report = run(&folder, &[&arguments[..], &["--json"]].concat()).json();
    let results = report["results"].as_array().unwrap();
    assert!(results.len() >= 8, "{report}");
    for result in results {
        assert!(result["per_second"].as_f64().unwrap() > 0.0, "{result}");
        assert!(result["p99_ms"].as_f64() >= result["p50_ms"].as_f64(), "{result}");
    }
    for ratio in ["layer_first_vs_bare", "layer_one_commit_vs_bare", "layer_replay_vs_bare"] {
        assert!(report["ratios"][ratio].as_f64().unwrap() > 0.0, "{ratio}: {report}");
    }
    let expected = serde_json::json!({ "keys": 50, "duplicates": 4, "executions": 50 });
    assert_eq!(report["env"]["duplicates"], expected);
    assert!(report["env"]["layer_added_p50_ms"].is_number(), "{report}");
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn over_http_only_the_embedded_store_is_measured() {
    let folder = folder("bench-http-memory");
    let ran = run(&folder, &["bench", "http", "--store", "memory:", "--json"]);
    assert_eq!((ran.code, ran.error().0.as_str()), (2, "bench.store"));
}

#[test]
fn jobs_are_measured_from_enqueue_to_done() {
    let folder = folder("bench-jobs");
    let arguments = ["bench", "jobs", "--seconds", "1", "--waiting", "2000", "--json"];
    let report = run(&folder, &arguments).json();
    let results = report["results"].as_array().unwrap();
    assert!(results.len() >= 9, "{report}");
    for result in results {
        assert!(result["per_second"].as_f64().unwrap() > 0.0, "{result}");
    }
    assert!(report["ratios"]["at_2k_vs_empty"].as_f64().unwrap() > 0.0, "{report}");
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
