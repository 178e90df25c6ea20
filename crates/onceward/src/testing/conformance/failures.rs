//! Failures: `NotApplied` means that nothing happened and nothing will; `Unknown` means that it may
//! have happened, or may still happen, and the same batch is sent again.
//!
//! The store under test is wrapped in a [`FaultyStore`], so that each fault happens for certain.

use std::sync::Arc;
use std::time::Duration;

use onceward_core::batch::{Batch, Condition, Write};

use super::bench::{
    Bench, Checked, Failure, all_audit, all_records, applied, audit, bytes, commit_to, draft,
    draft_of, ensure, ensure_eq, gone, key, mark_at, put, subject, with_outcome, with_payload,
};
use crate::store::{Read, Store, StoreError};
use crate::testing::faulty::{Fault, FaultPlan, FaultyStore, Method};

/// After a close, every method fails and says that it did nothing.
pub async fn a_closed_store_does_nothing(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    bench.store.close().await?;
    let read = Read::Record { key: there.key.clone(), payload: true };
    gone(bench.store.load(vec![read]), "load").await?;
    gone(bench.store.load(vec![]), "an empty load").await?;
    let batch = bench.batch(vec![], vec![put(draft(&key("b")?))]);
    gone(bench.store.commit(vec![Arc::new(batch)]), "commit").await?;
    gone(bench.store.list(all_records(), None, 10), "list").await?;
    if bench.can.watch {
        gone(bench.store.watch(vec![there.key]), "watch").await?;
    }
    Ok(())
}

/// What was sent to a closed store is not there after a reopen either.
pub async fn nothing_of_a_closed_store_happens_later(bench: &mut Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    bench.store.close().await?;
    let batch = bench.batch(vec![], vec![put(draft(&key("b")?))]);
    gone(bench.store.commit(vec![Arc::new(batch)]), "commit").await?;
    if bench.reopen().await? {
        ensure_eq!(bench.record(&there.key).await?, there, "what was there before");
        ensure_eq!(bench.found(&key("b")?).await?, None, "what came after the close");
    }
    Ok(())
}

/// A batch of each kind of witness: a put, a delete, marks only.
async fn kinds(bench: &Bench<'_>) -> Result<Vec<Batch>, Failure> {
    let there = bench.insert(&draft(&key("gone")?)).await?;
    let mark = subject("s")?;
    Ok(vec![
        bench.batch(vec![Condition::Absent(key("a")?)], vec![put(draft(&key("a")?)), audit("put")]),
        bench.batch(
            vec![Condition::RevIs(there.key.clone(), there.rev)],
            vec![Write::Delete(there.key), audit("delete")],
        ),
        bench.batch(
            vec![Condition::PositionIs(mark.clone(), 0)],
            vec![mark_at(&mark, 1), audit("mark")],
        ),
    ])
}

/// What the three batches of [`kinds`] do, each once.
async fn all_done(bench: &Bench<'_>) -> Checked {
    ensure!(bench.found(&key("a")?).await?.is_some(), "the put");
    ensure!(bench.found(&key("gone")?).await?.is_none(), "the delete");
    ensure_eq!(bench.position(&subject("s")?).await?, 1, "the mark");
    let entries = bench.list_audit(&all_audit(), 100).await?;
    let actions: Vec<_> = entries.iter().map(|audited| &*audited.entry.action).collect();
    ensure_eq!(actions, ["put", "delete", "mark"], "each once, in order");
    Ok(())
}

/// After `NotApplied` nothing is there, and the same batch is applied as new.
pub async fn i09_a_failure_before_leaves_nothing(bench: &Bench<'_>) -> Checked {
    let faulty = FaultyStore::new(bench.store.clone(), FaultPlan::Quiet);
    for batch in kinds(bench).await? {
        let entries = bench.list_audit(&all_audit(), 100).await?;
        faulty.set_plan(FaultPlan::Script(vec![Fault::Before]));
        let failed = faulty.commit(vec![Arc::new(batch.clone())]).await;
        ensure!(matches!(failed, Err(StoreError::NotApplied(_))), "{failed:?}");
        ensure_eq!(bench.list_audit(&all_audit(), 100).await?, entries, "nothing happened");
        let answer = applied(commit_to(&faulty, &batch).await?)?;
        ensure!(!answer.again, "it was never applied before");
    }
    all_done(bench).await
}

/// After `Unknown` the same batch is recognised, and everything is there once.
pub async fn i09_a_lost_answer_is_recognised(bench: &Bench<'_>) -> Checked {
    let faulty = FaultyStore::new(bench.store.clone(), FaultPlan::Quiet);
    let faults = [Fault::After, Fault::Lost(Duration::from_millis(1)), Fault::After];
    for (batch, fault) in kinds(bench).await?.into_iter().zip(faults) {
        faulty.set_plan(FaultPlan::Script(vec![fault, fault]));
        for _ in 0..2 {
            let lost = faulty.commit(vec![Arc::new(batch.clone())]).await;
            ensure!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
        }
        let answer = applied(commit_to(&faulty, &batch).await?)?;
        ensure!(answer.again, "an earlier try was applied");
    }
    all_done(bench).await
}

