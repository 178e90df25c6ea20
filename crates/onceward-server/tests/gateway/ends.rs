//! Ends that only a gateway meets: an upstream that is killed at work, directly connected or behind
//! a proxy that answers for it; a gateway behind a gateway; an answer whose head can't be read.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{PATIENCE, post, request, try_send};
use super::target::{Gateway, Setup, command, folder, serve};
use super::upstream::App;
use http::StatusCode;

/// Charges, which is a line in a file, and is killed before it has answered.
const DIES: &str = r#"
import http.server, os, signal, sys

class Charges(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with open("charges", "a") as charges:
            print(self.headers["Onceward-Attempt"], self.headers["Onceward-Fence"], file=charges)
        os.kill(os.getpid(), signal.SIGKILL)

server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Charges)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;

/// A process that charges once and is gone, started again at the same port.
struct Dies {
    folder: PathBuf,
    child: Child,
    address: SocketAddr,
}

impl Dies {
    fn start(folder: &Path, port: u16) -> Self {
        let mut python = Command::new("python3");
        let python = python.args(["-c", DIES, &port.to_string()]).current_dir(folder);
        let mut child = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut port).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port.trim().parse().unwrap()));
        Self { folder: folder.into(), child, address }
    }

    /// Waits for its death, and starts another one in its place.
    fn again(&mut self) {
        self.child.wait().unwrap();
        *self = Self::start(&self.folder.clone(), self.address.port());
    }

    /// Attempts and fences of the charges.
    fn charges(&self) -> Vec<(u64, u64)> {
        let lines = std::fs::read_to_string(self.folder.join("charges")).unwrap();
        let pair = |line: &str| {
            let (attempt, fence) = line.split_once(' ').unwrap();
            (attempt.parse().unwrap(), fence.parse().unwrap())
        };
        lines.lines().map(pair).collect()
    }
}

