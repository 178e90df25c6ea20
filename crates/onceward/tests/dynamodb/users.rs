//! The seed's keys (D05): what lies in a user's partition, how long, and that lists which walk the
//! users miss nothing: not while a user is new, not after one was taken off the list.

use std::collections::BTreeSet;
use std::sync::Arc;

use onceward::core::audit::{Entry, about_user};
use onceward::core::batch::{Batch, Condition, Write};
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::record::{State, Time};
use onceward::core::stamp::At;
use onceward::store::clock::{ManualClock, StoreClock};
use onceward::store::dynamodb::DynamoDbStore;
use onceward::store::{AuditFilter, Cursor, Items, List, Store};
use onceward::testing::conformance::bench::{audit, draft, mark_at, put};
use serde_json::{Value, json};

use super::wire::Cut;
use super::{PATIENCE, Place, batch, commit, found, key};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

fn of_user(user: &str, id: &str) -> Key {
    Key::within(Kind::Request, "acme", "measurements", &[user], id).unwrap()
}

fn about(user: &str, action: &str) -> Write {
    let mut entry = Entry::new("acme", action);
    entry.subject = Some(about_user(user).into());
    Write::Audit(Box::new(entry))
}

fn number(value: &Value) -> u64 {
    value["N"].as_str().unwrap().parse().unwrap()
}

