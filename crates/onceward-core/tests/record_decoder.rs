//! Stored records of every format version stay readable, and no bytes make the decoder panic.
//!
//! Each file in `corpus/record/` is what a store kept beside the columns of a record that is spelt
//! out below. A file never changes; a new format version gets files of its own. Mutations follow
//! from the file alone, so a failure can be repeated.

#![expect(clippy::unwrap_used, reason = "helpers of a test fail the test")]

use std::path::{Path, PathBuf};

use onceward_core::audit::Trace;
use onceward_core::codec::{decode_rest, encode_rest};
use onceward_core::fingerprint::Fingerprint;
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{OnAbandoned, OnDead, Record, State, Terms};
use onceward_core::stamp::{At, Fence, Rev, Token};

/// Mutations per file.
const ROUNDS: u64 = 4_000;

/// A record with nothing that is not in a column.
fn plain(kind: Kind, id: &str) -> Record {
    Record {
        key: Key::new(kind, "acme", "POST /orders", id).unwrap(),
        state: State::Running,
        fingerprint: Fingerprint::from_stored(1, [7; 32]),
        rev: Rev(41),
        fence: Some(Fence(41)),
        last_fence: Fence(41),
        token: Token(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        attempt: 1,
        terms: Terms::default(),
        owner: None,
        attempt_id: None,
        guard: None,
        priority: 0,
        created_at: At(1_700_000_000_000),
        updated_at: At(1_700_000_000_001),
        due_at: Some(At(1_700_000_030_000)),
        expires_at: None,
        sweep_at: None,
        outcome: None,
        has_payload: false,
        error: None,
        trace: Trace::default(),
    }
}

fn guarded(kind: Kind, id: &str, rule: Rule) -> Record {
    let subject = Subject::new("acme", "orders", "Größe:7").unwrap();
    Record { guard: Some(Guard::new(subject, rule).unwrap()), ..plain(kind, id) }
}

/// The records whose encoded rest is kept, by the name of the file.
fn kept() -> Vec<(&'static str, Record)> {
    let done = Record {
        state: State::Done,
        fence: None,
        due_at: None,
        expires_at: Some(At(1_700_086_400_000)),
        sweep_at: Some(At(1_700_086_400_000)),
        outcome: Some(Fingerprint::from_stored(1, [9; 32])),
        ..plain(Kind::Request, "done")
    };
    let texts = Record {
        owner: Some("gateway-1".into()),
        attempt_id: Some("01HZ".into()),
        error: Some("timed out; naïve 日本".into()),
        trace: Trace {
            actor: Some("bob".into()),
            request_id: Some("".into()),
            correlation_id: Some("c".repeat(300).into()),
        },
        state: State::Failed,
        has_payload: true,
        ..plain(Kind::Job, "texts")
    };
    let terms = Terms {
        lease_ms: 100,
        on_abandoned: OnAbandoned::Hold,
        retain_ms: 315_360_000_000,
        remember_ms: 0,
        max_attempts: 1_000,
        on_dead: OnDead::Block,
    };
    vec![
        ("v1_plain", plain(Kind::Request, "plain")),
        ("v1_done", done),
        ("v1_texts", texts),
        ("v1_terms", Record { terms, ..plain(Kind::Event, "terms") }),
        ("v1_exactly", guarded(Kind::Append, "exactly", Rule::Exactly { expected: 0 })),
        ("v1_next", guarded(Kind::Job, "next", Rule::Next { position: 128 })),
        ("v1_above", guarded(Kind::Event, "above", Rule::Above { position: 1 << 40 })),
        (
            "v1_not_before",
            guarded(Kind::Request, "t", Rule::NotBefore { at: 1_700_000_000, grace_ms: 300 }),
        ),
    ]
}

/// The record as its columns alone give it.
fn columns(record: &Record) -> Record {
    Record {
        terms: Terms::default(),
        owner: None,
        attempt_id: None,
        error: None,
        guard: None,
        trace: Trace::default(),
        ..record.clone()
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/record")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(corpus().join(name)).unwrap()
}

#[test]
fn what_was_stored_is_still_read() {
    for (name, record) in kept() {
        let mut read = columns(&record);
        assert_eq!(decode_rest(&mut read, &file(name)), Ok(()), "{name}");
        assert_eq!(read, record, "{name}");
    }
}

#[test]
fn what_is_stored_is_what_was_stored() {
    for (name, record) in kept() {
        assert_eq!(encode_rest(&record), file(name), "{name}");
    }
}

#[test]
fn every_file_is_looked_at() {
    let mut there: Vec<String> = std::fs::read_dir(corpus())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut looked_at: Vec<_> = kept().into_iter().map(|(name, _)| name.to_string()).collect();
    there.sort_unstable();
    looked_at.sort_unstable();
    assert_eq!(there, looked_at);
}

#[test]
fn i18_no_mutation_is_accepted_or_panics() {
    let files: Vec<Vec<u8>> = kept().iter().map(|(name, _)| file(name)).collect();
    for ((name, record), whole) in kept().iter().zip(&files) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ whole.len() as u64);
        for round in 0..ROUNDS {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(3) {
                mutate(&mut bytes, &mut random, &files);
            }
            let read = decode_rest(&mut columns(record), &bytes);
            assert!(read.is_err() || bytes == *whole, "{name}, round {round}");
        }
    }
}

/// Flips, sets, removes, repeats or splices some bytes.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random, files: &[Vec<u8>]) {
    let at = random.below(bytes.len().max(1));
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at.min(bytes.len()), [0, 1, 0x7f, 0x80, 0xff][random.below(5)]),
        2 => {
            let other = &files[random.below(files.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len())..]);
        }
        _ if bytes.is_empty() => bytes.push(1),
        3 => bytes[at] ^= 1 << random.below(8),
        4 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
        _ => drop(bytes.remove(at)),
    }
}

/// Marsaglia's xorshift: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
