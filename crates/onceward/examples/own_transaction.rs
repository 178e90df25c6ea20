//! Your own Postgres transaction, exactly once: business row, key, outcome and audit in one commit.
//!
//! The engine begins a transaction on your connection, runs your work in it, records the answer and
//! commits. An order and the record that says "done" are there together or not at all; a retry gets
//! the first answer, and one that comes while the first still runs is busy, without waiting with a
//! connection. Needs `ONCEWARD_TEST_POSTGRES_URL`: a login that may make a schema and roles.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::Arc;

use onceward::core::Bytes;
use onceward::core::decide::{Claim, Completion, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::engine::{Begun, Engine, OnceVerdict};
use onceward::store::postgres::tokio_postgres::{self, Client, NoTls};
use onceward::store::postgres::{OwnTransactions, PostgresOptions, PostgresStore};

const SCHEMA: &str = "onceward_example";

struct Shop {
    engine: Engine,
    own: OwnTransactions,
    client: Client,
}

impl Shop {
    /// Orders so many chairs, once per `id`.
    async fn order(&mut self, id: &str, chairs: i32) -> Result<String, Box<dyn Error>> {
        let key = Key::new(Kind::Request, "acme", "POST /orders", id)?;
        let claim = Claim::new(key, fingerprint_bytes(&chairs.to_be_bytes()));
        let open = match self.engine.begin_once(&self.own, &mut self.client, &claim).await? {
            Begun::Open(open) => open,
            Begun::Not(Verdict::Replay(stored)) => return Ok(said(stored.outcome)),
            Begun::Not(other) => return Ok(format!("409 {}", other.as_str())),
        };
        // The stock has a CHECK: taking more than there is fails, and nothing happens.
        let take = format!("UPDATE {SCHEMA}.stock SET n = n - $1");
        if open.client().execute(&take, &[&chairs]).await.is_err() {
            open.abandon().await?;
            return Ok("409 not so many".into());
        }
        let insert = format!("INSERT INTO {SCHEMA}.orders (n) VALUES ($1) RETURNING id");
        let number: i32 = open.client().query_one(&insert, &[&chairs]).await?.try_get(0)?;
        let answer = format!("201 order {number}");
        match open.complete(&Completion::new(answer.as_bytes().into())).await? {
            OnceVerdict::Ran { .. } => Ok(answer),
            OnceVerdict::Not(other) => Ok(format!("409 {}", other.as_str())),
        }
    }
}

fn said(outcome: Option<Bytes>) -> String {
    outcome.map_or_else(String::new, |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("ONCEWARD_TEST_POSTGRES_URL")
        .map_err(|_| "set ONCEWARD_TEST_POSTGRES_URL; `cargo xtask services up` starts a server")?;
    let options = PostgresOptions { schema: SCHEMA.into(), ..PostgresOptions::default() };
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")).await?;
    PostgresStore::migrate(&url, options.clone()).await?;
    let tables = format!(
        "CREATE TABLE {SCHEMA}.stock (n integer NOT NULL CHECK (n >= 0));
         CREATE TABLE {SCHEMA}.orders (id serial PRIMARY KEY, n integer NOT NULL);
         INSERT INTO {SCHEMA}.stock VALUES (5)"
    );
    client.batch_execute(&tables).await?;
    let store = PostgresStore::connect(&url, options).await?;
    let own = store.own_transactions();
    let mut shop = Shop { engine: Engine::new(Arc::new(store)), own, client };
    println!("a:       {}", shop.order("a", 3).await?);
    println!("a again: {}", shop.order("a", 3).await?);
    println!("b:       {}", shop.order("b", 3).await?);
    println!("c:       {}", shop.order("c", 2).await?);
    let left = format!("SELECT n, (SELECT count(*) FROM {SCHEMA}.orders) FROM {SCHEMA}.stock");
    let row = shop.client.query_one(&left, &[]).await?;
    println!("{} orders, {} chairs left", row.try_get::<_, i64>(1)?, row.try_get::<_, i32>(0)?);
    shop.engine.close().await?;
    shop.client.batch_execute(&format!("DROP SCHEMA {SCHEMA} CASCADE")).await?;
    Ok(())
}
