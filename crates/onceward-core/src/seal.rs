//! Seals: a keyed hash chain per tenant over its audit entries, in segments.
//!
//! A segment names each of its entries by place and digest and carries the chain's hash after the
//! last of them; the head says where the chain begins (the anchor, behind which entries were
//! dropped) and where it ends. Whoever does not have the key can't make either. What a chain can't
//! show: that its end was taken back together with the entries and the head, to a state that was
//! once true. Pure: who reads and writes seals, and when, is decided elsewhere.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::audit::Audited;
use crate::stamp::At;

/// Entries of one segment at most: what one bad seal leaves in the dark, and what is dropped at
/// once when its time is over.
pub const SEGMENT_MAX: usize = 256;
/// Longest time between the first and the last entry of a segment: what slow tenants wait beyond
/// their retention.
pub const SEGMENT_SPAN_MS: u64 = 86_400_000;
/// Bytes of an entry's digest that are kept.
const DIGEST_BYTES: usize = 8;
const VERSION: u8 = 1;

/// Where an entry stands in the order in which entries settle: what comes later stands behind.
///
/// The second number is the entry's own; the first is whatever a store needs beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place(pub u64, pub u64);

/// An entry whose place can't change any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Where it stands.
    pub place: Place,
    /// The entry.
    pub audited: Audited,
}

type Hash = [u8; 32];

/// The key of the chain.
#[derive(Clone)]
pub struct SealKey(Hash);

impl SealKey {
    /// A key from a secret that all processes on one store share.
    #[must_use]
    pub fn new(secret: Hash) -> Self {
        Self(secret)
    }

    /// HMAC-SHA256 over parts, each with its length, under a name of its own.
    fn hash(&self, what: &str, parts: &[&[u8]]) -> Hash {
        let pad = |with: u8| {
            let mut block = [with; 64];
            block.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let mut inner = Sha256::new();
        inner.update(pad(0x36));
        for part in [what.as_bytes()].iter().chain(parts) {
            inner.update((part.len() as u64).to_be_bytes());
            inner.update(part);
        }
        let mut outer = Sha256::new();
        outer.update(pad(0x5c));
        outer.update(inner.finalize());
        outer.finalize().into()
    }

    /// The digest of an entry: of all that it says, but not of its place.
    #[must_use]
    pub fn digest(&self, audited: &Audited) -> [u8; DIGEST_BYTES] {
        let entry = &audited.entry;
        let text = |text: Option<&str>| match text {
            Some(text) => [&[1], text.as_bytes()].concat(),
            None => vec![0],
        };
        let number = |number: Option<u64>| match number {
            Some(number) => [&[1][..], &number.to_be_bytes()].concat(),
            None => vec![0],
        };
        let parts = [
            audited.at.0.to_be_bytes().to_vec(),
            text(Some(&entry.tenant)),
            text(Some(&entry.action)),
            text(entry.subject.as_deref()),
            text(entry.key_hash.as_deref()),
            text(entry.payload_hash.as_deref()),
            number(entry.version_before),
            number(entry.version_after),
            number(entry.fence),
            text(entry.trace.actor.as_deref()),
            text(entry.trace.request_id.as_deref()),
            text(entry.trace.correlation_id.as_deref()),
            text(entry.detail.as_deref()),
        ];
        let hash = self.hash("entry", &parts.each_ref().map(Vec::as_slice));
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&hash[..DIGEST_BYTES]);
        digest
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// One entry in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// Where the entry stands.
    pub place: Place,
    /// The digest of what it says.
    pub digest: [u8; DIGEST_BYTES],
}

/// A point of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The segment that it is the end of; 0 before the first.
    pub segment: u64,
    /// The place of the entry that it is behind.
    pub place: Place,
    /// Entries up to there, dropped ones too.
    pub count: u64,
    /// The chain's hash there.
    pub hash: Hash,
}

/// Where a tenant's chain begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Behind what was dropped.
    pub anchor: Link,
    /// Behind the last entry that is sealed.
    pub last: Link,
}

