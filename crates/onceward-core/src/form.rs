//! The canonical form of a form body: its fields by name (contract A07).
//!
//! Rule: fields of different roots may come in any order, those of one root count in theirs, and
//! nothing else of a body is lost: from the form one can tell every name and every value, byte for
//! byte, or the SHA-256 of a value that is too long or no text. A body that is not well-formed has
//! no such form, and its bytes are compared instead. The root of a name is what stands before its
//! first `[` or `.`: readers build lists and objects out of such names, in the order they come.
//!
//! The form is a JSON object, so that it is kept, shown, masked and compared as JSON is: a field is
//! a member, one that is repeated an array. `multipart.rs` makes the same of parts. Where names of
//! one root are mixed, or a part follows a file, one more member says in which order they came.
//!
//! Not responsible for what an ignored field is worth (`fingerprint.rs` passes them).

use std::collections::{HashMap, HashSet};

use sha2::{Digest as _, Sha256};

use crate::canonical::{Arrays, MAX_BODY_BYTES, quote};
use crate::json::key_order;

/// How many fields or parts a body may have that is compared by them.
pub const MAX_FIELDS: usize = 4_096;

/// The longest value that stands in the canonical form itself, in bytes. Of a longer one, and of
/// one that is not UTF-8, its length and its SHA-256 stand there.
pub const MAX_INLINE_BYTES: usize = 16 * 1024;

/// What no name begins with in a form, unless it says something else than a name.
const NO_NAME: char = '\0';

/// The fields of a body.
#[derive(Debug, Default)]
pub(crate) struct Fields(Vec<Field>);

#[derive(Debug)]
struct Field {
    name: String,
    root: String,
    what: What,
    /// As canonical JSON.
    value: Vec<u8>,
}

/// What a field is beside its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A field of a form, a part without a file name.
    Field,
    /// A part with a file name: some readers ignore what comes behind it.
    File,
    /// What lies around the parts.
    Beside,
}

impl Fields {
    /// Adds a field. None when there are too many.
    pub(crate) fn add(&mut self, name: &[u8], what: What, value: Vec<u8>) -> Option<()> {
        let root = name.split(|byte| matches!(byte, b'[' | b'.')).next().unwrap_or_default();
        self.push(Field { name: text(name), root: text(root), what, value })
    }

    /// Adds what is no field: no name is like this one.
    pub(crate) fn add_beside(&mut self, what: &str, value: Vec<u8>) -> Option<()> {
        let name = format!("{NO_NAME}{what}");
        self.push(Field { root: name.clone(), name, what: What::Beside, value })
    }

    fn push(&mut self, field: Field) -> Option<()> {
        (self.0.len() < MAX_FIELDS).then(|| self.0.push(field))
    }

    /// The canonical form, without the fields that are ignored. None when it is too long.
    pub(crate) fn write(mut self, ignore: &[String], arrays: Arrays) -> Option<Vec<u8>> {
        self.0.retain(|field| !ignore.iter().any(|ignored| names(ignored, &field.name)));
        let files = self.files_before();
        let (mut orders, mixed) = self.orders();
        let mut fields = self.0;
        if arrays == Arrays::Unordered && files.is_none() {
            // Which of them belong together is told by their order, where names are mixed.
            fields.sort_by(|one, other| match mixed.contains(&one.root) {
                false if one.name == other.name => one.value.cmp(&other.value),
                _ => key_order(one.name.as_bytes(), other.name.as_bytes()),
            });
        }
        orders.extend(files);
        fields.extend(orders);
        by_name(fields)
    }

    /// The fields by name, whatever the order of names: of a query, whose order is told as a whole.
    pub(crate) fn write_by_name(self) -> Option<Vec<u8>> {
        by_name(self.0)
    }

    /// The order of each root whose names are mixed: its names are counted from 0 as they stand in
    /// the canonical form.
    fn orders(&self) -> (Vec<Field>, HashSet<String>) {
        let mut roots: HashMap<&str, Vec<&str>> = HashMap::new();
        for field in &self.0 {
            roots.entry(&field.root).or_default().push(&field.name);
        }
        let mut mixed = HashSet::new();
        let mut orders = Vec::new();
        for (root, names) in roots {
            let mut known = names.clone();
            known.sort_by(|one, other| key_order(one.as_bytes(), other.as_bytes()));
            known.dedup();
            if known.len() > 1 {
                let places: HashMap<_, _> = known.into_iter().zip(0..).collect();
                orders.push(order(&format!("order {root}"), names.iter().map(|name| places[name])));
                mixed.insert(root.to_owned());
            }
        }
        (orders, mixed)
    }

