//! Real clients as they are by default, against gateway and layer, each with each method: the
//! JDK's, Apache HttpClient 5, OkHttp, and `curl --http2`.
//!
//! Over plain HTTP most of them offer an upgrade with every request. Java, Maven and curl that are
//! missing fail the test: they are part of what is promised, and `cargo xtask ci` installs them.
//! What Maven brings is kept in `.cache`, which git ignores.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use super::target::{Setup, Target};

const POM: &str = include_str!("clients/pom.xml");
/// The folder's name in the cache: another one for other versions.
const JARS: &str = "http-clients-1";
/// How long all clients of Java may take, and Maven.
const WITHIN: Duration = Duration::from_secs(300);

const READS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];
const WRITES: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// Runs a program to its end.
async fn ran(what: &str, command: Command) -> Output {
    let mut command = tokio::process::Command::from(command);
    let running = command.kill_on_drop(true).output();
    let output = tokio::time::timeout(WITHIN, running).await.expect("it ends in time");
    output.unwrap_or_else(|error| {
        panic!("this test needs {what}: {error}; `cargo xtask ci` installs it on Debian")
    })
}

/// The class path of the clients, fetched if it is not there yet.
async fn class_path() -> String {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/clients");
    let folder = cache.join(JARS);
    if !folder.is_dir() {
        // Fetched aside: what is there is whole.
        let aside = cache.join(format!("{JARS}.new-{}", std::process::id()));
        std::fs::create_dir_all(&aside).unwrap();
        std::fs::write(aside.join("pom.xml"), POM).unwrap();
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars"]);
        maven.current_dir(&aside);
        let output = ran("Maven (mvn)", maven).await;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "Maven does not get the clients: {said}");
        // Another run may have been quicker.
        let _ = std::fs::rename(aside.join("jars"), &folder);
        let _ = std::fs::remove_dir_all(&aside);
    }
    format!("{}/*", folder.display())
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/clients/Clients.java")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d1_clients_of_java_work_as_they_are_by_default() {
    let setup = Setup::default();
    let targets =
        [Target::gateway("java_gateway", &setup).await, Target::layer("java_layer", &setup).await];
    let mut java = Command::new("java");
    java.args(["-cp", &class_path().await]).arg(source());
    java.args(targets.iter().map(|at| format!("http://{}/echo", at.address)));
    let output = ran("a JDK (java, 17 or later)", java).await;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{failed}");
    let mut expected = Vec::new();
    for _ in &targets {
        for client in ["jdk", "apache", "okhttp"] {
            let line = |method: &str, replay| format!("{client} {method} 200 {replay}");
            expected.extend(READS.map(|method| line(method, false)));
            expected.extend(WRITES.map(|method| [false, true].map(|is| line(method, is))).concat());
        }
    }
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    for at in &targets {
        assert_eq!(at.app.ran(), 3 * (READS.len() + WRITES.len()), "each ran once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d1_curl_may_offer_http_2() {
    let setup = Setup::default();
    for at in
        [Target::gateway("curl_gateway", &setup).await, Target::layer("curl_layer", &setup).await]
    {
        for method in READS.iter().chain(&WRITES) {
            let is_write = WRITES.contains(method);
            let turns: &[bool] = if is_write { &[false, true] } else { &[false] };
            for is_again in turns {
                let mut curl = Command::new("curl");
                curl.args(["--http2", "-sS", "--max-time", "30", "-o", "/dev/null"]);
                curl.args(["-w", "%{http_code} %header{idempotency-replayed}"]);
                curl.args(["-H", "authorization: Bearer alice"]);
                match *method {
                    "HEAD" => curl.arg("-I"),
                    method => curl.args(["-X", method]),
                };
                if is_write {
                    curl.args(["-H", "content-type: application/json", "-d", "{}"]);
                    curl.arg("-H").arg(format!("idempotency-key: curl-{method}"));
                }
                curl.arg(format!("http://{}/echo", at.address));
                let output = ran("curl", curl).await;
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let failed = String::from_utf8_lossy(&output.stderr).into_owned();
                let expected = if *is_again { "200 true" } else { "200 " };
                assert_eq!(said, expected, "{method}: {failed}");
            }
        }
        assert_eq!(at.app.ran(), READS.len() + WRITES.len(), "each ran once");
    }
}
