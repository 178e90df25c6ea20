//! Tokens: a batch that comes again under the same token answers as applied and changes nothing.
//!
//! The token of a batch that puts a record is found on it; that of any other, among the tokens. A
//! duplicate that comes after the record has moved on is not recognised: its conditions refuse it.

use onceward_core::batch::{Applied, Batch, Condition, Write};
use onceward_core::key::Key;
use onceward_core::record::{Body, Draft, FenceWrite};
use onceward_core::stamp::Token;

use super::bench::{
    Bench, Checked, Failure, all_audit, audit, bytes, draft, draft_of, ensure, ensure_eq, key,
    mark_at, put, subject, with_outcome,
};

/// Sends a batch that was applied again: it must be recognised and answer the same stamps.
async fn again(bench: &Bench<'_>, batch: &Batch, before: &Applied) -> Checked {
    let after = bench.apply(batch).await?;
    ensure!(after.again, "a resend must be recognised: {after:?}");
    ensure_eq!(after.first, before.first, "the same stamps");
    ensure!(!bench.can.clock || after.now >= before.now, "the clock runs back");
    Ok(())
}

/// Sends a batch three times and checks that audit entries and marks come once.
async fn thrice(bench: &Bench<'_>, batch: &Batch, key: &Key) -> Checked {
    let mark = subject("s")?;
    let before = bench.apply(batch).await?;
    ensure!(!before.again, "a first try is not a resend");
    let found = bench.found(key).await?;
    let marked = bench.mark(&mark).await?;
    let entries = bench.list_audit(&all_audit(), 100).await?;
    for _ in 0..2 {
        bench.pass(50).await?;
        again(bench, batch, &before).await?;
        ensure_eq!(bench.found(key).await?, found, "the record stays");
        ensure_eq!(bench.mark(&mark).await?, marked, "the mark stays, with its date");
        ensure_eq!(bench.list_audit(&all_audit(), 100).await?, entries, "no further entry");
    }
    Ok(())
}

/// A batch that puts records, moves a mark and writes audit.
pub async fn i09_a_put_that_comes_again_changes_nothing(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let conditions = vec![Condition::Absent(key.clone()), Condition::PositionIs(subject("s")?, 0)];
    let writes = vec![
        audit("claimed"),
        put(with_outcome(draft(&key), &bytes("o"))),
        mark_at(&subject("s")?, 1),
    ];
    thrice(bench, &bench.batch(conditions, writes), &key).await
}

/// A batch that deletes: its token is not on a record.
pub async fn i09_a_delete_that_comes_again_changes_nothing(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let conditions = vec![Condition::RevIs(there.key.clone(), there.rev)];
    let writes =
        vec![Write::Delete(there.key.clone()), audit("released"), mark_at(&subject("s")?, 3)];
    thrice(bench, &bench.batch(conditions, writes), &there.key).await?;

    // Deleting one record and putting another: the resend must not put it again.
    let there = bench.insert(&draft(&key("b")?)).await?;
    let writes = vec![put(draft(&key("c")?)), Write::Delete(there.key.clone())];
    let conditions = vec![Condition::RevIs(there.key.clone(), there.rev)];
    let batch = bench.batch(conditions, writes);
    bench.apply(&batch).await?;
    let put = bench.record(&key("c")?).await?;
    let after = bench.apply(&batch).await?;
    ensure!(after.again, "a resend must be recognised: {after:?}");
    ensure_eq!(bench.record(&key("c")?).await?, put, "the record stays");
    Ok(())
}

/// A batch that only moves marks.
pub async fn i09_marks_that_come_again_change_nothing(bench: &Bench<'_>) -> Checked {
    let mark = subject("s")?;
    let conditions = vec![Condition::PositionIs(mark.clone(), 0)];
    let value = Body::Set(bytes("document"));
    let writes = vec![Write::Mark { subject: mark.clone(), position: 1, value }];
    let batch = bench.batch(conditions, writes);
    thrice(bench, &batch, &key("none")?).await?;

    // A late duplicate must not set the value back.
    let value = Body::Set(bytes("newer"));
    let newer = vec![Write::Mark { subject: mark.clone(), position: 2, value }];
    bench.apply(&bench.batch(vec![], newer)).await?;
    bench.apply(&batch).await?;
    let there = bench.mark(&mark).await?.map(|mark| (mark.position, mark.value));
    ensure_eq!(there, Some((2, Some(bytes("newer")))), "the newer document stays");
    Ok(())
}

