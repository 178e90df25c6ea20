//! What is DynamoDB's own: stamps that were drawn early, large bodies and their garbage, lost
//! answers on the wire, tables that are not ours, what is left to its time to live.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on fails")]

#[path = "dynamodb/order.rs"]
mod order;
#[path = "dynamodb/users.rs"]
mod users;
#[path = "dynamodb/wire.rs"]
mod wire;

mod support;

use std::sync::Arc;
use std::time::Duration;

use onceward::core::batch::{Answer, Applied, Batch, Condition, Write};
use onceward::core::decide::{Enqueue, NewJob};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::record::{Body, Draft, FenceWrite, State};
use onceward::core::stamp::Token;
use onceward::engine::{Engine, Take};
use onceward::store::dynamodb::{DynamoDbOptions, DynamoDbStore};
use onceward::store::{Fact, Items, List, Read, Store, StoreError};
use onceward::testing::conformance::bench::{
    audit, draft, draft_of, mark_at, put, with_outcome, with_payload,
};
use serde_json::{Value, json};
use support::dynamodb::{own_table, request};
use wire::{Cut, Wire};

/// Nothing here takes longer, unless it is meant to.
const PATIENCE: Duration = Duration::from_secs(20);

/// A table of a test's own, removed when the test has passed.
struct Place {
    options: DynamoDbOptions,
    store: Arc<DynamoDbStore>,
}

impl Place {
    async fn new() -> Self {
        let options = own_table();
        DynamoDbStore::migrate(&options).await.unwrap();
        let store = Arc::new(DynamoDbStore::connect(&options).await.unwrap());
        Self { options, store }
    }

    /// Another process on the same table, at the end of a wire.
    async fn wired(&self, within: Duration) -> (Wire, Arc<DynamoDbStore>) {
        let wire = Wire::to(self.options.endpoint.as_deref().unwrap()).await;
        let mut options = self.options.clone();
        options.endpoint = Some(wire.url());
        options.request_timeout = within;
        (wire, Arc::new(DynamoDbStore::connect(&options).await.unwrap()))
    }

    /// Another process on the same table.
    async fn another(&self) -> Arc<DynamoDbStore> {
        Arc::new(DynamoDbStore::connect(&self.options).await.unwrap())
    }

    async fn apply(&self, batch: Batch) -> Applied {
        match commit(&*self.store, &Arc::new(batch)).await.unwrap() {
            Answer::Applied(applied) => applied,
            answer => panic!("{answer:?}"),
        }
    }

    /// Every item of the table, as the server has it.
    async fn items(&self) -> Vec<Value> {
        let body = json!({ "TableName": self.options.table, "ConsistentRead": true });
        self.ask("Scan", body).await
    }

    /// The items that a request finds, all on one page.
    async fn ask(&self, target: &str, body: Value) -> Vec<Value> {
        let answer = request(target, body.to_string()).await.unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let answer: Value = serde_json::from_str(body).unwrap();
        assert!(answer["LastEvaluatedKey"].is_null(), "more than a page");
        answer["Items"].as_array().unwrap().clone()
    }

    /// The items whose partition holds this word.
    async fn items_of(&self, word: &str) -> Vec<Value> {
        let items = self.items().await;
        let of = |item: &Value| item["PK"]["S"].as_str().unwrap().contains(word);
        items.into_iter().filter(of).collect()
    }

    async fn remove(self) {
        let body = json!({ "TableName": self.options.table });
        request("DeleteTable", body.to_string()).await.unwrap();
    }
}

async fn commit(store: &dyn Store, batch: &Arc<Batch>) -> Result<Answer, StoreError> {
    Ok(store.commit(vec![batch.clone()]).await?.answers.pop().unwrap())
}

fn key(id: &str) -> Key {
    Key::new(Kind::Request, "acme", "pay", id).unwrap()
}

fn batch(token: u128, conditions: Vec<Condition>, writes: Vec<Write>) -> Batch {
    Batch { token: Token(token), conditions, writes }
}

