//! The one writer: a thread that owns the writing connection and applies groups to it.
//!
//! Rules: a group is one durable transaction, and groups that wait together share one. Errors
//! before COMMIT and full disks did nothing (`NotApplied`); another error of COMMIT may or may not
//! have (`Unknown`: the caller sends the same batches again and their tokens decide). When a batch
//! makes the transaction fail, it is rolled back and each batch is applied alone, so that none
//! fails for its neighbour: the call answers with an error only if none of its batches could be
//! applied, and otherwise says `Contended` (nothing was written, try again) for those that could
//! not.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use onceward_core::batch::{Answer, Batch};
use rusqlite::{Connection, Statement};

use super::super::StoreError;
use super::apply::Writes;
use super::checkpoint::{self, Log};
use super::failure::Failure;
use super::inbox::{Asked, Call, Inbox, Message, SCRUB_PATIENCE, SCRUB_WITHIN, Work, not_applied};
use super::notices::Matter;
use super::own::{self, OwnSql};
use super::{Shared, open};

/// Most batches in one transaction: further groups wait for the next.
pub(super) const GROUP_MAX: usize = 256;

/// Why a group of the caller's own SQL is applied one by one.
const LOST: &str = "what the caller's SQL was run for was refused after all";

/// The writer's side of the channel and what it needs to open its connection anew.
pub(super) struct Writer {
    path: PathBuf,
    shared: Arc<Shared>,
    log: Arc<Log>,
    inbox: Inbox,
}

/// How a transaction failed.
enum Failed {
    /// It did not even begin: someone else holds the file.
    ToBegin(Failure),
    /// Nothing was written.
    Before(Failure),
    /// It may have been written.
    AtCommit(rusqlite::Error),
}

impl Failed {
    fn into_store_error(self) -> StoreError {
        match self {
            Self::ToBegin(failure) | Self::Before(failure) => failure.into_store_error(),
            Self::AtCommit(error) if could_not_write(&error) => {
                StoreError::NotApplied(format!("the log can't be written: {error}"))
            }
            Self::AtCommit(error) => StoreError::Unknown(format!("the commit failed: {error}")),
        }
    }
}

/// Whether a commit failed because bytes could not be written: the disk is full, for one. The log
/// counts up to the last whole commit, whose mark is written last, so nothing of this one counts.
fn could_not_write(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(rusqlite::ffi::SQLITE_FULL | rusqlite::ffi::SQLITE_IOERR_WRITE))
}

impl Writer {
    /// A writer that has not started.
    pub(super) fn new(
        path: PathBuf,
        shared: Arc<Shared>,
        log: Arc<Log>,
        (own, messages): (Sender<Message>, Receiver<Message>),
    ) -> Self {
        let asked = Asked::default();
        let inbox = Inbox { messages, own, shared: shared.clone(), asked, stopped: false };
        Self { path, shared, log, inbox }
    }

    /// Serves until it is told to stop. Opens the connection anew after errors that may have
    /// left it in doubt; while that fails, calls are answered with the reason. Hands back the
    /// connection, if it is as it should be.
    pub(super) fn run(mut self, first: Connection) -> Option<Connection> {
        self.remember(&first);
        let mut connection = Some(first);
        while let Some(work) = self.inbox.next() {
            if let Some(why) = self.shared.sync.broken() {
                work.refuse(&why);
                self.inbox.asked = Asked::default();
                continue;
            }
            match connection.take().map_or_else(|| self.reopen(), Ok) {
                Ok(opened) => {
                    if self.serve(&opened, work) {
                        connection = Some(opened);
                    }
                }
                Err(error) => {
                    let mut calls: Vec<_> = work.call().into_iter().collect();
                    self.inbox.add_all(&mut calls);
                    self.inbox.asked.put_off();
                    calls.into_iter().for_each(|call| not_applied(call, &error));
                }
            }
        }
        // Calls that came after the word to stop.
        while let Ok(message) = self.inbox.messages.try_recv() {
            if let Message::Commit(call) = message {
                not_applied(call, &"the store is closed");
            }
        }
        connection
    }

    /// Reads the names of the young records, so that reads need not look through all of them until
    /// the first commit. Whatever fails here fails again where it is answered; damage is told now.
    fn remember(&self, connection: &Connection) {
        let remembered = Session::new(connection, self.shared.clone())
            .map_err(|error| Failed::Before(error.into()))
            .and_then(|mut session| session.transact(|_| Ok((Vec::new(), false))));
        match remembered {
            // Someone else holds the file for a while.
            Ok(_) | Err(Failed::ToBegin(_)) => {}
            Err(failed) => {
                let (place, why) = (self.path.display(), failed.into_store_error());
                let sentence = format!(
                    "the database {place} can't be read as it should be ({why}), and may take no \
                     requests: stop the server and restore the database from a backup"
                );
                self.shared.notices.say(Matter::Unread, sentence);
            }
        }
    }

