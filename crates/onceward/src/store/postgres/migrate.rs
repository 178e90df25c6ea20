//! Migrations: embedded SQL files, applied once, in order, all in one transaction under one lock.
//!
//! Rule: a file that was applied never changes (its checksum is kept). A schema that the next
//! version has migrated is worked on as long as that version says so, and never migrated back.
//! Roles and grants are brought to what they should be at each run. Opening never migrates: it
//! refuses and says what to run.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

use super::super::StoreError;
use super::failure::{breaks_session, describe};
use super::open::Target;

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

macro_rules! migrations {
    ($($version:literal $file:literal $name:literal,)*) => {
        &[$(Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("migrations/", $file, "_", $name, ".sql")),
        },)*]
    };
}

const MIGRATIONS: &[Migration] = migrations! {
    1 "0001" "tables",
    2 "0002" "policies",
    3 "0003" "group",
    4 "0004" "lists",
    5 "0005" "views",
    6 "0006" "calls",
    7 "0007" "marks",
    8 "0008" "lean",
    9 "0009" "names",
    10 "0010" "patience",
    11 "0011" "statuses",
    12 "0012" "ends",
    13 "0013" "moved",
    14 "0014" "forms",
};

/// The oldest program, by the version of its schema, that works on the schema as it is after the
/// last of these migrations. A migration that takes something away, or changes what a function of
/// the program before is given, raises it two releases after the program has stopped to need it:
/// the versions N and N-1 share a database.
const OLDEST: i32 = 1;

/// The version of a schema that is up to date.
pub(super) const VERSION: usize = MIGRATIONS.len();

/// Who there is, before, and who may do what, after the migrations; both at every run.
const ROLES: &str = include_str!("roles.sql");
const GRANTS: &str = include_str!("grants.sql");

const LEDGER: &str = "CREATE TABLE IF NOT EXISTS migrations (
    version integer PRIMARY KEY,
    name text COLLATE \"C\" NOT NULL,
    checksum bytea NOT NULL,
    oldest integer NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)";

/// How long a change of tables that are in use waits for those who use them.
const LOCKED_FOR_MS: u32 = 2_000;

/// The checksum is the server's SHA-256 of the file.
const APPLIED: &str = "SELECT done.version, done.checksum IS NOT DISTINCT FROM sha256(known.sql),
        done.oldest
    FROM migrations AS done
    LEFT JOIN unnest($1::integer[], $2::bytea[]) AS known (version, sql) USING (version)
    ORDER BY done.version";

/// Brings the schema up to date, making it when it is not there. Returns how many were applied.
pub(super) async fn migrate(target: &Target) -> Result<usize, StoreError> {
    let (client, driver) = target.connect().await?;
    let migrated = run(&client, target).await;
    drop(client);
    drop(driver.await);
    migrated
}

async fn run(client: &Client, target: &Target) -> Result<usize, StoreError> {
    let schema = &target.options.schema;
    let failed = |error: Error| {
        let (at, why) = (target.shown(), describe(&error));
        let hint = match error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) {
            true => "; someone's open transaction uses its tables: nothing was changed, try again",
            false => "",
        };
        StoreError::Open(format!("schema {schema} of {at} can't be migrated: {why}{hint}"))
    };
    // Whatever fails below drops the connection with its open client.
    client.batch_execute("BEGIN").await.map_err(failed)?;
    // Two processes that migrate at once take turns; the second finds nothing left to do.
    let lock = format!("{schema}:migrate");
    let take = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
    client.query(take, &[&lock]).await.map_err(failed)?;
    let place = format!("SET LOCAL search_path = \"{schema}\", pg_temp");
    client.batch_execute(&place).await.map_err(failed)?;
    let encoding = client.query_one("SELECT current_setting('server_encoding')", &[]).await;
    let encoding: String = encoding.and_then(|row| row.try_get(0)).map_err(failed)?;
    if encoding != "UTF8" {
        return Err(StoreError::Open(format!(
            "the database of {} is in {encoding}, but keys are any Unicode: make one with \
             `CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`",
            target.shown()
        )));
    }
    let done = if is_there(client, target).await? { applied(client, target).await? } else { 0 };
    // A newer program's schema is newer still; it is not ours to grant on.
    if done > MIGRATIONS.len() {
        client.batch_execute("ROLLBACK").await.map_err(failed)?;
        return Ok(0);
    }
    if done > 0 {
        // Others may be at work on these tables: whoever waits for a lock makes all behind it wait.
        let wait = format!("SET LOCAL lock_timeout = {LOCKED_FOR_MS}");
        client.batch_execute(&wait).await.map_err(failed)?;
    }
    if done == MIGRATIONS.len() {
        return match repair(client).await {
            Ok(()) => client.batch_execute("COMMIT").await.map(|()| 0).map_err(failed),
            // Only who may make roles can; and who may not has nothing to migrate.
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(0),
            Err(error) => Err(failed(error)),
        };
    }
    client.batch_execute(ROLES).await.map_err(failed)?;
    let make = format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"");
    client.batch_execute(&make).await.map_err(failed)?;
    client.batch_execute(LEDGER).await.map_err(failed)?;
    for migration in &MIGRATIONS[done..] {
        client.batch_execute(migration.sql).await.map_err(failed)?;
        let note = "INSERT INTO migrations (version, name, checksum, oldest) \
                    VALUES ($1, $2, sha256($3), $4)";
        let sql = migration.sql.as_bytes();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&migration.version, &migration.name, &sql, &OLDEST];
        client.execute(note, &values).await.map_err(failed)?;
    }
    client.batch_execute(GRANTS).await.map_err(failed)?;
    client.batch_execute("COMMIT").await.map_err(failed)?;
    Ok(MIGRATIONS.len() - done)
}

