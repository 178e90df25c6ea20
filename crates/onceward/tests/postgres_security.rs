//! Postgres keeps tenants apart by itself: row-level security, roles, and refused weaknesses.
//!
//! `breaches` tries the ways around the policies, as a login that may work as the engine has them.
//! It must find none on the schema as it is made, and at least one on each schema that was spoilt
//! on purpose: that shows that it can find one.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what helps a test fails as a test does"
)]

#[path = "postgres/support.rs"]
#[allow(dead_code, reason = "each test binary uses its own part of this")]
mod support;

use onceward::core::audit::Entry;
use onceward::core::batch::{Answer, Condition, Write};
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::outcome_policy::{Said, Statuses, ending};
use onceward::core::record::{Body, FenceWrite, State, Time};
use onceward::http::{Code, Dialect, Refusal};
use onceward::store::postgres::{PostgresOptions, PostgresStore, Weakness};
use onceward::store::{AuditFilter, Durability, Items, List, Store, StoreError};
use support::*;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

fn key_of(tenant: &str, id: &str) -> Key {
    Key::new(Kind::Request, tenant, "scope", id).unwrap()
}

/// A schema with rows of two tenants in every table.
async fn two_tenants(name: &str) -> (Place, PostgresStore) {
    let place = Place::new(name).await;
    let store = place.store().await;
    let mut group = Vec::new();
    for tenant in ["a", "b"] {
        let mut draft = done(record(&key_of(tenant, "k"), State::Done), b"secret");
        draft.fresh = true;
        draft.record.has_payload = true;
        draft.payload = Body::Set(b"payload"[..].into());
        let subject = Subject::new(tenant, "space", "s").unwrap();
        let mark = Write::Mark { subject, position: 1, value: Body::Keep };
        let entry = Write::Audit(Box::new(Entry::new(tenant, "thing.done")));
        group.push(batch(vec![], vec![put(draft), mark, entry]));
    }
    for answer in store.commit(group).await.unwrap().answers {
        applied(&answer);
    }
    (place, store)
}

/// A connection that works as the engine's role.
async fn engine_client(place: &Place) -> Client {
    let other = client(&url()).await;
    let schema = &place.schema;
    other
        .batch_execute(&format!("SET search_path = {schema}, pg_temp; SET ROLE onceward_engine"))
        .await
        .unwrap();
    other
}

const TABLES: [&str; 6] = ["records", "records_request", "outcomes", "payloads", "marks", "audit"];

/// How many rows a statement shows, or none when it is refused.
async fn rows(client: &Client, sql: &str) -> Option<usize> {
    client.query(sql, &[]).await.ok().map(|rows| rows.len())
}

/// Every way around the policies that works.
async fn breaches(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    let fresh = engine_client(place).await;
    for table in TABLES {
        let all = format!("SELECT * FROM {table}");
        if rows(&fresh, &all).await.is_some() {
            found.push(format!("{table} without a tenant"));
        }
    }
    // After SET LOCAL has ended the setting is there and empty.
    let used = engine_client(place).await;
    let set = "BEGIN; SELECT set_config('onceward.tenant', 'a', true); COMMIT";
    used.batch_execute(set).await.unwrap();
    for table in TABLES {
        if rows(&used, &format!("SELECT * FROM {table}")).await.is_some() {
            found.push(format!("{table} on a used connection"));
        }
        for list in ["a,b", "{a,b}", "%", "a%", "b,a"] {
            used.batch_execute("BEGIN").await.unwrap();
            used.query("SELECT set_config('onceward.tenant', $1, true)", &[&list]).await.unwrap();
            if rows(&used, &format!("SELECT * FROM {table}")).await != Some(0) {
                found.push(format!("{table} with the tenants {list}"));
            }
            used.batch_execute("ROLLBACK").await.unwrap();
        }
        used.batch_execute("BEGIN; SELECT set_config('onceward.tenant', 'a', true)").await.unwrap();
        let others = format!("SELECT * FROM {table} WHERE tenant <> 'a'");
        if rows(&used, &others).await != Some(0) {
            found.push(format!("another tenant's {table}"));
        }
        used.batch_execute("ROLLBACK").await.unwrap();
    }
    found.extend(write_breaches(&used).await);
    found
}

