//! The audit of a running gateway: notes about replays, seals, and what a tampered file shows.

use std::path::Path;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use rusqlite::Connection;
use serde_json::Value;

use super::client::{PATIENCE, post, send};
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

async fn get(gateway: &Gateway, path: &str) -> super::client::Answer {
    let request = Request::get(path)
        .header("host", "x")
        .header("authorization", "Bearer operator-of-the-tests")
        .body(Empty::<Bytes>::new())
        .unwrap();
    send(gateway.admin, request).await
}

/// Asks until the answer is as wanted.
async fn until(gateway: &Gateway, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let asking = async {
        loop {
            let answer = get(gateway, path).await.json();
            if wanted(&answer) {
                return answer;
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{path} in time"))
}

fn ran(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = command(folder, arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn items(page: &Value) -> &Vec<Value> {
    page["items"].as_array().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a26_replays_through_the_gateway_are_in_the_audit_and_outlive_a_kill() {
    let folder = folder("audit_replays");
    let app = App::new();
    let upstream = serve(app.router()).await;
    let gateway = Gateway::start(&folder, upstream, &[]);
    for body in ["{}", "{}", "{}", "[1]"] {
        post(gateway.listen, "/payments", Some("k"), body).await;
    }
    assert_eq!(app.ran(), 1);
    let replays = "/v1/audit?action=audit.replay";
    let page = until(&gateway, replays, |page| items(page).len() == 2).await;
    let done = get(&gateway, "/v1/audit?action=request.done").await.json();
    let first = &items(&done)[0];
    for replay in items(&page) {
        assert_eq!(replay["key_hash"], first["key_hash"]);
        let detail: Value = serde_json::from_str(replay["detail"].as_str().unwrap()).unwrap();
        assert_eq!(detail["original"], first["id"]);
        assert_eq!(detail["request_id"], first["request_id"]);
        assert_ne!(replay["request_id"], first["request_id"]);
    }
    let conflicts = "/v1/audit?action=idempotency_conflict";
    until(&gateway, conflicts, |page| items(page).len() == 1).await;
    let metrics = get(&gateway, "/metrics").await.body;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    assert!(metrics.contains("onceward_audit_notes_total 3"), "{metrics}");
    assert!(metrics.contains(r#"onceward_audit_notes_lost_total{why="overflow"} 0"#), "{metrics}");
    // What is in the audit is durable.
    gateway.kill();
    let again = Gateway::start(&folder, upstream, &[]);
    assert_eq!(items(&get(&again, replays).await.json()).len(), 2);
    again.terminate();
    assert_eq!(again.ended(), (Some(0), String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abuse_an_edited_audit_is_found_by_the_command_and_by_the_server() {
    let folder = folder("audit_edited");
    let app = App::new();
    let upstream = serve(app.router()).await;
    let gateway = Gateway::start(&folder, upstream, &[]);
    for key in 0..5 {
        post(gateway.listen, "/payments", Some(&format!("k{key}")), "{}").await;
    }
    let verify = "/v1/audit/verify";
    // Sealed within seconds, by itself.
    let sealed = |answer: &Value| answer["sealed"] == 5 && answer["unsealed"] == 0;
    assert_eq!(until(&gateway, verify, sealed).await["ok"], true);
    // Directly, beside the running server.
    let (code, said, error) = ran(&folder, &["audit", "verify"]);
    assert_eq!((code, error.as_str()), (0, ""), "{said}");
    assert!(said.contains("5 sealed entries of 1 tenants, 0 not sealed yet"), "{said}");
    gateway.terminate();
    assert_eq!(gateway.ended(), (Some(0), String::new()));
    let file = Connection::open(folder.join("onceward.db")).unwrap();
    file.execute_batch("UPDATE audit SET actor = 'someone else' WHERE id = 3").unwrap();
    drop(file);
    let (code, said, error) = ran(&folder, &["audit", "verify", "--json"]);
    assert_eq!(code, 1, "{said}{error}");
    let answer: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&answer["ok"], &answer["sealed"]), (&false.into(), &2.into()), "{answer}");
    let first = &answer["first_bad"];
    assert_eq!((&first["entry"], &first["wrong"]), (&3.into(), &"changed".into()), "{answer}");
    assert!(error.contains("audit.unsound") && error.contains("entry 3"), "{error}");
    let gateway = Gateway::start(&folder, upstream, &[]);
    assert_eq!(get(&gateway, verify).await.json()["first_bad"]["entry"], 3);
    let (server, token) = (format!("http://{}", gateway.admin), "operator-of-the-tests");
    let remote = ["audit", "verify", "--server", &server, "--token", token];
    let (code, said, error) = ran(&folder, &remote);
    assert_eq!(code, 1, "{said}");
    assert!(error.contains("entry 3 of"), "{error}");
    let remote = ["audit", "export", "--format", "csv", "--server", &server, "--token", token];
    let (code, through, _) = ran(&folder, &remote);
    let (_, direct, _) = ran(&folder, &["audit", "export", "--format", "csv"]);
    assert_eq!((code, &through), (0, &direct), "the same through a server");
    assert_eq!(through.lines().count(), 6);
}
