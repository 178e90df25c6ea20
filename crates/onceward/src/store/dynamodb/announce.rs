//! Lists of what there is: tenants, and the users of each who have records in a scope.
//!
//! Every partition that a list of records has to look through is on one of them. Rule: a partition
//! is announced before the first write into it, so a process that dies in between leaves one that
//! is empty, and never a record that no list finds. Tenants stay on their list. A user whose
//! records of a scope are gone is taken off once nobody can still rely on having announced it: a
//! process announces anew after an hour, and DynamoDB takes no write that was signed a quarter of
//! an hour ago, so after a day without an announcement no write can follow that had none.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use futures_util::future::try_join_all;
use onceward_core::batch::{Batch, Write};
use onceward_core::stamp::At;

use super::bodies::random_name;
use super::failure::{Failure, again};
use super::names::{self, Place};
use super::ops::{Item, Op, number, text};
use super::plan::tenants;
use super::table::Table;

/// Announcements that a process remembers.
const ANNOUNCED_MAX: usize = 100_000;
/// How long it relies on one.
const ANNOUNCED_FOR_MS: u64 = 3_600_000;
/// How long ago a user was announced who is taken off the list.
const RETIRED_AFTER_MS: u64 = 86_400_000;
/// When it was announced last.
pub(super) const ANNOUNCED_AT: &str = "announced_at";

/// What a process has put on a list, and when.
#[derive(Debug, Default)]
pub(super) struct Announced(Mutex<HashMap<Place, At>>);

impl Announced {
    fn holds(&self, place: &Place, now: At) -> bool {
        let announced = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        announced.get(place).is_some_and(|at| now.0 < at.plus(ANNOUNCED_FOR_MS).0)
    }

    /// Past its bound it starts anew: that costs a write each.
    fn add(&self, place: Place, at: At) {
        let mut announced = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if announced.len() >= ANNOUNCED_MAX {
            announced.clear();
        }
        announced.insert(place, at);
    }
}

/// Puts what a batch writes into on its lists, unless this process did so lately.
pub(super) async fn announce(table: &Table, batch: &Batch, now: At) -> Result<(), Failure> {
    let of_tenant = |tenant: &str| (names::tenant(tenant), tenant.to_string());
    let mut places: BTreeSet<(Place, String)> = tenants(batch).into_iter().map(of_tenant).collect();
    places.extend(batch.writes.iter().filter_map(|write| {
        let Write::Put(draft) = write else { return None };
        let key = &draft.record.key;
        let user = names::lies(key).user?;
        Some(names::listed_user(key.tenant_column(), key.scope_column(), user))
    }));
    places.retain(|(place, _)| !table.announced.holds(place, now));
    try_join_all(places.into_iter().map(|(place, name)| async move {
        let whole = names::is_cut(&name).then(|| ("name".to_string(), text(&name)));
        let at = [(ANNOUNCED_AT.to_string(), number(now.0))];
        let op = Op::put(place.clone(), at.into_iter().chain(whole).collect::<Item>());
        again(|| table.write(&op)).await?;
        table.announced.add(place, now);
        Ok(())
    }))
    .await
    .map(drop)
}

/// Whether a listed user was announced so long ago that it may go, once it has no records.
pub(super) fn is_old(announced_at: u64, now: At) -> bool {
    At(announced_at).plus(RETIRED_AFTER_MS) < now
}

/// Takes a user without records off the list, unless it was announced meanwhile.
pub(super) async fn retire(table: &Table, place: Place, announced_at: u64) -> Result<(), Failure> {
    let mut op = Op::delete(place);
    op.require(|op| format!("{} = {}", op.name(ANNOUNCED_AT), op.value(number(announced_at))));
    let name = random_name();
    match again(|| table.write_together(std::slice::from_ref(&op), &name, None)).await {
        Ok(()) | Err(Failure::Condition) => Ok(()),
        Err(failure) => Err(failure),
    }
}
