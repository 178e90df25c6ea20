//! Items and what they mean: records, marks, audit entries, to attributes and back.
//!
//! Rule: whatever is read is checked before it is handed out: a record by its seal, an outcome by
//! its digest, a payload and a mark by seals of their own, and each against the place it was found
//! at. `ttl` is for DynamoDB alone, which collects what nobody asks for any more; it lies well past
//! the instants that we judge by.

use onceward_core::audit::{Audited, Entry, Trace};
use onceward_core::codec::{self, CodecError, SEAL_BYTES};
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Mark, Record, State, Terms};
use onceward_core::stamp::{At, Fence, Rev, Token};
use onceward_core::{Bytes, Text};

use super::failure::Failure;
use super::names::{self, Place};
use super::ops::{Item, Op, bytes as blob, number as digits, text as string};

/// Attributes that may lie beside their item.
pub(super) const BODIES: [&str; 4] = ["outcome", "payload", "value", "detail"];
/// The attributes of a record without its bodies: what lists need, and what indexes hold.
pub(super) const RECORD: &[&str] = &[
    "PK",
    "SK",
    "name",
    "user",
    "gone",
    "state",
    "rev",
    "fence",
    "last_fence",
    "token",
    "fingerprint",
    "attempt",
    "priority",
    "created_at",
    "updated_at",
    "due_at",
    "expires_at",
    "sweep_at",
    "outcome_digest",
    "has_payload",
    "rest",
];
/// How long a deleted record's stamp is remembered: longer than a request can be under way that
/// drew its own before.
const GONE_KEPT_MS: u64 = 86_400_000;
/// How long past its last instant a finished record is left to the sweep.
const SWEEP_WITHIN_MS: u64 = 7 * 86_400_000;

/// Sets every attribute of a record but its bodies.
pub(super) fn set_record(op: &mut Op, record: &Record) {
    let lies = names::lies(&record.key);
    op.assign("name", names::is_cut(&lies.name).then(|| string(&lies.name)));
    op.assign("user", lies.user.filter(|user| names::is_cut_user(user)).map(string));
    op.remove("gone");
    op.set("state", string(record.state.as_str()));
    op.set("rev", digits(record.rev.0));
    op.assign("fence", record.fence.map(|fence| digits(fence.0)));
    op.set("last_fence", digits(record.last_fence.0));
    op.set("token", blob(&record.token.0.to_be_bytes()));
    op.set("fingerprint", blob(&digest_bytes(&record.fingerprint)));
    op.set("attempt", digits(record.attempt.into()));
    op.set("priority", digits(record.priority.into()));
    op.set("created_at", digits(record.created_at.0));
    op.set("updated_at", digits(record.updated_at.0));
    op.assign("due_at", record.due_at.map(|at| digits(at.0)));
    op.assign("expires_at", record.expires_at.map(|at| digits(at.0)));
    op.assign("sweep_at", record.sweep_at.map(|at| digits(at.0)));
    op.assign("outcome_digest", record.outcome.map(|digest| blob(&digest_bytes(&digest))));
    op.assign("has_payload", record.has_payload.then(|| digits(1)));
    op.set("rest", blob(&codec::encode_rest(record)));
    set_indexes(op, record);
    op.assign("ttl", ttl(record).map(digits));
}

fn set_indexes(op: &mut Op, record: &Record) {
    let takeable = matches!(record.state, State::Pending | State::Failed | State::Running);
    let due = record.due_at.filter(|_| takeable && record.key.kind() == Kind::Job);
    let due = due.map(|at| names::due_index(&record.key, record.priority, at.0));
    let sweep = record.sweep_at.map(|at| names::sweep_index(&record.key, at.0));
    for (name, index) in [("due", due), ("sweep", sweep)] {
        let (partition, place) = index.unzip();
        op.assign(&format!("{name}_pk"), partition.as_deref().map(string));
        op.assign(&format!("{name}_sk"), place.as_deref().map(string));
    }
}

/// When DynamoDB may collect a record. Only of finished ones: a record that could still be held or
/// run again is never forgotten without a decision.
fn ttl(record: &Record) -> Option<u64> {
    let at = record.sweep_at.filter(|_| matches!(record.state, State::Done | State::Expired))?;
    Some(at.plus(record.terms.remember_ms).plus(SWEEP_WITHIN_MS).0.div_ceil(1_000))
}

/// Leaves nothing of a record but its stamp, which every later one must be above.
pub(super) fn set_gone(op: &mut Op, now: At) {
    op.set("gone", digits(1));
    op.set("ttl", digits(now.plus(GONE_KEPT_MS).0.div_ceil(1_000)));
    let kept = ["PK", "SK", "gone", "rev", "name", "user"];
    for name in RECORD.iter().filter(|name| !kept.contains(name)) {
        op.remove(name);
    }
    for name in ["due_pk", "due_sk", "sweep_pk", "sweep_sk", "payload_seal"] {
        op.remove(name);
    }
    for name in ["outcome", "payload"] {
        op.remove(name);
        op.remove(&format!("{name}_at"));
    }
}

