//! What only a gateway with sockets has: framing, hops, time-outs, an upstream that is not there.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::client::{open, post, raw, read_to_close, request, send};
use super::target::{Gateway, Setup, Target, folder, serve};
use super::upstream::App;

/// A POST by alice as bytes, with further header lines.
fn bytes_of(path: &str, key: &str, further: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer alice\r\n\
         content-type: application/json\r\nidempotency-key: {key}\r\n{further}\r\n{body}"
    )
}

fn with_length(path: &str, key: &str, body: &str) -> String {
    bytes_of(path, key, &format!("content-length: {}\r\n", body.len()), body)
}

async fn target(name: &str) -> std::sync::Arc<Target> {
    Target::gateway(name, &Setup::default()).await
}

/// The gateway in front of an API, with further flags.
async fn with_flags(name: &str, flags: &[&str]) -> (Gateway, std::sync::Arc<App>) {
    let app = App::new();
    let upstream = serve(app.router()).await;
    let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
    (Gateway::start(&folder(name), upstream, &flags), app)
}

/// Many services read `_` as `-`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_spellings_of_what_only_we_may_say_are_removed() {
    let at = target("lookalikes").await;
    for key in [None, Some("k")] {
        let mut sent = request("/echo", key, "{}");
        for name in ["onceward_fence", "idempotency_key", "x_forwarded_for"] {
            sent.headers_mut().insert(name, "7777777".parse().unwrap());
        }
        let seen = send(at.address, sent).await;
        assert_eq!(seen.status, 200, "{seen:?}");
        assert!(!seen.json()["headers"].to_string().contains("7777777"), "{key:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn double_framing_is_400_and_closes() {
    let at = target("double_framing").await;
    let chunks = "5\r\n{\"a\":\r\n3\r\n 1}\r\n0\r\n\r\n";
    let (length, chunked) = ("content-length: 3\r\n", "transfer-encoding: chunked\r\n");
    let coded = "transfer-encoding: gzip, chunked\r\n".to_string();
    let framed = [format!("{length}{chunked}"), format!("{chunked}{length}")];
    for both in framed.into_iter().chain([coded, format!("{chunked}{chunked}")]) {
        let answer = raw(at.address, bytes_of("/payments", "k", &both, chunks).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("request.malformed"), "{answer}");
        // Also behind a request that is fine, which is answered.
        let fine = with_length("/status/200", "k", "{}");
        let behind = format!("{fine}{}", bytes_of("/payments", "k", &both, chunks));
        let answers = raw(at.address, behind.as_bytes()).await;
        assert!(answers.starts_with("HTTP/1.1 200"), "{answers}");
        assert!(answers.contains("HTTP/1.1 400"), "{answers}");
    }
    assert_eq!(at.app.ran(), 1, "only what was fine ran, once");
    let bad_length = bytes_of("/payments", "k", "content-length: 3\r\ncontent-length: 4\r\n", "{}");
    assert!(raw(at.address, bad_length.as_bytes()).await.starts_with("HTTP/1.1 400"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn double_framing_is_seen_behind_a_long_line_too() {
    let folder = folder("long_line");
    std::fs::write(folder.join("onceward.toml"), "[limits]\nheader_bytes = \"256KiB\"\n").unwrap();
    let app = App::new();
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    let both = "content-length: 3\r\ntransfer-encoding: chunked\r\n";
    for bytes in [60_000, 90_000, 200_000] {
        let long = format!("x-long: {}\r\n", "x".repeat(bytes));
        let head = bytes_of("/payments", "k", &format!("{long}{both}"), "0\r\n\r\n");
        let answer = raw(gateway.listen, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{bytes}: {answer}");
        // Also in the second request of a connection whose first one had such a line.
        let get = format!("GET /payments HTTP/1.1\r\nhost: x\r\n{long}\r\n");
        let second = format!("{get}{}", bytes_of("/payments", "k", both, "0\r\n\r\n"));
        let answers = raw(gateway.listen, second.as_bytes()).await;
        assert!(answers.starts_with("HTTP/1.1 200"), "{bytes}: {answers}");
        assert!(answers.contains("HTTP/1.1 400"), "{bytes}: {answers}");
    }
    // Longer than any head may be.
    let endless = format!("GET /payments HTTP/1.1\r\nx: {}", "x".repeat(1 << 20));
    raw(gateway.listen, endless.as_bytes()).await;
    assert_eq!(app.ran(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_is_too_long_for_the_upstream_is_refused_and_never_another_one() {
    let (folder, app) = (folder("long_path"), App::new());
    std::fs::write(folder.join("onceward.toml"), "[limits]\nheader_bytes = \"256KiB\"\n").unwrap();
    let upstream = serve(app.router()).await;
    let base = format!("http://{upstream}/{}", "b".repeat(60));
    let gateway = Gateway::start_at(&folder, &base, &[]);
    let long = format!("/{}", "a".repeat(65_490));
    for key in [Some("k"), None] {
        let refused = post(gateway.listen, &long, key, "{}").await;
        assert_eq!(refused.problem(), (400, "request.malformed".into()), "{key:?}");
    }
    // As long as can be: the upstream is asked for what was asked here.
    let fits = format!("/{}", "a".repeat(65_534 - 61 - 1));
    assert_eq!(post(gateway.listen, &fits, Some("k"), "{}").await.status, 404);
    let star = "OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(raw(gateway.listen, star.as_bytes()).await.starts_with("HTTP/1.1 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_has_one_id_for_everybody() {
    let at = target("request_ids").await;
    for key in [None, Some("k")] {
        let mut sent = request("/echo", key, "{}");
        sent.headers_mut().append("x-request-id", "one".parse().unwrap());
        sent.headers_mut().append("x-request-id", "two".parse().unwrap());
        let seen = send(at.address, sent).await;
        assert_eq!(seen.header("x-request-id"), Some("one"));
        assert_eq!(seen.json()["headers"]["x-request-id"], serde_json::json!(["one"]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_character_in_a_key_is_refused_as_any_other_bad_key() {
    let at = target("controls").await;
    let mut all = Vec::new();
    for bad in ["a\x7fb", "a\x00b", "a\rb", "\"a\x1fb\""] {
        all.extend_from_slice(with_length("/payments", bad, "{}").as_bytes());
    }
    // The connection lives on: what follows is answered.
    let further = "content-length: 2\r\nconnection: close\r\n";
    all.extend_from_slice(bytes_of("/status/200", "fine", further, "{}").as_bytes());
    let answers = raw(at.address, &all).await;
    assert_eq!(answers.matches("\"code\":\"idempotency.key_invalid\"").count(), 4, "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 400").count(), 4, "{answers}");
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 1, "{answers}");
    assert_eq!(at.app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_are_answered_in_order() {
    let at = target("pipelined").await;
    let mut all = String::new();
    for key in ["a", "b", "a"] {
        all.push_str(&with_length("/payments", key, "{}"));
    }
    all.push_str("GET /payments HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let answers = raw(at.address, all.as_bytes()).await;
    let order: Vec<_> =
        answers.match_indices("\"payment\":").map(|(at, _)| &answers[at + 10..at + 11]).collect();
    assert_eq!(order, ["1", "2", "1"], "{answers}");
    assert_eq!(answers.matches("idempotency-replayed: true").count(), 1);
    assert!(answers.ends_with("\r\n\r\n2"), "{answers}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_smuggled_behind_a_refused_or_replayed_body_never_run() {
    let (gateway, app) = with_flags("smuggled", &["--max-request-bytes", "1000"]).await;
    let inside = with_length("/payments", "smuggled", "{}");
    let padded = format!("{inside}{}", " ".repeat(2_000));
    let too_large = with_length("/payments", "k", &padded);
    let nobody = too_large.replace("authorization: Bearer alice\r\n", "");
    let mismatch = with_length("/payments", "k", &inside);
    assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201);
    for (sent, status) in [(too_large, "413"), (nobody, "401"), (mismatch, "422")] {
        let last = "GET /payments HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let answers = raw(gateway.listen, format!("{sent}{last}").as_bytes()).await;
        assert!(answers.starts_with(&format!("HTTP/1.1 {status}")), "{answers}");
        assert!(!answers.contains("HTTP/1.1 201"), "{answers}");
    }
    assert_eq!(app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tunnels_are_refused() {
    let at = target("tunnels").await;
    let tunnel = "CONNECT api.example:443 HTTP/1.1\r\nhost: api.example:443\r\n\r\n";
    let answer = raw(at.address, tunnel.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(answer.contains("not supported"), "{answer}");
    assert_eq!(at.app.ran(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_1_1_names_one_host() {
    let at = target("hosts").await;
    for hosts in ["", "host: a\r\nhost: b\r\n"] {
        let request = format!("POST /payments HTTP/1.1\r\n{hosts}content-length: 2\r\n\r\n{{}}");
        let answer = raw(at.address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("Host"), "{answer}");
    }
    assert_eq!(at.app.ran(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ends_at_this_hop_is_not_passed_on() {
    let at = target("hops").await;
    for key in [None, Some("k")] {
        let mut sent = request("/echo?x=%20y", key, "{}");
        for (name, value) in [
            ("connection", "x-mine, authorization"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=1"),
            ("te", "trailers"),
            ("proxy-authorization", "Basic x"),
            ("x-forwarded-for", "192.0.2.7"),
        ] {
            sent.headers_mut().insert(name, value.parse().unwrap());
        }
        let seen = send(at.address, sent).await.json();
        let headers = &seen["headers"];
        for gone in ["connection", "x-mine", "keep-alive", "te", "proxy-authorization"] {
            assert_eq!(headers[gone], serde_json::Value::Null, "{gone}");
        }
        assert_eq!(headers["authorization"][0], "Bearer alice", "can't be named away");
        assert_eq!(headers["host"][0], "api.example");
        assert_eq!(headers["x-forwarded-for"][0], "192.0.2.7, 127.0.0.1");
        assert_eq!(seen["uri"], "/echo?x=%20y");
        let answer = post(at.address, "/payments", key.map(|_| "l"), "{}").await;
        assert_eq!((answer.header("x-private"), answer.header("connection")), (None, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_are_cut() {
    let (gateway, _app) = with_flags("slow_heads", &["--header-timeout", "300ms"]).await;
    for sent in ["", "P", "PRI * HT", "POST /payments HTTP/1.1\r\nhost: "] {
        raw(gateway.listen, sent.as_bytes()).await;
    }
    // A connection that was used is cut too when nothing follows.
    let used = raw(gateway.listen, with_length("/payments", "k", "{}").as_bytes()).await;
    assert!(used.starts_with("HTTP/1.1 201"), "{used}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_are_cut_and_leave_nothing() {
    let (gateway, app) = with_flags("slow_bodies", &["--body-timeout", "300ms"]).await;
    let head = bytes_of("/payments", "k", "content-length: 1000\r\n", "{");
    let answer = raw(gateway.listen, head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("too slowly"), "{answer}");
    // A trickle does not earn its time.
    let stream = TcpStream::connect(gateway.listen).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    writer.write_all(head.as_bytes()).await.unwrap();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b" ").await.is_ok() {
            // sleeps because the attack is to be slow
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer).await;
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 400"));
    drop(reader);
    trickle.await.unwrap();
    assert_eq!(app.ran(), 0);
    assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_takes_nothing_is_cut() {
    let flags = ["--body-timeout", "300ms", "--max-connections", "1"];
    let (gateway, _app) = with_flags("slow_reader", &flags).await;
    let mut stream = TcpStream::connect(gateway.listen).await.unwrap();
    let head = "GET /large/100000000 HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    // Its place is the only one: another client gets an answer once it is cut.
    let other =
        raw(gateway.listen, b"GET /payments HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(other.await.starts_with("HTTP/1.1 200"));
    let got = read_to_close(&mut stream).await;
    assert!(got.len() < 100_000_000, "{}", got.len());
}

/// A gateway that expects clients to take 10 MB a second, and waits some seconds for them: others
/// on the same connection have to be served meanwhile.
async fn in_a_hurry(name: &str) -> (Gateway, std::sync::Arc<App>) {
    let (folder, app) = (folder(name), App::new());
    let upstream = serve(app.router()).await;
    std::fs::write(folder.join("hurry.toml"), "[limits]\nwrite_bytes_per_second = 10000000\n")
        .unwrap();
    let flags = ["--config", "hurry.toml", "--body-timeout", "3s"];
    (Gateway::start(&folder, upstream, &flags.map(String::from)), app)
}

fn h2_live() -> Request<Full<Bytes>> {
    Request::get("http://api.example/large/600000").body(Full::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_2_answer_that_nobody_takes_is_cut() {
    let (gateway, app) = in_a_hurry("h2_reader").await;
    let cut = |ended: JoinHandle<()>| async {
        tokio::time::timeout(Duration::from_secs(30), ended).await.expect("it is cut").unwrap();
    };
    // A stored answer and one that is passed on live; without a single byte, too.
    for (request, window) in
        [(h2_request("/large/600000", "k"), 65_535), (h2_live(), 65_535), (h2_live(), 0)]
    {
        let (mut sender, ended) = h2_within(gateway.listen, window).await;
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        if window > 0 {
            // Others are served meanwhile: the connection itself takes all that comes.
            let other = h2_request("/payments", &format!("other-{}", app.ran()));
            assert_eq!(sender.send_request(other).await.unwrap().status(), 201);
        }
        cut(ended).await;
        assert!(answer.into_body().collect().await.is_err(), "it was given up");
    }
    // Whoever reads has all of it, piece by piece.
    let (mut sender, _ended) = h2_within(gateway.listen, 65_535).await;
    let answer = sender.send_request(h2_request("/large/600000", "k")).await.unwrap();
    assert_eq!(answer.headers()["content-length"], "600000");
    let whole = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(whole.len() == 600_000 && whole.iter().all(|byte| *byte == 7), "{}", whole.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_http_2_answer_is_not_measured_by_its_size() {
    let (gateway, _app) = in_a_hurry("h2_live").await;
    let (mut sender, _ended) = h2_within(gateway.listen, 65_535).await;
    let mut body = sender.send_request(h2_live()).await.unwrap().into_body();
    let (begun, mut taken) = (std::time::Instant::now(), 0);
    while let Some(frame) = body.frame().await {
        taken += frame.unwrap().into_data().map_or(0, |data| data.len());
        if begun.elapsed() < Duration::from_secs(4) {
            // sleeps because the client is to be slow
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }
    assert!(taken == 600_000 && begun.elapsed() > Duration::from_secs(4), "{taken}");
}

/// A connection whose answers each have this window until they are read, and its end.
async fn h2_within(
    to: SocketAddr,
    window: u32,
) -> (hyper::client::conn::http2::SendRequest<Full<Bytes>>, JoinHandle<()>) {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    (sender, tokio::spawn(async move { drop(connection.await) }))
}

async fn h2(to: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

fn h2_request(path: &str, key: &str) -> Request<Full<Bytes>> {
    let mut sent = request(&format!("http://api.example{path}"), Some(key), "{}");
    sent.headers_mut().remove("host");
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_comes_in() {
    let at = target("http_2").await;
    let mut sender = h2(at.address).await;
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(tokio::spawn(sender.send_request(h2_request("/slow", "k"))));
    }
    at.app.started().await;
    at.app.go_on();
    for answer in answers {
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(&answer.into_body().collect().await.unwrap().to_bytes()[..], b"slow 1");
    }
    let echo = sender.send_request(h2_request("/echo", "k")).await.unwrap();
    let echo = echo.into_body().collect().await.unwrap().to_bytes();
    let echo: serde_json::Value = serde_json::from_slice(&echo).unwrap();
    assert_eq!(echo["headers"]["host"][0], "api.example");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_we_may_say_is_removed_from_trailers() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\
                          trailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nonceward-fence: 9\r\n\
                          idempotency-replayed: true\r\nx-sum: 1\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let gateway = Gateway::start(&folder("trailers"), address, &[]);
    let mut sender = h2(gateway.listen).await;
    let asked = Request::get("http://api.example/x").body(Full::default()).unwrap();
    let answer = sender.send_request(asked).await.unwrap().into_body().collect().await.unwrap();
    let left: Vec<_> = answer.trailers().unwrap().keys().collect();
    assert_eq!(left, ["x-sum"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rapid_reset_leaks_no_claim() {
    let at = target("rapid_reset").await;
    let mut sender = h2(at.address).await;
    for n in 0..100 {
        let sending = sender.send_request(h2_request("/payments", &format!("k{n}")));
        // Polled a little, at most to the point where it is on its way, then reset.
        let _ = tokio::time::timeout(Duration::from_micros(n * 20), sending).await;
    }
    for n in 0..100 {
        let key = format!("k{n}");
        let answer = post(at.address, "/payments", Some(&key), "{}");
        // Far less than the lease: nobody waits for one that nobody holds.
        let answer = tokio::time::timeout(Duration::from_secs(10), answer).await.unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    let mut keys: Vec<_> = at.app.runs().into_iter().map(|run| run.key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!((keys.len(), at.app.ran()), (100, 100), "each ran once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_not_there_leaves_the_key_free() {
    for hold in [false, true] {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let setup = Setup { hold, ..Setup::default() };
        let gateway = Gateway::start(&folder(&format!("refused_{hold}")), address, &setup.flags());
        for key in [Some("k"), None] {
            let failed = post(gateway.listen, "/payments", key, "{}").await;
            assert_eq!(failed.problem(), (502, "upstream.failed".into()));
            assert!(failed.json()["detail"].as_str().unwrap().contains("nothing was sent"));
        }
        let app = App::new();
        let listener = TcpListener::bind(address).await.unwrap();
        tokio::spawn(axum::serve(listener, app.router()).into_future());
        assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201);
        assert_eq!(app.runs()[0].attempt, 1, "the failed one does not count");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_silent_is_504() {
    let (gateway, app) = with_flags("silent", &["--upstream-timeout", "300ms"]).await;
    for path in ["/slow", "/trickle"] {
        for _ in 0..2 {
            let failed = post(gateway.listen, path, Some("k"), "{}").await;
            assert_eq!(failed.problem(), (504, "upstream.timeout".into()), "{path}");
        }
        let unprotected = post(gateway.listen, "/slow", None, "{}").await;
        assert_eq!(unprotected.problem(), (504, "upstream.timeout".into()));
    }
    let fences: Vec<_> =
        app.runs().iter().filter(|run| run.key == "k").map(|run| run.fence).collect();
    assert_eq!(fences.len(), 4);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_closed_is_replaced() {
    // An upstream that promises to keep connections and closes them.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                let _ =
                    stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}").await;
            });
        }
    });
    let gateway = Gateway::start(&folder("kept"), address, &[]);
    for n in 0..20 {
        let answer = post(gateway.listen, "/payments", Some(&format!("k{n}")), "").await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unprotected_bodies_stream_both_ways_in_little_memory() {
    const SIZE: usize = 200 * 1024 * 1024;
    let at = target("streams").await;
    let before = peak_kib(at.gateway.as_ref().unwrap());
    let big = Request::post("/echo").header("host", "x").body(Zeros(SIZE)).unwrap();
    assert_eq!(send(at.address, big).await.json()["bytes"], SIZE);
    let down = request(&format!("/large/{SIZE}"), None, "");
    let (mut head, body) = down.into_parts();
    head.method = http::Method::GET;
    let response = open(at.address, Request::from_parts(head, body)).await.unwrap();
    let mut body = response.into_body();
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        read += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(read, SIZE);
    let grown = peak_kib(at.gateway.as_ref().unwrap()) - before;
    assert!(grown < 32 * 1024, "grew by {grown} KiB");
}

/// The most memory that a process ever had resident.
fn peak_kib(gateway: &Gateway) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A body of so many zeros.
struct Zeros(usize);

impl http_body::Body for Zeros {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        static PIECE: [u8; 64 * 1024] = [0; 64 * 1024];
        let size = PIECE.len().min(self.0);
        self.0 -= size;
        let frame =
            (size > 0).then(|| Ok(http_body::Frame::data(Bytes::from_static(&PIECE[..size]))));
        std::task::Poll::Ready(frame)
    }
}