/// Ways to write what another tenant sees, or to lift the policies.
async fn write_breaches(used: &Client) -> Vec<String> {
    let mut found = Vec::new();
    let writes = [
        "INSERT INTO marks (tenant, name, position, updated_at, seal) \
         VALUES ('b', 'x:y', 1, 1, '')",
        "UPDATE marks SET tenant = 'b'",
        "INSERT INTO audit (tenant, action, at) VALUES ('b', 'forged', 1)",
        "INSERT INTO outcomes (id, tenant, bytes) VALUES (1, 'b', '')",
        "UPDATE records SET tenant = 'b'",
        "DELETE FROM audit",
        "UPDATE audit SET action = 'forged'",
        "TRUNCATE marks",
        "ALTER TABLE records DISABLE ROW LEVEL SECURITY",
        "CREATE POLICY mine ON records USING (true)",
        // An error where nobody else's are seen.
        "SELECT 1 / count(*) FROM records_request WHERE tenant <> 'a'",
        "SELECT * FROM idempotency_keys",
        "SET LOCAL row_security = off; SELECT * FROM records",
        "SET LOCAL SESSION AUTHORIZATION onceward_views; SELECT * FROM records",
    ];
    for write in writes {
        used.batch_execute("BEGIN; SELECT set_config('onceward.tenant', 'a', true)").await.unwrap();
        if used.batch_execute(write).await.is_ok() {
            found.push(write.to_string());
        }
        used.batch_execute("ROLLBACK").await.unwrap();
    }
    found
}

#[tokio::test]
async fn e05_no_way_around_the_policies() {
    let (place, _store) = two_tenants("policies").await;
    // Here the login is a superuser, whom nothing binds: only what the engine's role may do counts.
    let mut found = breaches(&place).await;
    found.retain(|breach| !breach.contains("SESSION AUTHORIZATION"));
    assert!(found.is_empty(), "{found:#?}");
    place.remove().await;
}

#[tokio::test]
async fn e05_a_spoilt_policy_is_noticed() {
    let spoilt = [
        // An empty tenant setting is accepted.
        "CREATE OR REPLACE FUNCTION current_tenant() RETURNS text LANGUAGE sql STABLE \
         AS 'SELECT current_setting(''onceward.tenant'', true)'",
        // A list of tenants in the policy.
        "ALTER POLICY tenant ON records USING \
         (tenant = ANY (string_to_array(current_tenant(), ','))) \
         WITH CHECK (tenant = ANY (string_to_array(current_tenant(), ',')))",
        // A policy that is only for reading.
        "ALTER POLICY tenant ON marks WITH CHECK (true)",
        // None at all.
        "ALTER TABLE audit DISABLE ROW LEVEL SECURITY",
        // A way around it by the partition's own name.
        "GRANT SELECT ON records_request TO onceward_engine; \
         ALTER TABLE records_request DISABLE ROW LEVEL SECURITY",
        // Entries that can be changed.
        "GRANT UPDATE ON audit TO onceward_engine",
    ];
    for (number, spoil) in spoilt.into_iter().enumerate() {
        let (place, _store) = two_tenants(&format!("spoilt{number}")).await;
        place.sql(spoil).await;
        let mut found = breaches(&place).await;
        found.retain(|breach| !breach.contains("SESSION AUTHORIZATION"));
        assert!(!found.is_empty(), "not noticed: {spoil}");
        place.remove().await;
    }
}

/// The group's functions, changed.
async fn spoil_group(place: &Place, change: impl Fn(String) -> String) {
    let define = "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1 \
                  AND pronamespace = current_schema()::regnamespace";
    for function in ["apply_group", "apply_lean"] {
        let row = place.sql.query_one(define, &[&function]).await.unwrap();
        let (as_it_is, changed) = (row.get::<_, String>(0), change(row.get(0)));
        assert_ne!(as_it_is, changed, "the change changes nothing in {function}");
        place.sql(&changed).await;
    }
}

#[tokio::test]
async fn e05_a_group_that_forgets_its_tenant_writes_nothing() {
    let (place, store) = two_tenants("forgets").await;
    spoil_group(&place, |sql| {
        sql.replace("set_config('onceward.tenant', s.tenant, true)", "NULL::text")
    })
    .await;
    let error = try_commit(&store, &claim(&key_of("a", "new"))).await.unwrap_err();
    assert!(matches!(&error, StoreError::NotApplied(why) if why.contains("no tenant")), "{error}");
    assert_eq!(place.count("SELECT count(*) FROM records").await, 2);
    place.remove().await;
}

#[tokio::test]
async fn e05_a_group_that_takes_one_tenant_for_all_writes_nothing_of_the_others() {
    let (place, store) = two_tenants("one").await;
    spoil_group(&place, |sql| {
        sql.replace(
            "set_config('onceward.tenant', s.tenant, true)",
            "set_config('onceward.tenant', slices[1].tenant, true)",
        )
    })
    .await;
    let group = vec![claim(&key_of("a", "new")), claim(&key_of("b", "new"))];
    // The group fails whole and is applied batch by batch, each with its own tenant.
    for answer in store.commit(group).await.unwrap().answers {
        applied(&answer);
    }
    place.remove().await;
}

