//! Settled audit entries: what a sealer reads, and what retention drops.
//!
//! A store without settled lists refuses both: half of it would leave a chain with holes.

use onceward_core::audit::Entry;
use onceward_core::batch::Write;
use onceward_core::seal::{Place, Settled};
use onceward_core::stamp::At;

use super::bench::{Bench, Checked, Failure, ensure, ensure_eq};
use crate::store::{Cursor, Items, List, StoreError};

fn entry(tenant: &str, action: &str) -> Write {
    Write::Audit(Box::new(Entry::new(tenant, action)))
}

fn of(tenant: Option<&str>) -> List {
    List::Settled { tenant: tenant.map(Into::into) }
}

/// Whether the store has settled lists; one that has none says so.
async fn has_them(bench: &Bench<'_>) -> Result<bool, Failure> {
    match bench.store.list(of(None), None, 1).await {
        Ok(_) => Ok(true),
        Err(StoreError::Unsupported { .. }) => {
            let prune =
                Write::Prune { tenant: "acme".into(), through: Place(0, 1), until: At(u64::MAX) };
            bench.invalid(&bench.batch(vec![], vec![prune])).await?;
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Everything from a cursor on, and the cursor of its end.
async fn read(
    bench: &Bench<'_>,
    what: &List,
    mut after: Option<Cursor>,
    limit: usize,
) -> Result<(Vec<Settled>, Option<Cursor>), Failure> {
    let mut all = Vec::new();
    loop {
        let page = bench.store.list(what.clone(), after.clone(), limit).await?;
        let Items::Settled(entries) = page.items else {
            return Err(Failure::new(format!("asked for settled entries, got {:?}", page.items)));
        };
        ensure!(entries.len() <= limit, "a page of {limit} has {} items", entries.len());
        ensure_eq!(page.next.is_some(), !entries.is_empty(), "a page that is not empty goes on");
        if entries.is_empty() {
            return Ok((all, after));
        }
        all.extend(entries);
        after = page.next;
    }
}

fn actions(entries: &[Settled]) -> Vec<&str> {
    entries.iter().map(|settled| &*settled.audited.entry.action).collect()
}

/// Places rise in the order of commits; whoever goes on from where they were sees all that came
/// since, and nothing twice.
pub async fn settled_entries_are_listed_once_in_a_lasting_order(bench: &Bench<'_>) -> Checked {
    if !has_them(bench).await? {
        return Ok(());
    }
    let mut must_be = Vec::new();
    let (mut seen, mut after) = (Vec::new(), None);
    for n in 0..12 {
        let names = [format!("{n}.one"), format!("{n}.two")];
        let tenants = if n % 3 == 0 { ["acme", "acme"] } else { ["beta", "acme"] };
        let writes = names.iter().zip(tenants).map(|(name, tenant)| entry(tenant, name));
        bench.apply(&bench.batch(vec![], writes.collect())).await?;
        must_be.extend(names.into_iter().zip(tenants));
        bench.pass(20).await?;
        if n % 4 == 3 {
            bench.settle().await?;
            let (new, end) = read(bench, &of(None), after.clone(), 3).await?;
            ensure!(!new.is_empty(), "what was committed settles");
            seen.extend(new);
            after = end.or(after);
        }
    }
    let names: Vec<&str> = must_be.iter().map(|(name, _)| &**name).collect();
    ensure_eq!(actions(&seen), names, "all of it, in the order of commits");
    let rising = seen.windows(2).all(|pair| pair[0].place < pair[1].place);
    ensure!(rising, "places rise: {seen:?}");
    ensure!(seen.iter().all(|it| it.place.1 == it.audited.id), "a place ends with the number");
    for limit in [1, 5, 100] {
        ensure_eq!(read(bench, &of(None), None, limit).await?.0, seen, "pages of {limit}");
        for tenant in ["acme", "beta", "gamma"] {
            let own = seen.iter().filter(|settled| &*settled.audited.entry.tenant == tenant);
            let own: Vec<_> = own.cloned().collect();
            let (found, _) = read(bench, &of(Some(tenant)), None, limit).await?;
            ensure_eq!(found, own, "{tenant}'s in pages of {limit}");
        }
    }
    Ok(())
}

/// Only the tenant's, only up to the place and the instant; and no number comes again.
pub async fn pruned_entries_are_gone_and_their_numbers_stay_used(bench: &Bench<'_>) -> Checked {
    if !has_them(bench).await? {
        return Ok(());
    }
    for n in 0..6 {
        let writes = vec![entry("acme", &format!("a{n}")), entry("beta", &format!("b{n}"))];
        bench.apply(&bench.batch(vec![], writes)).await?;
        // Longer than any date of a store without a clock is off, so that the times rise.
        bench.pass(200).await?;
    }
    bench.settle().await?;
    let (before, _) = read(bench, &of(Some("acme")), None, 10).await?;
    let prune = |at: usize, until: At| Write::Prune {
        tenant: "acme".into(),
        through: before[at].place,
        until,
    };
    let dropped = bench.batch(vec![], vec![prune(2, before[2].audited.at)]);
    bench.apply(&dropped).await?;
    // The instant bounds it too: nothing that is younger goes, whatever its place.
    bench.apply(&bench.batch(vec![], vec![prune(5, before[2].audited.at)])).await?;
    bench.settle().await?;
    ensure_eq!(read(bench, &of(Some("acme")), None, 10).await?.0, before[3..].to_vec(), "the rest");
    let (beta, _) = read(bench, &of(Some("beta")), None, 10).await?;
    ensure_eq!(actions(&beta), ["b0", "b1", "b2", "b3", "b4", "b5"], "the others' stay");
    bench.apply(&bench.batch(vec![], vec![prune(5, before[5].audited.at)])).await?;
    bench.apply(&bench.batch(vec![], vec![entry("acme", "late")])).await?;
    bench.settle().await?;
    let (after, _) = read(bench, &of(Some("acme")), None, 10).await?;
    ensure_eq!(actions(&after), ["late"], "all that was there is gone");
    ensure!(after[0].place > before[5].place, "a number is not used again: {after:?}");
    // Sent again, it is known and drops nothing more.
    bench.apply(&dropped).await?;
    bench.settle().await?;
    ensure_eq!(read(bench, &of(Some("acme")), None, 10).await?.0, after, "once");
    Ok(())
}
