//! Batches: all conditions hold and all writes happen, or nothing is written and the answer says
//! why. A refusal names each condition that failed and what is there now.

use std::sync::Arc;

use onceward_core::Bytes;
use onceward_core::audit::Trace;
use onceward_core::batch::{Answer, Batch, Condition, There, Write};
use onceward_core::fingerprint::{Fingerprint, fingerprint_bytes};
use onceward_core::guard::{Guard, Rule};
use onceward_core::key::Key;
use onceward_core::record::{
    Body, Draft, FenceWrite, OnAbandoned, OnDead, Record, State, Stored, Terms, Time,
};
use onceward_core::stamp::{Fence, Rev};

use super::bench::{
    Bench, Checked, Failure, all_audit, all_records, audit, bytes, commit_to, draft, draft_of,
    ensure, ensure_eq, first, key, mark_at, put, subject, with_outcome, with_payload,
};

/// `Absent` holds when there is no record of the key.
pub async fn absent_holds_without_a_record(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let batch = bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
    let applied = bench.apply(&batch).await?;
    ensure!(!applied.again, "a first try is not a resend");
    ensure_eq!(bench.record(&key).await?.rev, first(&applied)?.0, "the rev that was answered");
    Ok(())
}

/// `Absent` fails when there is one.
pub async fn absent_fails_with_a_record(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let there = bench.insert(&draft(&key)).await?;
    let batch = bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
    let refused = bench.refuse(&batch).await?;
    ensure_eq!(refused.failed, [(0, record_there(&there, None))], "what is there");
    ensure_eq!(bench.record(&key).await?, there, "the record stays");
    Ok(())
}

/// `RevIs` holds for the rev that the record has.
pub async fn rev_is_holds_for_the_current_rev(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let mut there = bench.insert(&draft(&key)).await?;
    for _ in 0..3 {
        let condition = Condition::RevIs(key.clone(), there.rev);
        let batch = bench.batch(vec![condition], vec![put(draft_of(&there))]);
        let applied = bench.apply(&batch).await?;
        there = bench.record(&key).await?;
        ensure_eq!(there.rev, first(&applied)?.0, "the rev that was answered");
    }
    Ok(())
}

/// `RevIs` fails for an older rev, for one that was never drawn, and without a record.
pub async fn rev_is_fails_for_any_other(bench: &Bench<'_>) -> Checked {
    let (key, none) = (key("a")?, key("none")?);
    let old = bench.insert(&draft(&key)).await?;
    let there = bench.insert(&draft_of(&old)).await?;
    for rev in [old.rev, Rev(there.rev.0 + 1), Rev(0)] {
        let condition = Condition::RevIs(key.clone(), rev);
        let batch = bench.batch(vec![condition], vec![put(draft(&key))]);
        let refused = bench.refuse(&batch).await?;
        ensure_eq!(refused.failed, [(0, record_there(&there, None))], "refused for {rev:?}");
    }
    let condition = Condition::RevIs(none.clone(), there.rev);
    let refused = bench.refuse(&bench.batch(vec![condition], vec![put(draft(&none))])).await?;
    ensure_eq!(refused.failed, [(0, There::Record(None))], "without a record");
    Ok(())
}

/// `FenceIs` holds for the fence that may write the record, through every renewal.
pub async fn fence_is_holds_for_the_current_fence(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let mut there = bench.insert(&draft(&key)).await?;
    let Some(fence) = there.fence else { return Err(Failure::new("a grant must draw a fence")) };
    for _ in 0..3 {
        let condition = Condition::FenceIs(key.clone(), fence);
        bench.apply(&bench.batch(vec![condition], vec![put(draft_of(&there))])).await?;
        there = bench.record(&key).await?;
        ensure_eq!(there.fence, Some(fence), "a renewal leaves the fence");
    }
    Ok(())
}

