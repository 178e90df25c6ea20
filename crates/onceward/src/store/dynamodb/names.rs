//! Where everything lies in the table: partition and sort keys, and names that are too long for
//! one.
//!
//! | what | PK | SK |
//! |---|---|---|
//! | record | `ORG#{tenant}#REQUEST` (`JOB`, `EVENT`, `APPEND`) | `IDEMP#{name}` |
//! | mark, document | `ORG#{tenant}#MARK` | `MARK#{name}` |
//! | audit entry | `ORG#{tenant}#AUDIT#{shard}` | `AUDIT#{number}` |
//! | what was pruned of the audit | `ORG#{tenant}#AUDIT` | `PRUNED` |
//! | token | `ORG#{tenant}#TOKEN#{token}` | `TOKEN` |
//! | counter of stamps | `ORG#{tenant}#STAMP#{shard}` | `STAMP` |
//! | part of a large body | `ORG#{tenant}#BODY#{hash of its owner}` | `{id}#{part}` |
//! | tenant | `TENANTS` | `ORG#{tenant}` |
//! | the table's version | `ONCEWARD` | `SCHEMA` |
//!
//! Rule: the tenant leads, and two things never share a place. DynamoDB compares sort keys byte by
//! byte, as keys and subjects are ordered. It holds 1,024 bytes of them, so a longer name is cut
//! and followed by its hash; the whole name is then in the item, and lists sort what was cut alike.

use std::fmt::Write as _;

use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::stamp::Token;

/// Counters of one tenant's stamps, and partitions of its audit. A partition of DynamoDB takes a
/// thousand writes a second.
pub(super) const STAMP_SHARDS: u64 = 8;
/// Bits of a number that tell its shard.
pub(super) const STAMP_SHARD_BITS: u32 = 3;
/// Partitions of an index across tenants: of a queue's due jobs, of what is to be swept.
pub(super) const INDEX_SHARDS: u64 = 4;
/// Names of more bytes are cut. Less than [`CUT_BYTES`] by a character, so that no name that is
/// kept whole is longer than one that was cut.
const WHOLE_BYTES: usize = CUT_BYTES - 3;
const CUT_BYTES: usize = 900;
/// Stands between a cut name and its hash: behind all that could follow there, as the rest would.
const CUT: char = '\u{10ffff}';

/// The prefix of every record's sort key.
pub(super) const RECORD: &str = "IDEMP#";
/// The prefix of every mark's sort key.
pub(super) const MARK: &str = "MARK#";
/// The prefix of every audit entry's sort key.
pub(super) const AUDIT: &str = "AUDIT#";
/// The partition of the list of tenants, and the prefix of its sort keys.
pub(super) const TENANTS: (&str, &str) = ("TENANTS", "ORG#");
/// Where the table's version is.
pub(super) const SCHEMA: (&str, &str) = ("ONCEWARD", "SCHEMA");

/// The place of an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) pk: String,
    pub(super) sk: String,
}

impl Place {
    pub(super) fn new(pk: impl Into<String>, sk: impl Into<String>) -> Self {
        Self { pk: pk.into(), sk: sk.into() }
    }
}

/// The partition of a tenant's things of one sort.
fn of_tenant(tenant: &str, what: &str) -> String {
    // `#` parts the key here; the tenant's own is escaped as the core escapes `:`.
    format!("ORG#{}#{what}", tenant.replace('#', "%23"))
}

/// The partition of a tenant's records of one kind.
pub(super) fn records(tenant: &str, kind: Kind) -> String {
    of_tenant(tenant, &kind.as_str().to_uppercase())
}

/// The partition of a tenant's marks.
pub(super) fn marks(tenant: &str) -> String {
    of_tenant(tenant, "MARK")
}

/// One of the partitions of a tenant's audit.
pub(super) fn audit(tenant: &str, shard: u64) -> String {
    of_tenant(tenant, &format!("AUDIT#{shard}"))
}

pub(super) fn record(key: &Key) -> Place {
    let pk = records(key.tenant_column(), key.kind());
    Place::new(pk, format!("{RECORD}{}", cut(key.name_column())))
}

pub(super) fn mark(subject: &Subject) -> Place {
    let sk = format!("{MARK}{}", cut(subject.name_column()));
    Place::new(marks(subject.tenant_column()), sk)
}

