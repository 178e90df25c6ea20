//! `onceward config`, and the file as every command sees it.

use serde_json::Value;

use super::sample::{folder, run};

#[test]
fn check_prints_what_a_file_comes_to_and_the_example_passes_it() {
    let folder = folder("config-check");
    let example = run(&folder, &["config", "example"]);
    assert_eq!(example.code, 0, "{}", example.stderr);
    std::fs::write(folder.join("onceward.toml"), &example.stdout).unwrap();
    let checked = run(&folder, &["config", "check", "--listen", "127.0.0.1:9"]);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    assert!(checked.stdout.contains("listen = \"127.0.0.1:9\""), "{}", checked.stdout);
    std::fs::write(folder.join("again.toml"), &checked.stdout).unwrap();
    let again = run(&folder, &["config", "check", "--config", "again.toml"]);
    assert_eq!(again.stdout, checked.stdout);
    let store = ["--store", "postgres://u:hunter2@h/d", "--json"];
    let json = run(&folder, &[&["config", "check"][..], &store].concat());
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(value["store"]["url"], "postgres://u@h/d");
    assert_eq!(value["limits"]["in_flight"], 100_000);
}

#[test]
fn everything_that_is_wrong_is_told_at_once_with_exit_2() {
    let folder = folder("config-wrong");
    let text =
        "[server]\nlistn = \"127.0.0.1:1\"\n[[route]]\nmatch = \"POST /x\"\nretain = \"5s\"\n";
    std::fs::write(folder.join("bad.toml"), text).unwrap();
    let told = run(&folder, &["config", "check", "--config", "bad.toml"]);
    assert_eq!((told.code, told.stdout.as_str()), (2, ""));
    for words in [
        "bad.toml:2: server.listn: unknown field; did you mean `listen`?",
        "bad.toml:5: route[0].retain: \"5s\" is out of bounds",
        "attempts × back-off + lease + wait",
    ] {
        assert!(told.stderr.contains(words), "no {words:?} in {}", told.stderr);
    }
    let json = run(&folder, &["config", "check", "--config", "bad.toml", "--json"]);
    assert_eq!((json.code, json.error().0.as_str()), (2, "config.invalid"));
    let missing = run(&folder, &["config", "check", "--config", "none.toml"]);
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("none.toml"), "{}", missing.stderr);
}

#[test]
fn every_command_takes_its_store_from_the_file() {
    let folder = folder("config-store");
    std::fs::write(folder.join("c.toml"), "[store]\nurl = \"sqlite:other.db\"").unwrap();
    let made = run(&folder, &["migrate", "--config", "c.toml"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(folder.join("other.db").exists() && !folder.join("onceward.db").exists());
    let with = run(&folder, &["keys", "list", "--config", "c.toml"]);
    assert_eq!(with.code, 0, "{}", with.stderr);
    let without = run(&folder, &["keys", "list"]);
    assert_eq!(without.code, 1, "{}", without.stdout);
    let flag = run(&folder, &["keys", "list", "--config", "c.toml", "--store", "sqlite:none.db"]);
    assert_eq!(flag.code, 1, "{}", flag.stdout);
}

#[test]
fn a_file_that_is_named_is_read_beside_a_store_that_is_named() {
    let folder = folder("config-named");
    let made = run(&folder, &["migrate", "--store", "sqlite:s.db"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    std::fs::write(folder.join("good.toml"), "[store]\nurl = \"sqlite:none.db\"").unwrap();
    std::fs::write(folder.join("bad.toml"), "[store]\nurll = \"x\"").unwrap();
    for (file, code) in [("good.toml", 0), ("bad.toml", 2), ("none.toml", 2)] {
        let arguments = ["keys", "list", "--store", "sqlite:s.db", "--config", file];
        let told = run(&folder, &arguments);
        assert_eq!(told.code, code, "{file}: {}", told.stderr);
        assert!(code == 0 || told.stderr.contains(file), "{}", told.stderr);
    }
}
