//! The embedded store when its process is killed or its disk is full.
//!
//! Each test starts itself again as a child process that commits and says on its standard output
//! what was acknowledged. Then the parent opens the file and looks.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail the test")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::support::*;
use onceward::core::audit::{Entry, Trace};
use onceward::core::batch::{Answer, Batch, Condition, Write};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::record::{Body, FenceWrite, State, Time};
use onceward::core::stamp::Token;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use onceward::store::{AuditFilter, Items, List, Store, StoreError};

/// Batches that share a commit.
const GROUP: u64 = 8;

/// The file to write to and the first unused number, if this process is a child.
fn child_path() -> Option<(PathBuf, u64)> {
    let path = std::env::var_os("ONCEWARD_TEST_CHILD")?;
    let from = std::env::var("ONCEWARD_TEST_FROM").unwrap();
    Some((path.into(), from.parse().unwrap()))
}

/// The command that runs one test of this file alone, as a child.
fn as_child(mut command: Command, test: &str, database: &Path, from: u64) -> Command {
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("ONCEWARD_TEST_CHILD", database)
        .env("ONCEWARD_TEST_FROM", from.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// A key, its outcome and its audit entry in one batch, under a token that follows from its number.
fn whole(number: u64) -> Arc<Batch> {
    let id = format!("k{number}");
    let outcome = outcome(number);
    let mut done = record(&key(&id), State::Done);
    done.outcome = Some(fingerprint_bytes(&outcome));
    let mut draft = draft(done);
    draft.fence = FenceWrite::Once;
    draft.fresh = true;
    draft.expires = Time::In(86_400_000);
    draft.outcome = Body::Set(outcome.into());
    let mut entry = Entry::about(&key(&id), "done", &fingerprint_bytes(b"p"), &Trace::default());
    entry.detail = Some(id.as_str().into());
    Arc::new(Batch {
        token: Token(u128::from(number) + 1),
        conditions: vec![Condition::Absent(key(&id))],
        writes: vec![put(draft), Write::Audit(Box::new(entry))],
    })
}

fn outcome(number: u64) -> Vec<u8> {
    let mut outcome = number.to_be_bytes().repeat(128);
    outcome.extend(number.to_string().bytes());
    outcome
}

/// Says a line that the parent reads, at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// Commits groups, one after the other, and says each key once its commit was answered.
async fn commit_until_killed(path: &Path, mut number: u64) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    loop {
        let group = (number..number + GROUP).map(whole).collect();
        for answer in store.commit(group).await.unwrap().answers {
            applied(&answer);
            say(&format!("ack {number}"));
            number += 1;
        }
    }
}

/// The number that a child acknowledged in a line; libtest may have begun it with its own words.
fn acknowledged(line: &str) -> Option<u64> {
    line.rsplit_once("ack ")?.1.trim().parse().ok()
}

/// Reads what a child acknowledged and kills it once it has acknowledged so many.
fn kill_after(child: &mut Child, enough: usize) -> BTreeSet<u64> {
    let mut said = BTreeSet::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        said.extend(acknowledged(&line));
        if said.len() >= enough {
            child.kill().unwrap();
            break;
        }
    }
    // What it said before it died counts too.
    said.extend(lines.map_while(Result::ok).filter_map(|line| acknowledged(&line)));
    child.wait().unwrap();
    said
}

/// Everything that is in the file: each record has its outcome and exactly one audit entry.
async fn look(path: &Path) -> BTreeSet<u64> {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    let all = List::Records { tenant: None, scope: None, state: None };
    let page = store.list(all, None, usize::MAX).await.unwrap();
    let Items::Records(records) = page.items else { panic!("not records") };
    let mut there = BTreeSet::new();
    for record in records {
        let number: u64 = record.key.id()[1..].parse().unwrap();
        let found = find(&store, &record.key).await.unwrap().unwrap();
        assert_eq!(found.stored.outcome.as_deref(), Some(&outcome(number)[..]));
        there.insert(number);
    }
    let page = store.list(List::Audit(AuditFilter::default()), None, usize::MAX).await.unwrap();
    let Items::Audit(entries) = page.items else { panic!("not audit") };
    let audited = entries.iter().map(|entry| entry.entry.detail.as_deref().unwrap());
    let audited: Vec<u64> = audited.map(|id| id[1..].parse().unwrap()).collect();
    assert_eq!(audited.len(), there.len(), "one entry per record");
    assert_eq!(audited.into_iter().collect::<BTreeSet<_>>(), there);
    store.close().await.unwrap();
    let raw = rusqlite::Connection::open(path).unwrap();
    let intact: String = raw.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(intact, "ok");
    there
}

