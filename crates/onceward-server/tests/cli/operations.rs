//! Audit, sweep, migrate, completions, man pages, and how the binary talks in general.

use std::io::Write;
use std::process::{Command, Stdio};

use super::sample::{command, folder, make, ran, request, run};

#[test]
fn the_audit_is_searched() {
    let folder = folder("audit");
    make(&folder);
    let count = |arguments: &[&str]| {
        let mut all = vec!["audit", "list", "--json"];
        all.extend(arguments);
        run(&folder, &all).json()["items"].as_array().unwrap().len()
    };
    let all = count(&[]);
    assert!(all >= 10, "{all}");
    assert_eq!(count(&["--action", "request.done"]), 5);
    assert_eq!(count(&["--key", &request("done-1").to_string(), "--action", "request.done"]), 1);
    assert_eq!(count(&["--key", request("done-1").hash_hex(), "--action", "request.done"]), 1);
    assert_eq!(count(&["--tenant", "globex"]) + count(&["--tenant", "acme"]), all);
    assert_eq!(count(&["--subject", "mail"]), count(&["--tenant", "globex"]));
    assert_eq!(count(&["--from", "1h"]), all);
    assert_eq!(count(&["--to", "1h"]), 0);
    assert_eq!(count(&["--from", "2020-01-01", "--to", "2020-01-02T00:00:00Z"]), 0);
    let text = run(&folder, &["audit", "list", "--limit", "1"]).ok();
    assert!(text.contains("ACTION") && text.contains("--after '"), "{text}");
}

#[test]
fn the_audit_is_exported_and_verified() {
    let folder = folder("audit_export");
    make(&folder);
    let all = run(&folder, &["audit", "list", "--json", "--limit", "1000"]).json();
    let all = all["items"].as_array().unwrap();
    let lines = run(&folder, &["audit", "export"]).ok();
    let read: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(&read, all);
    let array = run(&folder, &["audit", "export", "--format", "json"]).json();
    assert_eq!(array.as_array().unwrap(), all);
    let sheet = run(&folder, &["audit", "export", "--format", "csv", "--tenant", "globex"]).ok();
    assert!(sheet.starts_with("id,at,tenant,action,"), "{sheet}");
    let mail = all.iter().filter(|entry| entry["tenant"] == "globex").count();
    assert_eq!(sheet.lines().count(), mail + 1);
    let none = run(&folder, &["audit", "export", "--format", "json", "--to", "1h"]).json();
    assert_eq!(none, serde_json::json!([]));
    // Nothing is sealed without a server, and that is no fault.
    let found = run(&folder, &["audit", "verify", "--json"]).json();
    assert_eq!((&found["ok"], &found["sealed"]), (&true.into(), &0.into()), "{found}");
    assert_eq!(found["unsealed"], all.len());
    let found = run(&folder, &["audit", "verify", "--tenant", "globex", "--json"]).json();
    assert_eq!(found["unsealed"], mail);
    let text = run(&folder, &["audit", "verify"]).ok();
    assert!(text.starts_with("Verified sqlite:onceward.db: 0 sealed entries"), "{text}");
}

#[test]
fn a_sweep_drops_what_is_past_its_time() {
    let folder = folder("sweep");
    make(&folder);
    let first = run(&folder, &["sweep", "--json"]).json();
    let swept = first["expired"].as_u64().unwrap() + first["forgotten"].as_u64().unwrap();
    assert_eq!(swept, 2, "{first}");
    // A key that is remembered for no time may need a second look.
    run(&folder, &["sweep"]).ok();
    let expired = run(&folder, &["keys", "list", "--state", "expired", "--json"]).json();
    assert_eq!(expired["items"].as_array().unwrap().len(), 1);
    assert_eq!(expired["items"][0]["id"], "expired");
    let last = run(&folder, &["sweep"]).ok();
    assert!(last.contains("0 outcomes dropped, 0 keys forgotten"), "{last}");
}

#[test]
fn migrate_makes_a_store() {
    let folder = folder("migrate");
    let made = run(&folder, &["migrate", "--json"]).json();
    assert_eq!((&made["store"], &made["version"]), (&"sqlite:onceward.db".into(), &3.into()));
    assert_eq!(run(&folder, &["migrate"]).ok(), "sqlite:onceward.db is at schema version 3.\n");
    let empty = run(&folder, &["keys", "list"]).ok();
    assert_eq!(empty, "No records in sqlite:onceward.db fit.\n");
    let other = run(&folder, &["migrate", "--store", "sqlite:other.db"]);
    other.ok();
    assert!(folder.join("other.db").exists());
}

#[test]
fn variables_stand_in_for_flags() {
    let folder = folder("variables");
    make(&folder);
    let mut listing = command(&folder, &["keys", "list"]);
    listing.env("ONCEWARD_JSON", "1").env("ONCEWARD_TENANT", "globex");
    let page = ran(listing.output().unwrap()).json();
    assert_eq!(page["items"].as_array().unwrap().len(), 2);
    let mut elsewhere = command(&folder, &["keys", "list"]);
    elsewhere.env("ONCEWARD_STORE", "memory:");
    assert_eq!(ran(elsewhere.output().unwrap()).ok(), "No records in memory: fit.\n");
}

#[test]
fn completions_and_man_pages_come_from_the_definitions() {
    let folder = folder("generate");
    for shell in ["bash", "zsh", "fish"] {
        let text = run(&folder, &["completions", shell]).ok();
        assert!(text.contains("onceward") && text.contains("resolve"), "{shell}");
    }
    assert!(run(&folder, &["man"]).ok().contains(".TH onceward 1"));
    run(&folder, &["man", "--out", "pages"]).ok();
    for page in ["onceward.1", "onceward-keys-resolve.1", "onceward-bench-store.1"] {
        let text = std::fs::read_to_string(folder.join("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = folder("pipe");
    // The page is written into a pipe that nobody reads any more.
    let mut child = command(&folder, &["completions", "bash"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = ran(child.wait_with_output().unwrap());
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
}

/// Reads a description from standard input, and says what is wrong with it.
const VALIDATE: &str = "import json, sys\n\
                        from openapi_spec_validator import validate\n\
                        validate(json.load(sys.stdin))";

#[test]
fn l12_the_description_of_the_control_api_is_valid() {
    let text = run(&folder("openapi-valid"), &["openapi"]).ok();
    let installed = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python");
    let mut python = Command::new("python3");
    python.args(["-c", VALIDATE]).stdin(Stdio::piped()).stderr(Stdio::piped());
    // Where `cargo xtask ci` puts it, unless it says otherwise.
    if std::env::var_os("PYTHONPATH").is_none() {
        python.env("PYTHONPATH", installed);
    }
    let mut child = python.spawn().expect("this test needs python3");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !said.contains("No module named"),
        "this test needs `pip install openapi-spec-validator==0.7.2`, which `cargo xtask ci` does"
    );
    assert!(output.status.success(), "{said}");
}

#[test]
fn the_control_api_is_described() {
    let folder = folder("openapi");
    let document = run(&folder, &["openapi"]).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    assert!(document["paths"]["/v1/claims"]["post"].is_object(), "{document}");
}
