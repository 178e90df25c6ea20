//! The bug zoo of the schema: bugs that live in SQL, planted in a schema of their own, each caught
//! by its hunter, which finds nothing on the schema as it is made.
//!
//! The bugs of the program are in `onceward_core::zoo`; these can't be there, because the server
//! runs them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what helps a test fails as a test does"
)]

#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod support;

use std::pin::Pin;
use std::time::Duration;

use onceward::core::batch::{Answer, Condition, Write};
use onceward::core::key::{Key, Kind};
use onceward::core::record::State;
use onceward::store::Store;
use onceward::store::postgres::PostgresStore;
use support::*;
use tokio_postgres::Client;

/// What a hunter found, in words; none when all is well.
type Found<'a> = Pin<Box<dyn Future<Output = Option<String>> + 'a>>;

struct Entry {
    bug: &'static str,
    plant: Plant,
    hunt: for<'a> fn(&'a Place, &'a PostgresStore) -> Found<'a>,
}

enum Plant {
    /// Functions whose text has this replaced by that, everywhere.
    Functions(&'static [&'static str], &'static str, &'static str),
    /// The policies of all tables say this.
    Policy(&'static str),
}

/// Calls of the group's functions that do nothing.
const GROUP: &str = "SELECT now_ms FROM apply_group(0, '{}', '{}', '{}', '{}', NULL, 0, '{}')";
const LEAN: &str = "SELECT now_ms FROM apply_lean(0, '{}', 0, '{}')";

const SET_AT_THE_END: &str = "set_config('onceward.tenant', '', true)";
const LEFT_IN_THE_SESSION: &str = "set_config('onceward.tenant', 'a', false)";

const ZOO: &[Entry] = &[
    Entry {
        bug: "a list of tenants in the policy",
        plant: Plant::Policy(
            "tenant = ANY (string_to_array(current_setting('onceward.tenant', true), ','))",
        ),
        hunt: |place, store| Box::pin(a_list_shows_nobody(place, store)),
    },
    Entry {
        bug: "empty tenant setting accepted",
        plant: Plant::Policy("tenant = (SELECT current_setting('onceward.tenant', true))"),
        hunt: |place, store| Box::pin(an_ended_setting_is_refused(place, store)),
    },
    Entry {
        bug: "session-level SET of the tenant",
        plant: Plant::Functions(&["apply_group"], SET_AT_THE_END, LEFT_IN_THE_SESSION),
        hunt: |place, store| Box::pin(nothing_is_left_in_the_session(place, store, GROUP)),
    },
    Entry {
        bug: "session-level SET of the tenant, lean",
        plant: Plant::Functions(&["apply_lean"], SET_AT_THE_END, LEFT_IN_THE_SESSION),
        hunt: |place, store| Box::pin(nothing_is_left_in_the_session(place, store, LEAN)),
    },
    Entry {
        bug: "waiting for a row lock with a pooled connection",
        plant: Plant::Functions(
            &["apply_group", "apply_lean"],
            "NOT pg_try_advisory_xact_lock(one.lock)",
            "pg_advisory_xact_lock(one.lock) IS NULL",
        ),
        hunt: |place, store| Box::pin(a_held_key_holds_nobody_up(place, store)),
    },
    Entry {
        bug: "now() read before the lock wait",
        plant: Plant::Functions(
            &["apply_group"],
            "now_ms := store_now_ms()",
            "now_ms := floor(extract(epoch FROM now()) * 1000)",
        ),
        hunt: |place, store| Box::pin(now_is_read_after_the_locks(place, store, GROUP)),
    },
    Entry {
        bug: "now() read before the lock wait, lean",
        plant: Plant::Functions(
            &["apply_lean"],
            "now_ms := store_now_ms()",
            "now_ms := floor(extract(epoch FROM now()) * 1000)",
        ),
        hunt: |place, store| Box::pin(now_is_read_after_the_locks(place, store, LEAN)),
    },
];

#[tokio::test]
async fn every_bug_of_the_schema_is_caught_and_the_schema_as_it_is_has_none() {
    for (number, entry) in ZOO.iter().enumerate() {
        let clean = hunted(&format!("zoo_{number}_clean"), entry, false).await;
        assert_eq!(clean, None, "{}: found where nothing is planted", entry.bug);
        let caught = hunted(&format!("zoo_{number}"), entry, true).await;
        println!("{:50} {}", entry.bug, caught.as_deref().unwrap_or("NOTHING"));
        assert!(caught.is_some(), "{}: not caught", entry.bug);
    }
}

async fn hunted(name: &str, entry: &Entry, planted: bool) -> Option<String> {
    let place = Place::new(name).await;
    if planted {
        plant(&place, &entry.plant).await;
    }
    let store = place.store().await;
    let found = (entry.hunt)(&place, &store).await;
    store.close().await.unwrap();
    place.remove().await;
    found
}