/// Every key of a tenant's records, in pages of a size.
async fn listed(store: &dyn Store, limit: usize) -> Vec<Key> {
    let (mut keys, mut after) = (Vec::new(), None::<Cursor>);
    loop {
        let what = List::Records { tenant: Some("acme".into()), scope: None, state: None };
        let page = store.list(what, after, limit).await.unwrap();
        let Items::Records(records) = page.items else { panic!("records were asked for") };
        keys.extend(records.into_iter().map(|record| record.key));
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

/// Another process on the same table, on a clock of its own.
async fn on_clock(place: &Place, now: At) -> (Arc<DynamoDbStore>, ManualClock) {
    let (clock, hand) = StoreClock::manual(now);
    let store = DynamoDbStore::connect_with_clock(&place.options, clock).await.unwrap();
    (Arc::new(store), hand)
}

async fn applied(store: &dyn Store, batch: Batch) {
    let answer = commit(store, &Arc::new(batch)).await.unwrap();
    assert!(matches!(answer, onceward::core::batch::Answer::Applied(_)), "{answer:?}");
}

#[tokio::test]
async fn d05_items_lie_under_their_organisation_and_user_in_the_seeds_shapes() {
    let place = Place::new().await;
    let subject = Subject::new("acme", "user", "7").unwrap();
    let http = Key::within(Kind::Request, "acme", "POST /v1/x", &["bob", "9"], "k").unwrap();
    let job = Key::within(Kind::Job, "acme", "mail", &["welcome"], "7").unwrap();
    let mut writes: Vec<Write> =
        [of_user("u:7", "m1"), http, key("k"), job].iter().map(|key| put(draft(key))).collect();
    writes.extend([mark_at(&subject, 1), audit("done"), about("u:7", "measurement.accepted")]);
    place.apply(batch(1, vec![], writes)).await;
    place.apply(batch(2, vec![], vec![mark_at(&subject, 2)])).await;
    let shape = |item: &Value, pk: &str, sk: &str| {
        let (pk, sk) = (item[pk]["S"].as_str().unwrap(), item[sk]["S"].as_str().unwrap());
        let shown = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "0");
        let pk = pk.split_once("#TOKEN#").map_or(shown(pk), |(org, _)| format!("{org}#TOKEN#…"));
        format!("{pk} {}", shown(sk))
    };
    let items = place.items().await;
    let shapes: BTreeSet<String> = items.iter().map(|item| shape(item, "PK", "SK")).collect();
    let must_be = [
        "ONCEWARD SCHEMA",
        "ORG#acme#AUDIT#0 AUDIT#00000000000000000000",
        "ORG#acme#JOB IDEMP#mail:welcome:0",
        "ORG#acme#MARK MARK#user:0",
        "ORG#acme#REQUEST IDEMP#pay:k",
        "ORG#acme#STAMP#0 STAMP",
        "ORG#acme#TOKEN#… TOKEN",
        "ORG#acme#USER#bob IDEMP#POST /v0/x:0:k",
        "ORG#acme#USER#u%0A0 IDEMP#measurements:m0",
        "ORG#acme#USERS USER#POST /v0/x:bob:",
        "ORG#acme#USERS USER#measurements:u%0A0:",
        "TENANTS ORG#acme",
    ];
    assert_eq!(shapes.iter().map(String::as_str).collect::<Vec<_>>(), must_be);
    // The entries about a user, as the index has them.
    let query = json!({ "TableName": place.options.table, "IndexName": "user",
        "KeyConditionExpression": "user_pk = :user AND begins_with(user_sk, :audit)",
        "ExpressionAttributeValues":
            { ":user": { "S": "ORG#acme#USER#u%3A7" }, ":audit": { "S": "AUDIT#" } } });
    let entries = place.ask("Query", query).await;
    assert_eq!(entries.len(), 1, "the entry about nobody is not among them");
    let (time, id) = entries[0]["user_sk"]["S"].as_str().unwrap()[6..].split_once('#').unwrap();
    assert_eq!(id.parse::<u64>().unwrap(), number(&entries[0]["id"]));
    let (time, at) = (time.parse::<u64>().unwrap(), number(&entries[0]["at"]));
    assert!((at..at + MINUTE).contains(&time), "{time} is about {at}");
    place.remove().await;
}

#[tokio::test]
async fn d05_the_time_to_live_lies_well_past_our_own_and_only_on_what_is_finished() {
    let place = Place::new().await;
    // Measurements for a week, requests for a day and as long remembered.
    let kinds = [("measurements", 7 * DAY, 0), ("POST /v1/x", DAY, DAY)];
    let mut token = 0;
    for (scope, retain, remember) in kinds {
        for state in State::ALL {
            let key = Key::within(Kind::Request, "acme", scope, &["u"], state.as_str()).unwrap();
            let mut draft = draft(&key);
            draft.record.state = state;
            draft.record.terms.remember_ms = remember;
            (draft.expires, draft.sweep) = (Time::In(retain), Time::In(retain));
            token += 1;
            place.apply(batch(token, vec![], vec![put(draft), about("u", "x")])).await;
        }
    }
    let items = place.items_of("ORG#acme#USER#u").await;
    assert_eq!(items.len(), kinds.len() * State::ALL.len());
    for item in items {
        let (state, sk) = (item["state"]["S"].as_str().unwrap(), item["SK"]["S"].as_str().unwrap());
        let (_, retain, remember) =
            kinds.into_iter().find(|(scope, ..)| sk[6..].starts_with(scope)).unwrap();
        // Ours is exact; theirs only collects what our sweep has left lying for a week.
        let expires_at = number(&item["expires_at"]);
        assert_eq!(expires_at, number(&item["updated_at"]) + retain, "{item}");
        if matches!(state, "done" | "expired") {
            let must_be = (expires_at + remember + 7 * DAY).div_ceil(1_000);
            assert_eq!(number(&item["ttl"]), must_be, "{item}");
        } else {
            assert!(item["ttl"].is_null(), "a {state} record is never collected: {item}");
        }
    }
    for entry in place.items_of("#AUDIT#").await {
        // A hole that DynamoDB made in the chain could not be told from a theft.
        assert!(entry["ttl"].is_null(), "entries go by retention alone: {entry}");
    }
    place.remove().await;
}

#[tokio::test]
async fn d05_a_user_is_listed_before_anything_of_it_is_written() {
    let place = Place::new().await;
    place.apply(batch(1, vec![], vec![put(draft(&key("k")))])).await;
    let (wire, slow) = place.wired(PATIENCE).await;
    wire.arm(Cut::Hold, "PutItem", ["#USERS"; 2], 1);
    let writer = slow.clone();
    let write = Arc::new(batch(2, vec![], vec![put(draft(&of_user("u", "m")))]));
    let writing = tokio::spawn(async move { commit(&*writer, &write).await });
    wire.holds().await;
    assert!(found(&*place.store, &of_user("u", "m")).await.is_none(), "it waits for the list");
    assert_eq!(listed(&*place.store, 9).await, [key("k")]);
    wire.go();
    writing.await.unwrap().unwrap();
    assert_eq!(listed(&*place.store, 9).await, [of_user("u", "m"), key("k")]);
    // Once a process knows, it writes without asking the list.
    wire.arm(Cut::Answer(500, "InternalServerError"), "PutItem", ["#USERS"; 2], 9_999);
    applied(&*slow, batch(3, vec![], vec![put(draft(&of_user("u", "n")))])).await;
    // A user who can't be listed is not written for.
    let refused = Arc::new(batch(4, vec![], vec![put(draft(&of_user("v", "m")))]));
    assert!(commit(&*slow, &refused).await.is_err());
    assert!(found(&*place.store, &of_user("v", "m")).await.is_none());
    // What a crash in between leaves is a user without records.
    wire.arm(Cut::Answer(500, "InternalServerError"), "UpdateItem", ["IDEMP#"; 2], 9_999);
    let broken = Arc::new(batch(5, vec![], vec![put(draft(&of_user("w", "m")))]));
    assert!(commit(&*slow, &broken).await.is_err());
    assert_eq!(listed(&*place.store, 1).await.len(), 3);
    place.remove().await;
}

#[tokio::test]
async fn d05_many_users_are_listed_whole_in_order_and_in_pages_of_any_size() {
    let place = Place::new().await;
    let mut keys = Vec::new();
    for n in 0..120 {
        // Some users whose names are cut, and differ only behind the cut.
        let user = if n % 10 == 0 { format!("{}{n}", "y".repeat(500)) } else { format!("u{n}") };
        keys.push(of_user(&user, "1"));
        if n % 3 == 0 {
            keys.push(Key::within(Kind::Request, "acme", "POST /x", &[&user, "p"], "1").unwrap());
            keys.push(Key::new(Kind::Request, "acme", "measurements", &user).unwrap());
        }
    }
    for (n, chunk) in keys.chunks(20).enumerate() {
        let writes = chunk.iter().map(|key| put(draft(key))).collect();
        place.apply(batch(n as u128 + 1, vec![], writes)).await;
    }
    keys.sort();
    let other = place.another().await;
    for limit in [1_000, 7, keys.len() - 1, keys.len()] {
        assert_eq!(listed(&*other, limit).await, keys, "pages of {limit}");
    }
    let what = List::Records { tenant: None, scope: Some("POST /x".into()), state: None };
    let Items::Records(records) = other.list(what, None, 1_000).await.unwrap().items else {
        panic!("records were asked for");
    };
    let of_scope: Vec<_> = keys.iter().filter(|key| key.scope() == "POST /x").collect();
    assert_eq!(records.iter().map(|record| &record.key).collect::<Vec<_>>(), of_scope);
    place.remove().await;
}

#[tokio::test]
async fn d05_a_user_without_records_is_taken_off_the_list_and_never_too_early() {
    let place = Place::new().await;
    let start = At(1_790_000_000_000);
    let (one, one_hand) = on_clock(&place, start).await;
    let (other, other_hand) = on_clock(&place, start).await;
    let users = || async { place.items_of("#USERS").await.len() };
    let pass = |ms: u64| {
        one_hand.advance(ms);
        other_hand.advance(ms);
    };
    let write = |token, id: &str| batch(token, vec![], vec![put(draft(&of_user("u", id)))]);
    let drop_it = |token, id: &str| batch(token, vec![], vec![Write::Delete(of_user("u", id))]);
    // What is left of a deleted key is collected by DynamoDB.
    let collect = |id: &'static str| {
        let (pk, sk) = ("ORG#acme#USER#u", format!("IDEMP#measurements:{id}"));
        let gone = json!({ "TableName": place.options.table,
            "Key": { "PK": { "S": pk }, "SK": { "S": sk } } });
        async move { super::request("DeleteItem", gone.to_string()).await.unwrap() }
    };
    applied(&*one, write(1, "a")).await;
    pass(2 * DAY);
    assert_eq!((listed(&*other, 9).await.len(), users().await), (1, 1), "it has a record");
    applied(&*one, drop_it(2, "a")).await;
    assert_eq!((listed(&*other, 9).await.len(), users().await), (0, 1), "its stamp is there");
    collect("a").await;
    // It writes again: announced anew, because the last time is long ago.
    applied(&*one, write(3, "b")).await;
    applied(&*one, drop_it(4, "b")).await;
    collect("b").await;
    pass(50 * MINUTE);
    assert_eq!((listed(&*other, 9).await.len(), users().await), (0, 1), "announced lately");
    // Within the hour it relies on that, and the list still has the user.
    applied(&*one, write(5, "c")).await;
    assert_eq!(listed(&*other, 9).await, [of_user("u", "c")]);
    applied(&*one, drop_it(6, "c")).await;
    collect("c").await;
    pass(DAY);
    assert_eq!((listed(&*other, 9).await.len(), users().await), (0, 0), "nobody relies on it");
    applied(&*one, write(7, "d")).await;
    assert_eq!(listed(&*other, 9).await, [of_user("u", "d")], "it is back");
    place.remove().await;
}

