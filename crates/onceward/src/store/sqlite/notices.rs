//! What the store wants someone to know of its files: a sentence for each matter, as long as it
//! holds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::{NamesCheck, Standing};

/// What a sentence is about. Alarms and warnings are shown in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Matter {
    /// The opening could not read what it has to.
    Unread,
    /// Names of keys were changed or lost.
    Names,
    /// Names of marks were changed or lost.
    Marks,
    /// There are more names than are checked.
    Unchecked,
}

impl Matter {
    /// Whether something was lost, or may have been.
    fn is_alarm(self) -> bool {
        matches!(self, Self::Unread | Self::Names | Self::Marks)
    }
}

/// What there is to say.
#[derive(Debug, Default)]
pub(super) struct Notices {
    said: Mutex<BTreeMap<Matter, String>>,
    checking: AtomicBool,
}

impl Notices {
    pub(super) fn say(&self, matter: Matter, sentence: String) {
        self.locked().insert(matter, sentence);
    }

    /// Whether names are being checked, from now on.
    pub(super) fn check_names(&self, checking: bool) {
        self.checking.store(checking, Ordering::SeqCst);
    }

    pub(super) fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        // Asked first: what the check found was said before it ended.
        if self.checking.load(Ordering::SeqCst) {
            standing.names = NamesCheck::Checking;
        }
        for (matter, sentence) in self.locked().iter() {
            let list =
                if matter.is_alarm() { &mut standing.alarms } else { &mut standing.warnings };
            list.push(sentence.clone());
        }
        standing
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Matter, String>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