#[tokio::test]
async fn the_tenant_is_gone_with_the_call() {
    let (place, _store) = two_tenants("gone").await;
    let engine = engine_client(&place).await;
    engine.batch_execute("BEGIN").await.unwrap();
    let load = "SELECT count(*) FROM load(ARRAY['a'], ARRAY[0]::smallint[], ARRAY['scope:k'], \
                ARRAY[true], '{}', '{}')";
    assert_eq!(engine.query_one(load, &[]).await.unwrap().get::<_, i64>(0), 2);
    let error = engine.query("SELECT * FROM records", &[]).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("no tenant is set"));
    place.remove().await;
}

#[tokio::test]
async fn places_across_tenants_hold_no_contents() {
    let (place, store) = two_tenants("places").await;
    let list = List::Records { tenant: None, scope: None, state: None };
    let page = store.list(list, None, 10).await.unwrap();
    let Items::Records(records) = page.items else { panic!("not records") };
    assert_eq!(records.len(), 2);
    let page = store.list(List::Audit(AuditFilter::default()), None, 10).await.unwrap();
    assert!(matches!(page.items, Items::Audit(entries) if entries.len() == 2));
    let marks = List::Marks { tenant: None, prefix: String::new() };
    let page = store.list(marks, None, 10).await.unwrap();
    assert!(matches!(page.items, Items::Marks(marks) if marks.len() == 2));
    // The role behind them can't read anything else, even by hand.
    place.sql("SET ROLE onceward_lister").await;
    for (sql, works) in [
        ("SELECT tenant, kind, name FROM records", true),
        ("SELECT rest FROM records", false),
        ("SELECT bytes FROM outcomes", false),
        ("SELECT detail FROM audit", false),
        ("SELECT tenant, name FROM marks", true),
        ("SELECT value FROM marks", false),
        ("UPDATE marks SET position = 0", false),
        ("UPDATE records SET tenant = 'b'", false),
    ] {
        assert_eq!(place.sql.batch_execute(sql).await.is_ok(), works, "{sql}");
    }
    place.sql("RESET ROLE").await;
    place.remove().await;
}

/// A login of its own, for as long as the test runs.
async fn with_login(place: &Place, name: &str, attributes: &str) -> String {
    let login = format!("t_{name}_{}", std::process::id());
    place.sql(&format!("DROP ROLE IF EXISTS {login}")).await;
    place.sql(&format!("CREATE ROLE {login} LOGIN {attributes}")).await;
    login
}

#[tokio::test]
async fn a_plain_login_serves_and_a_stranger_is_told_what_to_do() {
    let place = Place::new("logins").await;
    let login = with_login(&place, "plain", "").await;
    let refused = place.store_with(&[("user", &login)]).await.unwrap_err();
    assert!(refused.to_string().contains("GRANT onceward_engine TO"), "{refused}");
    place.sql(&format!("GRANT onceward_engine TO {login}")).await;
    let store = place.store_with(&[("user", &login)]).await.unwrap();
    assert_eq!(store.capabilities().warnings, Vec::<String>::new());
    applied(&commit(&store, &claim(&request("k"))).await);
    store.close().await.unwrap();
    // Whoever is more than that is warned of.
    let warnings = place.store().await.capabilities().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("superuser")), "{warnings:?}");
    place.sql(&format!("DROP ROLE {login}")).await;
    place.remove().await;
}

#[tokio::test]
async fn an_owner_who_is_no_superuser_migrates_and_is_bound() {
    let place = Place::empty("owner").await;
    let login = with_login(&place, "owner", "CREATEROLE").await;
    let database = place.sql.query_one("SELECT current_database()", &[]).await.unwrap();
    let database: String = database.get(0);
    place.sql(&format!("GRANT CREATE ON DATABASE {database} TO {login}")).await;
    let (host, port) = server();
    let as_owner = format!("postgres://{login}@{host}:{port}/{database}");
    PostgresStore::migrate(&as_owner, place.options()).await.unwrap();
    PostgresStore::migrate(&as_owner, place.options()).await.unwrap();
    // The right to make roles is needed no more, and who reads a view is not waited for.
    place.sql(&format!("ALTER ROLE {login} NOCREATEROLE")).await;
    let reader = client(&url()).await;
    let read = format!("SELECT count(*) FROM {}.idempotency_keys", place.schema);
    reader.batch_execute(&format!("BEGIN; {read}")).await.unwrap();
    assert_eq!(PostgresStore::migrate(&as_owner, place.options()).await.unwrap(), 0);
    assert_eq!(PostgresStore::migrate(&url(), place.options()).await.unwrap(), 0);
    drop(reader);
    let store = PostgresStore::connect(&as_owner, place.options()).await.unwrap();
    applied(&commit(&store, &claim(&request("k"))).await);
    let warnings = store.capabilities().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("owns the tables")), "{warnings:?}");
    store.close().await.unwrap();
    let owner = client(&as_owner).await;
    let peek = format!("SELECT * FROM {}.records", place.schema);
    let error = owner.query(&peek, &[]).await.unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("no tenant is set"), "{error}");
    drop(owner);
    place.sql(&format!("DROP SCHEMA {} CASCADE", place.schema)).await;
    place.sql(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
}

