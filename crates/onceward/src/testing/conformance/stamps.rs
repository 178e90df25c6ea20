//! Stamps and instants: revs and fences rise, across deletion and re-creation; instants are the
//! store's now, read in the commit.

use std::collections::BTreeSet;

use onceward_core::batch::{Answer, Condition, Write};
use onceward_core::record::{Draft, FenceWrite, Time};
use onceward_core::stamp::{At, Fence, Rev};

use super::bench::{
    Bench, Checked, Failure, applied, commit_to, draft, draft_of, ensure, ensure_eq, first, key,
    put,
};

/// Each put of a record has a higher rev than the one before.
pub async fn every_put_draws_a_higher_rev(bench: &Bench<'_>) -> Checked {
    let mut last = Rev(0);
    for fence in [FenceWrite::Grant, FenceWrite::Keep, FenceWrite::End, FenceWrite::Once] {
        let record = bench.insert(&Draft { fence, ..draft(&key("a")?) }).await?;
        ensure!(record.rev > last, "{:?} after {last:?}", record.rev);
        last = record.rev;
    }
    Ok(())
}

/// Stamps are drawn from one rising number for all records.
pub async fn revs_rise_across_records(bench: &Bench<'_>) -> Checked {
    let mut last = Rev(0);
    for n in 0..10 {
        let record = bench.insert(&draft(&key(&format!("{}", 9 - n))?)).await?;
        ensure!(record.rev > last, "{:?} after {last:?}", record.rev);
        last = record.rev;
    }
    Ok(())
}

/// Several puts of one batch draw their stamps in the order of the writes.
pub async fn revs_rise_in_the_order_of_the_writes(bench: &Bench<'_>) -> Checked {
    let ids = ["m", "a", "z", "b"];
    let drafts = ids.iter().map(|id| Ok(put(draft(&key(id)?))));
    let writes = drafts.collect::<Result<Vec<_>, Failure>>()?;
    let applied = bench.apply(&bench.batch(vec![], writes)).await?;
    let mut last = Rev(0);
    for id in ids {
        let rev = bench.record(&key(id)?).await?.rev;
        ensure!(rev > last, "{id} has {rev:?}, after {last:?}");
        last = rev;
    }
    let rev = bench.record(&key("m")?).await?.rev;
    ensure_eq!(first(&applied)?.0, rev, "the stamps of the first put");
    Ok(())
}

/// A key that is deleted and made again goes on above its old stamps.
pub async fn i25_stamps_rise_across_deletion(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let mut last = (Rev(0), Fence(0));
    for life in 0..5 {
        let record = bench.insert(&draft(&key)).await?;
        let stored = bench.record(&key).await?;
        ensure_eq!(stored, record, "life {life}");
        ensure!((record.rev > last.0) && (record.last_fence > last.1), "{record:?} after {last:?}");
        if life > 0 {
            let zombie = Condition::FenceIs(key.clone(), last.1);
            bench.refuse(&bench.batch(vec![zombie], vec![Write::Delete(key.clone())])).await?;
        }
        last = (record.rev, record.last_fence);
        bench.apply(&bench.batch(vec![], vec![Write::Delete(key.clone())])).await?;
    }
    Ok(())
}

/// Each grant draws a fence above every one before, whoever held them.
pub async fn i05_every_grant_draws_a_higher_fence(bench: &Bench<'_>) -> Checked {
    let mut last = Fence(0);
    for n in 0..12 {
        let key = key(&format!("{}", n % 3))?;
        let batch = bench.batch(vec![], vec![put(draft(&key))]);
        bench.apply(&batch).await?;
        let record = bench.record(&key).await?;
        let Some(fence) = record.fence else { return Err(Failure::new("must draw a fence")) };
        ensure!(fence > last, "{fence:?} after {last:?}");
        last = fence;
    }
    Ok(())
}

/// A grant's answer carries the rev and the fence that are stored, and the fence is the rev.
pub async fn a_grant_answers_its_fence(bench: &Bench<'_>) -> Checked {
    for _ in 0..3 {
        let batch = bench.batch(vec![], vec![put(draft(&key("a")?))]);
        let (rev, fence) = first(&bench.apply(&batch).await?)?;
        let record = bench.record(&key("a")?).await?;
        ensure_eq!((record.rev, record.fence), (rev, fence), "what was answered");
        ensure_eq!(record.fence, Some(Fence(rev.0)), "one stamp serves as both");
        ensure_eq!(record.last_fence, Fence(rev.0), "the last fence");
    }
    Ok(())
}