    fn reopen(&self) -> Result<Connection, StoreError> {
        let mut connection = open::writer(&self.path)?;
        let counted = self.log.count_pages(&mut connection);
        counted
            .and_then(|()| own::guard(&mut connection, &self.shared))
            .map_err(|error| open::refused(&self.path, &error))?;
        Ok(connection)
    }

    /// Works on one connection until told to stop (true) or until it is in doubt (false).
    fn serve(&mut self, connection: &Connection, first: Work) -> bool {
        let mut session = match Session::new(connection, self.shared.clone()) {
            Ok(session) => session,
            Err(error) => {
                first.refuse(&error);
                self.inbox.asked.put_off();
                return false;
            }
        };
        let mut next = Some(first);
        while let Some(work) = next {
            if let Some(why) = self.shared.sync.broken() {
                work.refuse(&why);
                return !session.in_doubt;
            }
            if let Work::Call(call) = work {
                session.answer(call, &mut self.inbox);
            }
            if self.tend(connection).is_err() || session.in_doubt {
                return false;
            }
            next = self.inbox.next();
        }
        self.inbox.stopped = true;
        true
    }

    /// Looks after the log, between two groups.
    fn tend(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let tended = self.log.tend(connection, &self.shared.notices);
        let taken = match std::mem::take(&mut self.inbox.asked.note) {
            true => self.log.take(connection, self.shared.sync.seen()),
            false => Ok(()),
        };
        tended.and(taken).and(self.scrub(connection))
    }

    /// Cuts the log, if someone has erased something and nobody keeps it.
    fn scrub(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let asked = &mut self.inbox.asked;
        if asked.scrub_at.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let folded = checkpoint::fold(connection, SCRUB_PATIENCE);
        if matches!(folded, Ok(true)) {
            asked.scrubbed();
            self.shared.notices.settle(Matter::Erased);
            return Ok(());
        }
        let late = asked.put_off();
        if asked.scrubs.is_empty() {
            self.shared.notices.say(
                Matter::Erased,
                format!(
                    "what was erased still stands in the log of {}, or a damaged part of it: it \
                     can't be cut, perhaps because someone has been reading the database for more \
                     than {} s. It is tried on; end what reads, or stop the server, and it is gone",
                    self.path.display(),
                    SCRUB_WITHIN.as_secs()
                ),
            );
        }
        drop(late);
        folded.map(drop)
    }
}

/// The writer on one connection.
struct Session<'c> {
    connection: &'c Connection,
    shared: Arc<Shared>,
    begin: Statement<'c>,
    commit: Statement<'c>,
    rollback: Statement<'c>,
    /// Around the caller's own SQL.
    savepoint: Statement<'c>,
    take_back: Statement<'c>,
    release: Statement<'c>,
    writes: Writes<'c>,
    /// Whether an error left the connection in doubt.
    in_doubt: bool,
}

impl<'c> Session<'c> {
    fn new(connection: &'c Connection, shared: Arc<Shared>) -> rusqlite::Result<Self> {
        Ok(Self {
            connection,
            // The write lock is taken at once, so that everything below is read under it.
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
            savepoint: connection.prepare("SAVEPOINT own_sql")?,
            take_back: connection.prepare("ROLLBACK TO own_sql")?,
            release: connection.prepare("RELEASE own_sql")?,
            writes: Writes::prepare(connection, shared.clone())?,
            shared,
            in_doubt: false,
        })
    }

