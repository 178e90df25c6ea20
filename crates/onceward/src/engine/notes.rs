//! Notes: audit entries about replays, conflicts and expiries, written beside their requests.
//!
//! A replay is answered from memory, a hundred thousand times a second; its entry must not slow it
//! down. So notes wait in a bounded buffer and are written together, well within a second (A26).
//! What finds the buffer full, can't be written, or is still in it when a process dies, is lost;
//! what a process that lives loses, it counts, and what a crash can lose it says beforehand
//! (`owed`). Nothing here decides what is a replay.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use onceward_core::batch::{Batch, Write};
use onceward_core::decide::{Facts, Step};
use onceward_core::drive::Drive;
use onceward_core::limits::MAX_BATCH_WRITES;
use onceward_core::note::{Note, Noted};
use onceward_core::stamp::At;
use tokio::sync::{MutexGuard, Notify};

use super::owed::Owed;
use super::{Engine, EngineError};
use crate::store::{AuditFilter, Items, List};

/// Parts of the buffer, so that threads seldom meet at one lock.
const SHARDS: usize = 16;
/// Looks for original entries that go on at once.
const LOOKS_AT_ONCE: usize = 8;
/// Batches that are made and committed at once: all together would keep a thread of the runtime
/// from everything else for milliseconds.
const CHUNKS_AT_ONCE: usize = 16;
/// Entries of one key at one instant that are looked through for the original.
const CANDIDATES_MAX: usize = 100;
/// How often writing a full buffer is tried before it is given up.
const TRIES: u32 = 5;

/// How notes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoteWriting {
    /// Through a bounded buffer, durable within a second.
    #[default]
    Buffered,
    /// Before [`Engine::note`] returns.
    Sync,
}

/// What became of notes so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoteCounts {
    /// Written, durably.
    pub written: u64,
    /// In the buffer: what would be lost if the process died now.
    pub waiting: u64,
    /// Lost because the buffer was full.
    pub overflowed: u64,
    /// Lost because the store did not take them, or the engine was closed.
    pub failed: u64,
}

/// The buffer.
#[derive(Default)]
pub(super) struct Notes {
    shards: [Mutex<Vec<Note>>; SHARDS],
    waiting: AtomicUsize,
    /// Someone writes, or is about to.
    awake: AtomicBool,
    closed: AtomicBool,
    /// Held by whoever writes; what the audit is owed is written with the notes.
    writing: tokio::sync::Mutex<Owed>,
    /// How many may wait before more has to be said to be owed, and who is told.
    room: AtomicUsize,
    crowded: Notify,
    written: AtomicU64,
    overflowed: AtomicU64,
    failed: AtomicU64,
}

impl Engine {
    /// Tells the audit of something that wrote nothing of its own. Buffered, it returns at once and
    /// never fails; what is lost is counted.
    ///
    /// # Errors
    /// Under [`NoteWriting::Sync`], when the store gives no answer.
    pub async fn note(&self, note: Note) -> Result<(), EngineError> {
        if self.0.options.notes == NoteWriting::Sync {
            // Boxed: whoever only leaves it in the buffer need not carry it.
            return Box::pin(self.write_note(&note)).await;
        }
        let notes = &self.0.notes;
        if notes.push(note, self.0.options.notes_waiting_max)
            && !notes.awake.load(Ordering::SeqCst)
            && !notes.awake.swap(true, Ordering::SeqCst)
        {
            tokio::spawn(self.clone().write_notes());
        }
        Ok(())
    }

