//! Bad input: exit code, the code that programs read, and the words that people need.

use std::path::Path;

use rusqlite::Connection;

use super::sample::{folder, make, run};

/// Runs with and without `--json`; both tell the same.
#[track_caller]
fn check(folder: &Path, arguments: &[&str], exit: i32, code: &str, words: &[&str]) {
    let text = run(folder, arguments);
    assert_eq!(text.code, exit, "{arguments:?}: {}", text.stderr);
    assert_eq!(text.stdout, "", "{arguments:?}");
    assert!(text.stderr.starts_with("error: "), "{arguments:?}: {}", text.stderr);
    for word in words {
        assert!(text.stderr.contains(word), "{arguments:?}: no {word:?} in {}", text.stderr);
    }
    let mut with_json = arguments.to_vec();
    with_json.push("--json");
    let json = run(folder, &with_json);
    assert_eq!(json.code, exit, "{arguments:?}: {}", json.stderr);
    assert_eq!(json.error().0, code, "{arguments:?}: {}", json.stderr);
}

#[test]
fn wrong_usage_says_what_is_right() {
    let folder = folder("usage");
    make(&folder);
    let key = "acme:request:s:i";
    let long = format!("acme:request:s:{}", "x".repeat(513));
    for (arguments, code, words) in [
        (&["keys", "show", "nonsense"][..], "usage", &["tenant:kind:scope:id", "%3A"][..]),
        (&["keys", "show", "acme:nope:s:i"], "usage", &["request, job, event or append"]),
        (&["keys", "show", ""], "usage", &["tenant:kind:scope:id"]),
        (&["keys", "show", &long], "usage", &["id is 513 bytes", "512"]),
        (&["keys", "list", "--state", "asleep"], "usage", &["pending, running, done"]),
        (&["keys", "list", "--limit", "0"], "usage", &["1..=1000"]),
        (&["keys", "list", "--limit", "1001"], "usage", &["1..=1000"]),
        (&["keys", "list", "--after", "nonsense"], "limit", &["cursor"]),
        (&["audit", "list", "--after", "nonsense"], "limit", &["cursor"]),
        (&["audit", "list", "--from", "yesterday"], "usage", &["2026-11-15T08:00:00Z", "3h"]),
        (&["audit", "list", "--key", "nonsense"], "usage", &["tenant:kind:scope:id"]),
        (
            &["dead", "discard", "acme:job:q:t:i", "--yes", "--tenant", "other"],
            "usage",
            &["does not fit --tenant other"],
        ),
        (
            &["dead", "retry", "acme:job:q:t:i", "--queue", "p"],
            "usage",
            &["does not fit --queue p"],
        ),
        (&["keys", "resolve", key], "usage", &["--as"]),
        (&["keys", "resolve", key, "--as", "gone"], "usage", &["rerun, done, dead"]),
        (&["keys", "resolve", key, "--as", "rerun", "--outcome", "x"], "usage", &["--as done"]),
        (&["keys", "resolve", key, "--as", "done", "--reason", "x"], "usage", &["--as dead"]),
        (&["keys", "resolve", key, "--as", "dead", "--force"], "usage", &["--as rerun"]),
        (
            &["keys", "resolve", key, "--as", "done", "--outcome", "@nowhere"],
            "outcome.file",
            &["nowhere"],
        ),
        (&["keys", "erase", key], "confirm", &["--yes"]),
        (&["keys", "list", "--store", "redis://u:secret@h"], "store.url", &["sqlite:PATH"]),
        (&["keys", "list", "--store", "onceward.db"], "store.url", &["sqlite:PATH"]),
        (&["keys", "list", "--store", "sqlite:"], "store.url", &["needs a path"]),
        (&["migrate", "--store", "memory:"], "store.url", &["no tables"]),
        (
            &["migrate", "--server", "http://127.0.0.1:1"],
            "server.not_used",
            &["leave out --server", "ONCEWARD_SERVER"],
        ),
        (&["bench", "store", "--seconds", "0"], "usage", &["1..=3600"]),
        (&["keys", "frobnicate"], "usage", &["frobnicate"]),
        (&["frobnicate"], "usage", &["frobnicate"]),
    ] {
        check(&folder, arguments, 2, code, words);
    }
    let secret = run(&folder, &["keys", "list", "--store", "redis://u:secret@h"]);
    assert!(!secret.stderr.contains("secret"), "{}", secret.stderr);
}

#[test]
fn a_store_that_can_not_be_opened_says_why() {
    let folder = folder("stores");
    std::fs::write(folder.join("text.db"), "not a database at all, but long enough").unwrap();
    std::fs::create_dir(folder.join("folder.db")).unwrap();
    let foreign = Connection::open(folder.join("foreign.db")).unwrap();
    foreign.execute_batch("CREATE TABLE theirs (id INTEGER)").unwrap();
    make(&folder);
    let newer = Connection::open(folder.join("onceward.db")).unwrap();
    newer.execute_batch("INSERT INTO migrations VALUES (99, 'later', x'00', 0)").unwrap();
    drop(newer);
    for (store, code, words) in [
        ("sqlite:none.db", "store.missing", &["no database at none.db", "onceward migrate"][..]),
        ("sqlite:text.db", "store.open", &["text.db", "not a database"]),
        ("sqlite:folder.db", "store.open", &["folder.db", "folder"]),
        ("sqlite:foreign.db", "store.open", &["foreign.db", "another program"]),
        ("sqlite:onceward.db", "store.open", &["version 99", "newer"]),
    ] {
        for command in [&["keys", "list"][..], &["sweep"], &["audit", "list"]] {
            let mut arguments = command.to_vec();
            arguments.extend(["--store", store]);
            check(&folder, &arguments, 1, code, words);
        }
    }
    assert!(!folder.join("none.db").exists(), "a mistyped path makes no store");
    assert_eq!(std::fs::read(folder.join("text.db")).unwrap()[..3], *b"not");
}

#[test]
fn an_absent_key_is_told_as_absent() {
    let folder = folder("absent");
    make(&folder);
    for arguments in [
        &["keys", "show", "acme:request:s:nobody"][..],
        &["keys", "erase", "acme:request:s:nobody", "--yes"],
        &["keys", "resolve", "acme:request:s:nobody", "--as", "rerun"],
    ] {
        check(&folder, arguments, 1, "key.absent", &["acme:request:s:nobody", "keys list"]);
    }
}
