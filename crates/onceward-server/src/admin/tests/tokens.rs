//! Tokens, lock-out, health and metrics over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{ACME, OPERATOR, Server};
use crate::admin::lockout::FAILURES_MAX;

#[tokio::test]
async fn without_a_right_token_nothing_is_told() {
    let server = Server::start("tokens").await;
    let none = server.call(None, Method::GET, "/v1/records", "").await;
    assert_eq!(none.problem(401)["code"], "auth.required");
    assert_eq!(none.headers["www-authenticate"], "Bearer");
    server.call(Some("wrong"), Method::GET, "/v1/records", "").await.problem(401);
    let claim = json!({"tenant": "globex", "scope": "s", "id": "i", "payload": 1,
        "lease_ms": 1_000, "owner": "w"});
    let path = "/v1/claims";
    let other = server.call(Some(ACME), Method::POST, path, claim.to_string()).await;
    assert_eq!(other.problem(403)["code"], "auth.forbidden");
    let mut own = claim.clone();
    own.as_object_mut().unwrap().remove("tenant");
    let own = server.call(Some(ACME), Method::POST, path, own.to_string()).await.ok();
    assert_eq!(own["verdict"], "run");
    let batch = json!({"claims": [claim]}).to_string();
    server.call(Some(ACME), Method::POST, "/v1/claims/batch", batch).await.problem(403);
    server.call(Some(OPERATOR), Method::GET, "/nothing", "").await.problem(404);
    server.call(Some(OPERATOR), Method::PUT, "/v1/claims", "").await.problem(405);
    server.stop().await;
}

#[tokio::test]
async fn m3_who_guesses_locks_nobody_out_but_himself() {
    let server = Server::start("lockout").await;
    let guess = |_| server.call(Some("guess"), Method::GET, "/v1/records", "");
    for wrong in join_all((0..FAILURES_MAX).map(guess)).await {
        assert_eq!(wrong.problem(401)["code"], "auth.required");
    }
    let locked = guess(0).await;
    assert_eq!(locked.problem(429)["code"], "auth.locked_out");
    let wait: u64 = locked.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((800..=1_400).contains(&wait), "15 min, and up to half as much: {wait}");
    // A flood of guesses over two connections, from where the right tokens come.
    let flooding = Arc::new(AtomicBool::new(true));
    let flood = [0, 1].map(|_| tokio::spawn(guess_on(server.address, flooding.clone())));
    for _ in 0..100 {
        // Also one that was never seen from there.
        for right in [OPERATOR, ACME] {
            server.call(Some(right), Method::GET, "/v1/records", "").await.ok();
        }
        server.call(None, Method::GET, "/healthz", "").await.ok();
    }
    flooding.store(false, Ordering::Relaxed);
    for guesses in flood {
        assert!(guesses.await.unwrap() > 0, "somebody guessed meanwhile");
    }
    server.stop().await;
}

/// Guesses over one connection, as fast as it is answered; gives how often.
async fn guess_on(server: SocketAddr, flooding: Arc<AtomicBool>) -> u64 {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let (mut guesses, mut answer) = (0, vec![0; 16 * 1024]);
    while flooding.load(Ordering::Relaxed) {
        let guess = format!("Bearer guess-{guesses}");
        let request =
            format!("GET /v1/records HTTP/1.1\r\nhost: x\r\nauthorization: {guess}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let read = stream.read(&mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 429"), "after {guesses} guesses");
        guesses += 1;
    }
    guesses
}

#[tokio::test]
async fn health_tells_the_truth() {
    let server = Server::start("health").await;
    for path in ["/healthz", "/readyz"] {
        let health = server.call(None, Method::GET, path, "").await.ok();
        assert_eq!((&health["status"], &health["store"]), (&"ok".into(), &"sqlite".into()));
        assert_eq!((&health["durability"], &health["warnings"]), (&"full".into(), &json!([])));
        assert_eq!((&health["names"], &health["store_status"]), (&"checked".into(), &"up".into()));
    }
    server.health.warn("identity: a JWT is used as a static credential");
    let health = server.call(None, Method::GET, "/healthz", "").await.ok();
    assert_eq!(health["warnings"].as_array().unwrap().len(), 1);
    server.engine.close().await.unwrap();
    let ready = server.call(None, Method::GET, "/readyz", "").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &"degraded".into()));
    assert!(ready.headers.contains_key("retry-after"));
    let health = server.call(None, Method::GET, "/healthz", "").await;
    assert_eq!((health.status.as_u16(), &health.json()["store_status"]), (200, &"down".into()));
    let claim = json!({"tenant": "t", "scope": "s", "id": "i", "payload": 1, "lease_ms": 1_000,
        "owner": "w"});
    let refused = server.post("/v1/claims", claim).await;
    assert_eq!(refused.problem(503)["code"], "store.unavailable");
    server.health.drain();
    let ready = server.call(None, Method::GET, "/readyz", "").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &"draining".into()));
    server.stop().await;
}

