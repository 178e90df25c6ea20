//! The keeper: looks after the files while others work on them.
//!
//! One thread copies the log into the database when the writer says so, and twice a second looks
//! whether the files are still in their places, brings the note up to date, and copies the rest of
//! the log once nothing more comes. Nobody waits for it.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::checkpoint::{Log, Order};
use super::inbox::Message;
use super::inode::FileId;
use super::notices::Matter;
use super::reach::NoteFile;
use super::{Shared, open};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the note is written at most, and how long nothing must have come for the rest of the
/// log to be copied.
const QUIET: Duration = Duration::from_secs(1);

/// The note beside a database, shared by whoever writes it.
pub(super) type SharedNote = Arc<Mutex<Option<NoteFile>>>;

/// What the thread needs.
pub(super) struct Keeper {
    pub(super) path: PathBuf,
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<Log>,
    pub(super) writer: Sender<Message>,
    /// None while the disk may not have what was committed, or others write to the file.
    pub(super) note: Option<SharedNote>,
    /// The files as they were opened: the database and its log.
    pub(super) files: [(PathBuf, FileId); 2],
}

/// Where the looks are.
struct Looks {
    /// The last commit that was begun, and since when there was none.
    commit: u64,
    since: Instant,
    /// The last commit of which all is in the database.
    copied: u64,
    /// The commit that the note tells, and when it was written.
    noted: u64,
    written: Instant,
}

impl Keeper {
    /// The thread: until it is told to stop.
    pub(super) fn run(&self, copier: &Connection) {
        let now = Instant::now();
        let mut looks = Looks { commit: 0, since: now, copied: 0, noted: 0, written: now };
        let mut last = now;
        loop {
            match self.log.next(LOOK_EVERY.saturating_sub(last.elapsed())) {
                Order::Copy => self.log.copy(copier),
                Order::Look => {}
                Order::Stop => return,
            }
            if last.elapsed() >= LOOK_EVERY {
                last = Instant::now();
                self.look(&mut looks, copier);
            }
        }
    }

    fn look(&self, looks: &mut Looks, copier: &Connection) {
        self.watch();
        let commit = self.shared.sync.seen();
        if commit != looks.commit {
            (looks.commit, looks.since) = (commit, Instant::now());
        }
        self.take_note(looks);
        if looks.copied != commit && looks.since.elapsed() >= QUIET && self.log.copy_all(copier) {
            looks.copied = commit;
        }
    }

    /// Ends the store when a file is gone or another lies in its place: what is committed from
    /// then on would be found by nobody.
    fn watch(&self) {
        for (path, opened) in &self.files {
            // A file that can't be looked at for another reason is looked at again.
            if FileId::at(path).is_ok_and(|there| there != Some(*opened)) {
                self.shared.sync.give_up(format!(
                    "{} was deleted or replaced while it was open: nothing is committed any more, \
                     and what was committed since then is in no file; stop the server, put the \
                     file back if it was moved, or restore a backup (docs/operations.md, A file \
                     that vanished)",
                    path.display()
                ));
            }
        }
    }

    /// Writes down what is on the disk by now, and asks the writer for the next.
    fn take_note(&self, looks: &mut Looks) {
        let Some(note) = &self.note else { return };
        if looks.written.elapsed() < QUIET {
            return;
        }
        if let Some(taken) = self.log.taken(self.shared.sync.durable())
            && taken.commit != looks.noted
        {
            let mut note = note.lock().unwrap_or_else(PoisonError::into_inner);
            let written = note.as_mut().map_or(Ok(()), |note| note.write(taken.note));
            drop(note);
            match written {
                Ok(()) => {
                    looks.noted = taken.commit;
                    self.shared.notices.settle(Matter::Note);
                }
                Err(error) => self.shared.notices.say(
                    Matter::Note,
                    format!(
                        "the note {} can't be written ({error}): what is committed meanwhile is \
                         not watched over",
                        open::beside(&self.path, ".reach").display()
                    ),
                ),
            }
            looks.written = Instant::now();
        }
        if looks.noted != looks.commit {
            // A writer that is gone has nothing left to tell.
            let _ = self.writer.send(Message::Note);
        }
    }
}
