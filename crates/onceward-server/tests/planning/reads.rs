//! Lists, what jobs derive (A02), the response cache (A17), and addresses that nobody serves.

use serde_json::{Value, json};

use super::world::{Answer, Service, call, eventually, get, hour, is_shared, patch, post};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b08_an_id_that_is_no_text_is_a_problem_like_any_unknown_one() {
    let service = Service::start("no_text");
    get("/v1/projects/%ff").send(&service).await.refuses(404, "planning.not_found");
    let plan = post("/v1/missions/%ff/plan").seen("\"1\"");
    plan.send(&service).await.refuses(404, "planning.not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b08_an_id_that_nothing_can_have_is_like_any_unknown_one() {
    let service = Service::start("no_such_id");
    let (mission, who) = (service.mission().await.id(), service.collaborator().await);
    let assignment = service.assign(&mission, &who, (8, 9)).await.must_be(201).id();
    let refused = |answer: Answer, pointer: &str| {
        answer.refuses(422, "planning.validation_failed");
        assert_eq!(answer.json()["errors"][0]["pointer"], pointer, "{answer:?}");
    };
    let path = format!("/v1/assignments/{assignment}");
    // With the guard's own words before it, 510 bytes are too many as well.
    for id in ["none".into(), String::new(), "x".repeat(510), "x".repeat(600)] {
        let body = json!({ "mission_id": id, "starts_at": hour(8), "ends_at": hour(9) });
        let moved = post(&format!("{path}/move")).seen("\"1\"").json(&body);
        refused(moved.send(&service).await, "/mission_id");
    }
    let long = "\u{1F6A2}".repeat(200);
    refused(service.assign(&mission, &long, (9, 10)).await, "/collaborator_id");
    let changed = patch(&path).seen("\"1\"").json(&json!({ "collaborator_id": long }));
    refused(changed.send(&service).await, "/collaborator_id");
    for length in [510, 600] {
        let id = "x".repeat(length);
        for (method, path) in [
            ("PATCH", format!("/v1/projects/{id}")),
            ("DELETE", format!("/v1/missions/{id}")),
            ("POST", format!("/v1/missions/{id}/plan")),
            ("POST", format!("/v1/assignments/{id}/move")),
            ("POST", format!("/v1/projects/{id}/missions")),
            ("POST", format!("/v1/missions/{id}/assignments")),
        ] {
            let asked = call(method, &path).seen("\"1\"").json(&json!({}));
            asked.send(&service).await.refuses(404, "planning.not_found");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_a_write_is_seen_at_once_and_what_is_derived_may_lag() {
    let service = Service::start("a02");
    let project = service.project().await.id();
    for queue in ["planning.summary", "planning.search", "planning.notifications"] {
        service.operate("POST", &format!("/v1/queues/{queue}/pause")).await.must_be(200);
    }
    let mission = service.mission_in(&project).await;
    let path = format!("/v1/missions/{}", mission.id());
    assert_eq!(get(&path).send(&service).await.json(), mission.json());
    let listed = get(&format!("/v1/projects/{project}/missions")).send(&service).await.items();
    assert_eq!(listed, [mission.json()]);
    service
        .summary_becomes(&project, &json!({ "missions": 0, "assignments": 0, "by_state": {} }))
        .await;
    assert!(get("/v1/search?q=ferry").send(&service).await.items().is_empty());
    for queue in ["planning.summary", "planning.search", "planning.notifications"] {
        service.operate("POST", &format!("/v1/queues/{queue}/resume")).await.must_be(200);
    }
    let expected = json!({ "missions": 1, "assignments": 0, "by_state": { "draft": 1 } });
    service.summary_becomes(&project, &expected).await;
    eventually("the mission is found", async || {
        get("/v1/search?q=ferry").send(&service).await.items().len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_search_finds_the_collaborators_of_the_configuration() {
    let service = Service::start("search_configured");
    let found = async |service: &Service| {
        let items = get("/v1/search?q=actor").send(service).await.items();
        items.iter().map(|item| item["id"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let all = ["actor-a", "actor-a2", "actor-admin"];
    assert_eq!(found(&service).await, all);
    // A new name replaces the first one, and a start does not bring that back.
    let renamed = patch("/v1/collaborators/actor-a2").by("demo-admin").seen("\"1\"");
    renamed.json(&json!({ "name": "Grace" })).send(&service).await.must_be(200);
    eventually("the new name", async || found(&service).await == ["actor-a", "actor-admin"]).await;
    let service = service.killed_and_started();
    assert_eq!(found(&service).await, ["actor-a", "actor-admin"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_search_finds_words_by_their_beginnings_as_they_are_now() {
    let service = Service::start("search");
    let titled = async |title: &str| {
        let project = service.project().await.id();
        let path = format!("/v1/projects/{project}/missions");
        post(&path).json(&json!({ "title": title })).send(&service).await.must_be(201)
    };
    let (one, two) = (titled("Paint the northern pier").await, titled("Paint bollards").await);
    let found = async |q: &str| {
        let items = get(&format!("/v1/search?q={q}")).send(&service).await.items();
        let mut ids: Vec<_> =
            items.iter().map(|item| item["id"].as_str().unwrap().to_string()).collect();
        ids.sort();
        ids
    };
    let mut both = vec![one.id(), two.id()];
    both.sort();
    eventually("both are found", async || found("pai").await == both).await;
    assert_eq!(found("NORTH+pa").await, [one.id()]);
    assert!(found("ier").await.is_empty(), "not from the middle");
    let path = format!("/v1/missions/{}", one.id());
    patch(&path)
        .seen("\"1\"")
        .json(&json!({ "title": "Scrub it" }))
        .send(&service)
        .await
        .must_be(200);
    eventually("the new title", async || found("scrub").await == [one.id()]).await;
    assert_eq!((found("pai").await, found("pier").await), (vec![two.id()], vec![]));
    call("DELETE", &path).seen("\"2\"").send(&service).await.must_be(200);
    eventually("it is gone", async || found("scrub").await.is_empty()).await;
    let theirs = get("/v1/search?q=paint").by("demo-b").send(&service).await;
    assert!(theirs.items().is_empty(), "A01");
    get("/v1/search").send(&service).await.refuses(400, "request.malformed");
    // Twelve words of a name are known, and every word of `q` counts.
    let words: Vec<String> = (0..13).map(|n| format!("w{n:02}")).collect();
    let many = titled(&words.join(" ")).await.id();
    let twelve = words[..12].join("+");
    eventually("the first words", async || found(&twelve).await == [many.clone()]).await;
    for more in ["w12", "zzz"] {
        assert!(found(&format!("{twelve}+{more}")).await.is_empty(), "{more}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a02_every_write_is_told_of_once() {
    let service = Service::start("told");
    let mission = service.mission().await;
    let path = format!("/v1/missions/{}", mission.id());
    let plan = || post(&format!("{path}/plan")).key("plan").seen("\"1\"");
    plan().send(&service).await.must_be(200);
    assert!(plan().send(&service).await.is_replay());
    let told = async || {
        let told = get("/v1/notifications").send(&service).await.items();
        told.iter().map(|told| told["action"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let expected = ["project.create", "mission.create", "mission.plan"];
    eventually("three notifications", async || told().await == expected).await;
    let last = get("/v1/notifications?limit=2").send(&service).await;
    let next = last.json()["next"].as_str().unwrap().to_string();
    let rest = get(&format!("/v1/notifications?after={next}")).send(&service).await;
    let last = &rest.items()[0];
    assert_eq!(last["resource"], format!("mission/{}@2", mission.id()));
    assert_eq!((rest.items().len(), &last["actor"]), (1, &json!("actor-a")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a17_only_a_successful_first_execution_touches_the_response_cache() {
    let service = Service::start("a17");
    let project = service.project().await;
    let path = format!("/v1/projects/{}", project.id());
    let cached = async || {
        let read = get(&path).send(&service).await.must_be(200);
        (read.header("x-cache").to_string(), read.json()["name"].as_str().unwrap().to_string())
    };
    let kept = if is_shared() { "" } else { "hit" };
    let hit = |name: &str| (kept.to_string(), name.to_string());
    assert_eq!(cached().await, hit("Bridge"), "filled by the write");
    let first = || patch(&path).key("first").seen("\"1\"").json(&json!({ "name": "Second" }));
    first().send(&service).await.must_be(200);
    assert_eq!(cached().await, hit("Second"), "replaced by the write");
    let stale = patch(&path).seen("\"1\"").json(&json!({ "name": "Lost" }));
    stale.send(&service).await.refuses(412, "planning.concurrency_mismatch");
    assert_eq!(cached().await, hit("Second"), "a failed write touches nothing");
    let third = patch(&path).seen("\"2\"").json(&json!({ "name": "Third" }));
    third.send(&service).await.must_be(200);
    assert!(first().send(&service).await.is_replay());
    assert_eq!(cached().await, hit("Third"), "neither does a replay");
    get(&path).by("demo-b").send(&service).await.must_be(404);
    call("DELETE", &path).seen("\"3\"").send(&service).await.must_be(200);
    get(&path).send(&service).await.must_be(404);
    // A new process has nothing in its cache, and reads do not fill it.
    let project = service.project().await;
    let service = service.killed_and_started();
    let path = format!("/v1/projects/{}", project.id());
    for _ in 0..2 {
        assert_eq!(get(&path).send(&service).await.must_be(200).header("x-cache"), "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_come_in_pages_without_gaps() {
    let service = Service::start("pages");
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.push(service.project().await.id());
    }
    let gone = ids.remove(2);
    call("DELETE", &format!("/v1/projects/{gone}")).seen("\"1\"").send(&service).await.must_be(200);
    for limit in [1, 2, 3, 6, 1_000] {
        let mut listed = Vec::new();
        let mut asked = format!("/v1/projects?limit={limit}");
        loop {
            let page = get(&asked).send(&service).await.must_be(200);
            listed.extend(page.items().iter().map(|item| item["id"].as_str().unwrap().to_string()));
            let Some(next) = page.json()["next"].as_str().map(str::to_string) else { break };
            assert_eq!(page.items().len(), limit, "a page that goes on is full");
            asked = format!("/v1/projects?limit={limit}&after={next}");
        }
        assert_eq!(listed, ids, "in the order of their making");
    }
    for bad in ["limit=0", "limit=1001", "limit=x", "after=nonsense", "after=ff"] {
        let refused = get(&format!("/v1/projects?{bad}")).send(&service).await;
        refused.refuses(400, "request.malformed");
    }
    let people = get("/v1/collaborators").send(&service).await.items();
    let names: Vec<&Value> = people.iter().map(|person| &person["id"]).collect();
    assert_eq!(names, ["actor-a", "actor-a2", "actor-admin"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b08_addresses_that_nobody_serves_are_problems_too() {
    let service = Service::start("b08");
    for path in ["/", "/v1", "/v1/projects/none", "/v1/missions/none/assignments", "/v2/projects"] {
        get(path).send(&service).await.refuses(404, "planning.not_found");
    }
    let long = format!("/v1/projects/{}", "x".repeat(600));
    get(&long).send(&service).await.refuses(404, "planning.not_found");
    post("/v2/projects").send(&service).await.refuses(404, "planning.not_found");
    let wrong = call("DELETE", "/v1/projects").send(&service).await;
    wrong.refuses(405, "request.method_not_allowed");
    assert!(wrong.header("allow").contains("POST"), "{wrong:?}");
    for body in ["[]", "7", "null"] {
        let refused = post("/v1/projects").raw(body).send(&service).await;
        refused.refuses(422, "planning.validation_failed");
    }
    let large = json!({ "name": "x", "rest": "y".repeat(300 * 1024) });
    post("/v1/projects").json(&large).send(&service).await.refuses(413, "body.too_large");
}