/// A batch that only writes audit entries.
pub async fn i09_audit_that_comes_again_is_written_once(bench: &Bench<'_>) -> Checked {
    let batch = bench.batch(vec![], vec![audit("one"), audit("two")]);
    thrice(bench, &batch, &key("none")?).await?;
    ensure_eq!(bench.list_audit(&all_audit(), 100).await?.len(), 2, "entries");
    Ok(())
}

/// A batch without writes.
pub async fn i09_conditions_that_come_again_are_answered(bench: &Bench<'_>) -> Checked {
    let batch = bench.batch(vec![Condition::Absent(key("a")?)], vec![]);
    let before = bench.apply(&batch).await?;
    bench.insert(&draft(&key("a")?)).await?;
    again(bench, &batch, &before).await
}

/// Whatever else was written since, a batch is recognised.
pub async fn a_batch_is_recognised_after_other_writes(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("gone")?)).await?;
    let mark = subject("s")?;
    let batches = [
        bench.batch(vec![Condition::Absent(key("a")?)], vec![put(draft(&key("a")?))]),
        bench.batch(
            vec![Condition::RevIs(there.key.clone(), there.rev)],
            vec![Write::Delete(there.key.clone())],
        ),
        bench.batch(vec![Condition::PositionIs(mark.clone(), 0)], vec![mark_at(&mark, 1)]),
    ];
    let mut before = Vec::new();
    for batch in &batches {
        before.push(bench.apply(batch).await?);
    }
    for n in 0..50 {
        bench.insert(&draft(&key(&format!("other-{n}"))?)).await?;
    }
    bench.apply(&bench.batch(vec![], vec![mark_at(&mark, 2)])).await?;
    bench.insert(&draft(&there.key)).await?;
    for (batch, before) in batches.iter().zip(&before) {
        again(bench, batch, before).await?;
    }
    ensure_eq!(bench.position(&mark).await?, 2, "the mark stays");
    ensure!(bench.found(&there.key).await?.is_some(), "the new record stays");
    Ok(())
}

/// A batch of several puts is found by the first, also when the second has moved on.
pub async fn a_batch_is_recognised_by_its_first_put(bench: &Bench<'_>) -> Checked {
    let (one, two) = (key("one")?, key("two")?);
    let conditions = vec![Condition::Absent(one.clone()), Condition::Absent(two.clone())];
    let batch = bench.batch(conditions, vec![put(draft(&one)), put(draft(&two))]);
    let before = bench.apply(&batch).await?;
    let moved = bench.insert(&draft_of(&bench.record(&two).await?)).await?;
    again(bench, &batch, &before).await?;
    ensure_eq!(bench.record(&two).await?, moved, "the second record stays");
    bench.apply(&bench.batch(vec![], vec![Write::Delete(two.clone())])).await?;
    again(bench, &batch, &before).await?;
    ensure!(bench.found(&two).await?.is_none(), "the second record stays away");
    Ok(())
}

/// A duplicate that comes after its record has moved on is refused by its conditions.
pub async fn a_late_duplicate_is_refused(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let claim = bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
    bench.apply(&claim).await?;
    let running = bench.record(&key).await?;
    let renewal = bench.batch(
        vec![Condition::RevIs(key.clone(), running.rev)],
        vec![put(draft_of(&running)), audit("renewed")],
    );
    bench.apply(&renewal).await?;
    let renewed = bench.record(&key).await?;
    let end = Draft { fence: FenceWrite::End, ..draft_of(&renewed) };
    let done = bench.batch(
        vec![Condition::FenceIs(key.clone(), running.last_fence)],
        vec![put(with_outcome(end, &bytes("o")))],
    );
    bench.apply(&done).await?;
    let finished = bench.record(&key).await?;
    for late in [&claim, &renewal] {
        bench.refuse(late).await?;
        ensure_eq!(bench.record(&key).await?, finished, "the record stays");
    }
    let entries = bench.list_audit(&all_audit(), 100).await?;
    ensure_eq!(entries.len(), 1, "audit entries");
    bench.apply(&done).await?;
    ensure_eq!(bench.record(&key).await?, finished, "the record stays");
    Ok(())
}