/// `FenceIs` fails for an older fence, after the permit has ended, and without a record.
pub async fn fence_is_fails_for_any_other(bench: &Bench<'_>) -> Checked {
    let (key, none) = (key("a")?, key("none")?);
    let old = bench.insert(&draft(&key)).await?.last_fence;
    let taken = bench.insert(&draft(&key)).await?;
    for fence in [old, Fence(taken.last_fence.0 + 1), Fence(0)] {
        let condition = Condition::FenceIs(key.clone(), fence);
        let batch = bench.batch(vec![condition], vec![put(draft(&key))]);
        let refused = bench.refuse(&batch).await?;
        ensure_eq!(refused.failed, [(0, record_there(&taken, None))], "refused for {fence:?}");
    }
    let end = Draft { fence: FenceWrite::End, ..draft_of(&taken) };
    let ended = bench.insert(&end).await?;
    let condition = Condition::FenceIs(key.clone(), taken.last_fence);
    let refused = bench.refuse(&bench.batch(vec![condition], vec![put(draft(&key))])).await?;
    ensure_eq!(refused.failed, [(0, record_there(&ended, None))], "after the permit has ended");
    let condition = Condition::FenceIs(none, taken.last_fence);
    let refused = bench.refuse(&bench.batch(vec![condition], vec![put(draft(&key))])).await?;
    ensure_eq!(refused.failed, [(0, There::Record(None))], "without a record");
    Ok(())
}

/// `PositionIs` holds at the position, which is 0 without a mark.
pub async fn position_is_holds_at_the_position(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    for position in [0, 1, 5] {
        let condition = Condition::PositionIs(subject.clone(), position);
        let next = if position == 0 { 1 } else { 5 };
        bench.apply(&bench.batch(vec![condition], vec![mark_at(&subject, next)])).await?;
        ensure_eq!(bench.position(&subject).await?, next, "moved from {position}");
    }
    Ok(())
}

/// `PositionIs` fails below and above it, and for anything but 0 without a mark.
pub async fn position_is_fails_anywhere_else(bench: &Bench<'_>) -> Checked {
    let (subject, none) = (subject("s")?, subject("none")?);
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject, 5)])).await?;
    let mark = bench.mark(&subject).await?;
    for position in [0, 4, 6] {
        let condition = Condition::PositionIs(subject.clone(), position);
        let batch = bench.batch(vec![condition], vec![mark_at(&subject, 9)]);
        let refused = bench.refuse(&batch).await?;
        ensure_eq!(refused.failed, [(0, There::Mark(mark.clone()))], "refused at {position}");
    }
    let condition = Condition::PositionIs(none.clone(), 1);
    let refused = bench.refuse(&bench.batch(vec![condition], vec![mark_at(&none, 9)])).await?;
    ensure_eq!(refused.failed, [(0, There::Mark(None))], "without a mark");
    ensure_eq!(bench.mark(&subject).await?, mark, "the mark stays");
    ensure_eq!(bench.mark(&none).await?, None, "no mark appears");
    Ok(())
}

/// `PositionAtMost` holds at the position and above it.
pub async fn position_at_most_holds_at_and_below(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    for (bound, next) in [(0, 5), (5, 6), (100, 7)] {
        let condition = Condition::PositionAtMost(subject.clone(), bound);
        bench.apply(&bench.batch(vec![condition], vec![mark_at(&subject, next)])).await?;
        ensure_eq!(bench.position(&subject).await?, next, "moved under {bound}");
    }
    Ok(())
}

/// `PositionAtMost` fails when the subject has passed it.
pub async fn position_at_most_fails_above(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject, 5)])).await?;
    let mark = bench.mark(&subject).await?;
    for bound in [0, 4] {
        let condition = Condition::PositionAtMost(subject.clone(), bound);
        let batch = bench.batch(vec![condition], vec![mark_at(&subject, 9)]);
        let refused = bench.refuse(&batch).await?;
        ensure_eq!(refused.failed, [(0, There::Mark(mark.clone()))], "refused under {bound}");
    }
    ensure_eq!(bench.mark(&subject).await?, mark, "the mark stays");
    Ok(())
}

