//! Generations of a view: which one is read, and which were made.
//!
//! One document per view says so, and is changed only over what was seen: of two rebuilds that end
//! at once, one is swapped in.

use onceward_core::key::Subject;
use onceward_core::limits::LimitError;
use serde::{Deserialize, Serialize};

use crate::engine::{Engine, EngineError, Put, STORE_TENANT};

/// Where they are kept.
const VIEWS: &str = "onceward.views";
/// Others may change it at the same time this often before it is their turn to win.
const TRIES_MAX: usize = 16;

/// The generations of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The one that is read and kept up to date.
    pub live: u64,
    /// The last one that a rebuild began to make.
    pub made: u64,
}

impl Default for Generation {
    fn default() -> Self {
        Self { live: 1, made: 1 }
    }
}

fn subject(view: &str) -> Result<Subject, LimitError> {
    Subject::new(STORE_TENANT, VIEWS, view)
}

/// The generations of a view.
pub(super) async fn read(engine: &Engine, view: &str) -> Result<Generation, EngineError> {
    let document = engine.get(&subject(view)?).await?;
    let found = document.and_then(|document| serde_json::from_slice(&document.value).ok());
    Ok(found.unwrap_or_default())
}

/// Changes them; none when `change` wants no change any more.
pub(super) async fn change(
    engine: &Engine,
    view: &str,
    change: impl Fn(Generation) -> Option<Generation>,
) -> Result<Option<Generation>, EngineError> {
    let subject = subject(view)?;
    for _ in 0..TRIES_MAX {
        let seen = engine.see(subject.clone()).await?;
        let now = seen.value.as_deref().and_then(|value| serde_json::from_slice(value).ok());
        let Some(next) = change(now.unwrap_or_default()) else { return Ok(None) };
        let value = serde_json::to_vec(&next).unwrap_or_default();
        if let Put::Written(_) = engine.put(&subject, seen.version, Some(value.into())).await? {
            return Ok(Some(next));
        }
    }
    Err(EngineError::Contended("time after time"))
}
