//! Offsets: how far a consumer has come in its log, in the store, fenced.
//!
//! Rule: an offset says that everything up to it is final for its handler. Only who holds the
//! consumer's tenure moves it, and never back: the write is conditional on the fence and on the
//! version that was seen.

use onceward_core::batch::{Condition, Write};
use onceward_core::key::Subject;
use onceward_core::limits::LimitError;
use onceward_core::record::Body;
use serde::{Deserialize, Serialize};

use super::tenure::Tenure;
use crate::engine::{Engine, EngineError, STORE_TENANT};
use crate::events::Place;

/// Where offsets are kept.
const OFFSETS: &str = "onceward.offsets";

/// How far a consumer has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offset {
    /// The segment of the last event that is final together with all before it.
    pub segment: u64,
    /// Its offset in the segment.
    pub offset: u32,
    /// Events that were handled under this name so far, about.
    pub events: u64,
    /// What keeps it from moving on, by name, when it was last written.
    pub held_by: Option<String>,
}

impl Offset {
    /// Its place.
    #[must_use]
    pub fn place(&self) -> Place {
        Place { segment: self.segment, offset: self.offset }
    }

    pub(super) fn at(place: Place, events: u64, held_by: Option<String>) -> Self {
        Self { segment: place.segment, offset: place.offset, events, held_by }
    }
}

fn subject(handler: &str) -> Result<Subject, LimitError> {
    Subject::new(STORE_TENANT, OFFSETS, handler)
}

/// The offset of a handler's consumer; none before its first.
///
/// # Errors
/// When the store gives no answer.
pub async fn read_offset(engine: &Engine, handler: &str) -> Result<Option<Offset>, EngineError> {
    let document = engine.get(&subject(handler)?).await?;
    Ok(document.and_then(|document| serde_json::from_slice(&document.value).ok()))
}

/// The offset of one tenure.
pub(super) struct Offsets {
    engine: Engine,
    subject: Subject,
    version: u64,
    pub(super) now: Offset,
}

impl Offsets {
    /// What is there at the beginning of a tenure.
    pub(super) async fn load(engine: &Engine, handler: &str) -> Result<Self, EngineError> {
        let subject = subject(handler)?;
        let seen = engine.see(subject.clone()).await?;
        let now = seen.value.and_then(|value| serde_json::from_slice(&value).ok());
        let now = now.unwrap_or_default();
        Ok(Self { engine: engine.clone(), subject, version: seen.version, now })
    }

    /// A write that is not made yet: it borrows nothing, so that it can go on beside other work.
    pub(super) fn moving(
        &self,
        tenure: &Tenure,
        to: Offset,
    ) -> impl Future<Output = Result<Moved, EngineError>> + Send + use<> {
        let (engine, subject, version) = (self.engine.clone(), self.subject.clone(), self.version);
        let fence = tenure.condition();
        async move {
            let value = serde_json::to_vec(&to).unwrap_or_default();
            let conditions = [fence, Condition::PositionIs(subject.clone(), version)];
            let position = version + 1;
            let writes = [Write::Mark { subject, position, value: Body::Set(value.into()) }];
            let held = engine.commit_if(&conditions, &writes).await?;
            Ok(if held { Moved::To(to) } else { Moved::Overtaken })
        }
    }

    /// A write came through.
    pub(super) fn moved(&mut self, to: Offset) {
        self.version += 1;
        self.now = to;
    }
}

/// What became of a write.
pub(super) enum Moved {
    /// It is there.
    To(Offset),
    /// The tenure is someone else's.
    Overtaken,
}