#[tokio::test]
async fn d05_a_user_that_is_announced_while_it_is_taken_off_stays() {
    let place = Place::new().await;
    let start = At(1_790_000_000_000);
    let (one, hand) = on_clock(&place, start).await;
    let (wire, _) = place.wired(PATIENCE).await;
    let mut options = place.options.clone();
    options.endpoint = Some(wire.url());
    let (clock, _) = StoreClock::manual(start.plus(2 * DAY));
    let lister = Arc::new(DynamoDbStore::connect_with_clock(&options, clock).await.unwrap());
    // Announced, and then the write failed.
    let never = vec![Condition::RevIs(key("none"), onceward::core::stamp::Rev(1))];
    let write = batch(1, never, vec![put(draft(&of_user("u", "a")))]);
    assert!(matches!(
        commit(&*one, &Arc::new(write)).await.unwrap(),
        onceward::core::batch::Answer::Refused(_)
    ));
    // A list finds nothing of it, and is about to take it off.
    wire.arm(Cut::Hold, "TransactWriteItems", ["#USERS"; 2], 1);
    let listing = tokio::spawn(async move { listed(&*lister, 9).await });
    wire.holds().await;
    hand.advance(2 * DAY);
    applied(&*one, batch(2, vec![], vec![put(draft(&of_user("u", "b")))])).await;
    wire.go();
    assert_eq!(listing.await.unwrap(), []);
    assert_eq!(listed(&*place.store, 9).await, [of_user("u", "b")]);
    place.remove().await;
}