/// Brings roles and grants of a schema that is up to date to what they should be.
async fn repair(client: &Client) -> Result<(), Error> {
    client.batch_execute(ROLES).await?;
    client.batch_execute(GRANTS).await
}

/// Whether the schema holds a store.
async fn is_there(client: &Client, target: &Target) -> Result<bool, StoreError> {
    let there = client.query_one("SELECT to_regclass('migrations') IS NOT NULL", &[]).await;
    let there = there.and_then(|row| row.try_get(0));
    there.map_err(|error| unreadable(target, &error))
}

/// Checks that the schema is the one that this version knows, without writing.
pub(super) async fn check(client: &Client, target: &Target) -> Result<(), StoreError> {
    let (at, schema) = (target.shown(), &target.options.schema);
    if !is_there(client, target).await? {
        return Err(StoreError::Schema(format!(
            "schema {schema} of {at} holds no store; run `onceward migrate --store {at}` to make it"
        )));
    }
    let done = applied(client, target).await?;
    if done < MIGRATIONS.len() {
        return Err(StoreError::Schema(format!(
            "schema {schema} of {at} is at version {done}, but this program needs {}; \
             run `onceward migrate --store {at}` to bring it up to date",
            MIGRATIONS.len()
        )));
    }
    Ok(())
}

/// How many of our migrations were applied. Refuses a schema that we don't understand.
async fn applied(client: &Client, target: &Target) -> Result<usize, StoreError> {
    let (at, schema) = (target.shown(), &target.options.schema);
    let versions: Vec<i32> = MIGRATIONS.iter().map(|migration| migration.version).collect();
    let files: Vec<&[u8]> = MIGRATIONS.iter().map(|migration| migration.sql.as_bytes()).collect();
    let rows = client.query(APPLIED, &[&versions, &files]).await;
    let rows = rows.map_err(|error| unreadable(target, &error))?;
    for (index, row) in rows.iter().enumerate() {
        let read = row.try_get(0).and_then(|v| Ok((v, row.try_get(1)?, row.try_get(2)?)));
        let (version, same, oldest): (i32, bool, i32) =
            read.map_err(|error| unreadable(target, &error))?;
        let Some(known) = MIGRATIONS.get(index) else {
            if usize::try_from(oldest).is_ok_and(|oldest| oldest <= VERSION) {
                continue;
            }
            return Err(StoreError::Schema(format!(
                "schema {schema} of {at} was migrated to version {version} by a newer version of \
                 this program, and needs a program that knows version {oldest}; this one knows \
                 {VERSION}: use the newer one, or another schema"
            )));
        };
        if known.version != version || !same {
            return Err(StoreError::Schema(format!(
                "migration {version} of schema {schema} of {at} has another checksum than this \
                 program's migration {} ({}); it was made by a different build: use that build, \
                 or restore the database from a backup",
                known.version, known.name
            )));
        }
    }
    Ok(rows.len())
}

fn unreadable(target: &Target, error: &Error) -> StoreError {
    if breaks_session(error) {
        return StoreError::NotApplied(describe(error));
    }
    let (at, schema) = (target.shown(), &target.options.schema);
    let why = describe(error);
    StoreError::Open(format!("the migrations of schema {schema} of {at} can't be read: {why}"))
}
