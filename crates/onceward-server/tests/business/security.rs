//! E10, under attack: other tenants, colliding keys, SQL, and what is told to whom.

use serde_json::json;

use super::conflicts::conflict;
use super::world::{
    ORGANISATION_A, ORGANISATION_B, SHORT, Service, book, eventually, get, hold, link, post, put,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_security_cross_tenant_isolation() {
    let service = Service::start("e10_tenants");
    let sent = async |token, amount| {
        post("/payments/link").key("shared").by(token).json(&link(amount)).send(&service).await
    };
    let ours = sent("demo-a", 5).await.must_be(201);
    // The same key with the same or another payload is theirs, and tells nothing of ours.
    let theirs = sent("demo-b", 6).await.must_be(201);
    assert!(!theirs.is_again() && theirs.id() != ours.id());
    let refused = sent("demo-b", 7).await;
    let details = conflict(&refused);
    assert_eq!(details["diff_summary"], json!(["amount: 6 → 7"]), "their own payloads only");
    for path in ["/payments/link", "/bookings/hold", "/customers", "/jobs"] {
        let foreign = get(&format!("{path}/{}", ours.id())).by("demo-b").send(&service).await;
        let absent = get(&format!("{path}/none")).by("demo-b").send(&service).await;
        assert_eq!((foreign.status, &foreign.body), (404, &absent.body), "{path}");
    }
    let pay = format!("/payments/link/{}/pay", ours.id());
    post(&pay).by("demo-b").send(&service).await.must_be(404);
    put("/customers/c1").json(&json!({ "name": "ours" })).send(&service).await.must_be(201);
    let write = put("/customers/c1").by("demo-b").json(&json!({ "name": "theirs" }));
    assert_eq!(write.send(&service).await.must_be(201).json()["version"], 1, "one of their own");
    let shown = get("/customers/c1").send(&service).await.json();
    assert_eq!((&shown["name"], &shown["version"]), (&json!("ours"), &json!(1)));
    // Headers that name a tenant are nobody's business.
    let forged = post("/payments/link").key("shared").by("demo-b").json(&link(6));
    let forged = forged.header("x-tenant-id", ORGANISATION_A).header("x-tenant", ORGANISATION_A);
    assert_eq!(forged.send(&service).await.must_be(201).body, theirs.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_security_key_collisions_are_impossible_by_composition() {
    let service = Service::start("e10_collisions");
    // Keys, path values and routes that would meet if they were only joined.
    let pairs = [
        ("/customers/a", "b:c"),
        ("/customers/a:b", "c"),
        ("/customers/a%3Ab", "c"),
        ("/customers/a%2Fb", "c"),
        ("/customers/A", "b:c"),
        ("/jobs/a", "b:c"),
    ];
    for (n, (path, key)) in pairs.iter().enumerate() {
        let made = put(path).key(key).json(&json!({ "name": format!("{n}") })).send(&service).await;
        // To the service `a:b` and `a%3Ab` are one customer; as spelled they are two requests.
        let expected = if n == 2 { 200 } else { 201 };
        assert_eq!(made.status, expected, "{path} {key}: {made:?}");
    }
    // A client's key that looks like a derived one of another tenant is its own.
    let b = "2".repeat(32);
    let theirs = post("/payments/link").keyless().by("demo-b").json(&link(5)).send(&service).await;
    let derived = service.requests(ORGANISATION_B).await[0]["id"].as_str().unwrap().to_string();
    assert!(derived.starts_with(&b), "{derived}");
    let forged = post("/payments/link").key(&derived).json(&link(5)).send(&service).await;
    assert!(!forged.is_again() && forged.id() != theirs.id());
    // Two bodies with one hash prefix can't be made here; that a derived key is compared by the
    // whole fingerprint too is shown with the key itself.
    let clash =
        post("/payments/link").key(&derived).by("demo-b").json(&link(6)).send(&service).await;
    assert_eq!(conflict(&clash)["original_key"], derived);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_security_sql_injection_is_only_text() {
    let service = Service::start("e10_sql");
    let attacks = [
        "'; DROP TABLE records; --",
        "' OR '1'='1",
        "x'); DELETE FROM onceward.records WHERE ('1'='1",
        "$1; SELECT pg_sleep(60)",
        "\\'; COMMIT; --",
        "%' UNION SELECT * FROM audit --",
        "\u{0}\u{1}",
    ];
    for (n, attack) in attacks.iter().enumerate() {
        let mut body = hold(&format!("+{n} {attack}"), 10);
        body[*attack] = json!({ *attack: [attack] });
        let made = book(&body).header("x-correlation-id", "'; DROP TABLE audit; --");
        let made = made.send(&service).await.must_be(201);
        let shown = get(&format!("/bookings/hold/{}", made.id())).send(&service).await.json();
        assert_eq!(shown[*attack], body[*attack], "kept as it came");
        let key: String = attack.chars().filter(char::is_ascii_graphic).collect();
        let keyed = || post("/payments/link").key(&format!("k{n}{key}")).json(&link(5));
        keyed().send(&service).await.must_be(201);
        assert!(keyed().send(&service).await.is_again(), "{attack}");
        let path: String = attack.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let named = put(&format!("/customers/{path}")).json(&json!({ "name": attack }));
        let named = named.send(&service).await.must_be(201);
        assert_eq!(named.json()["id"], *attack);
    }
    for filter in ["tenant", "scope", "after"] {
        let path = format!("/v1/records?{filter}=%27%3B%20DROP%20TABLE%20records%3B%20--");
        let status = service.operate("GET", &path).await.status;
        assert!(status == 200 || status == 400, "{filter}: {status}");
    }
    assert_eq!(service.requests(ORGANISATION_A).await.len(), 3 * attacks.len());
    let verified = service.operate("GET", "/v1/audit/verify").await.must_be(200).json();
    assert_eq!(verified["ok"], true, "{verified}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_security_data_privacy() {
    let retain = [("ONCEWARD_BUSINESS_RETAIN_HOLDS", SHORT), ("ONCEWARD_LOG_LEVEL", "debug")];
    let service = Service::start_with("e10_privacy", &retain);
    let secret = "privacy-7f3a";
    let mut body = hold(secret, 10);
    body["password"] = json!(format!("{secret}-password"));
    let key = format!("{secret}-key");
    let sent = async |body: &serde_json::Value| {
        post("/bookings/hold").key(&key).json(body).send(&service).await
    };
    sent(&body).await.must_be(201);
    let mut other = body.clone();
    other["password"] = json!(format!("{secret}-other"));
    let refused = sent(&other).await;
    assert_eq!(conflict(&refused)["diff_summary"], json!(["password: '***' → '***'"]));
    sent(&body).await.must_be(201);
    // Neither log, metrics nor audit say what was sent, or under which key.
    eventually("the audit has the conflict", async || {
        !service.entries(ORGANISATION_A, "idempotency_conflict").await.is_empty()
    })
    .await;
    let audit = service.operate("GET", "/v1/audit?limit=1000").await.body;
    let metrics = service.operate("GET", "/metrics").await.body;
    for (place, text) in [
        ("log", service.said()),
        ("audit", String::from_utf8_lossy(&audit).into_owned()),
        ("metrics", String::from_utf8_lossy(&metrics).into_owned()),
    ] {
        assert!(!text.is_empty() && !text.contains(secret), "{place}: {text}");
    }
    // When its time is over, the payload that was kept for the diff goes with the outcome.
    eventually("it is swept", async || {
        service.operate("POST", "/v1/sweep").await.must_be(200);
        let records = service.requests(ORGANISATION_A).await;
        records.iter().all(|record| record["state"] == "expired")
    })
    .await;
    // The last look may have been the first after their time: what is over is dropped now.
    service.operate("POST", "/v1/sweep").await.must_be(200);
    let reference = service.requests(ORGANISATION_A).await[0]["ref"].as_str().unwrap().to_string();
    let shown = service.operate("GET", &format!("/v1/records/{reference}")).await.must_be(200);
    let shown = String::from_utf8_lossy(&shown.body).into_owned();
    assert!(!shown.contains(&format!("{secret}-password")), "{shown}");
}
