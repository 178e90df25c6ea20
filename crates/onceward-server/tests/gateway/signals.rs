//! Signals to real processes: what ends them, and what must not.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use super::client::{post, request, try_send};
use super::target::{Gateway, command, folder, serve, signal};
use super::upstream::App;

/// What log rotation, a terminal that closes, and mistakes send.
const HARMLESS: [&str; 4] = ["HUP", "USR1", "USR2", "ALRM"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l9_signals_that_are_not_meant_to_end_a_gateway_end_nothing() {
    let app = App::new();
    let upstream = serve(app.router()).await;
    let gateway = Gateway::start(&folder("signals"), upstream, &[]);
    let running = tokio::spawn(try_send(gateway.listen, request("/slow", Some("k"), "{}")));
    app.started().await;
    for name in HARMLESS {
        gateway.signal(name);
        assert_eq!(post(gateway.listen, "/payments", Some(name), "{}").await.status, 201);
    }
    app.go_on();
    assert_eq!(running.await.unwrap().unwrap().status, 200, "what ran went on");
    gateway.terminate();
    let (code, said) = gateway.ended();
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains(" WARN ") && lines[0].contains("SIGHUP came"), "{said}");
    assert!(lines[0].contains("restart"), "{said}");
}

/// A process that writes a ready file, once it is there.
fn spawn(name: &str, arguments: &[&str]) -> Child {
    let folder = folder(name);
    let mut command = command(&folder, arguments);
    command.args(["--ready-file", "ready.json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    while !folder.join("ready.json").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended before it was ready");
        std::thread::yield_now();
    }
    child
}

#[test]
fn l9_signals_end_no_other_process_that_serves() {
    let listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let demo = [&["demo", "business", "--no-traffic"], &listen[..]].concat();
    let all: [(&str, &[&str]); 4] = [
        ("signals_demo", &demo),
        ("signals_relay", &["relay"]),
        ("signals_worker", &["worker"]),
        ("signals_project", &["project"]),
    ];
    for (name, arguments) in all {
        let mut child = spawn(name, arguments);
        HARMLESS.iter().for_each(|name| signal(&child, name));
        // It says that one came, and lives: only then is the next signal its end.
        let mut said = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        while !said.contains("SIGHUP came") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{name} ended: {said}");
        }
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}: {said}");
        let mut rest = Vec::new();
        lines.read_to_end(&mut rest).unwrap();
    }
}
