//! Young records: those whose names are not in the index of names yet.
//!
//! Names come in no order, so an index that is written at every first claim writes a page per
//! claim. New names are kept here in memory and brought to the index later, in the order of the
//! names and a few with every commit, where many of them share a page. Nothing is lost with the
//! memory: a record's row has its name, rows are numbered by stamps, which only rise, and `indexed`
//! in `meta` tells up to which number they are in the index. Whoever has no memory that covers its
//! snapshot looks through the rows behind that number: there are a bounded number of them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use onceward_core::key::Key;

/// Names that are gathered before they are brought to the index, at least. Twice as many may be
/// outside it.
const GATHERED: usize = 65_536;
/// As many are gathered on a large file: the larger the index, the fewer of them share a page of
/// it. A name takes two or three hundred bytes of memory.
const GATHERED_MAX: usize = 2 * GATHERED;
/// Pages of the file for each name that is gathered.
const PAGES_A_NAME: u64 = 2;

/// The names of young records and the ids of their rows. Written by the writer alone.
#[derive(Debug, Default)]
pub(super) struct Young(RwLock<Names>);

#[derive(Debug, Default)]
struct Names {
    /// Every record whose id is above the first and not above the second is here.
    range: Option<(u64, u64)>,
    /// How many are gathered before they are sent on their way.
    gather: Gather,
    fresh: HashMap<Key, i64>,
    moving: Option<Moving>,
    /// Rows that were deleted while their names were here: those names are not brought anywhere.
    gone: HashSet<i64>,
    /// The latest commit in which the name of a deleted row left: without it the row is there.
    forgot: u64,
}

/// How many names are gathered.
#[derive(Debug, Clone, Copy)]
struct Gather(usize);

impl Default for Gather {
    fn default() -> Self {
        Self(GATHERED)
    }
}

/// Where a young record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the row with this id: one that is not there is missing.
    At(i64),
    /// It was in the row with this id, which was deleted.
    Gone(i64),
}

/// Names on their way to the index.
#[derive(Debug)]
struct Moving {
    names: Arc<HashMap<Key, i64>>,
    /// The stamp when they were taken: no id among them is above it.
    up_to: u64,
    /// All of them in the order of the names, once they are sorted.
    order: Arc<OnceLock<Vec<(Key, i64)>>>,
    /// How many of those have arrived.
    arrived: usize,
}

/// What a transaction brings to the index.
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// Names and the ids of their rows, in the order of the names.
    pub(super) names: Vec<(Key, i64)>,
    /// How many of those on their way it stands for, with those that are gone.
    counted: usize,
    /// The number up to which all are in the index then, if it changes.
    pub(super) indexed: Option<u64>,
}

impl Young {
    /// The id of a young record's row, which may be deleted by now.
    pub(super) fn get(&self, key: &Key) -> Option<i64> {
        self.read().get(key)
    }

    /// Where a young record is, and whether it is still there.
    pub(super) fn place(&self, key: &Key) -> Option<Place> {
        self.read().place(key)
    }

    /// As [`Young::place`], for a snapshot. `None` when not every record that the snapshot has
    /// outside its index is here: names leave while a snapshot is read, so each look asks anew.
    pub(super) fn find(&self, key: &Key, indexed: u64, stamp: u64) -> Option<Option<Place>> {
        let names = self.read();
        let covered = names.range.is_some_and(|(above, up_to)| above <= indexed && stamp <= up_to);
        covered.then(|| names.place(key))
    }

    /// Whether no young record has this name. Answers the commit that has to be durable before
    /// anybody may be told so; `None` when there is such a record, or could be, or to know it would
    /// mean to wait for the writer.
    pub(super) fn lacks(&self, key: &Key) -> Option<u64> {
        let names = self.0.try_read().ok()?;
        (names.range.is_some() && names.get(key).is_none()).then_some(names.forgot)
    }

    /// A commit may or may not have happened: what is here is worth nothing until it is read anew.
    pub(super) fn doubt(&self) {
        self.write().range = None;
    }

    /// Whether these are the names outside the index, neither more nor less.
    pub(super) fn is_at(&self, indexed: u64, stamp: u64) -> bool {
        self.read().range == Some((indexed, stamp))
    }

