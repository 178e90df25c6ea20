//! The order of numbers across processes: what is written later is numbered above what the process
//! that writes could know of. Clocks stand still here, so that no date tells the order.

use std::sync::Arc;

use onceward::core::audit::Entry;
use onceward::core::batch::{Answer, Applied, Write};
use onceward::core::key::{Key, Kind};
use onceward::store::clock::StoreClock;
use onceward::store::dynamodb::DynamoDbStore;
use onceward::store::{AuditFilter, Cursor, Items, List, Store};
use onceward::testing::conformance::bench::{draft, put};

use super::{Place, batch, commit, found};

/// Counters of a tenant. An entry without a record beside it is numbered by its batch's token.
const SHARDS: u128 = 8;

/// A table, and the clock that all its processes share.
struct Still {
    place: Place,
    clock: StoreClock,
}

impl Still {
    async fn new() -> Self {
        let place = Place::new().await;
        let (clock, _) = StoreClock::manual(place.store.load(vec![]).await.unwrap().now);
        Self { place, clock }
    }

    /// A process that knows nothing yet.
    async fn process(&self) -> DynamoDbStore {
        let clock = self.clock.clone();
        DynamoDbStore::connect_with_clock(&self.place.options, clock).await.unwrap()
    }
}

async fn apply(store: &DynamoDbStore, token: u128, writes: Vec<Write>) -> Applied {
    match commit(store, &Arc::new(batch(token, vec![], writes))).await.unwrap() {
        Answer::Applied(applied) => applied,
        answer => panic!("{answer:?}"),
    }
}

fn entry(tenant: &str, action: &str) -> Vec<Write> {
    vec![Write::Audit(Box::new(Entry::new(tenant, action)))]
}

/// The actions that are settled behind a cursor, and where they end.
async fn settled(
    store: &DynamoDbStore,
    tenant: &str,
    after: Option<Cursor>,
) -> (Vec<String>, Option<Cursor>) {
    let what = List::Settled { tenant: Some(tenant.into()) };
    let page = store.list(what, after, 1_000).await.unwrap();
    let Items::Settled(entries) = page.items else { panic!("{:?}", page.items) };
    let action = |it: &onceward::core::seal::Settled| it.audited.entry.action.to_string();
    (entries.iter().map(action).collect(), page.next)
}

#[tokio::test]
async fn i17_entries_of_one_instant_keep_their_order_across_a_reopening() {
    let still = Still::new().await;
    let (mut must_be, mut after) = (Vec::new(), None);
    // From the highest shard to the lowest: by the instant alone, each would stand before the last.
    for n in 0..2 * SHARDS {
        let (store, action) = (still.process().await, format!("n{n}"));
        apply(&store, 100 * SHARDS - 1 - n, entry("acme", &action)).await;
        let (new, end) = settled(&store, "acme", after).await;
        assert_eq!(new, [action.as_str()], "whoever goes on from the last one sees the new one");
        must_be.push(action);
        after = end;
    }
    let store = still.process().await;
    assert_eq!(settled(&store, "acme", None).await.0, must_be, "the order of the commits");
    still.place.remove().await;
}

#[tokio::test]
async fn i17_entries_stand_behind_those_that_were_listed_before() {
    let still = Still::new().await;
    let (reader, writer) = (still.process().await, still.process().await);
    // Both have written before, so neither looks at the counters of the other's shard again.
    apply(&reader, 7, entry("acme", "first")).await;
    apply(&writer, 6, entry("acme", "first")).await;
    for n in 1..5 {
        apply(&writer, 6 + n * SHARDS, entry("acme", "listed")).await;
    }
    let filter = AuditFilter { tenant: Some("acme".into()), ..AuditFilter::default() };
    let page = reader.list(List::Audit(filter), None, 100).await.unwrap();
    assert!(matches!(&page.items, Items::Audit(entries) if entries.len() == 6), "{page:?}");
    apply(&reader, 7 + SHARDS, entry("acme", "last")).await;
    let (actions, _) = settled(&reader, "acme", None).await;
    assert_eq!(actions.last().map(String::as_str), Some("last"), "{actions:?}");
    still.place.remove().await;
}

#[tokio::test]
async fn i17_stamps_rise_above_what_a_deleted_record_left_behind() {
    let still = Still::new().await;
    let key = |tenant: &str| Key::new(Kind::Request, tenant, "pay", "1").unwrap();
    let store = still.process().await;
    let mut last = 0;
    for token in 1..6 {
        let applied = apply(&store, token, vec![put(draft(&key("acme")))]).await;
        last = applied.first.unwrap().0.0;
    }
    apply(&store, 6, vec![Write::Delete(key("acme"))]).await;
    // Another process sees that nothing is there, and with it the stamp that is.
    let store = still.process().await;
    assert!(found(&store, &key("acme")).await.is_none());
    let applied = apply(&store, 7, vec![put(draft(&key("beta")))]).await;
    let next = applied.first.unwrap().0.0;
    assert!(next > last, "{next} after {last}");
    still.place.remove().await;
}
