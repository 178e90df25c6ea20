//! Dead events that a hand sent back: found by whoever consumes for their handler.
//!
//! Retrying a dead letter makes its record one that may run again, and leaves a note here, by
//! whatever way the decision came. A consumer looks for notes now and then, runs the event that the
//! record carries, and takes the note away once it is final.

use std::sync::Arc;

use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::LimitError;
use onceward_core::record::{Record, State};

use super::handler::{Handled, Handler};
use super::letter::read_event;
use crate::engine::{Engine, EngineError, STORE_TENANT};

/// The space of the notes.
pub const RETRIES: &str = "onceward.retries";
/// Notes that are looked at in one go.
const NOTES_MAX: usize = 100;

/// Where the note about a key is kept.
pub(crate) fn note_subject(key: &Key) -> Result<Subject, LimitError> {
    Subject::new(STORE_TENANT, RETRIES, &format!("{}/{}", key.scope(), key.hash_hex()))
}

/// Leaves a note that an event may run again.
pub(crate) async fn leave_note(engine: &Engine, key: &Key) -> Result<(), EngineError> {
    let subject = note_subject(key)?;
    let seen = engine.see(subject.clone()).await?;
    // Whoever was first has left the same note.
    engine.put(&subject, seen.version, Some(key.to_string().into_bytes().into())).await.map(drop)
}

impl Handler {
    /// Runs events that a hand sent back. Answers how many became final.
    ///
    /// # Errors
    /// When the registry gives no answer.
    pub async fn run_retries(&self) -> Result<usize, EngineError> {
        let engine = self.engine();
        let prefix = format!("{}/", self.name());
        let notes = engine.documents(STORE_TENANT, RETRIES, &prefix, None, NOTES_MAX).await?;
        let mut finals = 0;
        for note in notes.0 {
            let text = String::from_utf8_lossy(&note.value).into_owned();
            let Some(key) = Key::parse(&text).ok().filter(|key| key.scope() == self.name()) else {
                continue;
            };
            if self.run_again(&key).await? {
                engine.put(&note.subject, note.version, None).await?;
                finals += 1;
            }
        }
        Ok(finals)
    }

    /// Runs an event whose record says that it may. True: there is nothing more to do.
    async fn run_again(&self, key: &Key) -> Result<bool, EngineError> {
        let Some(found) = self.engine().look(key).await? else { return Ok(true) };
        let record = &found.stored.record;
        if key.kind() != Kind::Event || !may_run(record) {
            return Ok(true);
        }
        let event = found.payload.as_deref().and_then(read_event);
        let Some(event) = event else { return Ok(true) };
        let mut claim = self.claim(&event)?;
        // Its turn has passed, and a hand said that it runs all the same.
        if record.guard.is_none() {
            claim.guard = None;
        }
        let handled = self.run(Arc::new(event), claim).await?;
        Ok(handled.is_final() || matches!(handled, Handled::Dead { .. }))
    }
}

fn may_run(record: &Record) -> bool {
    matches!(record.state, State::Failed | State::Running)
}
