//! E05: Postgres under the service: row-level security that holds, and the seed's indexes.
//!
//! This test is about Postgres, whatever the rest of the run is on: it makes a database of its own
//! on the server that `ONCEWARD_TEST_POSTGRES_URL` names.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::world::{ORGANISATION_A, ORGANISATION_B, Service, book, hold, link, post};

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn column(sql: &Client, query: &str) -> Vec<String> {
    sql.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// The plan of a query, on tables that are too small for an index to pay.
async fn plan(sql: &Client, query: &str) -> String {
    sql.batch_execute("SET enable_seqscan = off").await.unwrap();
    column(sql, &format!("EXPLAIN (COSTS OFF) {query}")).await.join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e05_row_level_security_binds_the_engine_and_the_seeds_indexes_are_there() {
    let service = Service::start_on_postgres("business", "e05");
    for token in ["demo-a", "demo-b"] {
        book(&hold("+1", 10)).by(token).send(&service).await.must_be(201);
    }
    post("/payments/link").json(&link(5)).send(&service).await.must_be(201);
    let sql = connect(service.store_url()).await;
    sql.batch_execute("SET search_path = onceward").await.unwrap();
    // As the engine's sessions are: without a tenant nothing, with one its own rows only.
    sql.batch_execute("SET ROLE onceward_engine").await.unwrap();
    let refused = sql.query("SELECT tenant FROM records", &[]).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{refused}");
    for (tenant, expected) in [(ORGANISATION_A, 2), (ORGANISATION_B, 1), ("nobody", 0)] {
        let setting = format!("SELECT set_config('onceward.tenant', '{tenant}', false)");
        sql.query(&setting, &[]).await.unwrap();
        let tenants = column(&sql, "SELECT tenant FROM records WHERE kind = 0").await;
        assert_eq!(tenants, vec![tenant.to_string(); expected]);
        let theirs = "SELECT count(*)::text FROM marks WHERE tenant <> current_tenant()";
        assert_eq!(column(&sql, theirs).await, ["0"]);
    }
    let moved = format!("UPDATE records SET tenant = '{ORGANISATION_A}' WHERE true");
    sql.query(&format!("SELECT set_config('onceward.tenant', '{ORGANISATION_B}', false)"), &[])
        .await
        .unwrap();
    let refused = sql.batch_execute(&moved).await.unwrap_err();
    assert_eq!(refused.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{refused}");
    sql.batch_execute("RESET ROLE").await.unwrap();
    // The seed's indexes: one key per tenant, a tenant's keys, a tenant's route; expiry, partial.
    let forced = "SELECT relname::text FROM pg_class WHERE relname IN ('records', \
                  'records_request', 'outcomes', 'payloads', 'marks', 'audit') \
                  AND relrowsecurity AND relforcerowsecurity ORDER BY 1";
    let tables = ["audit", "marks", "outcomes", "payloads", "records", "records_request"];
    assert_eq!(column(&sql, forced).await, tables);
    let unique = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'onceward' \
                  AND indexname = 'records_request_pkey'";
    let unique = column(&sql, unique).await.concat();
    assert!(unique.contains("UNIQUE") && unique.ends_with("(tenant, kind, name)"), "{unique}");
    let partial = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'onceward' \
                   AND indexname = 'records_sweep'";
    let partial = column(&sql, partial).await.concat();
    assert!(partial.ends_with("WHERE (sweep_at IS NOT NULL)"), "{partial}");
    let of = format!("SELECT name FROM records WHERE kind = 0 AND tenant = '{ORGANISATION_A}'");
    for query in [
        of.clone(),
        format!("{of} AND name = 'POST /bookings/hold::k'"),
        format!("{of} AND name >= 'POST /bookings/hold:' AND name < 'POST /bookings/hold;'"),
    ] {
        let plan = plan(&sql, &query).await;
        assert!(plan.contains("records_request_pkey") && plan.contains("tenant ="), "{plan}");
    }
    let due = "SELECT name FROM records WHERE sweep_at IS NOT NULL AND sweep_at <= 1 \
               ORDER BY sweep_at LIMIT 10";
    let plan = plan(&sql, due).await;
    assert!(plan.contains("(sweep_at <=") && !plan.contains("Seq Scan"), "{plan}");
}