pub(super) fn entry(tenant: &str, id: u64) -> Place {
    Place::new(audit(tenant, id % STAMP_SHARDS), format!("{AUDIT}{id:020}"))
}

pub(super) fn pruned(tenant: &str) -> Place {
    Place::new(of_tenant(tenant, "AUDIT"), "PRUNED")
}

pub(super) fn token(tenant: &str, token: Token) -> Place {
    Place::new(of_tenant(tenant, &format!("TOKEN#{:032x}", token.0)), "TOKEN")
}

pub(super) fn counter(tenant: &str, shard: u64) -> Place {
    Place::new(of_tenant(tenant, &format!("STAMP#{shard}")), "STAMP")
}

pub(super) fn tenant(tenant: &str) -> Place {
    Place::new(TENANTS.0, format!("{}{}", TENANTS.1, cut(tenant)))
}

/// The partition of the large bodies of one item.
pub(super) fn bodies(tenant: &str, owner: &Place) -> String {
    let owner = hash_hex(&[owner.pk.as_bytes(), b"\0", owner.sk.as_bytes()].concat());
    of_tenant(tenant, &format!("BODY#{owner}"))
}

/// A part of a large body.
pub(super) fn body_part(partition: &str, id: &str, part: usize) -> Place {
    Place::new(partition, format!("{id}#{part:03}"))
}

/// The shard of a key's stamps.
pub(super) fn stamp_shard(key: &Key) -> u64 {
    hash_of(key.name_column()) % STAMP_SHARDS
}

/// Where a due job is listed: its queue's partition, and its place in the order.
pub(super) fn due_index(key: &Key, priority: u8, at: u64) -> (String, String) {
    let queue = due_partition(key.scope_column(), hash_of(&key.to_string()) % INDEX_SHARDS);
    (queue, format!("{}#{at:020}#{}", due_digit(priority), tie(key)))
}

/// One of the partitions of a queue.
pub(super) fn due_partition(queue: &str, shard: u64) -> String {
    format!("QUEUE#{queue}#{shard}")
}

/// Higher priorities come first.
pub(super) fn due_digit(priority: u8) -> u8 {
    9_u8.saturating_sub(priority)
}

/// Where a record is listed for the sweep.
pub(super) fn sweep_index(key: &Key, at: u64) -> (String, String) {
    let partition = sweep_partition(hash_of(&key.to_string()) % INDEX_SHARDS);
    (partition, format!("{at:020}#{}", tie(key)))
}

/// One of the partitions of what is to be swept.
pub(super) fn sweep_partition(shard: u64) -> String {
    format!("SWEEP#{shard}")
}

/// Where an entry is listed among all tenants'.
pub(super) fn audit_index(tenant: &str, id: u64) -> (String, String) {
    (audit_partition(id % STAMP_SHARDS), format!("{id:020}#{}", cut(tenant)))
}

/// One of the partitions of all tenants' audit.
pub(super) fn audit_partition(shard: u64) -> String {
    format!("AUDIT#{shard}")
}

/// Puts records that are listed under one instant in the order of their keys. Control characters
/// are escaped in every part, so none of them can hold the one between them.
fn tie(key: &Key) -> String {
    let kind = key.kind() as u8;
    let whole = format!("{}\u{1}{kind}\u{1}{}", key.tenant_column(), key.name_column());
    cut(&whole)
}

/// A name as a sort key holds it.
pub(super) fn cut(name: &str) -> String {
    if name.len() <= WHOLE_BYTES {
        return name.to_string();
    }
    format!("{}{CUT}{}", start_of(name), hash_hex(name.as_bytes()))
}

/// The part of a name that its sort key begins with.
pub(super) fn start_of(name: &str) -> &str {
    if name.len() <= WHOLE_BYTES { name } else { &name[..name.floor_char_boundary(CUT_BYTES)] }
}

/// Whether a name was cut, so that its sort key alone does not tell its order.
pub(super) fn is_cut(name: &str) -> bool {
    name.len() > WHOLE_BYTES
}

/// The record that an item is at: its tenant and kind from the partition, its name from the sort
/// key or, when that was cut, from the item.
pub(super) fn read_key(place: &Place, whole: Option<&str>) -> Option<Key> {
    let (tenant, kind) = place.pk.strip_prefix("ORG#")?.rsplit_once('#')?;
    let kind = Kind::ALL.into_iter().find(|k| k.as_str().eq_ignore_ascii_case(kind))?;
    let name = read_name(place.sk.strip_prefix(RECORD)?, whole)?;
    let key = Key::from_columns(&tenant.replace("%23", "#"), kind, name).ok()?;
    (record(&key) == *place).then_some(key)
}