#[tokio::test]
async fn weak_settings_are_refused_unless_allowed_by_name() {
    let place = Place::new("weak").await;
    let asynchronous = [("options", "-c synchronous_commit=off")];
    let error = place.store_with(&asynchronous).await.unwrap_err();
    assert!(error.to_string().contains("?allow=async_commit"), "{error}");
    let allow = |allow| PostgresOptions { allow: vec![allow], ..place.options() };
    let parameters = "?allow=async_commit&options=-c%20synchronous_commit%3Doff";
    let separator = |url: String| format!("{url}{parameters}");
    let weak = PostgresStore::connect(&separator(url()), place.options()).await.unwrap();
    assert_eq!(weak.capabilities().durability, Durability::Weak("synchronous_commit=off"));

    place.sql("ALTER TABLE marks NO FORCE ROW LEVEL SECURITY").await;
    // The engine's role is not the owner, so it is still bound.
    place.store().await;
    place.sql("ALTER TABLE marks DISABLE ROW LEVEL SECURITY").await;
    let error = place.store_with(&[]).await.unwrap_err();
    assert!(error.to_string().contains("does not bind this role on marks"), "{error}");
    assert!(error.to_string().contains("?allow=bypass_rls"), "{error}");
    let loose = PostgresStore::connect(&url(), allow(Weakness::BypassRls)).await.unwrap();
    let warnings = loose.capabilities().warnings;
    assert!(warnings.iter().any(|warning| warning.contains("marks")), "{warnings:?}");
    place.remove().await;
}

#[tokio::test]
async fn e07_the_seeds_queries_run_on_the_views() {
    let (place, store) = two_tenants("views").await;
    let conflict = Write::Audit(Box::new(Entry::new("a", "idempotency_conflict")));
    let job = put(draft(record(&key_of("a", "running"), State::Running)));
    let event = Key::new(Kind::Event, "a", "handler", "event-1").unwrap();
    let event = put(draft(record(&event, State::Running)));
    // As a sweep leaves it: the outcome gone, the key remembered.
    let mut swept = draft(record(&key_of("a", "swept"), State::Expired));
    (swept.fence, swept.due, swept.sweep) = (FenceWrite::End, Time::Clear, Time::In(60_000));
    let writes = vec![conflict, job, event, put(swept)];
    applied(&commit(&store, &batch(vec![], writes)).await);
    place.sql(&format!("SET ROLE onceward_reader; SET search_path = {}", place.schema)).await;
    let usage = "SELECT tenant_id, route_pattern, COUNT(*) as total_keys, \
        COUNT(CASE WHEN completed_at IS NOT NULL THEN 1 END) as completed, \
        AVG(EXTRACT(EPOCH FROM (completed_at - created_at))) as avg_processing_time \
        FROM idempotency_keys WHERE created_at > NOW() - INTERVAL '24 hours' \
        GROUP BY tenant_id, route_pattern ORDER BY total_keys DESC";
    let rows = place.sql.query(usage, &[]).await.unwrap();
    let shown: Vec<(String, i64, i64)> =
        rows.iter().map(|row| (row.get(0), row.get(2), row.get(3))).collect();
    assert_eq!(shown, [("a".into(), 3, 1), ("b".into(), 1, 1)]);
    let conflicts = "SELECT DATE_TRUNC('hour', created_at) as hour, COUNT(*) as conflicts \
        FROM audit_log WHERE action = 'idempotency_conflict' \
        AND created_at > NOW() - INTERVAL '24 hours' GROUP BY hour ORDER BY hour";
    let rows = place.sql.query(conflicts, &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i64>(1)).collect::<Vec<_>>(), [1]);
    let ttl = "SELECT route_pattern, COUNT(*) as total_keys, \
        COUNT(CASE WHEN expires_at < NOW() THEN 1 END) as expired, \
        AVG(EXTRACT(EPOCH FROM (expires_at - created_at))) as avg_ttl_seconds \
        FROM idempotency_keys GROUP BY route_pattern";
    assert_eq!(place.sql.query(ttl, &[]).await.unwrap().len(), 1);
    let a10 = "SELECT org_id, endpoint, idempotency_key, canonical_body_hash, \
        request_fingerprint, response_status, response_body, response_headers, created_at, \
        expires_at FROM idempotency_records";
    assert_eq!(place.sql.query(a10, &[]).await.unwrap().len(), 4);
    // What has no end has none: not one in the year 9999, which would be in every average.
    let endless = "SELECT count(*) FROM idempotency_records WHERE expires_at IS NULL";
    assert_eq!(place.count(endless).await, 2);
    let late = "SELECT count(*) FROM idempotency_keys WHERE expires_at > now() + interval '1 y'";
    assert_eq!(place.count(late).await, 0);
    let events = "SELECT handler, event_id, status FROM processed_events";
    let row = place.sql.query_one(events, &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1), row.get(2)), ("handler", "event-1", "processing"));
    assert!(place.sql.query("SELECT * FROM records", &[]).await.is_err());
    place.sql("RESET ROLE").await;
    place.remove().await;
}

