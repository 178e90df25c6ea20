//! Marks: they move to the maximum and never back; a value is set, kept or cleared beside it.

use onceward_core::batch::{Condition, Write};
use onceward_core::key::Subject;
use onceward_core::record::{Body, Mark};

use super::bench::{
    Bench, Checked, Failure, bytes, draft, ensure, ensure_eq, key, mark_at, put, subject,
};

async fn write(
    bench: &Bench<'_>,
    subject: &Subject,
    position: u64,
    value: Body,
) -> Result<Mark, Failure> {
    let write = Write::Mark { subject: subject.clone(), position, value };
    let applied = bench.apply(&bench.batch(vec![], vec![write])).await?;
    ensure_eq!(applied.first, None, "a mark has no stamps");
    match bench.mark(subject).await? {
        Some(mark) => Ok(mark),
        None => Err(Failure::new("a written mark must be there")),
    }
}

/// A subject without a mark is at 0; a write moves it.
pub async fn a_mark_moves_to_its_position(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    ensure_eq!(bench.mark(&subject).await?, None, "before the first write");
    for position in [1, 2, 10, 1_000_000] {
        let mark = write(bench, &subject, position, Body::Keep).await?;
        ensure_eq!((mark.position, mark.value), (position, None), "after the write");
    }
    Ok(())
}

/// A lower position leaves the mark where it is; the batch is applied all the same.
pub async fn marks_never_move_back(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    for (position, stays) in [(10, 10), (3, 10), (0, 10), (11, 11), (10, 11)] {
        let mark = write(bench, &subject, position, Body::Keep).await?;
        ensure_eq!(mark.position, stays, "after a write of {position}");
    }
    Ok(())
}

/// Twenty times, each a grace older than the one before: the latest stays the latest.
pub async fn i29_grace_does_not_creep(bench: &Bench<'_>) -> Checked {
    const LATEST: u64 = 1_700_000_000_000;
    const GRACE_MS: u64 = 300_000;
    let subject = subject("user")?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject, LATEST)])).await?;
    for n in 1..=20 {
        let at = LATEST - n * (GRACE_MS - 1_000);
        let condition = Condition::PositionAtMost(subject.clone(), at + GRACE_MS);
        let batch = bench.batch(vec![condition], vec![mark_at(&subject, at)]);
        if n == 1 {
            bench.apply(&batch).await?;
        } else {
            bench.refuse(&batch).await?;
        }
        ensure_eq!(bench.position(&subject).await?, LATEST, "after the {n}th older time");
    }
    Ok(())
}

/// A value is replaced, left or dropped, whether the mark moves or not.
pub async fn a_value_is_set_kept_and_cleared(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    let steps = [
        (1, Body::Set(bytes("one")), 1, Some(bytes("one"))),
        (2, Body::Keep, 2, Some(bytes("one"))),
        (3, Body::Set(bytes("three")), 3, Some(bytes("three"))),
        (1, Body::Set(bytes("late")), 3, Some(bytes("late"))),
        (3, Body::Clear, 3, None),
        (4, Body::Keep, 4, None),
        (5, Body::Set(bytes("five")), 5, Some(bytes("five"))),
    ];
    for (n, (position, value, at, is)) in steps.into_iter().enumerate() {
        let mark = write(bench, &subject, position, value).await?;
        ensure_eq!((mark.position, mark.value), (at, is), "after step {n}");
    }
    Ok(())
}

/// No bytes are something else than no value.
pub async fn an_empty_value_is_a_value(bench: &Bench<'_>) -> Checked {
    let mark = write(bench, &subject("s")?, 1, Body::Set(bytes(""))).await?;
    ensure_eq!(mark.value, Some(bytes("")), "an empty value");
    let mark = write(bench, &subject("s")?, 2, Body::Clear).await?;
    ensure_eq!(mark.value, None, "no value");
    Ok(())
}

/// A write at 0 makes a mark, at the position where the subject was anyway.
pub async fn a_mark_at_zero_is_there(bench: &Bench<'_>) -> Checked {
    let mark = write(bench, &subject("s")?, 0, Body::Set(bytes("draft"))).await?;
    ensure_eq!((mark.position, mark.value), (0, Some(bytes("draft"))), "a mark at 0");
    let condition = Condition::PositionIs(subject("s")?, 0);
    bench.apply(&bench.batch(vec![condition], vec![mark_at(&subject("s")?, 1)])).await?;
    Ok(())
}

/// Every write dates its mark by the commit's now, also one that does not move it.
pub async fn a_write_dates_its_mark(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    for position in [5, 6, 2] {
        let batch = bench.batch(vec![], vec![mark_at(&subject, position)]);
        let now = bench.apply(&batch).await?.now;
        let mark = bench.mark(&subject).await?;
        ensure_eq!(mark.map(|mark| mark.updated_at), Some(now), "after {position}");
        bench.pass(100).await?;
    }
    Ok(())
}

/// Marks and records live apart, whatever their names.
pub async fn a_mark_survives_the_records_of_its_name(bench: &Bench<'_>) -> Checked {
    let record = key("same")?;
    let mark = Subject::new(&record.tenant(), &record.scope(), &record.id())?;
    let writes = vec![put(draft(&record)), mark_at(&mark, 7)];
    bench.apply(&bench.batch(vec![], writes)).await?;
    bench.apply(&bench.batch(vec![], vec![Write::Delete(record.clone())])).await?;
    ensure!(bench.found(&record).await?.is_none(), "the record is gone");
    ensure_eq!(bench.position(&mark).await?, 7, "the mark stays");
    Ok(())
}
