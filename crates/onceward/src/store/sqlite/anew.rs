//! Leases that are counted anew: those that were granted before the machine was started again.
//!
//! Rule: nobody knows for how long a machine was off, so no lease from before it ends by the clock
//! that people set. What is decided at the first opening of a boot is written down with the boot:
//! later openings of that boot know how much time has passed since the last commit, but not how
//! much had passed before.

use onceward_core::stamp::{At, Rev};
use rusqlite::{Connection, OptionalExtension, params};

use super::super::LeasesAnew;
use super::super::clock::StoreClock;
use super::failure::Failure;
use super::meta::Meta;
use super::rows::{self, instant, signed};
use super::sql;
use super::sum::{SumKey, sip128};

/// Which leases an opening counts anew. In the first one of a boot these are all, from now on, and
/// the numbers are moved to that boot; to be called in the transaction that writes them.
pub(super) fn leases(
    connection: &Connection,
    meta: &mut Meta,
    clock: &StoreClock,
) -> Result<Option<LeasesAnew>, Failure> {
    let anew = if clock.goes_on() {
        read(connection, &meta.key)?
    } else {
        meta.now = rows::bounded(meta.now.max(clock.now()));
        meta.boot = clock.boot();
        let anew = LeasesAnew { upto: Rev(meta.stamp), since: meta.now };
        let sealed = seal(&meta.key, anew);
        connection.execute(
            sql::WRITE_LEASES_ANEW,
            params![signed(anew.upto.0), instant(anew.since), sealed],
        )?;
        Some(anew)
    };
    Ok(anew.filter(|anew| anew.upto > Rev(0)))
}

fn read(connection: &Connection, key: &SumKey) -> Result<Option<LeasesAnew>, Failure> {
    let found = connection.query_row(sql::READ_LEASES_ANEW, [], |row| {
        let (upto, since) = (Rev(rows::number(row, 0)?), At(rows::number(row, 1)?));
        Ok((LeasesAnew { upto, since }, row.get::<_, Vec<u8>>(2)?))
    });
    let Some((anew, sealed)) = found.optional()? else { return Ok(None) };
    if sealed != seal(key, anew) {
        let what = "what the database says of leases (table leases_anew) is not what was written";
        return Err(Failure::Corrupt(what.into()));
    }
    Ok(Some(anew))
}

fn seal(key: &SumKey, anew: LeasesAnew) -> [u8; 16] {
    let numbers = [anew.upto.0, anew.since.0].map(u64::to_le_bytes);
    sip128(key, numbers.as_flattened()).to_be_bytes()
}
