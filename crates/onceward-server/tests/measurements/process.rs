//! The demo as a process: what it offers, and that its traffic runs by itself.

use serde_json::Value;

use super::world::{Service, measurement, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_traffic_runs_in_an_organisation_of_its_own_and_shows_what_happens() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("measurements-traffic");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut service = Service::spawn(folder.clone(), &["demo", "measurements"], "memory:");
    let counted = [
        r#"attempts_total{action="accepted"}"#,
        r#"attempts_total{action="duplicate"}"#,
        r#"refused_total{error="OutOfOrderTimestamp"}"#,
        r#"refused_total{error="DuplicateMeasurement"}"#,
        "batches_total",
    ];
    for name in counted {
        let name = format!("onceward_measurements_{name}");
        super::world::eventually(&name, async || service.metric(&name).await > 0.0).await;
    }
    assert!(service.listed("person-1").await.is_empty(), "demo-a sees nothing of it");
    submit("ada", &measurement("m1", 0)).send(&service).await.must_be(201);
    assert_eq!(service.terminated(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_has_it_beside_the_others() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("measurements-all");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let service = Service::spawn(folder.clone(), &["demo", "--no-traffic"], "memory:");
    let ready = std::fs::read_to_string(folder.join("ready.json")).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let listen = ready["services"]["measurements"].as_str().unwrap();
    let listen = listen.strip_prefix("http://").unwrap().parse().unwrap();
    let made = submit("ada", &measurement("m1", 0)).try_send(listen).await.unwrap();
    assert_eq!(made.status, 201, "{made:?}");
    drop(service);
}
