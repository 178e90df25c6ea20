//! Groups: each batch is answered on its own, in order; a refusal never touches its neighbours.
//!
//! A store whose groups hold one batch takes these cases one by one, and a larger group whole or
//! not at all.

use std::sync::Arc;

use onceward_core::batch::{Answer, Batch, Condition, Write};
use onceward_core::record::Body;

use super::bench::{
    Bench, Checked, Failure, all_records, applied, audit, bytes, draft, draft_of, ensure,
    ensure_eq, first, key, mark_at, put, subject, with_outcome,
};
use crate::store::StoreError;

/// A group without batches has no answers.
pub async fn an_empty_group_has_no_answers(bench: &Bench<'_>) -> Checked {
    ensure_eq!(bench.store.commit(vec![]).await?.answers, [], "an empty group");
    Ok(())
}

/// Six batches that touch different rows: some hold, some don't.
async fn neighbours(bench: &Bench<'_>, name: &str) -> Result<Vec<Batch>, Failure> {
    let id = |n: usize| key(&format!("{name}-{n}"));
    let there = bench.insert(&with_outcome(draft(&id(1)?), &bytes("o"))).await?;
    let gone = bench.insert(&draft(&id(2)?)).await?;
    let mark = subject(name)?;
    Ok(vec![
        bench.batch(vec![Condition::Absent(id(0)?)], vec![put(draft(&id(0)?)), audit("zero")]),
        bench.batch(vec![Condition::Absent(id(1)?)], vec![put(draft(&id(1)?)), audit("never")]),
        bench.batch(
            vec![Condition::RevIs(gone.key.clone(), gone.rev)],
            vec![Write::Delete(gone.key)],
        ),
        bench.batch(
            vec![Condition::RevIs(id(3)?, there.rev)],
            vec![put(draft(&id(3)?)), put(draft(&id(4)?))],
        ),
        bench.batch(vec![Condition::PositionIs(mark.clone(), 0)], vec![mark_at(&mark, 1)]),
        bench.batch(vec![], vec![audit("alone")]),
    ])
}

/// What a group answers, without instants and stamps: these differ between two runs.
fn outline(answers: &[Answer]) -> Vec<String> {
    let of = |answer: &Answer| match answer {
        Answer::Applied(applied) => format!("applied, put {}", applied.first.is_some()),
        Answer::Refused(refused) => {
            let failed: Vec<_> = refused.failed.iter().map(|(index, _)| index).collect();
            format!("refused {failed:?}")
        }
        Answer::Contended => "contended".to_string(),
    };
    answers.iter().map(of).collect()
}

/// A group answers and leaves behind what the same batches would one by one.
pub async fn a_group_answers_as_one_by_one(bench: &Bench<'_>) -> Checked {
    let together = bench.commit_all(&neighbours(bench, "group").await?).await?;
    let mut apart = Vec::new();
    for batch in neighbours(bench, "single").await? {
        apart.push(bench.commit(&batch).await?);
    }
    ensure_eq!(outline(&together), outline(&apart), "together and apart");
    let keys = bench.list_keys(&all_records(), 100).await?;
    let of = |name: &str| {
        let ids = keys.iter().map(|key| key.id().into_owned());
        ids.filter_map(|id| id.strip_prefix(name).map(str::to_string)).collect::<Vec<_>>()
    };
    ensure_eq!(of("group"), of("single"), "what is left");
    ensure_eq!(of("group"), ["-0", "-1"], "what is left");
    Ok(())
}

/// The refused batch changes nothing, and the others are applied.
pub async fn i26_a_refusal_does_not_touch_its_neighbours(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("there")?)).await?;
    for refused_at in 0..4 {
        let mut batches = Vec::new();
        for n in 0..4 {
            let id = key(&format!("{refused_at}-{n}"))?;
            let mut conditions = vec![Condition::Absent(id.clone())];
            if n == refused_at {
                conditions.push(Condition::Absent(there.key.clone()));
            }
            batches.push(bench.batch(conditions, vec![put(draft(&id))]));
        }
        let answers = bench.commit_all(&batches).await?;
        for (n, answer) in answers.into_iter().enumerate() {
            let found = bench.found(&key(&format!("{refused_at}-{n}"))?).await?;
            ensure_eq!(found.is_some(), n != refused_at, "batch {n}, refused {refused_at}");
            ensure_eq!(matches!(answer, Answer::Applied(_)), n != refused_at, "batch {n}");
        }
    }
    Ok(())
}