async fn plant(place: &Place, plant: &Plant) {
    match plant {
        Plant::Functions(names, is, becomes) => {
            let define = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1 \
                          AND pronamespace = current_schema()::regnamespace";
            for name in *names {
                let row = place.sql.query_one(define, &[name]).await.unwrap();
                let text: String = row.get(0);
                assert!(text.contains(is), "there is nothing to plant in {name}");
                place.sql(&text.replace(is, becomes)).await;
            }
        }
        Plant::Policy(says) => {
            for table in ["records", "records_request", "outcomes", "audit"] {
                let change = format!("ALTER POLICY tenant ON {table} USING ({says})");
                place.sql(&format!("{change} WITH CHECK ({says})")).await;
            }
        }
    }
}

fn key_of(tenant: &str, id: &str) -> Key {
    Key::new(Kind::Request, tenant, "scope", id).unwrap()
}

/// A session that works as the engine does.
async fn engine(place: &Place) -> Client {
    let client = client(&url()).await;
    let role = format!("SET search_path = {}; SET ROLE onceward_engine", place.schema);
    client.batch_execute(&role).await.unwrap();
    client
}

async fn two_tenants(store: &PostgresStore) {
    for tenant in ["a", "b"] {
        applied(&commit(store, &claim(&key_of(tenant, "k"))).await);
    }
}

async fn a_list_shows_nobody(place: &Place, store: &PostgresStore) -> Option<String> {
    two_tenants(store).await;
    let engine = engine(place).await;
    engine.batch_execute("BEGIN; SELECT set_config('onceward.tenant', 'a,b', true)").await.unwrap();
    let seen = engine.query("SELECT tenant FROM records", &[]).await.unwrap().len();
    (seen > 0).then(|| format!("a list of tenants shows {seen} records"))
}

async fn an_ended_setting_is_refused(place: &Place, store: &PostgresStore) -> Option<String> {
    two_tenants(store).await;
    let engine = engine(place).await;
    let set = "BEGIN; SELECT set_config('onceward.tenant', 'a', true); COMMIT";
    engine.batch_execute(set).await.unwrap();
    // The setting was made and has ended: it is empty now, not unset.
    let looked = engine.query("SELECT * FROM records", &[]).await;
    looked.is_ok().then(|| "a statement without a tenant passes".into())
}

/// The engine's own session: what it was about last must not be what it may see next.
async fn nothing_is_left_in_the_session(
    place: &Place,
    store: &PostgresStore,
    group: &str,
) -> Option<String> {
    two_tenants(store).await;
    let engine = engine(place).await;
    engine.query(group, &[]).await.unwrap();
    let looked = engine.query("SELECT * FROM records", &[]).await;
    looked.is_ok().then(|| "the tenant stays in the session".into())
}

async fn a_held_key_holds_nobody_up(place: &Place, store: &PostgresStore) -> Option<String> {
    let (held, free) = (key_of("a", "held"), key_of("a", "free"));
    let mut holder = client(&url()).await;
    let open = holder.transaction().await.unwrap();
    let lock = format!("SELECT {0}.lock_of('{0}', 'record', 'a', 'request', $1)", place.schema);
    let number: i64 = open.query_one(&lock, &[&held.name_column()]).await.unwrap().get(0);
    open.query_one("SELECT pg_advisory_xact_lock($1)", &[&number]).await.unwrap();
    let group = store.commit(vec![claim(&held), claim(&free)]);
    match tokio::time::timeout(Duration::from_secs(2), group).await {
        Err(_) => Some("the group waits for the open transaction".into()),
        Ok(Err(error)) => Some(format!("the group fails: {error}")),
        Ok(Ok(committed)) => {
            assert_eq!(committed.answers[0], Answer::Contended);
            applied(&committed.answers[1]);
            None
        }
    }
}

async fn now_is_read_after_the_locks(
    place: &Place,
    store: &PostgresStore,
    group: &str,
) -> Option<String> {
    let mut early = client(&url()).await;
    let role = format!("SET search_path = {}; SET ROLE onceward_engine", place.schema);
    early.batch_execute(&role).await.unwrap();
    let transaction = early.transaction().await.unwrap();
    let begun: i64 = transaction
        .query_one("SELECT floor(extract(epoch FROM now()) * 1000)::bigint", &[])
        .await
        .unwrap()
        .get(0);
    // Time goes by: someone else has the key, and finishes with it.
    let key = key_of("a", "k");
    loop {
        applied(&commit(store, &claim(&key)).await);
        let found = find(store, &key).await.unwrap().stored.record;
        let delete =
            batch(vec![Condition::RevIs(key.clone(), found.rev)], vec![Write::Delete(key.clone())]);
        applied(&commit(store, &delete).await);
        assert_eq!(found.state, State::Running);
        if found.updated_at.0.cast_signed() > begun {
            break;
        }
    }
    let there: i64 = transaction.query_one("SELECT store_now_ms()", &[]).await.unwrap().get(0);
    let now: i64 = transaction.query_one(group, &[]).await.unwrap().get(0);
    (now < there).then(|| format!("now is {} ms before what others saw", there - now))
}

/// Not a bug of the schema, but of whoever plants: a plant that no longer fits fails loudly.
#[tokio::test]
#[should_panic(expected = "there is nothing to plant")]
async fn a_plant_that_does_not_fit_is_told() {
    let place = Place::new("zoo_plant").await;
    plant(&place, &Plant::Functions(&["apply_group"], "no such words", "")).await;
}