/// A run of entries under one seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// 1 for the first.
    pub number: u64,
    /// The chain's hash before it.
    pub before: Hash,
    /// Its entries, in their order.
    pub lines: Vec<Line>,
    /// The earliest instant among them.
    pub earliest: At,
    /// The latest instant among them: when all of it is past its time.
    pub latest: At,
    /// The chain's hash behind its last entry.
    pub after: Hash,
}

/// What is stored is no seal of this tenant, or was made under another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the seal was changed, or made under another key")]
pub struct BrokenSeal;

impl Head {
    /// The head of a chain without entries.
    #[must_use]
    pub fn new(key: &SealKey, tenant: &str) -> Self {
        let hash = key.hash("chain", &[tenant.as_bytes()]);
        let start = Link { segment: 0, place: Place::default(), count: 0, hash };
        Self { anchor: start, last: start }
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self, key: &SealKey, tenant: &str) -> Vec<u8> {
        let mut out = vec![VERSION];
        for link in [&self.anchor, &self.last] {
            let numbers = [link.segment, link.place.0, link.place.1, link.count];
            numbers.iter().for_each(|number| out.extend(number.to_be_bytes()));
            out.extend(link.hash);
        }
        sealed(out, "head", key, tenant)
    }

    /// Reads [`Head::encode`] back.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn decode(bytes: &[u8], key: &SealKey, tenant: &str) -> Result<Self, BrokenSeal> {
        let mut rest = opened(bytes, "head", key, tenant)?;
        let mut link = || {
            let mut number = || take::<8>(&mut rest).map(u64::from_be_bytes);
            let (segment, first, second) = (number()?, number()?, number()?);
            let count = number()?;
            let hash = take(&mut rest)?;
            Ok(Link { segment, place: Place(first, second), count, hash })
        };
        let head = Self { anchor: link()?, last: link()? };
        if rest.is_empty() { Ok(head) } else { Err(BrokenSeal) }
    }
}

impl Segment {
    /// The segment that follows a link, without entries.
    #[must_use]
    pub fn following(key: &SealKey, link: &Link) -> Self {
        let number = link.segment + 1;
        Self {
            number,
            before: link.hash,
            lines: Vec::new(),
            earliest: At(u64::MAX),
            latest: At(0),
            after: start(key, &link.hash, number),
        }
    }

    /// Links an entry.
    pub fn append(&mut self, key: &SealKey, settled: &Settled) {
        let line = Line { place: settled.place, digest: key.digest(&settled.audited) };
        self.after = step(key, &self.after, &line);
        self.earliest = self.earliest.min(settled.audited.at);
        self.latest = self.latest.max(settled.audited.at);
        self.lines.push(line);
    }

    /// Whether an entry of this instant fits into it.
    #[must_use]
    pub fn takes(&self, at: At) -> bool {
        self.lines.len() < SEGMENT_MAX && at.since(self.earliest) < SEGMENT_SPAN_MS
    }

    /// The chain's hash before each of its lines, and behind the last: recomputed.
    pub fn hashes<'a>(&'a self, key: &'a SealKey) -> impl Iterator<Item = Hash> + 'a {
        let mut hash = start(key, &self.before, self.number);
        std::iter::once(hash).chain(self.lines.iter().map(move |line| {
            hash = step(key, &hash, line);
            hash
        }))
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self, key: &SealKey, tenant: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.lines.len() * 24);
        out.push(VERSION);
        out.extend(self.number.to_be_bytes());
        out.extend(self.earliest.0.to_be_bytes());
        out.extend(self.latest.0.to_be_bytes());
        out.extend(self.before);
        out.extend(self.after);
        for line in &self.lines {
            out.extend(line.place.0.to_be_bytes());
            out.extend(line.place.1.to_be_bytes());
            out.extend(line.digest);
        }
        sealed(out, "segment", key, tenant)
    }

    /// Reads [`Segment::encode`] back.
    ///
    /// # Errors
    /// When it is anything else.
    pub fn decode(bytes: &[u8], key: &SealKey, tenant: &str) -> Result<Self, BrokenSeal> {
        let mut rest = opened(bytes, "segment", key, tenant)?;
        let number = u64::from_be_bytes(take(&mut rest)?);
        let earliest = At(u64::from_be_bytes(take(&mut rest)?));
        let latest = At(u64::from_be_bytes(take(&mut rest)?));
        let (before, after) = (take(&mut rest)?, take(&mut rest)?);
        let mut lines = Vec::with_capacity(rest.len() / 24);
        while !rest.is_empty() {
            let mut number = || take::<8>(&mut rest).map(u64::from_be_bytes);
            let place = Place(number()?, number()?);
            lines.push(Line { place, digest: take(&mut rest)? });
        }
        Ok(Self { number, before, lines, earliest, latest, after })
    }
}

