//! Runs every parser over a kept corpus and over deterministic mutations of it.
//!
//! Rule: no input panics, and what a parser accepts keeps its invariants. An input that ever found
//! something stays in `corpus/`. `ONCEWARD_TEST_FUZZ_ROUNDS` sets the mutations per file for a
//! longer run; each failure names the file and the mutation, which reproduce it.
//!
//! Not responsible for coverage-guided search: this needs no nightly compiler and runs everywhere.

#![expect(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::fs;
use std::path::Path;

use onceward_core::canonical::{Arrays, CanonicalError, MAX_BODY_BYTES};
use onceward_core::content_type::ContentType;
use onceward_core::diff::{MAX_DIFF_CHANGES, default_mask, diff_full, differing_pointers};
use onceward_core::fingerprint::{Body, CanonicalBody, FingerprintPolicy, canonical_bytes};
use onceward_core::header_key::parse_header_key;
use onceward_core::payload::{KeepPayload, KeptPayload, MAX_KEPT_LEAVES, Payload};

const DEFAULT_ROUNDS: u64 = 400;
const KEY: [u8; 32] = [5; 32];

/// Marsaglia's xorshift: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// Bytes and pieces that steer parsers into their corners.
const PIECES: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud83d",
    b"\\ude00",
    b"\\u0061",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"-",
    b"0",
    b"1e400",
    b"1e-400",
    b"e",
    b".",
    b"+",
    b"00000000000000000000",
    b"\"a\":1,",
    b"null",
    b" ",
    b"\n",
    b"\0",
    b"\x7f",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\xee\x80\x80",
    b"~",
    b"/",
    b";",
    b"\x01",
    b"\x02",
    b"\x01\x01",
    b"9007199254740993",
    b".5",
    b"\\\"",
    b"\r\n",
    b"\r\n--b",
    b"--b--",
    b"%00",
    b"%",
    b"+",
    b"&",
    b"=",
    b"\r\nContent-Disposition: form-data; name=a",
    b"; name=\"b\"",
];

fn mutate(seed: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() + 1);
        let end = (at + random.below(9)).min(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
            3 => drop(bytes.splice(at..end, PIECES[random.below(PIECES.len())].iter().copied())),
            4 => {
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, copy);
            }
            5 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len() + 1);
                let until = (from + random.below(40)).min(other.len());
                bytes.splice(at..at, other[from..until].iter().copied());
            }
            6 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
        }
    }
    bytes
}

/// Runs `test` on each file of a folder and on mutations of it.
fn run(folder: &str, test: fn(&[u8], &[u8])) {
    let rounds = std::env::var("ONCEWARD_TEST_FUZZ_ROUNDS").map_or(DEFAULT_ROUNDS, |text| {
        text.parse().expect("ONCEWARD_TEST_FUZZ_ROUNDS is a number")
    });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(folder);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 10, "{} has lost its files", folder.display());
    let corpus: Vec<Vec<u8>> =
        paths.iter().map(|path| fs::read(path).expect("a readable file")).collect();
    for (path, seed) in paths.iter().zip(&corpus) {
        test(seed, seed);
        let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ seed.len() as u64);
        for round in 0..rounds {
            let input = mutate(seed, &corpus, &mut random);
            let outcome = std::panic::catch_unwind(|| test(&input, seed));
            if outcome.is_err() {
                panic!("{} mutation {round}: {}", path.display(), input.escape_ascii());
            }
        }
    }
}

fn policies() -> [FingerprintPolicy; 3] {
    let ignoring = FingerprintPolicy {
        ignore: vec!["a".to_owned()],
        arrays: Arrays::Ordered,
        body: Body::Json,
    };
    [FingerprintPolicy::default(), FingerprintPolicy::volatile(), ignoring]
}

fn test_canonical(input: &[u8], neighbour: &[u8]) {
    let theirs = serde_json::from_slice::<serde_json::Value>(input);
    for policy in policies() {
        match canonical_bytes(input, &policy) {
            Ok(canonical) => {
                assert!(canonical.len() <= MAX_BODY_BYTES);
                let again = canonical_bytes(&canonical, &policy);
                assert_eq!(again.as_ref(), Ok(&canonical), "not its own canonical form");
                // serde_json stops one level earlier than we do.
                let agrees = theirs.as_ref().map_or_else(is_depth, |_| true);
                assert!(agrees, "serde_json refuses it");
                test_diffs(&canonical, neighbour, &policy);
            }
            Err(error @ CanonicalError::NotJson { .. }) => {
                assert!(error.offset() <= input.len());
                assert!(theirs.is_err(), "serde_json accepts it");
            }
            Err(error) => assert!(error.offset() <= input.len()),
        }
    }
}

