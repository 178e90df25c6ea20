//! Versions, revisions and preconditions: A24, B01 to B03, and merge patches.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::world::{ORGANISATION_A, Service, call, eventually, get, hour, patch, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b01_reads_have_a_strong_etag_and_bodies_their_revision() {
    let service = Service::start("b01");
    let project = service.project().await;
    let path = project.header("location").to_string();
    assert_eq!(path, format!("/v1/projects/{}", project.id()));
    let read = get(&path).send(&service).await.must_be(200);
    assert_eq!((read.etag(), &read.json()["revision"]), ("\"1\"".into(), &json!("1")));
    assert_eq!(read.json(), project.json());
    let known = get(&path).header("if-none-match", "\"1\"").send(&service).await.must_be(304);
    assert!(known.body.is_empty());
    get(&path)
        .header("if-match", "\"7\"")
        .send(&service)
        .await
        .refuses(412, "planning.concurrency_mismatch");
    let list = get("/v1/projects").send(&service).await.must_be(200);
    let same = get("/v1/projects").header("if-none-match", &list.etag()).send(&service).await;
    assert_eq!((same.status, list.items()), (304, vec![project.json()]));
    for name in ["organization", "collaborators/actor-a"] {
        let read = get(&format!("/v1/{name}")).send(&service).await.must_be(200);
        assert_eq!((read.etag(), &read.json()["version"]), ("\"1\"".into(), &json!(1)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b02_writes_say_what_they_have_seen() {
    let service = Service::start("b02");
    let mission = service.mission().await;
    let project = mission.json()["project_id"].as_str().unwrap().to_string();
    let who = service.collaborator().await;
    let assignment = service.assign(&mission.id(), &who, (8, 9)).await.must_be(201).id();
    let (project, mission) =
        (format!("/v1/projects/{project}"), format!("/v1/missions/{}", mission.id()));
    let assignment = format!("/v1/assignments/{assignment}");
    for (method, path) in [
        ("PATCH", project.clone()),
        ("DELETE", project.clone()),
        ("POST", format!("{project}/archive")),
        ("POST", format!("{project}/unarchive")),
        ("PATCH", mission.clone()),
        ("PUT", mission.clone()),
        ("DELETE", mission.clone()),
        ("POST", format!("{mission}/plan")),
        ("POST", format!("{mission}/lock")),
        ("POST", format!("{mission}/archive")),
        ("POST", format!("{mission}/unarchive")),
        ("PATCH", assignment.clone()),
        ("DELETE", assignment.clone()),
        ("POST", format!("{assignment}/move")),
        ("PATCH", "/v1/organization".into()),
    ] {
        let asked = |tag: &str| {
            let asked = call(method, &path).json(&json!({}));
            if tag.is_empty() { asked } else { asked.seen(tag) }
        };
        let missing = asked("").send(&service).await;
        missing.refuses(428, "planning.concurrency_etag_required");
        for bad in ["*", "W/\"1\"", "1", "\"1\", W/\"1\""] {
            asked(bad).send(&service).await.refuses(400, "planning.concurrency_etag_invalid");
        }
        let stale = asked("\"9\"").send(&service).await;
        stale.refuses(412, "planning.concurrency_mismatch");
        assert_eq!(stale.json()["current_revision"], "1", "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b02_what_is_made_matches_no_version() {
    let service = Service::start("b02_made");
    let mission = service.mission().await;
    let project = mission.json()["project_id"].as_str().unwrap().to_string();
    let who = service.collaborator().await;
    let assignment = json!({ "collaborator_id": who, "starts_at": hour(8), "ends_at": hour(9) });
    for (path, body) in [
        ("/v1/projects".into(), json!({ "name": "Harbour" })),
        (format!("/v1/projects/{project}/missions"), json!({ "title": "Ferry" })),
        (format!("/v1/missions/{}/assignments", mission.id()), assignment),
        ("/v1/collaborators".into(), json!({ "name": "Ada" })),
    ] {
        let listed = get(&path).send(&service).await.items().len();
        let seen = || post(&path).key("k").seen("\"7\"").json(&body);
        let refused = seen().send(&service).await;
        refused.refuses(412, "planning.concurrency_mismatch");
        assert_eq!(refused.json().get("current_revision"), Some(&json!(null)), "nothing is there");
        // B04: a retry hears the same.
        let again = seen().send(&service).await;
        assert!(again.is_replay() && again.body == refused.body, "{again:?}");
        let query = post(&format!("{path}?if_match=7")).json(&body).send(&service).await;
        query.refuses(412, "planning.concurrency_mismatch");
        post(&path).seen("*").json(&body).send(&service).await.must_be(400);
        assert_eq!(get(&path).send(&service).await.items().len(), listed, "{path}");
        let made = post(&path).header("if-none-match", "*").json(&body).send(&service).await;
        made.must_be(201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_patch_keeps_its_nulls() {
    let service = Service::start("nulls");
    let body = json!({
        "title": "Ferry", "starts_at": null, "state": null, "note": null,
        "meta": { "a": null, "b": [null, { "c": null }] },
    });
    let project = service.project().await.id();
    let made = post(&format!("/v1/projects/{project}/missions")).json(&body).send(&service).await;
    let made = made.must_be(201);
    let path = format!("/v1/missions/{}", made.id());
    let replaced = call("PUT", &path).seen("\"1\"").json(&body).send(&service).await;
    for kept in [made, replaced.must_be(200), get(&path).send(&service).await] {
        let kept = kept.json();
        assert_eq!((&kept["meta"], kept.get("note")), (&body["meta"], Some(&json!(null))));
        // Of what the service knows, a null says the same as nothing.
        assert_eq!((kept.get("starts_at"), &kept["state"]), (None, &json!("draft")));
    }
    // A merge patch takes away what it names, and leaves the other nulls alone.
    let patched = patch(&path).seen("\"2\"").json(&json!({ "note": null, "meta": { "b": 1 } }));
    let patched = patched.send(&service).await.must_be(200).json();
    assert_eq!((&patched["meta"], patched.get("note")), (&json!({ "a": null, "b": 1 }), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b02_if_match_may_come_in_the_query() {
    let service = Service::start("b02_query");
    let path = format!("/v1/projects/{}", service.project().await.id());
    let change = |query: &str, name: &str| {
        patch(&format!("{path}?if_match={query}")).json(&json!({ "name": name }))
    };
    change("%221%22", "two").send(&service).await.must_be(200);
    assert_eq!(change("2", "three").send(&service).await.must_be(200).etag(), "\"3\"");
    change("2", "four").send(&service).await.refuses(412, "planning.concurrency_mismatch");
    change("*", "four").send(&service).await.refuses(400, "planning.concurrency_etag_invalid");
    let both = change("3", "four").seen("\"2\"").send(&service).await;
    both.refuses(400, "planning.concurrency_etag_invalid");
    // Whoever is not known hears that first.
    for query in ["1&if_match=2", "%zz"] {
        let malformed = |id| change(query, "four").header("x-request-id", id);
        malformed("nobody").anonymous().send(&service).await.refuses(401, "auth.required");
        let refused = malformed("twice").send(&service).await;
        refused.refuses(400, "planning.concurrency_etag_invalid");
        assert_eq!(refused.header("x-request-id"), "twice");
    }
    let nowhere = patch("/v1/nowhere?if_match=1&if_match=2").send(&service).await;
    nowhere.refuses(404, "planning.not_found");
    eventually("a line of the log", async || service.said().contains("twice")).await;
    let said = service.said();
    let line = said.lines().find(|line| line.contains("twice")).unwrap();
    assert!(line.contains("PATCH /v1/projects/{id}") && line.contains("400"), "{line}");
    assert!(line.contains(ORGANISATION_A), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b02_a_connection_lives_on_after_a_refused_if_match_or_is_said_to_close() {
    let service = Service::start("b02_lives_on");
    let id = service.project().await.id();
    let head = |method: &str, path: &str| {
        format!("{method} /v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo-a\r\n")
    };
    let answers = async |sent: String| {
        let mut stream = TcpStream::connect(service.listen).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said
    };
    let refused = head("PATCH", &format!("projects/{id}?if_match=1&if_match=1"));
    // More than comes with the head, or there would be nothing to read.
    let body = format!(r#"{{"name":"{}"}}"#, "x".repeat(200 * 1024));
    let short = format!("{refused}Content-Length: {}\r\n\r\n{body}", body.len());
    let next = head("GET", "projects") + "Connection: close\r\n\r\n";
    let said = answers(short + &next).await;
    let second = said.strip_prefix("HTTP/1.1 400 ").and_then(|rest| rest.split_once("HTTP/1.1 "));
    assert!(second.is_some_and(|(_, second)| second.starts_with("200 ")), "{said}");
    // One byte more than is read, of many.
    let long = format!("{refused}Content-Length: 9000000\r\n\r\n{}", "x".repeat(256 * 1024 + 1));
    let said = answers(long).await.to_ascii_lowercase();
    assert!(said.starts_with("http/1.1 400 ") && said.contains("connection: close\r\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b03_a_write_answers_with_the_whole_resource_and_its_new_tag() {
    let service = Service::start("b03");
    let mission = service.mission().await;
    let path = format!("/v1/missions/{}", mission.id());
    let mut tag = mission.etag();
    let steps = [
        ("PATCH", path.clone(), json!({ "title": "Boat", "colour": { "hull": "red" } })),
        ("PATCH", path.clone(), json!({ "colour": { "sail": "white", "hull": null } })),
        ("POST", format!("{path}/plan"), json!({})),
        ("PUT", path.clone(), json!({ "title": "Raft", "state": "planned", "version": 3 })),
        ("POST", format!("{path}/lock"), json!({})),
    ];
    for (version, (method, asked, body)) in (2..).zip(steps) {
        let answer = call(method, &asked).seen(&tag).json(&body).send(&service).await.must_be(200);
        assert_eq!(answer.etag(), format!("\"{version}\""));
        assert_eq!(
            (&answer.json()["version"], &answer.json()["id"]),
            (&json!(version), &json!(mission.id()))
        );
        assert_eq!(get(&path).send(&service).await.json(), answer.json(), "{method} {asked}");
        if version == 3 {
            assert_eq!(answer.json()["colour"], json!({ "sail": "white" }), "a merge patch");
            assert_eq!(answer.json()["starts_at"], "2030-01-01T08:00:00Z");
        }
        tag = answer.etag();
    }
    let last = get(&path).send(&service).await.json();
    assert_eq!((&last["title"], &last["state"]), (&json!("Raft"), &json!("locked")));
    assert_eq!((last.get("colour"), last.get("starts_at")), (None, None), "PUT replaces");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a24_a_version_that_the_body_expects_must_hold_too() {
    let service = Service::start("a24");
    let mission = service.mission().await.id();
    let path = format!("/v1/missions/{mission}");
    let change = |tag: &str, version: &str| {
        patch(&path).seen(tag).raw(&format!(r#"{{"title":"x","expected_version":{version}}}"#))
    };
    let wrong = change("\"1\"", "7").send(&service).await;
    wrong.refuses(409, "concurrency.version_mismatch");
    assert_eq!(wrong.json()["current_version"], 1);
    change("\"7\"", "1").send(&service).await.refuses(412, "planning.concurrency_mismatch");
    change("\"1\"", "\"1\"").send(&service).await.refuses(422, "planning.validation_failed");
    let changed = change("\"1\"", "1.0").send(&service).await.must_be(200);
    assert_eq!(changed.json()["version"], 2);
    assert_eq!(changed.json().get("expected_version"), None);
    // What is made has no version before.
    let make = |version| json!({ "name": "Harbour", "expected_version": version });
    let made = post("/v1/projects").json(&make(3)).send(&service).await;
    made.refuses(409, "concurrency.version_mismatch");
    post("/v1/projects").json(&make(0)).send(&service).await.must_be(201);
    // The seed's own example: an assignment that is moved names the version in its body.
    let who = service.collaborator().await;
    let assignment = service.assign(&mission, &who, (8, 9)).await.must_be(201).id();
    let moved = |version: u64| {
        let times = json!({
            "starts_at": "2030-01-02T08:00:00Z", "ends_at": "2030-01-02T09:00:00Z",
            "expected_version": version,
        });
        post(&format!("/v1/assignments/{assignment}/move")).json(&times)
    };
    moved(2).send(&service).await.refuses(409, "concurrency.version_mismatch");
    assert_eq!(moved(1).send(&service).await.must_be(200).json()["version"], 2);
}
