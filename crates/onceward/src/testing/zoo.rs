//! The gate of the bug zoo: each planted bug must be caught within its budget.
//!
//! A test-suite is worth the bugs it catches. For each bug there is a hunter: schedules of the
//! simulator, of one shape where the bug lives in one, or a small check where no schedule is
//! needed. The budget bounds how many schedules the hunter may take.
//!
//! Planting is process-wide: hunts run one after the other, in a test binary of their own.

mod checks;
mod events;
mod failure;
mod flow;

use std::fmt;

use onceward_core::zoo::{Bug, plant};

use super::sim::{Shape, Simulator, Violation};

/// How a bug is hunted.
#[derive(Debug, Clone, Copy)]
pub enum Hunter {
    /// By schedules, of this shape or of all.
    Schedules(Option<Shape>),
    /// By a check that needs no schedule: what broke, or nothing.
    ///
    /// # Errors
    /// When the check could not be made.
    Check(fn() -> Result<Option<Violation>, String>),
}

/// A bug and its hunter.
#[derive(Debug, Clone, Copy)]
pub struct Hunt {
    /// What is planted.
    pub bug: Bug,
    /// Who looks for it.
    pub hunter: Hunter,
    /// Schedules it may take.
    pub budget: u64,
}

/// What caught a bug.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catch {
    /// The invariant that broke.
    pub violation: Violation,
    /// Schedules it took.
    pub schedules: u64,
}

/// The hunt for a bug.
#[must_use]
pub fn hunt_for(bug: Bug) -> Hunt {
    let all = Hunter::Schedules(None);
    let in_shape = |shape| Hunter::Schedules(Some(shape));
    let (hunter, budget) = match bug {
        Bug::KeyWithoutTenant => (Hunter::Check(checks::tenants_are_apart), 1),
        Bug::KeyWithoutPath => (Hunter::Check(checks::paths_are_apart), 1),
        Bug::FingerprintWithoutPath => (Hunter::Check(checks::another_path_is_a_mismatch), 1),
        Bug::StoresRetryable => (Hunter::Check(checks::retryable_answers_are_not_stored), 1),
        Bug::FailureLetsGo => (Hunter::Check(failure::a_failure_keeps_the_key), 1),
        Bug::WaiterLeaked => (Hunter::Check(checks::cancelled_waiters_leave), 1),
        Bug::CheckpointBeforeAck => (Hunter::Check(flow::nothing_is_skipped), 1),
        Bug::CheckpointBeforeView => (Hunter::Check(flow::every_event_reaches_the_view), 1),
        Bug::NewIdOnResend => (Hunter::Check(flow::what_is_sent_again_is_the_same), 1),
        Bug::ConflictTakenForExists => (Hunter::Check(events::a_conflict_is_no_object), 1),
        Bug::OwnConflictTakenForAnothers => {
            (Hunter::Check(events::ones_own_object_is_recognised), 1)
        }
        Bug::PackedPastAGap => (Hunter::Check(events::a_gap_is_waited_for), 1),
        Bug::FolderWithoutFsync => (Hunter::Check(events::folders_are_synced), 1),
        Bug::SweepDeletesLive | Bug::SweepUnconditional | Bug::ExpiredReplayed => {
            (in_shape(Shape::Retention), 2_000)
        }
        Bug::EffectAndRecordApart => (in_shape(Shape::Once), 500),
        Bug::OrderedJobsOutOfOrder | Bug::PassedBeforeTurn => (in_shape(Shape::Jobs), 2_000),
        Bug::HighWaterMarkSkipsGap | Bug::AboveForPlainEffect => (in_shape(Shape::Events), 500),
        Bug::GraceCreeps => (in_shape(Shape::Times), 1_000),
        Bug::GuardOnlyAtClaim => (in_shape(Shape::Guarded), 2_000),
        Bug::RecognisedMeansGranted | Bug::RerunForgets => (in_shape(Shape::Held), 20_000),
        Bug::TakeoverByFence | Bug::FirstClaimByFence => (in_shape(Shape::Leases), 20_000),
        Bug::FenceNotMonotonic | Bug::FencePerRecord | Bug::LookThenClaim => (all, 200),
        Bug::CompleteWithoutFence
        | Bug::FenceByWorkerName
        | Bug::WorkerClockExpiry
        | Bug::RenewWithoutFence
        | Bug::LostAnswerTakenForFailure
        | Bug::ReleaseAfterEffect
        | Bug::OneTtlForTwo
        | Bug::OneKeyTwiceInGroup
        | Bug::NowBeforeLock
        | Bug::TokenIgnored
        | Bug::MismatchOnlyWhenDone
        | Bug::DoneKeepsFence => (all, 2_000),
    };
    Hunt { bug, hunter, budget }
}

/// Plants the bug, hunts it and pulls it out again. None: it was not caught within its budget.
///
/// # Errors
/// When the hunter itself failed.
pub fn hunt(hunt: &Hunt) -> Result<Option<Catch>, String> {
    plant(Some(hunt.bug));
    let caught = search(hunt.hunter, hunt.budget);
    plant(None);
    caught
}

/// Lets a hunter search for whatever is there, with up to `budget` schedules.
///
/// # Errors
/// When the hunter itself failed.
pub fn search(hunter: Hunter, budget: u64) -> Result<Option<Catch>, String> {
    let shape = match hunter {
        Hunter::Schedules(shape) => shape,
        Hunter::Check(check) => {
            return Ok(check()?.map(|violation| Catch { violation, schedules: 1 }));
        }
    };
    let mut simulator = Simulator::new().map_err(|error| error.to_string())?;
    for seed in 1..=budget {
        if let Err(failure) = simulator.run(seed, shape) {
            return Ok(Some(Catch { violation: failure.violation, schedules: seed }));
        }
    }
    Ok(None)
}

impl fmt::Display for Catch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.violation.invariant, self.violation.what)
    }
}