fn is_depth(error: &serde_json::Error) -> bool {
    error.to_string().contains("recursion limit")
}

fn test_diffs(new: &[u8], neighbour: &[u8], policy: &FingerprintPolicy) {
    let Ok(old) = canonical_bytes(neighbour, policy) else { return };
    let diff = diff_full(&old, new, policy.arrays, &default_mask()).expect("both are JSON");
    assert_eq!(diff.changes.is_empty() && !diff.truncated, old == new);
    assert!(diff.changes.len() <= MAX_DIFF_CHANGES);
    let new = CanonicalBody::Json(new.to_vec());
    let old_body = CanonicalBody::Json(old.clone());
    for keep in [KeepPayload::Hashed, KeepPayload::Full] {
        let kept = KeptPayload::keep(&old_body, keep, &KEY).expect("it is JSON");
        assert_eq!(KeptPayload::decode(&kept.encode()).as_ref(), Ok(&kept));
        let found = differing_pointers(&kept, &new, policy.arrays, &KEY)
            .expect("both are JSON")
            .expect("something was kept");
        assert!(found.pointers.len() <= MAX_DIFF_CHANGES);
        if !found.truncated {
            assert_eq!(found.pointers.is_empty(), old == new.bytes());
        }
    }
}

fn test_header_key(input: &[u8], _: &[u8]) {
    if let Ok(key) = parse_header_key(input) {
        assert!((1..=128).contains(&key.len()));
        assert!(key.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
        let quoted = format!(" \"{}\" ", key.replace('\\', "\\\\").replace('"', "\\\""));
        assert_eq!(parse_header_key(quoted.as_bytes()).as_deref(), Ok(&*key));
    }
}

fn test_payload(input: &[u8], _: &[u8]) {
    if let Ok(kept) = KeptPayload::decode(input) {
        assert_eq!(kept.encode(), input, "two encodings of one payload");
        if let KeptPayload::Hashed(leaves) = &kept {
            assert!(leaves.leaves().len() <= MAX_KEPT_LEAVES);
        }
        // Whatever a store hands back can be compared, or is refused, without a panic.
        for new in [CanonicalBody::Bytes(input), CanonicalBody::Json(b"{\"a\":[1]}".to_vec())] {
            let found = differing_pointers(&kept, &new, Arrays::Unordered, &KEY);
            assert!(found.is_ok() || matches!(kept, KeptPayload::Full(_)));
        }
    }
}

/// A content type on a line of its own, then a body.
fn test_form(input: &[u8], neighbour: &[u8]) {
    let read = |input| {
        let mut halves = <[u8]>::splitn(input, 2, |byte| *byte == b'\n');
        let media_type = ContentType::parse(halves.next().unwrap_or_default());
        let body = halves.next().unwrap_or_default();
        let policy = FingerprintPolicy::default();
        CanonicalBody::of_type(body, &media_type, &policy)
    };
    let (Ok(new), Ok(old)) = (read(input), read(neighbour)) else { return };
    if let CanonicalBody::Form(json) | CanonicalBody::Multipart(json) = &new {
        let again = canonical_bytes(json, &FingerprintPolicy::default());
        assert_eq!(again.as_ref(), Ok(json), "not its own canonical form");
    }
    for keep in [KeepPayload::Hashed, KeepPayload::Full] {
        let query = std::str::from_utf8(neighbour).unwrap_or_default();
        let kept = KeptPayload::keep(Payload { body: &old, query }, keep, &KEY).expect("readable");
        assert_eq!(KeptPayload::decode(&kept.encode()).as_ref(), Ok(&kept));
        let query = std::str::from_utf8(input).unwrap_or_default();
        let payload = Payload { body: &new, query };
        let found = differing_pointers(&kept, payload, Arrays::Ordered, &KEY).expect("readable");
        let found = found.expect("something was kept");
        assert!(found.pointers.len() <= MAX_DIFF_CHANGES + 1);
        assert!(!onceward_core::diff::differs_text(&found.pointers).is_empty());
        if !found.truncated && std::mem::discriminant(&old) == std::mem::discriminant(&new) {
            let same_query = std::str::from_utf8(neighbour).unwrap_or_default() == query;
            assert_eq!(found.pointers.is_empty(), old.bytes() == new.bytes() && same_query);
        }
    }
}

#[test]
fn a07_forms_survive_their_corpus() {
    run("form", test_form);
}

#[test]
fn a07_canonical_json_survives_its_corpus() {
    run("canonical", test_canonical);
}

#[test]
fn a05_header_keys_survive_their_corpus() {
    run("header_key", test_header_key);
}

#[test]
fn kept_payloads_survive_their_corpus() {
    run("payload", test_payload);
}
