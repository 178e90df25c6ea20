//! What crashes cost the audit: notes that waited in processes that died, counted once (A26).
//!
//! Each process says beforehand how many notes it may lose (`engine::owed`) and takes that back
//! once they are written. One whose word stands unchanged for a while is dead; on a store that no
//! other process can have open, everyone else is. Clearing the word and auditing the loss is one
//! batch, conditional on the word, so that of many who find it one counts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use onceward_core::audit::Entry;
use onceward_core::batch::{Condition, Write};
use onceward_core::key::Subject;
use onceward_core::record::Body;

use crate::engine::{Document, Engine, EngineError, OWED, STORE_TENANT};

/// The action of the entry that says how many notes a crash has lost at most.
const LOST: &str = "audit.lost";
/// Documents that are read at once.
const PAGE: usize = 1_000;

/// Finds what dead processes owed the audit.
#[derive(Debug)]
pub struct LostNotes {
    engine: Engine,
    /// When a process's word was first seen as it is.
    seen: HashMap<Subject, (u64, Instant)>,
}

impl LostNotes {
    /// A counter on this engine's store.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self { engine, seen: HashMap::new() }
    }

    /// Counts what is owed by processes whose word has stood unchanged for `patience`, and answers
    /// how many notes that are at most. Nothing of this engine's own is counted.
    ///
    /// # Errors
    /// When the store gives no answer; what was counted until then stays counted.
    pub async fn pass(&mut self, patience: Duration) -> Result<u64, EngineError> {
        let mut lost = 0;
        let mut standing = HashMap::new();
        let mut after = None;
        loop {
            let page = self.engine.documents(STORE_TENANT, OWED, "", after, PAGE).await?;
            for word in page.0 {
                if self.engine.owes_as(&word.subject).await {
                    continue;
                }
                let now = Instant::now();
                let before = self.seen.get(&word.subject);
                let since = match before {
                    Some((version, since)) if *version == word.version => *since,
                    _ => now,
                };
                if now.duration_since(since) >= patience {
                    lost += self.count(&word).await?;
                } else {
                    standing.insert(word.subject, (word.version, since));
                }
            }
            after = page.1;
            if after.is_none() {
                self.seen = standing;
                return Ok(lost);
            }
        }
    }

    /// Counts one word, unless it has changed or someone else has counted it.
    async fn count(&self, word: &Document) -> Result<u64, EngineError> {
        let text = std::str::from_utf8(&word.value).unwrap_or_default();
        let at_most: u64 = text.parse().unwrap_or_default();
        let mut entry = Entry::new(STORE_TENANT, LOST);
        entry.subject = Some(format!("process/{}", word.subject.id()).into());
        entry.detail = Some(format!("{{\"at_most\":{at_most}}}").into());
        let subject = word.subject.clone();
        let conditions = [Condition::PositionIs(subject.clone(), word.version)];
        let position = word.version + 1;
        let cleared = Write::Mark { subject, position, value: Body::Clear };
        let writes = [cleared, Write::Audit(Box::new(entry))];
        let counted = self.engine.commit_if(&conditions, &writes).await?;
        Ok(if counted { at_most } else { 0 })
    }
}