/// A refused batch left nothing, so it is judged anew when it comes again.
pub async fn a_refused_batch_may_come_again(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let claim =
        bench.batch(vec![Condition::Absent(there.key.clone())], vec![put(draft(&there.key))]);
    let mark = subject("s")?;
    let marks = bench.batch(vec![Condition::PositionIs(mark.clone(), 1)], vec![mark_at(&mark, 2)]);
    for batch in [&claim, &marks, &claim, &marks] {
        bench.refuse(batch).await?;
    }
    let release = vec![Write::Delete(there.key.clone()), mark_at(&mark, 1)];
    bench.apply(&bench.batch(vec![], release)).await?;
    for batch in [&claim, &marks] {
        let applied = bench.apply(batch).await?;
        ensure!(!applied.again, "it was never applied before");
    }
    ensure_eq!(bench.position(&mark).await?, 2, "the mark");
    Ok(())
}

/// Tokens that differ in a single bit, high or low, are different.
pub async fn tokens_are_compared_in_full(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let base = bench.batch(vec![], vec![put(draft(&key)), audit("put")]);
    let marks = bench.batch(vec![], vec![mark_at(&subject("s")?, 1), audit("mark")]);
    bench.apply(&base).await?;
    bench.apply(&marks).await?;
    for bit in [0, 31, 63, 64, 95, 127] {
        for batch in [&base, &marks] {
            let other = Batch { token: Token(batch.token.0 ^ 1 << bit), ..batch.clone() };
            let applied = bench.apply(&other).await?;
            ensure!(!applied.again, "bit {bit} is not compared");
        }
    }
    for token in [0, u128::MAX] {
        let batch = Batch { token: Token(token), ..base.clone() };
        let before = bench.apply(&batch).await?;
        ensure!(!before.again, "token {token} was never sent");
        again(bench, &batch, &before).await?;
        ensure_eq!(bench.record(&key).await?.token, Token(token), "the stored token");
    }
    Ok(())
}

/// Fourteen minutes later, and past many other tokens, a batch without a record is recognised.
pub async fn tokens_are_kept_for_a_quarter_of_an_hour(bench: &Bench<'_>) -> Checked {
    let mark = subject("s")?;
    let batch = bench.batch(vec![Condition::PositionIs(mark.clone(), 0)], vec![mark_at(&mark, 1)]);
    let before = bench.apply(&batch).await?;
    // A clock that can't be moved shows only that many others don't push a token out.
    let moved = bench.advance(7 * 60 * 1_000).await?;
    let others = 2_000;
    let mut flood = Vec::with_capacity(others);
    for n in 0..others {
        let other = subject(&format!("other-{n}"))?;
        flood.push(bench.batch(vec![], vec![mark_at(&other, 1)]));
    }
    let answers = bench.commit_all(&flood).await?;
    ensure_eq!(answers.len(), others, "answers");
    if moved {
        bench.advance(7 * 60 * 1_000).await?;
        let last = bench.batch(vec![], vec![mark_at(&subject("last")?, 1)]);
        bench.apply(&last).await?;
    }
    again(bench, &batch, &before).await
}

/// After a reopen, tokens of both kinds are still known.
pub async fn tokens_survive_a_reopen(bench: &mut Bench<'_>) -> Checked {
    let mark = subject("s")?;
    let batches = [
        bench.batch(vec![Condition::Absent(key("a")?)], vec![put(draft(&key("a")?))]),
        bench.batch(vec![Condition::PositionIs(mark.clone(), 0)], vec![mark_at(&mark, 1)]),
    ];
    let mut before = Vec::new();
    for batch in &batches {
        before.push(bench.apply(batch).await?);
    }
    if !bench.reopen().await? {
        return Ok(());
    }
    for (batch, before) in batches.iter().zip(&before) {
        again(bench, batch, before).await?;
    }
    if bench.now().await? < before[0].now && bench.can.clock {
        return Err(Failure::new("the clock runs back across a reopen"));
    }
    Ok(())
}
