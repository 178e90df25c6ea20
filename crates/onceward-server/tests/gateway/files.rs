//! The files of the embedded store, as its operator meets them: what a stop leaves, what a start
//! refuses, what health tells.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use http::Request;
use http_body_util::Empty;
use serde_json::Value;

use super::client::{post, request, send};
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

/// What a start that is refused says, with its exit code.
fn refused(folder: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut arguments = vec!["serve", "--upstream", "http://127.0.0.1:1"];
    arguments.extend(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    arguments.extend(flags);
    let ended = command(folder, &arguments).stdout(Stdio::null()).output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

async fn health(gateway: &Gateway) -> Value {
    let asked = Request::get("/healthz").header("host", "x");
    send(gateway.admin, asked.body(Empty::<bytes::Bytes>::new()).unwrap()).await.json()
}

fn stop(gateway: Gateway) -> String {
    gateway.terminate();
    let (code, said) = gateway.ended();
    assert_eq!(code, Some(0), "{said}");
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h2_a_copy_of_the_one_file_after_a_stop_replays_and_an_older_one_is_refused() {
    let (folder_a, folder_b) = (folder("files-a"), folder("files-b"));
    let app = App::new();
    let upstream = serve(app.router()).await;
    let keys = |range: std::ops::Range<u32>| range.map(|n| format!("key-{n}"));
    let gateway = Gateway::start(&folder_a, upstream, &[]);
    for key in keys(0..20) {
        assert_eq!(post(gateway.listen, "/payments", Some(&key), "{}").await.status, 201);
    }
    stop(gateway);
    let database = folder_a.join("onceward.db");
    assert!(!folder_a.join("onceward.db-wal").exists());
    std::fs::copy(&database, folder_b.join("onceward.db")).unwrap();
    let copied = Gateway::start(&folder_b, upstream, &[]);
    for key in keys(0..20) {
        assert!(post(copied.listen, "/payments", Some(&key), "{}").await.is_replay(), "{key}");
    }
    stop(copied);
    // The original goes on, and then the copy is put in its place.
    let gateway = Gateway::start(&folder_a, upstream, &[]);
    assert_eq!(post(gateway.listen, "/payments", Some("later"), "{}").await.status, 201);
    stop(gateway);
    std::fs::copy(folder_b.join("onceward.db"), &database).unwrap();
    let (code, said) = refused(&folder_a, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("older than its note") && said.contains("--accept-older"), "{said}");
    let gateway = Gateway::start(&folder_a, upstream, &["--accept-older".into()]);
    let told = health(&gateway).await["warnings"].to_string();
    assert!(told.contains("opened all the same"), "{told}");
    assert!(post(gateway.listen, "/payments", Some("key-1"), "{}").await.is_replay());
    assert!(stop(gateway).contains("opened all the same"));
    stop(Gateway::start(&folder_a, upstream, &[]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m2_a_database_that_is_deleted_under_the_server_is_told_and_takes_nothing_more() {
    let (folder, app) = (folder("files-deleted"), App::new());
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    assert_eq!(post(gateway.listen, "/payments", Some("before"), "{}").await.status, 201);
    std::fs::remove_file(folder.join("onceward.db")).unwrap();
    let begun = Instant::now();
    let health = loop {
        let health = health(&gateway).await;
        if health["status"] == "degraded" {
            break health;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{health}");
        // sleeps because the server tells nobody
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(health["warnings"].to_string().contains("deleted or replaced"), "{health}");
    let refused = post(gateway.listen, "/payments", Some("after"), "{}").await;
    assert_eq!(refused.problem(), (503, "store.unavailable".into()));
    assert!(post(gateway.listen, "/payments", Some("before"), "{}").await.is_replay());
    assert_eq!(app.ran(), 1);
    gateway.terminate();
    let (_, said) = gateway.ended();
    assert!(said.contains("ERROR") && said.contains("deleted or replaced"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_database_is_an_error_where_none_is_to_be_made() {
    let folder = folder("files-never");
    let (code, said) = refused(&folder, &["--create=never"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("there is no database at onceward.db"), "{said}");
    assert!(!folder.join("onceward.db").exists());
    assert_eq!(refused(&folder, &["--create=perhaps"]).0, Some(2));
    let upstream = serve(App::new().router()).await;
    stop(Gateway::start(&folder, upstream, &[]));
    stop(Gateway::start(&folder, upstream, &["--create=never".into()]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m6_what_an_operator_erases_is_in_no_file_when_that_is_answered() {
    const MARKER: &str = "ada.lovelace@example.org";
    let (folder, app) = (folder("files-erased"), App::new());
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    let mut personal = request("/echo", Some("k"), "{}");
    personal.headers_mut().insert("x-person", http::HeaderValue::from_static(MARKER));
    assert_eq!(send(gateway.listen, personal).await.status, 200);
    let marked = || {
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let has = |path: &std::path::PathBuf| {
            let bytes = std::fs::read(path).unwrap_or_default();
            bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes())
        };
        files.filter(has).collect::<Vec<_>>()
    };
    assert!(!marked().is_empty(), "the answer is stored");
    let authorized = |request: http::request::Builder| {
        let request =
            request.header("host", "x").header("authorization", "Bearer operator-of-the-tests");
        request.body(Empty::<bytes::Bytes>::new()).unwrap()
    };
    let records = send(gateway.admin, authorized(Request::get("/v1/records"))).await.json();
    let reference = records["items"][0]["ref"].as_str().unwrap().to_string();
    let path = format!("/v1/records/{reference}");
    assert_eq!(send(gateway.admin, authorized(Request::delete(path))).await.status, 200);
    assert!(marked().is_empty(), "{:?}", marked());
    stop(gateway);
    assert!(marked().is_empty(), "{:?}", marked());
}
