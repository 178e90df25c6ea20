//! Who hears of attempts: for metrics. Told once an attempt is committed and answered.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::Action;

/// What came of an attempt, or of a look into the replay cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// An attempt came to its end; with it, an audit entry was written.
    Attempt {
        /// What came of it.
        action: Action,
        /// Why it was refused.
        error: Option<&'static str>,
        /// From the request's arrival to the end.
        took: Duration,
    },
    /// A batch of this many measurements came to its end.
    Batch {
        /// How many.
        items: usize,
    },
    /// A request's key was looked for in the replay cache.
    Looked {
        /// Whether its answer was there.
        hit: bool,
    },
    /// An answer from the replay cache was compared with the store's.
    Compared {
        /// Whether they were the same.
        same: bool,
    },
}

type Hears = dyn Fn(&Happened) + Send + Sync;

/// Hears of every attempt. Cheap to clone.
#[derive(Clone)]
pub struct Observer(pub Arc<Hears>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
