//! Reads: `load` looks at one instant and sees every commit that was answered before; what was
//! changed behind the store's back is refused.

use std::sync::atomic::{AtomicBool, Ordering};

use onceward_core::batch::{Answer, Condition};

use super::bench::{
    Bench, Checked, Failure, bytes, draft, draft_of, ensure, ensure_eq, key, mark_at, put, subject,
    with_outcome, with_payload,
};
use crate::store::{Fact, Read, StoreError};
use crate::testing::harness::Damage;

/// One fact per read, in their order, also when a read comes twice.
pub async fn facts_come_in_the_order_of_the_reads(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let other = bench.insert(&draft(&key("b")?)).await?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject("s")?, 3)])).await?;
    let record = |id: &str| Ok::<_, Failure>(Read::Record { key: key(id)?, payload: false });
    let reads = vec![
        record("b")?,
        Read::Mark(subject("none")?),
        record("none")?,
        Read::Mark(subject("s")?),
        record("a")?,
        record("b")?,
        Read::Mark(subject("s")?),
    ];
    let facts = bench.load(reads).await?;
    let outline: Vec<_> = facts
        .iter()
        .map(|fact| match fact {
            Fact::Record(found) => found.as_ref().map_or(0, |found| found.stored.record.rev.0),
            Fact::Mark(mark) => mark.as_ref().map_or(0, |mark| mark.position),
        })
        .collect();
    let (a, b) = (there.rev.0, other.rev.0);
    ensure_eq!(outline, [b, 0, 0, 3, a, b, 3], "facts in order");
    let marks: Vec<_> = facts.iter().map(|fact| matches!(fact, Fact::Mark(_))).collect();
    ensure_eq!(marks, [false, true, false, true, false, false, true], "kinds in order");
    Ok(())
}

/// The outcome always comes; the payload only when it was asked for and there is one.
pub async fn a_payload_comes_only_when_asked_for(bench: &Bench<'_>) -> Checked {
    let full = with_payload(with_outcome(draft(&key("full")?), &bytes("o")), &bytes("p"));
    bench.insert(&full).await?;
    bench.insert(&draft(&key("bare")?)).await?;
    let cases = [
        ("full", false, Some("o"), None),
        ("full", true, Some("o"), Some("p")),
        ("bare", false, None, None),
        ("bare", true, None, None),
    ];
    let read = |id: &str, payload| Ok::<_, Failure>(Read::Record { key: key(id)?, payload });
    let reads = cases.iter().map(|(id, payload, ..)| read(id, *payload));
    let facts = bench.load(reads.collect::<Result<_, _>>()?).await?;
    for ((id, asked, outcome, payload), fact) in cases.into_iter().zip(facts) {
        let Fact::Record(Some(found)) = fact else {
            return Err(Failure::new(format!("{id} must be there, got {fact:?}")));
        };
        ensure_eq!(found.stored.outcome, outcome.map(bytes), "the outcome of {id}");
        ensure_eq!(found.payload, payload.map(bytes), "the payload of {id}, asked {asked}");
    }
    Ok(())
}

/// Without reads there are no facts, but the store's now.
pub async fn an_empty_load_tells_the_time(bench: &Bench<'_>) -> Checked {
    let loaded = bench.store.load(vec![]).await?;
    ensure_eq!(loaded.facts, [], "no reads, no facts");
    ensure!(loaded.now.0 > 0, "a date");
    Ok(())
}

/// Right after its answer, every commit is seen, from another task too.
pub async fn a_load_sees_every_answered_commit(bench: &Bench<'_>) -> Checked {
    let mut there = bench.insert(&draft(&key("a")?)).await?;
    for n in 0..50 {
        there = bench.insert(&draft_of(&there)).await?;
        let (store, key) = (bench.store.clone(), there.key.clone());
        let other = tokio::spawn(async move {
            store.load(vec![Read::Record { key, payload: false }]).await.map(|loaded| loaded.facts)
        });
        let seen = match other.await??.pop() {
            Some(Fact::Record(Some(found))) => Some(found.stored.record),
            _ => None,
        };
        ensure_eq!(seen.as_ref(), Some(&there), "after commit {n}");
    }
    Ok(())
}