    /// Begins anew with what was read from the rows, which have seen this commit.
    pub(super) fn fill(&self, indexed: u64, stamp: u64, names: HashMap<Key, i64>, commit: u64) {
        let range = Some((indexed, stamp));
        let mut there = self.write();
        let (gather, forgot) = (there.gather, commit);
        *there = Names { range, gather, fresh: names, forgot, ..Names::default() };
    }

    /// Gathers as many as are worth it on a file of so many pages.
    pub(super) fn gather_for(&self, pages: u64) {
        let names = usize::try_from(pages / PAGES_A_NAME).unwrap_or(usize::MAX);
        self.write().gather = Gather(names.clamp(GATHERED, GATHERED_MAX));
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

    /// A young record's row is deleted by the open transaction.
    pub(super) fn delete(&self, id: i64) {
        self.write().gone.insert(id);
    }

    /// Takes deletions back.
    pub(super) fn keep(&self, deleted: &mut Vec<i64>) {
        let mut names = self.write();
        for id in deleted.drain(..) {
            names.gone.remove(&id);
        }
    }

    /// A commit is about to make rows up to this stamp visible.
    pub(super) fn reach(&self, stamp: u64) {
        self.write().reach(stamp);
    }

    /// The next names to bring to the index by a transaction that ends at this stamp.
    pub(super) fn next(&self, most: usize, stamp: u64) -> Slice {
        let names = self.read();
        let Some(moving) = &names.moving else { return names.all_if_too_many(stamp) };
        let Some(order) = moving.order.get() else { return Slice::default() };
        let end = moving.arrived.saturating_add(most).min(order.len());
        let indexed = (end == order.len()).then_some(moving.up_to);
        let those = order[moving.arrived..end].iter();
        let there = those.filter(|(_, id)| !names.gone.contains(id)).cloned().collect();
        Slice { names: there, counted: end - moving.arrived, indexed }
    }

    /// What [`Young::next`] gave is committed, in this commit. Sends the next on their way once it
    /// is time.
    pub(super) fn arrived(&self, slice: &Slice, commit: u64) {
        let mut names = self.write();
        if let Some(moving) = &mut names.moving {
            moving.arrived += slice.counted;
        }
        let mut gone = None;
        if let Some(indexed) = slice.indexed {
            // Without any on their way it was all of them.
            let moved = names.moving.take();
            let fresh =
                if moved.is_none() { std::mem::take(&mut names.fresh) } else { HashMap::new() };
            gone = Some((moved, fresh));
            if let Some((above, _)) = &mut names.range {
                *above = indexed;
            }
            let before = names.gone.len();
            names.gone.retain(|id| id.cast_unsigned() > indexed);
            if names.gone.len() < before {
                names.forgot = commit;
            }
        }
        if names.moving.is_none() && names.fresh.len() >= names.gather.0 {
            names.send();
        }
        drop(names);
        if let Some(gone) = gone {
            // There are many: not dropped under the lock nor, if it can be helped, by the writer.
            let thread = std::thread::Builder::new().name("onceward-sqlite-names".into());
            let _ = thread.spawn(move || drop(gone));
        }
    }

    /// Sends names on their way as soon as there are this many.
    #[cfg(test)]
    pub(super) fn gather(&self, names: usize) {
        self.write().gather = Gather(names);
    }

    /// As if the name of a deleted row had left in this commit.
    #[cfg(test)]
    pub(super) fn forgot_in(&self, commit: u64) {
        self.write().forgot = commit;
    }

    fn read(&self) -> RwLockReadGuard<'_, Names> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Names> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn get(&self, key: &Key) -> Option<i64> {
        let moving = || self.moving.as_ref().and_then(|moving| moving.names.get(key));
        self.fresh.get(key).or_else(moving).copied()
    }

    fn place(&self, key: &Key) -> Option<Place> {
        let id = self.get(key)?;
        Some(if self.gone.contains(&id) { Place::Gone(id) } else { Place::At(id) })
    }

    fn reach(&mut self, stamp: u64) {
        if let Some((_, up_to)) = &mut self.range {
            *up_to = stamp;
        }
    }

    /// Everything at once, where it could not be sent on its way: there was no thread to sort it,
    /// or another process writes in between again and again, so that it is read anew each time.
    fn all_if_too_many(&self, stamp: u64) -> Slice {
        if self.fresh.len() < 2 * self.gather.0 {
            return Slice::default();
        }
        let there = self.fresh.iter().filter(|(_, id)| !self.gone.contains(id));
        let mut names: Vec<_> = there.map(|(key, id)| (key.clone(), *id)).collect();
        names.sort_unstable();
        Slice { names, counted: 0, indexed: Some(stamp) }
    }

