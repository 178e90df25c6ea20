//! Races: of many at once exactly one wins, and everybody hears what came of it.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::json;

use super::world::{Answer, Service, call, get, patch, post};

/// How many answers had which status.
fn statuses(answers: &[Answer]) -> BTreeMap<u16, usize> {
    let mut counts = BTreeMap::new();
    answers.iter().for_each(|answer| *counts.entry(answer.status).or_default() += 1);
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a08_of_fifty_duplicates_at_once_one_runs() {
    let service = Service::start("duplicates");
    let project = service.project().await.id();
    let path = format!("/v1/projects/{project}/missions");
    let made = || post(&path).key("k").json(&json!({ "title": "Ferry" })).send(&service);
    let answers = join_all((0..50).map(|_| made())).await;
    assert_eq!(statuses(&answers), BTreeMap::from([(201, 50)]));
    assert_eq!(answers.iter().filter(|answer| !answer.is_replay()).count(), 1);
    assert!(answers.iter().all(|answer| answer.body == answers[0].body));
    assert_eq!(get(&path).send(&service).await.items().len(), 1);
    let expected = json!({ "missions": 1, "assignments": 0, "by_state": { "draft": 1 } });
    service.summary_becomes(&project, &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_b02_of_racing_writers_exactly_one_wins() {
    let service = Service::start("writers");
    let project = service.project().await;
    let path = format!("/v1/projects/{}", project.id());
    for round in 1..=5 {
        let change = |writer: usize| {
            let by = if writer.is_multiple_of(2) { "demo-a" } else { "demo-a2" };
            let body = json!({ "name": format!("{round} by {writer}") });
            patch(&path).by(by).seen(&format!("\"{round}\"")).json(&body).send(&service)
        };
        let answers = join_all((0..20).map(change)).await;
        assert_eq!(statuses(&answers), BTreeMap::from([(200, 1), (412, 19)]));
        let won = answers.iter().find(|answer| answer.status == 200).unwrap();
        assert_eq!(get(&path).send(&service).await.json(), won.json());
        for lost in answers.iter().filter(|answer| answer.status == 412) {
            assert_eq!(lost.json()["current_revision"], format!("{}", round + 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_racing_assignments_that_overlap_exactly_one_wins() {
    let service = Service::start("overlaps");
    let (one, two) = (service.mission().await.id(), service.mission().await.id());
    let who = service.collaborator().await;
    let assign =
        |n: u8| service.assign(if n.is_multiple_of(2) { &one } else { &two }, &who, (n % 4, 5));
    let answers = join_all((0..20).map(assign)).await;
    assert_eq!(statuses(&answers), BTreeMap::from([(201, 1), (409, 19)]));
    for lost in answers.iter().filter(|answer| answer.status == 409) {
        lost.refuses(409, "planning.assignment_conflict");
    }
    // Those that only touch each other all find their place, however they race.
    let side_by_side = join_all((6..22).map(|n| service.assign(&one, &who, (n, n + 1)))).await;
    assert_eq!(statuses(&side_by_side), BTreeMap::from([(201, 16)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_is_never_deleted_under_a_mission() {
    let service = Service::start("under");
    for _ in 0..10 {
        let project = service.project().await.id();
        let path = format!("/v1/projects/{project}");
        let missions = format!("{path}/missions");
        let make = || post(&missions).json(&json!({ "title": "Ferry" })).send(&service);
        let remove = call("DELETE", &path).seen("\"1\"").send(&service);
        let (first, removed, second) = tokio::join!(make(), remove, make());
        let made = [&first, &second].iter().filter(|made| made.status == 201).count();
        match removed.status {
            200 => {
                assert_eq!(made, 0, "{first:?} {second:?}");
                assert_eq!((first.status, second.status), (404, 404));
                get(&path).send(&service).await.must_be(404);
            }
            _ => {
                removed.refuses(409, "planning.project_not_empty");
                assert!(made > 0);
                assert_eq!(get(&missions).send(&service).await.items().len(), made);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_missions_of_one_project_are_made_at_once() {
    let service = Service::start("crowd");
    let project = service.project().await.id();
    let path = format!("/v1/projects/{project}/missions");
    let make =
        |n: usize| post(&path).json(&json!({ "title": format!("Ferry {n}") })).send(&service);
    let answers = join_all((0..60).map(make)).await;
    assert_eq!(statuses(&answers), BTreeMap::from([(201, 60)]), "nobody is turned away");
    assert_eq!(get(&format!("{path}?limit=1000")).send(&service).await.items().len(), 60);
    let expected = json!({ "missions": 60, "assignments": 0, "by_state": { "draft": 60 } });
    service.summary_becomes(&project, &expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b02_a_retry_of_ones_own_write_is_its_answer_and_not_412() {
    let service = Service::start("own_retry");
    let mission = service.mission().await;
    let path = format!("/v1/missions/{}", mission.id());
    let put = || call("PUT", &path).key("k").seen("\"1\"").json(&json!({ "title": "Raft" }));
    let first = put().send(&service).await.must_be(200);
    let again = put().send(&service).await;
    assert!(again.is_replay());
    assert_eq!(
        (again.status, again.body, again.headers["etag"].to_str().unwrap()),
        (200, first.body, "\"2\"")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_assigned_to_a_mission_after_it_was_locked() {
    let service = Service::start("locking");
    for _ in 0..6 {
        let mission = service.mission().await.id();
        let path = format!("/v1/missions/{mission}");
        post(&format!("{path}/plan")).seen("\"1\"").send(&service).await.must_be(200);
        let mut people = Vec::new();
        for _ in 0..4 {
            people.push(service.collaborator().await);
        }
        let assign = join_all(people.iter().map(|who| service.assign(&mission, who, (8, 9))));
        let lock = post(&format!("{path}/lock")).seen("\"2\"").send(&service);
        let (assigned, locked) = tokio::join!(assign, lock);
        let locked = locked.must_be(200);
        let made = assigned.iter().filter(|answer| answer.status == 201).count();
        for refused in assigned.iter().filter(|answer| answer.status != 201) {
            refused.refuses(409, "planning.mission_locked");
        }
        // The audit has the order of commits: whatever was made came before the lock.
        let order = super::audits::entries(&service, "from", "0").await;
        let at = |action: &str, id: &str| {
            let subject = format!("{}/{id}", action.split('.').next().unwrap());
            let found = |entry: &serde_json::Value| {
                entry["action"] == action && entry["subject"] == subject.as_str()
            };
            order.iter().position(found).unwrap()
        };
        let lock = at("mission.lock", &locked.id());
        for answer in assigned.iter().filter(|answer| answer.status == 201) {
            assert!(at("assignment.create", &answer.id()) < lock);
        }
        let listed = get(&format!("{path}/assignments")).send(&service).await.items();
        assert_eq!(listed.len(), made);
    }
}