#[tokio::test]
async fn mixed_tenants_in_a_group_are_answered_each_on_their_own() {
    let (place, store) = two_tenants("mixed").await;
    let group: Vec<_> =
        (0..24).map(|n| claim(&key_of(["a", "b", "c"][n % 3], &format!("k{}", n / 6)))).collect();
    // Each key comes twice: the later one is refused, and shows the first.
    let answers = store.commit(group).await.unwrap().answers;
    let counts = |of: fn(&Answer) -> bool| answers.iter().filter(|answer| of(answer)).count();
    assert_eq!(counts(|answer| matches!(answer, Answer::Applied(_))), 12);
    assert_eq!(counts(|answer| matches!(answer, Answer::Refused(_))), 12);
    place.remove().await;
}

/// A permit as the server writes it; the proof at its end is not what SQL looks at.
async fn permit_text(place: &Place, key: &Key, fence: u64) -> String {
    permit_under(place, key, fence, &Statuses::default()).await
}

/// The same, of a route that moves statuses.
async fn permit_under(place: &Place, key: &Key, fence: u64, moved: &Statuses) -> String {
    let is_moved = *moved != Statuses::default();
    let mut bytes = vec![1 + u8::from(is_moved)];
    bytes.extend_from_slice(&fence.to_be_bytes());
    if is_moved {
        for list in [&moved.stored, &moved.released] {
            bytes.push(u8::try_from(list.len()).unwrap());
            list.iter().for_each(|status| bytes.extend_from_slice(&status.to_be_bytes()));
        }
    }
    bytes.extend_from_slice(key.to_string().as_bytes());
    bytes.extend_from_slice(&[7; 32]);
    let encode = "SELECT translate(encode($1::bytea, 'base64'), E'+/=\n', '-_')";
    place.sql.query_one(encode, &[&bytes]).await.unwrap().get(0)
}

/// An application with a table of its own, which may call the functions and nothing else.
async fn app(place: &Place) -> Client {
    let app = client(&url()).await;
    place.sql("CREATE TABLE business (id text)").await;
    place.sql("GRANT SELECT, INSERT ON business TO onceward_app").await;
    app.batch_execute(&format!("SET search_path = {}; SET ROLE onceward_app", place.schema))
        .await
        .unwrap();
    app
}

#[tokio::test]
async fn i11_the_apps_row_and_the_completion_commit_together_or_neither() {
    let place = Place::new("calls").await;
    let store = place.store().await;
    let app = app(&place).await;
    let key = key_of("ac:me", "k");
    let claim = claim(&key);
    let fence = applied(&commit(&store, &claim).await).first.unwrap().1.unwrap();
    let permit = permit_text(&place, &key, fence.0).await;
    let both = |end: &str| {
        format!(
            "BEGIN; INSERT INTO business VALUES ('row'); \
             SELECT complete('{permit}', 201, '{{\"id\": 7}}'::jsonb, '{{\"Location\": \"/7\"}}'); \
             {end}"
        )
    };
    app.batch_execute(&both("ROLLBACK")).await.unwrap();
    assert_eq!(find(&store, &key).await.unwrap().stored.record.state, State::Running);
    assert_eq!(place.count("SELECT count(*) FROM business").await, 0);
    // No answer is none: the app's row is not kept either.
    for none in ["204, NULL::jsonb", "204, NULL::text", "204, NULL::bytea", "NULL::jsonb"] {
        let refused = format!(
            "BEGIN; INSERT INTO business VALUES ('row'); \
             SELECT complete('{permit}', {none}); COMMIT"
        );
        let refused = app.batch_execute(&refused).await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::NULL_VALUE_NOT_ALLOWED), "{none}");
        app.batch_execute("ROLLBACK").await.unwrap();
    }
    assert_eq!(place.count("SELECT count(*) FROM business").await, 0);

    app.batch_execute(&both("COMMIT")).await.unwrap();
    let found = find(&store, &key).await.unwrap().stored;
    assert_eq!(found.record.state, State::Done);
    assert_eq!((found.record.fence, found.record.last_fence), (None, fence));
    assert_eq!(found.record.error, None);
    let outcome = found.outcome.unwrap();
    assert!(outcome.ends_with(b"{\"id\": 7}"), "{:?}", String::from_utf8_lossy(&outcome));
    assert_eq!(place.count("SELECT count(*) FROM business").await, 1);
    // The same again is refused too: it comes with the app's row a second time.
    let again = format!(
        "SELECT complete('{permit}', 201, '{{\"id\": 7}}'::jsonb, \
                         '{{\"Location\": \"/7\"}}')"
    );
    let twice = app.query_one(&again, &[]).await.unwrap_err();
    assert_eq!(twice.code().unwrap().code(), "OW005");
    let other = both("COMMIT").replace("\"id\": 7", "\"id\": 8");
    let lost = app.batch_execute(&other).await.unwrap_err();
    assert_eq!(lost.code().unwrap().code(), "OW001");
    app.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(place.count("SELECT count(*) FROM business").await, 1);
    // The app has no other way in.
    for sql in ["SELECT * FROM records", "SELECT current_tenant()", "SELECT * FROM audit_log"] {
        assert!(app.query(sql, &[]).await.is_err(), "{sql}");
    }
    place.remove().await;
}