/// Several writes of every kind under several conditions, which `everything` made possible.
async fn mixed(bench: &Bench<'_>) -> Result<(Batch, Record), Failure> {
    let gone = bench.insert(&draft(&key("gone")?)).await?;
    let kept = bench.insert(&draft(&key("kept")?)).await?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject("moved")?, 3)])).await?;
    let conditions = vec![
        Condition::Absent(key("one")?),
        Condition::RevIs(gone.key.clone(), gone.rev),
        Condition::FenceIs(kept.key.clone(), kept.last_fence),
        Condition::PositionIs(subject("moved")?, 3),
        Condition::PositionAtMost(subject("new")?, 0),
    ];
    let document = Body::Set(bytes("document"));
    let writes = vec![
        put(with_outcome(draft(&key("one")?), &bytes("outcome"))),
        put(with_payload(draft(&key("two")?), &bytes("payload"))),
        audit("first"),
        Write::Delete(gone.key.clone()),
        put(draft_of(&kept)),
        mark_at(&subject("moved")?, 4),
        Write::Mark { subject: subject("new")?, position: 1, value: document },
        audit("second"),
    ];
    Ok((bench.batch(conditions, writes), kept))
}

/// When all conditions hold, all writes happen.
pub async fn all_writes_of_a_batch_happen(bench: &Bench<'_>) -> Checked {
    let (batch, kept) = mixed(bench).await?;
    let applied = bench.apply(&batch).await?;
    ensure!(!applied.again, "a first try is not a resend");
    let one = bench.found(&key("one")?).await?;
    let outcome = one.as_ref().and_then(|found| found.stored.outcome.clone());
    ensure_eq!(outcome, Some(bytes("outcome")), "the outcome of the first put");
    let stamps = one.map(|found| (found.stored.record.rev, found.stored.record.fence));
    ensure_eq!(applied.first, stamps, "the stamps of the first put");
    let two = bench.found(&key("two")?).await?;
    let payload = two.and_then(|found| found.payload);
    ensure_eq!(payload, Some(bytes("payload")), "the payload of the second put");
    ensure_eq!(bench.found(&key("gone")?).await?, None, "the deleted record");
    ensure!(bench.record(&key("kept")?).await?.rev > kept.rev, "the third put");
    ensure_eq!(bench.position(&subject("moved")?).await?, 4, "the first mark");
    let new = bench.mark(&subject("new")?).await?;
    let value = new.map(|mark| (mark.position, mark.value));
    ensure_eq!(value, Some((1, Some(bytes("document")))), "the second mark");
    let actions = actions(bench).await?;
    ensure_eq!(actions, ["first", "second"], "the audit entries");
    Ok(())
}

/// When any one condition fails, none of the writes happens.
pub async fn i11_a_refused_batch_writes_nothing(bench: &Bench<'_>) -> Checked {
    let (batch, kept) = mixed(bench).await?;
    let there = bench.list_records(&all_records(), 100).await?;
    let breakers = [
        Condition::Absent(kept.key.clone()),
        Condition::RevIs(kept.key.clone(), Rev(kept.rev.0 + 100)),
        Condition::FenceIs(kept.key.clone(), Fence(kept.rev.0 + 100)),
        Condition::PositionIs(subject("moved")?, 2),
        Condition::PositionAtMost(subject("moved")?, 2),
    ];
    for breaker in breakers {
        let mut conditions = batch.conditions.clone();
        conditions.push(breaker.clone());
        let refused = bench.refuse(&bench.batch(conditions, batch.writes.clone())).await?;
        let failed: Vec<_> = refused.failed.iter().map(|(index, _)| *index).collect();
        ensure_eq!(failed, [5], "only {breaker:?} fails");
        let now = bench.list_records(&all_records(), 100).await?;
        ensure_eq!(now, there, "the records after {breaker:?}");
        ensure_eq!(bench.found(&key("one")?).await?, None, "after {breaker:?}");
        ensure_eq!(bench.position(&subject("moved")?).await?, 3, "after {breaker:?}");
        ensure_eq!(bench.mark(&subject("new")?).await?, None, "after {breaker:?}");
        ensure_eq!(actions(bench).await?, Vec::<String>::new(), "after {breaker:?}");
    }
    bench.apply(&batch).await?;
    Ok(())
}