/// `Keep`: a higher rev, the same fence.
pub async fn keep_leaves_the_fence(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let batch = bench.batch(vec![], vec![put(draft_of(&there))]);
    let (rev, fence) = first(&bench.apply(&batch).await?)?;
    let record = bench.record(&key("a")?).await?;
    ensure!(record.rev > there.rev && record.rev == rev, "{:?} after {:?}", rev, there.rev);
    ensure_eq!((record.fence, fence), (there.fence, there.fence), "the fence");
    ensure_eq!(record.last_fence, there.last_fence, "the last fence");
    Ok(())
}

/// `End`: nobody holds it, and the last fence is remembered.
pub async fn end_leaves_nobody(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let end = Draft { fence: FenceWrite::End, ..draft_of(&there) };
    let batch = bench.batch(vec![], vec![put(end)]);
    let (_, fence) = first(&bench.apply(&batch).await?)?;
    let record = bench.record(&key("a")?).await?;
    ensure_eq!((record.fence, fence), (None, None), "the fence");
    ensure_eq!(record.last_fence, there.last_fence, "the last fence");
    Ok(())
}

/// `Once`: a fence is drawn and nobody holds it.
pub async fn once_draws_and_ends(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let once = Draft { fence: FenceWrite::Once, ..draft_of(&there) };
    let batch = bench.batch(vec![], vec![put(once)]);
    let (rev, fence) = first(&bench.apply(&batch).await?)?;
    let record = bench.record(&key("a")?).await?;
    ensure_eq!((record.fence, fence), (None, None), "the fence");
    ensure_eq!(record.last_fence, Fence(rev.0), "the last fence");
    ensure!(record.last_fence > there.last_fence, "above the fence before");
    Ok(())
}

/// Instants of a draft are the commit's now and a while.
pub async fn instants_are_the_now_of_the_commit(bench: &Bench<'_>) -> Checked {
    for d in [0, 1, 30_000, 315_360_000_000] {
        bench.pass(50).await?;
        let mut draft = draft(&key("a")?);
        (draft.due, draft.expires, draft.sweep) = (Time::In(d), Time::In(d + 1), Time::In(d + 2));
        let now = bench.apply(&bench.batch(vec![], vec![put(draft)])).await?.now;
        let record = bench.record(&key("a")?).await?;
        ensure_eq!(record.due_at, Some(now.plus(d)), "due in {d}");
        ensure_eq!(record.expires_at, Some(now.plus(d + 1)), "expires in {d} + 1");
        ensure_eq!(record.sweep_at, Some(now.plus(d + 2)), "sweep in {d} + 2");
        ensure_eq!((record.created_at, record.updated_at), (now, now), "its dates");
    }
    Ok(())
}

/// Each instant is kept, cleared or set on its own.
pub async fn instants_are_kept_cleared_and_set(bench: &Bench<'_>) -> Checked {
    let mut draft = draft(&key("a")?);
    (draft.due, draft.expires, draft.sweep) = (Time::In(10), Time::In(20), Time::In(30));
    let mut there = bench.insert(&draft).await?;
    let steps = [
        (Time::Keep, Time::Keep, Time::Keep),
        (Time::Clear, Time::Keep, Time::In(300)),
        (Time::In(1), Time::Clear, Time::Keep),
        (Time::Keep, Time::In(2), Time::Clear),
        (Time::Clear, Time::Clear, Time::Clear),
    ];
    for (n, (due, expires, sweep)) in steps.into_iter().enumerate() {
        bench.pass(50).await?;
        there = bench.insert(&Draft { due, expires, sweep, ..draft_of(&there) }).await?;
        ensure_eq!(bench.record(&key("a")?).await?, there, "after step {n}");
    }
    Ok(())
}

/// A fresh write dates the creation; any other keeps it.
pub async fn only_a_fresh_write_dates_the_creation(bench: &Bench<'_>) -> Checked {
    let born = bench.insert(&draft(&key("a")?)).await?;
    bench.pass(50).await?;
    let there = bench.insert(&draft_of(&born)).await?;
    let stored = bench.record(&key("a")?).await?;
    ensure_eq!(stored.created_at, born.created_at, "the creation is kept");
    ensure_eq!(stored.updated_at, there.updated_at, "the update is dated");
    bench.pass(50).await?;
    let again = bench.insert(&Draft { fresh: true, ..draft_of(&there) }).await?;
    let stored = bench.record(&key("a")?).await?;
    ensure_eq!(stored.created_at, again.updated_at, "a new life is dated anew");
    Ok(())
}

