//! The numbers of a database, in one row: they only rise, and everything else is judged by them.
//!
//! Rule: the row carries a seal, which each commit writes and each transaction and snapshot checks.
//! A stamp that ran back would deal fences twice, an index mark that ran ahead would hide names; so
//! a row that was changed behind our back is refused, also at the opening.

use std::path::Path;

use onceward_core::codec::CodecError;
use onceward_core::stamp::At;
use rusqlite::{Connection, Row, Statement, params};

use super::super::StoreError;
use super::super::clock::{Boot, Last};
use super::failure::Failure;
use super::rows::{self, instant, signed};
use super::sum::{Sum, SumKey, share, share_of_mark, sip128};
use super::{open, sql};

/// The numbers that a transaction draws from, and its instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// The last stamp.
    pub(super) stamp: u64,
    /// The last instant.
    pub(super) now: At,
    /// The last audit entry.
    pub(super) audit: u64,
    /// Names of records up to this one are in the index.
    pub(super) indexed: u64,
    /// All records by their names.
    pub(super) names: Sum,
    /// All marks by their names.
    pub(super) marks: Sum,
    /// When the instant was written, by the clock of a boot.
    pub(super) boot: Option<Boot>,
    /// What sums and seal are made with.
    pub(super) key: SumKey,
}

impl Meta {
    /// Reads the row and checks its seal.
    fn read(row: &Row<'_>) -> Result<Self, Failure> {
        let boot: Option<[u8; 16]> = match row.get_ref(8)?.as_blob().map_err(rows::blob_error)? {
            [] => None,
            id => Some(id.try_into().map_err(|_| CodecError("boot"))?),
        };
        let up_ms = rows::number(row, 9)?;
        let meta = Self {
            stamp: rows::number(row, 0)?,
            now: At(rows::number(row, 1)?),
            audit: rows::number(row, 2)?,
            indexed: rows::number(row, 3)?,
            names: sum_at(row, 4)?,
            marks: sum_at(row, 6)?,
            boot: boot.map(|id| Boot { id, up_ms }),
            key: rows::exact(row, 10, "key of the sums")?,
        };
        if rows::exact(row, 11, "seal")? != meta.seal() {
            let what = "the numbers of the database (table meta) are not what was written";
            return Err(Failure::Corrupt(what.into()));
        }
        Ok(meta)
    }

    /// Looks the row up and reads it.
    pub(super) fn load(connection: &Connection) -> Result<Self, Failure> {
        Self::of(&mut connection.prepare(sql::READ_META)?)
    }

    /// Reads the row by [`sql::READ_META`].
    pub(super) fn of(read: &mut Statement<'_>) -> Result<Self, Failure> {
        let mut found = read.query([])?;
        Self::read(found.next()?.ok_or(CodecError("numbers"))?)
    }

    /// Writes it by [`sql::WRITE_META`].
    pub(super) fn write(&self, statement: &mut Statement<'_>) -> rusqlite::Result<usize> {
        let (boot, up_ms) = self.boot_columns();
        statement.execute(params![
            signed(self.stamp),
            instant(self.now),
            signed(self.audit),
            signed(self.indexed),
            signed(self.names.count),
            self.names.sum.to_be_bytes(),
            signed(self.marks.count),
            self.marks.sum.to_be_bytes(),
            boot,
            signed(up_ms),
            self.seal(),
        ])
    }

    /// What a store that opens has to know, checked.
    pub(super) fn at_open(connection: &Connection, path: &Path) -> Result<Self, StoreError> {
        Self::load(connection).map_err(|failure| match failure {
            Failure::Sqlite(error) => open::refused(path, &error),
            damaged => StoreError::Open(format!(
                "the database {} is damaged: {}; restore it from a backup",
                path.display(),
                damaged.into_store_error()
            )),
        })
    }

    /// The last instant and when that was.
    pub(super) fn last(&self) -> Last {
        Last { now: self.now, boot: self.boot }
    }

    /// Fills in what the migration that brings sum and seal can't: once, in its transaction.
    pub(super) fn begin(connection: &Connection) -> rusqlite::Result<()> {
        let row = "SELECT stamp, now, audit, indexed, sum_key FROM meta";
        let mut meta = connection.query_row(row, [], |row| {
            Ok(Self {
                stamp: rows::number(row, 0)?,
                now: At(rows::number(row, 1)?),
                audit: rows::number(row, 2)?,
                indexed: rows::number(row, 3)?,
                key: row.get(4)?,
                ..Self::default()
            })
        })?;
        let mut names = connection.prepare(sql::LIST_YOUNG_NAMES)?;
        let mut found = names.query([signed(0)])?;
        while let Some(row) = found.next()? {
            // A name that can't be read is missing in the sum, and found by the seal of its record.
            if let Ok(key) = rows::read_key(row, 1) {
                meta.names.add(share(&meta.key, &key, row.get(0)?));
            }
        }
        let mut marks = connection.prepare(sql::LIST_MARK_NAMES)?;
        let mut found = marks.query(["", ""])?;
        while let Some(row) = found.next()? {
            let (tenant, name): (String, String) = (row.get(0)?, row.get(1)?);
            meta.marks.add(share_of_mark(&meta.key, &tenant, &name));
        }
        meta.write(&mut connection.prepare(sql::WRITE_META)?).map(drop)
    }

    /// Where nothing is known of a boot, nothing is written.
    fn boot_columns(&self) -> (&[u8], u64) {
        self.boot.as_ref().map_or((&[], 0), |boot| (&boot.id[..], boot.up_ms))
    }

    fn seal(&self) -> [u8; 16] {
        let (boot, up_ms) = self.boot_columns();
        let mut bytes = Vec::with_capacity(104);
        let numbers = [self.stamp, self.now.0, self.audit, self.indexed, self.names.count, up_ms];
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes.extend_from_slice(&self.names.sum.to_le_bytes());
        bytes.extend_from_slice(boot);
        sip128(&self.key, &bytes).to_be_bytes()
    }
}

/// A count and the sum behind it.
fn sum_at(row: &Row<'_>, column: usize) -> Result<Sum, Failure> {
    let sum = u128::from_be_bytes(rows::exact(row, column + 1, "sum of names")?);
    Ok(Sum { count: rows::number(row, column)?, sum })
}
