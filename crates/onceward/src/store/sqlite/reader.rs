//! Readers: threads with read-only connections that answer whatever waits in one snapshot.
//!
//! Rule: a snapshot is taken after the calls that it serves were made, so a read sees every commit
//! that was answered before it. Calls that wait together share a transaction and a wake-up: that is
//! what makes many small reads cheap. A damaged record fails the read that asked for it, no other.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use onceward_core::Bytes;
use onceward_core::key::Key;
use onceward_core::record::Stored;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Statement};
use tokio::sync::oneshot;

use super::super::{Cursor, Fact, Found, List, Loaded, Page, Read, StoreError};
use super::failure::Failure;
use super::meta::Meta;
use super::rows::{self, bind_key};
use super::sync::Answer;
use super::young::Place;
use super::{Shared, list, sql};

/// Most calls that are answered from one snapshot.
const DRAIN_MAX: usize = 64;

/// A read and where its answer goes.
pub(super) enum Call {
    Load { reads: Vec<Read>, reply: oneshot::Sender<Result<Loaded, StoreError>> },
    List { ask: Ask, reply: oneshot::Sender<Result<Page, StoreError>> },
}

/// A page that is asked for.
pub(super) struct Ask {
    pub(super) what: List,
    pub(super) after: Option<Cursor>,
    pub(super) limit: usize,
}

/// Where reads wait.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<Waiting>,
    ready: Condvar,
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<Call>,
    /// Lists that may be long, apart from the others, and how many readers are at one.
    long: VecDeque<Call>,
    at_long: usize,
    idle: usize,
    readers: usize,
    closed: bool,
}

impl Queue {
    /// A queue that this many readers share.
    pub(super) fn new(readers: usize) -> Self {
        let state = Waiting { readers, ..Waiting::default() };
        Self { state: Mutex::new(state), ready: Condvar::new() }
    }

    /// How many readers share it.
    pub(super) fn readers(&self) -> usize {
        self.locked().readers
    }

    /// Lets a call wait. Says whether there is anyone to answer it.
    pub(super) fn push(&self, call: Call) -> bool {
        let mut state = self.locked();
        if state.closed {
            return false;
        }
        match &call {
            Call::List { ask, .. } if ask.what.may_be_long() => state.long.push_back(call),
            _ => state.calls.push_back(call),
        }
        let wake = state.idle > 0;
        drop(state);
        if wake {
            self.ready.notify_one();
        }
        true
    }

    /// No further calls; those that wait are still answered.
    pub(super) fn close(&self) {
        self.locked().closed = true;
        self.ready.notify_all();
    }

    /// Waits for calls and takes a fair share of them. A list that may be long is taken alone, and
    /// leaves one reader to the others, if there is more than one. None when the queue is closed
    /// and empty.
    fn drain(&self, into: &mut Vec<Call>) -> Option<Turn<'_>> {
        let mut state = self.locked();
        loop {
            // Where there is one reader alone, it looks things up first.
            let free = state.at_long + 1 < state.readers.max(2);
            if free
                && (state.readers > 1 || state.calls.is_empty())
                && let Some(call) = state.long.pop_front()
            {
                state.at_long += 1;
                into.push(call);
                return Some(Turn { queue: self, long: true });
            }
            if !state.calls.is_empty() {
                break;
            }
            if state.closed && state.long.is_empty() {
                return None;
            }
            state.idle += 1;
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        let share = state.calls.len().div_ceil(state.readers).min(DRAIN_MAX);
        into.extend(state.calls.drain(..share));
        Some(Turn { queue: self, long: false })
    }

    fn locked(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader that is at what it took, until this is dropped.
struct Turn<'q> {
    queue: &'q Queue,
    long: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.long {
            self.queue.locked().at_long -= 1;
            // Whoever waits for the queue's end, or for this place.
            self.queue.ready.notify_all();
        }
    }
}

/// Answers reads until the queue is closed.
pub(super) fn run(connection: &Connection, shared: &Shared, queue: &Arc<Queue>) {
    let mut reads = match Reads::prepare(connection) {
        Ok(reads) => reads,
        Err(error) => return fail_all(queue, &error),
    };
    let mut calls = Vec::new();
    let mut ready = Vec::new();
    while let Some(_turn) = queue.drain(&mut calls) {
        match reads.answer_all(&mut calls, &mut ready, shared) {
            Ok(seen) => shared.sync.tell(seen, ready.drain(..)),
            Err(error) => {
                reads.abandon();
                let error = error.into_store_error();
                for call in calls.drain(..) {
                    call.fail(error.clone());
                }
            }
        }
    }
}

