//! `onceward jobs` and `onceward dead`: on a store, and through the server that holds it.

use std::path::Path;

use onceward::engine::{Engine, Take};
use onceward::worker::Job;
use onceward_core::decide::{Finish, Retry};
use serde_json::Value;

use super::sample::{engine, folder, make, run, runtime, serve};

/// Five jobs of two tenants in one queue, four of them dead, and one ordered dead one that its
/// subject has passed.
fn make_dead(folder: &Path) {
    runtime().block_on(async {
        let engine = engine(folder);
        for (tenant, id) in [("acme", "a1"), ("acme", "a2"), ("acme", "a3"), ("globex", "g1")] {
            let job = Job::new(tenant, "post", "send").resource(id).payload(id.as_bytes());
            engine.enqueue(&job.build().unwrap()).await.unwrap();
        }
        bury(&engine, 4).await;
        for id in ["o1", "o2"] {
            let job = Job::new("acme", "post", "send").resource(id).subject("user/7");
            engine.enqueue(&job.build().unwrap()).await.unwrap();
        }
        bury(&engine, 1).await;
        engine.close().await.unwrap();
    });
}

async fn bury(engine: &Engine, count: usize) {
    let take = Take { queue: "post".into(), owner: "w".into(), max: count, lease_ms: None };
    let taken = engine.take(&take).await.unwrap();
    assert_eq!(taken.len(), count);
    for taken in taken {
        let died = engine.fail(&taken.permit, "no such mailbox", Retry::Never).await.unwrap();
        assert_eq!(died, Finish::Dead);
    }
}

fn states(page: &Value) -> Vec<(String, String)> {
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_string();
    page["items"].as_array().unwrap().iter().map(|i| (text(i, "id"), text(i, "state"))).collect()
}

fn ids(page: &Value) -> Vec<String> {
    states(page).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn jobs_are_listed_and_shown_and_queues_paused() {
    let folder = folder("jobs");
    make(&folder);
    make_dead(&folder);
    let listed = run(&folder, &["jobs", "list", "--json"]).json();
    assert_eq!(ids(&listed), ["a1", "a2", "a3", "o1", "o2", "m1", "m2", "g1"], "no requests");
    let pending = run(&folder, &["jobs", "list", "--state", "pending", "--json"]).json();
    assert_eq!(ids(&pending), ["o2", "m2"]);
    let page = run(&folder, &["jobs", "list", "--limit", "3", "--json"]).json();
    assert_eq!(ids(&page), ["a1", "a2", "a3"]);
    let after = page["next"].as_str().unwrap();
    let rest = run(&folder, &["jobs", "list", "--after", after, "--json"]).json();
    assert_eq!(ids(&rest), ["o1", "o2", "m1", "m2", "g1"]);
    let none = run(&folder, &["jobs", "list", "--queue", "other", "--json"]).json();
    assert_eq!(ids(&none), [""; 0]);
    let text = run(&folder, &["jobs", "list", "--tenant", "acme"]).ok();
    assert!(text.contains("acme:job:post:send:a1") && text.contains("STATE"), "{text}");
    let shown = run(&folder, &["jobs", "show", "acme:job:post:send:a1", "--json"]).json();
    assert_eq!((&shown["state"], &shown["error"]), (&"dead".into(), &"no such mailbox".into()));

    let paused = run(&folder, &["jobs", "pause", "post", "--json"]).json();
    assert_eq!((&paused["paused"], &paused["changed"]), (&true.into(), &true.into()));
    let again = run(&folder, &["jobs", "pause", "post"]).ok();
    assert_eq!(again, "post was paused already.\n");
    let resumed = run(&folder, &["jobs", "resume", "post"]).ok();
    assert_eq!(resumed, "post gives jobs again.\n");
    let audit = run(&folder, &["audit", "list", "--action", "queue.paused", "--json"]).json();
    assert_eq!(audit["items"][0]["actor"], "ada");
}

#[test]
fn a22_dead_letters_are_retried_and_discarded_one_by_one_or_all() {
    let folder = folder("dead");
    make_dead(&folder);
    let listed = run(&folder, &["dead", "list", "--json"]).json();
    assert_eq!(ids(&listed), ["a1", "a2", "a3", "o1", "g1"]);
    let item = &listed["items"][0];
    assert_eq!((&item["error"], &item["tenant"]), (&"no such mailbox".into(), &"acme".into()));
    assert!(item["fingerprint"].is_string(), "the payload's hash: {item}");
    let alive = run(&folder, &["dead", "retry", "acme:job:post:send:o2", "--json"]);
    assert_eq!(alive.error().0, "key.not_now", "only what is dead");
    let one = run(&folder, &["dead", "retry", "acme:job:post:send:a1"]).ok();
    assert_eq!(one, "acme:job:post:send:a1 may run again.\n");
    let shown = run(&folder, &["dead", "show", "acme:job:post:send:a1", "--json"]).json();
    assert_eq!((&shown["state"], &shown["attempt"]), (&"pending".into(), &0.into()));
    let unsure = run(&folder, &["dead", "discard", "acme:job:post:send:a2", "--json"]);
    assert_eq!((unsure.code, unsure.error().0.as_str()), (2, "confirm"));
    run(&folder, &["dead", "discard", "acme:job:post:send:a2", "--yes"]).ok();
    let bulk = run(&folder, &["dead", "retry", "--all", "--tenant", "acme", "--json"]).json();
    assert_eq!((&bulk["done"], &bulk["passed"]), (&1.into(), &1.into()), "o1 was passed: {bulk}");
    let forced = run(&folder, &["dead", "retry", "--all", "--force", "--json"]).json();
    assert_eq!(forced["done"], 2, "o1 and g1: {forced}");
    assert_eq!(ids(&run(&folder, &["dead", "list", "--json"]).json()), [""; 0]);
    let neither = run(&folder, &["dead", "retry"]);
    assert_eq!(neither.code, 2, "a key or --all");
}

#[test]
fn what_changes_a_store_that_a_server_holds_goes_through_it() {
    let folder = folder("dead-remote");
    make_dead(&folder);
    let _server = serve(&folder);
    let listed = run(&folder, &["dead", "list", "--json"]).json();
    assert_eq!(ids(&listed).len(), 5, "reads work beside the server");
    assert_eq!(run(&folder, &["jobs", "pause", "post"]).ok(), PAUSED);
    let one = run(&folder, &["dead", "retry", "acme:job:post:send:a1", "--json"]).json();
    assert_eq!(one["result"], "may run again");
    let bulk = run(&folder, &["dead", "retry", "--all", "--json"]).json();
    assert_eq!((&bulk["done"], &bulk["passed"]), (&3.into(), &1.into()), "{bulk}");
    let gone = run(&folder, &["dead", "discard", "--all", "--yes", "--json"]).json();
    assert_eq!(gone["done"], 1, "{gone}");
    let left = run(&folder, &["jobs", "list", "--json"]).json();
    let pending = states(&left).into_iter().filter(|(_, state)| state == "pending").count();
    assert_eq!(pending, 5, "{left}");
}

const PAUSED: &str = "post is paused: nothing is taken from it until it is resumed.\n";