/// Each answer that an application records, and for how long it is kept; none: it is refused.
#[tokio::test]
async fn a12_what_an_app_records_is_judged_as_what_the_gateway_records() {
    const HOUR: u64 = 3_600_000;
    let place = Place::new("statuses").await;
    let store = place.store().await;
    let app = app(&place).await;
    let terms = claim(&key_of("acme", "any"));
    let Write::Put(terms) = &terms.writes[0] else { panic!("no put") };
    let retain = terms.record.terms.retain_ms;
    assert!(retain > 4 * HOUR, "the terms must keep answers longer than errors");
    let hour = HOUR.to_string();
    let cases = [
        ("201", "NULL", Some(retain)),
        ("303", "NULL", Some(retain)),
        ("422", "NULL", Some(4 * HOUR)),
        ("422", hour.as_str(), Some(HOUR)),
        ("401", "NULL", None),
        ("403", "NULL", None),
        ("408", "NULL", None),
        ("425", "NULL", None),
        ("429", hour.as_str(), None),
        ("500", "NULL", None),
        ("503", "NULL", None),
    ];
    for (number, (status, retain_ms, kept)) in cases.into_iter().enumerate() {
        for (form, body) in ["'{}'::jsonb", "'x'::text", "'x'::bytea"].into_iter().enumerate() {
            let key = key_of("acme", &format!("k{number}-{form}"));
            let fence = applied(&commit(&store, &claim(&key)).await).first.unwrap().1.unwrap();
            let permit = permit_text(&place, &key, fence.0).await;
            let complete = format!("SELECT complete($1, {status}, {body}, '{{}}', {retain_ms})");
            let ended = app.query_one(&complete, &[&permit]).await;
            let record = find(&store, &key).await.unwrap().stored.record;
            if let Some(kept) = kept {
                ended.unwrap();
                let expires = record.expires_at.unwrap();
                assert_eq!(expires.since(record.updated_at), kept, "{status} {body}");
            } else {
                let refused = ended.unwrap_err();
                assert_eq!(refused.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{status}");
                assert_eq!(record.state, State::Running, "{status} {body}");
            }
        }
    }
    let key = key_of("acme", "typed");
    let fence = applied(&commit(&store, &claim(&key)).await).first.unwrap().1.unwrap();
    let permit = permit_text(&place, &key, fence.0).await;
    for twice in [r#"{"X-A": "1", "x-a": "2"}"#, r#"{"X-A": null}"#, r#"{"X-A": ["1"]}"#] {
        let complete = format!("SELECT complete($1, 200, 'x'::text, '{twice}')");
        let refused = app.query_one(&complete, &[&permit]).await.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::INVALID_PARAMETER_VALUE), "{twice}");
    }
    let complete = r#"SELECT complete($1, 200, 'x'::text, '{"Content-Type": "text/plain"}')"#;
    app.query_one(complete, &[&permit]).await.unwrap();
    let outcome = find(&store, &key).await.unwrap().stored.outcome.unwrap();
    let outcome = String::from_utf8_lossy(&outcome);
    assert_eq!(outcome.matches("content-type").count(), 1, "{outcome:?}");
    assert!(outcome.contains("text/plain"), "{outcome:?}");

    let key = key_of("acme", "large");
    let fence = applied(&commit(&store, &claim(&key)).await).first.unwrap().1.unwrap();
    let permit = permit_text(&place, &key, fence.0).await;
    for large in ["$1, 200, repeat('x', 2100000)", "$1, to_jsonb(repeat('x', 2100000))"] {
        let refused = app.query_one(&format!("SELECT complete({large})"), &[&permit]).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Some(&SqlState::PROGRAM_LIMIT_EXCEEDED), "{large}");
    }
    place.remove().await;
}

