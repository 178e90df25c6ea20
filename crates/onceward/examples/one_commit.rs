//! One commit: the whole effect lives in our store, so it happens exactly once.
//!
//! Two transfers race for one account. The handler computes first and returns its writes; one batch
//! writes the key as done together with the document, the job and the audit entry.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::Arc;

use onceward::core::decide::{Change, Claim, Completion, Effects, NewJob, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::guard::{Guard, Rule};
use onceward::core::key::{Key, Kind, Subject};
use onceward::core::record::Body;
use onceward::engine::{Engine, OnceVerdict, Take};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

/// Takes `amount` from the account, as version `seen` was read.
async fn withdraw(engine: &Engine, id: &str, amount: i64) -> Result<String, Box<dyn Error>> {
    let account = Subject::new("acme", "account", "alice")?;
    loop {
        let document = engine.get(&account).await?;
        let (version, balance) = match &document {
            Some(document) => (document.version, std::str::from_utf8(&document.value)?.parse()?),
            None => (0, 100_i64),
        };
        let left = balance - amount;
        let answer = if left < 0 { "409 not enough".into() } else { format!("200 {left} left") };
        let mut effects = Effects::default();
        if left >= 0 {
            let guard = Guard::new(account.clone(), Rule::Exactly { expected: version })?;
            effects
                .changes
                .push(Change { guard, value: Body::Set(left.to_string().as_bytes().into()) });
            let job = Key::new(Kind::Job, "acme", "receipts", &format!("alice@{}", version + 1))?;
            let letter: Arc<[u8]> = format!("{amount} withdrawn").as_bytes().into();
            effects.jobs.push(NewJob::new(job, fingerprint_bytes(&letter), letter));
        }
        let key = Key::new(Kind::Request, "acme", "POST /withdrawals", id)?;
        let claim = Claim::new(key, fingerprint_bytes(amount.to_string().as_bytes()));
        let outcome: Arc<[u8]> = answer.as_bytes().into();
        let digest = fingerprint_bytes(&outcome);
        let completion = Completion { outcome, digest, retain_ms: None, effects };
        match engine.run_once(&claim, &completion).await? {
            OnceVerdict::Ran { .. } => return Ok(answer),
            // Someone else wrote the account in between: read it again and compute anew.
            OnceVerdict::Not(Verdict::Refused(_)) => {}
            OnceVerdict::Not(Verdict::Replay(stored)) => {
                let outcome = stored.outcome.unwrap_or_else(|| [].into());
                return Ok(format!("{} (replayed)", String::from_utf8_lossy(&outcome)));
            }
            OnceVerdict::Not(other) => return Ok(format!("409 {}", other.as_str())),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("onceward-one-commit-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let store = SqliteStore::open(folder.join("bank.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let (a, b) = tokio::join!(withdraw(&engine, "w-1", 30), withdraw(&engine, "w-2", 50));
    println!("w-1: {}\nw-2: {}", a?, b?);
    println!("w-1 again: {}", withdraw(&engine, "w-1", 30).await?);
    println!("w-3: {}", withdraw(&engine, "w-3", 30).await?);
    let take = Take { queue: "receipts".into(), owner: "me".into(), max: 9, lease_ms: None };
    for job in engine.take(&take).await? {
        println!("receipt: {}", String::from_utf8_lossy(&job.payload));
    }
    engine.close().await?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
