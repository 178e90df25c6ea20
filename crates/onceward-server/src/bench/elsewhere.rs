//! The bench of a store that has nothing to be compared with: memory.
//!
//! Only what the engine does, under a tenant that is erased at the end. Its audit
//! entries stay, as audit entries do.

use onceward::engine::Engine;

use super::Plan;
use super::callers::{Act, Callers};
use super::load::Keys;
use super::measure::{Cpu, ROUNDS, Series};
use super::report::Report;
use crate::failure::Failure;
use crate::open::{Access, StoreUrl};

/// Measures pairs, one commit and replays.
pub(crate) async fn measure(
    url: &StoreUrl,
    plan: &Plan,
    report: &mut Report,
) -> Result<(), Failure> {
    let engine = Engine::new(url.open(Access::Write).await?);
    // The process and the second name the tenant, so that two benches don't meet.
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = u64::from(std::process::id()) << 32 | started.unwrap_or_default().as_secs();
    let keys = Keys::new(&format!("onceward-bench-{seed:x}"), seed);
    let callers = Callers::new(engine.clone(), keys, plan.callers);
    let result = rounds(&callers, plan, report).await;
    plan.progress.part("erasing what was made", 0);
    let erased = callers.erase().await;
    let closed = engine.close().await;
    result?;
    erased?;
    closed?;
    Ok(())
}

async fn rounds(callers: &Callers, plan: &Plan, report: &mut Report) -> Result<(), Failure> {
    let mut pairs = Series::new("claim + complete pairs");
    let mut once = Series::new("one commit");
    let mut looks = Series::new("replays, looked up");
    let mut replays = Series::new("replays, claimed");
    plan.progress.part("pairs, one commit, replays", ROUNDS.into());
    for _ in 0..ROUNDS {
        let before = Cpu::now();
        pairs.add(before, &callers.round(Act::Pair, plan.round).await?);
        let before = Cpu::now();
        once.add(before, &callers.round(Act::OneCommit, plan.round).await?);
        let before = Cpu::now();
        looks.add(before, &callers.round(Act::Look, plan.round).await?);
        let before = Cpu::now();
        replays.add(before, &callers.round(Act::Replay, plan.round).await?);
        plan.progress.step();
    }
    report.add(&[&pairs, &once, &looks, &replays]);
    report.ratio("one_commit_vs_two", once.versus(&pairs));
    report.part_ended("all");
    Ok(())
}
