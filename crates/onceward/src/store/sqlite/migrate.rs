//! Migrations: embedded SQL files, applied once, in order, all in one transaction.
//!
//! Rule: a file that was applied never changes (its checksum is kept), and a database that a newer
//! version has migrated is left alone. Both refuse to open and say so.

use std::path::Path;

use onceward_core::codec::seal_parts;
use onceward_core::stamp::At;
use rusqlite::{Connection, TransactionBehavior, params};

use super::super::StoreError;
use super::super::clock::StoreClock;
use super::meta::Meta;
use super::open::refused;
use super::rows::instant;

/// Marks a file as ours: "once" in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x6f6e_6365;

struct Migration {
    version: i64,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("migrations/0001_tables.sql") },
    Migration { version: SUMS, name: "sums", sql: include_str!("migrations/0002_sums.sql") },
    Migration {
        version: 3,
        name: "leases_anew",
        sql: include_str!("migrations/0003_leases_anew.sql"),
    },
];

/// The migration after which sum and seal have to be filled in.
const SUMS: i64 = 2;

/// The version of a schema that is up to date.
pub(super) const VERSION: usize = MIGRATIONS.len();

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   BLOB    NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT";

/// Brings the schema up to date.
pub(super) fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| refused(path, &error);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    transaction.execute_batch(LEDGER).map_err(failed)?;
    let done = applied(&transaction, path)?;
    for migration in &MIGRATIONS[done..] {
        transaction.execute_batch(migration.sql).map_err(failed)?;
        let at = instant(StoreClock::machine(At(0)).now());
        let checksum = seal_parts(&[migration.sql.as_bytes()]);
        transaction
            .execute(
                "INSERT INTO migrations (version, name, checksum, applied_at) VALUES (?, ?, ?, ?)",
                params![migration.version, migration.name, checksum, at],
            )
            .map_err(failed)?;
        if migration.version == SUMS {
            Meta::begin(&transaction).map_err(failed)?;
        }
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    transaction.commit().map_err(failed)
}

/// Checks that the schema is the one that this version knows, without writing.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let done = applied(connection, path)?;
    if done < MIGRATIONS.len() {
        return Err(StoreError::Open(format!(
            "the database {} is at schema version {done}, but this program needs {}; \
             open it once for writing (or run `onceward migrate`) to bring it up to date",
            path.display(),
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

/// How many of our migrations were applied. Refuses a database that we don't understand.
fn applied(connection: &Connection, path: &Path) -> Result<usize, StoreError> {
    let failed = |error: rusqlite::Error| refused(path, &error);
    let mut select = connection
        .prepare("SELECT version, checksum FROM migrations ORDER BY version")
        .map_err(failed)?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
    let rows: Vec<(i64, Vec<u8>)> = rows.collect::<Result<_, _>>().map_err(failed)?;
    let newest = rows.last().map_or(0, |(version, _)| *version);
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    let path = path.display();
    if newest > known {
        return Err(StoreError::Open(format!(
            "the database {path} was migrated to schema version {newest} by a newer version of \
             this program, which knows up to {known}; use the newer version"
        )));
    }
    for (migration, (version, checksum)) in MIGRATIONS.iter().zip(&rows) {
        let same = *checksum == seal_parts(&[migration.sql.as_bytes()]);
        if migration.version != *version || !same {
            return Err(StoreError::Open(format!(
                "migration {version} of the database {path} has another checksum than this \
                 program's migration {} ({}); it was made by a different build: use that build, or \
                 restore the database from a backup",
                migration.version, migration.name
            )));
        }
    }
    Ok(rows.len())
}