#[tokio::test]
async fn d07_the_attempts_of_a_user_come_from_the_index_and_the_young_ones_from_the_table() {
    let place = Place::new().await;
    let (store, hand) = on_clock(&place, At(1_790_000_000_000)).await;
    let mut at = Vec::new();
    for n in 0..60_u128 {
        let user = if n % 2 == 0 { "u" } else { "v" };
        applied(&*store, batch(n + 1, vec![], vec![about(user, &format!("n.{n}")), audit("x")]))
            .await;
        at.push(store.load(vec![]).await.unwrap().now);
        hand.advance(MINUTE);
    }
    let search = |from: Option<At>, to: Option<At>, limit: usize| {
        let store = store.clone();
        async move {
            let (mut actions, mut after) = (Vec::new(), None::<Cursor>);
            loop {
                let filter = AuditFilter {
                    tenant: Some("acme".into()),
                    subject: Some(about_user("u")),
                    from,
                    to,
                    ..AuditFilter::default()
                };
                let page = store.list(List::Audit(filter), after, limit).await.unwrap();
                let Items::Audit(entries) = page.items else { panic!("the audit was asked for") };
                actions.extend(entries.into_iter().map(|it| it.entry.action.to_string()));
                after = page.next;
                if after.is_none() {
                    return actions;
                }
            }
        }
    };
    let even = |range: std::ops::Range<usize>| -> Vec<String> {
        range.filter(|n| n % 2 == 0).map(|n| format!("n.{n}")).collect()
    };
    for limit in [1, 7, 30, 100] {
        assert_eq!(search(None, None, limit).await, even(0..60), "pages of {limit}");
    }
    assert_eq!(search(Some(at[10]), Some(at[50]), 7).await, even(10..50), "across both");
    assert_eq!(search(None, Some(at[10]), 100).await, even(0..10), "from the index");
    assert_eq!(search(Some(at[50]), None, 100).await, even(50..60), "from the table");
    // What the index has lost shows where it is asked, so the old ones come from there.
    let old = place.items_of("#AUDIT#").await;
    let first = old.iter().find(|item| item["action"]["S"] == "n.0").unwrap();
    let young = old.iter().find(|item| item["action"]["S"] == "n.58").unwrap();
    for item in [first, young] {
        let unlisted = json!({ "TableName": place.options.table,
            "Key": { "PK": item["PK"].clone(), "SK": item["SK"].clone() },
            "UpdateExpression": "REMOVE user_pk, user_sk" });
        super::request("UpdateItem", unlisted.to_string()).await.unwrap();
    }
    assert_eq!(search(None, None, 100).await, even(1..60));
    place.remove().await;
}
