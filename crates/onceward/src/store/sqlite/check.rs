//! The check of all names at an opening, of keys and of marks: is each still there, as it was
//! written?
//!
//! Rule: it is made of one snapshot, so that whatever is committed meanwhile does not matter, and
//! beside the reading of names that the filter of known names needs anyway (`known.rs`). What it
//! finds is an alarm and nothing else: a damaged file is served, because its other keys are good,
//! and the operator decides. A look that meets damage says so by itself.

use std::path::{Path, PathBuf};

use onceward_core::key::Key;
use rusqlite::Connection;

use super::failure::Failure;
use super::meta::Meta;
use super::notices::{Matter, Notices};
use super::rows::{self, signed};
use super::sql;
use super::sum::{Sum, share, share_of_mark};

/// Names that are checked at most: reading them takes some ten seconds, and as long the log can't
/// start again at its beginning.
const CHECKED_MAX: u64 = 10_000_000;
/// Rows after which it is asked whether the check is still wanted.
const ASKED_EVERY: u64 = 4_096;
/// Records whose numbers are told with an alarm.
const NAMED_MAX: usize = 5;

/// A check, until it has come to its end.
pub(super) struct Check<'s> {
    notices: &'s Notices,
    path: PathBuf,
    /// What is compared, while it is read.
    under_way: Option<Compared>,
    ended: bool,
}

/// What a snapshot says there is, and what was found in it.
#[derive(Clone, Copy)]
struct Compared {
    meta: Meta,
    found: Sum,
}

impl<'s> Check<'s> {
    /// A check that has not begun.
    pub(super) fn new(notices: &'s Notices, path: &Path) -> Self {
        Self { notices, path: path.to_path_buf(), under_way: None, ended: false }
    }

    /// Runs a reading of all names, which shows each of them to this check; both answer whether
    /// they came to their end, which they don't when they are not wanted any more.
    pub(super) fn beside(
        &mut self,
        connection: &Connection,
        wanted: &dyn Fn() -> bool,
        read: impl FnOnce(&mut Self) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        if self.ended {
            return read(self);
        }
        let mut whole = self.begin(connection).and_then(|()| read(self));
        if let (Ok(true), Some(compared)) = (&whole, self.under_way.take()) {
            whole = self.compare(connection, &compared, wanted);
        }
        if !connection.is_autocommit() {
            // Where even that fails, the next reading is told why.
            let _ = connection.execute_batch("COMMIT");
        }
        match &whole {
            // Told to stop, or to begin anew.
            Ok(false) => return whole,
            Ok(true) => {}
            Err(failure) if failure.is_damage() => {
                self.alarm(&format!("they can't be read: {failure}"));
            }
            // Memory, handles, a disk that did not answer: nothing is known of the names.
            Err(failure) => self.notices.say(Matter::Unchecked, self.unchecked(failure)),
        }
        self.ended = true;
        self.notices.check_names(false);
        whole
    }

    fn begin(&mut self, connection: &Connection) -> Result<(), Failure> {
        if !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
        connection.execute_batch("BEGIN")?;
        let meta = Meta::load(connection)?;
        if meta.names.count.max(meta.marks.count) > CHECKED_MAX {
            let count = meta.names.count.max(meta.marks.count);
            let sentence = format!(
                "the database {} has {count} keys or marks, and no more than {CHECKED_MAX} are \
                 checked at an opening: a name that was damaged on the disk would not be noticed",
                self.path.display()
            );
            self.notices.say(Matter::Unchecked, sentence);
            // Nothing to compare, so nothing that keeps the log from starting again.
            connection.execute_batch("COMMIT")?;
        } else {
            self.under_way = Some(Compared { meta, found: Sum::default() });
        }
        Ok(())
    }

    /// A name in the index. One that is still outside by the snapshot is counted by its row.
    pub(super) fn see(&mut self, key: &Key, id: i64) {
        if let Some(Compared { meta, found }) = &mut self.under_way
            && id.cast_unsigned() <= meta.indexed
        {
            found.add(share(&meta.key, key, id));
        }
    }

    /// Adds the young records, each checked by its seal, and compares.
    fn compare(
        &self,
        connection: &Connection,
        compared: &Compared,
        wanted: &dyn Fn() -> bool,
    ) -> Result<bool, Failure> {
        let Compared { meta, mut found } = *compared;
        let mut damaged = Vec::new();
        let mut last = None;
        let mut list = connection.prepare(sql::LIST_YOUNG_WHOLE)?;
        let mut young = list.query([signed(meta.indexed)])?;
        while let Some(row) = young.next()? {
            let id: i64 = row.get(rows::LISTED_ID)?;
            match rows::read_listed(row) {
                Ok(record) if last < Some(id) => found.add(share(&meta.key, &record.key, id)),
                _ => damaged.push(id),
            }
            last = Some(id);
            if found.count.is_multiple_of(ASKED_EVERY) && !wanted() {
                return Ok(false);
            }
        }
        if !damaged.is_empty() {
            let numbers: Vec<_> = damaged.iter().take(NAMED_MAX).map(i64::to_string).collect();
            let (count, numbers) = (damaged.len(), numbers.join(", "));
            self.alarm(&format!("{count} records are damaged (rows {numbers})"));
        } else if found != meta.names {
            let (there, found) = (meta.names.count, found.count);
            self.alarm(&format!(
                "{there} keys were written and {found} found, or not the same ones"
            ));
        }
        self.compare_marks(connection, &meta, wanted)
    }

    fn unchecked(&self, failure: &Failure) -> String {
        format!(
            "the names of keys and marks in {} could not be checked ({failure}): one that was \
             damaged on the disk would not be noticed; look at disk and memory, and restart",
            self.path.display()
        )
    }

    fn alarm(&self, what: &str) {
        let sentence = format!(
            "the names of the keys in {} are damaged: {what}; a request whose key was acknowledged \
             may run again: stop the server and restore the database from a backup",
            self.path.display()
        );
        self.notices.say(Matter::Names, sentence);
    }

    /// Compares the names of all marks with their sum: a mark that is not found counts as one that
    /// was never set, and lets pass what it stands against.
    fn compare_marks(
        &self,
        connection: &Connection,
        meta: &Meta,
        wanted: &dyn Fn() -> bool,
    ) -> Result<bool, Failure> {
        let mut found = Sum::default();
        let mut in_order = true;
        let mut last: Option<(String, String)> = None;
        let mut list = connection.prepare(sql::LIST_MARK_NAMES)?;
        let mut marks = list.query(["", ""])?;
        while let Some(row) = marks.next()? {
            let name = (rows::text(row, 0)?.to_owned(), rows::text(row, 1)?.to_owned());
            found.add(share_of_mark(&meta.key, &name.0, &name.1));
            in_order &= last.as_ref() < Some(&name);
            last = Some(name);
            if found.count.is_multiple_of(ASKED_EVERY) && !wanted() {
                return Ok(false);
            }
        }
        if !in_order || found != meta.marks {
            let sentence = format!(
                "the names of the marks in {} are damaged: {} were written and {} found, or not \
                 the same ones; what a mark stands against (a version that has passed, a job out \
                 of turn) may pass: stop the server and restore the database from a backup",
                self.path.display(),
                meta.marks.count,
                found.count
            );
            self.notices.say(Matter::Marks, sentence);
        }
        Ok(true)
    }
}