impl Drop for Dies {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy as balancers are: it hands on, and answers by itself when the upstream does not.
async fn proxy(upstream: SocketAddr, status: u16) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = vec![0; 16 * 1024];
                // The requests of these tests are small: each comes in one piece.
                while let Ok(read @ 1..) = client.read(&mut buffer).await {
                    let mut answer = Vec::new();
                    if let Ok(mut behind) = TcpStream::connect(upstream).await {
                        let _ = behind.write_all(&buffer[..read]).await;
                        let _ = behind.read_to_end(&mut answer).await;
                    }
                    if answer.is_empty() {
                        answer =
                            format!("HTTP/1.1 {status} Gone\r\ncontent-length: 0\r\n\r\n").into();
                    }
                    if client.write_all(&answer).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_an_upstream_killed_at_work_charges_once_under_hold_whoever_answers_for_it() {
    for hold in [true, false] {
        for answered_by in [None, Some(502), Some(504)] {
            let name = format!("killed-{hold}-{}", answered_by.unwrap_or_default());
            let folder = folder(&name);
            let mut upstream = Dies::start(&folder, 0);
            let before = match answered_by {
                None => upstream.address,
                Some(status) => proxy(upstream.address, status).await,
            };
            let setup = Setup { hold, ..Setup::default() };
            let gateway = Gateway::start(&folder, before, &setup.flags());
            for attempt in 0..3 {
                let answer = post(gateway.listen, "/charges", Some("k"), "{}").await;
                if hold && attempt > 0 {
                    assert_eq!(answer.problem(), (409, "idempotency.outcome_unknown".into()));
                    continue;
                }
                assert_eq!(answer.status, answered_by.unwrap_or(502), "{name}: {answer:?}");
                let is_marked = answer.header("idempotency-stored") == Some("false");
                assert_eq!(is_marked, answered_by.is_some(), "an answer of the other side's");
                upstream.again();
            }
            let charges = upstream.charges();
            let attempts: Vec<_> = charges.iter().map(|(attempt, _)| *attempt).collect();
            let expected: &[u64] = if hold { &[1] } else { &[1, 2, 3] };
            assert_eq!(attempts, expected, "{name}");
            assert!(charges.is_sorted_by(|a, b| a.1 < b.1), "{name}: {charges:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h3_b01_behind_another_gateway_a_retry_ends_with_what_that_one_recorded() {
    let app = App::new();
    let inner_at = folder("chain-inner");
    let inner = Gateway::start(&inner_at, serve(app.router()).await, &["--wait=100ms".into()]);
    let outer_at = folder("chain-outer");
    let flags = ["--lease=1s".to_string(), "--wait=100ms".into()];
    let outer = Gateway::start(&outer_at, inner.listen, &flags);
    let lost = tokio::spawn(try_send(outer.listen, request("/slow", Some("k"), "{}")));
    app.started().await;
    outer.kill();
    assert_eq!(lost.await.unwrap(), None);
    let outer = Gateway::start(&outer_at, inner.listen, &flags);
    let retried = async {
        let mut refused = 0;
        loop {
            let answer = post(outer.listen, "/slow", Some("k"), "{}").await;
            if answer.status == 200 {
                break answer;
            }
            assert_eq!(answer.problem(), (409, "idempotency.in_flight".into()));
            assert!(!answer.is_replay(), "an answer that says \"later\" is not final: {answer:?}");
            // Each waited for a tenth of a second: the outer one's lease has ended long ago, and
            // it is the inner one that refuses.
            refused += 1;
            if refused == 20 {
                app.go_on();
            }
        }
    };
    let answer = tokio::time::timeout(PATIENCE, retried).await.expect("it ends");
    assert_eq!(answer.body.as_ref(), b"slow 1");
    let again = post(outer.listen, "/slow", Some("k"), "{}").await;
    assert!(again.is_replay() && again.body == answer.body, "{again:?}");
    assert_eq!(app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h3_b01_what_a_person_decides_at_the_inner_gateway_is_heard_through_the_outer_one() {
    let (app, inner_at) = (App::new(), folder("decided-inner"));
    let hold = Setup { hold: true, ..Setup::default() }.flags();
    let inner = Gateway::start(&inner_at, serve(app.router()).await, &hold);
    let outer = Gateway::start(&folder("decided-outer"), inner.listen, &[]);
    assert_eq!(post(outer.listen, "/status/500", Some("k"), "{}").await.status, 500);
    for _ in 0..2 {
        let unknown = post(outer.listen, "/status/500", Some("k"), "{}").await;
        assert_eq!(unknown.problem(), (409, "idempotency.outcome_unknown".into()));
        assert!(!unknown.is_replay(), "{unknown:?}");
    }
    let listed = command(&inner_at, &["keys", "list", "--json"]).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let key = listed["items"][0]["key"].as_str().unwrap();
    let resolve = ["keys", "resolve", key, "--as", "done", "--outcome", r#"{"paid":true}"#];
    assert!(command(&inner_at, &resolve).status().unwrap().success());
    let answer = post(outer.listen, "/status/500", Some("k"), "{}").await;
    assert_eq!((answer.status, answer.body.as_ref()), (200, &br#"{"paid":true}"#[..]));
    assert_eq!(app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l11_an_answer_whose_head_can_not_be_read_is_done_and_never_runs_again() {
    let many: String = (0..300).map(|number| format!("x-{number}: 1\r\n")).collect();
    let large = format!("x-large: {}\r\n", "x".repeat(4 << 20));
    for (name, headers) in [("many", many), ("large", large)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let counts = ran.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (headers, counts) = (headers.clone(), counts.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 * 1024];
                    if let Ok(1..) = stream.read(&mut buffer).await {
                        counts.fetch_add(1, Ordering::SeqCst);
                        let answer = format!("HTTP/1.1 201 Created\r\n{headers}\r\n");
                        let _ = stream.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        for hold in [true, false] {
            let key = format!("k-{hold}");
            let setup = Setup { hold, ..Setup::default() };
            let folder = folder(&format!("unreadable-{name}-{hold}"));
            let gateway = Gateway::start(&folder, address, &setup.flags());
            let before = ran.load(Ordering::SeqCst);
            let first = post(gateway.listen, "/payments", Some(&key), "{}").await;
            assert_eq!(first.problem(), (502, "upstream.failed".into()));
            for _ in 0..3 {
                let again = post(gateway.listen, "/payments", Some(&key), "{}").await;
                assert_eq!(again.problem(), (409, "idempotency.response_not_stored".into()));
            }
            assert_eq!(ran.load(Ordering::SeqCst), before + 1, "{name} {hold}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l11_an_answer_with_a_head_below_the_bound_is_passed_on() {
    let large = || async { (StatusCode::CREATED, [("x-large", "x".repeat(300 << 10))], "paid") };
    let address = serve(axum::Router::new().fallback(large)).await;
    let gateway = Gateway::start(&folder("large_head"), address, &[]);
    let answer = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!((answer.status, &answer.body[..]), (201, &b"paid"[..]));
    assert_eq!(answer.header("x-large").map(str::len), Some(300 << 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h3_without_written_routes_404_is_not_kept_and_with_final_it_is() {
    for (name, file, kept) in [
        ("unwritten", "", false),
        ("written", "[[route]]\nmatch = \"POST /status/{code}\"\n", true),
        ("moved", "[[route]]\nmatch = \"POST /status/{code}\"\nretryable = [404]\n", false),
        ("stored", "[[route]]\nmatch = \"POST /status/{code}\"\nfinal = [404, 500]\n", true),
    ] {
        let (folder, app) = (folder(&format!("moved-{name}")), App::new());
        std::fs::write(folder.join("onceward.toml"), file).unwrap();
        let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
        for status in ["404", "500"] {
            let path = format!("/status/{status}");
            post(gateway.listen, &path, Some(status), "{}").await;
            let again = post(gateway.listen, &path, Some(status), "{}").await;
            let expected = if status == "404" { kept } else { name == "stored" };
            assert_eq!(again.is_replay(), expected, "{name} {status}: {again:?}");
        }
    }
}
