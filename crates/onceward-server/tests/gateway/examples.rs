//! Services in other languages behind the gateway, and the README's transcript.
//!
//! An interpreter that is missing fails the test: it is part of what is promised.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use http::Request;
use http_body_util::Empty;

use super::client::{post, request, send};
use super::target::{Gateway, folder};

const README: &str = include_str!("../../../../README.md");

/// A service from `examples/upstreams`, stopped when it is dropped.
struct Example {
    child: Child,
    url: String,
}

impl Example {
    fn start(interpreter: &str, file: &str, port: &str) -> Self {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/upstreams").join(file);
        let spawned = Command::new(interpreter).arg(path).arg(port).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| {
            panic!("this test runs examples/upstreams/{file} and needs {interpreter}: {error}")
        });
        let mut url = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
        assert!(url.starts_with("http://"), "{interpreter} {file} said {url:?}");
        Self { child, url: url.trim().to_string() }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn pays_once(interpreter: &str, file: &str) {
    let example = Example::start(interpreter, file, "0");
    let gateway = Gateway::start_at(&folder(file), &example.url, &[]);
    let body = r#"{"amount":5}"#;
    let all: Vec<_> = (0..20)
        .map(|_| tokio::spawn(send(gateway.listen, request("/payments", Some("k"), body))))
        .collect();
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!((answer.status, &answer.json()["id"]), (201, &1.into()), "{answer:?}");
        assert_eq!(answer.header("location"), Some("/payments/1"));
    }
    let other = post(gateway.listen, "/payments", Some("k"), r#"{"amount":6}"#).await;
    assert_eq!(other.problem(), (422, "idempotency.payload_mismatch".into()));
    let bad = post(gateway.listen, "/payments", Some("l"), "{}").await;
    assert_eq!(bad.status, 422, "the service's own");
    assert!(post(gateway.listen, "/payments", Some("l"), "{}").await.is_replay());
    let list = Request::get("/payments").header("host", "x").body(Empty::new()).unwrap();
    let list = send::<Empty<bytes::Bytes>>(gateway.listen, list).await.json();
    assert_eq!(list, serde_json::json!({ "payments": [{ "id": 1, "amount": 5 }] }));
    // The service dies: nothing is sent, and what was answered is still answered.
    drop(example);
    let failed = post(gateway.listen, "/payments", Some("m"), body).await;
    assert_eq!(failed.problem(), (502, "upstream.failed".into()));
    assert!(post(gateway.listen, "/payments", Some("k"), body).await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_python_service_pays_once() {
    pays_once("python3", "server.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_service_pays_once() {
    pays_once("node", "server.js").await;
}

/// The README's transcript is what `curl` prints, line by line; ports differ, the words do not.
#[test]
fn the_readme_s_transcript_is_what_curl_prints() {
    let marker = "<!-- gateway:begin (checked by tests/gateway) -->\n```console\n";
    let start = README.find(marker).expect("the README has the transcript") + marker.len();
    let transcript = &README[start..start + README[start..].find("```").unwrap()];
    let example = Example::start("python3", "server.py", "0");
    let gateway = Gateway::start_at(&folder("readme"), &example.url, &[]);
    let listen = gateway.listen.to_string();
    // What prints nothing is remembered for the lines that follow.
    let mut definitions = String::new();
    let mut lines = transcript.lines().peekable();
    let mut ran = 0;
    while let Some(line) = lines.next() {
        let Some(command) = line.strip_prefix("$ ") else { panic!("not a command: {line}") };
        let mut shown = String::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
            shown.push_str(line);
            shown.push('\n');
        }
        // The two that go on running are running already, on ports of the test's own.
        if command.ends_with('&') {
            assert!(
                command.contains("server.py 8080") || command.contains("onceward"),
                "{command}"
            );
            continue;
        }
        let command = command.replace("127.0.0.1:7600", &listen);
        if shown.is_empty() {
            definitions.push_str(&command);
            definitions.push('\n');
            continue;
        }
        let script = format!("{definitions}{command}");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.trim_end(), shown.trim_end(), "$ {command}");
        ran += 1;
    }
    assert!(ran >= 4, "the transcript has {ran} requests");
}