#[tokio::test]
async fn i02_what_was_acknowledged_survives_kill_9() {
    if let Some((path, from)) = child_path() {
        return commit_until_killed(&path, from).await;
    }
    let folder = Folder::new("kill");
    let mut said = BTreeSet::new();
    // Different for each run: a kill has to hit every phase of a commit sooner or later.
    let mut random = u64::from(std::process::id()) | 1;
    for round in 0..8 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
        let enough = (random >> 33) % 700 + 1;
        let test = "crash::i02_what_was_acknowledged_survives_kill_9";
        let this = Command::new(std::env::current_exe().unwrap());
        let from = round * 1_000_000;
        let mut child = as_child(this, test, &folder.database(), from).spawn().unwrap();
        let acknowledged = kill_after(&mut child, enough as usize);
        assert!(!acknowledged.is_empty(), "the child did nothing");
        said.extend(acknowledged);
        let there = look(&folder.database()).await;
        let lost: Vec<_> = said.difference(&there).collect();
        assert!(lost.is_empty(), "round {round}: acknowledged but lost: {lost:?}");
        let extra = there.iter().filter(|number| **number >= from && !said.contains(number));
        assert!(extra.count() as u64 <= GROUP, "at most the group that nobody heard of");
        said.extend(there);
    }
}

/// How large a file may get for the child, in the shell's blocks of 512 or 1,024 bytes.
const FILE_BLOCKS: &str = "6144";
/// Commits that are tried after the first one failed.
const TRIES_WHEN_FULL: u64 = 40;

/// Commits until the disk is full and goes on trying. Reads must go on working, and what failed
/// must be as absent as it was said to be.
async fn commit_until_full(path: &Path, mut number: u64) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    let mut failed = 0;
    let mut first = None;
    while failed < TRIES_WHEN_FULL {
        let group: Vec<_> = (number..number + GROUP).map(whole).collect();
        match store.commit(group).await {
            Ok(committed) => {
                for (offset, answer) in committed.answers.iter().enumerate() {
                    let number = number + offset as u64;
                    match answer {
                        Answer::Applied(_) => say(&format!("ack {number}")),
                        Answer::Contended => say(&format!("not applied {number}")),
                        Answer::Refused(_) => panic!("{number} is new"),
                    }
                }
                first.get_or_insert(number);
            }
            Err(error) => {
                failed += 1;
                let sure = match error {
                    StoreError::NotApplied(_) => true,
                    StoreError::Unknown(_) => false,
                    other => panic!("a full disk is not {other:?}"),
                };
                for number in (number..number + GROUP).filter(|_| sure) {
                    say(&format!("not applied {number}"));
                }
                let key = key(&format!("k{}", first.unwrap()));
                assert!(find(&store, &key).await.unwrap().is_some(), "reads go on");
            }
        }
        number += GROUP;
    }
    say("full");
}

#[tokio::test]
async fn i20_a_full_disk_leaves_no_effect_without_a_record() {
    if let Some((path, from)) = child_path() {
        return commit_until_full(&path, from).await;
    }
    let folder = Folder::new("full");
    // A limit on the size of files makes writes fail as a full disk does, without any privilege.
    let script = format!("trap '' XFSZ && ulimit -f {FILE_BLOCKS} && exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(std::env::current_exe().unwrap());
    let test = "crash::i20_a_full_disk_leaves_no_effect_without_a_record";
    let output = as_child(shell, test, &folder.database(), 0).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("\nfull\n"), "the child failed: {text}");
    let there = look(&folder.database()).await;
    let said = |word: &str| -> BTreeSet<u64> {
        let of_line = |line: &str| line.rsplit_once(word)?.1.trim().parse().ok();
        text.lines().filter_map(of_line).collect()
    };
    let (kept, not_applied) = (said("ack "), said("not applied "));
    assert!(!kept.is_empty(), "nothing was committed before the disk was full");
    assert!(kept.is_subset(&there), "acknowledged but lost");
    assert!(not_applied.is_disjoint(&there), "said to be not applied, but there");
    // With space again, every batch is applied or recognised, whatever its fate was.
    let store = SqliteStore::open(folder.database(), SqliteOptions::default()).unwrap();
    for number in 0..kept.last().unwrap() + GROUP * (TRIES_WHEN_FULL + 1) {
        let again = applied(&one(&store, &whole(number)).await).again;
        assert_eq!(again, there.contains(&number), "{number}");
    }
}