/// What is wrong with an entry or a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    /// It says something else than when it was sealed.
    Changed,
    /// It was sealed and is not there.
    Missing,
    /// It is there and was never sealed, though later ones were.
    Inserted,
    /// It stands where another one was sealed.
    Moved,
    /// The seal itself was changed, removed or taken back.
    Seal,
}

impl Wrong {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Missing => "missing",
            Self::Inserted => "inserted",
            Self::Moved => "moved",
            Self::Seal => "seal",
        }
    }
}

/// Judges the entry that was found where a segment has this line. `Err` names the place of what is
/// wrong.
///
/// # Errors
/// When the entry is not the one that was sealed.
pub fn judge(
    key: &SealKey,
    segment: &Segment,
    line: &Line,
    found: Option<&Settled>,
) -> Result<(), (Wrong, Place)> {
    let Some(found) = found else { return Err((Wrong::Missing, line.place)) };
    if found.place > line.place {
        return Err((Wrong::Missing, line.place));
    }
    if found.place < line.place {
        return Err((Wrong::Inserted, found.place));
    }
    let digest = key.digest(&found.audited);
    if digest == line.digest {
        return Ok(());
    }
    let elsewhere = segment.lines.iter().any(|other| other.digest == digest);
    Err((if elsewhere { Wrong::Moved } else { Wrong::Changed }, line.place))
}

fn start(key: &SealKey, before: &Hash, number: u64) -> Hash {
    key.hash("segment", &[before, &number.to_be_bytes()])
}

fn step(key: &SealKey, hash: &Hash, line: &Line) -> Hash {
    let Place(first, second) = line.place;
    key.hash("line", &[hash, &first.to_be_bytes(), &second.to_be_bytes(), &line.digest])
}

fn sealed(mut out: Vec<u8>, what: &str, key: &SealKey, tenant: &str) -> Vec<u8> {
    let seal = key.hash(what, &[b"stored", tenant.as_bytes(), &out]);
    out.extend(seal);
    out
}