/// Reads a record whose key is known, and checks its seal. None: it was deleted.
pub(super) fn read_record(item: &Item, key: Key) -> Result<Option<Record>, Failure> {
    if item.contains_key("gone") {
        return Ok(None);
    }
    let state = required(text(item, "state")?, "state")?;
    let mut record = Record {
        key,
        state: State::parse(state).ok_or(CodecError("state"))?,
        rev: Rev(required(number(item, "rev")?, "rev")?),
        fence: number(item, "fence")?.map(Fence),
        last_fence: Fence(required(number(item, "last_fence")?, "fence")?),
        token: Token(u128::from_be_bytes(exact(item, "token")?)),
        fingerprint: required(digest(item, "fingerprint")?, "fingerprint")?,
        attempt: small(number(item, "attempt")?, "attempt")?,
        priority: small(number(item, "priority")?, "priority")?,
        created_at: At(required(number(item, "created_at")?, "instants")?),
        updated_at: At(required(number(item, "updated_at")?, "instants")?),
        due_at: number(item, "due_at")?.map(At),
        expires_at: number(item, "expires_at")?.map(At),
        sweep_at: number(item, "sweep_at")?.map(At),
        outcome: digest(item, "outcome_digest")?,
        has_payload: number(item, "has_payload")?.is_some(),
        terms: Terms::default(),
        owner: None,
        attempt_id: None,
        guard: None,
        error: None,
        trace: Trace::default(),
    };
    codec::decode_rest(&mut record, required(bytes(item, "rest")?, "rest")?)?;
    Ok(Some(record))
}

/// Reads a listed record with its key.
pub(super) fn read_listed(item: &Item) -> Result<Option<Record>, Failure> {
    let (name, user) = (text(item, "name")?, text(item, "user")?);
    let key = names::read_key(&place(item)?, name, user).ok_or(CodecError("key"))?;
    read_record(item, key)
}

/// Checks an outcome against the record that it belongs to.
pub(super) fn check_outcome(record: &Record, body: Option<&Bytes>) -> Result<(), Failure> {
    let whole = match (&record.outcome, body) {
        (Some(digest), Some(body)) => fingerprint_bytes(body).hash() == digest.hash(),
        (Some(_), None) => false,
        (None, _) => true,
    };
    if whole {
        return Ok(());
    }
    let key = record.key.hash_hex();
    Err(Failure::corrupt(format!("the outcome of {key} is not the one that was recorded")))
}

/// The seal of a payload: it belongs to its key.
pub(super) fn payload_seal(key: &Key, body: &[u8]) -> [u8; SEAL_BYTES] {
    let kind = key.kind().as_str().as_bytes();
    let (tenant, name) = (key.tenant_column().as_bytes(), key.name_column().as_bytes());
    codec::seal_parts(&[tenant, kind, name, body])
}

/// Checks a payload's seal.
pub(super) fn check_payload(item: &Item, key: &Key, body: &[u8]) -> Result<(), Failure> {
    match bytes(item, "payload_seal")? {
        Some(seal) if seal == payload_seal(key, body) => Ok(()),
        _ => Err(CodecError("payload").into()),
    }
}

/// Sets every attribute of a mark but its value.
pub(super) fn set_mark(op: &mut Op, subject: &Subject, mark: &Mark) {
    let name = subject.name_column();
    op.assign("name", names::is_cut(name).then(|| string(name)));
    op.set("position", digits(mark.position));
    op.set("updated_at", digits(mark.updated_at.0));
    op.set("seal", blob(&mark_seal(subject, mark)));
}

/// The seal of a mark: it belongs to its subject.
pub(super) fn mark_seal(subject: &Subject, mark: &Mark) -> [u8; SEAL_BYTES] {
    codec::seal_parts(&[
        subject.tenant_column().as_bytes(),
        subject.name_column().as_bytes(),
        &mark.position.to_be_bytes(),
        &mark.updated_at.0.to_be_bytes(),
        &[u8::from(mark.value.is_some())],
        mark.value.as_deref().unwrap_or_default(),
    ])
}

/// Puts a mark together from its item and its value, and checks its seal.
pub(super) fn read_mark(
    item: &Item,
    subject: &Subject,
    value: Option<Bytes>,
) -> Result<Mark, Failure> {
    let position = required(number(item, "position")?, "position")?;
    let updated_at = At(required(number(item, "updated_at")?, "instants")?);
    let mark = Mark { position, value, updated_at };
    match bytes(item, "seal")? {
        Some(seal) if seal == mark_seal(subject, &mark) => Ok(mark),
        _ => Err(Failure::corrupt(format!("the mark {subject} is not what was written"))),
    }
}