async fn actions(bench: &Bench<'_>) -> Result<Vec<String>, Failure> {
    let entries = bench.list_audit(&all_audit(), 100).await?;
    Ok(entries.into_iter().map(|audited| audited.entry.action.to_string()).collect())
}

/// Each condition that failed is named by its index, in their order, and no other.
pub async fn a_refusal_names_each_failed_condition(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject("s")?, 3)])).await?;
    let mark = bench.mark(&subject("s")?).await?;
    let conditions = vec![
        Condition::Absent(key("b")?),
        Condition::Absent(there.key.clone()),
        Condition::RevIs(there.key.clone(), there.rev),
        Condition::RevIs(there.key.clone(), Rev(there.rev.0 + 1)),
        Condition::FenceIs(there.key.clone(), Fence(there.rev.0 + 1)),
        Condition::FenceIs(there.key.clone(), there.last_fence),
        Condition::RevIs(key("b")?, there.rev),
        Condition::PositionIs(subject("s")?, 4),
        Condition::PositionAtMost(subject("s")?, 3),
        Condition::PositionAtMost(subject("s")?, 2),
    ];
    let refused = bench.refuse(&bench.batch(conditions, vec![audit("never")])).await?;
    let expected = [
        (1, record_there(&there, None)),
        (3, record_there(&there, None)),
        (4, record_there(&there, None)),
        (6, There::Record(None)),
        (7, There::Mark(mark.clone())),
        (9, There::Mark(mark)),
    ];
    ensure_eq!(refused.failed, expected, "the failed conditions");
    Ok(())
}

/// What is there comes whole: the record with its outcome's bytes, the mark with its value.
pub async fn a_refusal_shows_what_is_there(bench: &Bench<'_>) -> Checked {
    let outcome = bytes("the answer that a duplicate replays");
    let mut done = with_payload(with_outcome(draft(&key("a")?), &outcome), &bytes("payload"));
    done.record.state = State::Done;
    let there = bench.insert(&done).await?;
    let document = bytes("document");
    let write =
        Write::Mark { subject: subject("s")?, position: 3, value: Body::Set(document.clone()) };
    bench.apply(&bench.batch(vec![], vec![write])).await?;
    let conditions = vec![Condition::Absent(key("a")?), Condition::PositionIs(subject("s")?, 0)];
    let refused = bench.refuse(&bench.batch(conditions, vec![put(draft(&key("a")?))])).await?;
    let [(0, record), (1, There::Mark(Some(mark)))] = refused.failed.as_slice() else {
        return Err(Failure::new(format!("must name both conditions: {refused:?}")));
    };
    ensure_eq!(*record, record_there(&there, Some(outcome)), "the record and its outcome");
    ensure_eq!((mark.position, mark.value.clone()), (3, Some(document)), "the mark");
    Ok(())
}

/// A batch may ask without writing.
pub async fn conditions_without_writes_are_answered(bench: &Bench<'_>) -> Checked {
    let there = bench.insert(&draft(&key("a")?)).await?;
    let holds = vec![Condition::RevIs(there.key.clone(), there.rev)];
    let applied = bench.apply(&bench.batch(holds, vec![])).await?;
    ensure_eq!(applied.first, None, "nothing was put");
    let fails = vec![Condition::Absent(there.key.clone())];
    bench.refuse(&bench.batch(fails, vec![])).await?;
    ensure_eq!(bench.record(&there.key).await?, there, "the record stays");
    Ok(())
}

