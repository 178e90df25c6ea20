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
    /// What the opening found in the log.
    Log,
    /// Names of keys were changed or lost.
    Names,
    /// Names of marks were changed or lost.
    Marks,
    /// Stamps may be dealt twice.
    Stamps,
    /// Names were not checked: there are too many, or they could not be read.
    Unchecked,
    /// The file is older than its note, and was opened all the same.
    Older,
    /// The note itself.
    Note,
    /// Other names of the file.
    Links,
    /// A file system on which the file itself is not locked.
    Remote,
    /// The machine's clock says something else.
    Clock,
    /// What was erased is not out of the log yet.
    Erased,
    /// The log is longer than it should be.
    Length,
}

impl Matter {
    /// Whether something was lost, or may have been.
    fn is_alarm(self) -> bool {
        matches!(self, Self::Unread | Self::Log | Self::Names | Self::Marks | Self::Stamps)
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

    /// The matter is settled.
    pub(super) fn settle(&self, matter: Matter) {
        self.locked().remove(&matter);
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