async fn found(store: &dyn Store, key: &Key) -> Option<onceward::store::Found> {
    let read = Read::Record { key: key.clone(), payload: true };
    match store.load(vec![read]).await.unwrap().facts.pop() {
        Some(Fact::Record(found)) => found,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn i25_a_fence_that_was_drawn_before_a_release_is_not_granted_after_it() {
    let place = Place::new().await;
    let (wire, slow) = place.wired(PATIENCE).await;
    let claim = |token| {
        let condition = Condition::Absent(key("k"));
        Arc::new(batch(token, vec![condition], vec![put(draft(&key("k")))]))
    };
    // The slow one has drawn its number, and its write is on the way.
    wire.arm(Cut::Hold, "UpdateItem", ["IDEMP#"; 2], 1);
    let late = claim(1);
    let late = tokio::spawn(async move { commit(&*slow, &late).await });
    wire.holds().await;
    // Meanwhile another one is granted a higher number, and gives it back.
    let fence = place.apply((*claim(2)).clone()).await.first.unwrap().1.unwrap();
    place.apply(batch(3, vec![], vec![Write::Delete(key("k"))])).await;
    wire.go();
    let Answer::Applied(granted) = late.await.unwrap().unwrap() else { panic!("the key is free") };
    let granted = granted.first.unwrap().1.unwrap();
    assert!(granted > fence, "{granted} is granted after {fence}");
    place.remove().await;
}

#[tokio::test]
async fn i05_a_rev_that_was_drawn_earlier_is_not_written_later() {
    let place = Place::new().await;
    let (wire, slow) = place.wired(PATIENCE).await;
    place.apply(batch(1, vec![], vec![put(draft(&key("k")))])).await;
    let there = found(&*place.store, &key("k")).await.unwrap().stored.record;
    let condition = || vec![Condition::FenceIs(key("k"), there.fence.unwrap())];
    let renewal = |token| Arc::new(batch(token, condition(), vec![put(draft_of(&there))]));
    wire.arm(Cut::Hold, "UpdateItem", ["IDEMP#"; 2], 1);
    let late = renewal(2);
    let late = tokio::spawn(async move { commit(&*slow, &late).await });
    wire.holds().await;
    let first = place.apply((*renewal(3)).clone()).await.first.unwrap().0;
    wire.go();
    let Answer::Applied(second) = late.await.unwrap().unwrap() else { panic!("it may renew") };
    assert!(second.first.unwrap().0 > first, "{second:?} follows {first:?}");
    place.remove().await;
}

#[tokio::test]
async fn what_is_throttled_is_tried_again_and_what_breaks_inside_is_unknown() {
    let place = Place::new().await;
    let (wire, store) = place.wired(PATIENCE).await;
    let claim = |n: u128| {
        let key = key(&n.to_string());
        let writes = vec![put(draft(&key)), audit("claimed")];
        Arc::new(batch(n, vec![Condition::Absent(key)], writes))
    };
    for (n, error) in
        ["ThrottlingException", "ProvisionedThroughputExceededException"].into_iter().enumerate()
    {
        wire.arm(Cut::Answer(400, error), "TransactWriteItems", ["IDEMP#"; 2], 3);
        let answer = commit(&*store, &claim(n as u128 + 1)).await.unwrap();
        assert!(matches!(answer, Answer::Applied(Applied { again: false, .. })), "{answer:?}");
    }
    // Counters and reads too.
    wire.arm(Cut::Answer(400, "ThrottlingException"), "UpdateItem", ["STAMP#"; 2], 2);
    assert!(matches!(commit(&*store, &claim(3)).await.unwrap(), Answer::Applied(_)));
    wire.arm(Cut::Answer(500, "InternalServerError"), "GetItem", ["IDEMP#"; 2], 2);
    assert!(found(&*store, &key("3")).await.is_some(), "a read may be asked again");
    // Without an end, nothing was done; and what the server could not say is not known.
    wire.arm(Cut::Answer(400, "ThrottlingException"), "TransactWriteItems", ["IDEMP#"; 2], 9_999);
    let refused = commit(&*store, &claim(4)).await;
    assert!(matches!(refused, Err(StoreError::NotApplied(_))), "{refused:?}");
    wire.arm(Cut::Answer(500, "InternalServerError"), "TransactWriteItems", ["IDEMP#"; 2], 1);
    let unknown = commit(&*store, &claim(5)).await;
    assert!(matches!(unknown, Err(StoreError::Unknown(_))), "{unknown:?}");
    assert!(found(&*store, &key("4")).await.is_none());
    place.remove().await;
}

#[tokio::test]
async fn i25_fences_rise_between_processes_whose_dates_differ() {
    // Two processes; the date of the one is an hour ahead, so its numbers are too.
    let place = Place::new().await;
    let (clock, _) = onceward::store::clock::StoreClock::manual(
        place.store.load(vec![]).await.unwrap().now.plus(3_600_000),
    );
    let ahead = DynamoDbStore::connect_with_clock(&place.options, clock).await.unwrap();
    let claim = |token| {
        let condition = Condition::Absent(key("k"));
        Arc::new(batch(token, vec![condition], vec![put(draft(&key("k")))]))
    };
    let mut last = 0;
    for round in 0..6_u128 {
        let store: &dyn Store = if round % 2 == 0 { &ahead } else { &*place.store };
        let Answer::Applied(applied) = commit(store, &claim(round * 2 + 1)).await.unwrap() else {
            panic!("the key is free");
        };
        let fence = applied.first.unwrap().1.unwrap();
        assert!(fence.0 > last, "round {round}: {fence} after {last}");
        last = fence.0;
        place.apply(batch(round * 2 + 2, vec![], vec![Write::Delete(key("k"))])).await;
        assert!(found(store, &key("k")).await.is_none());
    }
    let gone = place.items_of("#REQUEST").await;
    assert_eq!(gone.len(), 1, "what is left of the key: {gone:?}");
    assert!(gone[0]["ttl"]["N"].is_string() && gone[0]["state"].is_null(), "{gone:?}");
    place.remove().await;
}

#[tokio::test]
async fn i05_revs_rise_under_many_writers_of_one_record() {
    let place = Place::new().await;
    place.apply(batch(1, vec![], vec![put(draft(&key("k")))])).await;
    let there = found(&*place.store, &key("k")).await.unwrap().stored.record;
    let fence = there.fence.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..24_u128 {
        let (store, there) = (place.another().await, there.clone());
        tasks.spawn(async move {
            // Renewals: conditional on the fence, which stays, so that all of them apply.
            let condition = Condition::FenceIs(there.key.clone(), fence);
            let renewal = batch(100 + n, vec![condition], vec![put(draft_of(&there))]);
            match commit(&*store, &Arc::new(renewal)).await.unwrap() {
                Answer::Applied(applied) => applied.first.unwrap().0,
                answer => panic!("{answer:?}"),
            }
        });
    }
    let mut revs = tasks.join_all().await;
    revs.sort();
    let last = found(&*place.store, &key("k")).await.unwrap().stored.record;
    assert_eq!(revs.last(), Some(&last.rev), "the highest was written last");
    revs.dedup();
    assert_eq!(revs.len(), 24, "none was drawn twice");
    place.remove().await;
}

#[tokio::test]
async fn i18_large_bodies_lie_beside_their_items_and_go_with_them() {
    let place = Place::new().await;
    let large = |byte: u8, bytes: usize| Arc::<[u8]>::from(vec![byte; bytes]);
    let (outcome, payload) = (large(1, 900_000), large(2, 100_001));
    let full = with_payload(with_outcome(draft(&key("k")), &outcome), &payload);
    place.apply(batch(1, vec![], vec![put(full)])).await;
    let parts = place.items_of("#BODY#").await;
    assert_eq!(parts.len(), 3 + 1, "parts of the outcome and of the payload");
    assert!(parts.iter().all(|part| part["ttl"].is_null()), "what is referred to is kept");
    let there = found(&*place.store, &key("k")).await.unwrap();
    assert!(there.stored.outcome == Some(outcome) && there.payload == Some(payload));
    // A renewal keeps them, a smaller outcome lies in the item, and the record takes all along.
    place.apply(batch(2, vec![], vec![put(draft_of(&there.stored.record))])).await;
    assert_eq!(place.items_of("#BODY#").await.len(), 4);
    let other = with_outcome(draft_of(&there.stored.record), &large(3, 200_000));
    place.apply(batch(3, vec![], vec![put(other)])).await;
    assert_eq!(place.items_of("#BODY#").await.len(), 1 + 1, "the old outcome is gone");
    // A part that was changed or lost behind our back is refused.
    let part = place.items_of("#BODY#").await.pop().unwrap();
    let lost = json!({ "TableName": place.options.table, "Key":
        { "PK": part["PK"].clone(), "SK": part["SK"].clone() } });
    request("DeleteItem", lost.to_string()).await.unwrap();
    let read = Read::Record { key: key("k"), payload: true };
    let refused = place.store.load(vec![read]).await;
    assert!(matches!(refused, Err(StoreError::Corrupt(_))), "{refused:?}");
    place.apply(batch(4, vec![], vec![Write::Delete(key("k"))])).await;
    assert_eq!(place.items_of("#BODY#").await.len(), 0, "nothing is left behind");
    place.remove().await;
}

#[tokio::test]
async fn bodies_that_nothing_came_to_refer_to_are_left_to_the_time_to_live() {
    let place = Place::new().await;
    place.apply(batch(1, vec![], vec![put(draft(&key("k")))])).await;
    let large = with_outcome(draft(&key("k")), &vec![1; 400_000].into());
    let refused = Arc::new(batch(2, vec![Condition::Absent(key("k"))], vec![put(large)]));
    assert!(matches!(commit(&*place.store, &refused).await.unwrap(), Answer::Refused(_)));
    let orphans = place.items_of("#BODY#").await;
    assert!(!orphans.is_empty() && orphans.iter().all(|part| part["ttl"]["N"].is_string()));
    place.remove().await;
}

#[tokio::test]
async fn a_large_document_and_a_large_detail_come_back() {
    let place = Place::new().await;
    let subject = Subject::new("acme", "doc", "1").unwrap();
    let value = Body::Set(vec![5; 700_000].into());
    let Write::Audit(mut entry) = audit("long") else { panic!() };
    entry.detail = Some("x".repeat(300_000).into());
    let mark = Write::Mark { subject: subject.clone(), position: 1, value };
    place.apply(batch(1, vec![], vec![mark, Write::Audit(entry.clone())])).await;
    let what = List::Marks { tenant: Some("acme".into()), prefix: "doc:".into() };
    let Items::Marks(marks) = place.store.list(what, None, 9).await.unwrap().items else {
        panic!("marks were asked for");
    };
    assert_eq!(marks[0].1.value.as_ref().map(|value| value.len()), Some(700_000));
    let what = List::Audit(onceward::store::AuditFilter::default());
    let Items::Audit(entries) = place.store.list(what, None, 9).await.unwrap().items else {
        panic!("the audit was asked for");
    };
    assert_eq!(entries[0].entry, *entry);
    place.remove().await;
}

#[tokio::test]
async fn i09_i27_an_answer_lost_on_the_wire_is_unknown_and_the_resend_is_recognised() {
    let place = Place::new().await;
    let (wire, store) = place.wired(Duration::from_millis(1_500)).await;
    let subject = |n: usize| Subject::new("acme", "doc", &n.to_string()).unwrap();
    for (n, cut) in [Cut::AfterAnswer, Cut::BeforeAnswer, Cut::AfterAnswer].into_iter().enumerate()
    {
        let id = key(&n.to_string());
        let absent = || vec![Condition::Absent(id.clone())];
        let batches = [
            // One item, a transaction, and one whose token lies in an item of its own.
            ("UpdateItem", batch(n as u128 * 10 + 1, absent(), vec![put(draft(&id))])),
            ("TransactWriteItems", {
                let end = Draft { fence: FenceWrite::Once, ..draft(&id) };
                batch(n as u128 * 10 + 2, vec![], vec![put(end), audit("done")])
            }),
            ("TransactWriteItems", {
                let condition = Condition::PositionIs(subject(n), 0);
                batch(n as u128 * 10 + 3, vec![condition], vec![mark_at(&subject(n), 1)])
            }),
        ];
        for (target, batch) in batches {
            let batch = Arc::new(batch);
            wire.arm(cut, target, ["IDEMP#", "MARK#"], 1);
            let lost = commit(&*store, &batch).await;
            assert!(matches!(lost, Err(StoreError::Unknown(_))), "{cut:?} {target}: {lost:?}");
            let Answer::Applied(again) = commit(&*store, &batch).await.unwrap() else {
                panic!("{cut:?} {target}: the resend must be applied");
            };
            assert!(again.again || matches!(cut, Cut::BeforeAnswer), "{cut:?} {target}: {again:?}");
        }
    }
    let what = List::Audit(onceward::store::AuditFilter::default());
    let Items::Audit(entries) = store.list(what, None, 9).await.unwrap().items else { panic!() };
    assert_eq!(entries.len(), 3, "each once");
    place.remove().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_did_nothing() {
    let place = Place::new().await;
    let (wire, store) = place.wired(PATIENCE).await;
    wire.close().await;
    let claim = Arc::new(batch(1, vec![], vec![put(draft(&key("k")))]));
    let refused = commit(&*store, &claim).await;
    assert!(matches!(refused, Err(StoreError::NotApplied(_))), "{refused:?}");
    let refused = store.load(vec![]).await;
    assert!(matches!(refused, Err(StoreError::NotApplied(_))), "{refused:?}");
    place.remove().await;
}

#[tokio::test]
async fn tables_that_are_missing_foreign_or_newer_are_refused_with_what_to_do() {
    let options = own_table();
    let refused = DynamoDbStore::connect(&options).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Schema(why) if why.contains("onceward migrate")),
        "{refused}"
    );
    DynamoDbStore::migrate(&options).await.unwrap();
    DynamoDbStore::migrate(&options).await.unwrap();
    let place = Place { store: Arc::new(DynamoDbStore::connect(&options).await.unwrap()), options };
    let newer = json!({ "TableName": place.options.table, "Item": { "PK": { "S": "ONCEWARD" },
        "SK": { "S": "SCHEMA" }, "version": { "N": "99" } } });
    request("PutItem", newer.to_string()).await.unwrap();
    let refused = DynamoDbStore::connect(&place.options).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Schema(why) if why.contains("99")), "{refused}");
    place.remove().await;

    let options = own_table();
    let foreign = json!({ "TableName": options.table, "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{ "AttributeName": "id", "AttributeType": "S" }],
        "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }] });
    request("CreateTable", foreign.to_string()).await.unwrap();
    let refused = DynamoDbStore::migrate(&options).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Schema(why) if why.contains("PK and SK")), "{refused}");
    let body = json!({ "TableName": options.table });
    request("DeleteTable", body.to_string()).await.unwrap();

    let mut far = DynamoDbOptions::new("eu-central-1", "onceward");
    far.endpoint = Some("https://dynamodb.example".into());
    let refused = DynamoDbStore::connect(&far).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Open(why) if why.contains("AWS_ACCESS_KEY_ID")),
        "{refused}"
    );
}

