//! A process that may open few files: clients that hold connections and send nothing, or send many
//! requests over one, take none of those that health and the control API need.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{Empty, Full};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::client::{post, send};
use super::read_only::get;
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;
use super::ways::h2;

/// Most files that the process may have open.
const FILES: u32 = 128;
/// Clients that connect and say nothing.
const IDLE: usize = 200;
/// Requests at once over one connection.
const STREAMS: usize = 120;
/// They are cut after half a minute: whoever is answered only then was locked out.
const WITHIN: Duration = Duration::from_secs(15);

fn start(folder: &std::path::Path, upstream: SocketAddr) -> Gateway {
    let plain = command(folder, &[]);
    let mut shell = Command::new("sh");
    let script = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
    shell.arg("-c").arg(script).arg(plain.get_program()).current_dir(folder);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["serve", "--upstream", &format!("http://{upstream}")]);
    shell.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    Gateway::spawn(folder, shell)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_idle_clients_leave_files_for_health_and_the_control_api() {
    let (folder, app) = (folder("few_files"), App::new());
    let gateway = start(&folder, serve(app.router()).await);
    assert_eq!(post(gateway.listen, "/payments", Some("k"), "{}").await.status, 201);
    let mut places = JoinSet::new();
    for _ in 0..IDLE {
        // Some only come as far as the listener's queue, or not even there.
        let address = gateway.listen;
        places.spawn(async move {
            let _held = TcpStream::connect(address).await;
            std::future::pending::<()>().await;
        });
    }
    let asked = async {
        for _ in 0..20 {
            assert_eq!(get(gateway.admin, "/healthz").await.json()["status"], "ok");
            assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
            let records = Request::get("/v1/records")
                .header("authorization", "Bearer operator-of-the-tests")
                .body(Empty::<Bytes>::new());
            assert_eq!(send(gateway.admin, records.unwrap()).await.status, 200);
        }
    };
    tokio::time::timeout(WITHIN, asked).await.expect("health answers beside idle clients");
    let health = get(gateway.admin, "/healthz").await.json();
    assert!(health["warnings"].to_string().contains("ulimit -n"), "{health}");
    // When they go, all goes on.
    assert_eq!(places.len(), IDLE, "they held on");
    places.shutdown().await;
    assert!(post(gateway.listen, "/payments", Some("k"), "{}").await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_many_requests_over_one_connection_leave_files_too() {
    let (go, held) = tokio::sync::watch::channel(false);
    let ran = Arc::new(AtomicUsize::new(0));
    let counts = ran.clone();
    let slow = axum::Router::new().fallback(move || {
        let mut held = held.clone();
        counts.fetch_add(1, Ordering::SeqCst);
        async move { held.wait_for(|go| *go).await.map(|_| "done").unwrap_or("gone") }
    });
    let gateway = start(&folder("many_streams"), serve(slow).await);
    let client = h2(gateway.listen).await;
    let asked = || Request::get("http://api.example/slow").body(Full::<Bytes>::default()).unwrap();
    let mut streams = JoinSet::new();
    for _ in 0..STREAMS {
        let (mut client, asked) = (client.clone(), asked());
        streams.spawn(async move { client.send_request(asked).await.unwrap().status().as_u16() });
    }
    // All answer but those that the upstream holds: they found no place in time.
    let mut unsent = 0;
    let hears = async {
        while streams.len() > ran.load(Ordering::SeqCst) {
            assert_eq!(streams.join_next().await.unwrap().unwrap(), 502);
            unsent += 1;
        }
    };
    tokio::time::timeout(WITHIN, hears).await.expect("nobody waits for a place for ever");
    let sent = ran.load(Ordering::SeqCst);
    assert!(unsent > 0 && (1..FILES as usize / 2).contains(&sent), "{sent} of {FILES} files");
    assert_eq!(get(gateway.admin, "/healthz").await.json()["status"], "ok");
    assert_eq!(get(gateway.admin, "/readyz").await.status, 200);
    go.send_replace(true);
    while let Some(status) = streams.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    // Their connections are idle now, and serve whoever comes.
    assert_eq!(h2(gateway.listen).await.send_request(asked()).await.unwrap().status(), 200);
    assert_eq!(ran.load(Ordering::SeqCst), sent + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l4_idle_connections_give_way_to_who_waits_for_one() {
    let slow = || async {
        // sleeps because requests are to be at once
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let (first, second) = (axum::Router::new().fallback(slow), axum::Router::new().fallback(slow));
    let folder = folder("idle_gives_way");
    let route = format!(
        "[[route]]\nmatch = \"POST /second\"\nmissing_key = \"allow\"\nupstream = \"http://{}\"\n",
        serve(second).await
    );
    // Idle connections stay longer than anybody waits.
    let file = format!("[server]\nupstream_idle_timeout = \"1m\"\n{route}");
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let gateway = start(&folder, serve(first).await);
    let client = h2(gateway.listen).await;
    for path in ["/first", "/second", "/first"] {
        let mut streams = JoinSet::new();
        for _ in 0..STREAMS {
            let url = format!("http://api.example{path}");
            let asked = Request::post(url).body(Full::<Bytes>::default()).unwrap();
            let mut client = client.clone();
            streams.spawn(async move { client.send_request(asked).await.unwrap().status() });
        }
        while let Some(status) = streams.join_next().await {
            assert_eq!(status.unwrap(), 200, "{path}");
        }
    }
}