fn opened<'a>(
    bytes: &'a [u8],
    what: &str,
    key: &SealKey,
    tenant: &str,
) -> Result<&'a [u8], BrokenSeal> {
    let (body, seal) = bytes.split_last_chunk::<32>().ok_or(BrokenSeal)?;
    if key.hash(what, &[b"stored", tenant.as_bytes(), body]) != *seal {
        return Err(BrokenSeal);
    }
    match body.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        _ => Err(BrokenSeal),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], BrokenSeal> {
    let (taken, left) = rest.split_first_chunk::<N>().ok_or(BrokenSeal)?;
    *rest = left;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::Entry;

    fn settled(id: u64, action: &str) -> Settled {
        let audited = Audited { id, at: At(id * 10), entry: Entry::new("acme", action) };
        Settled { place: Place(0, id), audited }
    }

    fn key() -> SealKey {
        SealKey::new([7; 32])
    }

    fn segment() -> Segment {
        let mut segment = Segment::following(&key(), &Head::new(&key(), "acme").last);
        for (id, action) in [(1, "a"), (2, "b"), (5, "c")] {
            segment.append(&key(), &settled(id, action));
        }
        segment
    }

    #[test]
    fn seals_come_back_and_only_under_their_key_and_tenant() {
        let segment = segment();
        let bytes = segment.encode(&key(), "acme");
        assert_eq!(Segment::decode(&bytes, &key(), "acme"), Ok(segment.clone()));
        assert_eq!(segment.hashes(&key()).last(), Some(segment.after));
        let empty = Head::new(&key(), "acme");
        let head = Head { last: Link { segment: 1, ..empty.last }, ..empty };
        let stored = head.encode(&key(), "acme");
        assert_eq!(Head::decode(&stored, &key(), "acme"), Ok(head));
        let other = SealKey::new([8; 32]);
        assert_eq!(Segment::decode(&bytes, &other, "acme"), Err(BrokenSeal));
        assert_eq!(Segment::decode(&bytes, &key(), "beta"), Err(BrokenSeal));
        assert_eq!(Head::decode(&bytes, &key(), "acme"), Err(BrokenSeal), "a segment is no head");
        for at in 0..stored.len() {
            let mut bad = stored.clone();
            bad[at] ^= 1;
            assert_eq!(Head::decode(&bad, &key(), "acme"), Err(BrokenSeal), "byte {at}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(Segment::decode(&bytes[..cut], &key(), "acme"), Err(BrokenSeal));
        }
    }

    #[test]
    fn each_wrong_entry_is_named() {
        let segment = segment();
        let line = segment.lines[1];
        let judged = |found: Option<Settled>| judge(&key(), &segment, &line, found.as_ref());
        assert_eq!(judged(Some(settled(2, "b"))), Ok(()));
        assert_eq!(judged(None), Err((Wrong::Missing, Place(0, 2))));
        assert_eq!(judged(Some(settled(5, "c"))), Err((Wrong::Missing, Place(0, 2))));
        assert_eq!(judged(Some(settled(1, "x"))), Err((Wrong::Inserted, Place(0, 1))));
        assert_eq!(judged(Some(settled(2, "x"))), Err((Wrong::Changed, Place(0, 2))));
        let mut swapped = settled(5, "c");
        swapped.place = Place(0, 2);
        assert_eq!(judged(Some(swapped)), Err((Wrong::Moved, Place(0, 2))));
    }

    #[test]
    fn a_digest_covers_every_field() {
        let plain = settled(1, "a").audited;
        let digest = |change: fn(&mut Audited)| {
            let mut changed = plain.clone();
            change(&mut changed);
            key().digest(&changed)
        };
        let changes: [fn(&mut Audited); 13] = [
            |it| it.at = At(11),
            |it| it.entry.tenant = "b".into(),
            |it| it.entry.action = "b".into(),
            |it| it.entry.subject = Some("".into()),
            |it| it.entry.key_hash = Some("".into()),
            |it| it.entry.payload_hash = Some("".into()),
            |it| it.entry.version_before = Some(0),
            |it| it.entry.version_after = Some(0),
            |it| it.entry.fence = Some(0),
            |it| it.entry.trace.actor = Some("".into()),
            |it| it.entry.trace.request_id = Some("".into()),
            |it| it.entry.trace.correlation_id = Some("".into()),
            |it| it.entry.detail = Some("".into()),
        ];
        let mut seen = vec![key().digest(&plain)];
        for change in changes {
            let digest = digest(change);
            assert!(!seen.contains(&digest), "{} changes before it", seen.len());
            seen.push(digest);
        }
    }

    #[test]
    fn the_hash_is_hmac_sha256() {
        let key = SealKey::new([0x0b; 32]);
        let one = key.hash("a", &[b"b"]);
        // From another implementation: HMAC over each part behind its length in eight bytes.
        let must_be = "67e2452d9397370a9842335ecd8c7e5099fa6c9859b0ab5f48110e9daffdf389";
        let hex: String = one.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, must_be);
        assert_ne!(one, key.hash("ab", &[b""]), "lengths keep parts apart");
        assert_ne!(one, SealKey::new([0x0c; 32]).hash("a", &[b"b"]));
    }
}
