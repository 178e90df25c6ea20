//! A worker in a process of its own, frozen with a real SIGSTOP until its lease has run out and
//! then continued: its completion and its renewal are refused, and the audit says so.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use http::Request;
use http_body_util::{Empty, Full};
use serde_json::{Value, json};

use super::client::{Answer, send};
use super::target::{Gateway, folder, serve};
use super::upstream::App;

/// Takes a job, waits for a line, then renews and completes it. Says what came of each.
const WORKER: &str = r#"
import json, sys, urllib.error, urllib.request

def post(path, body):
    headers = {"Authorization": "Bearer operator-of-the-tests"}
    data = json.dumps(body).encode()
    request = urllib.request.Request(sys.argv[1] + path, data=data, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

take = {"queue": "mail", "max": 1, "lease_ms": 500, "owner": "sleeper", "wait_ms": 60000}
job = post("/v1/jobs/take", take)[1]["jobs"][0]
print(job["fence"], flush=True)
sys.stdin.readline()
status, body = post("/v1/permits/renew", {"permit": job["permit"], "lease_ms": 500})
print(status, body.get("code"), flush=True)
status, body = post("/v1/permits/complete", {"permit": job["permit"], "outcome": "late"})
print(status, body.get("code"), flush=True)
"#;

struct Worker(Child);

impl Worker {
    fn start(admin: SocketAddr) -> Self {
        let spawned = Command::new("python3")
            .args(["-c", WORKER, &format!("http://{admin}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(spawned.expect("this test needs python3"))
    }

    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn post(to: SocketAddr, path: &str, body: &Value) -> Answer {
    let request = Request::post(path)
        .header("host", "admin")
        .header("authorization", "Bearer operator-of-the-tests")
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    send(to, request).await
}

async fn get(to: SocketAddr, path: &str) -> Value {
    let request = Request::get(path)
        .header("host", "admin")
        .header("authorization", "Bearer operator-of-the-tests")
        .body(Empty::<Bytes>::new())
        .unwrap();
    send(to, request).await.json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a23_i05_a_frozen_worker_that_is_continued_is_refused() {
    let upstream = serve(App::new().router()).await;
    let gateway = Gateway::start(&folder("frozen"), upstream, &[]);
    let admin = gateway.admin;
    let mut worker = Worker::start(admin);
    let mut says = BufReader::new(worker.0.stdout.take().unwrap()).lines();
    let job = json!({ "tenant": "acme", "queue": "mail", "type": "send", "resource": "user/7@1",
                      "payload": {} });
    assert_eq!(post(admin, "/v1/jobs", &job).await.status, 201);
    let first: u64 = says.next().unwrap().unwrap().parse().unwrap();
    worker.signal("-STOP");
    // The lease runs out while the worker stands still; the job is visible again.
    let take = json!({ "queue": "mail", "max": 1, "lease_ms": 60_000, "owner": "second",
                       "wait_ms": 60_000 });
    let taken = post(admin, "/v1/jobs/take", &take).await.json();
    let job = &taken["jobs"][0];
    assert_eq!(job["attempt"], 2, "{taken}");
    let second = job["fence"].as_u64().unwrap();
    assert!(second > first, "the fence rises: {first}, {second}");
    worker.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    worker.signal("-CONT");
    assert_eq!(says.next().unwrap().unwrap(), "409 permit.lost", "renew");
    assert_eq!(says.next().unwrap().unwrap(), "409 permit.lost", "complete");
    let permit = job["permit"].clone();
    let outcome = json!({ "permit": permit, "outcome": "sent" });
    assert_eq!(post(admin, "/v1/permits/complete", &outcome).await.status, 200);
    let reference = job["ref"].as_str().unwrap();
    let record = get(admin, &format!("/v1/records/{reference}")).await;
    assert_eq!((&record["state"], &record["fence"]), (&"done".into(), &second.into()));
    let audit = get(admin, "/v1/audit?tenant=acme&action=job.refused").await;
    let refused = audit["items"].as_array().unwrap();
    assert_eq!(refused.len(), 2, "both are recorded: {audit}");
    assert!(refused.iter().all(|entry| entry["fence"] == first), "{audit}");
}
