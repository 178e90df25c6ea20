//! A store that can be read but takes no writes, because another program holds its lock: what is
//! done is replayed, what is new is refused and not run, and health tells so within a second.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{Empty, Full};
use rusqlite::Connection;
use serde_json::json;

use super::client::{Answer, PATIENCE, post, request, send, try_send};
use super::target::{Gateway, folder, serve};
use super::upstream::App;

pub(crate) async fn get(to: SocketAddr, path: &str) -> Answer {
    send(to, Request::get(path).body(Empty::<Bytes>::new()).unwrap()).await
}

/// Asks for health until it has this status; how long that took.
pub(crate) async fn health_becomes(admin: SocketAddr, status: &str) -> Duration {
    let began = Instant::now();
    while get(admin, "/healthz").await.json()["status"] != status {
        assert!(began.elapsed() < PATIENCE, "health never became {status}");
        tokio::task::yield_now().await;
    }
    began.elapsed()
}

/// A claim through the control API, and what completes it.
async fn control(gateway: &Gateway, path: &str, body: serde_json::Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string()));
    let request =
        Request::post(path).header("authorization", "Bearer operator-of-the-tests").body(body);
    send(gateway.admin, request.unwrap()).await
}

fn claim(id: &str) -> serde_json::Value {
    json!({"tenant": "acme", "scope": "s", "id": id, "payload": 1, "lease_ms": 60_000,
        "owner": "w"})
}

/// Does one request and one claim, then starts anew: nothing of them is in memory any more.
pub(crate) async fn done_before(start: impl Fn() -> Gateway) -> Gateway {
    let gateway = start();
    assert_eq!(post(gateway.listen, "/payments", Some("done"), "{}").await.status, 201);
    let permit = control(&gateway, "/v1/claims", claim("done")).await.json()["permit"].clone();
    let completed =
        control(&gateway, "/v1/permits/complete", json!({"permit": permit, "outcome": "well"}))
            .await;
    assert_eq!(completed.status, 200, "{completed:?}");
    gateway.terminate();
    assert_eq!(gateway.ended().0, Some(0));
    start()
}

/// What must hold while nothing can be written.
pub(crate) async fn holds_while_locked(gateway: &Gateway, app: &App) {
    let ran = app.ran();
    let began = Instant::now();
    let new = tokio::spawn(try_send(gateway.listen, request("/payments", Some("new"), "{}")));
    let told = health_becomes(gateway.admin, "degraded").await;
    assert!(told < Duration::from_secs(3), "a second, on a machine that is loaded: {told:?}");
    let health = get(gateway.admin, "/healthz").await.json();
    assert_eq!(health["store_status"], "down", "{health}");
    assert!(health["store_error"].as_str().unwrap().contains("takes no writes"), "{health}");
    assert_eq!(get(gateway.admin, "/readyz").await.status, 200, "replays are answered rightly");
    for _ in 0..3 {
        let replay = post(gateway.listen, "/payments", Some("done"), "{}").await;
        assert_eq!((replay.status, replay.is_replay()), (201, true), "{replay:?}");
        let verdict = control(gateway, "/v1/claims", claim("done")).await.json();
        assert_eq!((&verdict["verdict"], &verdict["outcome"]), (&"replay".into(), &"well".into()));
    }
    let other = post(gateway.listen, "/payments", Some("done"), "[1]").await;
    assert_eq!(other.problem(), (422, "idempotency.payload_mismatch".into()));
    assert!(began.elapsed() < PATIENCE, "the lock was held all the while");
    let refused = new.await.unwrap().unwrap();
    assert_eq!(refused.problem(), (503, "store.unavailable".into()));
    assert_eq!(app.ran(), ran, "nothing ran that could not be recorded");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m7_replays_go_on_while_another_program_holds_the_database() {
    let (folder, app) = (folder("read_only"), App::new());
    let upstream = serve(app.router()).await;
    let gateway = done_before(|| Gateway::start(&folder, upstream, &[])).await;
    let database = Connection::open(folder.join("onceward.db")).unwrap();
    database.busy_timeout(PATIENCE).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    holds_while_locked(&gateway, &app).await;
    database.execute_batch("ROLLBACK").unwrap();
    health_becomes(gateway.admin, "ok").await;
    let ran = app.ran();
    let mut again = post(gateway.listen, "/payments", Some("new"), "{}").await;
    while again.status != 201 {
        // The claim that nobody waited for may be settled only now.
        again = post(gateway.listen, "/payments", Some("new"), "{}").await;
    }
    assert!(app.ran() <= ran + 1, "{:?}", app.runs());
}