/// A draft of this state that uses every field.
fn rich(key: &Key, state: State, rule: Rule) -> Result<Draft, Failure> {
    let mut rich = draft(key);
    let record = &mut rich.record;
    record.state = state;
    record.fingerprint = Fingerprint::from_stored(7, [0xa5; 32]);
    record.attempt = 1_000;
    record.terms = Terms {
        lease_ms: 100,
        on_abandoned: OnAbandoned::Hold,
        retain_ms: 1,
        remember_ms: 0,
        max_attempts: 1_000,
        on_dead: OnDead::Block,
    };
    record.owner = Some("worker 7 / host-α".into());
    record.attempt_id = Some("attempt \u{0} 1".into());
    record.guard = Some(Guard::new(subject("guard:ed %")?, rule)?);
    record.priority = 9;
    record.error = Some("it broke: 'quoted' \"twice\" \u{0}\n🦀".into());
    record.trace = Trace {
        actor: Some("someone".into()),
        request_id: Some("r-1".into()),
        correlation_id: Some("c-1".into()),
    };
    rich.due = Time::In(1);
    rich.expires = Time::In(2);
    rich.sweep = Time::In(3);
    Ok(with_payload(with_outcome(rich, &bytes("outcome")), &bytes("payload")))
}

/// Every field of a record comes back as it was put, in every state and under every rule.
pub async fn a_record_comes_back_as_it_was_put(bench: &Bench<'_>) -> Checked {
    let rules = [
        Rule::Exactly { expected: 0 },
        Rule::Next { position: 1 },
        Rule::Above { position: 7 },
        Rule::NotBefore { at: 1_700_000_000_000, grace_ms: 300_000 },
    ];
    for state in State::ALL {
        for (n, rule) in rules.into_iter().enumerate() {
            let key = key(&format!("{}-{n}", state.as_str()))?;
            let draft = rich(&key, state, rule)?;
            let must_be = bench.insert(&draft).await?;
            let found = bench.found(&key).await?;
            let Some(found) = found else { return Err(Failure::new("must be there")) };
            ensure_eq!(found.stored.record, must_be, "the record");
            ensure_eq!(found.stored.outcome, Some(bytes("outcome")), "the outcome");
            ensure_eq!(found.payload, Some(bytes("payload")), "the payload");
        }
    }
    Ok(())
}

/// A put replaces every field: nothing of the record before it shows through.
pub async fn a_put_replaces_the_whole_record(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    bench.insert(&rich(&key, State::Failed, Rule::Next { position: 1 })?).await?;
    let mut plain = draft(&key);
    plain.due = Time::Clear;
    (plain.outcome, plain.payload) = (Body::Clear, Body::Clear);
    let must_be = bench.insert(&plain).await?;
    let Some(found) = bench.found(&key).await? else { return Err(Failure::new("must be there")) };
    ensure_eq!(found.stored.record, must_be, "the record");
    ensure_eq!((found.stored.outcome, found.payload), (None, None), "the bodies");
    Ok(())
}

/// Outcome and payload are set, kept and cleared, each on its own.
pub async fn bodies_are_set_kept_and_cleared(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let bodies = |found: Option<crate::store::Found>| {
        found.map(|found| (found.stored.outcome, found.payload))
    };
    let both = with_payload(with_outcome(draft(&key), &bytes("o1")), &bytes("p1"));
    let there = bench.insert(&both).await?;
    ensure_eq!(bodies(bench.found(&key).await?), Some((text("o1"), text("p1"))), "both set");

    let there = bench.insert(&draft_of(&there)).await?;
    ensure_eq!(bodies(bench.found(&key).await?), Some((text("o1"), text("p1"))), "both kept");

    let there = bench.insert(&with_outcome(draft_of(&there), &bytes("o2"))).await?;
    ensure_eq!(bodies(bench.found(&key).await?), Some((text("o2"), text("p1"))), "outcome set");

    let mut clear = draft_of(&there);
    (clear.record.outcome, clear.outcome) = (None, Body::Clear);
    let there = bench.insert(&clear).await?;
    ensure_eq!(bodies(bench.found(&key).await?), Some((None, text("p1"))), "outcome cleared");

    let mut clear = with_outcome(draft_of(&there), &bytes("o3"));
    (clear.record.has_payload, clear.payload) = (false, Body::Clear);
    bench.insert(&clear).await?;
    ensure_eq!(bodies(bench.found(&key).await?), Some((text("o3"), None)), "payload cleared");
    Ok(())
}

