//! Known names: a filter in memory that tells of most new names that they are not in the index.
//!
//! A first claim asks for a name that is nowhere, and among very many names each such look reads
//! pages from another place. The filter (Bloom's, in blocks of one cache line) errs on one side
//! only: what it does not know is certainly not in the index, everything else is looked up there.
//! A thread of its own reads the names that are there, a few at a time, so that no long read keeps
//! the log from starting again; what is brought to the index meanwhile is noted beside. Until all
//! are read, and after another process has written, every name counts as known.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use onceward_core::key::Key;
use rusqlite::Connection;

use super::check::Check;
use super::failure::Failure;
use super::rows::{self, kind_code};
use super::sql;

/// Bits for each name: one new name in some fifty is looked up in vain.
const BITS_A_NAME: usize = 12;
/// Names that the smallest filter holds, and the largest: 200 KB and 48 MB, and more than twice
/// that while a larger one is made.
const NAMES_MIN: usize = 1 << 17;
const NAMES_MAX: usize = 1 << 25;
/// Names that may be there for each page of the file when the filter is made.
const NAMES_A_PAGE: u64 = 4;
/// Odd factors that spread the same 32 bits another way for each word of a block: the beginnings of
/// the square roots of primes.
const FACTORS: [u64; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f373,
    0xa54f_f53b,
    0x510e_527f,
    0x9b05_688d,
    0x1f83_d9ab,
    0x5be0_cd19,
];
/// Names that are read in one snapshot.
const READ_AT_ONCE: usize = 2_000;
/// How often the names are read from the start: once at the opening, and once more after another
/// process has written, or a commit was in doubt. A file that several write again and again is not
/// worth it.
const STARTS_MAX: u32 = 2;

/// What is known of the index of names. Told by the writer alone.
#[derive(Debug, Default)]
pub(super) struct Known {
    state: Mutex<State>,
    ordered: Condvar,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    /// Has every name that is in the index.
    whole: Option<Filter>,
    /// The latest commit that it may have been read after: without it, names that were deleted are
    /// there.
    forgot: u64,
    /// Has what was brought to the index since the thread was told to read, for a filter to come.
    next: Option<Filter>,
    /// The number of the latest order, and whether the thread has yet to take it.
    order: u64,
    waits: bool,
    starts: u32,
    stop: bool,
}

/// A set that may claim to have what it has not.
#[derive(Debug, Clone)]
struct Filter {
    blocks: Vec<Block>,
    /// Names that were added, some of them twice.
    names: usize,
    names_max: usize,
}

/// The bits of one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Block([u64; 8]);

impl Known {
    /// Begins anew: whatever is in the index of a file of so many pages is to be read.
    pub(super) fn start(&self, pages: u64) {
        let mut state = self.locked();
        (state.whole, state.next) = (None, None);
        state.starts += 1;
        if state.starts <= STARTS_MAX {
            let names = usize::try_from(pages.saturating_mul(NAMES_A_PAGE)).unwrap_or(usize::MAX);
            state.order_of(names);
            self.ordered.notify_one();
        }
    }

    /// Whether a name is certainly not in the index: for the writer, under its own lock.
    pub(super) fn lacks(&self, key: &Key) -> bool {
        let hash = self.hasher.hash_one(key);
        self.locked().whole.as_ref().is_some_and(|whole| !whole.has(hash))
    }

    /// The same for others. Answers the commit that has to be durable before anybody may be told
    /// so; `None` when it may be there, or to know it would mean to wait for the writer.
    pub(super) fn lacks_now(&self, key: &Key) -> Option<u64> {
        let hash = self.hasher.hash_one(key);
        let state = self.state.try_lock().ok()?;
        let lacks = state.whole.as_ref().is_some_and(|whole| !whole.has(hash));
        lacks.then_some(state.forgot)
    }

