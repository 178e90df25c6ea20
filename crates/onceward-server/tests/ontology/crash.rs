//! Kills: what was answered is there, once; what was not can be sent again; views go on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use super::world::{Service, create, eventually, send, update};

/// Writers send commands while the process is killed at any moment and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c10_killed_anywhere_every_command_is_one_event_and_one_effect() {
    const WRITERS: usize = 8;
    const KILLS: u64 = 4;
    let mut service = Service::start("killed");
    for w in 0..WRITERS {
        let made = create(&format!("a{w}"), &format!("{w}-0"), &json!({ "trips": 0 }));
        service.tell(&made).await.must_be(201);
    }
    let command = |w: usize, number: u64| {
        let payload = json!({ "trips": number, "word": format!("w{w}n{number}") });
        update(&format!("a{w}"), &format!("{w}-{number}"), number, &payload)
    };
    for round in 1..=KILLS {
        let listen = service.listen;
        let sent: Vec<_> =
            (0..WRITERS).map(|w| tokio::spawn(send(&command(w, round)).try_send(listen))).collect();
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(round * 4)).await;
        service.kill();
        let answers = join_all(sent).await;
        service = service.started_again();
        for (w, answer) in answers.into_iter().enumerate() {
            let again = service.tell(&command(w, round)).await;
            assert_eq!(again.json()["sequence_number"], round + 1, "{again:?}");
            if let Some(first) = answer.unwrap() {
                assert_eq!(first.must_be(201).body, again.must_be(200).body);
            }
        }
    }
    for w in 0..WRITERS {
        let events = service.events(&format!("a{w}")).await;
        let ids: Vec<_> = events.iter().map(|event| event["event_id"].clone()).collect();
        let expected: Vec<_> = (0..=KILLS).map(|number| json!(format!("{w}-{number}"))).collect();
        assert_eq!(ids, expected);
        let instance = service.instance_at(&format!("a{w}"), KILLS + 1).await;
        assert_eq!(instance["trips"], KILLS);
        eventually("the search is up to date", async || {
            !service.found(&format!("w{w}n{KILLS}")).await.is_empty()
        })
        .await;
    }
    let dead = service.operate("GET", "/v1/dead").await.items();
    assert!(dead.is_empty(), "{dead:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_a_start_goes_on() {
    let mut service = Service::start("sigterm");
    let command = create("a", "e1", &json!({ "word": "kept" }));
    let first = service.tell(&command).await.must_be(201);
    assert_eq!(service.terminated(), Some(0), "{}", service.said());
    let service = service.started_again();
    assert_eq!(service.tell(&command).await.must_be(200).body, first.body);
    service.tell(&update("a", "e2", 1, &json!({ "n": 2 }))).await.must_be(201);
    assert_eq!(service.instance_at("a", 2).await["word"], "kept");
}

/// The store's file is lost or set back; the folder with the events is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c02_views_follow_the_events_when_the_store_was_lost_or_set_back() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ontology-set-back");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let place = ("127.0.0.1:0", "sqlite:ontology.db");
    let arguments = ["demo", "ontology", "--no-traffic"];
    let mut service = Service::spawn_at("ontology", folder, &arguments, place, &[]);
    let files = |service: &Service| {
        let files = std::fs::read_dir(&service.folder).unwrap().map(|file| file.unwrap().path());
        let is_store = |file: &PathBuf| {
            file.is_file() && file.file_name().unwrap().to_string_lossy().contains(".db")
        };
        files.filter(is_store).collect::<Vec<_>>()
    };
    service.tell(&create("a", "e1", &json!({ "word": "early" }))).await.must_be(201);
    service.instance_at("a", 1).await;
    assert_eq!(service.terminated(), Some(0));
    let early: Vec<_> =
        files(&service).into_iter().map(|path| (path.clone(), std::fs::read(path))).collect();
    for keeps in [true, false] {
        service = service.started_again();
        let number = service.events("a").await.len() as u64 + 1;
        let payload = json!({ "word": format!("late{number}") });
        let later = update("a", &format!("e{number}"), number - 1, &payload);
        service.tell(&later).await.must_be(201);
        service.instance_at("a", number).await;
        assert_eq!(service.terminated(), Some(0));
        for file in files(&service) {
            std::fs::remove_file(file).unwrap();
        }
        for (path, bytes) in early.iter().filter(|_| keeps) {
            std::fs::write(path, bytes.as_ref().unwrap()).unwrap();
        }
        service = service.started_again();
        assert_eq!(service.instance_at("a", number).await["word"], payload["word"]);
        eventually("the search follows", async || {
            !service.found(&format!("late{number}")).await.is_empty()
        })
        .await;
        assert_eq!(service.events("a").await.len() as u64, number);
        assert_eq!(service.terminated(), Some(0));
    }
}
