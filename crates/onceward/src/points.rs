//! Points where a test may stop this process, by name.
//!
//! Without the feature `testing` they are nothing. With it, a test's child process says what
//! happens there (`testing::points`): a real process is killed at a real place, not in a model.

/// A place in the course of an event, or of a file that is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "testing"), expect(unreachable_pub, reason = "shown by `testing` alone"))]
pub enum Point {
    /// A worker has claimed an event; its handler has not started.
    AfterClaim,
    /// A worker is about to have its effect.
    BeforeEffect,
    /// A worker's effect has happened, or is in hand; nothing is recorded.
    AfterEffect,
    /// A worker is about to record the event as done.
    BeforeDone,
    /// A projection is about to write its view.
    BeforeWrite,
    /// A projection has written its view.
    AfterWrite,
    /// A consumer is about to commit its offset.
    BeforeOffset,
    /// A relay is about to publish.
    BeforePublish,
    /// A relay has published and was acknowledged; its checkpoint does not say so yet.
    BeforeCheckpoint,
    /// A relay has written its checkpoint.
    AfterCheckpoint,
    /// A log is about to be copied into its database and cut.
    BeforeFold,
    /// A log is in its database, and cut.
    AfterFold,
    /// What a database has reached is about to be noted.
    BeforeNote,
    /// The note is written, but perhaps not on the disk.
    NoteWritten,
    /// The note is on the disk.
    AfterNote,
}

#[cfg(feature = "testing")]
impl Point {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::AfterClaim,
        Self::BeforeEffect,
        Self::AfterEffect,
        Self::BeforeDone,
        Self::BeforeWrite,
        Self::AfterWrite,
        Self::BeforeOffset,
        Self::BeforePublish,
        Self::BeforeCheckpoint,
        Self::AfterCheckpoint,
        Self::BeforeFold,
        Self::AfterFold,
        Self::BeforeNote,
        Self::NoteWritten,
        Self::AfterNote,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AfterClaim => "after-claim",
            Self::BeforeEffect => "before-effect",
            Self::AfterEffect => "after-effect",
            Self::BeforeDone => "before-done",
            Self::BeforeWrite => "before-write",
            Self::AfterWrite => "after-write",
            Self::BeforeOffset => "before-offset",
            Self::BeforePublish => "before-publish",
            Self::BeforeCheckpoint => "before-checkpoint",
            Self::AfterCheckpoint => "after-checkpoint",
            Self::BeforeFold => "before-fold",
            Self::AfterFold => "after-fold",
            Self::BeforeNote => "before-note",
            Self::NoteWritten => "note-written",
            Self::AfterNote => "after-note",
        }
    }

    /// Reads [`Point::as_str`] back.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| point.as_str() == text)
    }
}

/// This process is at a point.
#[cfg(feature = "testing")]
pub(crate) fn reach(point: Point) {
    crate::testing::points::reached(point);
}

/// This process is at a point: nothing to do.
#[cfg(not(feature = "testing"))]
pub(crate) fn reach(_: Point) {}
