//! Starting a store: what is looked at before anything is written, its threads, and how the last of
//! them leaves the file.
//!
//! Rules: a database that is not what it was is told before it is changed. The writer ends last:
//! only when no other connection is left can the log be cut, and after a clean stop everything is
//! in the one file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceward_core::stamp::At;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::super::clock::{Last, Reading, StoreClock};
use super::super::{Durability, LeasesAnew, StoreError};
use super::check::Check;
use super::failure::Failure;
use super::inode::{Claimed, FileId, Inode};
use super::keep::{Keeper, SharedNote};
use super::meta::Meta;
use super::notices::{Matter, Notices};
use super::reach::{Found, Judged, Note, NoteFile, Reached, reached};
use super::{
    Shared, SqliteDurability, SqliteOptions, SqliteStore, anew, checkpoint, known, open, own,
    places, reader, sql, sync, wal, writer, young,
};

/// The size of a page of a database that we make.
const PAGE_BYTES: u32 = 4_096;
/// How long a store that is closed waits for other programs that read the database.
const LAST_FOLD_WITHIN: Duration = Duration::from_secs(1);
/// How far the store's clock may be from the machine's until that is said.
const CLOCKS_APART_MS: u64 = 60_000;

/// The file, as long as the writer has it. However that ends, memory tells nothing from then on:
/// others may write.
struct Hold {
    shared: Arc<Shared>,
    path: PathBuf,
    note: SharedNote,
    /// Ends when no other connection is left.
    others: Receiver<()>,
    _claimed: Claimed,
    _lock: open::Lock,
}

impl Hold {
    /// The end of a store: everything comes into the one file, and the note says so. What can't be
    /// done is left to the next opening: the log has it.
    fn finish(&self, last: Option<Connection>) {
        // Nothing is ever sent.
        let _ = self.others.recv();
        if self.shared.sync.broken().is_some() {
            // Closed by the last one, SQLite copies a log that is in its hands alone into a
            // database that is in its place, and nothing else.
            return;
        }
        let Some(last) = last.or_else(|| open::writer(&self.path).ok()) else { return };
        let folded = checkpoint::fold(&last, LAST_FOLD_WITHIN);
        let reached = reached(&last);
        // The last one takes the empty log away.
        drop(last);
        if let (Ok(true), Ok(Some(reached))) = (folded, reached)
            && let Ok(mut note) = self.note.lock()
            && let Some(note) = note.as_mut()
        {
            // One that can't be written stays behind, as it may.
            let _ = note.write(Note { reached, ..Note::default() });
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.young.doubt();
    }
}

/// What is found at a path before anything is changed there.
struct Before {
    path: PathBuf,
    lock: open::Lock,
    claimed: Claimed,
    note: Option<NoteFile>,
    found: Found,
    notices: Notices,
}

impl Before {
    fn look(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let path = open::place(path)?;
        open::check_place(&path)?;
        let lock = open::lock(&path, options.exclusive)?;
        let notices = Notices::default();
        let mut found = Found::default();
        // Where several write, nobody knows of all commits, nor which of them are on the disk.
        let (note, unreadable) = match options.exclusive {
            true => NoteFile::open(&path, false).map_err(|error| {
                let name = open::beside(&path, ".reach");
                StoreError::Open(format!("the note {} can't be opened: {error}", name.display()))
            })?,
            false => (None, false),
        };
        found.noted = note.as_ref().and_then(|note| note.noted);
        if unreadable {
            notices.say(Matter::Note, unreadable_note(&path));
        }
        if !path.exists() {
            judge(&found, &path, options.accept_older, &notices)?;
            open::create_for_us(&path);
        }
        let claimed = claim(&path, options.exclusive, &notices)?;
        if options.exclusive {
            found.log = Some(walk(&path)?);
        }
        Ok(Self { path, lock, claimed, note, found, notices })
    }
}

/// Locks the file itself, under whatever name.
fn claim(path: &Path, alone: bool, notices: &Notices) -> Result<Claimed, StoreError> {
    let shown = path.display();
    let inode = Inode::at(path).map_err(|error| {
        StoreError::Open(format!("the database {shown} can't be opened ({error}); check the path"))
    })?;
    let links = inode.links();
    if links > 1 {
        let others = links - 1;
        notices.say(
            Matter::Links,
            format!(
                "the database {shown} has {others} other name(s) (hard links): log and lock lie \
                 beside this one only; a copy is a backup, a link is none"
            ),
        );
    }
    let claimed = inode.claim(alone).map_err(|error| {
        let why = match error {
            std::fs::TryLockError::WouldBlock => {
                "is in use under another name (a hard link); stop who holds it, and remove the \
                 link"
                    .to_string()
            }
            std::fs::TryLockError::Error(error) => {
                format!("can't be locked ({error}); a store needs a file system with file locks")
            }
        };
        StoreError::Open(format!("the database {shown} {why}"))
    })?;
    if !claimed.locks() {
        notices.say(
            Matter::Remote,
            format!(
                "the database {shown} lies on a file system of the network (NFS, SMB): a second \
                 server is kept out by its lock file alone, and SQLite's log needs a disk of this \
                 machine; put the database on one"
            ),
        );
    }
    Ok(claimed)
}

/// Says so where the store's clock is another one than the machine's.
fn compare_clocks(clock: &StoreClock, path: &Path, notices: &Notices) {
    let apart = clock.ahead_of_wall_ms();
    if apart.unsigned_abs() > CLOCKS_APART_MS {
        let way = if apart > 0 { "ahead of" } else { "behind" };
        notices.say(
            Matter::Clock,
            format!(
                "the clock of {} is {} s {way} the machine's: the machine's was set since it \
                 started, or was wrong before. Leases and retention go by the former, which never \
                 runs back; it takes over what is set with the next start of the machine",
                path.display(),
                apart.unsigned_abs() / 1_000
            ),
        );
    }
}

/// Walks the log that an earlier run has left.
fn walk(path: &Path) -> Result<wal::Walk, StoreError> {
    let log_path = open::beside(path, "-wal");
    let walked = match File::open(&log_path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(wal::Walk::default());
        }
        opened => opened
            .and_then(|log| wal::walk(std::io::BufReader::with_capacity(1 << 20, log), PAGE_BYTES)),
    };
    walked.map_err(|error| {
        StoreError::Open(format!("the log {} can't be read: {error}", log_path.display()))
    })
}

