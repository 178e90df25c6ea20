//! `ops/`: alert rules and dashboard speak of metrics that a running binary has.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::world::Service;

fn file(name: &str) -> String {
    let path = format!("{}/../../ops/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of our metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split(|character| !is_name(character))
        .filter(|word| word.starts_with("onceward_"))
        .map(str::to_string)
        .collect()
}

/// Names of the series that a `/metrics` text describes, with the suffixes that each type has.
fn described(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let Some(described) = line.strip_prefix("# TYPE ") else { continue };
        let (name, kind) = described.split_once(' ').unwrap();
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        names.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
    }
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e07_d09_every_metric_of_the_rules_and_the_dashboard_exists() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("business-ops");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    // With traffic: what is counted per route or per reason is there once it has happened.
    // On a file, because its size is counted too.
    let service = Service::spawn(folder, &["demo", "all"], "sqlite:ops.db");
    let mut used = BTreeSet::new();
    for name in ["alerts.yml", "grafana.json"] {
        let names = named(&file(name));
        assert!(names.len() > 8, "{name}: {names:?}");
        used.extend(names);
    }
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let looking = async {
        loop {
            let text = service.operate("GET", "/metrics").await.must_be(200).body;
            let there = described(&String::from_utf8(text.to_vec()).unwrap());
            *missing.borrow_mut() = used.difference(&there).cloned().collect();
            if missing.borrow().is_empty() {
                return;
            }
            // sleeps because the traffic has no signal that a client could wait for
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let looked = tokio::time::timeout(Duration::from_secs(40), looking).await;
    assert!(looked.is_ok(), "/metrics has not what ops/ names: {:?}", missing.borrow());
}

/// Prometheus' own checker has the last word on the rules where it is installed.
#[test]
fn e07_d09_the_rules_cover_what_the_contract_names_and_are_well_formed() {
    let rules = file("alerts.yml");
    for alert in [
        "OncewardDuplicatesHigh",
        "OncewardOrderingSpike",
        "OncewardCacheMisses",
        "OncewardAuditGrowth",
        "OncewardConflictSpike",
        "OncewardSweepErrors",
        "OncewardSweepMissing",
        "OncewardStoreErrors",
        "OncewardStoreSlow",
        "OncewardKeyErrors",
        "OncewardAuditNotesLost",
    ] {
        assert!(rules.contains(&format!("- alert: {alert}\n")), "{alert}");
    }
    let mut alerts = rules.split("- alert: ");
    assert!(alerts.next().unwrap().contains("groups:"));
    for alert in alerts {
        for member in ["expr: ", "for: ", "severity: ", "summary: ", "description: "] {
            assert_eq!(alert.matches(member).count(), 1, "{member} of {alert}");
        }
        for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
            let of = |wanted| alert.chars().filter(|character| *character == wanted).count();
            assert_eq!(of(open), of(close), "{alert}");
        }
        assert!(!alert.contains('\t'), "{alert}");
    }
    let path = format!("{}/../../ops/alerts.yml", env!("CARGO_MANIFEST_DIR"));
    if let Ok(checked) = Command::new("promtool").args(["check", "rules", &path]).output() {
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// The dashboard is what Grafana imports: panels with queries, each at a place of its own.
#[test]
fn e07_the_dashboard_has_panels_with_queries_that_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&file("grafana.json")).unwrap();
    assert_eq!(dashboard["title"], "Onceward");
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            assert!(target["expr"].as_str().unwrap().contains("onceward_"), "{title}");
        }
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} lies over another");
            }
        }
    }
    assert!(panels.len() > 8);
}
