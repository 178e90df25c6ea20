//! The command line on a store that a running server holds: it goes through the server.

use clap::Parser;
use onceward::store::sqlite::{Announced, SqliteStore};
use serde_json::{Value, json};

use super::{OPERATOR, Server};
use crate::cli::Cli;
use crate::commands;
use crate::failure::Failure;
use crate::output::Out;

async fn run(store: &str, arguments: &[&str]) -> Result<(), Failure> {
    let all = [&["onceward", "--json", "--store", store][..], arguments].concat();
    let cli = Cli::try_parse_from(all).unwrap();
    commands::run(&cli.command, &cli.common, &Out::new(&cli.common)).await
}

async fn dead(server: &Server, id: &str) -> String {
    let body = json!({"tenant": "acme", "scope": "pay", "id": id, "payload": 1,
        "lease_ms": 60_000, "owner": "w"});
    let granted = server.post("/v1/claims", body).await.ok();
    let body = json!({"permit": granted["permit"], "error": "poison", "retry": false});
    server.post("/v1/permits/fail", body).await.ok();
    format!("acme:request:pay:{id}")
}

async fn state(server: &Server, key: &str) -> Value {
    let reply = server.get(&format!("/v1/records/{key}")).await;
    if reply.status == 404 { Value::Null } else { reply.ok()["state"].clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_go_through_the_server_that_holds_the_store() {
    let server = Server::start("discovery").await;
    let file = server.folder.join("onceward.db");
    let store = format!("sqlite:{}", file.display());
    let (one, two) = (dead(&server, "one").await, dead(&server, "two").await);
    // A server that does not say where it is can't be gone through.
    let failure = run(&store, &["sweep"]).await.unwrap_err();
    assert_eq!(failure.code, "store.open");
    assert!(failure.message.contains(&format!("process {}", std::process::id())));
    let announced =
        Announced { server: format!("http://{}", server.address), token: OPERATOR.into() };
    SqliteStore::announce(&file, &announced).unwrap();
    let failed = run(&store, &["migrate"]).await.unwrap_err();
    assert!(!failed.message.contains(OPERATOR), "{}", failed.message);
    let resolve = ["keys", "resolve", &one, "--as", "done", "--outcome", r#"{"a":1}"#];
    run(&store, &[&resolve[..], &["--actor", "ada"]].concat()).await.unwrap();
    assert_eq!(state(&server, &one).await, "done");
    let audit = server.get("/v1/audit?action=request.done").await.ok();
    assert_eq!(audit["items"][0]["actor"], "ada");
    run(&store, &["keys", "erase", &two, "--yes"]).await.unwrap();
    assert_eq!(state(&server, &two).await, Value::Null);
    run(&store, &["sweep"]).await.unwrap();
    let again = run(&store, &["keys", "resolve", &two, "--as", "rerun"]).await.unwrap_err();
    assert_eq!(again.code, "key.absent");
    // Reads work directly.
    run(&store, &["keys", "show", &one]).await.unwrap();
    let folder = server.stop().await;
    // The announcement is of a run that has ended: nobody listens to it.
    assert_eq!(SqliteStore::announced(folder.join("onceward.db")), None);
    run(&store, &["keys", "erase", &one, "--yes"]).await.unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn the_lock_file_is_readable_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start("lock-mode").await;
    let lock = server.folder.join("onceward.db.lock");
    let mode = || std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(&lock, PermissionsExt::from_mode(0o644)).unwrap();
    let announced = Announced { server: "http://h".into(), token: "t".into() };
    SqliteStore::announce(server.folder.join("onceward.db"), &announced).unwrap();
    assert_eq!(mode(), 0o600);
    assert_eq!(SqliteStore::announced(server.folder.join("onceward.db")), Some(announced));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_named_is_asked_for_everything() {
    let server = Server::start("named").await;
    let key = dead(&server, "one").await;
    let address = format!("http://{}", server.address);
    let ask = async |arguments: &[&str], token: &str| {
        let named = ["--server", &address, "--token", token];
        run("sqlite:/nowhere/at/all.db", &[&named[..], arguments].concat()).await
    };
    for arguments in [
        &["keys", "list", "--state", "dead", "--scope", "pay"][..],
        &["keys", "show", &key],
        &["audit", "list", "--from", "1h", "--key", &key],
        &["keys", "resolve", &key, "--as", "rerun"],
        &["sweep"],
    ] {
        ask(arguments, OPERATOR).await.unwrap();
    }
    assert_eq!(state(&server, &key).await, "failed");
    assert_eq!(ask(&["sweep"], "wrong").await.unwrap_err().code, "auth.required");
    let bad = ask(&["keys", "list", "--after", "nonsense"], OPERATOR).await.unwrap_err();
    assert!(bad.message.contains("/after"), "{}", bad.message);
    let nowhere =
        run("memory:", &["--server", "http://127.0.0.1:1", "--token", "t", "sweep"]).await;
    assert_eq!(nowhere.unwrap_err().code, "server.unreachable");
    let wrong = run("memory:", &["--server", "ftp://x", "--token", "t", "sweep"]).await;
    assert_eq!(wrong.unwrap_err().code, "server.url");
    server.stop().await;
}