/// Refuses what is older than it should be; says what is damaged.
fn judge(
    found: &Found,
    path: &Path,
    accept_older: bool,
    notices: &Notices,
) -> Result<(), StoreError> {
    let (place, log) = (path.display(), open::beside(path, "-wal"));
    let next = "keys that were answered since then may run again. Stop the server, keep copies of \
                the database and its -wal, and decide between a backup and going on: \
                docs/operations.md, A damaged log";
    match found.judge() {
        Judged::Whole => {}
        Judged::Broken { after, behind } => notices.say(
            Matter::Log,
            format!(
                "the log {} is damaged: it breaks behind frame {after}, and SQLite dropped what \
                 followed, a whole commit at frame {behind} among it; {next}",
                log.display()
            ),
        ),
        Judged::Short { frames, noted } => notices.say(
            Matter::Log,
            format!(
                "the log {} is damaged or was cut: {noted} frames of it were on the disk, {frames} \
                 can be read; or it is an older copy, as its database is: put the newer ones \
                 back, if you have them. Otherwise {next}",
                log.display()
            ),
        ),
        Judged::Older { .. } if found.there.is_none() && !accept_older => {
            return Err(StoreError::Open(format!(
                "there is no database at {place}, but its note {place}.reach says that there was \
                 one. Put it back, with its -wal; or begin anew: remove the note, or start once \
                 with --accept-older (docs/operations.md, An older copy)"
            )));
        }
        Judged::Older { there, noted } => {
            let older = format!(
                "the database {place} is older than its note {place}.reach says: it has reached \
                 stamp {} where {} was dealt",
                there.stamp, noted.stamp
            );
            if !accept_older {
                return Err(StoreError::Open(format!(
                    "{older}. Put the newer database back, with its -wal; or open this one with \
                     --accept-older (once): fences leap over those that were dealt, and keys that \
                     came since then run again (docs/operations.md, An older copy)"
                )));
            }
            let now = "it was opened all the same: keys that came since then run again";
            notices.say(Matter::Older, format!("{older}; {now}"));
        }
    }
    Ok(())
}

