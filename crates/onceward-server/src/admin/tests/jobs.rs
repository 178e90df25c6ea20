//! Jobs over HTTP: made once, taken with a lease, paused for good, and the worker in Python.

use std::process::Stdio;

use http::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{ACME, OPERATOR, Server};

fn job(resource: &str) -> Value {
    json!({
        "tenant": "acme", "queue": "mail", "type": "welcome", "resource": resource,
        "payload": {"to": resource},
    })
}

fn take() -> Value {
    json!({"queue": "mail", "max": 10, "lease_ms": 60_000, "owner": "w1"})
}

async fn taken(server: &Server, body: Value) -> Vec<Value> {
    server.post("/v1/jobs/take", body).await.ok()["jobs"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a18_a_job_is_made_once_and_taken_by_priority() {
    let server = Server::start("jobs").await;
    let made = server.post("/v1/jobs", job("ada")).await;
    assert_eq!(made.status, 201);
    assert_eq!(made.json()["key"], "acme:job:mail:welcome:ada");
    assert_eq!(made.json()["job_key"], "job:acme:mail:welcome:ada");
    let again = server.post("/v1/jobs", job("ada")).await;
    assert_eq!((again.status.as_u16(), &again.json()["made"]), (200, &false.into()));
    let mut other = job("ada");
    other["payload"] = json!("other");
    let problem = server.post("/v1/jobs", other).await.problem(409);
    assert_eq!(problem["code"], "idempotency.payload_mismatch");
    let mut urgent = job("bob");
    urgent["priority"] = 9.into();
    server.post("/v1/jobs", urgent).await.ok();
    let mut later = job("cleo");
    later["run_at"] = server.engine.now().await.unwrap().plus(3_600_000).0.into();
    server.post("/v1/jobs", later).await.ok();
    let jobs = taken(&server, take()).await;
    assert_eq!(
        jobs[0]["job_key"],
        format!("job:acme:mail:welcome:{}", jobs[0]["resource"].as_str().unwrap())
    );
    let who: Vec<&str> = jobs.iter().map(|job| job["resource"].as_str().unwrap()).collect();
    assert_eq!(who, ["bob", "ada"]);
    assert_eq!(jobs[0]["payload"], json!({"to": "bob"}));
    assert_eq!((&jobs[0]["type"], &jobs[0]["attempt"]), (&"welcome".into(), &1.into()));
    assert!(taken(&server, take()).await.is_empty());
    let done = json!({"permit": jobs[0]["permit"], "outcome": "sent"});
    server.post("/v1/permits/complete", done).await.ok();
    let failed = json!({"permit": jobs[1]["permit"], "error": "full", "retry": true,
        "run_at": "2000-01-01T00:00:00Z"});
    assert_eq!(server.post("/v1/permits/fail", failed).await.ok()["state"], "failed");
    let second = taken(&server, take()).await;
    assert_eq!((&second[0]["resource"], &second[0]["attempt"]), (&"ada".into(), &2.into()));
    let without = json!({"tenant": "acme", "queue": "mail", "type": "t", "payload": [1]});
    let one = server.post("/v1/jobs", without.clone()).await.ok();
    assert_eq!(server.post("/v1/jobs", without).await.ok()["key"], one["key"]);
    server.stop().await;
}

#[tokio::test]
async fn a_take_waits_for_a_job() {
    let server = Server::start("take-waits").await;
    let mut waiting = take();
    waiting["wait_ms"] = 30_000.into();
    let makes = async {
        while server.engine.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        server.post("/v1/jobs", job("ada")).await.ok();
    };
    let (jobs, ()) = tokio::join!(taken(&server, waiting), makes);
    assert_eq!(jobs[0]["resource"], "ada");
    server.stop().await;
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_over_a_restart() {
    let server = Server::start("paused").await;
    server.post("/v1/jobs", job("ada")).await.ok();
    let paused = server.post("/v1/queues/mail/pause", json!(null)).await.ok();
    assert_eq!((&paused["paused"], &paused["changed"]), (&true.into(), &true.into()));
    let again = server.post("/v1/queues/mail/pause", json!(null)).await.ok();
    assert_eq!(again["changed"], false);
    assert!(taken(&server, take()).await.is_empty());
    let server = Server::in_folder(server.stop().await).await;
    assert!(taken(&server, take()).await.is_empty());
    let mut other = job("bob");
    other["queue"] = "other".into();
    server.post("/v1/jobs", other).await.ok();
    let mut elsewhere = take();
    elsewhere["queue"] = "other".into();
    assert_eq!(taken(&server, elsewhere).await.len(), 1);
    server.post("/v1/queues/mail/resume", json!(null)).await.ok();
    assert_eq!(taken(&server, take()).await.len(), 1);
    let audit = server.get("/v1/audit?action=queue.paused").await.ok();
    assert_eq!(audit["items"][0]["actor"], "operator");
    server.stop().await;
}

#[tokio::test]
async fn a01_a_tenant_takes_its_own_jobs_only() {
    let server = Server::start("tenant-jobs").await;
    for n in 0..40 {
        let mut theirs = job(&format!("t{n}"));
        theirs["tenant"] = "globex".into();
        theirs["priority"] = 9.into();
        server.post("/v1/jobs", theirs).await.ok();
    }
    server.post("/v1/jobs", job("ada")).await.ok();
    let call = async |path, body: Value| {
        server.call(Some(ACME), Method::POST, path, body.to_string()).await
    };
    let jobs = call("/v1/jobs/take", take()).await.ok();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    assert_eq!(jobs["jobs"][0]["tenant"], "acme");
    let mut theirs = take();
    theirs["tenant"] = "globex".into();
    call("/v1/jobs/take", theirs.clone()).await.problem(403);
    call("/v1/queues/mail/pause", json!(null)).await.problem(403);
    let granted = taken(&server, theirs).await;
    let body = json!({"permit": granted[0]["permit"]});
    call("/v1/permits/release", body.clone()).await.problem(403);
    server.post("/v1/permits/release", body).await.ok();
    server.stop().await;
}

#[tokio::test]
async fn a_job_is_not_run_before_its_time_however_far_that_is() {
    let server = Server::start("far").await;
    server.post("/v1/jobs", job("ada")).await.ok();
    let permit = taken(&server, take()).await[0]["permit"].clone();
    let now = server.engine.now().await.unwrap().0;
    let ten_years = 315_360_000_000;
    for far in [json!(now + ten_years + 60_000), json!(u64::MAX), json!("9999-12-31T23:59:59Z")] {
        let mut later = job("bob");
        later["run_at"] = far.clone();
        let failed = json!({"permit": permit, "error": "full", "retry": true, "run_at": far});
        for (path, body) in [("/v1/jobs", later), ("/v1/permits/fail", failed)] {
            let problem = server.post(path, body).await.problem(400);
            assert_eq!(problem["errors"][0]["pointer"], "/run_at", "{problem}");
            let message = problem["errors"][0]["message"].as_str().unwrap();
            assert!(message.starts_with("must be at most ten years ahead: 20"), "{message}");
        }
    }
    let mut later = job("bob");
    later["run_at"] = json!(now + ten_years);
    let made = server.post("/v1/jobs", later).await.ok();
    let path = format!("/v1/records/{}", made["ref"].as_str().unwrap());
    let due: jiff::Timestamp =
        server.get(&path).await.ok()["due_at"].as_str().unwrap().parse().unwrap();
    let due = u64::try_from(due.as_millisecond()).unwrap();
    assert!(due >= now + ten_years, "{due}");
    server.stop().await;
}

#[tokio::test]
async fn a_bad_queue_is_named_as_one() {
    let server = Server::start("bad-queue").await;
    for word in ["pause", "resume"] {
        let path = format!("/v1/queues/{}/{word}", "q".repeat(513));
        let problem = server.post(&path, json!(null)).await.problem(400);
        assert_eq!(problem["errors"][0]["pointer"], "/queue", "{problem}");
        let message = problem["errors"][0]["message"].as_str().unwrap();
        assert!(message.contains("512"), "{message}");
    }
    server.stop().await;
}

async fn worker(server: &Server, arguments: &[&str]) -> (i32, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/worker.py");
    let run = Command::new("python3")
        .arg(script)
        .args(["--server", &format!("http://{}", server.address)])
        .args(arguments)
        .env("ONCEWARD_TOKEN", OPERATOR)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("python3 must be on the PATH: the example worker is tested with it");
    let said =
        String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    (run.status.code().unwrap_or(-1), said)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_worker_in_python_makes_runs_renews_and_fails_jobs() {
    let server = Server::start("worker").await;
    for (resource, payload) in [
        ("1", r#"{"say": "hello"}"#),
        // Works for longer than the lease: only renewals keep it.
        ("2", r#"{"sleep_s": 2}"#),
        ("3", r#"{"fail": "no such mailbox"}"#),
    ] {
        let arguments = [
            "enqueue",
            "--tenant",
            "acme",
            "--queue",
            "mail",
            "--type",
            "demo",
            "--resource",
            resource,
            "--payload",
            payload,
        ];
        let (code, said) = worker(&server, &arguments).await;
        assert_eq!(code, 0, "{said}");
    }
    let arguments = ["work", "--queue", "mail", "--lease-ms", "600", "--until-empty"];
    let (code, said) = worker(&server, &arguments).await;
    assert_eq!(code, 0, "{said}");
    let records = server.get("/v1/records?tenant=acme&scope=mail").await.ok();
    let states: Vec<(&str, u64)> = records["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| (record["state"].as_str().unwrap(), record["attempt"].as_u64().unwrap()))
        .collect();
    assert_eq!(states, [("done", 1), ("done", 1), ("dead", 1)], "{said}");
    let wrong = ["enqueue", "--tenant", "", "--queue", "q", "--type", "t", "--payload", "1"];
    let (code, said) = worker(&server, &wrong).await;
    assert!(code == 1 && said.contains("/tenant"), "{code} {said}");
    server.stop().await;
}
