//! One Apache Kafka broker on loopback (KRaft, no other process), from Maven's archives.
//!
//! Ready means that a real client made a topic, wrote a record and read it back. Not started
//! unless it is named: it takes a JVM, and most tests need none of it.

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
    name: "kafka",
    variable: "ONCEWARD_TEST_KAFKA_URL",
    by_default: false,
    start,
    probe,
    is_running: daemon::is_running,
    stop: daemon::stop,
};

const ARCHIVE: Archive = Archive {
    name: "kafka-3.9.1",
    coordinates: &["org.apache.kafka:kafka_2.13:3.9.1", "org.slf4j:slf4j-simple:1.7.36"],
};
/// What the broker and its client need.
const JAVA_MIN: u32 = 17;
const START_WITHIN: Duration = Duration::from_secs(120);
/// The client, run from its source.
const PROBE: &str = include_str!("java/KafkaProbe.java");

fn start() -> Result<Remembered> {
    let dir = process::temporary_folder("kafka")?;
    start_in(&dir).inspect_err(|_| {
        // The first error is the one to tell; a folder that stays behind harms nobody.
        let _ = process::remove_folder(&dir);
    })
}

fn start_in(dir: &Path) -> Result<Remembered> {
    let (java, archives) = (java::java(JAVA_MIN)?, ARCHIVE.class_path()?);
    let (port, controller) = (process::free_port()?, process::free_port()?);
    let properties = dir.join("server.properties");
    fs::write(&properties, settings(dir, port, controller)).context("cannot write settings")?;
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(&java);
        command.args(["-cp", &archives, "kafka.tools.StorageTool"]).args(arguments);
        shell::capture(command.current_dir(dir))
    };
    let said = tool(&["random-uuid"])?;
    let cluster = said.lines().last().context("no cluster id")?.trim().to_owned();
    tool(&["format", "-t", &cluster, "-c", "server.properties"])?;
    let mut command = Command::new(&java);
    command.args(["-Xmx512m", "-cp", &archives, "kafka.Kafka"]).arg(&properties);
    let server = java::spawn(&mut command, dir)?;
    let url = format!("kafka://127.0.0.1:{port}");
    java::answered(server, url, dir, START_WITHIN, probe)
}

fn settings(dir: &Path, port: u16, controller: u16) -> String {
    format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@127.0.0.1:{controller}\n\
         listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n\
         log.dirs={}/data\n\
         offsets.topic.replication.factor=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n",
        dir.display()
    )
}

fn probe(url: &str) -> Result<()> {
    let address = url.strip_prefix("kafka://").context("the URL does not begin with kafka://")?;
    // A connection first: a client in a JVM is a dear way to learn that nobody listens yet.
    std::net::TcpStream::connect(address).with_context(|| format!("cannot reach {address}"))?;
    let dir = process::temporary_folder("kafka-probe")?;
    let source = dir.join("KafkaProbe.java");
    let answer = fs::write(&source, PROBE).context("cannot write the client").and_then(|()| {
        let (java, archives) = (java::java(JAVA_MIN)?, ARCHIVE.class_path()?);
        let mut command = Command::new(java);
        // The client tells on standard error what it does; that is told only when it fails.
        command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &archives]);
        shell::capture(command.arg(&source).arg(address))
    });
    process::remove_folder(&dir)?;
    match answer?.as_str() {
        "42" => Ok(()),
        other => bail!("the client read {other:?} where 42 was written"),
    }
}
