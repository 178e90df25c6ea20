//! Ways around a route: methods, paths and identities that the gateway reads one way and a server
//! behind it another. Requests are raw bytes where clients would tidy them up.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{Answer, post, raw, request, send};
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

/// An upstream that serves whatever it is asked and remembers the heads.
struct Heard {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Heard {
    async fn start(further: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = heads.clone();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap() == 0 {
                        break;
                    }
                }
                kept.lock().unwrap().push(String::from_utf8_lossy(&head).into_owned());
                let answer = format!(
                    "HTTP/1.1 201 Created\r\n{further}content-length: 0\r\n\
                     connection: close\r\n\r\n"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { address, heads }
    }

    fn took(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().unwrap())
    }
}

/// The gateway in front of an upstream that serves everything, with a file.
async fn with_file(name: &str, file: &str) -> (Gateway, Heard) {
    let (folder, heard) = (folder(name), Heard::start("").await);
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    (Gateway::start(&folder, heard.address, &[]), heard)
}

/// Status and code of what comes to a request line with further headers, by raw bytes.
async fn asked(to: SocketAddr, line: &str, further: &str) -> (u16, String) {
    let sent = format!(
        "{line} HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n{further}content-length: 0\r\n\
         connection: close\r\n\r\n"
    );
    let answer = raw(to, sent.as_bytes()).await;
    let status = answer.get(9..12).and_then(|status| status.parse().ok());
    let code = answer.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next());
    (status.unwrap_or_else(|| panic!("{line}: {answer:?}")), code.unwrap_or_default().into())
}

fn malformed() -> (u16, String) {
    (400, "request.malformed".into())
}

pub(crate) async fn h2(to: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    sender
}

/// The same over HTTP/2.
async fn asked_h2(to: SocketAddr, method: &str, path: &str, header: Option<(&str, &str)>) -> u16 {
    let mut sent = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(format!("http://api.example{path}"))
        .header("idempotency-key", "k");
    if let Some((name, value)) = header {
        sent = sent.header(name, value);
    }
    let sent = sent.body(Full::default()).unwrap();
    h2(to).await.send_request(sent).await.unwrap().status().as_u16()
}