/// With a clock of its own, the store's now never runs back, from one method to the next. Without,
/// it is about right: it follows when time passes.
pub async fn i08_the_clock_does_not_run_back(bench: &Bench<'_>) -> Checked {
    let start = bench.now().await?;
    let mut last = start;
    for n in 0..20 {
        let batch = bench.batch(vec![], vec![put(draft(&key(&format!("{n}"))?))]);
        let committed = bench.apply(&batch).await?.now;
        let loaded = bench.now().await?;
        let page = bench.store.list(super::bench::all_records(), None, 1).await?;
        for now in [committed, loaded, page.now] {
            ensure!(!bench.can.clock || now >= last, "{now:?} after {last:?}");
            last = now;
        }
        bench.pass(20).await?;
    }
    bench.pass(200).await?;
    let end = bench.now().await?;
    ensure!(end > start, "time passes: {start:?} to {end:?}");
    Ok(())
}

/// The commit's now lies between what a load said before and says after.
pub async fn now_is_read_in_the_commit(bench: &Bench<'_>) -> Checked {
    bench.apply(&bench.batch(vec![], vec![put(draft(&key("a")?))])).await?;
    bench.pass(200).await?;
    let before = bench.now().await?;
    let batch = bench.batch(vec![], vec![put(draft(&key("b")?))]);
    let applied = bench.apply(&batch).await?.now;
    let refused = bench.batch(vec![Condition::Absent(key("a")?)], vec![]);
    let refused = bench.refuse(&refused).await?.now;
    let after = bench.now().await?;
    if bench.can.clock {
        ensure!(before <= applied && applied <= refused, "{before:?} {applied:?} {refused:?}");
        ensure!(refused <= after, "{refused:?} {after:?}");
    } else {
        // A date that is about right: the commits lie well after the write before the pause.
        let first = bench.record(&key("a")?).await?.updated_at;
        ensure!(applied > first && refused > first, "{first:?} {applied:?} {refused:?}");
    }
    Ok(())
}

/// Revs, fences and the clock go on above where they were.
pub async fn stamps_rise_across_a_reopen(bench: &mut Bench<'_>) -> Checked {
    let mut last = (Rev(0), At(0));
    for n in 0..3 {
        let deleted = bench.insert(&draft(&key("deleted")?)).await?;
        let record = bench.insert(&draft(&key(&format!("{n}"))?)).await?;
        ensure!(deleted.rev > last.0 && record.rev > deleted.rev, "{:?}, {last:?}", deleted.rev);
        ensure!(!bench.can.clock || deleted.updated_at >= last.1, "the clock runs back");
        let newest = bench.insert(&draft(&key("deleted")?)).await?;
        bench.apply(&bench.batch(vec![], vec![Write::Delete(key("deleted")?)])).await?;
        last = (newest.rev, newest.updated_at);
        if !bench.reopen().await? {
            return Ok(());
        }
    }
    Ok(())
}

/// Many commits at once: every put has a stamp of its own, above what was there before.
pub async fn stamps_of_concurrent_commits_differ(bench: &Bench<'_>) -> Checked {
    let before = bench.insert(&draft(&key("before")?)).await?;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..32 {
        let batch = bench.batch(vec![], vec![put(draft(&key(&format!("{n}"))?))]);
        let store = bench.store.clone();
        tasks.spawn(async move {
            loop {
                match commit_to(&*store, &batch).await? {
                    Answer::Contended => tokio::task::yield_now().await,
                    answer => return first(&applied(answer)?),
                }
            }
        });
    }
    let mut revs = BTreeSet::new();
    while let Some(stamps) = tasks.join_next().await {
        let (rev, fence) = stamps??;
        ensure_eq!(fence, Some(Fence(rev.0)), "one stamp serves as both");
        ensure!(rev > before.rev, "{rev:?} after {:?}", before.rev);
        ensure!(revs.insert(rev), "{rev:?} was drawn twice");
    }
    ensure_eq!(revs.len(), 32, "stamps");
    Ok(())
}