/// After a delete, a record of the same key starts without outcome and payload.
pub async fn a_delete_takes_outcome_and_payload_along(bench: &Bench<'_>) -> Checked {
    let key = key("a")?;
    let both = with_payload(with_outcome(draft(&key), &bytes("o")), &bytes("p"));
    let there = bench.insert(&both).await?;
    let condition = Condition::RevIs(key.clone(), there.rev);
    bench.apply(&bench.batch(vec![condition], vec![Write::Delete(key.clone())])).await?;
    ensure_eq!(bench.found(&key).await?, None, "the deleted record");
    let must_be = bench.insert(&draft(&key)).await?;
    let Some(found) = bench.found(&key).await? else { return Err(Failure::new("must be there")) };
    ensure_eq!(found.stored, Stored { record: must_be, outcome: None }, "the new record");
    ensure_eq!(found.payload, None, "its payload");
    Ok(())
}

/// A delete of what is not there is applied.
pub async fn deleting_nothing_is_applied(bench: &Bench<'_>) -> Checked {
    let writes = vec![Write::Delete(key("none")?), put(draft(&key("a")?))];
    let applied = bench.apply(&bench.batch(vec![], writes)).await?;
    let rev = bench.record(&key("a")?).await?.rev;
    ensure_eq!(first(&applied)?.0, rev, "the stamps of the put beside it");
    Ok(())
}

/// Racers in one of the concurrent cases.
const RACERS: usize = 16;

/// Sends each batch from a task of its own, again while it is contended, and counts the winners.
async fn race(bench: &Bench<'_>, batches: Vec<Batch>) -> Result<usize, Failure> {
    let start = Arc::new(tokio::sync::Barrier::new(batches.len()));
    let mut racers = tokio::task::JoinSet::new();
    for batch in batches {
        let (store, start) = (bench.store.clone(), start.clone());
        racers.spawn(async move {
            start.wait().await;
            loop {
                match commit_to(&*store, &batch).await? {
                    Answer::Contended => tokio::task::yield_now().await,
                    answer => return Ok::<_, Failure>(matches!(answer, Answer::Applied(_))),
                }
            }
        });
    }
    let mut winners = 0;
    while let Some(won) = racers.join_next().await {
        winners += usize::from(won??);
    }
    Ok(winners)
}

/// Of many that claim an absent key at once, one wins.
pub async fn of_many_first_claims_one_wins(bench: &Bench<'_>) -> Checked {
    for round in 0..5 {
        let key = key(&format!("{round}"))?;
        let claim = || bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft(&key))]);
        let winners = race(bench, (0..RACERS).map(|_| claim()).collect()).await?;
        ensure_eq!(winners, 1, "winners of round {round}");
    }
    Ok(())
}

/// Of many that saw the same rev, one writes; all in turn move a mark one step each.
pub async fn of_many_writers_of_one_rev_one_wins(bench: &Bench<'_>) -> Checked {
    let mut there = bench.insert(&draft(&key("a")?)).await?;
    let subject = subject("s")?;
    for round in 0..5 {
        let batch = |there: &Record| {
            let conditions = vec![
                Condition::RevIs(there.key.clone(), there.rev),
                Condition::PositionIs(subject.clone(), round),
            ];
            bench.batch(conditions, vec![put(draft_of(there)), mark_at(&subject, round + 1)])
        };
        let winners = race(bench, (0..RACERS).map(|_| batch(&there)).collect()).await?;
        ensure_eq!(winners, 1, "winners of round {round}");
        there = bench.record(&there.key).await?;
        ensure_eq!(bench.position(&subject).await?, round + 1, "the mark of round {round}");
    }
    Ok(())
}

fn text(text: &str) -> Option<Bytes> {
    Some(bytes(text))
}

fn record_there(record: &Record, outcome: Option<Bytes>) -> There {
    let mut record = record.clone();
    if let Some(outcome) = &outcome {
        record.outcome = Some(fingerprint_bytes(outcome));
    }
    There::Record(Some(Box::new(Stored { record, outcome })))
}
