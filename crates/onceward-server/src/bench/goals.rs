//! What each bench should reach, in two tables: the report and the page show it.
//!
//! Most goals are about ratios, because rates are the machine's; a few rates were asked for by
//! number.

use serde_json::Value;

/// What a ratio should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

use Goal::{AtLeast, AtMost};

/// Bench, what its store's name begins with, ratio, goal.
const GOALS: &[(&str, &str, &str, Goal)] = &[
    ("store", "sqlite", "pairs_vs_sqlite_limit", AtLeast(0.35)),
    ("store", "sqlite", "at_1m_vs_1k", AtLeast(0.7)),
    ("store", "sqlite", "at_10m_vs_1k", AtLeast(0.4)),
    ("store", "postgres", "pairs_vs_single_statements", AtLeast(1.6)),
    ("store", "postgres", "one_commit_vs_single_statements", AtLeast(2.5)),
    ("store", "postgres", "pairs_vs_unnest", AtLeast(0.3)),
    ("store", "postgres", "one_commit_vs_two", AtLeast(1.3)),
    ("store", "postgres", "one_commit_vs_two_one_caller", AtLeast(1.6)),
    ("store", "postgres", "two_processes_vs_one", AtLeast(0.9)),
    ("http", "", "layer_first_vs_bare", AtLeast(0.12)),
    ("http", "", "layer_one_commit_vs_bare", AtLeast(0.2)),
    ("http", "", "layer_replay_vs_bare", AtLeast(0.6)),
    ("http", "", "gateway_plain_vs_nginx", AtLeast(0.7)),
    ("http", "", "gateway_first_vs_plain", AtLeast(0.4)),
    ("http", "", "gateway_replay_vs_plain", AtLeast(1.0)),
    ("jobs", "", "at_1m_vs_empty", AtLeast(0.75)),
    ("jobs", "postgres", "jobs_vs_peers", AtLeast(1.0)),
    ("jobs", "postgres", "enqueue_vs_peers", AtLeast(12.0)),
    ("batch", "sqlite", "batch_vs_single", AtLeast(5.0)),
    ("batch", "postgres", "batch_vs_single", AtLeast(6.0)),
    ("batch", "", "enforced_vs_off", AtLeast(0.65)),
    ("batch", "", "enforced_vs_off_p50", AtMost(1.1)),
    ("events", "", "at_1m_vs_10k", AtLeast(0.75)),
];

/// Bench, what its store's name begins with, figure, and what is asked of it.
const FIGURE_GOALS: &[(&str, &str, &str, FigureGoal)] = &[
    ("events", "sqlite", "append, 64 writers on 64 aggregates", PerSecond(10_000.0)),
    ("events", "sqlite", "append → found by the search, idle", P99(50.0)),
    ("events", "sqlite", "projection into documents alone", PerSecond(20_000.0)),
    ("events", "sqlite", "projection into the full-text index alone", PerSecond(20_000.0)),
];

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum FigureGoal {
    /// This rate or more.
    PerSecond(f64),
    /// All but one of a hundred within this many milliseconds.
    P99(f64),
}

use FigureGoal::{P99, PerSecond};

impl FigureGoal {
    /// Whether a figure reaches it.
    pub(crate) fn is_met(self, per_second: f64, p99_ms: f64) -> bool {
        match self {
            PerSecond(bound) => per_second >= bound,
            P99(bound) => p99_ms <= bound,
        }
    }
}

impl std::fmt::Display for FigureGoal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PerSecond(bound) => write!(f, "≥ {bound:.0}/s"),
            P99(bound) => write!(f, "p99 ≤ {bound} ms"),
        }
    }
}

/// The goal of a figure in a report that was made in this environment.
pub(crate) fn figure_goal(environment: &Value, figure: &str) -> Option<FigureGoal> {
    look_up(FIGURE_GOALS, environment, figure)
}

/// The goal of a ratio in a report that was made in this environment.
pub(crate) fn goal(environment: &Value, ratio: &str) -> Option<Goal> {
    look_up(GOALS, environment, ratio)
}

fn look_up<G: Copy>(goals: &[(&str, &str, &str, G)], environment: &Value, name: &str) -> Option<G> {
    let text = |name: &str| environment[name].as_str().unwrap_or_default();
    let (bench, store) = (text("bench"), text("store"));
    let fits = |of_bench: &str, of_store: &str| of_bench == bench && store.starts_with(of_store);
    let found =
        goals.iter().find(|(of_bench, of_store, of, _)| *of == name && fits(of_bench, of_store));
    found.map(|(.., goal)| *goal)
}

impl Goal {
    /// Whether a value reaches it, as far as two digits can tell.
    pub(crate) fn is_met(self, value: f64) -> bool {
        let shown = (value * 100.0).round() / 100.0;
        match self {
            AtLeast(bound) => shown >= bound,
            AtMost(bound) => shown <= bound,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AtLeast(bound) => write!(f, "≥ {bound}"),
            AtMost(bound) => write!(f, "≤ {bound}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_belongs_to_a_bench_and_a_store() {
        let sqlite = json!({ "bench": "batch", "store": "sqlite:x.db" });
        let postgres = json!({ "bench": "batch", "store": "postgres://h/d" });
        assert_eq!(goal(&sqlite, "batch_vs_single"), Some(AtLeast(5.0)));
        assert_eq!(goal(&postgres, "batch_vs_single"), Some(AtLeast(6.0)));
        assert_eq!(goal(&sqlite, "pairs_vs_unnest"), None);
        assert_eq!(goal(&json!({}), "batch_vs_single"), None);
    }

    #[test]
    fn a_figure_has_its_goal_where_it_was_asked_for() {
        let sqlite = json!({ "bench": "events", "store": "sqlite:x.db" });
        let postgres = json!({ "bench": "events", "store": "postgres://h/d" });
        let alone = "projection into the full-text index alone";
        assert_eq!(figure_goal(&sqlite, alone), Some(PerSecond(20_000.0)));
        assert_eq!(figure_goal(&postgres, alone), None);
        assert!(PerSecond(20_000.0).is_met(20_000.0, 9.0) && !P99(50.0).is_met(1.0, 50.1));
        assert_eq!(PerSecond(20_000.0).to_string(), "≥ 20000/s");
    }

    #[test]
    fn a_goal_is_met_at_its_bound() {
        assert!(AtLeast(0.35).is_met(0.346) && !AtLeast(0.35).is_met(0.344));
        assert!(AtMost(1.1).is_met(1.104) && !AtMost(1.1).is_met(1.106));
    }
}