    /// Applies a call and those that wait with it in one transaction, and answers each.
    fn answer(&mut self, first: Call, inbox: &mut Inbox) {
        let mut calls = vec![first];
        let transacted = self.transact(|session| session.gather_and_apply(&mut calls, inbox));
        let alone = matches!(&calls[..], [call] if call.len() <= 1);
        let sync = &self.shared.sync;
        match transacted {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                sync.tell(sync.seen(), calls.into_iter().map(|call| call.answered(&mut answers)));
            }
            Err(Failed::Before(_)) if !alone && !self.in_doubt => {
                for call in calls {
                    match self.apply_one_by_one(&call) {
                        Ok(answers) => {
                            let told = call.answered(&mut answers.into_iter());
                            self.shared.sync.tell(self.shared.sync.seen(), [told].into_iter());
                        }
                        Err(error) => call.fail(error),
                    }
                }
            }
            Err(failed) => {
                if matches!(failed, Failed::ToBegin(_)) {
                    inbox.add_all(&mut calls);
                }
                let error = failed.into_store_error();
                for call in calls {
                    call.fail(error.clone());
                }
            }
        }
    }

    fn apply_one_by_one(&mut self, call: &Call) -> Result<Vec<Answer>, StoreError> {
        let mut answers = Vec::with_capacity(call.len());
        let mut first_error = None;
        let mut applied = 0;
        for at in 0..call.len() {
            let alone = self.transact(|session| {
                let mut answers = Vec::with_capacity(1);
                let written = match call {
                    Call::Group { group, .. } => {
                        session.apply_all(&group[at..=at], &mut answers)?
                    }
                    Call::One { batch, .. } => {
                        session.apply_all(std::slice::from_ref(batch), &mut answers)?
                    }
                    Call::Own { group, .. } => {
                        session.apply_all_own(&group[at..=at], &mut answers)?
                    }
                };
                Ok((answers, written))
            });
            match alone {
                Ok(mut answer) => {
                    applied += 1;
                    answers.append(&mut answer);
                }
                // Of a call that is partly committed nobody may say that nothing was done; sent
                // again, what was done is recognised.
                Err(failed @ Failed::AtCommit(_)) if applied > 0 => {
                    return Err(StoreError::Unknown(failed.into_store_error().to_string()));
                }
                Err(failed @ Failed::AtCommit(_)) => return Err(failed.into_store_error()),
                Err(failed) => {
                    first_error.get_or_insert(failed.into_store_error());
                    answers.push(Answer::Contended);
                }
            }
        }
        match first_error {
            Some(error) if applied == 0 => Err(error),
            _ => Ok(answers),
        }
    }

    /// Applies what waits, and what comes while the disk is busy anyway. A disk that has nothing to
    /// do gets the first half of what there is, and the other half is applied while that is synced.
    /// Otherwise all callers would end up in one group, and wait for the writer and for the disk in
    /// turn.
    fn gather_and_apply(
        &mut self,
        calls: &mut Vec<Call>,
        inbox: &mut Inbox,
    ) -> Result<(Vec<Answer>, bool), Failure> {
        let (mut answers, mut any_written) = (Vec::new(), false);
        let begun = Instant::now();
        while let Some(call) = calls.last() {
            any_written |= match call {
                Call::Group { group, .. } => self.apply_all(group, &mut answers)?,
                Call::One { batch, .. } => {
                    self.apply_all(std::slice::from_ref(batch), &mut answers)?
                }
                Call::Own { group, .. } => self.apply_all_own(group, &mut answers)?,
            };
            let half = answers.len() >= self.shared.waiting.load(Ordering::Relaxed);
            let enough = answers.len() >= GROUP_MAX || half && self.shared.sync.lacks_work(begun);
            if !any_written || enough {
                break;
            }
            let Some(call) = inbox.more() else { break };
            calls.push(call);
        }
        Ok((answers, any_written))
    }

    /// One transaction. Its answers may be told once the commit is durable.
    fn transact(
        &mut self,
        apply: impl FnOnce(&mut Self) -> Result<(Vec<Answer>, bool), Failure>,
    ) -> Result<Vec<Answer>, Failed> {
        if let Err(error) = self.begin.raw_execute() {
            let failure = Failure::from(error);
            self.in_doubt |= failure.spoils_connection();
            return Err(Failed::ToBegin(failure));
        }
        let applied = self.writes.start().and_then(|()| {
            let (answers, any_written) = apply(self)?;
            if any_written {
                self.writes.finish()?;
            }
            Ok((answers, any_written))
        });
        match applied {
            Ok((answers, true)) => {
                let commit = self.shared.sync.begin();
                let committed = self.commit.raw_execute();
                self.shared.sync.end(commit);
                if let Err(error) = committed {
                    self.in_doubt = true;
                    if !could_not_write(&error) {
                        // Before names are taken back that may be there.
                        self.shared.young.doubt();
                    }
                    self.roll_back();
                    // Reads that wait for this commit have no other answer to ride with.
                    self.shared.sync.tell(commit, std::iter::empty());
                    return Err(Failed::AtCommit(error));
                }
                self.writes.committed(commit);
                self.shared.saw(self.writes.now());
                Ok(answers)
            }
            Ok((answers, false)) => {
                self.roll_back();
                Ok(answers)
            }
            Err(failure) => {
                self.in_doubt |= failure.spoils_connection();
                self.roll_back();
                Err(Failed::Before(failure))
            }
        }
    }

    /// Applies batches at one instant. Says whether any of them wrote.
    fn apply_all(
        &mut self,
        group: &[Arc<Batch>],
        answers: &mut Vec<Answer>,
    ) -> Result<bool, Failure> {
        self.writes.tick();
        let mut any_written = false;
        for batch in group {
            let (answer, written) = self.writes.apply(batch)?;
            any_written |= written;
            answers.push(answer);
        }
        Ok(any_written)
    }

    /// Runs the caller's own SQL, one after the other. Says whether any of them wrote.
    fn apply_all_own(
        &mut self,
        group: &[Arc<dyn OwnSql>],
        answers: &mut Vec<Answer>,
    ) -> Result<bool, Failure> {
        self.writes.tick();
        if group.len() > 1
            && let Some(mut together) = self.apply_own_together(group)?
        {
            let any_written = together.iter().any(|(_, written)| *written);
            answers.extend(together.drain(..).map(|(answer, _)| answer));
            return Ok(any_written);
        }
        let mut any_written = false;
        for own in group {
            let (answer, written) = self.apply_own(&**own)?;
            any_written |= written;
            answers.push(answer);
        }
        Ok(any_written)
    }

    /// Runs the caller's own SQL of a whole group in one savepoint: a full-text index, for one,
    /// writes all that it has gathered at each. `None` when one of them failed: everything is taken
    /// back, and each is to be run alone.
    fn apply_own_together(
        &mut self,
        group: &[Arc<dyn OwnSql>],
    ) -> Result<Option<Vec<(Answer, bool)>>, Failure> {
        let judged: Result<Vec<_>, _> =
            group.iter().map(|own| self.writes.judge(&own.template())).collect();
        let judged = judged?;
        self.savepoint.raw_execute()?;
        let mut made = Vec::with_capacity(group.len());
        for (own, _) in group.iter().zip(&judged).filter(|(_, judged)| judged.is_none()) {
            let Some(batch) = self.run_own(&**own)? else {
                self.take_back.raw_execute()?;
                self.release.raw_execute()?;
                return Ok(None);
            };
            made.push(batch);
        }
        self.release.raw_execute()?;
        let mut made = made.iter();
        let mut answers = Vec::with_capacity(group.len());
        for judged in judged {
            answers.push(match judged {
                Some(answer) => (answer, false),
                None => {
                    let applied = made.next().map(|batch| self.writes.apply(batch)).transpose()?;
                    match applied {
                        Some(applied @ (Answer::Applied(_), true)) => applied,
                        // Its SQL is in the transaction and its batch is not: all is undone, and
                        // each is applied alone.
                        _ => return Err(Failure::Refused(StoreError::NotApplied(LOST.into()))),
                    }
                }
            });
        }
        Ok(Some(answers))
    }

    /// Runs the caller's own SQL.
    fn run_own(&mut self, own: &dyn OwnSql) -> Result<Option<Arc<Batch>>, Failure> {
        self.shared.own_sql.store(true, Ordering::Relaxed);
        let made = own.run(self.connection);
        self.shared.own_sql.store(false, Ordering::Relaxed);
        if self.connection.is_autocommit() {
            // Some errors (a full disk) end the whole transaction: what was in it is applied again.
            let why = "the transaction was rolled back under the caller's SQL";
            return Err(Failure::Refused(StoreError::NotApplied(why.into())));
        }
        Ok(made)
    }

    /// Runs the caller's own SQL in a savepoint, and the batch that it makes with it: both or
    /// neither.
    fn apply_own(&mut self, own: &dyn OwnSql) -> Result<(Answer, bool), Failure> {
        if let Some(answer) = self.writes.judge(&own.template())? {
            // Applied before, or refused: there is nothing to run.
            return Ok((answer, false));
        }
        self.savepoint.raw_execute()?;
        let applied = match self.run_own(own)? {
            Some(batch) => Some(self.writes.apply(&batch)?),
            None => None,
        };
        if let Some((answer @ Answer::Applied(_), true)) = applied {
            self.release.raw_execute()?;
            return Ok((answer, true));
        }
        self.take_back.raw_execute()?;
        self.release.raw_execute()?;
        Ok((applied.map_or(Answer::Contended, |(answer, _)| answer), false))
    }

    fn roll_back(&mut self) {
        self.writes.rolled_back();
        // Some errors roll back by themselves; then there is nothing to do.
        if !self.connection.is_autocommit() && self.rollback.raw_execute().is_err() {
            self.in_doubt = true;
        }
    }
}
