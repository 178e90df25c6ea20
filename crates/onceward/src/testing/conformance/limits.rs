//! Limits: what fits must be taken, what breaks a bound is `Invalid` and does nothing. Any
//! character, any byte and the largest numbers fit.

use onceward_core::batch::{Condition, Write};
use onceward_core::key::{Key, Kind, Subject};
use onceward_core::limits::{
    LimitError, MAX_BATCH_BYTES, MAX_BATCH_WRITES, MAX_KEY_BYTES, MAX_PART_BYTES, MAX_POSITION,
    MAX_PRIORITY,
};
use onceward_core::record::Body;

use super::bench::{
    Bench, Checked, Failure, TENANT, all_records, audit, bytes, draft, ensure, ensure_eq, key,
    mark_at, put, subject, with_outcome, with_payload,
};
use crate::store::List;

/// A batch of the most writes, of all kinds.
pub async fn forty_writes_fit(bench: &Bench<'_>) -> Checked {
    let mut writes = Vec::new();
    for n in 0..MAX_BATCH_WRITES / 4 {
        writes.push(put(draft(&key(&format!("{n}"))?)));
        writes.push(mark_at(&subject(&format!("{n}"))?, 1));
        writes.push(audit("many"));
        writes.push(Write::Delete(key(&format!("none-{n}"))?));
    }
    ensure_eq!(writes.len(), MAX_BATCH_WRITES, "writes");
    bench.apply(&bench.batch(vec![], writes)).await?;
    let keys = bench.list_keys(&all_records(), 100).await?;
    ensure_eq!(keys.len(), MAX_BATCH_WRITES / 4, "records");
    let puts = (0..MAX_BATCH_WRITES).map(|n| Ok(put(draft(&key(&format!("put-{n}"))?))));
    let puts = puts.collect::<Result<Vec<_>, Failure>>()?;
    bench.apply(&bench.batch(vec![], puts)).await?;
    Ok(())
}

/// One write more breaks the bound.
pub async fn forty_one_writes_do_not(bench: &Bench<'_>) -> Checked {
    let puts = (0..=MAX_BATCH_WRITES).map(|n| Ok(put(draft(&key(&format!("{n}"))?))));
    let batch = bench.batch(vec![], puts.collect::<Result<_, Failure>>()?);
    let limit = bench.invalid(&batch).await?;
    ensure_eq!(limit.value, (MAX_BATCH_WRITES + 1).to_string(), "the value is named: {limit}");
    let bound = MAX_BATCH_WRITES.to_string();
    ensure!(limit.bound.contains(&bound), "the bound is named: {limit}");
    ensure_eq!(bench.list_keys(&all_records(), 100).await?, [], "nothing was written");
    Ok(())
}

/// Outcome, payload and value of the largest size, in one batch.
pub async fn two_mebibytes_fit(bench: &Bench<'_>) -> Checked {
    let third = vec![0xa5_u8; MAX_BATCH_BYTES / 4];
    let rest = MAX_BATCH_BYTES - 2 * third.len();
    let (third, rest) = (third.into(), vec![0x5a_u8; rest].into());
    let full = with_payload(with_outcome(draft(&key("a")?), &third), &rest);
    let value = Body::Set(third.clone());
    let writes = vec![put(full), Write::Mark { subject: subject("s")?, position: 1, value }];
    let batch = bench.batch(vec![], writes);
    ensure_eq!(batch.bytes(), MAX_BATCH_BYTES, "bytes");
    bench.apply(&batch).await?;
    let found = bench.found(&key("a")?).await?;
    let bodies = found.map(|found| (found.stored.outcome, found.payload));
    ensure!(bodies == Some((Some(third.clone()), Some(rest))), "the bodies come back");
    let value = bench.mark(&subject("s")?).await?.and_then(|mark| mark.value);
    ensure!(value == Some(third), "the value comes back");
    Ok(())
}

/// One byte more breaks the bound, wherever it is.
pub async fn more_than_two_mebibytes_do_not(bench: &Bench<'_>) -> Checked {
    let most = vec![1_u8; MAX_BATCH_BYTES].into();
    let batches = [
        vec![put(with_payload(with_outcome(draft(&key("a")?), &most), &bytes("1")))],
        vec![
            put(with_outcome(draft(&key("a")?), &most)),
            Write::Mark { subject: subject("s")?, position: 1, value: Body::Set(bytes("1")) },
        ],
        vec![put(with_outcome(draft(&key("a")?), &most)), audit("a")],
    ];
    for writes in batches {
        let limit: LimitError = bench.invalid(&bench.batch(vec![], writes)).await?;
        let bound = MAX_BATCH_BYTES.to_string();
        ensure!(limit.bound.contains(&bound), "the bound is named: {limit}");
    }
    ensure_eq!(bench.found(&key("a")?).await?, None, "nothing was written");
    ensure_eq!(bench.mark(&subject("s")?).await?, None, "nothing was written");
    Ok(())
}

