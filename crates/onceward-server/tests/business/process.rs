//! The demo as a process: its traffic, and what it leaves.

use super::world::{ORGANISATION_A, Service, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_traffic_shows_duplicates_conflicts_and_refusals_in_an_organisation_of_its_own() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("business-traffic");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut service = Service::spawn(folder, &["demo", "business"], "memory:");
    let theirs = "33333333-3333-3333-3333-333333333333";
    eventually("all that it does was done", async || {
        let done = async |action: &str| !service.entries(theirs, action).await.is_empty();
        done("hold.create").await
            && done("estimate.create").await
            && done("payment_link.pay").await
            && done("customer.put").await
            && done("audit.replay").await
            && done("idempotency_conflict").await
    })
    .await;
    assert!(service.requests(ORGANISATION_A).await.is_empty(), "A01");
    assert_eq!(service.terminated(), Some(0));
}