#[tokio::test]
async fn metrics_need_the_operator_and_hold_no_key() {
    let server = Server::start("metrics").await;
    let claim = json!({"tenant": "acme", "scope": "s", "id": "very-secret-key", "payload": 1,
        "lease_ms": 1_000, "owner": "w"});
    server.post("/v1/claims", claim).await.ok();
    server.call(None, Method::GET, "/metrics", "").await.problem(401);
    server.call(Some(ACME), Method::GET, "/metrics", "").await.problem(403);
    let reply = server.get("/metrics").await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let line = r#"onceward_claims_total{endpoint="POST /v1/claims",verdict="run"} 1"#;
    assert!(text.lines().any(|found| found == line), "{text}");
    let line =
        r#"onceward_requests_total{endpoint="POST /v1/claims",verdict="run",status="200"} 1"#;
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(!text.contains("very-secret-key") && !text.contains("acme"), "{text}");
    // A server that drains has no failed store.
    server.health.drain();
    server
        .post(
            "/v1/claims",
            json!({"tenant": "a", "scope": "s", "id": "i", "payload": 1,
        "lease_ms": 1_000, "owner": "w"}),
        )
        .await
        .problem(503);
    let reply = server.get("/metrics").await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let mut errors = text.lines().filter(|line| line.starts_with("onceward_store_errors_total{"));
    assert!(errors.all(|line| line.ends_with(" 0")), "{text}");
    server.stop().await;
}

/// Methods and paths are anybody's to make up: each as a name of its own would fill the bounded set
/// of names, and then real endpoints would have none.
#[tokio::test]
async fn what_is_not_there_is_counted_under_one_name() {
    let server = Server::start("made-up").await;
    for n in 0..5 {
        let method = Method::from_bytes(format!("MADE{n}").as_bytes()).unwrap();
        server.call(None, method.clone(), "/v1/claims", "").await.problem(405);
        server.call(None, method.clone(), "/healthz", "").await.problem(405);
        server.call(None, method, "/nothing", "").await.problem(404);
        server.call(None, Method::GET, &format!("/made/{n}"), "").await.problem(404);
    }
    server.call(None, Method::GET, "/v1/records", "").await.problem(401);
    server.get("/v1/records/acme:request:s:i").await.problem(404);
    server.get("/metrics").await;
    let reply = server.get("/metrics").await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    let counted = text.lines().filter_map(|line| {
        let labels = line.strip_prefix("onceward_requests_total{endpoint=\"")?;
        labels.split('"').next()
    });
    let names = ["(no such endpoint)", "GET /metrics", "GET /v1/records", "GET /v1/records/{ref}"];
    assert_eq!(counted.collect::<BTreeSet<_>>(), BTreeSet::from(names), "{text}");
    let line = r#"onceward_request_seconds_count{endpoint="(no such endpoint)"} 20"#;
    assert!(text.lines().any(|found| found == line), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn whom_the_operator_speaks_for_is_on_record_in_any_script() {
    let server = Server::start("actor").await;
    let pause = async |token: &str, queue: &str, actor: &[u8]| {
        let head = format!(
            "POST /v1/queues/{queue}/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\
             Connection: close\r\nAuthorization: Bearer {token}\r\nOnceward-Actor: "
        );
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(&[head.as_bytes(), actor, b"\r\n\r\n"].concat()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    for (queue, actor) in [("a", "jürgen"), ("b", "Łucja 100%41"), ("c", "ada")] {
        let said = pause(OPERATOR, queue, actor.as_bytes()).await;
        assert!(said.starts_with("HTTP/1.1 200"), "{said}");
        let audit = server.get(&format!("/v1/audit?subject={queue}")).await.ok();
        assert_eq!(audit["items"][0]["actor"], actor);
    }
    // Latin-1: refused, because the audit would name someone else.
    let said = pause(OPERATOR, "d", b"j\xfcrgen").await;
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("Onceward-Actor"), "{said}");
    assert_eq!(server.get("/v1/audit?subject=d").await.ok()["items"], json!([]));
    server.stop().await;
}