/// Headers and a body, and what the program reads of them.
type Told = ((&'static str, String), Said);

/// Answers of every kind that may be told from another: by a header, by a problem, as a refusal.
fn told() -> Vec<Told> {
    let problem = r#"{"content-type": "Application/Problem+JSON ;charset=utf-8"}"#;
    let encoded = r#"{"content-type": "application/problem+json", "content-encoding": "gzip"}"#;
    let plain = r#"{"content-type": "application/problem+json", "content-encoding": "Identity"}"#;
    let retryable = Said { retryable: true, ..Said::default() };
    let mut told = vec![
        (("{}", "said".to_string()), Said::default()),
        ((r#"{"retry-after": 1}"#, String::new()), Said { retry_after: true, ..Said::default() }),
        ((problem, r#"{"retryable": true}"#.into()), retryable),
        ((problem, r#"{"retryable": "true"}"#.into()), Said::default()),
        ((problem, r#"{"a": {"retryable": true}}"#.into()), Said::default()),
        ((problem, r#"[{"retryable": true}]"#.into()), Said::default()),
        ((problem, "{".into()), Said::default()),
        // What the server can't hold as JSON, and what nobody can read, may ask for a retry.
        ((problem, r#"{"retryable": true, "a": "\u0000"}"#.into()), retryable),
        ((encoded, "\u{1f}".into()), retryable),
        ((encoded, "x".repeat(70_000)), retryable),
        ((plain, "{}".into()), Said::default()),
        ((problem, "[".repeat(60_000)), Said::default()),
        (
            (problem, format!(r#"{{"retryable": true, "a": "{}"}}"#, "x".repeat(70_000))),
            Said::default(),
        ),
        (
            (r#"{"content-type": "application/json"}"#, r#"{"retryable": true}"#.into()),
            Said::default(),
        ),
        ((problem, r#"{"type": "about:blank", "code": "auth.required"}"#.into()), Said::default()),
        ((problem, r#"{"type": "urn:x:a.b", "code": "a.b"}"#.into()), Said::default()),
    ];
    for code in Code::ALL {
        for dialect in [Dialect::Standard, Dialect::Planning] {
            let refusal = dialect.speaker().refuse(&Refusal::new(code, "no"), "");
            let body = String::from_utf8(refusal.into_body().to_vec()).unwrap();
            let retryable = code.meaning().retryable;
            let said = Said { refusal: !code.is_outcome(), retryable, ..Said::default() };
            told.push(((problem, body), said));
        }
    }
    told
}

#[tokio::test]
async fn h3_what_an_app_may_record_is_what_the_gateway_would_store() {
    let place = Place::new("moved").await;
    let store = place.store().await;
    let moved = Statuses { stored: vec![401, 409, 500], released: vec![404, 422, 502] };
    let judge = "SELECT status, is_stored($1, status, $2::text::jsonb, $3)
        FROM generate_series(200, 599) AS status";
    let judge = place.sql.prepare(judge).await.unwrap();
    for moved in [&Statuses::default(), &moved] {
        let permit = permit_under(&place, &key_of("acme", "k"), 1, moved).await;
        for ((headers, body), said) in told() {
            let judged = place.sql.query(&judge, &[&permit, &headers, &body.as_bytes()]).await;
            for row in judged.unwrap() {
                let status = u16::try_from(row.get::<_, i32>(0)).unwrap();
                // A 5xx went wrong, whatever its body says.
                let mut said = Said { status, ..said };
                said.retryable &= status < 500;
                said.refusal &= status < 500;
                let expected = ending(&said, moved).is_stored();
                assert_eq!(row.get::<_, bool>(1), expected, "{said:?} {moved:?} {body:.200}");
            }
        }
    }
    // What is no permit is told as such, whatever the answer.
    for (permit, status) in [("", 200), ("x", 409), ("AQID", 500)] {
        let judge = "SELECT is_stored($1, $2, '{}', '')";
        let refused = place.sql.query(judge, &[&permit, &status]).await.unwrap_err();
        assert_eq!(refused.code().map(SqlState::code), Some("OW002"), "{permit} {refused:?}");
    }
    // And that is what completes.
    let app = app(&place).await;
    for (status, is_recorded) in [(500, true), (502, false), (404, false), (400, true)] {
        let key = key_of("acme", &format!("moved-{status}"));
        let fence = applied(&commit(&store, &claim(&key)).await).first.unwrap().1.unwrap();
        let permit = permit_under(&place, &key, fence.0, &moved).await;
        let complete = format!("SELECT complete($1, {status}, 'x'::text)");
        let ended = app.query_one(&complete, &[&permit]).await;
        assert_eq!(ended.is_ok(), is_recorded, "{status}: {ended:?}");
        let state = find(&store, &key).await.unwrap().stored.record.state;
        let expected = if is_recorded { State::Done } else { State::Running };
        assert_eq!(state, expected, "{status}");
    }
    place.remove().await;
}

#[tokio::test]
async fn an_app_fails_and_enqueues_in_its_own_transaction() {
    let place = Place::new("fails").await;
    let store = place.store().await;
    let app = app(&place).await;
    let key = key_of("acme", "k");
    let fence = applied(&commit(&store, &claim(&key)).await).first.unwrap().1.unwrap();
    let permit = permit_text(&place, &key, fence.0).await;
    app.query("SELECT fail($1, 'näh', 1000)", &[&permit]).await.unwrap();
    let failed = find(&store, &key).await.unwrap().stored.record;
    assert_eq!((failed.state, failed.error.as_deref()), (State::Failed, Some("näh")));
    assert_eq!(failed.due_at.unwrap().since(failed.updated_at), 1_000);
    let refused = app.query("SELECT fail($1, 'again')", &[&permit]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "OW001");
    let nonsense = app.query("SELECT fail('nonsense', 'x')", &[]).await.unwrap_err();
    assert_eq!(nonsense.code().unwrap().code(), "OW002");

    let enqueue = "SELECT enqueue('ac:me', 'mail', 'send', '{\"to\": \"x\"}', 'mission/7@3')";
    app.batch_execute(&format!("BEGIN; {enqueue}; ROLLBACK")).await.unwrap();
    let due = List::Due { queue: "mail".into() };
    let page = store.list(due.clone(), None, 10).await.unwrap();
    assert!(matches!(page.items, Items::Records(jobs) if jobs.is_empty()));
    assert!(app.query_one(enqueue, &[]).await.unwrap().get::<_, bool>(0));
    assert!(!app.query_one(enqueue, &[]).await.unwrap().get::<_, bool>(0));
    let Items::Records(jobs) = store.list(due, None, 10).await.unwrap().items else {
        panic!("not records")
    };
    assert_eq!(jobs.len(), 1);
    let job = find(&store, &jobs[0].key).await.unwrap();
    assert_eq!(job.stored.record.state, State::Pending);
    assert_eq!(job.payload.as_deref(), Some(&b"{\"to\": \"x\"}"[..]));
    place.remove().await;
}

#[tokio::test]
async fn a_job_whose_retention_has_ended_is_enqueued_anew() {
    let place = Place::new("anew").await;
    place.manual_clock(1_000_000).await;
    let store = place.store().await;
    let app = app(&place).await;
    let enqueue = |payload: &str| {
        let enqueue = format!("SELECT enqueue('acme', 'mail', 'send', '{payload}', 'mission/7')");
        let app = &app;
        async move { app.query_one(&enqueue, &[]).await.map(|row| row.get::<_, bool>(0)) }
    };
    assert!(enqueue("{\"n\": 1}").await.unwrap());
    let due = List::Due { queue: "mail".into() };
    let Items::Records(jobs) = store.list(due, None, 10).await.unwrap().items else {
        panic!("not records")
    };
    let job = jobs[0].clone();
    let mut finished = done(job.clone(), b"sent");
    finished.expires = Time::In(5_000);
    let finish = batch(vec![Condition::RevIs(job.key.clone(), job.rev)], vec![put(finished)]);
    applied(&commit(&store, &finish).await);

    place.set_clock(1_004_999).await;
    assert!(!enqueue("{\"n\": 1}").await.unwrap(), "still kept");
    let other = enqueue("{\"n\": 2}").await.unwrap_err();
    assert_eq!(other.code().unwrap().code(), "OW004");
    place.set_clock(1_005_000).await;
    assert!(enqueue("{\"n\": 2}").await.unwrap(), "its time is over");
    let found = find(&store, &job.key).await.unwrap();
    assert_eq!(found.stored.record.state, State::Pending);
    assert_eq!((found.stored.outcome, found.stored.record.attempt), (None, 0));
    assert_eq!(found.payload.as_deref(), Some(&b"{\"n\": 2}"[..]));
    assert!(found.stored.record.rev > job.rev);
    assert_eq!(place.count("SELECT count(*) FROM outcomes").await, 0);
    place.remove().await;
}

#[tokio::test]
async fn a_key_over_its_bound_is_told_by_enqueue() {
    let place = Place::new("long_key").await;
    let app = app(&place).await;
    // Each part is within its own bound; escaped and together they are not.
    let part = ":".repeat(400);
    let enqueue = "SELECT enqueue('acme', $1, $2, '{}', $3)";
    let error = app.query_one(enqueue, &[&part, &part, &part]).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!(error.code().code(), "22023");
    assert!(error.message().contains("at most 2560"), "{error}");
    let part = ":".repeat(250);
    assert!(app.query_one(enqueue, &[&part, &part, &part]).await.unwrap().get::<_, bool>(0));
    place.remove().await;
}