const PAY: &str =
    "[[route]]\nmatch = \"POST /pay/{id}\"\n[[route]]\nmatch = \"DELETE /pay/{id}\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_a_method_in_another_case_is_refused_with_and_without_routes() {
    for (name, file) in [("method_case", PAY), ("method_case_unwritten", "")] {
        let (gateway, heard) = with_file(name, file).await;
        for method in ["post", "Post", "delete", "pUT", "patch", "get", "Options", "trace"] {
            let answer = asked(gateway.listen, &format!("{method} /pay/7"), "").await;
            assert_eq!(answer, malformed(), "{method}");
            assert_eq!(asked_h2(gateway.listen, method, "/pay/7", None).await, 400, "{method}");
        }
        assert_eq!(heard.took().len(), 0);
        assert_eq!(asked(gateway.listen, "PROPFIND /pay/7", "").await.0, 201, "not one of ours");
        assert_eq!(asked(gateway.listen, "GET /pay/7", "").await.0, 201);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_a_path_that_may_be_read_as_a_protected_one_is_refused() {
    let (gateway, heard) = with_file("path_readings", PAY).await;
    for path in [
        "/pay%2F7",
        "/pay%2f7",
        "/%2Fpay/7",
        "/pay;a=b/7",
        "/;a/pay/7",
        "/x/..;/pay/7",
        "/pay\\7",
        "/pay%5C7",
        "/x\\..\\pay\\7",
        "/x/..%2fpay/7",
        "/x%2f..%2fpay%2f7",
        "/x/%252e%252e/pay/7",
        "/pay%252F7",
        "/%2570ay/7",
        "/pay/;/7",
        "/x/..%5Cpay/7",
        "/PAY/7",
        "/pay/7/",
        "/Pay/7/",
    ] {
        assert_eq!(asked(gateway.listen, &format!("POST {path}"), "").await, malformed(), "{path}");
        assert_eq!(asked_h2(gateway.listen, "DELETE", path, None).await, 400, "{path}");
    }
    assert_eq!(heard.took(), [""; 0]);
    for (path, status) in [
        ("/other%2Fpath", 201),
        ("/other;a=b", 201),
        ("/x\\y", 201),
        ("/x/..;/y", 201),
        ("/x/..%2fy", 201),
        ("/PAYMENTS", 201),
        // The route's own: nobody is known.
        ("/pay/a%2Fb", 401),
        ("/pay/7%2F", 401),
        ("/pay/7;v=1", 401),
        ("/pay/A", 401),
    ] {
        assert_eq!(asked(gateway.listen, &format!("POST {path}"), "").await.0, status, "{path}");
    }
    assert_eq!(heard.took().len(), 6);
    // What is never protected is not looked at.
    assert_eq!(asked(gateway.listen, "GET /pay%2F7", "").await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_the_file_says_what_an_encoded_slash_and_another_spelling_are() {
    let file = format!("[server]\nencoded_slash = \"data\"\nspelling = \"exact\"\n{PAY}");
    let (gateway, heard) = with_file("path_switches", &file).await;
    for path in ["/pay%2F7", "/pay%5C7", "/pay%252F7", "/PAY/7", "/pay/7/", "/x/..%2fpay/7"] {
        assert_eq!(asked(gateway.listen, &format!("POST {path}"), "").await.0, 201, "{path}");
    }
    assert_eq!(heard.took().len(), 6);
    for path in ["/pay\\7", "/pay;a=b/7", "/x/..;/pay/7", "//pay/7"] {
        assert_eq!(asked(gateway.listen, &format!("POST {path}"), "").await, malformed(), "{path}");
    }
    assert_eq!(heard.took(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_a_request_for_another_method_is_refused_where_that_is_a_route() {
    let file = "[[route]]\nmatch = \"DELETE /pay/{id}\"\n";
    let (gateway, heard) = with_file("overrides", file).await;
    let names = ["X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override", "x_http_method"];
    for name in names {
        for (method, value) in [("POST", "DELETE"), ("GET", "delete"), ("PUT", " Delete ")] {
            let header = format!("{name}: {value}\r\n");
            let answer = asked(gateway.listen, &format!("{method} /pay/7"), &header).await;
            assert_eq!(answer, malformed(), "{method} {header}");
            let header = Some((name, value));
            assert_eq!(asked_h2(gateway.listen, method, "/pay/7", header).await, 400, "{name}");
        }
        let header = format!("{name}: DELETE\r\n");
        let answer = asked(gateway.listen, "POST /PAY%2F7/", &header).await;
        assert_eq!(answer, malformed(), "the path in another spelling too");
        assert_eq!(asked(gateway.listen, "POST /other", &header).await.0, 201, "no route");
        let header = format!("{name}: PUT\r\n");
        assert_eq!(asked(gateway.listen, "POST /pay/7", &header).await.0, 201, "no route");
    }
    assert_eq!(heard.took().len(), 2 * names.len());
    for query in [
        "_method=DELETE",
        "a=1&_method=delete",
        "%5Fmethod=DELETE",
        "_metho%64=%64elete",
        "_METHOD=DELETE",
    ] {
        let answer = asked(gateway.listen, &format!("POST /pay/7?{query}"), "").await;
        assert_eq!(answer, malformed(), "{query}");
        let path = format!("/pay/7?{query}");
        assert_eq!(asked_h2(gateway.listen, "GET", &path, None).await, 400, "{query}");
    }
    assert_eq!(heard.took(), [""; 0]);
    for query in ["_method=PUT", "method=DELETE", "a=_method=DELETE", "my_method=DELETE"] {
        assert_eq!(asked(gateway.listen, &format!("POST /pay/7?{query}"), "").await.0, 201);
    }
    // A form field is not read: the docs say so.
    let form = "POST /pay/7 HTTP/1.1\r\nhost: x\r\ncontent-length: 14\r\nconnection: close\r\n\
                content-type: application/x-www-form-urlencoded\r\n\r\n_method=DELETE";
    assert!(raw(gateway.listen, form.as_bytes()).await.starts_with("HTTP/1.1 201"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_without_routes_a_read_can_t_be_made_a_write() {
    let (gateway, heard) = with_file("overrides_unwritten", "").await;
    let header = "x-http-method-override: DELETE\r\n";
    assert_eq!(asked(gateway.listen, "GET /pay/7", header).await, malformed());
    assert_eq!(asked(gateway.listen, "GET /pay/7?_method=post", "").await, malformed());
    assert_eq!(heard.took(), [""; 0]);
    // It has a key, and that is looked at.
    assert_eq!(asked(gateway.listen, "POST /pay/7", header).await.0, 401);
}

/// A server of Python's standard library: it decodes the path before anybody sees it.
struct Wsgi {
    child: Child,
    url: String,
}

const WSGI: &str = r#"
import re, sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass

def app(environ, start):
    known = re.match(r"^/+pay/+\d+$", environ["PATH_INFO"])
    start("201 Created" if known else "404 Not Found", [("Content-Length", "0")])
    return []

server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
server.serve_forever()
"#;

impl Wsgi {
    fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", WSGI])
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test needs python3");
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().into() }
    }
}

impl Drop for Wsgi {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h1_what_a_real_server_takes_for_the_route_is_not_passed_on() {
    let wsgi = Wsgi::start();
    let direct: SocketAddr = wsgi.url.trim_start_matches("http://").parse().unwrap();
    let folder = folder("wsgi");
    std::fs::write(folder.join("onceward.toml"), PAY).unwrap();
    let gateway = Gateway::start_at(&folder, &wsgi.url, &[]);
    for path in ["/pay%2F7", "/%2Fpay/7", "/%70ay%2f%37"] {
        let line = format!("POST {path}");
        assert_eq!(asked(direct, &line, "").await.0, 201, "{path}: the server takes it");
        assert_eq!(asked(gateway.listen, &line, "").await, malformed(), "{path}");
    }
    assert_eq!(asked(gateway.listen, "POST /pay%2Fx", "").await, malformed(), "any value");
    assert_eq!(asked(gateway.listen, "POST /paid%2F7", "").await.0, 404, "passed on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l7_two_equal_lengths_go_upstream_as_one() {
    let (gateway, heard) = with_file("lengths", "").await;
    let mut sender = h2(gateway.listen).await;
    let sent = |lengths: [&str; 2], key: Option<&str>| {
        let mut sent = Request::post("http://api.example/x")
            .header("authorization", "Bearer alice")
            .header("content-length", lengths[0])
            .header("content-length", lengths[1]);
        if let Some(key) = key {
            sent = sent.header("idempotency-key", key);
        }
        sent.body(Full::new(Bytes::from("{}"))).unwrap()
    };
    for key in [None, Some("k")] {
        let answer = sender.send_request(sent(["2", "2"], key)).await.unwrap();
        assert_eq!(answer.status(), 201);
        let heads = heard.took();
        assert_eq!(heads.len(), 1);
        let lines = heads[0].to_ascii_lowercase().matches("content-length:").count();
        assert_eq!(lines, 1, "{}", heads[0]);
        for lengths in [["2", "3"], ["2, 2", "2, 2"], ["+2", "+2"]] {
            let refused = h2(gateway.listen).await.send_request(sent(lengths, key)).await;
            assert!(refused.is_err() || refused.unwrap().status() == 400, "{lengths:?}");
            assert_eq!(heard.took(), [""; 0], "{lengths:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l6_a_scheme_without_a_credential_is_nobody() {
    let (gateway, heard) = with_file("empty_credentials", "").await;
    for empty in ["Bearer", "Bearer ", "bearer", "Basic", "Basic Og==", "basic Og", "Token"] {
        let header = format!("authorization: {empty}\r\n");
        let answer = asked(gateway.listen, "POST /x", &header).await;
        assert_eq!(answer, (401, "auth.required".into()), "{empty:?}");
        let header = Some(("authorization", empty));
        assert_eq!(asked_h2(gateway.listen, "POST", "/x", header).await, 401, "{empty:?}");
    }
    assert_eq!(heard.took(), [""; 0]);
    assert_eq!(asked(gateway.listen, "POST /x", "authorization: sk_raw\r\n").await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l5_a_header_that_is_not_carried_as_it_is_names_nobody() {
    let (folder, heard) = (folder("blank_identity"), Heard::start("").await);
    let flags = ["--identity=header", "--tenant-header=x-tenant", "--caller-header=x-caller"];
    let gateway = Gateway::start(&folder, heard.address, &flags.map(String::from));
    let mut sender = h2(gateway.listen).await;
    for (tenant, caller, status) in [
        ("acme", "ada", 201),
        (" acme", "ada", 401),
        ("acme", "ada\t", 401),
        ("ac\tme", "ada", 401),
    ] {
        let sent = Request::post("http://api.example/x")
            .header("x-tenant", tenant)
            .header("x-caller", caller)
            .header("idempotency-key", "k");
        let answer = sender.send_request(sent.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), status, "{tenant:?} {caller:?}");
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.is_empty(), status == 201);
    }
    assert_eq!(heard.took().len(), 1);
}

async fn metrics(gateway: &Gateway) -> String {
    let asked = Request::get("/metrics")
        .header("host", "x")
        .header("authorization", "Bearer operator-of-the-tests");
    let answer = send(gateway.admin, asked.body(Full::<Bytes>::default()).unwrap()).await;
    String::from_utf8(answer.body.to_vec()).unwrap()
}

fn mark(answer: &Answer) -> Option<&str> {
    answer.header("idempotency-protected")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_a_key_that_no_route_protects_leaves_a_mark_a_line_and_a_count() {
    let file = "[[route]]\nmatch = \"POST /payments\"\n\
                [[route]]\nmatch = \"POST /echo\"\nmode = \"shadow\"\n\
                [[route]]\nmatch = \"PUT /things/{id}\"\nmode = \"off\"\n";
    let (folder, app) = (folder("unprotected_key"), App::new());
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    let counted = async || {
        let text = metrics(&gateway).await;
        let line = text.lines().find(|line| line.starts_with("onceward_unprotected_keys_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
    };
    assert_eq!(counted().await, Some(0), "it begins at 0");
    for path in ["/status/200", "/status/200", "/echo", "/nothing"] {
        let answer = post(gateway.listen, path, Some("k"), "{}").await;
        assert_eq!(mark(&answer), Some("none"), "{path}");
        assert_eq!(mark(&post(gateway.listen, path, None, "{}").await), None, "{path}");
    }
    for id in ["1", "2"] {
        let mut put = request(&format!("/things/{id}"), Some("k"), "{}");
        *put.method_mut() = Method::PUT;
        assert_eq!(mark(&send(gateway.listen, put).await), Some("none"));
    }
    let mut custom = request("/echo", Some("k"), "{}");
    *custom.method_mut() = Method::from_bytes(b"PROPPATCH").unwrap();
    assert_eq!(mark(&send(gateway.listen, custom).await), Some("none"), "no route can have it");
    let mut get = request("/echo", Some("k"), "");
    *get.method_mut() = Method::GET;
    assert_eq!(mark(&send(gateway.listen, get).await), None, "no key is looked for");
    for _ in 0..2 {
        let answer = post(gateway.listen, "/payments", Some("k"), "{}").await;
        assert_eq!((answer.status, mark(&answer)), (201, None));
    }
    assert_eq!(counted().await, Some(7));
    gateway.terminate();
    let (_, said) = gateway.ended();
    let lines: Vec<&str> =
        said.lines().filter(|line| line.contains("WARN") && line.contains("protects")).collect();
    assert_eq!(lines.len(), 5, "once per path: {said}");
    let custom = "PROPPATCH /echo";
    for place in ["POST /status/200", "POST /echo", "POST /nothing", "PUT /things/{id}", custom] {
        assert_eq!(lines.iter().filter(|line| line.contains(place)).count(), 1, "{place}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_nobody_else_says_what_is_protected() {
    let forged = "Idempotency-Protected: full\r\nidempotency_protected: full\r\n";
    let heard = Heard::start(forged).await;
    let folder = folder("forged_protection");
    std::fs::write(folder.join("onceward.toml"), "[[route]]\nmatch = \"POST /payments\"\n")
        .unwrap();
    let gateway = Gateway::start(&folder, heard.address, &[]);
    for path in ["/payments", "/payments", "/other"] {
        for key in [None, Some("k")] {
            let mut sent = request(path, key, "{}");
            for name in ["idempotency-protected", "idempotency_protected"] {
                sent.headers_mut().insert(name, "full".parse().unwrap());
            }
            let answer = send(gateway.listen, sent).await;
            let expected = (path == "/other" && key.is_some()).then_some("none");
            assert_eq!(mark(&answer), expected, "{path} {key:?}");
            assert_eq!(answer.header("idempotency_protected"), None);
        }
    }
    for head in heard.took() {
        assert!(!head.to_ascii_lowercase().replace('_', "-").contains("idempotency-protected"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r07_what_matches_no_route_is_refused_where_the_file_says_so() {
    let routes = "[[route]]\nmatch = \"POST /pay/{id}\"\n\
                  [[route]]\nmatch = \"POST /off\"\nmode = \"off\"\n";
    for (word, keyed, unkeyed) in [
        ("pass", (201, ""), (201, "")),
        ("refuse_keyed", (400, "idempotency.unprotected"), (201, "")),
        ("refuse", (404, "route.unmatched"), (404, "route.unmatched")),
    ] {
        let file = format!("[server]\nunmatched = \"{word}\"\n{routes}");
        let (gateway, heard) = with_file(&format!("unmatched_{word}"), &file).await;
        let to = gateway.listen;
        for method in ["POST", "PUT", "PATCH", "DELETE"] {
            let told = asked(to, &format!("{method} /x"), "").await;
            assert_eq!(told, (keyed.0, keyed.1.to_string()), "{word} {method}");
            let sent = format!(
                "{method} /x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            let answer = raw(to, sent.as_bytes()).await;
            assert_eq!(&answer[9..12], unkeyed.0.to_string(), "{word} {method}");
            assert!(answer.contains(unkeyed.1), "{answer}");
        }
        // What no route can have is a write that a key is believed to protect.
        assert_eq!(asked(to, "PROPPATCH /x", "").await.0, keyed.0, "{word}");
        heard.took();
        for method in ["GET", "HEAD", "OPTIONS"] {
            assert_eq!(asked(to, &format!("{method} /x"), "").await.0, 201, "{word} {method}");
        }
        assert_eq!(asked(to, "POST /off", "").await.0, 201, "{word}: a route matches");
        assert_eq!(heard.took().len(), 4);
        let paid = asked(to, "POST /pay/7", "authorization: Bearer a\r\n").await;
        assert_eq!(paid.0, 201, "{word}");
        let answer = post(to, "/x", Some("k"), "{}").await;
        assert_eq!(mark(&answer), Some("none"), "{word}");
        if word != "pass" {
            assert_eq!(answer.problem(), (keyed.0, keyed.1.into()));
            assert!(answer.header("x-request-id").is_some());
        }
    }
    // Without routes everything is protected, and nothing is without a match.
    let (gateway, _heard) =
        with_file("unmatched_unwritten", "[server]\nunmatched = \"refuse\"\n").await;
    assert_eq!(asked(gateway.listen, "PROPFIND /x", "").await.0, 201);
    assert_eq!(post(gateway.listen, "/x", Some("k"), "{}").await.status, 201);
}

/// The line in which the start says what is protected.
fn told(name: &str, file: Option<&str>) -> String {
    let folder = folder(name);
    if let Some(file) = file {
        std::fs::write(folder.join("onceward.toml"), file).unwrap();
    }
    let flags = ["--upstream=http://127.0.0.1:9", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"];
    let mut serve = command(&folder, &["serve"]);
    let mut child = serve.args(flags).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.into_iter().find(|line| line.contains('·'));
    child.kill().unwrap();
    child.wait().unwrap();
    line.expect("the start says what is protected")
}

#[test]
fn r08_the_start_says_what_was_read_and_what_is_protected() {
    let four = "[[route]]\nmatch = \"POST /a\"\n[[route]]\nmatch = \"POST /b\"\n\
                [[route]]\nmatch = \"POST /c\"\n[[route]]\nmatch = \"POST /d\"\n";
    let line = "config onceward.toml · 4 routes protected, others pass";
    assert_eq!(told("told_four", Some(four)), line);
    let line = "no config file · every POST, PUT, PATCH and DELETE with a key is protected";
    assert_eq!(told("told_none", None), line);
}