fn fail_all(queue: &Arc<Queue>, error: &rusqlite::Error) {
    let mut calls = Vec::new();
    while let Some(_turn) = queue.drain(&mut calls) {
        for call in calls.drain(..) {
            call.fail(StoreError::NotApplied(error.to_string()));
        }
    }
}

/// Every statement of a reader that is worth preparing once.
struct Reads<'c> {
    connection: &'c Connection,
    begin: Statement<'c>,
    end: Statement<'c>,
    read_meta: Statement<'c>,
    load_record: Statement<'c>,
    load_named: Statement<'c>,
    find_young: Statement<'c>,
    load_payload: Statement<'c>,
    find_mark: Statement<'c>,
}

impl<'c> Reads<'c> {
    fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            begin: connection.prepare("BEGIN")?,
            end: connection.prepare("COMMIT")?,
            read_meta: connection.prepare(sql::READ_META)?,
            load_record: connection.prepare(sql::LOAD_RECORD)?,
            load_named: connection.prepare(sql::LOAD_NAMED)?,
            find_young: connection.prepare(sql::FIND_YOUNG)?,
            load_payload: connection.prepare(sql::LOAD_PAYLOAD)?,
            find_mark: connection.prepare(sql::FIND_MARK)?,
        })
    }

    /// Answers all calls from one snapshot, and says which commit is the last that it may show.
    fn answer_all(
        &mut self,
        calls: &mut Vec<Call>,
        ready: &mut Vec<Answer>,
        shared: &Shared,
    ) -> Result<u64, Failure> {
        self.begin.raw_execute()?;
        let snapshot = self.snapshot(shared)?;
        // The snapshot is taken; what is begun later is not in it.
        let seen = shared.sync.seen();
        for call in calls.drain(..) {
            ready.push(match call {
                Call::Load { reads, reply } => Answer::Load((reply, self.load(&reads, &snapshot))),
                Call::List { ask, reply } => {
                    let now = shared.now();
                    let indexed = rows::signed(snapshot.indexed);
                    let page = list::list(self.connection, now, indexed, &shared.places, &ask);
                    Answer::List((reply, page.map_err(Failure::into_store_error)))
                }
            });
        }
        if self.end.raw_execute().is_err() {
            // The answers are as good as they were; the next snapshot must be a new one.
            self.abandon();
        }
        Ok(seen)
    }

    /// Leaves a transaction that an error left open, or no other could begin.
    fn abandon(&self) {
        if !self.connection.is_autocommit() {
            // Where even that fails, the next call is told why.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    /// Takes the snapshot, by its first read.
    fn snapshot<'s>(&mut self, shared: &'s Shared) -> Result<Snapshot<'s>, Failure> {
        let Meta { stamp, indexed, .. } = Meta::of(&mut self.read_meta)?;
        Ok(Snapshot { shared, indexed, stamp })
    }

    fn load(&mut self, reads: &[Read], snapshot: &Snapshot<'_>) -> Result<Loaded, StoreError> {
        let facts = reads.iter().map(|read| self.fact(read, snapshot)).collect::<Result<_, _>>();
        let facts = facts.map_err(Failure::into_store_error)?;
        // Read after the snapshot was taken, so that no fact lies ahead of it.
        Ok(Loaded { now: snapshot.shared.now(), facts })
    }

    fn fact(&mut self, read: &Read, snapshot: &Snapshot<'_>) -> Result<Fact, Failure> {
        match read {
            Read::Record { key, payload } => {
                let Some((stored, payload_id)) = self.record(key, snapshot)? else {
                    return Ok(Fact::Record(None));
                };
                let wanted = *payload && (stored.record.has_payload || payload_id.is_some());
                let payload = wanted.then(|| self.payload(key, payload_id)).transpose()?;
                Ok(Fact::Record(Some(Found { stored, payload })))
            }
            Read::Mark(subject) => {
                let columns = [subject.tenant_column(), subject.name_column()];
                let mut found = self.find_mark.query(columns)?;
                let mark = found.next()?.map(|row| rows::read_mark(row, 0, subject)).transpose()?;
                Ok(Fact::Mark(mark))
            }
        }
    }

    /// A record and where its payload is. By memory, if that covers the snapshot; by the index; and
    /// at last by a look through the young rows, which is right for every snapshot.
    fn record(
        &mut self,
        key: &Key,
        snapshot: &Snapshot<'_>,
    ) -> Result<Option<(Stored, Option<i64>)>, Failure> {
        let young = snapshot.shared.young.find(key, snapshot.indexed, snapshot.stamp);
        if let Some(Some(place)) = young {
            let (Place::At(id) | Place::Gone(id)) = place;
            let found = self.record_at(key, id)?;
            let too_old = id > rows::signed(snapshot.stamp);
            match place {
                _ if found.is_some() => return Ok(found),
                _ if too_old => {}
                // It was deleted, and so were those before it.
                Place::Gone(_) => return Ok(None),
                Place::At(_) => return snapshot.shared.gone(key),
            }
        }
        bind_key(&mut self.load_named, key)?;
        let mut found = self.load_named.raw_query();
        if let Some(row) = found.next()? {
            if matches!(row.get_ref(0)?, ValueRef::Null) {
                return Err(rows::missing(key));
            }
            return rows::read_stored(row, key).map(Some);
        }
        drop(found);
        if matches!(young, Some(None)) {
            return Ok(None);
        }
        match self.young_id(key, snapshot)? {
            Some(id) => self.record_at(key, id),
            None => Ok(None),
        }
    }

    fn record_at(&mut self, key: &Key, id: i64) -> Result<Option<(Stored, Option<i64>)>, Failure> {
        let mut found = self.load_record.query((id, key.name_column()))?;
        found.next()?.map(|row| rows::read_stored(row, key)).transpose()
    }

    fn young_id(&mut self, key: &Key, snapshot: &Snapshot<'_>) -> Result<Option<i64>, Failure> {
        bind_key(&mut self.find_young, key)?;
        self.find_young.raw_bind_parameter(4, rows::signed(snapshot.indexed))?;
        let mut found = self.find_young.raw_query();
        Ok(found.next()?.map(|row| row.get(0)).transpose()?)
    }

    fn payload(&mut self, key: &Key, id: Option<i64>) -> Result<Bytes, Failure> {
        // No row has the number of none.
        let mut found = self.load_payload.query([id])?;
        let Some(row) = found.next()? else {
            let what = format!("the payload of {} is missing", key.hash_hex());
            return Err(Failure::Corrupt(what));
        };
        rows::read_payload(row, key)
    }
}