/// Loads that look while something is being written.
const LOOKS: usize = 40;

/// Two records and a mark that are always written together are never seen apart.
pub async fn a_load_looks_at_one_instant(bench: &Bench<'_>) -> Checked {
    let (one, two, mark) = (key("one")?, key("two")?, subject("s")?);
    let looked = AtomicBool::new(false);
    let write = async {
        for n in 1_u32.. {
            let (mut a, mut b) = (draft(&one), draft(&two));
            (a.record.attempt, b.record.attempt) = (n, n);
            let batch = bench.batch(vec![], vec![put(a), mark_at(&mark, n.into()), put(b)]);
            while bench.commit(&batch).await? == Answer::Contended {
                tokio::task::yield_now().await;
            }
            if looked.load(Ordering::SeqCst) {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok::<_, Failure>(())
    };
    let look = async {
        let reads = [
            Read::Record { key: one.clone(), payload: false },
            Read::Mark(mark.clone()),
            Read::Record { key: two.clone(), payload: false },
        ];
        let mut seen = Ok(());
        for _ in 0..LOOKS {
            seen = bench.load(reads.to_vec()).await.and_then(|facts| together(&facts));
            if seen.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        looked.store(true, Ordering::SeqCst);
        seen
    };
    // Both are under way at once, whatever the store does in between.
    let (written, seen) = tokio::join!(write, look);
    written.and(seen)
}

/// Whether what was seen was written by one batch.
fn together(facts: &[Fact]) -> Checked {
    match facts {
        [Fact::Record(None), Fact::Mark(None), Fact::Record(None)] => Ok(()),
        [Fact::Record(Some(a)), Fact::Mark(Some(mark)), Fact::Record(Some(b))] => {
            let (a, b) = (a.stored.record.attempt, b.stored.record.attempt);
            ensure!(a == b && u64::from(a) == mark.position, "seen apart: {facts:?}");
            Ok(())
        }
        facts => Err(Failure::new(format!("seen apart: {facts:?}"))),
    }
}

/// Hundreds of reads in one load are answered in order.
pub async fn a_large_load_is_answered(bench: &Bench<'_>) -> Checked {
    const RECORDS: usize = 400;
    let mut batches = Vec::new();
    for n in (0..RECORDS).step_by(20) {
        let drafts = (n..n + 20).map(|n| Ok(put(draft(&key(&format!("{n}"))?))));
        batches.push(bench.batch(vec![], drafts.collect::<Result<_, Failure>>()?));
    }
    bench.commit_all(&batches).await?;
    let read = |n: usize| Ok(Read::Record { key: key(&format!("{n}"))?, payload: true });
    let reads = (0..RECORDS).rev().map(read).collect::<Result<_, Failure>>()?;
    for (n, fact) in bench.load(reads).await?.into_iter().enumerate() {
        let Fact::Record(Some(found)) = fact else {
            return Err(Failure::new(format!("read {n} got {fact:?}")));
        };
        let id = format!("{}", RECORDS - 1 - n);
        ensure_eq!(found.stored.record.key.id(), id.as_str(), "read {n}");
    }
    Ok(())
}

/// Stored bytes that were changed behind the store's back are refused as corrupt.
pub async fn i18_damaged_bytes_are_refused(bench: &Bench<'_>) -> Checked {
    for n in 0..2 {
        let key = key(&format!("{n}"))?;
        let full = with_outcome(draft(&key), &bytes("an outcome that is replayed"));
        bench.insert(&full).await?;
        let (damaged, what) = match n {
            0 => (bench.damage(Damage::Outcome(key.clone())).await?, "outcome"),
            _ => (bench.damage(Damage::Record(key.clone())).await?, "record"),
        };
        if !damaged {
            continue;
        }
        let read = Read::Record { key: key.clone(), payload: true };
        let loaded = bench.store.load(vec![read]).await;
        ensure!(matches!(loaded, Err(StoreError::Corrupt(_))), "damaged {what}: {loaded:?}");
        let batch = bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
        let refused = bench.store.commit(vec![std::sync::Arc::new(batch)]).await;
        ensure!(matches!(refused, Err(StoreError::Corrupt(_))), "damaged {what}: {refused:?}");
    }
    Ok(())
}