fn unreadable_note(path: &Path) -> String {
    format!(
        "the note {}.reach can't be read and is made anew: whether this database is as it was left \
         could not be checked",
        path.display()
    )
}

/// Remembers that the log was found damaged until somebody has looked. To be called before the log
/// is cut: whoever is killed then leaves it to the next start to tell.
fn remember_damage(
    note: &mut NoteFile,
    (found, notices): (&Found, &Notices),
    path: &Path,
    accept: bool,
) {
    let damaged = matches!(found.judge(), Judged::Broken { .. } | Judged::Short { .. });
    if accept {
        note.damaged = false;
    } else if damaged {
        note.damaged = true;
        let noted = note.noted.unwrap_or_default();
        if let Err(error) = note.write(noted) {
            notices.say(Matter::Note, format!("the note {}.reach: {error}", path.display()));
        }
    } else if note.damaged {
        let sentence = format!(
            "the log of {} is damaged: an earlier start found it so, and keys that were answered \
             before then may run again. Once you have decided what to do, start once with \
             --accept-older: docs/operations.md, A damaged log",
            path.display()
        );
        notices.say(Matter::Log, sentence);
    }
}

/// Brings the note in line with a database that is not what it told, once that is served: or the
/// next crash would be taken for an older copy. To be called when the log is synced.
fn renew_note(note: &mut NoteFile, reached: Option<Reached>, path: &Path, notices: &Notices) {
    let Some(reached) = reached else { return };
    if let Err(error) = note.write(Note { reached, ..Note::default() }) {
        notices.say(Matter::Note, format!("the note {}.reach: {error}", path.display()));
    }
}

/// Lets stamps rise above all that may have been dealt, in this file or in a later one that this
/// is a copy of. Says which leases are counted anew.
fn leap(
    connection: &Connection,
    path: &Path,
    (found, notices): (&Found, &Notices),
    clock: &StoreClock,
) -> Result<Option<LeasesAnew>, StoreError> {
    let now = clock.now();
    let leapt = || -> Result<_, Failure> {
        let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
        let mut meta = Meta::load(&transaction)?;
        // Before it leaps: no record is younger.
        let anew = anew::leases(&transaction, &mut meta, clock)?;
        // Never down: others may share the file.
        meta.stamp = meta.stamp.max(found.leap(now.0));
        meta.write(&mut transaction.prepare(sql::WRITE_META)?)?;
        transaction.commit()?;
        Ok(anew)
    };
    let anew = leapt().map_err(|failure| match failure {
        Failure::Sqlite(error) => open::refused(path, &error),
        other => other.into_store_error(),
    })?;
    let noted = found.noted.unwrap_or_default().reached;
    if found.judge() != Judged::Whole && now.0 < noted.now {
        notices.say(
            Matter::Stamps,
            format!(
                "the database {} is not whole or older than it was, and the machine's clock is {} \
                 s behind the last instant that was noted: set the clock; until then fences of a \
                 copy can be the same as those that were dealt before",
                path.display(),
                (noted.now - now.0).div_ceil(1_000)
            ),
        );
    }
    Ok(anew)
}

/// The log on a real disk.
pub(super) fn disk(log: File) -> Box<sync::Disk> {
    Box::new(move || log.sync_data())
}

