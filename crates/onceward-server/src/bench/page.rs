//! `onceward bench page`: what several runs have printed as JSON, as one page for people.
//!
//! `docs/performance.md` is made by it, so that no figure there was typed by hand.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::goals;
use crate::failure::Failure;
use crate::output::Out;

/// Bytes that a report may have at most: one has a few thousand.
const REPORT_BYTES_MAX: u64 = 1 << 20;

const HEAD: &str = "# Performance

Made by `onceward bench page` from what the benches printed as JSON; nothing here was typed. Rates
are this machine's and noisy; ratios compare what alternated in one run: most goals are about them.
\"p50\" and \"p99\" are how long a call took, \"CPU\" is our process' time for one operation.
";

/// Prints the page of these reports, in the order in which they are given.
pub(crate) fn print(files: &[PathBuf], out: &Out) -> Result<(), Failure> {
    let mut page = HEAD.to_string();
    for file in files {
        section(&mut page, &read(file)?);
    }
    out.print(&page)
}

fn read(file: &Path) -> Result<Value, Failure> {
    let unreadable = |why: String| {
        let message = format!(
            "{} is no report ({why}): name files that `onceward bench … --json` has printed",
            file.display()
        );
        Failure::usage("bench.report", message)
    };
    let length = std::fs::metadata(file).map_err(|error| unreadable(error.to_string()))?.len();
    if length > REPORT_BYTES_MAX {
        return Err(unreadable(format!("{length} bytes; at most {REPORT_BYTES_MAX}")));
    }
    let bytes = std::fs::read(file).map_err(|error| unreadable(error.to_string()))?;
    let report: Value =
        serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))?;
    if report["results"].is_array() && report["env"]["bench"].is_string() {
        Ok(report)
    } else {
        Err(unreadable("it has no results, or does not tell which bench it is of".into()))
    }
}

fn section(page: &mut String, report: &Value) {
    let environment = &report["env"];
    let text = |name: &str| environment[name].as_str().unwrap_or_default();
    // Where a store lies is nobody's business: its kind is told.
    let store = text("store").split(':').next().unwrap_or_default();
    let on = if store.is_empty() { String::new() } else { format!(" on {store}") };
    let _ = writeln!(page, "\n## `bench {}`{on}\n", text("bench"));
    let _ = writeln!(page, "{}\n", machine(environment));
    let _ = writeln!(page, "| ratio | seen | goal |\n|---|---|---|");
    for (name, value) in report["ratios"].as_object().into_iter().flatten() {
        let value = value.as_f64().unwrap_or(f64::NAN);
        let goal = goals::goal(environment, name).map_or_else(String::new, |goal| {
            format!("{goal} {}", if goal.is_met(value) { "✓" } else { "✗" })
        });
        let _ = writeln!(page, "| `{name}` | {value:.2} | {goal} |");
    }
    let _ = writeln!(page, "\n| what | per second | p50 ms | p99 ms | CPU µs | goal |");
    let _ = writeln!(page, "|---|--:|--:|--:|--:|---|");
    for result in report["results"].as_array().into_iter().flatten() {
        let number = |name: &str| result[name].as_f64().unwrap_or(f64::NAN);
        let name = result["name"].as_str().unwrap_or_default();
        let cpu = environment["cpu_us_per_operation"][name].as_f64();
        let goal = goals::figure_goal(environment, name).map_or_else(String::new, |goal| {
            let met = goal.is_met(number("per_second"), number("p99_ms"));
            format!("{goal} {}", if met { "✓" } else { "✗" })
        });
        let _ = writeln!(
            page,
            "| {name} | {} | {:.2} | {:.2} | {} | {goal} |",
            thousands(number("per_second")),
            number("p50_ms"),
            number("p99_ms"),
            cpu.map_or_else(String::new, |cpu| format!("{cpu:.1}")),
        );
    }
}

/// What was measured on, and for how long.
fn machine(environment: &Value) -> String {
    let shown = |name: &str, what: &str| match &environment[name] {
        Value::String(text) => Some(format!("{what} {text}")),
        Value::Number(number) => Some(format!("{number} {what}")),
        _ => None,
    };
    let parts = [
        shown("cores", "cores"),
        shown("memory_mb", "MB of memory"),
        environment["kernel"].as_str().map(|kernel| format!("Linux {}", series(kernel))),
        shown("file_system", "on"),
        shown("sqlite", "SQLite"),
        shown("postgres", "")
            .map(|text| text.trim().split(" on ").next().unwrap_or_default().into()),
        shown("seconds", "s a part"),
        shown("callers", "callers"),
        shown("connections", "connections"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let mut line = parts.join(" · ");
    if environment["optimised"] == false {
        line.push_str(" · **not an optimised build**");
    }
    line
}

/// The first two numbers of a kernel's release; the rest is its builder's.
fn series(release: &str) -> String {
    release.split(['.', '-']).take(2).collect::<Vec<_>>().join(".")
}

/// A rate with its thousands apart.
fn thousands(rate: f64) -> String {
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_becomes_a_section_with_its_goals() {
        let report = json!({
            "results": [
                { "name": "pairs", "per_second": 23456.7, "p50_ms": 1.5, "p99_ms": 9.0 },
            ],
            "ratios": { "pairs_vs_sqlite_limit": 0.351, "at_1m_vs_1k": 0.6, "other": 2.0 },
            "env": {
                "bench": "store", "store": "sqlite:somewhere/x.db", "cores": 2, "optimised": true,
                "kernel": "6.18.44-built-by-someone",
                "cpu_us_per_operation": { "pairs": 61.25 },
            },
        });
        let mut page = String::new();
        section(&mut page, &report);
        for line in [
            "## `bench store` on sqlite",
            "2 cores · Linux 6.18",
            "| `pairs_vs_sqlite_limit` | 0.35 | ≥ 0.35 ✓ |",
            "| `at_1m_vs_1k` | 0.60 | ≥ 0.7 ✗ |",
            "| `other` | 2.00 |  |",
            "| pairs | 23,457 | 1.50 | 9.00 | 61.2 |  |",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("somewhere"), "{page}");
    }

    #[test]
    fn thousands_are_set_apart() {
        let table = [(0.4, "0"), (999.0, "999"), (1_000.0, "1,000"), (1_234_567.8, "1,234,568")];
        for (rate, text) in table {
            assert_eq!(thousands(rate), text);
        }
    }
}
