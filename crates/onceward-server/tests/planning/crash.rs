//! Kills: what was answered is there, once; what was not can be sent again; jobs go on.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::world::{Answer, Service, eventually, get, is_shared, patch, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a10_a21_what_was_answered_survives_a_kill_with_its_jobs() {
    let service = Service::start("a10");
    let project = service.project().await;
    for queue in ["planning.summary", "planning.notifications"] {
        service.operate("POST", &format!("/v1/queues/{queue}/pause")).await.must_be(200);
    }
    let path = format!("/v1/projects/{}/missions", project.id());
    let made = || post(&path).key("k").json(&json!({ "title": "Ferry" }));
    let first = made().send(&service).await.must_be(201);
    let service = service.killed_and_started();
    let again = made().send(&service).await;
    assert!(again.is_replay() && again.body == first.body && again.etag() == first.etag());
    assert_eq!(get(&path).send(&service).await.items(), [first.json()]);
    // The pause outlived the process, and so did the jobs.
    for queue in ["planning.summary", "planning.notifications"] {
        service.operate("POST", &format!("/v1/queues/{queue}/resume")).await.must_be(200);
    }
    let expected = json!({ "missions": 1, "assignments": 0, "by_state": { "draft": 1 } });
    service.summary_becomes(&project.id(), &expected).await;
}

/// Writers send missions to one project while the process is killed at any moment and started
/// again; each retries with its key until it has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a19_a23_killed_anywhere_nothing_is_lost_or_doubled() {
    const MISSIONS: usize = 12;
    const KILLS: u64 = 5;
    let mut service = Service::start("killed");
    let project = service.project().await.id();
    let path = format!("/v1/projects/{project}/missions");
    let make = |n: usize| {
        post(&path).key(&format!("mission-{n}")).json(&json!({ "title": format!("Ferry {n}") }))
    };
    let mut answered: Vec<Option<Answer>> = vec![None; MISSIONS];
    for round in 0..KILLS {
        let listen = service.listen;
        let sent = (0..MISSIONS).map(|n| tokio::spawn(make(n).try_send(listen)));
        let sent: Vec<_> = sent.collect();
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(round * 7)).await;
        service.kill();
        for (place, answer) in answered.iter_mut().zip(join_all(sent).await) {
            if let Some(answer) = answer.unwrap() {
                let answer = answer.must_be(201);
                if let Some(first) = place {
                    assert_eq!(answer.body, first.body, "the first answer stands");
                }
                *place = Some(answer);
            }
        }
        service = service.started_again();
    }
    for (n, place) in answered.iter_mut().enumerate() {
        let answer = make(n).send(&service).await.must_be(201);
        if let Some(first) = place {
            assert!(answer.is_replay() && answer.body == first.body);
        }
        *place = Some(answer);
    }
    let listed = get(&format!("{path}?limit=1000")).send(&service).await.items();
    assert_eq!(listed.len(), MISSIONS);
    // Each job was done once, however many workers died with it: a lease of five seconds later.
    let expected = json!({
        "missions": MISSIONS, "assignments": 0, "by_state": { "draft": MISSIONS },
    });
    service.summary_becomes(&project, &expected).await;
    eventually("each mission is told of", async || {
        let told = get("/v1/notifications?limit=1000").send(&service).await.items();
        told.iter().filter(|told| told["action"] == "mission.create").count() == MISSIONS
    })
    .await;
    let summary = format!("/v1/projects/{project}/summary");
    assert_eq!(get(&summary).send(&service).await.json(), expected, "and not twice");
    let dead = service.operate("GET", "/v1/dead").await.items();
    assert!(dead.is_empty(), "{dead:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_a_chain_of_versions_survives_kills_without_a_lost_update() {
    let mut service = Service::start("chain");
    let project = service.project().await;
    let path = format!("/v1/projects/{}", project.id());
    let mut version = 1;
    while version < 7 {
        let change = || {
            let body = json!({ "name": format!("name {version}") });
            let key = format!("change-{version}");
            patch(&path).key(&key).seen(&format!("\"{version}\"")).json(&body)
        };
        let listen = service.listen;
        let sent = tokio::spawn(change().try_send(listen));
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(version * 3)).await;
        service.kill();
        let _ = sent.await.unwrap();
        service = service.started_again();
        // Whether it was lost on the way or only its answer was: the retry is its 200.
        let changed = change().send(&service).await.must_be(200);
        assert_eq!(changed.json()["version"], version + 1);
        version += 1;
    }
    assert_eq!(get(&path).send(&service).await.json()["name"], "name 6");
}

/// Kills until one has hit replays that waited to be audited: most do.
const KILLS_MAX: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_replays_that_a_crash_kept_from_the_audit_are_counted() {
    if is_shared() {
        // There a process counts as dead only after a minute of silence: `audit_lost` shows that.
        return;
    }
    let mut service = Service::start("lost");
    let make = || post("/v1/projects").key("k").json(&json!({ "name": "Bridge" }));
    make().send(&service).await.must_be(201);
    for _ in 0..KILLS_MAX {
        for _ in 0..20 {
            assert!(make().send(&service).await.must_be(201).is_replay());
        }
        service = service.killed_and_started();
        let lost = service.operate("GET", "/v1/audit?tenant=onceward&action=audit.lost").await;
        if lost.items().is_empty() {
            continue;
        }
        let metrics = service.operate("GET", "/metrics").await.must_be(200);
        let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
        let told = |line: &&str| line.contains("notes_lost_total{why=\"crash\"}");
        let line = metrics.lines().find(told).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
        return;
    }
    panic!("no kill in {KILLS_MAX} was counted");
}