/// An audit entry as an item, without its detail.
pub(super) fn entry_item(id: u64, at: At, entry: &Entry) -> Item {
    let (partition, place) = names::audit_index(&entry.tenant, id);
    let (user, among) = names::user_index(&entry.tenant, entry.subject.as_deref(), id).unzip();
    let texts = [
        ("audit_pk", Some(partition.as_str())),
        ("audit_sk", Some(place.as_str())),
        ("user_pk", user.as_deref()),
        ("user_sk", among.as_deref()),
        ("tenant", Some(&*entry.tenant)),
        ("action", Some(&*entry.action)),
        ("subject", entry.subject.as_deref()),
        ("key_hash", entry.key_hash.as_deref()),
        ("payload_hash", entry.payload_hash.as_deref()),
        ("actor", entry.trace.actor.as_deref()),
        ("request_id", entry.trace.request_id.as_deref()),
        ("correlation_id", entry.trace.correlation_id.as_deref()),
    ];
    let numbers = [
        ("id", Some(id)),
        ("at", Some(at.0)),
        ("version_before", entry.version_before),
        ("version_after", entry.version_after),
        ("fence", entry.fence),
    ];
    let texts = texts.into_iter().filter_map(|(name, value)| Some((name, string(value?))));
    let numbers = numbers.into_iter().filter_map(|(name, value)| Some((name, digits(value?))));
    texts.chain(numbers).map(|(name, value)| (name.to_string(), value)).collect()
}

/// Reads an audit entry, without its detail.
pub(super) fn read_entry(item: &Item) -> Result<Audited, Failure> {
    let shared = |name: &str| Ok::<_, Failure>(text(item, name)?.map(Text::from));
    let entry = Entry {
        tenant: required(shared("tenant")?, "tenant")?,
        action: required(shared("action")?, "action")?,
        subject: shared("subject")?,
        key_hash: shared("key_hash")?,
        payload_hash: shared("payload_hash")?,
        version_before: number(item, "version_before")?,
        version_after: number(item, "version_after")?,
        fence: number(item, "fence")?,
        trace: Trace {
            actor: shared("actor")?,
            request_id: shared("request_id")?,
            correlation_id: shared("correlation_id")?,
        },
        detail: None,
    };
    let id = required(number(item, "id")?, "number")?;
    if place(item)? != names::entry(&entry.tenant, id) {
        return Err(Failure::corrupt("an audit entry is not where it was written"));
    }
    Ok(Audited { id, at: At(required(number(item, "at")?, "instants")?), entry })
}

/// The place of an item.
pub(super) fn place(item: &Item) -> Result<Place, Failure> {
    let part = |name| Ok::<_, Failure>(required(text(item, name)?, "place")?.to_string());
    Ok(Place { pk: part("PK")?, sk: part("SK")? })
}

/// A text, or none.
pub(super) fn text<'a>(item: &'a Item, name: &str) -> Result<Option<&'a str>, Failure> {
    let read = |value: &'a aws_sdk_dynamodb::types::AttributeValue| value.as_s().ok();
    let Some(value) = item.get(name) else { return Ok(None) };
    read(value).map(|text| Some(text.as_str())).ok_or_else(|| foreign(name))
}

/// A number, or none.
pub(super) fn number(item: &Item, name: &str) -> Result<Option<u64>, Failure> {
    let Some(value) = item.get(name) else { return Ok(None) };
    let digits = value.as_n().map_err(|_| foreign(name))?;
    digits.parse().map(Some).map_err(|_| foreign(name))
}

/// Bytes, or none.
pub(super) fn bytes<'a>(item: &'a Item, name: &str) -> Result<Option<&'a [u8]>, Failure> {
    let Some(value) = item.get(name) else { return Ok(None) };
    value.as_b().map(|blob| Some(blob.as_ref())).map_err(|_| foreign(name))
}

fn foreign(name: &str) -> Failure {
    Failure::corrupt(format!("the attribute {name} is of a kind that we never write"))
}

fn required<T>(value: Option<T>, what: &'static str) -> Result<T, Failure> {
    value.ok_or_else(|| CodecError(what).into())
}

fn small<T: TryFrom<u64>>(value: Option<u64>, what: &'static str) -> Result<T, Failure> {
    T::try_from(required(value, what)?).map_err(|_| CodecError(what).into())
}

fn exact<const N: usize>(item: &Item, name: &'static str) -> Result<[u8; N], Failure> {
    let bytes = required(bytes(item, name)?, name)?;
    bytes.try_into().map_err(|_| CodecError(name).into())
}

/// The version of the rules and the hash.
fn digest_bytes(digest: &Fingerprint) -> [u8; 33] {
    let mut bytes = [digest.rules(); 33];
    bytes[1..].copy_from_slice(digest.hash());
    bytes
}

fn digest(item: &Item, name: &'static str) -> Result<Option<Fingerprint>, Failure> {
    let Some(bytes) = bytes(item, name)? else { return Ok(None) };
    let (rules, hash) = bytes.split_first().ok_or(CodecError("digest"))?;
    let hash = hash.try_into().map_err(|_| CodecError("digest"))?;
    Ok(Some(Fingerprint::from_stored(*rules, hash)))
}