    async fn write_note(&self, note: &Note) -> Result<(), EngineError> {
        self.find_original(note).await;
        let written = self.audit(&note.entry()).await;
        let counter = if written.is_ok() { &self.0.notes.written } else { &self.0.notes.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        written
    }

    /// What became of notes so far.
    #[must_use]
    pub fn note_counts(&self) -> NoteCounts {
        let notes = &self.0.notes;
        NoteCounts {
            written: notes.written.load(Ordering::Relaxed),
            waiting: notes.waiting.load(Ordering::Relaxed) as u64,
            overflowed: notes.overflowed.load(Ordering::Relaxed),
            failed: notes.failed.load(Ordering::Relaxed),
        }
    }

    /// Writes what waits, now.
    pub async fn flush_notes(&self) {
        let notes = &self.0.notes;
        let mut owed = notes.owed().await;
        let taken = notes.take();
        // Neighbours look for few originals and many are known: a few at once are plenty.
        let looks = taken.iter().filter(|note| note.original.entry().is_none());
        stream::iter(looks)
            .for_each_concurrent(LOOKS_AT_ONCE, |note| self.find_original(note))
            .await;
        stream::iter(taken.chunks(MAX_BATCH_WRITES))
            .for_each_concurrent(CHUNKS_AT_ONCE, |chunk| async {
                self.write_chunk(chunk).await;
                notes.waiting.fetch_sub(chunk.len(), Ordering::SeqCst);
            })
            .await;
        self.say_owed(&mut owed, notes.waiting.load(Ordering::SeqCst)).await;
        notes.room.store(owed.room(self.0.options.notes_waiting_max), Ordering::SeqCst);
    }

    /// Says what a crash would lose, if that is more than was said.
    async fn owe_more(&self) {
        let notes = &self.0.notes;
        let mut owed = notes.owed().await;
        let most = self.0.options.notes_waiting_max;
        let waiting = notes.waiting.load(Ordering::SeqCst);
        if waiting > owed.room(most) {
            self.say_owed(&mut owed, waiting).await;
        }
        notes.room.store(owed.room(most), Ordering::SeqCst);
    }

    /// Takes no further notes and writes what waits.
    pub(super) async fn close_notes(&self) {
        self.0.notes.closed.store(true, Ordering::SeqCst);
        self.flush_notes().await;
    }

    /// Writes until nothing waits. Sleeping first is what makes many notes one commit.
    async fn write_notes(self) {
        loop {
            let rest = tokio::time::sleep(self.0.options.notes_every);
            tokio::pin!(rest);
            self.owe_more().await;
            loop {
                tokio::select! {
                    () = &mut rest => break,
                    () = self.0.notes.crowded.notified() => self.owe_more().await,
                }
            }
            self.flush_notes().await;
            if self.0.notes.waiting.load(Ordering::SeqCst) > 0 {
                continue;
            }
            self.0.notes.awake.store(false, Ordering::SeqCst);
            // One that came between the look and the store has seen us awake.
            let missed = self.0.notes.waiting.load(Ordering::SeqCst) > 0;
            if !missed || self.0.notes.awake.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }

    /// One batch of entries, tried a few times: a store that is down for a moment loses nothing.
    async fn write_chunk(&self, notes: &[Note]) {
        let counts = &self.0.notes;
        let mut pause = Duration::from_millis(50);
        for _ in 0..TRIES {
            let decide = |token, _: &Facts| -> Step<(), ()> {
                let mut batch = Batch::new(token);
                let entries = notes.iter().map(|note| Write::Audit(Box::new(note.entry())));
                batch.writes.extend(entries);
                Step::Commit(batch, ())
            };
            match self.drive(None, Drive::default(), decide).await {
                Ok(_) => {
                    counts.written.fetch_add(notes.len() as u64, Ordering::Relaxed);
                    return;
                }
                // An unknown end may have written them: a second try could write them twice.
                Err(error) if !error.is_retryable() || !error.nothing_done() => break,
                Err(_) if counts.closed.load(Ordering::SeqCst) => break,
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        counts.failed.fetch_add(notes.len() as u64, Ordering::Relaxed);
    }

    /// The entry that a replay points back to has the instant of its record: a range of one
    /// millisecond of the audit's only index. One that can't be found is left unnamed.
    async fn find_original(&self, note: &Note) {
        let original = &note.original;
        if note.noted == Noted::Expired || original.entry().is_some() {
            return;
        }
        let At(at) = original.at();
        let filter = AuditFilter {
            tenant: Some(original.key().tenant_column().into()),
            key_hash: Some(original.key_hash().to_string()),
            from: Some(At(at)),
            to: Some(At(at.saturating_add(1))),
            ..AuditFilter::default()
        };
        if let Ok(page) = self.list(List::Audit(filter), None, CANDIDATES_MAX).await
            && let Items::Audit(found) = page.items
        {
            original.find_entry(&found);
        }
    }
}

impl Notes {
    /// Takes a note in, or counts it as lost.
    fn push(&self, note: Note, most: usize) -> bool {
        // A look first: in an overflow nobody writes what all read.
        if self.waiting.load(Ordering::Relaxed) >= most {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if self.closed.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let before = self.waiting.fetch_add(1, Ordering::SeqCst);
        self.shards[shard()].lock().unwrap_or_else(PoisonError::into_inner).push(note);
        if before >= self.room.load(Ordering::Relaxed) {
            self.crowded.notify_one();
        }
        true
    }

    /// What the audit is owed, for as long as nobody writes.
    pub(super) async fn owed(&self) -> MutexGuard<'_, Owed> {
        self.writing.lock().await
    }

    fn take(&self) -> Vec<Note> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            taken.append(&mut shard.lock().unwrap_or_else(PoisonError::into_inner));
        }
        taken
    }
}

/// The part of the buffer that this thread uses.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
    }
    SHARD.with(Cell::get)
}
