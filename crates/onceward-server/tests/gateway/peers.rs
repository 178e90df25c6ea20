//! Other people's clients and servers: what they may send by the standards, and what must not pass.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::client::{PATIENCE, post, raw, read_to_close, request, send};
use super::frames::{
    DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, PROTOCOL_ERROR, STATUS_200, STATUS_400,
    block, frame,
};
use super::strict::{Upstream, ask};
use super::target::{Gateway, Setup, Target, command, folder, serve};
use super::upstream::App;

/// What a JDK's client sends by default.
const OFFER: &str = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                     HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n";

async fn target(name: &str) -> Arc<Target> {
    Target::gateway(name, &Setup::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d1_an_upgrade_that_is_offered_is_ignored_on_each_method() {
    let at = target("peer_d1").await;
    for method in ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"] {
        for key in ["", "Idempotency-Key: k\r\n"] {
            let head = "Host: h\r\nAuthorization: a\r\nX-Mine: 1\r\nContent-Length: 2\r\n";
            let sent = format!("{method} /echo HTTP/1.1\r\n{head}{key}{OFFER}\r\n{{}}");
            let answers = ask(at.address, sent.as_bytes(), 1).await.unwrap();
            let answer = answers.all.back().unwrap();
            assert_eq!(answer.status(), 200, "{method} {answer:?}");
            if method == "HEAD" {
                continue;
            }
            let seen: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            for gone in ["connection", "upgrade", "http2-settings"] {
                assert_eq!(seen["headers"][gone], serde_json::Value::Null, "{method} {gone}");
            }
            assert_eq!((&seen["headers"]["x-mine"], &seen["bytes"]), (&json!(["1"]), &json!(2)));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d3_what_nobody_can_read_is_an_unknown_end() {
    let answer = b"HTTP/1.1 201 Created\r\ntransfer-encoding: chunked, gzip\r\n\r\n2\r\nok\r\n";
    let upstream = Upstream::start(|_| (answer.to_vec(), true)).await;
    let flags = Setup { hold: true, ..Setup::default() }.flags();
    let gateway = Gateway::start(&folder("peer_d3"), upstream.address, &flags);
    let failed = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!(failed.problem(), (502, "upstream.failed".into()));
    let held = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!(held.problem(), (409, "idempotency.outcome_unknown".into()));
    assert_eq!((upstream.asked().len(), upstream.faults().len()), (1, 0));
}

/// The head of a request over HTTP/2.
fn h2_head(stream: u32, further: &[(&str, &str)], flags: u8) -> Vec<u8> {
    let mut headers = vec![(":method", "POST"), (":scheme", "http"), (":path", "/echo")];
    headers.extend(further);
    frame(HEADERS, END_HEADERS | flags, stream, &block(&headers))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d4_an_authority_that_is_no_host_is_refused_over_http_2_too() {
    let at = target("peer_d4").await;
    let mut client = Frames::open(at.address).await;
    let mut stream = 1;
    for bad in ["u:p@x", "a b", "<x>", "[::1", "x:abc", "a/b", ""] {
        for name in [":authority", "host"] {
            client.send(&[h2_head(stream, &[(name, bad)], END_STREAM)]).await;
            let end = client.end(stream).await;
            // Some of it the library does not even let begin.
            assert!(matches!(end, End::Answered(STATUS_400) | End::Reset(1)), "{bad}: {end:?}");
            stream += 2;
        }
    }
    client.send(&[h2_head(stream, &[(":authority", "[::1]:80")], END_STREAM)]).await;
    assert_eq!(client.end(stream).await, End::Answered(STATUS_200));
    assert_eq!(at.app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d8_each_message_tells_the_way_that_it_came() {
    let at = target("peer_d8_via").await;
    for key in [None, Some("k")] {
        let mut sent = request("/echo", key, "{}");
        sent.headers_mut().insert("via", "1.0 front (a proxy)".parse().unwrap());
        sent.headers_mut().insert("connection", "via".parse().unwrap());
        let seen = send(at.address, sent).await;
        let via = seen.json()["headers"]["via"].clone();
        assert_eq!(via[0], "1.0 front (a proxy)");
        assert!(via[1].as_str().unwrap().starts_with("1.1 onceward-"), "{via}");
        assert_eq!(seen.header("via"), via[1].as_str(), "the answer came the same way");
    }
    let mut client = Frames::open(at.address).await;
    client.send(&[h2_head(1, &[(":authority", "h")], END_STREAM)]).await;
    let seen: serde_json::Value = serde_json::from_str(&client.body(1).await).unwrap();
    assert!(seen["headers"]["via"][0].as_str().unwrap().starts_with("2 onceward-"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d8_who_may_go_no_further_is_answered_here() {
    let upstream = Upstream::start(|request| {
        let left = request.all("max-forwards").join(",");
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", left.len());
        (format!("{head}{left}").into_bytes(), false)
    })
    .await;
    let gateway = Gateway::start(&folder("peer_d8_max"), upstream.address, &[]);
    for (method, max, expected, reaches) in [
        ("OPTIONS", "0", "", false),
        ("TRACE", "0", "TRACE /x HTTP/1.1\r\nhost: h\r\nmax-forwards: 0\r\n\r\n", false),
        ("OPTIONS", "2", "1", true),
        ("TRACE", "1", "0", true),
        ("GET", "0", "0", true),
    ] {
        let head = "Host: h\r\nAuthorization: secret\r\nCookie: secret\r\n";
        let sent = format!("{method} /x HTTP/1.1\r\n{head}Max-Forwards: {max}\r\n\r\n");
        let answers = ask(gateway.listen, sent.as_bytes(), 1).await.unwrap();
        let answer = answers.all.back().unwrap();
        let body = String::from_utf8_lossy(&answer.body);
        assert_eq!((answer.status(), &*body), (200, expected), "{method} {max}");
        assert_eq!(answer.all("x-request-id").len(), 1, "{method} {max}");
        assert_eq!(upstream.asked().len(), usize::from(reaches), "{method} {max}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d8_an_upstream_that_is_the_gateway_itself_is_refused_at_the_start() {
    let folder = folder("peer_d8_itself");
    let file = "[[route]]\nmatch = \"POST /x\"\nupstream = \"http://localhost:PORT/y\"\n";
    // Ports that nobody has, most likely: one for each listener.
    let free = |address: &str| std::net::TcpListener::bind((address, 0)).unwrap();
    let (one, other) = (free("127.0.0.1"), free("127.0.0.1"));
    let ports = [one, other].map(|listener| listener.local_addr().unwrap().port());
    let [port, admin] = ports;
    std::fs::write(folder.join("r.toml"), file.replace("PORT", &port.to_string())).unwrap();
    for (upstream, listen, further) in [
        (format!("http://127.0.0.1:{port}"), "127.0.0.1", ""),
        (format!("http://localhost:{port}/base"), "127.0.0.1", ""),
        (format!("http://0.0.0.0:{port}"), "127.0.0.1", ""),
        (format!("http://127.0.0.1:{port}"), "0.0.0.0", ""),
        (format!("http://[::ffff:127.0.0.1]:{port}"), "0.0.0.0", ""),
        (format!("http://127.0.0.1:{admin}"), "127.0.0.1", ""),
        ("http://192.0.2.1:1".to_string(), "127.0.0.1", "r.toml"),
    ] {
        let (listen, admin) = (format!("{listen}:{port}"), format!("127.0.0.1:{admin}"));
        let arguments = ["serve", "--upstream", &upstream, "--listen", &listen, "--admin", &admin];
        let mut serve = command(&folder, &arguments);
        if !further.is_empty() {
            serve.args(["--config", further]);
        }
        let mut serve = tokio::process::Command::from(serve);
        // One that starts all the same does not end by itself.
        let ended = tokio::time::timeout(PATIENCE, serve.kill_on_drop(true).output());
        let output = ended.await.expect("it ends").unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{upstream} on {listen}: {said}");
        assert!(said.contains("is this gateway itself"), "{upstream} on {listen}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d8_a_way_that_leads_back_through_others_ends() {
    // A proxy in between, which passes on what it gets byte for byte.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = listener.local_addr().unwrap();
    let gateway = Gateway::start(&folder("peer_d8_loop"), between, &[]);
    let back = gateway.listen;
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = rounds.clone();
    tokio::spawn(async move {
        loop {
            let (mut from, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut to = TcpStream::connect(back).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    });
    for key in [None, Some("k")] {
        let refused = post(gateway.listen, "/payments", key, "{}").await;
        assert_eq!(refused.problem(), (508, "upstream.loop".into()));
        assert_eq!(refused.json()["retryable"], false);
    }
    assert_eq!(rounds.load(Ordering::SeqCst), 2, "once round for each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d10_every_refusal_at_the_entry_has_a_request_id() {
    let at = target("peer_d10_ids").await;
    let mut ids = Vec::new();
    for refused in [
        "GET /x HTTP/1.1\r\n\r\n",
        "GET /x HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET /../x HTTP/1.1\r\nHost: h\r\n\r\n",
        "CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /x HTTP/1.1\r\nX-Request-ID: mine\r\n\r\n",
        "GET /x HTTP/1.1\r\nX-Request-ID: a\r\nX-Request-ID: b\r\n\r\n",
    ] {
        let answer = raw(at.address, refused.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        let id = answer.lines().find_map(|line| line.strip_prefix("x-request-id: ")).unwrap();
        assert!(answer.contains(&format!("urn:request:{id}")), "{answer}");
        ids.push(id.to_string());
    }
    let (made, told) = ids.split_at(5);
    assert_eq!(told, ["mine", "a"]);
    assert!(made.iter().all(|id| id.len() >= 16), "{made:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 7, "each has its own");
}

/// The lines that a gateway logs about requests, once it was told to end.
fn lines_of(mut gateway: Gateway) -> Vec<serde_json::Value> {
    gateway.terminate();
    let mut said = String::new();
    let mut pipe = gateway.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut pipe, &mut said).unwrap();
    let lines = said.lines().filter_map(|line| serde_json::from_str(line).ok());
    lines.filter(|line: &serde_json::Value| line["target"] == "onceward::access").collect()
}

fn logging(name: &str, upstream: &str, further: &[&str]) -> Gateway {
    let folder = folder(name);
    let mut serve = command(&folder, &["serve", "--upstream", upstream]);
    serve.args(["--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--log-format=json"]);
    serve.env("ONCEWARD_LOG_LEVEL", "info").args(further).stderr(Stdio::piped());
    Gateway::spawn(&folder, serve)
}

/// Asks with and without a key; what the log says is why, and the client does not learn it.
async fn fails(gateway: Gateway, status: u16, why: &[&str]) {
    let mut answers = Vec::new();
    for key in [None, Some("k")] {
        let answer = post(gateway.listen, "/payments", key, "{}").await;
        assert_eq!(answer.status, status, "{answer:?}");
        for part in why {
            let body = String::from_utf8_lossy(&answer.body).to_string();
            assert!(!body.contains(part), "{part} in {body}");
        }
        answers.push(answer);
    }
    let get = http::Request::get("/payments").header("host", "h");
    answers.push(send(gateway.listen, get.body(http_body_util::Empty::new()).unwrap()).await);
    let lines = lines_of(gateway);
    for answer in answers {
        let id = answer.header("x-request-id").unwrap();
        let line = lines.iter().find(|line| line["request_id"] == id);
        let line = line.unwrap_or_else(|| panic!("{id} is not in {lines:?}"));
        let cause = line["cause"].as_str().unwrap_or_else(|| panic!("no cause in {line}"));
        assert!(why.iter().all(|part| cause.contains(part)), "{why:?} in {cause}");
        assert_eq!(line["status"], status);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_the_log_says_why_an_upstream_failed() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let refused = logging("r09_refused", &format!("http://{free}"), &[]);
    fails(refused, 502, &[&free.to_string(), "refused"]).await;
    let nowhere = logging("r09_name", "http://nowhere.invalid:81", &[]);
    fails(nowhere, 502, &["nowhere.invalid:81", "dns"]).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let late = logging("r09_late", &format!("http://{address}"), &["--upstream-timeout=200ms"]);
    fails(late, 504, &["0.2 s", &address.to_string()]).await;
    for (name, answer, why) in [
        ("r09_half", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n", "connection closed"),
        ("r09_coded", "HTTP/1.1 200 OK\r\ntransfer-encoding: x\r\n\r\n", "Transfer-Encoding"),
        ("r09_none", "", "connection closed"),
    ] {
        let upstream = Upstream::start(|_| (answer.into(), true)).await;
        let broken = logging(name, &format!("http://{}", upstream.address), &[]);
        fails(broken, 502, &[&upstream.address.to_string(), why]).await;
    }
    let own = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 2\r\n\r\nno";
    let upstream = Upstream::start(|_| (own.to_vec(), false)).await;
    let passed = logging("r09_own", &format!("http://{}", upstream.address), &[]);
    fails(passed, 502, &["itself answered 502"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_the_log_says_why_a_certificate_was_refused() {
    let pem = |name: &str| format!("{}/tests/gateway/tls/{name}.pem", env!("CARGO_MANIFEST_DIR"));
    let app = App::new();
    let files = [format!("--tls-cert={}", pem("cert")), format!("--tls-key={}", pem("key"))];
    let secure = Gateway::start(&folder("r09_tls"), serve(app.router()).await, &files);
    let url = format!("https://localhost:{}", secure.listen.port());
    let wary = logging("r09_wary", &url, &[]);
    let host = format!("localhost:{}", secure.listen.port());
    fails(wary, 502, &[&host, "invalid peer certificate"]).await;
    assert_eq!(app.ran(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r09_an_answer_that_breaks_off_behind_its_head_is_told_of_too() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
    let upstream = Upstream::start(|_| (half.to_vec(), true)).await;
    let gateway = logging("r09_behind", &format!("http://{}", upstream.address), &[]);
    let answer = raw(gateway.listen, b"GET /x HTTP/1.1\r\nHost: h\r\nX-Request-ID: r1\r\n\r\n");
    assert!(answer.await.starts_with("HTTP/1.1 200"));
    let lines = lines_of(gateway);
    let line = lines.iter().find(|line| line["request_id"] == "r1").expect("a line of it");
    assert!(line["cause"].as_str().unwrap().contains("broke off"), "{line}");
}

/// An upstream that answers what it is asked with the name of who asked, and a moment later once
/// more, unasked.
async fn answers_twice(connections: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let nth = connections.fetch_add(1, Ordering::SeqCst) as u64;
            tokio::spawn(async move {
                let mut bytes = [0; 8192];
                while let Ok(length @ 1..) = stream.read(&mut bytes).await {
                    let asked = String::from_utf8_lossy(&bytes[..length]).to_string();
                    let who = asked.lines().find_map(|line| line.strip_prefix("authorization: "));
                    let who = who.unwrap_or("nobody");
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{who}", who.len());
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                    // sleeps because the upstream is to speak out of turn, 0.5 to 5 ms late
                    tokio::time::sleep(Duration::from_micros(500 + nth * 37 % 4_500)).await;
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// How often somebody got what was said to another, over so many requests.
async fn misdelivered(reuse: &str, requests: usize) -> (usize, usize) {
    let connections = Arc::new(AtomicUsize::new(0));
    let upstream = answers_twice(connections.clone()).await;
    let folder = folder(&format!("reuse_{reuse}"));
    let file = format!("[server]\nupstream_reuse = \"{reuse}\"\n[store]\nurl = \"memory:\"\n");
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(&folder, upstream, &[]);
    let mut wrong = 0;
    for n in 0..requests {
        let who = ["alice", "bob", "nobody"][n % 3];
        let mut sent = request("/payments", None, "{}");
        // Some with a key, some without, some by nobody.
        if n % 2 == 0 && who != "nobody" {
            sent.headers_mut().insert("idempotency-key", format!("k{n}").parse().unwrap());
        }
        match who {
            "nobody" => drop(sent.headers_mut().remove("authorization")),
            who => drop(sent.headers_mut().insert("authorization", who.parse().unwrap())),
        }
        let answer = send(gateway.listen, sent).await;
        let other = ["alice", "bob", "nobody"]
            .iter()
            .any(|name| *name != who && answer.body == name.as_bytes() && answer.status == 200);
        wrong += usize::from(other);
    }
    (wrong, connections.load(Ordering::SeqCst))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_reuse_keeps_an_unasked_answer_from_other_tenants() {
    let (wrong, _) = misdelivered("tenant", 600).await;
    assert_eq!(wrong, 0, "under tenant");
    let (wrong, connections) = misdelivered("none", 150).await;
    assert_eq!((wrong, connections), (0, 150), "under none");
    // The upstream does what this is about.
    let (wrong, _) = misdelivered("shared", 600).await;
    assert!(wrong > 0, "nobody got another's answer: this test shows nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_reuse_by_tenant_still_reuses_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                while let Ok(1..) = stream.read(&mut [0; 8192]).await {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    let _ = stream.write_all(answer).await;
                }
            });
        }
    });
    let folder = folder("reuse_kept");
    std::fs::write(folder.join("onceward.toml"), "[server]\nupstream_reuse = \"tenant\"\n")
        .unwrap();
    let gateway = Gateway::start(&folder, address, &[]);
    for n in 0..20 {
        let mut sent = request("/payments", (n % 2 == 0).then_some(&*format!("k{n}")), "{}");
        let who = ["alice", "bob"][n / 2 % 2];
        sent.headers_mut().insert("authorization", who.parse().unwrap());
        assert_eq!(send(gateway.listen, sent).await.status, 200);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2, "one for each tenant");
    for _ in 0..3 {
        let mut nobody = request("/payments", None, "{}");
        nobody.headers_mut().remove("authorization");
        assert_eq!(send(gateway.listen, nobody).await.status, 200);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 5, "one for each request of nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d8_interim_answers_are_passed_on_before_the_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // One permit lets an upstream go on from its interim answer.
    let seen = Arc::new(Semaphore::new(0));
    let go_on = seen.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let go_on = go_on.clone();
            tokio::spawn(async move {
                while let Ok(1..) = stream.read(&mut [0; 8192]).await {
                    let early = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nconnection: x\r\n\
                                 x: 1\r\nonceward-fence: 9\r\ncontent-length: 3\r\n\r\n";
                    stream.write_all(early.as_bytes()).await.unwrap();
                    go_on.acquire().await.unwrap().forget();
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    let _ = stream.write_all(answer).await;
                }
            });
        }
    });
    let gateway = Gateway::start(&folder("peer_d8_interim"), address, &[]);
    let mut stream = TcpStream::connect(gateway.listen).await.unwrap();
    let keyed = "Authorization: a\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}";
    for further in ["\r\n", "\r\n", keyed] {
        let method = if further == keyed { "POST" } else { "GET" };
        let sent = format!("{method} /x HTTP/1.1\r\nHost: h\r\n{further}");
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut early = Vec::new();
        while !early.ends_with(b"\r\n\r\n") {
            early.push(stream.read_u8().await.unwrap());
        }
        let early = String::from_utf8(early).unwrap();
        let expected = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nvia: 1.1 onceward-";
        assert!(early.starts_with(expected) && early.lines().count() == 4, "{early}");
        seen.add_permits(1);
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok") {
            answer.push(stream.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{answer:?}");
    }
    // The retry is answered from the record, and has no hints.
    let again = format!("POST /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{keyed}");
    stream.write_all(again.as_bytes()).await.unwrap();
    let answer = read_to_close(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("replayed"), "{answer}");
    // Who speaks HTTP/1.0 knows none, and over HTTP/2 they are not passed on.
    seen.add_permits(2);
    let old = raw(gateway.listen, b"GET /x HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 OK\r\n"), "{old}");
    let mut client = Frames::open(gateway.listen).await;
    client.send(&[h2_head(1, &[(":authority", "h")], END_STREAM)]).await;
    assert_eq!(client.end(1).await, End::Answered(STATUS_200));
}

/// Requests with trailers that hold what only a head may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d10_a_pseudo_header_in_trailers_is_an_error_of_the_stream() {
    let at = target("peer_d10_trailers").await;
    let mut client = Frames::open(at.address).await;
    let key = [(":authority", "h"), ("authorization", "a"), ("idempotency-key", "k")];
    let path = block(&[(":path", "/x")]);
    // Named anew, by its place in the fixed table, and coded.
    let coded = b"\x00\x84\xb9\x58\xd3\x3f\x01/";
    let mut stream = 1;
    for bad in [&path[..], b"\x84", coded] {
        for head in [&key[..], &key[..2]] {
            let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, bad);
            let frames = [h2_head(stream, head, 0), frame(DATA, 0, stream, b"{}"), trailers];
            if head.len() == 3 {
                client.send(&frames).await;
            } else {
                // In pieces, as a network may bring them.
                for piece in frames.concat().chunks(5) {
                    client.send(&[piece.to_vec()]).await;
                }
            }
            let end = client.end(stream).await;
            assert_eq!(end, End::Reset(PROTOCOL_ERROR), "{bad:x?} {}", head.len());
            stream += 2;
        }
    }
    let ran: Vec<_> = at.app.runs().into_iter().filter(|run| run.key == "k").collect();
    assert_eq!(ran, [], "nothing ran under the key");
    // The connection lives on, and trailers that are fine are.
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[("x-sum", "1")]));
    client.send(&[h2_head(stream, &key, 0), frame(DATA, 0, stream, b"{}"), trailers]).await;
    assert_eq!(client.end(stream).await, End::Answered(STATUS_200));
}