    /// Sends what was gathered on its way: sorts it beside the writer, which must not wait.
    fn send(&mut self) {
        // Made as large as it will be: growing it step by step is the writer's time.
        let next = HashMap::with_capacity(self.gather.0);
        let names = Arc::new(std::mem::replace(&mut self.fresh, next));
        let order = Arc::new(OnceLock::new());
        let up_to = self.range.map_or(0, |(_, up_to)| up_to);
        let (unsorted, place) = (names.clone(), order.clone());
        let sort = move || {
            let mut sorted: Vec<_> = unsorted.iter().map(|(key, id)| (key.clone(), *id)).collect();
            drop(unsorted);
            sorted.sort_unstable();
            // Nobody else sets it.
            let _ = place.set(sorted);
        };
        let thread = std::thread::Builder::new().name("onceward-sqlite-names".into());
        let sent = thread.spawn(sort).is_ok();
        let moving = Moving { names, up_to, order, arrived: 0 };
        if sent {
            self.moving = Some(moving);
        } else {
            // Without a thread they stay where they are, and the next commit tries again. What the
            // thread was to have is gone with it, so nobody else has them.
            self.fresh = Arc::try_unwrap(moving.names).unwrap_or_else(|names| (*names).clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::key::Kind;

    use super::*;

    fn key(number: usize) -> Key {
        Key::new(Kind::Request, "acme", "POST /orders", &number.to_string()).unwrap()
    }

    /// As many as this, each under its number.
    fn filled(count: usize) -> (Young, u64) {
        let young = Young::default();
        let names = (1..=count).map(|number| (key(number), i64::try_from(number).unwrap()));
        let stamp = u64::try_from(count).unwrap();
        young.fill(0, stamp, names.collect(), 3);
        (young, stamp)
    }

    #[test]
    fn a_snapshot_is_told_when_names_have_left_for_an_index_that_it_does_not_see() {
        let (young, stamp) = filled(GATHERED);
        assert_eq!(young.find(&key(1), 0, stamp), Some(Some(Place::At(1))));
        young.arrived(&young.next(0, stamp), 4);
        let slice = loop {
            let slice = young.next(usize::MAX, stamp);
            if !slice.names.is_empty() {
                break slice;
            }
            std::thread::yield_now();
        };
        assert_eq!(young.find(&key(1), 0, stamp), Some(Some(Place::At(1))));
        young.arrived(&slice, 5);
        assert_eq!(young.find(&key(1), 0, stamp), None, "an older snapshot looks for itself");
        assert_eq!(young.find(&key(1), stamp, stamp), Some(None));
        assert_eq!(young.find(&key(1), stamp, stamp + 1), None, "another process has written");
    }

    #[test]
    fn what_was_deleted_meanwhile_is_not_brought_to_the_index() {
        let (young, stamp) = filled(2 * GATHERED);
        young.delete(1);
        young.delete(2);
        young.keep(&mut vec![2]);
        let slice = young.next(2, stamp);
        assert_eq!((slice.names.len(), slice.indexed), (2 * GATHERED - 1, Some(stamp)));
        assert!(!slice.names.contains(&(key(1), 1)) && slice.names.contains(&(key(2), 2)));
        assert_eq!(young.lacks(&key(1)), None, "its row may be there");
        young.arrived(&slice, 4);
        assert!(young.read().gone.is_empty(), "nobody asks for it any more");
        assert_eq!(young.lacks(&key(1)), Some(4), "once its deletion is durable");
        young.doubt();
        assert_eq!(young.lacks(&key(1)), None);
    }

    #[test]
    fn too_many_are_brought_to_the_index_at_once() {
        let (young, stamp) = filled(2 * GATHERED - 1);
        assert!(young.next(2, stamp).names.is_empty());
        let (young, stamp) = filled(2 * GATHERED);
        let slice = young.next(2, stamp);
        assert_eq!((slice.names.len(), slice.indexed), (2 * GATHERED, Some(stamp)));
        assert!(slice.names.is_sorted(), "in the order of the names");
        young.arrived(&slice, 4);
        assert_eq!(young.get(&slice.names[0].0), None);
        assert_eq!(young.lacks(&slice.names[0].0), Some(3), "nothing was deleted since");
        assert!(young.is_at(stamp, stamp));
    }
}