/// Batches in the largest group that this case sends.
const LARGE: usize = 300;

/// A group as large as the store takes is answered in the order of its batches.
pub async fn a_full_group_is_answered_in_order(bench: &Bench<'_>) -> Checked {
    let size = bench.can.group_max.min(LARGE);
    ensure!(size > 0, "a store must take groups of one batch");
    let mut batches = Vec::with_capacity(size);
    for n in 0..size {
        let key = key(&format!("{n:04}"))?;
        let draft = with_outcome(draft(&key), &bytes(&format!("outcome {n}")));
        batches.push(bench.batch(vec![Condition::Absent(key)], vec![put(draft)]));
    }
    let answers = bench.commit_all(&batches).await?;
    for (n, answer) in answers.into_iter().enumerate() {
        let record = bench.record(&key(&format!("{n:04}"))?).await?;
        let stamps = first(&applied(answer)?)?;
        ensure_eq!(stamps, (record.rev, record.fence), "the stamps of batch {n}");
    }
    Ok(())
}

/// A group past the store's maximum is answered whole, or breaks a bound and does nothing.
pub async fn a_group_past_the_maximum_is_whole_or_nothing(bench: &Bench<'_>) -> Checked {
    let size = bench.can.group_max.min(LARGE) + 1;
    let mut group = Vec::with_capacity(size);
    for n in 0..size {
        let key = key(&format!("{n:04}"))?;
        let batch = bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
        group.push(Arc::new(batch));
    }
    let there = match bench.store.commit(group).await {
        Ok(committed) => {
            ensure_eq!(committed.answers.len(), size, "one answer per batch");
            size
        }
        Err(StoreError::Invalid(_)) => 0,
        Err(error) => return Err(error.into()),
    };
    let keys = bench.list_keys(&all_records(), 100).await?;
    ensure_eq!(keys.len(), there, "whole or nothing");
    Ok(())
}

/// Every batch of a group is dated by the same instant, refused ones too.
pub async fn a_group_reads_the_clock_once(bench: &Bench<'_>) -> Checked {
    let batches = neighbours(bench, "group").await?;
    let now = |answer: &Answer| match answer {
        Answer::Applied(applied) => Some(applied.now),
        Answer::Refused(refused) => Some(refused.now),
        Answer::Contended => None,
    };
    let group = batches.iter().take(bench.can.group_max).cloned().map(Arc::new).collect();
    let answers = bench.store.commit(group).await?.answers;
    let first = answers.first().and_then(now);
    ensure!(first.is_some(), "the first batch must be dated: {answers:?}");
    ensure!(answers.iter().all(|answer| now(answer) == first), "one instant: {answers:?}");
    let record = bench.record(&key("group-0")?).await?;
    ensure_eq!(Some(record.updated_at), first, "the record's date");
    Ok(())
}

/// A group that comes again in part: what was applied is recognised, the rest is applied.
pub async fn a_resend_in_a_group_is_recognised(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("there")?)).await?;
    let mark = subject("s")?;
    let document = Body::Set(bytes("document"));
    let batches = [
        bench.batch(vec![Condition::Absent(key("a")?)], vec![put(draft(&key("a")?))]),
        bench.batch(
            vec![Condition::PositionIs(mark.clone(), 0)],
            vec![Write::Mark { subject: mark.clone(), position: 1, value: document }],
        ),
        bench.batch(
            vec![Condition::RevIs(there.key.clone(), there.rev)],
            vec![put(draft_of(&there))],
        ),
    ];
    let before = bench.commit_all(&batches[..2]).await?;
    let after = bench.commit_all(&batches).await?;
    for (n, (before, after)) in before.iter().zip(&after).enumerate() {
        let (before, after) = (applied(before.clone())?, applied(after.clone())?);
        ensure_eq!((after.first, after.again), (before.first, true), "batch {n} comes again");
    }
    let last = after.last().cloned().map(applied).transpose()?;
    ensure_eq!(last.map(|last| last.again), Some(false), "batch 2 is new");
    Ok(())
}
