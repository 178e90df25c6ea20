//! A process that may open few files: clients that hold connections and send nothing take none of
//! those that health and the control API need.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::client::{post, send};
use super::read_only::get;
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

/// Most files that the process may have open.
const FILES: u32 = 128;
/// Clients that connect and say nothing.
const IDLE: usize = 200;
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
