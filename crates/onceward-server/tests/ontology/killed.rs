//! Service, relay, worker and projection as processes of their own on Postgres, killed at random
//! while commands flow: every command is one event with one effect, and views equal a rebuild.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::flow::{Process, run, view};
use super::world::{Service, create, eventually, send, update};

/// Writers, each with an aggregate of its own, and the commands of each.
const WRITERS: usize = 6;
const COMMANDS: u64 = 120;
/// Processes that are killed, one after the other.
const KILLS: u64 = 12;

/// Numbers from a seed, the same each time (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Where the service listens now: it moves with every start.
type Address = Arc<Mutex<SocketAddr>>;

fn command(writer: usize, number: u64) -> Value {
    let (id, event_id) = (format!("a{writer}"), format!("{writer}-{number}"));
    let payload = json!({
        "trips": number, format!("c{number}"): true, "word": format!("w{writer}n{number}"),
    });
    match number {
        1 => create(&id, &event_id, &payload),
        _ => update(&id, &event_id, number - 1, &payload),
    }
}

/// Sends each command until it is answered, and the next one then.
async fn write(writer: usize, address: Address) {
    for number in 1..=COMMANDS {
        loop {
            let to = *address.lock().unwrap();
            let sent = send(&command(writer, number)).try_send(to);
            match tokio::time::timeout(Duration::from_secs(20), sent).await.ok().flatten() {
                Some(answer) if matches!(answer.status, 200 | 201) => {
                    assert_eq!(answer.json()["sequence_number"], number, "{answer:?}");
                    break;
                }
                Some(answer) => assert_eq!(answer.status, 503, "{answer:?}"),
                None => {}
            }
            // sleeps because a service that was killed can't say when it is back
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_i14_i15_processes_on_postgres_killed_at_random_leave_each_command_once() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut service = Service::start_on_postgres("ontology", "killed_at_random");
    let parts = ["relay", "worker", "project"];
    let mut processes = parts.map(|what| Process::start(&service, what));
    let address: Address = Arc::new(Mutex::new(service.listen));
    let writers: Vec<_> =
        (0..WRITERS).map(|writer| tokio::spawn(write(writer, address.clone()))).collect();
    for _ in 0..KILLS {
        // sleeps because the moment of the kill is to be any
        tokio::time::sleep(Duration::from_millis(20 + random.below(400))).await;
        let which = random.below(parts.len() as u64 + 1) as usize;
        match processes.get_mut(which) {
            Some(process) => {
                process.kill();
                *process = Process::start(&service, parts[which]);
            }
            None => {
                service = service.killed_and_started();
                *address.lock().unwrap() = service.listen;
            }
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    all_is_there_once(&service).await;
}

async fn all_is_there_once(service: &Service) {
    let all = WRITERS as u64 * COMMANDS;
    let views = ["instances", "classes", "search"];
    eventually("every view has handled every event", async || {
        let (status, _) = run(service, &["project", "status"]);
        views.iter().all(|name| view(&status, name)["lag_events"] == 0)
    })
    .await;
    let (status, _) = run(service, &["project", "status"]);
    for name in views {
        assert_eq!(view(&status, name)["events"], all, "each is counted once: {status}");
    }
    for writer in 0..WRITERS {
        let id = format!("a{writer}");
        let events = service.events(&id).await;
        let ids: Vec<_> = events.iter().map(|event| event["event_id"].clone()).collect();
        let sent: Vec<_> = (1..=COMMANDS).map(|n| json!(format!("{writer}-{n}"))).collect();
        assert_eq!(ids, sent, "each command is one event, in order");
        let instance = service.instance_at(&id, COMMANDS).await;
        assert_eq!(instance["trips"], COMMANDS);
        let merged = (1..=COMMANDS).filter(|n| instance[format!("c{n}")] == true).count() as u64;
        assert_eq!(merged, COMMANDS, "no event was passed over: {instance}");
        let found = service.found(&format!("w{writer}n{COMMANDS}")).await;
        assert_eq!(found, [json!({ "id": id, "sequence_number": COMMANDS })]);
    }
    for name in views {
        let (verified, code) = run(service, &["project", "verify", name]);
        assert_eq!((code, &verified["different"]), (Some(0), &json!(0)), "{name}: {verified}");
    }
    let (rebuilt, code) = run(service, &["project", "rebuild", "search"]);
    assert_eq!((code, &rebuilt["events"]), (Some(0), &json!(all)), "{rebuilt}");
    let (verified, code) = run(service, &["project", "verify", "search"]);
    assert_eq!((code, &verified["different"]), (Some(0), &json!(0)), "{verified}");
    let dead = service.operate("GET", "/v1/dead").await.items();
    assert!(dead.is_empty(), "{dead:?}");
}
