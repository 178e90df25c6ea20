//! The small domain itself: what is made, kept, refused, and what ends by itself.

use serde_json::json;

use super::world::{ORGANISATION_A, Service, book, eventually, get, hold, link, post, put};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_made_is_read_by_its_id_with_every_field_that_was_sent() {
    let service = Service::start("domain_made");
    let mut body = hold("+1", 10);
    body["colour"] = json!({ "hue": [1, 2] });
    let held = book(&body).send(&service).await.must_be(201);
    assert_eq!((&held.json()["status"], &held.json()["version"]), (&json!("held"), &json!(1)));
    assert_eq!(held.json()["colour"], body["colour"]);
    let items = json!({ "items": [{ "sku": "a", "qty": 1, "note": "x" }], "status": "mine" });
    let draft = post("/estimates/draft").keyless().json(&items).send(&service).await.must_be(201);
    assert_eq!(
        (&draft.json()["status"], &draft.json()["items"]),
        (&json!("draft"), &items["items"])
    );
    let paid = post("/payments/link").keyless().json(&link(5)).send(&service).await.must_be(201);
    for (made, path) in
        [(&held, "/bookings/hold"), (&draft, "/estimates/draft"), (&paid, "/payments/link")]
    {
        let path = format!("{path}/{}", made.id());
        assert_eq!(made.header("location"), path);
        assert_eq!(get(&path).send(&service).await.must_be(200).json(), made.json());
        assert_eq!(get(&path).by("demo-b").send(&service).await.error(), (404, "NOT_FOUND".into()));
        get(&path).anonymous().send(&service).await.must_be(401);
    }
    for (asked, status) in [
        (get("/nowhere"), 404),
        (post("/nowhere").json(&json!({})), 404),
        (get("/payments/link"), 405),
        (put("/payments/link").json(&json!({})), 405),
    ] {
        let unknown = asked.clone().anonymous().send(&service).await.must_be(401);
        assert!(unknown.json()["error"]["code"].is_string());
        asked.send(&service).await.must_be(status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_numbers_come_back_exactly_as_they_were_sent() {
    let service = Service::start("domain_numbers");
    let further = [
        r#""ledger":{"n":[1180591620717411303424,-18446744073709551617]}"#,
        r#""rate":0.12345678901234567890123"#,
        r#""spelled":[1.0,1E3,-0,5e-324,18446744073709551616,-9223372036854775809]"#,
    ];
    let sent = format!(r#"{{"name":"Ada",{}}}"#, further.join(","));
    let made = put("/customers/c1").raw(&sent).send(&service).await.must_be(201);
    let again = put("/customers/c1").raw(&sent).keyless().send(&service).await.must_be(200);
    let read = get("/customers/c1").send(&service).await.must_be(200);
    for shown in [made, again, read] {
        let text = String::from_utf8(shown.body.to_vec()).unwrap();
        for member in further {
            assert!(text.contains(member), "{member} in {text}");
        }
    }
    let beyond = r#"{"name":"Ada","rate":1e400}"#;
    put("/customers/c2").raw(beyond).send(&service).await.must_be(400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_creates_or_replaces_as_a_whole() {
    let service = Service::start("domain_put");
    let write =
        async |body: &serde_json::Value| put("/customers/c1").json(body).send(&service).await;
    let made = write(&json!({ "name": "Ada", "phone": "+1", "tier": 2 })).await.must_be(201);
    assert_eq!(made.json()["version"], 1);
    let replaced = write(&json!({ "name": "Ada L." })).await.must_be(200);
    assert_eq!(replaced.json(), json!({ "id": "c1", "version": 2, "name": "Ada L." }));
    assert_eq!(get("/customers/c1").send(&service).await.json(), replaced.json());
    let job =
        put("/jobs/j 1%2F2".replace(' ', "%20").as_str()).json(&json!({})).send(&service).await;
    assert_eq!((job.status, &job.json()["status"]), (201, &json!("open")));
    assert_eq!(job.json()["id"], "j 1/2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_valid_is_told_at_once_and_again() {
    let service = Service::start("domain_invalid");
    let body = json!({ "customer_info": { "name": "Ada" }, "requested_time": "soon" });
    let refused = book(&body).send(&service).await;
    assert_eq!(refused.error(), (422, "VALIDATION_FAILED".into()));
    let paths: Vec<_> = refused.json()["error"]["details"]["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["path"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(paths, ["customer_info.phone", "requested_time"]);
    let again = book(&body).send(&service).await;
    assert!(again.is_again() && again.body == refused.body, "B04");
    for body in ["", "[1]", "not JSON", "7"] {
        let refused = post("/payments/link").raw(body).send(&service).await;
        assert_eq!(refused.error(), (422, "VALIDATION_FAILED".into()), "{body:?}");
    }
    let twice = post("/payments/link").raw(r#"{"amount":1,"amount":2}"#).send(&service).await;
    assert_eq!(twice.error(), (400, "BODY_NOT_CANONICAL".into()));
    assert_eq!(get("/nowhere").send(&service).await.error(), (404, "NOT_FOUND".into()));
    let method = get("/payments/link").send(&service).await;
    assert_eq!(method.error(), (405, "METHOD_NOT_ALLOWED".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payment_link_is_open_until_it_is_paid_cancelled_or_over() {
    let service = Service::start_with("domain_link", &[("ONCEWARD_BUSINESS_LINK_FOR", "1s")]);
    let made = post("/payments/link").json(&link(5)).send(&service).await.must_be(201);
    let path = format!("/payments/link/{}", made.id());
    let paid = post(&format!("{path}/pay")).keyless().send(&service).await.must_be(200);
    assert_eq!((&paid.json()["state"], &paid.json()["version"]), (&json!("paid"), &json!(2)));
    assert!(post(&format!("{path}/pay")).keyless().send(&service).await.must_be(200).is_again());
    for action in ["pay", "cancel"] {
        let late = post(&format!("{path}/{action}")).send(&service).await;
        assert_eq!(late.error(), (409, "PAYMENT_LINK_CLOSED".into()));
        assert_eq!(late.json()["error"]["details"], json!({ "state": "paid" }));
    }
    post("/payments/link/none/pay").send(&service).await.must_be(404);
    let other = post("/payments/link").json(&link(6)).send(&service).await.must_be(201);
    let path = format!("/payments/link/{}", other.id());
    eventually("the link is over", async || {
        get(&path).send(&service).await.json()["state"] == "expired"
    })
    .await;
    let late = post(&format!("{path}/pay")).send(&service).await;
    assert_eq!(late.json()["error"]["details"], json!({ "state": "expired" }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_ends_by_itself_also_when_the_process_was_killed_meanwhile() {
    let variables = [("ONCEWARD_BUSINESS_HOLD_FOR", "2s")];
    let mut service = Service::start_with("domain_hold", &variables);
    let held = book(&hold("+1", 10)).send(&service).await.must_be(201);
    service.kill();
    let service = service.started_again_with(&variables);
    let path = format!("/bookings/hold/{}", held.id());
    eventually("the hold is over", async || {
        get(&path).send(&service).await.json()["status"] == "expired"
    })
    .await;
    // A job closes it, once.
    eventually("the audit tells", async || {
        !service.entries(ORGANISATION_A, "hold.expire").await.is_empty()
    })
    .await;
    let shown = get(&path).send(&service).await.json();
    assert_eq!((&shown["status"], &shown["version"]), (&json!("expired"), &json!(2)));
    assert_eq!(service.entries(ORGANISATION_A, "hold.expire").await.len(), 1);
}
