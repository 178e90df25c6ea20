//! The life of missions (B07), what they and their projects hold, and who is assigned when.

use serde_json::json;

use super::world::{Answer, Service, call, get, hour, patch, post};

async fn step(service: &Service, mission: &Answer, action: &str) -> Answer {
    let path = format!("/v1/missions/{}", mission.id());
    let tag = get(&path).send(service).await.etag();
    post(&format!("{path}/{action}")).seen(&tag).send(service).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_numbers_come_back_exactly_as_they_were_sent() {
    let service = Service::start("numbers");
    let sent = r#"{"name":"Bridge","cost":{"cents":1180591620717411303424,"rate":1.50},
        "spelled":[1.0,1E3,-0,5e-324,18446744073709551616,-9223372036854775809]}"#;
    let made = post("/v1/projects").raw(sent).send(&service).await.must_be(201);
    let path = format!("/v1/projects/{}", made.id());
    let change = r#"{"cost":{"rate":0.12345678901234567890123}}"#;
    let changed = patch(&path).seen(&made.etag()).raw(change).send(&service).await.must_be(200);
    let read = get(&path).send(&service).await.must_be(200);
    let listed = get("/v1/projects").send(&service).await.must_be(200);
    let expected = r#""cost":{"cents":1180591620717411303424,"rate":0.12345678901234567890123}"#;
    for shown in [changed, read, listed] {
        let text = String::from_utf8(shown.body.to_vec()).unwrap();
        assert!(text.contains(expected), "{text}");
        let spelled = r#""spelled":[1.0,1E3,-0,5e-324,18446744073709551616,-9223372036854775809]"#;
        assert!(text.contains(spelled), "{text}");
    }
    let beyond = r#"{"name":"Bridge","cost":1e400}"#;
    let refused = post("/v1/projects").raw(beyond).send(&service).await.must_be(400);
    assert_eq!(refused.json()["code"], "body.not_canonical");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b07_missions_go_from_draft_to_locked_and_into_the_archive_and_back() {
    let service = Service::start("b07");
    let mission = service.mission().await;
    assert_eq!(mission.json()["state"], "draft");
    for (action, state) in [
        ("lock", None),
        ("unarchive", None),
        ("archive", Some("archived")),
        ("plan", None),
        ("archive", None),
        ("unarchive", Some("draft")),
        ("plan", Some("planned")),
        ("plan", None),
        ("archive", Some("archived")),
        ("unarchive", Some("planned")),
        ("lock", Some("locked")),
        ("lock", None),
        ("plan", None),
        ("archive", Some("archived")),
        ("lock", None),
        ("unarchive", Some("locked")),
    ] {
        let answer = step(&service, &mission, action).await;
        match state {
            Some(state) => assert_eq!(answer.must_be(200).json()["state"], state, "{action}"),
            None => answer.refuses(409, "planning.transition_invalid"),
        }
    }
    let actions: Vec<String> = super::audits::entries(&service, "subject", &mission.id())
        .await
        .iter()
        .map(|entry| entry["action"].as_str().unwrap().to_string())
        .collect();
    let expected = [
        "create",
        "archive",
        "unarchive",
        "plan",
        "archive",
        "unarchive",
        "lock",
        "archive",
        "unarchive",
    ];
    assert_eq!(actions, expected.map(|action| format!("mission.{action}")), "each has its event");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b07_a_locked_or_archived_mission_is_not_edited() {
    let service = Service::start("b07_locked");
    let (mission, who) = (service.mission().await, service.collaborator().await);
    let path = format!("/v1/missions/{}", mission.id());
    let assignment = service.assign(&mission.id(), &who, (8, 9)).await.must_be(201);
    let assigned = format!("/v1/assignments/{}", assignment.id());
    step(&service, &mission, "plan").await.must_be(200);
    step(&service, &mission, "lock").await.must_be(200);
    for state in ["locked", "archived"] {
        let tag = get(&path).send(&service).await.etag();
        let times = json!({ "starts_at": hour(10), "ends_at": hour(11) });
        let title = json!({ "title": "x" });
        for refused in [
            patch(&path).seen(&tag).json(&title),
            call("PUT", &path).seen(&tag).json(&title),
            call("DELETE", &path).seen(&tag),
            patch(&assigned).seen("\"1\"").json(&times),
            call("DELETE", &assigned).seen("\"1\""),
            post(&format!("{assigned}/move")).seen("\"1\"").json(&times),
        ] {
            refused.send(&service).await.refuses(409, "planning.mission_locked");
        }
        let more = service.assign(&mission.id(), &who, (12, 13)).await;
        more.refuses(409, "planning.mission_locked");
        if state == "locked" {
            step(&service, &mission, "archive").await.must_be(200);
        }
    }
    let by_patch = patch(&format!("/v1/missions/{}", service.mission().await.id()));
    let by_patch = by_patch.seen("\"1\"").json(&json!({ "state": "locked" })).send(&service).await;
    by_patch.refuses(422, "planning.validation_failed");
    assert_eq!(by_patch.json()["errors"][0]["pointer"], "/state");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_project_with_missions_is_not_deleted() {
    let service = Service::start("not_empty");
    let project = service.project().await;
    let mission = service.mission_in(&project.id()).await;
    let remove = |tag: &str| call("DELETE", &format!("/v1/projects/{}", project.id())).seen(tag);
    remove("\"1\"").send(&service).await.refuses(409, "planning.project_not_empty");
    let path = format!("/v1/missions/{}", mission.id());
    let last = call("DELETE", &path).seen("\"1\"").send(&service).await.must_be(200);
    assert_eq!(last.json(), mission.json(), "the last body");
    get(&path).send(&service).await.must_be(404);
    let listed = get(&format!("/v1/projects/{}/missions", project.id())).send(&service).await;
    assert!(listed.items().is_empty());
    assert_eq!(remove("\"1\"").send(&service).await.must_be(200).json(), project.json());
    get(&format!("/v1/projects/{}", project.id())).send(&service).await.must_be(404);
    assert!(get("/v1/projects").send(&service).await.items().is_empty());
    let orphan = format!("/v1/projects/{}/missions", project.id());
    post(&orphan).json(&json!({ "title": "x" })).send(&service).await.must_be(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b07_what_only_commands_change_is_not_given_when_it_is_made() {
    let service = Service::start("b07_given");
    let mission = service.mission().await.id();
    let project = service.project().await.id();
    let ada = service.collaborator().await;
    let times = json!({
        "collaborator_id": ada, "starts_at": hour(8), "ends_at": hour(9), "mission_id": "other",
    });
    for (path, body, pointer) in [
        ("/v1/projects".into(), json!({ "name": "Bridge", "archived": true }), "/archived"),
        (
            format!("/v1/projects/{project}/missions"),
            json!({ "title": "Ferry", "state": "locked" }),
            "/state",
        ),
        (format!("/v1/missions/{mission}/assignments"), times, "/mission_id"),
    ] {
        let refused = post(&path).json(&body).send(&service).await;
        refused.refuses(422, "planning.validation_failed");
        assert_eq!(refused.json()["errors"][0]["pointer"], pointer);
    }
    let open = json!({ "name": "Bridge", "archived": false });
    post("/v1/projects").json(&open).send(&service).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn projects_are_archived_and_unarchived() {
    let service = Service::start("archived");
    let project = service.project().await;
    let path = format!("/v1/projects/{}", project.id());
    let step = |action: &str, tag: &str| post(&format!("{path}/{action}")).seen(tag);
    step("unarchive", "\"1\"").send(&service).await.refuses(409, "planning.transition_invalid");
    let archived = step("archive", "\"1\"").send(&service).await.must_be(200);
    assert_eq!((&archived.json()["archived"], archived.etag()), (&json!(true), "\"2\"".into()));
    step("archive", "\"2\"").send(&service).await.refuses(409, "planning.transition_invalid");
    let mission = post(&format!("{path}/missions")).json(&json!({ "title": "x" }));
    mission.send(&service).await.refuses(409, "planning.project_archived");
    step("unarchive", "\"2\"").send(&service).await.must_be(200);
    service.mission_in(&project.id()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_assigned_twice_at_once() {
    let service = Service::start("assigned");
    let (mission, who, other) =
        (service.mission().await.id(), service.collaborator().await, service.collaborator().await);
    let elsewhere = service.mission().await.id();
    let first = service.assign(&mission, &who, (9, 11)).await.must_be(201);
    for hours in [(9, 11), (8, 10), (10, 12), (8, 12), (10, 11)] {
        for mission in [&mission, &elsewhere] {
            let refused = service.assign(mission, &who, hours).await;
            refused.refuses(409, "planning.assignment_conflict");
        }
    }
    // Half-open: one may begin where another ends. Someone else is free.
    service.assign(&mission, &who, (8, 9)).await.must_be(201);
    let second = service.assign(&mission, &who, (11, 12)).await.must_be(201);
    service.assign(&mission, &other, (9, 11)).await.must_be(201);
    // It does not conflict with itself, but with others.
    let path = format!("/v1/assignments/{}", first.id());
    let longer = |from, to| json!({ "starts_at": hour(from), "ends_at": hour(to) });
    let shifted = patch(&path).seen("\"1\"").json(&json!({ "starts_at": hour(10) }));
    shifted.send(&service).await.must_be(200);
    let refused = patch(&path).seen("\"2\"").json(&longer(10, 12)).send(&service).await;
    refused.refuses(409, "planning.assignment_conflict");
    // What is given up is free again.
    let gone = call("DELETE", &format!("/v1/assignments/{}", second.id())).seen("\"1\"");
    gone.send(&service).await.must_be(200);
    patch(&path).seen("\"2\"").json(&longer(10, 12)).send(&service).await.must_be(200);
    let given = patch(&path).seen("\"3\"").json(&json!({ "collaborator_id": other }));
    given.send(&service).await.refuses(409, "planning.assignment_conflict");
    for (member, body) in [
        ("/collaborator_id", json!({ "collaborator_id": "nobody" })),
        ("/ends_at", longer(12, 12)),
        ("/starts_at", json!({ "starts_at": "noon" })),
    ] {
        let refused = patch(&path).seen("\"3\"").json(&body).send(&service).await;
        refused.refuses(422, "planning.validation_failed");
        assert_eq!(refused.json()["errors"][0]["pointer"], member);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_assignment_moves_to_another_time_and_mission() {
    let service = Service::start("moved");
    let (from, to) = (service.mission().await, service.mission().await);
    let who = service.collaborator().await;
    let assignment = service.assign(&from.id(), &who, (8, 10)).await.must_be(201);
    let moved = |tag: &str, body: &serde_json::Value| {
        post(&format!("/v1/assignments/{}/move", assignment.id())).seen(tag).json(body)
    };
    let times = json!({ "starts_at": hour(9), "ends_at": hour(11) });
    moved("\"1\"", &json!({})).send(&service).await.refuses(422, "planning.validation_failed");
    let same = moved("\"1\"", &times).send(&service).await.must_be(200);
    assert_eq!(
        (&same.json()["mission_id"], &same.json()["starts_at"]),
        (&json!(from.id()), &json!(hour(9)))
    );
    let mut away = times.clone();
    away["mission_id"] = json!("nowhere");
    moved("\"2\"", &away).send(&service).await.refuses(422, "planning.validation_failed");
    away["mission_id"] = json!(to.id());
    let away = moved("\"2\"", &away).send(&service).await.must_be(200);
    assert_eq!(away.json()["mission_id"], json!(to.id()));
    let listed = async |mission: &Answer| {
        get(&format!("/v1/missions/{}/assignments", mission.id())).send(&service).await.items()
    };
    assert_eq!((listed(&from).await, listed(&to).await), (vec![], vec![away.json()]));
    let summary = |assignments: u64| {
        let by_state = json!({ "draft": 1 });
        json!({ "missions": 1, "assignments": assignments, "by_state": by_state })
    };
    for (mission, assignments) in [(&from, 0), (&to, 1)] {
        let project = mission.json()["project_id"].as_str().unwrap().to_string();
        service.summary_becomes(&project, &summary(assignments)).await;
    }
    let emptied = call("DELETE", &format!("/v1/missions/{}", from.id())).seen("\"1\"");
    emptied.send(&service).await.must_be(200);
    let full = call("DELETE", &format!("/v1/missions/{}", to.id())).seen("\"1\"");
    full.send(&service).await.refuses(409, "planning.mission_not_empty");
}
