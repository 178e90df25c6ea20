//! A disk that is full: what can't be recorded is not executed, health says so, and when there is
//! room again all goes on by itself.

use std::process::Command;

use bytes::Bytes;
use http::Request;
use http_body_util::Empty;

use super::client::{Answer, post, send};
use super::target::{Gateway, Setup, command, folder, serve};
use super::upstream::App;

/// The largest file that the gateway may write, in blocks of 512 bytes: a few dozen requests.
const FILE_BLOCKS: u32 = 8_192;
/// More requests than fit.
const REQUESTS: usize = 200;

async fn get(gateway: &Gateway, path: &str) -> Answer {
    send(gateway.admin, Request::get(path).body(Empty::<Bytes>::new()).unwrap()).await
}

/// `onceward serve` under a limit on the size of files, which makes writes fail as a full disk
/// does, without any privilege.
fn start(folder: &std::path::Path, upstream: std::net::SocketAddr) -> Gateway {
    let script = format!("ulimit -S -f {FILE_BLOCKS} && exec \"$0\" \"$@\"");
    let plain = command(folder, &[]);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(plain.get_program()).current_dir(folder);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["serve", "--upstream", &format!("http://{upstream}")]);
    shell.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    shell.args(Setup { lease_ms: 1_000, ..Setup::default() }.flags());
    Gateway::spawn(folder, shell)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i20_a_full_disk_executes_nothing_unrecorded_and_health_tells() {
    let (folder, app) = (folder("full_disk"), App::new());
    let gateway = start(&folder, serve(app.router()).await);
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    for number in 0..REQUESTS {
        let key = format!("k{number}");
        let answer = post(gateway.listen, "/payments", Some(&key), "{}").await;
        if answer.status == 201 {
            kept.push((key, answer.body));
            continue;
        }
        assert_eq!(answer.problem(), (503, "store.unavailable".into()));
        assert_eq!(answer.json()["key_advice"], "reuse");
        refused.push(key);
        if refused.len() == 5 {
            break;
        }
    }
    assert_eq!((kept.is_empty(), refused.len()), (false, 5), "it became full on the way");
    // The first one may have been sent before its completion failed; the others were not.
    assert!(app.ran() <= kept.len() + 1, "{} ran, {} recorded", app.ran(), kept.len());
    let (health, ready) = (get(&gateway, "/healthz").await, get(&gateway, "/readyz").await);
    // What is done is replayed, and what is new refused as it should be: it takes requests.
    assert_eq!((health.status, ready.status), (200, 200));
    for said in [health.json(), ready.json()] {
        assert_eq!((&said["status"], &said["store_status"]), (&"degraded".into(), &"down".into()));
        assert!(said["store_error"].as_str().unwrap().contains("can't be written"), "{said}");
    }

    let pid = gateway.child.id().to_string();
    let room = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:"]).status();
    assert!(room.unwrap().success());
    let health = get(&gateway, "/healthz").await;
    assert_eq!((health.status, &health.json()["status"]), (200, &"ok".into()));
    for (key, body) in &kept {
        let again = post(gateway.listen, "/payments", Some(key), "{}").await;
        assert_eq!((again.status, again.is_replay(), &again.body), (201, true, body));
    }
    for key in &refused {
        let mut answer = post(gateway.listen, "/payments", Some(key), "{}").await;
        while answer.status == 409 {
            // The one whose completion failed is held until its lease ends.
            assert_eq!(answer.problem().1, "idempotency.in_flight");
            answer = post(gateway.listen, "/payments", Some(key), "{}").await;
        }
        assert_eq!(answer.status, 201);
    }
}
