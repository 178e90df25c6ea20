//! How records lie in their pages: a row keeps its size from the claim to the end, and an empty
//! outcome takes no row.

#![expect(clippy::unwrap_used, reason = "helpers of a test fail the test")]

use std::sync::Arc;

use onceward::core::decide::{Claim, Completion, NewJob, Verdict};
use onceward::core::fingerprint::fingerprint_bytes;
use onceward::core::key::{Key, Kind};
use onceward::engine::{Engine, Take};
use onceward::store::Store;

use super::support::*;

/// Bytes of all rows of a table.
fn bytes(folder: &Folder, table: &str) -> i64 {
    let sum = "SELECT coalesce(sum(payload), 0) FROM dbstat WHERE name = ?1 AND pagetype = 'leaf'";
    folder.raw().query_row(sum, [table], |row| row.get(0)).unwrap()
}

/// An engine whose next stamps take a byte each, as all but the first two do.
async fn engine(folder: &Folder) -> Engine {
    let store: Arc<dyn Store> = Arc::new(folder.open());
    let engine = Engine::new(store);
    for id in ["a", "b", "c"] {
        let claim = Claim::new(key(id), fingerprint_bytes(b"{}"));
        assert!(matches!(engine.claim(&claim).await.unwrap(), Verdict::Run { .. }));
    }
    engine
}

#[tokio::test]
async fn a_completion_leaves_its_row_as_long_as_the_claim_made_it() {
    let folder = Folder::new("room");
    let engine = engine(&folder).await;
    let claim = Claim::new(key("1"), fingerprint_bytes(b"{}"));
    let Verdict::Run { permit, .. } = engine.claim(&claim).await.unwrap() else { panic!() };
    let claimed = bytes(&folder, "records");
    engine.complete(&permit, &Completion::new(b"outcome"[..].into())).await.unwrap();
    assert_eq!(bytes(&folder, "records"), claimed);
    assert!(bytes(&folder, "outcomes") > 0);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_job_keeps_its_length_too_and_an_empty_outcome_is_read_back() {
    let folder = Folder::new("job-room");
    let engine = engine(&folder).await;
    let key = Key::within(Kind::Job, "acme", "mail", &["welcome"], "7").unwrap();
    let job = NewJob::new(key.clone(), fingerprint_bytes(b""), [].into());
    engine.enqueue(&job).await.unwrap();
    let made = bytes(&folder, "records");
    let owner = "worker 12345 0123abcd".to_string();
    let take = Take { queue: "mail".into(), owner, max: 1, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    let running = bytes(&folder, "records");
    assert!(made.abs_diff(running) <= 4, "made {made}, running {running}");
    engine.complete(&taken[0].permit, &Completion::new([].into())).await.unwrap();
    assert_eq!(bytes(&folder, "records"), running);
    assert_eq!(bytes(&folder, "outcomes"), 0);
    let found = engine.look(&key).await.unwrap().unwrap();
    assert_eq!(found.stored.outcome.as_deref(), Some(&[][..]), "done, with nothing to say");
    engine.close().await.unwrap();
}
