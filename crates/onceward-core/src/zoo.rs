//! The bug zoo: deliberately planted bugs that the test-suites must catch.
//!
//! One bug per line. Without the feature `zoo`, [`planted`] is a constant `false` and the compiler
//! removes every branch that asks. With it, a test plants one bug at a time in the whole process.

macro_rules! zoo {
    ($($(#[doc = $doc:literal])* $bug:ident,)*) => {
        /// A bug that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Bug { $($(#[doc = $doc])* $bug,)* }
        impl Bug {
            /// Every bug of the zoo.
            pub const ALL: &'static [Bug] = &[$(Bug::$bug,)*];
        }
    };
}

zoo! {
    /// A completion is not conditional on the fence.
    CompleteWithoutFence,
    /// A worker that claims again gets the fence it had.
    FenceByWorkerName,
    /// A lease is judged by the worker's clock.
    WorkerClockExpiry,
    /// A renewal is not conditional on the fence.
    RenewWithoutFence,
    /// A first claim looks, then writes without a condition.
    LookThenClaim,
    /// The effect and its record are committed one after the other.
    EffectAndRecordApart,
    /// The sweep deletes records whose lease is still live.
    SweepDeletesLive,
    /// The sweep deletes what it listed, without a condition.
    SweepUnconditional,
    /// Fences are drawn downwards now and then.
    FenceNotMonotonic,
    /// A lost answer is taken for a failure.
    LostAnswerTakenForFailure,
    /// A failed attempt releases its key although the effect may have happened.
    ReleaseAfterEffect,
    /// One duration serves as lease and as retention.
    OneTtlForTwo,
    /// `next` accepts a position past a gap.
    HighWaterMarkSkipsGap,
    /// Keys leave out the tenant.
    KeyWithoutTenant,
    /// Keys leave out what narrows their scope.
    KeyWithoutPath,
    /// A takeover is conditional on the fence, not on the rev.
    TakeoverByFence,
    /// Fences count per record and start again after a deletion.
    FencePerRecord,
    /// After a lost answer, a record that someone holds is taken for one's own.
    FirstClaimByFence,
    /// Two batches that touch one row share a group.
    OneKeyTwiceInGroup,
    /// The store reads its clock before it waits for its turn.
    NowBeforeLock,
    /// Fingerprints leave out the path.
    FingerprintWithoutPath,
    /// An ordered effect is guarded by `above`.
    AboveForPlainEffect,
    /// Ordered jobs are taken in any order.
    OrderedJobsOutOfOrder,
    /// `not_before` sets its own time instead of the maximum.
    GraceCreeps,
    /// Statuses that must be retried (429, 503) are stored.
    StoresRetryable,
    /// A 5xx lets go of the key although the effect may have happened.
    FailureLetsGo,
    /// A waiter that goes away stays registered.
    WaiterLeaked,
    /// A token is not looked for when a batch comes again.
    TokenIgnored,
    /// An expired outcome is replayed.
    ExpiredReplayed,
    /// A mismatch is not noticed while the first attempt runs.
    MismatchOnlyWhenDone,
    /// A completion does not check its guard again.
    GuardOnlyAtClaim,
    /// A finished record can be completed again by its old permit.
    DoneKeepsFence,
    /// Any batch of a claim that is recognised after a lost answer counts as a grant.
    RecognisedMeansGranted,
    /// A hand passes over an ordered job before its turn has come.
    PassedBeforeTurn,
    /// A rerun by hand counts its attempts from none, so that a release forgets the key.
    RerunForgets,
    /// A relay writes its checkpoint before its sink has acknowledged.
    CheckpointBeforeAck,
    /// A consumer commits its offset before the view is written.
    CheckpointBeforeView,
    /// A relay that sends an event again gives it a new id.
    NewIdOnResend,
    /// A conflict without an object is taken for one.
    ConflictTakenForExists,
    /// An object that an earlier try of one's own created is taken for someone else's.
    OwnConflictTakenForAnothers,
    /// A segment holds a number whose lower one lies nowhere yet.
    PackedPastAGap,
    /// A local folder's writes are not synced.
    FolderWithoutFsync,
}

#[cfg(feature = "zoo")]
mod switch {
    use super::Bug;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static PLANTED: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Whether this bug is planted.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::Relaxed) == bug as usize
    }

    /// Plants one bug in the whole process, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(usize::MAX, |bug| bug as usize), Ordering::SeqCst);
    }
}

#[cfg(feature = "zoo")]
pub use switch::{plant, planted};

/// Whether this bug is planted: never, without the feature `zoo`.
#[cfg(not(feature = "zoo"))]
#[must_use]
#[inline(always)]
pub const fn planted(_: Bug) -> bool {
    false
}
