//! What a person decides about a request is what its caller gets: resolved while the gateway runs,
//! answered by it from then on.

use serde_json::Value;

use super::client::post;
use super::target::{Gateway, Setup, command, folder, serve};
use super::upstream::App;

/// A gateway that holds what it does not know, and a key whose outcome is unknown.
async fn unknown(name: &str) -> (Gateway, std::path::PathBuf, std::sync::Arc<App>, String) {
    let (folder, app) = (folder(name), App::new());
    let upstream = serve(app.router()).await;
    let setup = Setup { hold: true, ..Setup::default() };
    let gateway = Gateway::start(&folder, upstream, &setup.flags());
    let failed = post(gateway.listen, "/half", Some("k"), "{}").await;
    assert_eq!(failed.problem(), (502, "upstream.failed".into()));
    let listed = command(&folder, &["keys", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["items"][0]["state"], "unknown", "{listed}");
    let key = listed["items"][0]["key"].as_str().unwrap().to_string();
    (gateway, folder, app, key)
}

fn resolve(folder: &std::path::Path, key: &str, further: &[&str]) {
    let mut resolve = command(folder, &["keys", "resolve", key, "--as", "done"]);
    let resolved = resolve.args(further).output().unwrap();
    assert!(resolved.status.success(), "{}", String::from_utf8_lossy(&resolved.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ruling_6_resolved_as_done_with_an_outcome_it_is_the_answer() {
    let (gateway, folder, app, key) = unknown("resolved").await;
    resolve(&folder, &key, &["--outcome", r#"{"paid":true}"#]);
    for _ in 0..2 {
        let answer = post(gateway.listen, "/half", Some("k"), "{}").await;
        assert_eq!((answer.status, answer.is_replay()), (200, true), "{answer:?}");
        assert_eq!(answer.body.as_ref(), br#"{"paid":true}"#);
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ruling_6_resolved_as_done_without_an_outcome_it_never_runs_again() {
    let (gateway, folder, app, key) = unknown("resolved_bare").await;
    resolve(&folder, &key, &[]);
    let answer = post(gateway.listen, "/half", Some("k"), "{}").await;
    assert_eq!(answer.problem(), (409, "idempotency.response_not_stored".into()));
    assert_eq!(app.ran(), 1);
}
