//! Segments that were changed behind the service's back: what is damaged is refused and told, and
//! everything else goes on.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::world::{Service, create, encoded, eventually, get, update};

/// The objects of the first segments.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_path_buf()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.parent().unwrap().ends_with("segments") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Three aggregates, each in segments of its own, and the service stopped.
async fn stopped(test: &str) -> (Service, Vec<PathBuf>) {
    let mut service = Service::start(test);
    for id in ["a", "b", "c"] {
        service.tell(&create(id, &format!("{id}1"), &json!({ "n": 1 }))).await.must_be(201);
        service.instance_at(id, 1).await;
    }
    assert_eq!(service.terminated(), Some(0));
    let segments = segments(&service.folder);
    assert!(segments.len() >= 3, "{segments:?}");
    (service, segments)
}

async fn refused(service: &Service, id: &str) {
    let path = format!("/v1/aggregates/{}/events", encoded(id));
    let answer = get(&path).send(service).await;
    answer.refuses(500, "store.corrupt");
    assert_eq!(answer.json()["retryable"], false, "{answer:?}");
    assert_eq!(answer.header("retry-after"), "", "{answer:?}");
}

/// What is not damaged is read, appended to, published and seen.
async fn goes_on(service: &Service, id: &str) {
    assert_eq!(service.events(id).await.len(), 1);
    let event = update(id, &format!("{id}2"), 1, &json!({ "n": 2 }));
    service.tell(&event).await.must_be(201);
    assert_eq!(service.instance_at(id, 2).await["n"], 2);
    let new = format!("new-{id}");
    service.tell(&create(&new, &format!("{new}1"), &json!({ "n": 3 }))).await.must_be(201);
    service.instance_at(&new, 1).await;
}

async fn health(service: &Service) -> (String, String) {
    let health = get("/healthz").anonymous().try_send(service.admin).await.unwrap().json();
    let ready = get("/readyz").anonymous().try_send(service.admin).await.unwrap();
    assert_eq!(ready.status, 200, "{ready:?}");
    (health["status"].as_str().unwrap().to_owned(), health["warnings"].to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_damaged_old_segment_is_refused_and_told_and_the_rest_goes_on() {
    let (service, segments) = stopped("damaged-segment").await;
    let whole = std::fs::read(&segments[0]).unwrap();
    let mut damaged = whole.clone();
    damaged[40] ^= 1;
    std::fs::write(&segments[0], damaged).unwrap();
    let service = service.started_again();
    refused(&service, "a").await;
    goes_on(&service, "b").await;
    let (status, warnings) = health(&service).await;
    assert_eq!(status, "degraded");
    assert!(warnings.contains("segment 1") && warnings.contains("backup"), "{warnings}");
    refused(&service, "a").await;
    // Restored while it runs.
    std::fs::write(&segments[0], whole).unwrap();
    assert_eq!(service.events("a").await.len(), 1);
    eventually("health", async || health(&service).await.0 == "ok").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_swapped_segments_are_refused_and_the_rest_goes_on() {
    let (service, segments) = stopped("swapped-segments").await;
    let (first, second) =
        (std::fs::read(&segments[0]).unwrap(), std::fs::read(&segments[1]).unwrap());
    std::fs::write(&segments[0], second).unwrap();
    std::fs::write(&segments[1], first).unwrap();
    let service = service.started_again();
    for id in ["a", "b"] {
        refused(&service, id).await;
    }
    goes_on(&service, "c").await;
    let (status, warnings) = health(&service).await;
    assert_eq!(status, "degraded");
    assert!(warnings.contains("segment 1") && warnings.contains("segment 2"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l8_a_database_that_was_lost_with_the_last_segment_is_told() {
    let (service, segments) = stopped("lost-segment").await;
    std::fs::remove_file(segments.last().unwrap()).unwrap();
    for entry in std::fs::read_dir(&service.folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_file() && name.contains(".db") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let service = service.started_without_its_store("lost-segment");
    eventually("the alarm", async || health(&service).await.0 == "degraded").await;
    let (_, warnings) = health(&service).await;
    assert!(warnings.contains("the last segments are lost"), "{warnings}");
    // What comes now stands where the lost event stood, and is published all the same.
    service.tell(&create("d", "d1", &json!({ "n": 4 }))).await.must_be(201);
    service.instance_at("d", 1).await;
}
