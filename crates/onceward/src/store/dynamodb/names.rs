//! Where everything lies in the table: partition and sort keys, and names that are too long for
//! one.
//!
//! | what | PK | SK |
//! |---|---|---|
//! | record of a request within a user | `ORG#{tenant}#USER#{user}` | `IDEMP#{scope}:…:{id}` |
//! | any other record | `ORG#{tenant}#REQUEST` (`JOB`, `EVENT`, `APPEND`) | `IDEMP#{name}` |
//! | that a user has records in a scope | `ORG#{tenant}#USERS` | `USER#{scope}:{user}:` |
//! | mark, document | `ORG#{tenant}#MARK` | `MARK#{name}` |
//! | audit entry | `ORG#{tenant}#AUDIT#{shard}` | `AUDIT#{number}` |
//! | what was pruned of the audit | `ORG#{tenant}#AUDIT` | `PRUNED` |
//! | token | `ORG#{tenant}#TOKEN#{token}` | `TOKEN` |
//! | counter of stamps | `ORG#{tenant}#STAMP#{shard}` | `STAMP` |
//! | part of a large body | `ORG#{tenant}#BODY#{hash of its owner}` | `{id}#{part}` |
//! | tenant | `TENANTS` | `ORG#{tenant}` |
//! | the table's version | `ONCEWARD` | `SCHEMA` |
//!
//! In the index `user`, audit entries about a user are `ORG#{tenant}#USER#{user}` /
//! `AUDIT#{time}#{number}`.
//!
//! A store knows no users. What the seed calls so is the first part that narrows a request's key:
//! whose measurement it is, or who calls; where neither counts, the first value of the path.
//!
//! Rule: the tenant leads, and two things never share a place. DynamoDB compares sort keys byte by
//! byte, as keys and subjects are ordered. It holds 1,024 bytes of them, so a longer name is cut
//! and followed by its hash; the whole name is then in the item, and lists sort what was cut alike.
//! So is a long user, of whom 2,048 bytes of a partition key leave little room.

use std::borrow::Cow;
use std::fmt::Write as _;

use onceward_core::audit::user_of;
use onceward_core::fingerprint::fingerprint_bytes;
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::stamp::Token;
use onceward_core::text::escape;

use super::stamps::instant_of;

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
/// Users of more bytes are cut: a tenant takes up to 1,536 of the 2,048.
const USER_BYTES: usize = 256;
/// Stands between a cut name and its hash: behind all that could follow there, as the rest would.
const CUT: char = '\u{10ffff}';

/// The prefix of every record's sort key.
pub(super) const RECORD: &str = "IDEMP#";
/// The prefix of every sort key of the list of users.
pub(super) const USER: &str = "USER#";
/// The prefix of every mark's sort key.
pub(super) const MARK: &str = "MARK#";
/// The prefix of every audit entry's sort key.
const AUDIT: &str = "AUDIT#";
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

/// The partition of a user.
pub(super) fn user(tenant: &str, user: &str) -> String {
    // Nothing follows the user, so its own `#` can't be mistaken.
    let user = if is_cut_user(user) { cut_at(user, USER_BYTES) } else { user.to_string() };
    of_tenant(tenant, &format!("{USER}{user}"))
}

/// Whether a user was cut, so that its partition alone does not tell who it is.
pub(super) fn is_cut_user(user: &str) -> bool {
    user.len() > USER_BYTES
}

/// The partition of the list of a tenant's users.
pub(super) fn users(tenant: &str) -> String {
    of_tenant(tenant, "USERS")
}

/// Where a user is listed, with the name that all its records of one scope begin with. No such
/// name begins another one, so users come in the order of their records.
pub(super) fn listed_user(tenant: &str, scope: &str, user: &str) -> (Place, String) {
    let name = format!("{scope}:{user}:");
    (Place::new(users(tenant), format!("{USER}{}", cut(&name))), name)
}

/// The name of a record as its partition knows it, and the user whose partition that is.
pub(super) struct Lies<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) user: Option<&'a str>,
}