/// A fault on a read or a close changes nothing that was written.
pub async fn i09_every_method_survives_a_fault(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let faulty = FaultyStore::new(bench.store.clone(), FaultPlan::Quiet);
    let faults = [
        Fault::Before,
        Fault::After,
        Fault::Lost(Duration::from_millis(1)),
        Fault::Delayed(0),
        Fault::Contended(0),
    ];
    for fault in faults {
        let script = [Method::Load, Method::List].map(|method| (method, fault)).to_vec();
        faulty.set_plan(FaultPlan::Named(script));
        let load = faulty.load(vec![]).await;
        ensure!(matches!(load, Err(StoreError::NotApplied(_))), "{fault:?}: {load:?}");
        let list = faulty.list(all_records(), None, 10).await;
        ensure!(matches!(list, Err(StoreError::NotApplied(_))), "{fault:?}: {list:?}");
        ensure!(faulty.load(vec![]).await.is_ok(), "the next load works");
    }
    faulty.set_plan(FaultPlan::Script(vec![Fault::Before]));
    let close = faulty.close().await;
    ensure!(matches!(close, Err(StoreError::NotApplied(_))), "{close:?}");
    ensure_eq!(bench.record(&there.key).await?, there, "it is still open");
    faulty.set_plan(FaultPlan::Script(vec![Fault::After]));
    let close = faulty.close().await;
    ensure!(matches!(close, Err(StoreError::Unknown(_))), "{close:?}");
    gone(bench.store.load(vec![]), "load").await
}

/// A statement may still wait in the server when a re-read finds nothing.
pub async fn i27_absent_after_a_lost_answer_is_not_not_applied(bench: &Bench<'_>) -> Checked {
    let faulty = FaultyStore::new(bench.store.clone(), FaultPlan::Quiet);
    let key = key("a")?;
    let claim = bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
    faulty.set_plan(FaultPlan::Script(vec![Fault::Delayed(100)]));
    let unknown = faulty.commit(vec![Arc::new(claim.clone())]).await;
    ensure!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
    ensure!(bench.found(&key).await?.is_none(), "the re-read finds nothing");
    ensure_eq!(faulty.release_delayed().await, 1, "groups under way");
    let there = bench.record(&key).await?;
    let answer = applied(commit_to(&faulty, &claim).await?)?;
    ensure!(answer.again, "the resend is recognised");
    ensure_eq!(answer.first, Some((there.rev, there.fence)), "the permit that was granted");
    Ok(())
}

/// The resend overtakes the first try, which then changes nothing.
pub async fn i27_a_delayed_duplicate_changes_nothing(bench: &Bench<'_>) -> Checked {
    let faulty = FaultyStore::new(bench.store.clone(), FaultPlan::Quiet);
    for batch in kinds(bench).await? {
        faulty.set_plan(FaultPlan::Script(vec![Fault::Delayed(100)]));
        let unknown = faulty.commit(vec![Arc::new(batch.clone())]).await;
        ensure!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
        let answer = applied(commit_to(&faulty, &batch).await?)?;
        ensure!(!answer.again, "the resend came first");
    }
    let renewed = bench.insert(&draft_of(&bench.record(&key("a")?).await?)).await?;
    ensure_eq!(faulty.release_delayed().await, 3, "groups under way");
    ensure_eq!(bench.record(&key("a")?).await?, renewed, "the renewed record stays");
    all_done(bench).await
}

/// A batch that breaks a bound fails its call before anything of the group is written.
pub async fn i20_an_invalid_batch_leaves_nothing_of_its_group(bench: &Bench<'_>) -> Checked {
    let (one, two) = (key("one")?, key("two")?);
    let good = bench.batch(vec![], vec![put(draft(&one)), audit("good")]);
    let bad = bench.batch(vec![], vec![put(draft(&two)), Write::Delete(two.clone())]);
    for group in [vec![good.clone(), bad.clone()], vec![bad.clone(), good.clone()], vec![bad]] {
        let group = group.into_iter().map(Arc::new).collect();
        let answer = bench.store.commit(group).await;
        ensure!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
        ensure_eq!(bench.list_keys(&all_records(), 10).await?, [], "nothing is there");
        ensure_eq!(bench.list_audit(&all_audit(), 10).await?, [], "no entry is there");
    }
    bench.apply(&good).await?;
    Ok(())
}

/// Records with their bodies, marks and audit entries are all there after a reopen.
pub async fn i02_what_was_answered_is_there_after_a_reopen(bench: &mut Bench<'_>) -> Checked {
    let full = with_payload(with_outcome(draft(&key("a")?), &bytes("o")), &bytes("p"));
    let value = onceward_core::record::Body::Set(bytes("document"));
    let writes = vec![
        put(full),
        Write::Mark { subject: subject("s")?, position: 7, value },
        audit("written"),
    ];
    bench.apply(&bench.batch(vec![], writes)).await?;
    let found = bench.found(&key("a")?).await?;
    let mark = bench.mark(&subject("s")?).await?;
    let entries = bench.list_audit(&all_audit(), 10).await?;
    ensure!(found.is_some() && mark.is_some() && entries.len() == 1, "all is there before");
    if !bench.reopen().await? {
        return Ok(());
    }
    ensure_eq!(bench.found(&key("a")?).await?, found, "the record");
    ensure_eq!(bench.mark(&subject("s")?).await?, mark, "the mark");
    ensure_eq!(bench.list_audit(&all_audit(), 10).await?, entries, "the audit entry");
    ensure_eq!(bench.list_keys(&all_records(), 10).await?, [key("a")?], "the list");
    Ok(())
}