impl SqliteStore {
    /// Opens a store to look at it while a server holds it: no lock, no writes.
    ///
    /// # Errors
    /// [`StoreError::Open`], which says what is wrong and what to do.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = &open::place(path.as_ref())?;
        let inode = Inode::at(path).ok();
        let first = open::look(path)?;
        let last = Meta::at_open(&first, path)?.last();
        let clock = StoreClock::going_on(last, Reading::now());
        let options = SqliteOptions { readers: 1, exclusive: false, ..SqliteOptions::default() };
        let mut store = Self::new(path, options, clock, last.now);
        let (ended, end) = mpsc::channel(1);
        store.shared.sync.hold_nothing();
        store.spawn_reader((first, inode), 0, ended)?;
        store.running().ended = Some(end);
        Ok(store)
    }

    pub(super) fn open_for_writing(
        path: &Path,
        options: SqliteOptions,
        clock: impl FnOnce(Last) -> StoreClock,
        disk: impl FnOnce(File) -> Box<sync::Disk>,
    ) -> Result<Self, StoreError> {
        let Before { path, lock, claimed, mut note, mut found, notices } =
            Before::look(path, options)?;
        let path = &*path;
        let mut connection = open::prepare(path, |there| {
            found.there = there;
            judge(&found, path, options.accept_older, &notices)
        })?;
        if options.exclusive && note.is_none() {
            // Not before there is a database that is ours.
            note = NoteFile::open(path, true).ok().and_then(|(note, _)| note);
        }
        if let Some(note) = &mut note {
            remember_damage(note, (&found, &notices), path, options.accept_older);
        }
        let meta = Meta::at_open(&connection, path)?;
        let clock = clock(meta.last());
        compare_clocks(&clock, path, &notices);
        let refused = |error: rusqlite::Error| open::refused(path, &error);
        let mut folded = true;
        if found.log.is_some_and(|log| log.behind.is_some()) {
            // What was dropped must not be taken for the end of a later log.
            folded = checkpoint::fold(&connection, LAST_FOLD_WITHIN).map_err(refused)?;
        }
        let leases_anew = leap(&connection, path, (&found, &notices), &clock)?;
        let mut store = Self::new(path, options, clock, meta.now);
        store.leases_anew = leases_anew;
        // Nobody else has it yet.
        if let Some(shared) = Arc::get_mut(&mut store.shared) {
            shared.notices = notices;
        }
        store.log.count_pages(&mut connection).map_err(refused)?;
        own::guard(&mut connection, &store.shared).map_err(refused)?;
        let log = open::log(path)?;
        if let Some(note) = &mut note
            && (options.accept_older || found.judge() != Judged::Whole)
        {
            let reached = reached(&connection).map_err(refused)?;
            renew_note(note, reached, path, &store.shared.notices);
        }
        log.try_clone().into_iter().for_each(|log| store.log.look_at(log));
        let note: SharedNote = Arc::new(Mutex::new(note));
        let (sender, inbox) = channel();
        let (ended, end) = mpsc::channel(1);
        let (user, others) = channel();
        if !folded {
            // Nobody waits for it: the writer tries on.
            let _ = sender.send(super::inbox::Message::Scrub(oneshot::channel().0));
        }
        let keeper = store.keeper(&note, &claimed, (&log, sender.clone()))?;
        store.spawn_others(keeper, (user, ended.clone()))?;
        let writer = writer::Writer::new(
            path.to_path_buf(),
            store.shared.clone(),
            store.log.clone(),
            (sender.clone(), inbox),
        );
        // From here on whatever fails drops the store, which has to be able to stop the writer.
        store.writer = Some(sender);
        store.shared.sync.join();
        let shared = store.shared.clone();
        let path = path.to_path_buf();
        let hold = Hold { shared, path, note, others, _claimed: claimed, _lock: lock };
        store.spawn("onceward-sqlite-writer".into(), ended.clone(), move || {
            let last = writer.run(connection);
            hold.shared.sync.leave();
            hold.finish(last);
            // Let go of by the writer itself: nobody may open the file before it has ended.
            drop(hold);
        })?;
        match store.durability {
            Durability::Full => store.spawn_sync(disk(log), ended)?,
            Durability::Weak(_) | Durability::None => store.shared.sync.hold_nothing(),
        }
        store.running().ended = Some(end);
        Ok(store)
    }

    /// Starts everyone but the writer who has a connection. `user` is let go of after it.
    fn spawn_others(
        &mut self,
        keeper: Keeper,
        (user, ended): (Sender<()>, mpsc::Sender<()>),
    ) -> Result<(), StoreError> {
        let path = self.path.clone();
        for number in 0..self.queue.readers() {
            self.spawn_reader((open::reader(&path)?, user.clone()), number, ended.clone())?;
        }
        let (copier, at) = (open::copier(&path)?, user.clone());
        self.spawn("onceward-sqlite-keeper".into(), ended.clone(), move || {
            keeper.run(&copier);
            drop((copier, at));
        })?;
        let (shared, names) = (self.shared.clone(), open::reader(&path)?);
        // Before anybody can ask.
        shared.notices.check_names(true);
        self.spawn("onceward-sqlite-known".into(), ended, move || {
            let check = Check::new(&shared.notices, &path);
            shared.known.run(&names, check, || shared.sync.seen());
            drop(names);
            drop(user);
        })
    }

    fn keeper(
        &self,
        note: &SharedNote,
        claimed: &Claimed,
        (log, writer): (&File, Sender<super::inbox::Message>),
    ) -> Result<Keeper, StoreError> {
        let log_path = open::beside(&self.path, "-wal");
        let log_id = log.metadata().map(|metadata| FileId::of(&metadata)).map_err(|error| {
            StoreError::Open(format!("can't look at the log {}: {error}", log_path.display()))
        })?;
        // What is not synced is not noted, until the end.
        let synced = self.shared.exclusive && self.durability == Durability::Full;
        Ok(Keeper {
            path: self.path.clone(),
            shared: self.shared.clone(),
            log: self.log.clone(),
            writer,
            note: synced.then(|| note.clone()),
            // Wherever this process goes meanwhile.
            files: [(&self.path, claimed.0.id), (&log_path, log_id)]
                .map(|(path, id)| (std::path::absolute(path).unwrap_or_else(|_| path.clone()), id)),
        })
    }

    fn new(path: &Path, options: SqliteOptions, clock: StoreClock, floor: At) -> Self {
        let durability = match options.durability {
            SqliteDurability::Full => Durability::Full,
            SqliteDurability::WalNormal => Durability::Weak("wal-normal"),
        };
        let shared = Shared {
            clock,
            floor: AtomicU64::new(floor.0),
            closed: AtomicBool::new(false),
            own_sql: AtomicBool::new(false),
            sync: sync::Sync::default(),
            waiting: AtomicUsize::new(0),
            young: young::Young::default(),
            known: known::Known::default(),
            places: places::Places::default(),
            exclusive: options.exclusive,
            notices: Notices::default(),
        };
        Self {
            path: path.to_path_buf(),
            durability,
            shared: Arc::new(shared),
            queue: Arc::new(reader::Queue::new(options.readers.max(1))),
            log: Arc::default(),
            leases_anew: None,
            writer: None,
            running: Mutex::default(),
        }
    }

    /// Starts a reader on a connection. What comes with it is let go of after it.
    fn spawn_reader(
        &mut self,
        (connection, after): (Connection, impl Send + 'static),
        number: usize,
        ended: mpsc::Sender<()>,
    ) -> Result<(), StoreError> {
        let (shared, queue) = (self.shared.clone(), self.queue.clone());
        let name = format!("onceward-sqlite-reader-{number}");
        shared.sync.join();
        self.spawn(name, ended, move || {
            reader::run(&connection, &shared, &queue);
            shared.sync.leave();
            drop(connection);
            drop(after);
        })
    }

    fn spawn_sync(
        &mut self,
        log: Box<sync::Disk>,
        ended: mpsc::Sender<()>,
    ) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        self.spawn("onceward-sqlite-sync".into(), ended, move || shared.sync.run(&*log))
    }

    fn spawn(
        &mut self,
        name: String,
        ended: mpsc::Sender<()>,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), StoreError> {
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            body();
            // Dropped last of all, so that whoever waits for it finds every file closed.
            drop(ended);
        });
        let thread = thread.map_err(|error| {
            StoreError::Open(format!("a thread of the store can't be started: {error}"))
        })?;
        self.running().threads.push(thread);
        Ok(())
    }
}