/// How a record lies.
pub(super) fn lies(key: &Key) -> Lies<'_> {
    let name = key.name_column();
    let narrowed = || {
        let (scope, rest) = name.split_once(':')?;
        let (user, rest) = rest.split_once(':')?;
        Some((scope, user, rest))
    };
    match narrowed().filter(|_| key.kind() == Kind::Request) {
        Some((scope, user, rest)) => {
            Lies { name: format!("{scope}:{rest}").into(), user: Some(user) }
        }
        None => Lies { name: name.into(), user: None },
    }
}

pub(super) fn record(key: &Key) -> Place {
    let (tenant, lies) = (key.tenant_column(), lies(key));
    let pk = lies.user.map_or_else(|| records(tenant, key.kind()), |name| user(tenant, name));
    Place::new(pk, format!("{RECORD}{}", cut(&lies.name)))
}

pub(super) fn mark(subject: &Subject) -> Place {
    let sk = format!("{MARK}{}", cut(subject.name_column()));
    Place::new(marks(subject.tenant_column()), sk)
}

pub(super) fn entry(tenant: &str, id: u64) -> Place {
    Place::new(audit(tenant, id % STAMP_SHARDS), entry_sk(id))
}

/// The sort key of an entry among its tenant's.
pub(super) fn entry_sk(id: u64) -> String {
    format!("{AUDIT}{id:020}")
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

/// The shard of a key's stamps. A user's keys have one: what is written for a user together, such
/// as a batch of measurements, needs one counter and not most of them.
pub(super) fn stamp_shard(key: &Key) -> u64 {
    hash_of(lies(key).user.unwrap_or_else(|| key.name_column())) % STAMP_SHARDS
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

/// Where an entry about a user is listed: by the instant that its number was counted from.
pub(super) fn user_index(tenant: &str, subject: Option<&str>, id: u64) -> Option<(String, String)> {
    let partition = user_partition(tenant, subject?)?;
    Some((partition, user_entry(id)))
}

/// The partition of the entries about a subject, if it is a user.
pub(super) fn user_partition(tenant: &str, subject: &str) -> Option<String> {
    user_of(subject).map(|name| user(tenant, &escape(name)))
}

/// The place of an entry among those about its user: in the order of their numbers.
pub(super) fn user_entry(id: u64) -> String {
    format!("{AUDIT}{:020}#{id:020}", instant_of(id).0)
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
    if !is_cut(name) {
        return name.to_string();
    }
    cut_at(name, CUT_BYTES)
}

fn cut_at(name: &str, bytes: usize) -> String {
    format!("{}{CUT}{}", &name[..name.floor_char_boundary(bytes)], hash_hex(name.as_bytes()))
}

/// The part of a name that its sort key begins with.
pub(super) fn start_of(name: &str) -> &str {
    if name.len() <= WHOLE_BYTES { name } else { &name[..name.floor_char_boundary(CUT_BYTES)] }
}

/// Whether a name was cut, so that its sort key alone does not tell its order.
pub(super) fn is_cut(name: &str) -> bool {
    name.len() > WHOLE_BYTES
}

/// The record that an item is at: its tenant, kind and user from the partition, its name from the
/// sort key. What was cut is given.
pub(super) fn read_key(
    place: &Place,
    whole: Option<&str>,
    whole_user: Option<&str>,
) -> Option<Key> {
    let (tenant, what) = place.pk.strip_prefix("ORG#")?.split_once('#')?;
    let name = read_name(place.sk.strip_prefix(RECORD)?, whole)?;
    let tenant = tenant.replace("%23", "#");
    let key = match what.strip_prefix(USER) {
        Some(user) => {
            let (scope, rest) = name.split_once(':')?;
            let name = format!("{scope}:{}:{rest}", whole_user.unwrap_or(user));
            Key::from_columns(&tenant, Kind::Request, &name)
        }
        None => {
            let kind = Kind::ALL.into_iter().find(|k| k.as_str().eq_ignore_ascii_case(what))?;
            Key::from_columns(&tenant, kind, name)
        }
    };
    key.ok().filter(|key| record(key) == *place)
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

    fn within(tenant: &str, scope: &str, parts: &[&str], id: &str) -> Key {
        Key::within(Kind::Request, tenant, scope, parts, id).unwrap()
    }

    #[test]
    fn i06_the_tenant_leads_and_no_place_is_two_things() {
        let tenants =
            ["a", "a#REQUEST", "a#AUDIT#1", "a%23", "a%", "A", "ünï", "a#MARK", "a#USER#u"];
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
                listed_user(column, "s", "i").0,
                listed_user(column, "s", "").0,
            ];
            for place in all {
                assert!(place.pk.starts_with("ORG#"), "{place:?}");
                assert!(places.insert(place.clone()), "{place:?} twice");
            }
            assert_eq!(read_key(&record(&key), None, None), Some(key.clone()));
            for user in ["", "u", "U", "u:", "#", "u#IDEMP#", "%23", "%", "REQUEST"] {
                for (parts, id) in
                    [(vec![user], "i"), (vec![user, "i"], "i"), (vec![user, ""], "i")]
                {
                    let key = within(tenant, "s", &parts, id);
                    let place = record(&key);
                    assert!(place.pk.starts_with(&of_tenant(column, USER)), "{place:?}");
                    assert_eq!(read_key(&place, None, None), Some(key), "{place:?}");
                    assert!(places.insert(place.clone()), "{place:?} twice");
                }
            }
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
    fn d05_a_request_within_a_user_lies_in_the_users_partition() {
        let at = |key: &Key| {
            let Place { pk, sk } = record(key);
            format!("{pk} {sk}")
        };
        let key = within("acme", "measurements", &["u:7"], "m#1");
        assert_eq!(at(&key), "ORG#acme#USER#u%3A7 IDEMP#measurements:m#1");
        let key = within("acme", "PUT /c/{id}", &["bob", "9"], "k");
        assert_eq!(at(&key), "ORG#acme#USER#bob IDEMP#PUT /c/{id}:9:k");
        let listed = |key: &Key| {
            let (scope, user) = (key.scope_column(), lies(key).user.unwrap());
            listed_user(key.tenant_column(), scope, user)
        };
        assert_eq!(listed(&key).0, Place::new("ORG#acme#USERS", "USER#PUT /c/{id}:bob:"));
        // The type of a job is no user.
        let key = Key::within(Kind::Job, "acme", "mail", &["welcome"], "7").unwrap();
        assert_eq!(at(&key), "ORG#acme#JOB IDEMP#mail:welcome:7");
        let entry = user_index("acme", Some("user/u:7"), 1_790_000_000_000 << 10 | 5).unwrap();
        assert_eq!(entry.0, "ORG#acme#USER#u%3A7");
        assert_eq!(entry.1, "AUDIT#00000001790000000000#00001832960000000005");
        assert_eq!(user_index("acme", Some("users"), 5), None);
        // Users come in the order of their records, whatever stands in them.
        let users = ["", "-", "b", "b-", "b:", "b0", "b;", "bb", "é", "😀"];
        let mut keys: Vec<Key> = users.map(|user| within("acme", "s", &[user], "i")).into();
        keys.sort();
        assert!(keys.is_sorted_by_key(|key| listed(key).0));
        assert!(keys.iter().all(|key| key.name_column().starts_with(&listed(key).1)));
    }

    #[test]
    fn i18_a_swapped_name_or_user_is_noticed() {
        let (user, other) = ("y".repeat(500), "y".repeat(499) + "z");
        let long = within("a", "s", &[&user, &"w".repeat(400)], &"x".repeat(512));
        let (place, name) = (record(&long), lies(&long).name);
        assert!(place.pk.len() <= 2_048 - 1_536 && place.sk.len() <= 1_024, "{place:?}");
        assert_eq!(read_key(&place, Some(&name), Some(&user)), Some(long.clone()));
        assert_eq!(read_key(&place, Some(&format!("{name}x")), Some(&user)), None);
        assert_eq!(read_key(&place, Some(&name), Some(&other)), None);
        assert_eq!(read_key(&place, Some(&name), None), None);
        assert_eq!(read_key(&place, None, Some(&user)), None);
        let others = within("a", "s", &[&other, &"w".repeat(400)], &"x".repeat(512));
        assert_ne!(record(&others).pk, place.pk);
    }

    #[test]
    fn due_jobs_are_ordered_by_priority_then_instant() {
        let place = |priority, at| due_index(&key("a", "i"), priority, at).1;
        assert!(place(9, 5) < place(9, 6) && place(9, 999) < place(0, 0));
        assert!(place(0, 9) < place(0, 10) && place(0, 10) < place(0, u64::MAX));
    }
}
