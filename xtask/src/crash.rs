//! `cargo xtask crash`: the long form of the crash table of events.
//!
//! The rule kept here: the server that the runs need is started if nobody named one, and stopped
//! again; what runs is the test itself, with more runs of each case.

use anyhow::{Context, Result, bail};

use crate::services::{self, Origin};
use crate::shell;

/// Runs of each case when nobody says.
const RUNS: &str = "50";

/// `cargo xtask crash …`
pub(crate) fn main(words: &[&str]) -> Result<()> {
    let runs = match words {
        [] => RUNS,
        ["--runs", runs] => runs,
        _ => bail!("say `crash` or `crash --runs N`"),
    };
    let count: u32 = runs.parse().with_context(|| format!("--runs {runs} is not a number"))?;
    if count == 0 {
        bail!("--runs 0 would show nothing; at least 1");
    }
    let postgres = services::up("postgres")?;
    let arguments =
        ["test", "--release", "-p", "onceward", "--all-features", "--test", "crash_events"];
    let mut command = shell::cargo(&arguments)?;
    command.env(postgres.variable, &postgres.url).env("ONCEWARD_TEST_CRASH_RUNS", runs);
    let ran = shell::run(&mut command);
    if postgres.origin == Origin::Started {
        services::down("postgres")?;
    }
    ran
}
