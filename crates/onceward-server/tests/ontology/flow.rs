//! `onceward relay`, `worker` and `project`: looked at beside a running service, and as processes
//! of their own.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::world::{Service, command, create, delete, is_shared, update};

/// Runs a command on the service's store; what it said, and how it ended.
pub(crate) fn run(service: &Service, arguments: &[&str]) -> (Value, Option<i32>) {
    let mut command = command(&service.folder, arguments);
    let output = command.args(["--json", "--store", service.store_url()]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = serde_json::from_str(&text).unwrap_or(Value::Null);
    (said, output.status.code())
}

pub(crate) fn view<'a>(status: &'a Value, name: &str) -> &'a Value {
    let items = status["items"].as_array().unwrap();
    items.iter().find(|item| item["view"] == name).unwrap()
}

async fn history(service: &Service) {
    for (id, n) in [("a", 1), ("b", 2), ("c", 3)] {
        let payload = json!({ "name": format!("boat {n}") });
        service.tell(&create(id, &format!("{id}1"), &payload)).await.must_be(201);
    }
    service.tell(&update("a", "a2", 1, &json!({ "name": "ship" }))).await.must_be(201);
    service.tell(&delete("b", "b2", 1)).await.must_be(201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_status_and_verify_beside_a_running_service_and_a_rebuild_after_it() {
    let mut service = Service::start("flow");
    history(&service).await;
    service.instance_at("a", 2).await;
    let caught_up = async || {
        let (status, code) = run(&service, &["project", "status"]);
        assert_eq!(code, Some(0));
        ["instances", "classes", "search"].iter().all(|name| {
            view(&status, name)["lag_events"] == 0 && view(&status, name)["events"] == 5
        })
    };
    super::world::eventually("all views", caught_up).await;
    let (relay, code) = run(&service, &["relay", "status"]);
    assert_eq!((code, &relay["lag_events"], &relay["held_by"]), (Some(0), &json!(0), &Value::Null));
    let (verified, code) = run(&service, &["project", "verify", "search"]);
    assert_eq!((code, &verified["different"]), (Some(0), &json!(0)), "{verified}");
    assert_eq!((&verified["documents"], &verified["events"]), (&json!(3), &json!(5)));
    // A store that a server holds is changed by the server.
    let (rebuilt, code) = run(&service, &["project", "rebuild", "search"]);
    let expected = json!({ "view": "search", "generation": 2, "events": 5 });
    assert_eq!((code, &rebuilt), (Some(0), &expected));
    service.tell(&create("d", "d1", &json!({ "name": "boat 4" }))).await.must_be(201);
    super::world::eventually("the new generation goes on", async || {
        service.found("boat").await.len() == 2
    })
    .await;
    assert_eq!(service.terminated(), Some(0));
    for name in ["instances", "classes"] {
        let (rebuilt, code) = run(&service, &["project", "rebuild", name]);
        assert_eq!((code, &rebuilt["generation"]), (Some(0), &json!(2)), "{rebuilt}");
        let (verified, code) = run(&service, &["project", "verify", name]);
        assert_eq!((code, &verified["generation"]), (Some(0), &json!(2)), "{verified}");
    }
    let service = service.started_again();
    assert_eq!(service.instance_at("a", 2).await["name"], "ship");
    assert_eq!(service.found("boa").await.len(), 2, "a was renamed, b is deleted");
}

/// A process of its own; ended by its id when the test ends early.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(service: &Service, what: &str) -> Self {
        let ready = service.folder.join(format!("{what}.ready"));
        let _ = std::fs::remove_file(&ready);
        let mut command = command(&service.folder, &[what, "--ready-file"]);
        command.arg(&ready).args(["--store", service.store_url()]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while !ready.exists() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what} does not start");
            // sleeps because a file that appears rings for nobody
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn terminated(mut self) -> Option<i32> {
        let pid = self.0.id().to_string();
        std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On Postgres several processes share a store; an embedded one is held by the service alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_separate_processes_stand_by_take_over_and_drain() {
    let mut service = Service::start("processes");
    history(&service).await;
    if !is_shared() {
        for what in ["relay", "worker", "project"] {
            let (_, code) = run(&service, &[what]);
            assert_eq!(code, Some(1), "{what} does not work beside the process that has the file");
        }
        return;
    }
    let parts = ["relay", "worker", "project"].map(|what| Process::start(&service, what));
    service.tell(&create("d", "d1", &json!({ "name": "last boat" }))).await.must_be(201);
    // The service's own parts give their roles back; those of the processes take over.
    assert_eq!(service.terminated(), Some(0));
    let caught_up = async || {
        let (status, _) = run(&service, &["project", "status"]);
        ["instances", "classes", "search"]
            .iter()
            .all(|name| view(&status, name)["events"].as_u64() >= Some(6))
    };
    super::world::eventually("the processes' views", caught_up).await;
    for part in parts {
        assert_eq!(part.terminated(), Some(0), "a process that is told to stop drains");
    }
    let (verified, code) = run(&service, &["project", "verify", "search"]);
    assert_eq!((code, &verified["different"]), (Some(0), &json!(0)), "{verified}");
}