    /// How many files come before each part, in the order of the canonical form; None when there
    /// are none before any.
    fn files_before(&self) -> Option<Field> {
        let mut files = 0;
        let mut before = Vec::new();
        for field in self.0.iter().filter(|field| field.what != What::Beside) {
            before.push((&field.name, files));
            files += usize::from(field.what == What::File);
        }
        before.sort_by(|(one, _), (other, _)| key_order(one.as_bytes(), other.as_bytes()));
        let is_told = before.iter().any(|(_, files)| *files > 0);
        is_told.then(|| order("files", before.into_iter().map(|(_, files)| files)))
    }
}

/// What says in which order fields came: no field has such a name.
fn order(what: &str, places: impl Iterator<Item = usize>) -> Field {
    let places: Vec<_> = places.map(|place| place.to_string().into_bytes()).collect();
    let mut value = Vec::new();
    array(places.iter(), &mut value);
    let name = format!("{NO_NAME}{what}");
    Field { root: name.clone(), name, what: What::Beside, value }
}

/// An object of the fields. None when it is too long.
fn by_name(mut fields: Vec<Field>) -> Option<Vec<u8>> {
    // A stable sort: what is repeated stays in order.
    fields.sort_by(|one, other| key_order(one.name.as_bytes(), other.name.as_bytes()));
    let mut out = vec![b'{'];
    for same in fields.chunk_by(|one, other| one.name == other.name) {
        if out.len() > 1 {
            out.push(b',');
        }
        quote(same[0].name.as_bytes(), &mut out);
        out.push(b':');
        match same {
            [field] => out.extend_from_slice(&field.value),
            _ => array(same.iter().map(|field| &field.value), &mut out),
        }
        if out.len() >= MAX_BODY_BYTES {
            return None;
        }
    }
    out.push(b'}');
    Some(out)
}

/// Whether an ignored field is this one: by its name, or as a JSON pointer.
fn names(ignored: &str, name: &str) -> bool {
    let pointed = ignored.strip_prefix('/').filter(|step| !step.contains('/'));
    ignored == name
        || pointed.is_some_and(|step| step.replace("~1", "/").replace("~0", "~") == name)
}

/// Appends a JSON array.
pub(crate) fn array<'v>(values: impl Iterator<Item = &'v Vec<u8>>, out: &mut Vec<u8>) {
    for (index, value) in values.enumerate() {
        out.push(if index == 0 { b'[' } else { b',' });
        out.extend_from_slice(value);
    }
    out.push(b']');
}

/// The fields of an `application/x-www-form-urlencoded` body: pairs between `&`, `+` for a blank,
/// `%XX` for any byte. None when a `%` stands alone, or there is too much of it.
pub(crate) fn urlencoded(body: &[u8]) -> Option<Fields> {
    if body.len() > MAX_BODY_BYTES {
        return None;
    }
    let mut fields = Fields::default();
    if body.is_empty() {
        return Some(fields);
    }
    for pair in body.split(|byte| *byte == b'&') {
        let (name, value) = match pair.iter().position(|byte| *byte == b'=') {
            Some(at) => (&pair[..at], content(&decoded(&pair[at + 1..])?)),
            // Not every reader takes this for an empty value.
            None => (pair, b"null".to_vec()),
        };
        fields.add(&decoded(name)?, What::Field, value)?;
    }
    Some(fields)
}

/// What `+` and `%XX` stand for.
pub(crate) fn decoded(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => hex_digit(*bytes.next()?)? << 4 | hex_digit(*bytes.next()?)?,
            other => *other,
        });
    }
    Some(out)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// A value as JSON: a string, or what tells a long one and one that is no text from every other.
pub(crate) fn content(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if bytes.len() <= MAX_INLINE_BYTES && std::str::from_utf8(bytes).is_ok() {
        quote(bytes, &mut out);
    } else {
        let sum = crate::fingerprint::hex(&Sha256::digest(bytes));
        out.extend_from_slice(
            format!("{{\"bytes\":{},\"sha256\":\"{sum}\"}}", bytes.len()).as_bytes(),
        );
    }
    out
}

/// A name as text, never the same for two. What is no text is written in hexadecimal behind a mark,
/// and so is what begins with the mark.
pub(crate) fn text(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) if !text.starts_with(NO_NAME) => text.into(),
        _ => format!("{NO_NAME}x{}", crate::fingerprint::hex(name)),
    }
}

#[cfg(test)]
mod tests;
