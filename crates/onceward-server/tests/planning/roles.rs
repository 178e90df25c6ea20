//! Who may do what: tokens, roles, and that a replay never passes them by (B06).

use onceward::core::canonical::MAX_JSON_DEPTH;
use serde_json::json;

use super::world::{Service, call, eventually, get, patch, post};

/// An admin gives demo-a another role.
async fn becomes(service: &Service, role: &str) {
    let path = "/v1/collaborators/actor-a";
    let tag = get(path).by("demo-admin").send(service).await.etag();
    let given = patch(path).by("demo-admin").seen(&tag).json(&json!({ "role": role }));
    assert_eq!(given.send(service).await.must_be(200).json()["role"], role);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b06_who_may_no_longer_do_it_gets_403_and_not_the_stored_answer() {
    let service = Service::start("b06");
    let made = || post("/v1/projects").key("k").json(&json!({ "name": "Bridge" }));
    let first = made().send(&service).await.must_be(201);
    assert!(made().send(&service).await.is_replay());
    becomes(&service, "viewer").await;
    let refused = made().send(&service).await;
    refused.refuses(403, "auth.forbidden");
    assert!(!String::from_utf8_lossy(&refused.body).contains(&first.id()));
    let new = post("/v1/projects").json(&json!({ "name": "Tunnel" }));
    new.send(&service).await.refuses(403, "auth.forbidden");
    get("/v1/projects").send(&service).await.must_be(200);
    // A restart does not give back what was taken.
    let service = service.killed_and_started();
    made().send(&service).await.refuses(403, "auth.forbidden");
    becomes(&service, "editor").await;
    let again = made().send(&service).await;
    assert!(again.is_replay() && again.body == first.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b06_who_is_no_admin_any_more_is_not_shown_the_admin_that_they_made() {
    let service = Service::start("b06_admin");
    becomes(&service, "admin").await;
    let made = |key, role| {
        post("/v1/collaborators").key(key).json(&json!({ "name": "Ada", "role": role }))
    };
    let admin = made("k", "admin").send(&service).await.must_be(201);
    made("v", "viewer").send(&service).await.must_be(201);
    assert!(made("k", "admin").send(&service).await.is_replay());
    // As deep as a body may be: not every reader gets to the end of it.
    let mut deepest = json!(1);
    for _ in 1..MAX_JSON_DEPTH {
        deepest = json!([deepest]);
    }
    let body = json!({ "name": "Eve", "role": "admin", "more": deepest });
    let deep = || post("/v1/collaborators").key("d").json(&body);
    deep().send(&service).await.must_be(201);
    assert!(deep().send(&service).await.is_replay());
    becomes(&service, "editor").await;
    deep().send(&service).await.refuses(403, "auth.forbidden");
    let refused = made("k", "admin").header("x-request-id", "withheld-1").send(&service).await;
    refused.refuses(403, "auth.forbidden");
    assert!(!String::from_utf8_lossy(&refused.body).contains(&admin.id()));
    assert!(refused.etag().is_empty() && !refused.is_replay(), "{refused:?}");
    // It is known by its id, and counted and logged as every other refusal is.
    assert_eq!(refused.header("x-request-id"), "withheld-1");
    eventually("a line of the log", async || service.said().contains("withheld-1")).await;
    let said = service.said();
    let line = said.lines().find(|line| line.contains("withheld-1")).unwrap();
    assert!(line.contains("POST /v1/collaborators") && line.contains("403"), "{line}");
    assert!(line.contains("auth.forbidden"), "{line}");
    assert!(made("v", "viewer").send(&service).await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b06_another_spelling_of_the_path_leads_around_no_role() {
    let service = Service::start("b06_spelled");
    let admin = json!({ "name": "Eve", "role": "admin" });
    let made = |path: &str| post(path).by("demo-admin").key("k").json(&admin);
    let note = json!({ "note": "x" });
    let noted = |path: &str| patch(path).by("demo-admin").key("n").seen("\"1\"").json(&note);
    let first = made("/v1/collaborators").send(&service).await.must_be(201);
    noted("/v1/collaborators/actor-a2").send(&service).await.must_be(200);
    let collaborators = ["/v1/collaborators", "/v1/%63ollaborators", "/v%31/collaborator%73"];
    let people = [
        "/v1/collaborators/actor-a2",
        "/v1/%63ollaborators/actor-a2",
        "/v1/collaborators/%61ctor%2Da2",
    ];
    // For who may do it all of them are one request.
    for path in collaborators {
        let again = made(path).send(&service).await;
        assert!(again.is_replay() && again.body == first.body, "{path}: {again:?}");
    }
    for path in people {
        assert!(noted(path).send(&service).await.must_be(200).is_replay(), "{path}");
    }
    let fallen = patch("/v1/collaborators/actor-admin").by("demo-admin").seen("\"1\"");
    fallen.json(&json!({ "role": "editor" })).send(&service).await.must_be(200);
    for path in collaborators {
        let refused = made(path).send(&service).await;
        refused.refuses(403, "auth.forbidden");
        assert!(!refused.is_replay() && refused.etag().is_empty(), "{path}: {refused:?}");
        post(path).json(&admin).send(&service).await.refuses(403, "auth.forbidden");
    }
    for path in people {
        let refused = noted(path).send(&service).await;
        refused.refuses(403, "auth.forbidden");
        assert!(!refused.is_replay(), "{path}: {refused:?}");
        let promoted = patch(path).seen("\"2\"").json(&json!({ "role": "admin" }));
        promoted.send(&service).await.refuses(403, "auth.forbidden");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b06_a_first_execution_still_meets_validation_and_conflicts() {
    let service = Service::start("b06_rules");
    post("/v1/projects")
        .json(&json!({}))
        .send(&service)
        .await
        .refuses(422, "planning.validation_failed");
    let missing = patch("/v1/missions/none").seen("\"1\"").json(&json!({ "title": "x" }));
    missing.send(&service).await.refuses(404, "planning.not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_tokens_are_401_and_admins_alone_give_roles_and_read_the_audit() {
    let service = Service::start("roles");
    let body = json!({ "name": "Bridge" });
    for token in [None, Some("nobody"), Some("demo-operator")] {
        let with = |call: super::world::Call| match token {
            Some(token) => call.by(token),
            None => call.anonymous(),
        };
        for asked in [
            get("/v1/projects"),
            post("/v1/projects").json(&body),
            post("/v1/projects").keyless(),
            get("/v1/nowhere"),
            post("/v1/nowhere").json(&body),
            call("PUT", "/v1/projects").json(&body),
            call("DELETE", "/v1/search"),
        ] {
            let refused = with(asked).send(&service).await;
            refused.refuses(401, "auth.required");
            assert_eq!(refused.header("www-authenticate"), "Bearer");
        }
    }
    get("/v1/audit").send(&service).await.refuses(403, "auth.forbidden");
    let promoted =
        patch("/v1/collaborators/actor-a").seen("\"1\"").json(&json!({ "role": "admin" }));
    promoted.send(&service).await.refuses(403, "auth.forbidden");
    let admin = json!({ "name": "Eve", "role": "admin" });
    post("/v1/collaborators").json(&admin).send(&service).await.refuses(403, "auth.forbidden");
    post("/v1/collaborators").by("demo-admin").json(&admin).send(&service).await.must_be(201);
    let queen = json!({ "name": "Eve", "role": "queen" });
    post("/v1/collaborators")
        .json(&queen)
        .send(&service)
        .await
        .refuses(422, "planning.validation_failed");
    let organization = patch("/v1/organization").seen("\"1\"").json(&json!({ "name": "Ferries" }));
    let organization = organization.send(&service).await.must_be(200).json();
    assert_eq!(organization["id"], super::world::ORGANISATION_A);
    let theirs = get("/v1/organization").by("demo-b").send(&service).await.json();
    assert_ne!(theirs["name"], organization["name"]);
    // Roles are of an organisation: an admin of one is nobody elsewhere.
    let other = patch("/v1/collaborators/actor-b").by("demo-admin").seen("\"1\"");
    other.json(&json!({ "role": "viewer" })).send(&service).await.must_be(404);
    call("DELETE", "/v1/collaborators/actor-a").send(&service).await.must_be(405);
}