#[tokio::test]
async fn i20_a_batch_of_more_items_than_a_transaction_takes_is_refused_whole() {
    let place = Place::new().await;
    let conditions = (0..100).map(|n| Condition::Absent(key(&format!("none-{n}")))).collect();
    let wide = Arc::new(batch(1, conditions, vec![put(draft(&key("k")))]));
    let refused = commit(&*place.store, &wide).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))), "{refused:?}");
    assert!(found(&*place.store, &key("k")).await.is_none());
    let conditions = (0..99).map(|n| Condition::Absent(key(&format!("none-{n}")))).collect();
    place.apply(batch(2, conditions, vec![put(draft(&key("k")))])).await;
    place.remove().await;
}

#[tokio::test]
async fn the_readmes_row_is_what_the_store_answers() {
    let place = Place::new().await;
    let can = place.store.capabilities();
    assert!(!can.clock && !can.watch && !can.lists_are_current);
    let row = format!(
        "| `{}` | {} | watching revs | {} | all cases |",
        can.name, can.durability, can.group_max
    );
    let readme = include_str!("../../../README.md");
    assert!(readme.contains(&row), "the README lacks this row:\n{row}");
    place.remove().await;
}

#[tokio::test]
async fn i18_a_job_whose_payload_is_gone_is_dead_and_does_not_run_without_it() {
    let place = Place::new().await;
    let engine = Engine::new(place.store.clone());
    let job_key = |id: &str| Key::new(Kind::Job, "acme", "mail", id).unwrap();
    for (id, length) in [("a", 20), ("b", 20), ("c", 200_000), ("d", 200_000)] {
        let payload = vec![b'x'; length];
        let print = fingerprint_bytes(&payload);
        let job = NewJob::new(job_key(id), print, payload.as_slice().into());
        assert!(matches!(engine.enqueue(&job).await.unwrap(), Enqueue::Made));
    }
    for id in ["b", "d"] {
        let items = place.items_of("").await;
        let is_it = |item: &&Value| {
            let sort = item["SK"]["S"].as_str().unwrap_or_default();
            sort.ends_with(&format!("mail:{id}")) && !item["payload_seal"].is_null()
        };
        let item = items.iter().find(is_it).unwrap();
        let lost = json!({ "TableName": place.options.table,
            "Key": { "PK": item["PK"].clone(), "SK": item["SK"].clone() },
            "UpdateExpression": "REMOVE payload, payload_at" });
        request("UpdateItem", lost.to_string()).await.unwrap();
    }
    let take = Take { queue: "mail".into(), owner: "w".into(), max: 10, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    let mut ids: Vec<_> = taken.iter().map(|taken| taken.permit.key().id().to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["a", "c"]);
    assert!(taken.iter().all(|taken| taken.payload.len() >= 20));
    for id in ["b", "d"] {
        let reads = vec![Read::Record { key: job_key(id), payload: false }];
        let facts = place.store.load(reads).await.unwrap().facts;
        let [Fact::Record(Some(found))] = &facts[..] else { panic!("{facts:?}") };
        assert_eq!(found.stored.record.state, State::Dead, "{id}");
        let why = found.stored.record.error.as_deref().unwrap();
        assert!(why.contains("can't be read"), "{why}");
    }
    place.remove().await;
}
