//! The demo as a process: how it starts, what it says, and how it ends.

use serde_json::{Value, json};

use super::world::{Service, command, get, post};

/// What a service with keys publishes.
const POLICY: &str = "/.well-known/idempotency-policy";

fn folder(test: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn what_is_not_there_is_said_and_the_tokens_stay_on_loopback() {
    let folder = folder("usage");
    for (arguments, told) in [
        (&["demo", "everything"][..], "possible values"),
        (&["demo", "planning", "--listen", "0.0.0.0:0"], "loopback"),
        (&["demo", "planning", "--admin", "0.0.0.0:0"], "loopback"),
        (
            &["demo", "planning", "--cache", "redis://127.0.0.1:1", "--listen", "0.0.0.0:0"],
            "--cache has no effect on the demo",
        ),
        (
            &["demo", "planning", "--token", "t", "--listen", "0.0.0.0:0"],
            "--token has no effect on the demo",
        ),
    ] {
        let output = command(&folder, arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
    let switched = |word: &str| {
        let mut demo = command(&folder, &["demo", "planning", "--listen", "0.0.0.0:0"]);
        demo.env("ONCEWARD_NO_TRAFFIC", word);
        let output = demo.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{word}");
        String::from_utf8(output.stderr).unwrap()
    };
    for word in ["maybe", "2", " true", "tru"] {
        let said = switched(word);
        assert!(said.contains("true or false") && said.contains("--no-traffic"), "{word}: {said}");
    }
    for word in ["true", "YES", "on", "1", "false", "No", "off", "0", ""] {
        let said = switched(word);
        assert!(said.contains("loopback"), "{word} is understood: {said}");
    }
    assert!(!folder.join("onceward.db").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_is_sealed_under_the_secret_of_the_configuration() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder("secret");
    let secret = folder.join("onceward.secret");
    std::fs::write(&secret, "a".repeat(64)).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = "[identity]\nsecret_file = \"onceward.secret\"\n";
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let arguments = ["demo", "planning", "--no-traffic"];
    let mut service = Service::spawn(folder.clone(), &arguments, "sqlite:sealed.db");
    service.project().await;
    assert_eq!(service.terminated(), Some(0));
    let verified = |folder: &std::path::Path| {
        let asked = ["audit", "verify", "--json", "--store", "sqlite:sealed.db"];
        let output = command(folder, &asked).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, said) = verified(&folder);
    assert_eq!(code, Some(0), "{said}");
    let sealed = serde_json::from_str::<Value>(&said).unwrap()["sealed"].as_u64();
    assert!(sealed.is_some_and(|sealed| sealed > 0), "{said}");
    // Under another secret they are nobody's seals.
    std::fs::remove_file(folder.join("onceward.toml")).unwrap();
    assert_eq!(verified(&folder).0, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_drains_and_the_store_is_kept() {
    let mut service = Service::start("sigterm");
    let project = service.project().await;
    let listen = service.listen;
    assert_eq!(service.terminated(), Some(0));
    assert!(get("/v1/projects").try_send(listen).await.is_none());
    let service = service.started_again();
    let path = format!("/v1/projects/{}", project.id());
    assert_eq!(get(&path).send(&service).await.json(), project.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tells_its_services_and_the_control_api_is_there() {
    let folder = folder("all");
    let mut service = Service::spawn(folder.clone(), &["demo", "--no-traffic"], "memory:");
    let ready = std::fs::read_to_string(folder.join("ready.json")).unwrap();
    let ready: Value = serde_json::from_str(&ready).unwrap();
    let services = ready["services"].as_object().unwrap();
    assert_eq!(services["planning"], json!(format!("http://{}", service.listen)));
    for (name, url) in services {
        let address = url.as_str().unwrap().strip_prefix("http://").unwrap().parse().unwrap();
        // Events have no keys, and so no policy for them.
        let path = if name == "ontology" { "/v1/search?q=a" } else { POLICY };
        let answer = get(path).try_send(address).await;
        answer.unwrap_or_else(|| panic!("{name} answers at {url}")).must_be(200);
    }
    let health = get("/healthz").anonymous().try_send(service.admin).await.unwrap().must_be(200);
    assert_eq!(
        (&health.json()["status"], &health.json()["store"]),
        (&json!("ok"), &json!("memory"))
    );
    get("/v1/records").by("demo-a").try_send(service.admin).await.unwrap().must_be(401);
    service.operate("GET", "/v1/records").await.must_be(200);
    service.operate("GET", "/openapi.json").await.must_be(200);
    assert_eq!(service.terminated(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_traffic_runs_in_an_organisation_of_its_own_and_is_settled() {
    let folder = folder("traffic");
    let mut service = Service::spawn(folder, &["demo", "planning"], "memory:");
    let theirs = "33333333-3333-3333-3333-333333333333";
    super::world::eventually("traffic", async || {
        let records = service.records(theirs).await;
        records.iter().filter(|record| record["kind"] == "request").count() > 20
    })
    .await;
    assert!(get("/v1/projects").send(&service).await.items().is_empty(), "A01");
    post("/v1/projects").json(&json!({ "name": "Ours" })).send(&service).await.must_be(201);
    let metrics = service.operate("GET", "/metrics").await.must_be(200);
    assert!(!metrics.body.is_empty());
    assert_eq!(service.terminated(), Some(0));
}

#[test]
fn a_request_that_is_framed_twice_is_refused_and_its_connection_closed() {
    use std::io::{Read, Write};

    let service = Service::start("framed-twice");
    let mut stream = std::net::TcpStream::connect(service.listen).unwrap();
    let head = "POST /v1/projects HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer demo-a\r\n\
                Idempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\
                Transfer-Encoding: chunked\r\n\r\nc\r\n{\"name\":\"x\"}\r\n0\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.to_lowercase().contains("connection: close"), "{answer}");
    assert!(answer.contains("Content-Length and Transfer-Encoding"), "{answer}");
}