/// Two writes of one row break a bound, in either order.
pub async fn one_row_is_written_once(bench: &Bench<'_>) -> Checked {
    let (key, other) = (key("a")?, key("b")?);
    let put = || put(draft(&key));
    let delete = || Write::Delete(key.clone());
    let mark = |position| Ok::<_, Failure>(mark_at(&subject("s")?, position));
    let twice = [
        vec![put(), put()],
        vec![put(), super::bench::put(draft(&other)), put()],
        vec![put(), delete()],
        vec![delete(), put()],
        vec![delete(), delete()],
        vec![mark(1)?, mark(2)?],
        vec![mark(1)?, put(), mark(1)?],
    ];
    for writes in twice {
        let batch = bench.batch(vec![], writes);
        bench.invalid(&batch).await?;
        ensure_eq!(bench.found(&key).await?, None, "nothing was written: {batch:?}");
        ensure_eq!(bench.mark(&subject("s")?).await?, None, "nothing was written: {batch:?}");
    }
    // Conditions may name a row as often as they like.
    let conditions = vec![Condition::Absent(key.clone()), Condition::Absent(key.clone())];
    bench.apply(&bench.batch(conditions, vec![put()])).await?;
    Ok(())
}

/// Texts that something on the way might take for something else.
const ODD: [&str; 18] = [
    "\u{0}",
    "a\u{0}b",
    ":",
    "a:b",
    "::",
    "%",
    "%3A",
    "%25",
    "100%_sure",
    "'; DROP TABLE records; --",
    "\"quoted\"",
    "back\\slash",
    "line\nend\r\ttab",
    "🦀😀",
    "日本語",
    "\u{202e}right to left",
    " leading and trailing ",
    "\u{10ffff}",
];

/// Any character can be in any part of a key, and comes back.
pub async fn any_character_can_be_in_a_key(bench: &Bench<'_>) -> Checked {
    let mut keys = Vec::new();
    for odd in ODD {
        keys.push(Key::new(Kind::Request, odd, SCOPE_OF_ODD, "a")?);
        keys.push(Key::new(Kind::Request, TENANT, odd, "a")?);
        keys.push(Key::new(Kind::Job, TENANT, SCOPE_OF_ODD, odd)?);
        keys.push(Key::within(Kind::Event, TENANT, SCOPE_OF_ODD, &[odd, ""], "a")?);
    }
    each_on_its_own(bench, keys).await
}

const SCOPE_OF_ODD: &str = "POST /v1/{id}";

/// Inserts every key with an outcome of its own and finds each again, by load and by list.
async fn each_on_its_own(bench: &Bench<'_>, mut keys: Vec<Key>) -> Checked {
    for (n, key) in keys.iter().enumerate() {
        let draft = with_outcome(draft(key), &bytes(&format!("{n}")));
        bench.apply(&bench.batch(vec![Condition::Absent(key.clone())], vec![put(draft)])).await?;
    }
    for (n, key) in keys.iter().enumerate() {
        let Some(found) = bench.found(key).await? else {
            return Err(Failure::new(format!("{key:?} must be there")));
        };
        ensure_eq!(found.stored.record.key, *key, "the key");
        ensure_eq!(found.stored.outcome, Some(bytes(&format!("{n}"))), "the outcome of {key:?}");
    }
    keys.sort();
    ensure_eq!(bench.list_keys(&all_records(), 7).await?, keys, "all listed in order");
    for key in &keys {
        let tenant = Some(key.tenant_column().to_string());
        let scope = Some(key.scope_column().to_string());
        let what = List::Records { tenant, scope, state: None };
        let listed = bench.list_keys(&what, 100).await?;
        ensure!(listed.contains(key), "{key:?} is listed under its own columns");
    }
    Ok(())
}

/// Any character can be in any part of a subject, and comes back.
pub async fn any_character_can_be_in_a_subject(bench: &Bench<'_>) -> Checked {
    let mut subjects = Vec::new();
    for odd in ODD {
        subjects.push(Subject::new(odd, "doc", "a")?);
        subjects.push(Subject::new(TENANT, odd, "a")?);
        subjects.push(Subject::new(TENANT, "doc", odd)?);
    }
    for (n, subject) in subjects.iter().enumerate() {
        let condition = Condition::PositionIs(subject.clone(), 0);
        let write = mark_at(subject, n as u64 + 1);
        bench.apply(&bench.batch(vec![condition], vec![write])).await?;
    }
    for (n, subject) in subjects.iter().enumerate() {
        ensure_eq!(bench.position(subject).await?, n as u64 + 1, "{subject:?}");
        let tenant = subject.tenant_column().to_string();
        let what = List::Marks { tenant: Some(tenant), prefix: subject.name_column().to_string() };
        let listed = bench.list_marks(&what, 100).await?;
        ensure!(listed.iter().any(|(there, _)| there == subject), "{subject:?} is listed");
    }
    Ok(())
}