    /// Names are about to be brought to the index.
    pub(super) fn bring(&self, names: &[(Key, i64)]) {
        if names.is_empty() {
            return;
        }
        let mut state = self.locked();
        let full = state.whole.as_ref().filter(|whole| whole.is_full() && state.next.is_none());
        if let Some(names) = full.map(|whole| whole.names_max * 2) {
            // Before these names are noted: the thread may be past them when they are committed.
            state.order_of(names);
            self.ordered.notify_one();
        }
        for (key, _) in names {
            let hash = self.hasher.hash_one(key);
            let State { whole, next, .. } = &mut *state;
            whole.iter_mut().chain(next).for_each(|filter| filter.add(hash));
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.locked().stop = true;
        self.ordered.notify_one();
    }

    /// The thread: reads the names in the index when it is told to. `seen` is the last commit that
    /// anyone may have seen.
    pub(super) fn run(
        &self,
        connection: &Connection,
        mut check: Check<'_>,
        seen: impl Fn() -> u64,
    ) {
        while let Some(order) = self.wait() {
            self.fulfil(connection, order, &mut check, &seen);
        }
    }

    /// Reads the names in the index. What can't be read leaves every name known: whoever looks
    /// there is told what is wrong.
    fn fulfil(
        &self,
        connection: &Connection,
        (order, mut filter): (u64, Filter),
        check: &mut Check<'_>,
        seen: impl Fn() -> u64,
    ) {
        let wanted = || self.wants(order);
        let read = check.beside(connection, &wanted, |check| {
            self.read(connection, (order, &mut filter), check)
        });
        let mut state = self.locked();
        if state.order != order {
            return;
        }
        let mut before = None;
        match (read, state.next.take()) {
            (Ok(true), Some(next)) => {
                filter.merge(&next);
                before = state.whole.replace(filter);
                state.forgot = seen();
            }
            _ => {
                // Not tried again and again: the one that is full goes on.
                if let Some(whole) = &mut state.whole {
                    whole.names_max = NAMES_MAX;
                }
            }
        }
        drop(state);
        // Not under the lock: a large one takes a while.
        drop(before);
    }

    /// Reads all names. False when that is not wanted any more.
    fn read(
        &self,
        connection: &Connection,
        (order, filter): (u64, &mut Filter),
        check: &mut Check<'_>,
    ) -> Result<bool, Failure> {
        let mut list = connection.prepare(sql::LIST_NAMES)?;
        let mut last: Option<Key> = None;
        loop {
            if !self.wants(order) {
                return Ok(false);
            }
            let place = last.as_ref().map_or(("", -1, ""), |key| {
                (key.tenant_column(), kind_code(key.kind()), key.name_column())
            });
            let limit = i64::try_from(READ_AT_ONCE).unwrap_or(i64::MAX);
            let mut found = list.query((place.0, place.1, place.2, limit))?;
            let mut next: Option<Key> = None;
            while let Some(row) = found.next()? {
                let key = rows::read_key(row, 0)?;
                if next.as_ref().or(last.as_ref()).is_some_and(|before| !in_order(before, &key)) {
                    // Whoever looks a name up among these may not find it.
                    return Err(Failure::Corrupt("the names are out of their order".into()));
                }
                filter.add(self.hasher.hash_one(&key));
                check.see(&key, row.get(3)?);
                next = Some(key);
            }
            drop(found);
            match next {
                Some(key) => last = Some(key),
                None => return Ok(true),
            }
        }
    }

    /// Whether what was ordered is still wanted.
    fn wants(&self, order: u64) -> bool {
        let state = self.locked();
        !state.stop && state.order == order
    }

    /// Waits for an order; none when there is none to come.
    fn wait(&self) -> Option<(u64, Filter)> {
        let mut state = self.locked();
        loop {
            if state.stop {
                return None;
            }
            let next = state.next.as_ref().filter(|_| state.waits);
            if let Some(names_max) = next.map(|next| next.names_max) {
                state.waits = false;
                let order = state.order;
                // Made without the lock: a large one takes a while.
                drop(state);
                return Some((order, Filter::of(names_max)));
            }
            state = self.ordered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        // A panic leaves a filter that has too much, never one that lacks something.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether one name stands before another in the index.
fn in_order(before: &Key, next: &Key) -> bool {
    fn place(key: &Key) -> (&str, i64, &str) {
        (key.tenant_column(), kind_code(key.kind()), key.name_column())
    }
    place(before) < place(next)
}

impl State {
    fn order_of(&mut self, names: usize) {
        self.next = Some(Filter::of(names));
        self.order += 1;
        self.waits = true;
    }
}

impl Filter {
    fn of(names: usize) -> Self {
        let names_max = names.clamp(NAMES_MIN, NAMES_MAX);
        let blocks = (names_max * BITS_A_NAME).div_ceil(512);
        Self { blocks: vec![Block::default(); blocks], names: 0, names_max }
    }

    fn add(&mut self, hash: u64) {
        let (block, bits) = self.place(hash);
        self.names += 1;
        for (word, mask) in self.blocks[block].0.iter_mut().zip(bits) {
            *word |= mask;
        }
    }

    fn has(&self, hash: u64) -> bool {
        let (block, bits) = self.place(hash);
        self.blocks[block].0.iter().zip(bits).all(|(word, mask)| word & mask == mask)
    }

    /// The block of a hash, by its high half, and a bit in each word of it, by its low half.
    fn place(&self, hash: u64) -> (usize, [u64; 8]) {
        let (high, low) = (hash >> 32, hash & 0xffff_ffff);
        let block = (high * self.blocks.len() as u64) >> 32;
        let bit = |factor: u64| 1 << ((low * factor) >> 26 & 63);
        (block as usize, FACTORS.map(bit))
    }

    fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.blocks.iter_mut().zip(&other.blocks) {
            for (mine, theirs) in mine.0.iter_mut().zip(theirs.0) {
                *mine |= theirs;
            }
        }
        self.names += other.names;
    }

    fn is_full(&self) -> bool {
        self.names > self.names_max && self.names_max < NAMES_MAX
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::key::Kind;

    use super::super::notices::Notices;
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(Kind::Request, "acme", "POST /orders", &number.to_string()).unwrap()
    }

    fn named(numbers: std::ops::Range<usize>) -> Vec<(Key, i64)> {
        numbers.map(|number| (key(number), 1)).collect()
    }

    /// A database with these names in its index.
    fn database(names: &[(Key, i64)]) -> Connection {
        let mut connection = Connection::open_in_memory().unwrap();
        super::super::migrate::migrate(&mut connection, "memory".as_ref()).unwrap();
        for (key, id) in names {
            let columns = (key.tenant_column(), kind_code(key.kind()), key.name_column(), id);
            connection.execute(sql::INDEX_NAME, columns).unwrap();
        }
        connection
    }

    /// Does what the thread would do.
    fn read(known: &Known, connection: &Connection) {
        fulfil(known, connection, known.wait().unwrap());
    }

    fn fulfil(known: &Known, connection: &Connection, order: (u64, Filter)) {
        let notices = Notices::default();
        known.fulfil(connection, order, &mut Check::new(&notices, "memory".as_ref()), || 7);
    }

    fn lacking(known: &Known, numbers: std::ops::Range<usize>) -> usize {
        numbers.filter(|number| known.lacks(&key(*number))).count()
    }

    #[test]
    fn nothing_is_lacking_before_all_names_are_read() {
        let known = Known::default();
        assert_eq!(known.lacks_now(&key(1)), None);
        known.start(1);
        assert_eq!(known.lacks_now(&key(1)), None);
        read(&known, &database(&named(0..5_000)));
        assert_eq!(lacking(&known, 0..5_000), 0);
        assert!(lacking(&known, 5_000..15_000) > 9_900);
    }

    #[test]
    fn what_is_brought_to_the_index_is_known_also_while_others_are_read() {
        let known = Known::default();
        known.start(1);
        let (order, filter) = known.wait().unwrap();
        known.bring(&named(0..100));
        fulfil(&known, &database(&named(100..200)), (order, filter));
        known.bring(&named(200..300));
        assert_eq!(lacking(&known, 0..300), 0);
        assert!(lacking(&known, 300..400) > 90);
    }

    #[test]
    fn an_order_that_was_overtaken_leaves_nothing() {
        let known = Known::default();
        known.start(1);
        let (order, filter) = known.wait().unwrap();
        known.start(1);
        fulfil(&known, &database(&[]), (order, filter));
        assert_eq!(known.lacks_now(&key(1)), None, "another process has written since");
        read(&known, &database(&[]));
        assert_eq!(known.lacks_now(&key(1)), Some(7));
        known.start(1);
        assert_eq!(known.lacks_now(&key(1)), None, "several write to this file");
        known.stop();
        assert!(known.wait().is_none());
    }

    #[test]
    fn a_full_filter_is_made_anew_and_serves_meanwhile() {
        let known = Known::default();
        known.start(1);
        read(&known, &database(&[]));
        let full = NAMES_MIN + 1;
        let names = named(0..full);
        known.bring(&names);
        assert_eq!(lacking(&known, 0..full), 0);
        // The thread may read before these are committed, and after they were brought.
        known.bring(&named(full..full + 10));
        let (order, filter) = known.wait().unwrap();
        assert_eq!(filter.names_max, 2 * NAMES_MIN);
        known.bring(&named(full + 10..full + 20));
        fulfil(&known, &database(&names[..1_000]), (order, filter));
        assert_eq!(lacking(&known, 0..1_000) + lacking(&known, full..full + 20), 0);
        assert!(lacking(&known, 1_000..NAMES_MIN) > NAMES_MIN / 2, "by the new one");
    }

    #[test]
    fn names_that_can_not_be_read_leave_the_filter_that_was_there() {
        let known = Known::default();
        known.start(1);
        read(&known, &database(&[]));
        known.bring(&named(0..NAMES_MIN + 1));
        known.bring(&named(0..1));
        let (order, filter) = known.wait().unwrap();
        fulfil(&known, &Connection::open_in_memory().unwrap(), (order, filter));
        assert_eq!(lacking(&known, 0..NAMES_MIN + 1), 0);
        assert!(lacking(&known, 200_000..201_000) > 500);
        known.bring(&named(0..1));
        assert!(known.locked().next.is_none(), "it is not read again and again");
    }
}
