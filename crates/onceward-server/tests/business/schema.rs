//! E05: Postgres under the service: row-level security that holds, and the seed's indexes. E07: the
//! seed's table as a view of it.
//!
//! These tests are about Postgres, whatever the rest of the run is on: each makes a database of its
//! own on the server that `ONCEWARD_TEST_POSTGRES_URL` names.

use serde_json::{Value, json};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};

use super::world::{ORGANISATION_A, ORGANISATION_B, Service, book, hold, link, post, put};

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
    assert!(partial.ends_with("WHERE (sweep_from IS NOT NULL)"), "{partial}");
    let of = format!("SELECT name FROM records WHERE kind = 0 AND tenant = '{ORGANISATION_A}'");
    for query in [
        of.clone(),
        format!("{of} AND name = 'POST /bookings/hold::k'"),
        format!("{of} AND name >= 'POST /bookings/hold:' AND name < 'POST /bookings/hold;'"),
    ] {
        let plan = plan(&sql, &query).await;
        assert!(plan.contains("records_request_pkey") && plan.contains("tenant ="), "{plan}");
    }
    let due = "SELECT name FROM records WHERE sweep_from IS NOT NULL AND sweep_from <= 1 \
               ORDER BY sweep_from LIMIT 10";
    let plan = plan(&sql, due).await;
    assert!(plan.contains("(sweep_from <=") && !plan.contains("Seq Scan"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e04_e07_the_view_shows_the_request_that_is_kept() {
    let service = Service::start_on_postgres("business", "e07_view");
    let mut body = link(5);
    body["memo"] = json!({ "door": "B", "timestamp": "not kept" });
    post("/payments/link").keyless().json(&body).send(&service).await.must_be(201);
    body["memo"] = json!("a\u{0}b");
    post("/payments/link").key("nul").json(&body).send(&service).await.must_be(201);
    let customer = json!({ "name": "Ada" });
    put("/customers/c%3A1").key("path").json(&customer).send(&service).await.must_be(201);
    let queried = post("/payments/link?to=a&to=b").key("queried").json(&link(5));
    queried.send(&service).await.must_be(201);
    let sql = connect(service.store_url()).await;
    // Who seals the audit has a lease in the same table for a moment, which is nobody's request.
    let lease = r#"{ "tenant": "onceward", "name": "onceward.x:y" }"#;
    let own = format!(
        "INSERT INTO onceward.records SELECT (jsonb_populate_record(r, '{lease}')).* \
         FROM onceward.records AS r WHERE r.kind = 0 LIMIT 1"
    );
    assert_eq!(sql.execute(&own, &[]).await.unwrap(), 1);
    // Named with its schema: a dashboard's search path is its own.
    sql.batch_execute("SET ROLE onceward_reader").await.unwrap();
    let view = "SELECT idempotency_key, route_pattern, request_method, request_path, \
                content_hash, request_body::text, response_status_code::text, \
                response_body IS NOT NULL \
                FROM onceward.idempotency_keys ORDER BY idempotency_key";
    let rows = sql.query(view, &[]).await.unwrap();
    let shown = |row: usize, at: usize| rows[row].get::<_, Option<String>>(at).unwrap_or_default();
    assert_eq!(rows.len(), 4);
    for row in [0, 1, 2, 3] {
        assert_eq!((shown(row, 6), rows[row].get(7)), ("201".into(), true));
    }
    let route = [1, 2, 3].map(|at| shown(2, at));
    assert_eq!(route, ["PUT /customers/{id}", "PUT", "/customers/c%3A1"]);
    for row in [0, 1] {
        let route = [1, 2, 3].map(|at| shown(row, at));
        assert_eq!(route, ["POST /payments/link", "POST", "/payments/link"]);
    }
    assert!(shown(0, 0).ends_with(&format!(":{}", shown(0, 4))), "the hash in the derived key");
    let kept: Value = serde_json::from_str(&shown(0, 5)).unwrap();
    let mut expected = link(5);
    expected["memo"] = json!({ "door": "B" });
    assert_eq!(kept, expected);
    // A query is kept beside the body.
    assert_eq!(serde_json::from_str::<Value>(&shown(3, 5)).unwrap(), link(5));
    assert_eq!(shown(1, 5), "", "what jsonb can't hold is left out, and the rest is shown");
}
