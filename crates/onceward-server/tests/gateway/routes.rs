//! What a written route asks of every request, with a key and without one, however it is spelled.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{post, raw, read_to_close, request, send};
use super::target::{Gateway, folder, serve};
use super::upstream::App;

/// The gateway in front of an API, with a file.
async fn with_file(name: &str, file: &str) -> (Gateway, Arc<App>) {
    let (folder, app) = (folder(name), App::new());
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    (Gateway::start(&folder, serve(app.router()).await, &[]), app)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a06_a_route_matches_however_it_is_spelled() {
    let other = App::new();
    let address = serve(other.router()).await;
    for (written, asked) in [
        ("/things/été", "/things/%C3%A9t%C3%A9"),
        ("/things/caf%c3%a9", "/things/caf%c3%a9"),
        ("/things/%7Ebob", "/things/~bob"),
    ] {
        let file =
            format!("[[route]]\nmatch = \"POST {written}\"\nupstream = \"http://{address}\"");
        let (gateway, app) = with_file("spelled", &file).await;
        let before = other.ran();
        let refused = post(gateway.listen, asked, None, "{}").await;
        assert_eq!(refused.problem(), (400, "idempotency.key_required".into()), "{written}");
        assert_eq!(post(gateway.listen, asked, Some("k"), "{}").await.status, 201);
        assert!(post(gateway.listen, asked, Some("k"), "{}").await.is_replay(), "{written}");
        assert_eq!((app.ran(), other.ran()), (0, before + 1), "it goes where the route says");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a06_the_upstream_gets_the_path_as_it_was_sent() {
    for (name, file) in
        [("as_sent", ""), ("as_sent_routed", "[[route]]\nmatch = \"POST /echo/{v}\"")]
    {
        let (gateway, app) = with_file(name, file).await;
        let sent = "/echo/%61%2fb?x=%61";
        if file.is_empty() {
            let plain = post(gateway.listen, sent, None, "{}").await;
            assert_eq!(plain.json()["uri"], sent);
        }
        let before = app.ran();
        let first = post(gateway.listen, sent, Some("k"), "{}").await;
        assert_eq!(first.json()["uri"], sent);
        let again = post(gateway.listen, "/echo/a%2Fb?x=%61", Some("k"), "{}").await;
        assert!(again.is_replay() && again.body == first.body);
        assert_eq!(app.ran(), before + 1);
    }
}

/// A POST without a key or an identity as bytes.
fn anonymous(further: &str, body: &str) -> String {
    format!("POST /payments HTTP/1.1\r\nhost: x\r\n{further}\r\n{body}")
}

/// Sends what there is of a request and nothing more.
async fn hangs_up(to: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    read_to_close(&mut stream).await
}

/// Who sends half a body says nothing about the service, and must not shut it for everybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a16_a_request_that_breaks_off_is_400_and_no_failure_of_the_upstream() {
    let (chunked, half) = ("transfer-encoding: chunked\r\n", "content-length: 1000\r\n");
    for (name, upstream_timeout) in [("broken_bodies", "60s"), ("broken_late", "100ms")] {
        let file = format!(
            "[server]\nbody_timeout = \"400ms\"\nupstream_timeout = \"{upstream_timeout}\"\n\
             [[route]]\nmatch = \"POST /payments\"\nmissing_key = \"allow\"\n\
             breaker = {{ failures = 1, open = \"1h\" }}\n"
        );
        let (gateway, app) = with_file(name, &file).await;
        let to = gateway.listen;
        for bad in [anonymous(chunked, "2\r\n{}\r\nzz\r\n"), anonymous(half, "{")] {
            let answer = raw(to, bad.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 400"), "{bad}: {answer}");
            assert!(answer.contains("request.malformed"), "{bad}: {answer}");
        }
        for bad in [anonymous(chunked, "2\r\n{}\r\n"), anonymous(half, "{")] {
            let answer = hangs_up(to, &bad).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
        }
        assert_eq!(app.ran(), 0);
        assert_eq!(post(to, "/payments", None, "{}").await.status, 201);
        assert_eq!(post(to, "/payments", Some("k"), "{}").await.status, 201);
    }
}

/// An upstream that loses patience with half a request: it says so with a 500, or hangs up.
async fn impatient(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            let is_half =
                |heard: &[u8]| String::from_utf8_lossy(heard).contains("length: 1000\r\n");
            while !(heard.ends_with(b"{}") || is_half(&heard) && heard.ends_with(b"{")) {
                if stream.read_buf(&mut heard).await.unwrap() == 0 {
                    break;
                }
            }
            let whole = "HTTP/1.1 201 Created\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let said = if is_half(&heard) { answer } else { whole };
            let _ = stream.write_all(said.as_bytes()).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a16_what_an_upstream_says_to_half_a_request_opens_no_breaker() {
    let file = "[[route]]\nmatch = \"POST /payments\"\nmissing_key = \"allow\"\n\
                breaker = { failures = 1, open = \"1h\" }\n";
    let failed = "HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    for (name, answer, status) in [("early_500", failed, "500"), ("early_end", "", "502")] {
        let folder = folder(name);
        std::fs::write(folder.join("onceward.toml"), file).unwrap();
        let gateway = Gateway::start(&folder, impatient(answer).await, &[]);
        let mut half = TcpStream::connect(gateway.listen).await.unwrap();
        let sent = anonymous("content-length: 1000\r\n", "{");
        half.write_all(sent.as_bytes()).await.unwrap();
        let mut heard = [0; 12];
        half.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard[9..], status.as_bytes());
        assert_eq!(post(gateway.listen, "/payments", None, "{}").await.status, 201, "{name}");
        assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b02_a_required_if_match_is_required_without_a_key_too() {
    let file = "[[route]]\nmatch = \"POST /things/{id}\"\n\
                missing_key = \"allow\"\nif_match = \"require\"\n\
                [[route]]\nmatch = \"POST /echo\"\ndialect = \"planning\"\n\
                missing_key = \"allow\"\nif_match = \"require\"\n";
    let (gateway, app) = with_file("if_match", file).await;
    for key in [None, Some("k")] {
        let missing = post(gateway.listen, "/things/1", key, "{}").await;
        assert_eq!(missing.problem(), (428, "precondition.required".into()), "{key:?}");
        for (tag, code) in [("*", 400), ("W/\"1\"", 400)] {
            let mut sent = request("/echo", key, "{}");
            sent.headers_mut().insert("if-match", tag.parse().unwrap());
            let refused = send(gateway.listen, sent).await;
            let expected = (code, "planning.concurrency_etag_invalid".into());
            assert_eq!(refused.problem(), expected, "{key:?} {tag}");
        }
    }
    assert_eq!(app.ran(), 0);
    let mut sent = request("/echo", None, "{}");
    sent.headers_mut().insert("if-match", "\"1\"".parse().unwrap());
    let seen = send(gateway.listen, sent).await;
    assert_eq!((seen.status, &seen.json()["headers"]["if-match"][0]), (200, &"\"1\"".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_bound_of_a_route_is_refused_without_a_key_too() {
    let file = "[[route]]\nmatch = \"POST /payments\"\nmissing_key = \"allow\"\n\
                max_request_bytes = 1000\n";
    let (gateway, app) = with_file("bound", file).await;
    for size in [1_001, 3_000_000] {
        let refused = post(gateway.listen, "/payments", None, &"x".repeat(size)).await;
        assert_eq!(refused.problem(), (413, "body.too_large".into()), "{size}");
    }
    assert_eq!(app.ran(), 0);
    assert_eq!(post(gateway.listen, "/payments", None, &"x".repeat(1_000)).await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_that_is_too_large_to_compare_is_413() {
    let file = "[[route]]\nmatch = \"POST /payments\"\nmax_request_bytes = \"16MiB\"\n";
    let (gateway, app) = with_file("large_json", file).await;
    let large = format!("\"{}\"", "x".repeat(8 << 20));
    let refused = post(gateway.listen, "/payments", Some("k"), &large).await;
    assert_eq!(refused.problem(), (413, "body.too_large".into()));
    assert!(refused.json()["detail"].as_str().unwrap().contains("8388608 bytes of JSON"));
    assert_eq!(app.ran(), 0);
    let bytes = Request::post("/payments")
        .header("host", "x")
        .header("authorization", "Bearer alice")
        .header("idempotency-key", "k")
        .header("content-type", "application/octet-stream");
    let bytes = bytes.body(Full::new(bytes::Bytes::from(large))).unwrap();
    assert_eq!(send(gateway.listen, bytes).await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_would_be_protected_once_tidied_up_is_refused() {
    let file = "[[route]]\nmatch = \"POST /things/{id}\"\n";
    let (gateway, app) = with_file("tidied", file).await;
    for path in ["/things/./7", "/x/../things/7", "//things/7", "/things/x/%2e%2E/7", "/.%2e/x"] {
        let refused = post(gateway.listen, path, None, "{}").await;
        assert_eq!(refused.problem(), (400, "request.malformed".into()), "{path}");
    }
    assert_eq!(app.ran(), 0);
    assert_eq!(post(gateway.listen, "/things/7", Some("k"), "{}").await.status, 201);
    assert_eq!(post(gateway.listen, "/other//x", None, "{}").await.status, 404, "passed on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_payload_is_taken_where_payloads_are_kept_in_full() {
    let file = "[[route]]\nmatch = \"POST /payments\"\ndialect = \"business\"\n\
                [[route]]\nmatch = \"POST /echo\"\nkeep_payload = \"full\"\n";
    let (gateway, app) = with_file("kept_large", file).await;
    let large = |end: &str| format!("{{\"a\":\"{}\",\"b\":{end}}}", "x".repeat(3 << 20));
    for (path, status) in [("/payments", 201), ("/echo", 200)] {
        let first = post(gateway.listen, path, Some("k"), &large("1")).await;
        assert_eq!(first.status, status, "{path}: {first:?}");
        assert!(
            post(gateway.listen, path, Some("k"), &large("1"))
                .await
                .header("content-type")
                .is_some()
        );
    }
    assert_eq!(app.ran(), 2);
    let other = post(gateway.listen, "/echo", Some("k"), &large("2")).await;
    assert_eq!((other.status, &other.json()["differs"]), (422, &serde_json::json!(["/b"])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_is_counted_and_told_as_such() {
    let denies = axum::Router::new().fallback(|| async { http::StatusCode::FOUND });
    let url = format!("http://{}/may", serve(denies).await);
    let file = format!(
        "[[route]]\nmatch = \"POST /payments\"\ndialect = \"measurements\"\nauthorize = \"{url}\"\n"
    );
    let (gateway, app) = with_file("denied", &file).await;
    let denied = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!((denied.status, denied.header("x-idempotency-key")), (302, Some("k")));
    assert_eq!(app.ran(), 0);
    let metrics = Request::get("/metrics")
        .header("host", "x")
        .header("authorization", "Bearer operator-of-the-tests");
    let metrics = metrics.body(Full::<bytes::Bytes>::default()).unwrap();
    let metrics = send(gateway.admin, metrics).await;
    let text = String::from_utf8(metrics.body.to_vec()).unwrap();
    let counted = "onceward_requests_total{endpoint=\"POST /payments\",verdict=\"auth.forbidden\"";
    assert!(text.contains(counted), "{text}");
}