/// The subject that an item of a tenant is at.
pub(super) fn read_subject(tenant: &str, place: &Place, whole: Option<&str>) -> Option<Subject> {
    let name = read_name(place.sk.strip_prefix(MARK)?, whole)?;
    let subject = Subject::from_columns(tenant, name).ok()?;
    (mark(&subject) == *place).then_some(subject)
}

/// The name behind a sort key's prefix.
pub(super) fn read_name<'a>(stored: &'a str, whole: Option<&'a str>) -> Option<&'a str> {
    match whole {
        Some(whole) => (cut(whole) == stored).then_some(whole),
        None => (stored.len() <= WHOLE_BYTES).then_some(stored),
    }
}

fn hash_of(text: &str) -> u64 {
    let hash = fingerprint_bytes(text.as_bytes());
    hash.hash()[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn hash_hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(64);
    for byte in fingerprint_bytes(bytes).hash() {
        // A string takes all that is written to it.
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, id: &str) -> Key {
        Key::new(Kind::Request, tenant, "s", id).unwrap()
    }

    #[test]
    fn i06_the_tenant_leads_and_no_place_is_two_things() {
        let tenants = ["a", "a#REQUEST", "a#AUDIT#1", "a%23", "a%", "A", "ünï", "a#MARK"];
        let mut places = std::collections::HashSet::new();
        for tenant in tenants {
            let key = key(tenant, "i");
            let subject = Subject::new(tenant, "s", "i").unwrap();
            let column = key.tenant_column();
            let all = [
                record(&key),
                mark(&subject),
                entry(column, 1),
                pruned(column),
                token(column, Token(7)),
                counter(column, 1),
                body_part(&bodies(column, &record(&key)), "x", 0),
            ];
            for place in all {
                assert!(place.pk.starts_with("ORG#"), "{place:?}");
                assert!(places.insert(place.clone()), "{place:?} twice");
            }
            assert_eq!(read_key(&record(&key), None), Some(key.clone()));
            assert_eq!(read_subject(column, &mark(&subject), None), Some(subject));
        }
    }

    #[test]
    fn long_names_are_cut_and_keep_their_order() {
        let stem = "x".repeat(895);
        let names = [
            stem.clone(),
            format!("{stem}y"),
            format!("{stem}yy"),
            format!("{stem}yyyy{}", "z".repeat(200)),
            format!("{stem}yyyz{}", "a".repeat(200)),
            format!("{stem}yyéé{}", "z".repeat(200)),
            format!("{stem}yy🦀{}", "z".repeat(200)),
            format!("{stem}🦀🦀{}", "z".repeat(200)),
            format!("{stem}~{}", "z".repeat(200)),
        ];
        for one in &names {
            assert!(cut(one).len() + RECORD.len() <= 1_024, "{}", cut(one).len());
            assert_eq!(read_name(&cut(one), is_cut(one).then_some(one.as_str())), Some(&**one));
            for other in &names {
                if start_of(one) != start_of(other) {
                    assert_eq!(one.cmp(other), cut(one).cmp(&cut(other)), "{one} {other}");
                } else if one != other {
                    assert_ne!(cut(one), cut(other));
                }
            }
        }
    }

    #[test]
    fn i18_a_swapped_name_is_noticed() {
        let long = key("a", &"x".repeat(512));
        let within = ["y".repeat(500)];
        let within: Vec<&str> = within.iter().map(String::as_str).collect();
        let long = Key::within(Kind::Request, "a", "s", &within, &long.id()).unwrap();
        let place = record(&long);
        assert_eq!(read_key(&place, Some(long.name_column())), Some(long.clone()));
        let other = format!("{}x", long.name_column());
        assert_eq!(read_key(&place, Some(&other)), None);
        assert_eq!(read_key(&place, None), None);
    }

    #[test]
    fn due_jobs_are_ordered_by_priority_then_instant() {
        let place = |priority, at| due_index(&key("a", "i"), priority, at).1;
        assert!(place(9, 5) < place(9, 6) && place(9, 999) < place(0, 0));
        assert!(place(0, 9) < place(0, 10) && place(0, 10) < place(0, u64::MAX));
    }
}