/// What is read at once.
struct Snapshot<'s> {
    shared: &'s Shared,
    /// Names of records up to this one are in the index.
    indexed: u64,
    /// No record in it has a higher number.
    stamp: u64,
}

impl Call {
    fn fail(self, error: StoreError) {
        match self {
            Self::Load { reply, .. } => drop(reply.send(Err(error))),
            Self::List { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::AuditFilter;
    use super::*;

    fn search() -> Call {
        let ask = Ask { what: List::Audit(AuditFilter::default()), after: None, limit: 1 };
        Call::List { ask, reply: oneshot::channel().0 }
    }

    fn look() -> Call {
        Call::Load { reads: Vec::new(), reply: oneshot::channel().0 }
    }

    /// What a reader takes: how many searches, and how many looks.
    fn taken(queue: &Queue) -> (Turn<'_>, usize, usize) {
        let mut calls = Vec::new();
        let turn = queue.drain(&mut calls).unwrap();
        let searches = calls.iter().filter(|call| matches!(call, Call::List { .. })).count();
        (turn, searches, calls.len() - searches)
    }

    #[test]
    fn searches_leave_a_reader_to_those_who_look_one_thing_up() {
        let queue = Queue::new(2);
        for call in [search(), search(), look()] {
            assert!(queue.push(call));
        }
        let (first, searches, looks) = taken(&queue);
        assert_eq!((searches, looks), (1, 0));
        let (_second, searches, looks) = taken(&queue);
        assert_eq!((searches, looks), (0, 1), "while one is at a search");
        drop(first);
        queue.push(look());
        let (_third, searches, looks) = taken(&queue);
        assert_eq!((searches, looks), (1, 0));
    }

    #[test]
    fn a_reader_alone_looks_things_up_first() {
        let queue = Queue::new(1);
        queue.push(search());
        queue.push(look());
        let (first, searches, looks) = taken(&queue);
        assert_eq!((searches, looks), (0, 1));
        drop(first);
        let (_second, searches, looks) = taken(&queue);
        assert_eq!((searches, looks), (1, 0));
        queue.close();
        assert!(queue.drain(&mut Vec::new()).is_none());
    }
}