/// Parts of the most bytes, and a whole key of the most bytes.
pub async fn the_longest_keys_fit(bench: &Bench<'_>) -> Checked {
    let part = |letter: &str| letter.repeat(MAX_PART_BYTES);
    let (t, s, i) = (part("t"), part("s"), part("i"));
    let mut keys = vec![
        Key::new(Kind::Request, &t, &s, &i)?,
        Key::within(Kind::Request, &t, &s, &[&part("w")], &i)?,
        Key::new(Kind::Job, &"🦀".repeat(MAX_PART_BYTES / 4), &s, &"é".repeat(MAX_PART_BYTES / 2))?,
    ];
    // Tenant, scope, two parts and id of 512 bytes less the three colons between them.
    let whole = Key::within(Kind::Request, &t, &s, &[&part("w"), &part("x")], &i[3..])?;
    let length = whole.tenant_column().len() + whole.name_column().len();
    ensure_eq!(length, MAX_KEY_BYTES, "the longest key");
    keys.push(whole);
    for last in ["a", "b"] {
        // Two that differ in their last byte only.
        let id = format!("{}{last}", &i[1..]);
        keys.push(Key::new(Kind::Event, &t, &s, &id)?);
    }
    each_on_its_own(bench, keys).await?;
    let longest = Subject::new(&t, &s, &i)?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&longest, 7)])).await?;
    ensure_eq!(bench.position(&longest).await?, 7, "the longest subject");
    Ok(())
}

/// Keys that differ in one part, in case, in white space or in spelling are different keys.
pub async fn c10_keys_that_look_alike_never_collide(bench: &Bench<'_>) -> Checked {
    let mut keys = Vec::new();
    for kind in Kind::ALL {
        for tenant in ["acme", "Acme", "acme ", "beta"] {
            for scope in ["s", "S", "s "] {
                keys.push(Key::new(kind, tenant, scope, "id")?);
            }
        }
    }
    for id in ["ID", "id ", " id", "i d", "i\u{a0}d", "\u{e9}", "e\u{301}", "ﬁ", "fi", "ß", "ss"]
    {
        keys.push(Key::new(Kind::Request, "acme", "s", id)?);
    }
    keys.push(Key::within(Kind::Request, "acme", "s", &[""], "id")?);
    keys.push(Key::within(Kind::Request, "acme", "s", &["", ""], "id")?);
    keys.push(Key::within(Kind::Request, "acme", "s", &["x"], "id")?);
    keys.push(Key::new(Kind::Request, "acme", "s:x", "id")?);
    keys.push(Key::new(Kind::Request, "acme", "s", "x:id")?);
    keys.push(Key::new(Kind::Request, "acme", "s", "x%3Aid")?);
    each_on_its_own(bench, keys).await
}

/// Every byte, no bytes, and text that is not UTF-8.
pub async fn any_byte_can_be_in_a_body(bench: &Bench<'_>) -> Checked {
    let every: Vec<u8> = (0..=255).collect();
    for (n, body) in
        [every, vec![], vec![0], vec![0xff, 0xfe], vec![0; 100_000]].into_iter().enumerate()
    {
        let body = body.into();
        let key = key(&format!("{n}"))?;
        let full = with_payload(with_outcome(draft(&key), &body), &body);
        let value = Body::Set(body.clone());
        let subject = subject(&format!("{n}"))?;
        let writes = vec![put(full), Write::Mark { subject: subject.clone(), position: 1, value }];
        bench.apply(&bench.batch(vec![], writes)).await?;
        let found = bench.found(&key).await?;
        let bodies = found.map(|found| (found.stored.outcome, found.payload));
        ensure_eq!(bodies, Some((Some(body.clone()), Some(body.clone()))), "body {n}");
        let value = bench.mark(&subject).await?.and_then(|mark| mark.value);
        ensure_eq!(value, Some(body), "value {n}");
    }
    Ok(())
}

/// The highest position, attempt and priority.
pub async fn the_largest_numbers_fit(bench: &Bench<'_>) -> Checked {
    let subject = subject("s")?;
    bench.apply(&bench.batch(vec![], vec![mark_at(&subject, MAX_POSITION)])).await?;
    ensure_eq!(bench.position(&subject).await?, MAX_POSITION, "the highest position");
    let holds = vec![
        Condition::PositionIs(subject.clone(), MAX_POSITION),
        Condition::PositionAtMost(subject.clone(), MAX_POSITION),
    ];
    bench.apply(&bench.batch(holds, vec![mark_at(&subject, MAX_POSITION - 1)])).await?;
    ensure_eq!(bench.position(&subject).await?, MAX_POSITION, "it does not move back");
    let fails = vec![Condition::PositionAtMost(subject.clone(), MAX_POSITION - 1)];
    bench.refuse(&bench.batch(fails, vec![])).await?;
    let mut largest = draft(&key("a")?);
    largest.record.attempt = u32::MAX;
    largest.record.priority = MAX_PRIORITY;
    let there = bench.insert(&largest).await?;
    ensure_eq!(bench.record(&key("a")?).await?, there, "the record");
    Ok(())
}
