//! Arrays of composite values in Postgres' binary form, written without a copy in between.
//!
//! Rule: fields are written in the order in which the type in the schema lists them, each as the
//! type that the server said it has; the server refuses a value of any other. An array without
//! rows is NULL. What the rows mean is not known here.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{Field, IsNull, Kind, ToSql, Type};

/// Why a value can't be written: a defect of the program or of the schema.
pub(super) type Unwritable = Box<dyn Error + Sync + Send>;

/// Rows have one dimension, no NULL among them, and are counted from 1.
const DIMENSIONS: i32 = 1;
const NO_NULLS: i32 = 0;
const FIRST: i32 = 1;
/// In the place of a length: NULL.
const NULL: i32 = -1;

/// Writes the fields of one composite value, one after the other.
pub(super) struct Fields<'a> {
    types: std::slice::Iter<'a, Field>,
    out: &'a mut BytesMut,
}

impl Fields<'_> {
    /// Writes the next field.
    pub(super) fn put<T: ToSql>(&mut self, value: &T) -> Result<(), Unwritable> {
        let field = self.types.next().ok_or("a composite type has fewer fields than its rows")?;
        self.out.put_u32(field.type_().oid());
        sized(self.out, |out| value.to_sql(field.type_(), out))
    }

    /// Writes the next field, which is an array of composite values.
    pub(super) fn rows<R>(&mut self, rows: &[R], each: Each<R>) -> Result<(), Unwritable> {
        let field = self.types.next().ok_or("a composite type has fewer fields than its rows")?;
        self.out.put_u32(field.type_().oid());
        sized(self.out, |out| array(field.type_(), rows, each, out))
    }
}

/// How the fields of a row are written.
pub(super) type Each<R> = fn(&R, &mut Fields<'_>) -> Result<(), Unwritable>;

/// Writes an array of composite values, without its length.
pub(super) fn array<R>(
    of: &Type,
    rows: &[R],
    each: Each<R>,
    out: &mut BytesMut,
) -> Result<IsNull, Unwritable> {
    if rows.is_empty() {
        return Ok(IsNull::Yes);
    }
    let Kind::Array(row) = of.kind() else { return Err("an array type was expected".into()) };
    let Kind::Composite(fields) = row.kind() else {
        return Err("an array of a composite type was expected".into());
    };
    out.put_i32(DIMENSIONS);
    out.put_i32(NO_NULLS);
    out.put_u32(row.oid());
    out.put_i32(i32::try_from(rows.len())?);
    out.put_i32(FIRST);
    for row in rows {
        sized(out, |out| {
            out.put_i32(i32::try_from(fields.len())?);
            let mut fields = Fields { types: fields.iter(), out };
            each(row, &mut fields)?;
            match fields.types.next() {
                None => Ok(IsNull::No),
                Some(_) => Err("a composite type has more fields than its rows".into()),
            }
        })?;
    }
    Ok(IsNull::No)
}

/// Writes an array without rows that is not NULL, without its length.
pub(super) fn no_rows(of: &Type, out: &mut BytesMut) -> Result<IsNull, Unwritable> {
    let Kind::Array(row) = of.kind() else { return Err("an array type was expected".into()) };
    out.put_i32(0);
    out.put_i32(NO_NULLS);
    out.put_u32(row.oid());
    Ok(IsNull::No)
}

/// Writes a value behind its length.
fn sized(
    out: &mut BytesMut,
    write: impl FnOnce(&mut BytesMut) -> Result<IsNull, Unwritable>,
) -> Result<(), Unwritable> {
    let start = out.len();
    out.put_i32(NULL);
    if let IsNull::No = write(out)? {
        let length = i32::try_from(out.len() - start - 4)?;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}
