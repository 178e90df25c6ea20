//! Audit entries: listed in the order of their numbers, whole, and filtered by each of their
//! fields.

use onceward_core::audit::{Entry, Trace};
use onceward_core::batch::Write;

use super::bench::{
    Bench, Checked, Failure, TENANT, all_audit, audit, draft, ensure, ensure_eq, key, put,
};
use crate::store::{AuditFilter, List};

fn entry(entry: Entry) -> Write {
    Write::Audit(Box::new(entry))
}

/// Entries come in the order of commits, and within a batch in the order of the writes.
pub async fn audit_comes_in_the_order_of_commits(bench: &Bench<'_>) -> Checked {
    let mut must_be = Vec::new();
    for n in 0..10 {
        let actions = [format!("{n}.one"), format!("{n}.two")];
        let writes =
            vec![audit(&actions[0]), put(draft(&key(&format!("{}", 9 - n))?)), audit(&actions[1])];
        let now = bench.apply(&bench.batch(vec![], writes)).await?.now;
        must_be.extend(actions.map(|action| (action, now)));
        bench.pass(20).await?;
    }
    for limit in [1, 3, 100] {
        let entries = bench.list_audit(&all_audit(), limit).await?;
        let is: Vec<_> =
            entries.iter().map(|audited| (audited.entry.action.to_string(), audited.at)).collect();
        ensure_eq!(is, must_be, "pages of {limit}");
        let rising = entries.windows(2).all(|pair| pair[0].id < pair[1].id);
        ensure!(rising, "numbers rise: {entries:?}");
    }
    Ok(())
}

/// Each filter alone, pairs and all of them.
pub async fn audit_is_filtered_by_each_field(bench: &Bench<'_>) -> Checked {
    let mut all = Vec::new();
    for n in 0..32_u32 {
        let bit = |bit: u32| n >> bit & 1 == 1;
        let mut one = Entry::new(if bit(0) { "acme" } else { "beta" }, &format!("do.{}", n >> 3));
        one.subject = bit(1).then(|| "orders".into());
        one.key_hash = bit(2).then(|| format!("{:x}", n >> 4).into());
        bench.apply(&bench.batch(vec![], vec![entry(one.clone())])).await?;
        all.push(one);
    }
    let text = |text: &str| Some(text.to_string());
    for tenant in [None, text("acme"), text("beta"), text("acm"), text("ACME")] {
        for subject in [None, text("orders"), text("order")] {
            for key_hash in [None, text("1"), text("0")] {
                for action in [None, text("do.1"), text("do.%"), text("do")] {
                    let filter = AuditFilter {
                        tenant: tenant.clone(),
                        subject: subject.clone(),
                        key_hash: key_hash.clone(),
                        action: action.clone(),
                        ..AuditFilter::default()
                    };
                    let fits = |entry: &&Entry| fits(&filter, entry);
                    let must_be: Vec<_> = all.iter().filter(fits).cloned().collect();
                    let what = List::Audit(filter.clone());
                    let entries = bench.list_audit(&what, 7).await?;
                    let is: Vec<_> = entries.into_iter().map(|audited| audited.entry).collect();
                    ensure_eq!(is, must_be, "{what:?}");
                }
            }
        }
    }
    Ok(())
}

fn fits(filter: &AuditFilter, entry: &Entry) -> bool {
    let same = |wanted: &Option<String>, is: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| is == Some(wanted))
    };
    same(&filter.tenant, Some(&entry.tenant))
        && same(&filter.subject, entry.subject.as_deref())
        && same(&filter.key_hash, entry.key_hash.as_deref())
        && same(&filter.action, Some(&entry.action))
}

/// `from` is included, `to` is not.
pub async fn audit_times_are_half_open(bench: &Bench<'_>) -> Checked {
    let mut times = Vec::new();
    for n in 0..4 {
        let batch = bench.batch(vec![], vec![audit(&format!("{n}"))]);
        times.push(bench.apply(&batch).await?.now);
        // Longer than any date of a store without a clock is off, so that the times differ.
        bench.pass(200).await?;
    }
    ensure!(times.windows(2).all(|pair| pair[0] < pair[1]), "times rise: {times:?}");
    let bounds = [None, Some(0), Some(1), Some(2), Some(3)];
    for from in bounds {
        for to in bounds {
            let at = |index: Option<usize>| index.map(|index| times[index]);
            let filter = AuditFilter { from: at(from), to: at(to), ..AuditFilter::default() };
            let entries = bench.list_audit(&List::Audit(filter), 10).await?;
            let is: Vec<_> = entries.iter().map(|audited| &*audited.entry.action).collect();
            let range = from.unwrap_or(0)..to.unwrap_or(4);
            let must_be: Vec<_> = range.map(|n: usize| n.to_string()).collect();
            ensure_eq!(is, must_be, "from {from:?} to {to:?}");
        }
    }
    Ok(())
}

/// Every field of an entry comes back, filled or empty, whatever characters it holds.
pub async fn audit_entries_come_back_as_written(bench: &Bench<'_>) -> Checked {
    let odd = "NUL \u{0}, quote ', percent %, colon :, line\nend, 🦀, \u{10ffff}";
    let full = |text: &str| -> Result<Entry, Failure> {
        Ok(Entry {
            tenant: TENANT.into(),
            action: "mission.lock".into(),
            subject: Some(text.into()),
            key_hash: Some(key(text)?.hash_hex().clone()),
            payload_hash: Some("00ff".into()),
            version_before: Some(0),
            version_after: Some(i64::MAX as u64 - 1),
            fence: Some(7),
            trace: Trace {
                actor: Some(text.into()),
                request_id: Some(text.into()),
                correlation_id: Some(text.into()),
            },
            detail: Some(text.into()),
        })
    };
    let empty = full("");
    let mut empty = empty.or_else(|_| full("x"))?;
    for field in [&mut empty.subject, &mut empty.key_hash, &mut empty.detail] {
        *field = Some("".into());
    }
    let must_be = [full("plain")?, full(odd)?, Entry::new(TENANT, "bare"), empty];
    let writes = must_be.iter().cloned().map(entry).collect();
    bench.apply(&bench.batch(vec![], writes)).await?;
    let entries = bench.list_audit(&all_audit(), 10).await?;
    let is: Vec<_> = entries.into_iter().map(|audited| audited.entry).collect();
    ensure_eq!(is, must_be, "entries");
    let what = List::Audit(AuditFilter { subject: Some(odd.into()), ..AuditFilter::default() });
    ensure_eq!(bench.list_audit(&what, 10).await?.len(), 1, "found by an odd subject");
    Ok(())
}
