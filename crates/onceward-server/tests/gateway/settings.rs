//! Settings of the file that show in the control API of a running server: queues, metrics.

use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use super::client::{Answer, post, send};
use super::target::{Gateway, folder, serve};
use super::upstream::App;

async fn asked(gateway: &Gateway, path: &str, body: Option<Value>) -> Answer {
    let request = if body.is_some() { Request::post(path) } else { Request::get(path) };
    let request =
        request.header("host", "x").header("authorization", "Bearer operator-of-the-tests");
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    send(gateway.admin, request.body(Full::new(bytes::Bytes::from(body))).unwrap()).await
}

async fn take_and_fail(gateway: &Gateway) -> Value {
    let take = json!({"queue": "mail", "max": 1, "lease_ms": 60_000, "owner": "w"});
    let taken = asked(gateway, "/v1/jobs/take", Some(take)).await.json();
    let permit = &taken["jobs"][0]["permit"];
    let failed = json!({"permit": permit, "error": "no", "retry": true, "run_at": 1});
    asked(gateway, "/v1/permits/fail", Some(failed)).await.json()["state"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a22_a_queue_has_as_many_attempts_as_the_file_says() {
    let (folder, app) = (folder("queue-attempts"), App::new());
    let file = "[[queue]]\nname = \"mail\"\nattempts = 2\n";
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    let job = json!({"tenant": "acme", "queue": "mail", "type": "t", "payload": 1});
    assert_eq!(asked(&gateway, "/v1/jobs", Some(job)).await.status, 201);
    assert_eq!(take_and_fail(&gateway).await, "failed");
    assert_eq!(take_and_fail(&gateway).await, "dead");
    let dead = asked(&gateway, "/v1/dead?tenant=acme", None).await.json();
    assert_eq!(
        (&dead["items"][0]["attempt"], &dead["items"][0]["error"]),
        (&json!(2), &"no".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a27_tenants_are_counted_only_when_asked_for() {
    for (file, counted) in [("", false), ("[server]\ntenant_metrics = true\n", true)] {
        let (folder, app) = (folder("tenant-metrics"), App::new());
        std::fs::write(folder.join("onceward.toml"), file).unwrap();
        let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
        post(gateway.listen, "/payments", Some("a-key"), "{}").await;
        let metrics = asked(&gateway, "/metrics", None).await;
        let text = String::from_utf8(metrics.body.to_vec()).unwrap();
        assert_eq!(text.contains("onceward_tenant_requests_total{tenant="), counted, "{text}");
        assert!(!text.contains("a-key"), "{text}");
    }
}
