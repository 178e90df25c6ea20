//! Young records: those whose names are not in the index of names yet.
//!
//! Names come in no order, so an index that is written at every first claim writes a page per claim.
//! New names are kept here in memory instead and brought to the index later, in the order of the
//! names and a few with every commit, where many of them share a page. Nothing is lost with the
//! memory: a record's row has its name, rows are numbered by stamps, which only rise, and `indexed`
//! in `meta` tells up to which number they are in the index. Whoever has no memory that covers its
//! snapshot looks through the rows behind that number: there are a bounded number of them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use onceward_core::key::Key;

/// Names that are gathered before they are brought to the index. Twice as many may be outside it.
const GATHERED: usize = 32_768;

/// The names of young records and the ids of their rows. Written by the writer alone.
#[derive(Debug, Default)]
pub(super) struct Young(RwLock<Names>);

#[derive(Debug, Default)]
struct Names {
    /// Every record whose id is above the first and not above the second is here.
    range: Option<(u64, u64)>,
    fresh: HashMap<Key, i64>,
    moving: Option<Moving>,
}

/// Names on their way to the index.
#[derive(Debug)]
struct Moving {
    names: HashMap<Key, i64>,
    /// The stamp when they were taken: no id among them is above it.
    up_to: u64,
    /// Their ids in the order of the names, once they are sorted.
    order: Arc<OnceLock<Vec<i64>>>,
    /// How many of those have arrived.
    arrived: usize,
}

/// What a transaction brings to the index.
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// Ids of rows, in the order of their names.
    pub(super) ids: Vec<i64>,
    /// The number up to which all are in the index then, if it changes.
    pub(super) indexed: Option<u64>,
}

impl Young {
    /// The id of a young record's row, which may be deleted by now.
    pub(super) fn get(&self, key: &Key) -> Option<i64> {
        let names = self.read();
        let moving = || names.moving.as_ref().and_then(|moving| moving.names.get(key));
        names.fresh.get(key).or_else(moving).copied()
    }

    /// Whether every record that a snapshot has outside the index is here.
    pub(super) fn covers(&self, indexed: u64, stamp: u64) -> bool {
        self.read().range.is_some_and(|(above, up_to)| above <= indexed && stamp <= up_to)
    }

    /// Whether these are the names outside the index, neither more nor less.
    pub(super) fn is_at(&self, indexed: u64, stamp: u64) -> bool {
        self.read().range == Some((indexed, stamp))
    }

    /// Begins anew with what was read from the rows.
    pub(super) fn fill(&self, indexed: u64, stamp: u64, names: HashMap<Key, i64>) {
        *self.write() = Names { range: Some((indexed, stamp)), fresh: names, moving: None };
    }

    /// Adds a name before its row is committed, and tells what was there under it.
    pub(super) fn insert(&self, key: &Key, id: i64) -> Option<i64> {
        self.write().fresh.insert(key.clone(), id)
    }

    /// Takes additions back, the last one first, and the stamp to where it was.
    pub(super) fn take_back(&self, added: &mut Vec<(Key, Option<i64>)>, stamp: u64) {
        let mut names = self.write();
        while let Some((key, before)) = added.pop() {
            match before {
                Some(id) => names.fresh.insert(key, id),
                None => names.fresh.remove(&key),
            };
        }
        names.reach(stamp);
    }

    /// A commit is about to make rows up to this stamp visible.
    pub(super) fn reach(&self, stamp: u64) {
        self.write().reach(stamp);
    }

    /// The next names to bring to the index.
    pub(super) fn next(&self, most: usize) -> Slice {
        let names = self.read();
        let Some(moving) = &names.moving else { return Slice::default() };
        let Some(order) = moving.order.get() else { return Slice::default() };
        let end = moving.arrived.saturating_add(most).min(order.len());
        let indexed = (end == order.len()).then_some(moving.up_to);
        Slice { ids: order[moving.arrived..end].to_vec(), indexed }
    }

    /// What [`Young::next`] gave is committed. Sends the next on their way once it is time.
    pub(super) fn arrived(&self, slice: &Slice) {
        let mut names = self.write();
        if let Some(moving) = &mut names.moving {
            moving.arrived += slice.ids.len();
        }
        let mut gone = None;
        if let Some(indexed) = slice.indexed {
            gone = names.moving.take();
            if let Some((above, _)) = &mut names.range {
                *above = indexed;
            }
        }
        if names.moving.is_none() && names.fresh.len() >= GATHERED {
            names.send();
        }
        drop(names);
        // Dropped without the lock: there are many.
        drop(gone);
    }

    fn read(&self) -> RwLockReadGuard<'_, Names> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Names> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn reach(&mut self, stamp: u64) {
        if let Some((_, up_to)) = &mut self.range {
            *up_to = stamp;
        }
    }

    /// Sends what was gathered on its way: sorts it beside the writer, which must not wait.
    fn send(&mut self) {
        let names = std::mem::take(&mut self.fresh);
        let mut sorted: Vec<_> = names.iter().map(|(key, id)| (key.clone(), *id)).collect();
        let order = Arc::new(OnceLock::new());
        let up_to = self.range.map_or(0, |(_, up_to)| up_to);
        let place = order.clone();
        let sort = move || {
            sorted.sort_unstable();
            // Nobody else sets it.
            let _ = place.set(sorted.into_iter().map(|(_, id)| id).collect());
        };
        let thread = std::thread::Builder::new().name("onceward-sqlite-names".into());
        let sent = thread.spawn(sort).is_ok();
        let moving = Moving { names, up_to, order, arrived: 0 };
        if sent {
            self.moving = Some(moving);
        } else {
            // Without a thread they stay where they are, and the next commit tries again.
            self.fresh = moving.names;
        }
    }
}
