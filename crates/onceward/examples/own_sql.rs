//! Your own tables, exactly once: business row, key, outcome, audit and job in one commit.
//!
//! The closure runs in the store's own transaction, so an order and the record that says "done" are
//! there together or not at all. A retry gets the first answer; a failed insert leaves nothing.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::Arc;

use onceward::core::decide::{Claim, Completion, Effects, NewJob, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::engine::{Engine, OnceVerdict, OwnSqlError, Take};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

/// Orders so many of an article, once per `id`.
async fn order(engine: &Engine, id: &str, article: &str, n: i64) -> Result<String, Box<dyn Error>> {
    let key = Key::new(Kind::Request, "acme", "POST /orders", id)?;
    let claim = Claim::new(key, fingerprint_bytes(format!("{article} {n}").as_bytes()));
    let article = article.to_string();
    let insert = move |sql: &Connection| -> rusqlite::Result<Completion> {
        // The stock has a CHECK: taking more than there is fails, and nothing of this happens.
        sql.execute("UPDATE stock SET n = n - ?2 WHERE article = ?1", (&article, n))?;
        sql.execute("INSERT INTO orders (article, n) VALUES (?1, ?2)", (&article, n))?;
        let number = sql.last_insert_rowid();
        let mut effects = Effects::default();
        let job = Key::new(Kind::Job, "acme", "ship", &format!("order/{number}"));
        if let Ok(job) = job {
            let payload: Arc<[u8]> = format!("{n} {article}").as_bytes().into();
            effects.jobs.push(NewJob::new(job, fingerprint_bytes(&payload), payload));
        }
        let outcome: Arc<[u8]> = format!("201 order {number}").as_bytes().into();
        let digest = fingerprint_bytes(&outcome);
        Ok(Completion { outcome, digest, retain_ms: None, effects })
    };
    let stored = match engine.run_once_with(&claim, insert).await {
        Ok(OnceVerdict::Ran { .. }) => engine.look(&claim.key).await?.map(|found| found.stored),
        Ok(OnceVerdict::Not(Verdict::Replay(stored))) => Some(*stored),
        Ok(OnceVerdict::Not(other)) => return Ok(format!("409 {}", other.as_str())),
        Err(OwnSqlError::Caller(error)) => return Ok(format!("409 {error}")),
        Err(error) => return Err(error.to_string().into()),
    };
    let outcome = stored.and_then(|stored| stored.outcome).unwrap_or_else(|| [].into());
    Ok(String::from_utf8_lossy(&outcome).into_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("onceward-own-sql-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("shop.db");
    let engine = Engine::new(Arc::new(SqliteStore::open(&file, SqliteOptions::default())?));
    // The shop's own tables, in the same file.
    let shop = Connection::open(&file)?;
    shop.execute_batch(
        "CREATE TABLE stock (article TEXT PRIMARY KEY, n INTEGER NOT NULL CHECK (n >= 0));
         CREATE TABLE orders (number INTEGER PRIMARY KEY, article TEXT, n INTEGER NOT NULL);
         INSERT INTO stock VALUES ('chair', 5)",
    )?;
    println!("a:       {}", order(&engine, "a", "chair", 3).await?);
    println!("a again: {}", order(&engine, "a", "chair", 3).await?);
    println!("b:       {}", order(&engine, "b", "chair", 3).await?);
    println!("c:       {}", order(&engine, "c", "chair", 2).await?);
    let left: i64 = shop.query_row("SELECT n FROM stock", [], |row| row.get(0))?;
    let orders: i64 = shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
    println!("{orders} orders, {left} chairs left");
    let take = Take { queue: "ship".into(), owner: "me".into(), max: 9, lease_ms: None };
    for job in engine.take(&take).await? {
        println!("to ship: {}", String::from_utf8_lossy(&job.payload));
    }
    engine.close().await?;
    drop(shop);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
