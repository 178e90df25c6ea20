//! What a bench reports: figures, ratios, memory and the machine, as a table or as JSON.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment};
use serde_json::{Map, Value, json};

use super::measure::Series;
use super::{goals, machine};
use crate::failure::Failure;
use crate::output::Out;

/// Collects what is measured.
#[derive(Debug)]
pub(crate) struct Report {
    figures: Vec<super::measure::Figure>,
    ratios: Vec<(String, f64)>,
    memory: Vec<Value>,
    environment: Value,
}

impl Report {
    /// Of a bench, without figures.
    pub(crate) fn new(bench: &str, mut environment: Value) -> Self {
        environment["bench"] = json!(bench);
        Self { figures: Vec::new(), ratios: Vec::new(), memory: Vec::new(), environment }
    }

    /// Adds figures.
    pub(crate) fn add(&mut self, series: &[&Series]) {
        self.figures.extend(series.iter().map(|series| series.figure()));
    }

    /// Adds a ratio.
    pub(crate) fn ratio(&mut self, name: impl Into<String>, value: f64) {
        self.ratios.push((name.into(), value));
    }

    /// Notes something about the run that is no rate.
    pub(crate) fn note(&mut self, name: &str, value: Value) {
        self.environment[name] = value;
    }

    /// Notes how much memory is held at the end of a part.
    pub(crate) fn part_ended(&mut self, part: &str) {
        let [now, own, most] = machine::memory_mb();
        self.memory
            .push(json!({ "after": part, "resident_mb": now, "own_mb": own, "peak_mb": most }));
    }

    /// Prints everything.
    pub(crate) fn print(&self, out: &Out) -> Result<(), Failure> {
        if out.is_json() {
            return out.print_json(&self.json());
        }
        let mut table = out.table(&["WHAT", "PER SECOND", "P50 MS", "P99 MS", "CPU US", "GOAL"]);
        for figure in &self.figures {
            let number = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
            let goal = goals::figure_goal(&self.environment, &figure.name);
            let goal = goal.map_or_else(String::new, |goal| goal.to_string());
            table.add_row([
                Cell::new(&figure.name),
                number(format!("{:.0}", figure.per_second)),
                number(format!("{:.3}", figure.p50_ms)),
                number(format!("{:.3}", figure.p99_ms)),
                number(format!("{:.1}", figure.cpu_us)),
                Cell::new(goal),
            ]);
        }
        let mut text = out.render(&table);
        text.push('\n');
        let mut ratios = out.table(&["RATIO", "VALUE", "GOAL"]);
        for (name, value) in &self.ratios {
            let goal = goals::goal(&self.environment, name);
            let goal = goal.map_or_else(String::new, |goal| goal.to_string());
            ratios.add_row([Cell::new(name), Cell::new(format!("{value:.2}")), Cell::new(goal)]);
        }
        text.push_str(&out.render(&ratios));
        text.push('\n');
        for part in &self.memory {
            let after = part["after"].as_str().unwrap_or_default();
            // Writing into a string can't fail.
            let _ = writeln!(
                text,
                "memory after {after}: {} MB, of which {} MB are not mapped files; at most {} MB",
                part["resident_mb"], part["own_mb"], part["peak_mb"]
            );
        }
        let _ = writeln!(text, "measured on {}", self.environment);
        out.print(&text)
    }

    fn json(&self) -> Value {
        let round = |value: f64, digits: i32| {
            let scale = 10_f64.powi(digits);
            (value * scale).round() / scale
        };
        let results: Vec<Value> = self
            .figures
            .iter()
            .map(|figure| {
                json!({
                    "name": figure.name,
                    "per_second": round(figure.per_second, 1),
                    "p50_ms": round(figure.p50_ms, 3),
                    "p99_ms": round(figure.p99_ms, 3),
                })
            })
            .collect();
        let ratios: Map<String, Value> = self
            .ratios
            .iter()
            .map(|(name, value)| (name.clone(), json!(round(*value, 3))))
            .collect();
        let mut environment = self.environment.clone();
        let cpu = self.figures.iter().map(|f| (f.name.clone(), json!(round(f.cpu_us, 1))));
        environment["cpu_us_per_operation"] = Value::Object(cpu.collect());
        environment["memory"] = Value::Array(self.memory.clone());
        json!({ "results": results, "ratios": ratios, "env": environment })
    }
}
