//! Claim and complete: a payment that a retry must not make twice.
//!
//! The effect is elsewhere (a payment provider), so it takes two commits: claim, then complete. The
//! lines it prints are the transcript in the README; a test compares them.
#![allow(clippy::print_stdout, reason = "an example talks to its reader")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use onceward::core::decide::{Claim, Completion, Effects, Verdict};
use onceward::core::fingerprint::{FingerprintPolicy, fingerprint_bytes, fingerprint_json};
use onceward::core::key::{Key, Kind};
use onceward::engine::Engine;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

/// Where payments are really made: counts what reaches it.
#[derive(Default)]
pub(crate) struct Provider {
    payments: std::sync::atomic::AtomicU64,
}

impl Provider {
    fn pay(&self) -> u64 {
        self.payments.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1
    }
}

/// One request: claim the key, pay if it is ours, record the answer.
async fn handle(
    engine: &Engine,
    provider: &Provider,
    key: &str,
    body: &str,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let key = Key::new(Kind::Request, "acme", "POST /payments", key)?;
    let fingerprint = fingerprint_json(body.as_bytes(), &FingerprintPolicy::default())?;
    let claim = Claim::new(key, fingerprint);
    Ok(match engine.claim_waiting(&claim, Duration::from_secs(2)).await? {
        Verdict::Run { permit, .. } => {
            // Hand `permit.fence` to whatever you call: it rises with every attempt.
            let answer = format!("201 payment {}", provider.pay());
            let outcome: Arc<[u8]> = answer.as_bytes().into();
            let digest = fingerprint_bytes(&outcome);
            let completion =
                Completion { outcome, digest, retain_ms: None, effects: Effects::default() };
            engine.complete(&permit, &completion).await?;
            answer
        }
        Verdict::Replay(stored) => {
            let outcome = stored.outcome.unwrap_or_else(|| [].into());
            format!("{} (replayed)", String::from_utf8_lossy(&outcome))
        }
        Verdict::Mismatch(_) => "422 this key was used with another payload".into(),
        Verdict::Busy { retry_after_ms } => format!("409 in flight, retry in {retry_after_ms} ms"),
        other => format!("409 {}", other.as_str()),
    })
}

/// Runs the example and returns what it says.
pub(crate) async fn transcript(
    folder: &std::path::Path,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let store = SqliteStore::open(folder.join("payments.db"), SqliteOptions::default())?;
    let engine = Engine::new(Arc::new(store));
    let provider = Arc::new(Provider::default());
    let mut said = String::new();
    let mut say = |request: &str, answer: &str| said.push_str(&format!("{request:<42} {answer}\n"));

    let first = handle(&engine, &provider, "k-1", r#"{"amount": 5}"#).await?;
    say(r#"k-1 {"amount": 5}"#, &first);
    let again = handle(&engine, &provider, "k-1", r#"{ "amount":5.0 }"#).await?;
    say(r#"k-1 { "amount":5.0 }   the same, retried"#, &again);
    let other = handle(&engine, &provider, "k-1", r#"{"amount": 500}"#).await?;
    say(r#"k-1 {"amount": 500}    another payload"#, &other);
    let both = (0..2).map(|_| {
        let (engine, provider) = (engine.clone(), provider.clone());
        tokio::spawn(async move { handle(&engine, &provider, "k-2", r#"{"amount": 7}"#).await })
    });
    let mut answers = Vec::new();
    for one in both.collect::<Vec<_>>() {
        answers.push(one.await??);
    }
    answers.sort();
    for answer in &answers {
        say(r#"k-2 {"amount": 7}      two at once"#, answer);
    }
    let made = provider.payments.load(std::sync::atomic::Ordering::SeqCst);
    say("payments made", &made.to_string());
    engine.close().await?;
    Ok(said)
}

#[tokio::main]
#[allow(dead_code, reason = "the test that checks the README uses the transcript only")]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let folder = std::env::temp_dir().join(format!("onceward-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    print!("{}", transcript(&folder).await?);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
