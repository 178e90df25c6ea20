//! The numbers that stand for the names of keys, marks and tokens in Postgres' advisory locks.
//!
//! Rule: the same in every version that may run beside this one, and in SQL (`lock_of` of the third
//! migration). Two names that share a number only wait for each other.

use onceward_core::codec::seal_parts;
use onceward_core::key::{Key, Subject};
use onceward_core::stamp::Token;

/// The lock of a record.
pub(super) fn of_key(schema: &str, key: &Key) -> i64 {
    let (tenant, name) = (key.tenant_column().as_bytes(), key.name_column().as_bytes());
    number(&[schema.as_bytes(), b"record", tenant, key.kind().as_str().as_bytes(), name])
}

/// The lock of a mark.
pub(super) fn of_mark(schema: &str, subject: &Subject) -> i64 {
    let (tenant, name) = (subject.tenant_column().as_bytes(), subject.name_column().as_bytes());
    number(&[schema.as_bytes(), b"mark", tenant, name])
}

/// The lock of a batch that no record bears witness of.
pub(super) fn of_token(schema: &str, token: Token) -> i64 {
    number(&[schema.as_bytes(), b"token", format!("{:032x}", token.0).as_bytes()])
}

fn number(parts: &[&[u8]]) -> i64 {
    i64::from_be_bytes(seal_parts(parts))
}
