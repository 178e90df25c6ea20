//! The process that is killed: relay, worker and projection, one of them stopped at a point.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onceward::engine::Engine;
use onceward::events::{Event, EventStore};
use onceward::handlers::{
    Consumer, ConsumerOptions, Handler, HandlerError, HandlerOptions, Work, read_offset,
};
use onceward::projection::{Folded, PostgresIndex, Projection, SqliteIndex, View};
use onceward::relay::{Log, Relay, RelayOptions};
use onceward::testing::points::{Point, on_point};
use onceward::worker::Done;

use super::file_log::FileLog;
use super::place::{EVENTS, On, Place, url};

/// What a child says starts so.
pub(crate) const SAYS: &str = "onceward-crash: ";

/// What a child was told.
pub(crate) struct Told {
    place: Place,
    role: String,
    point: Option<Point>,
}

pub(crate) fn told() -> Option<Told> {
    let place = Place::told()?;
    let role = std::env::var("ONCEWARD_TEST_CRASH_ROLE").ok()?;
    let point = Point::parse(&std::env::var("ONCEWARD_TEST_CRASH_POINT").ok()?);
    Some(Told { place, role, point })
}

fn say(word: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{SAYS}{word}").and_then(|()| out.flush()).unwrap();
}

/// Stops at the point, once some events have passed it, and waits for the blow.
fn stop_at(point: Option<Point>) {
    let Some(wanted) = point else { return };
    let stopped = AtomicBool::new(false);
    on_point(move |point| {
        if point == wanted && !stopped.swap(true, Ordering::SeqCst) {
            say("reached");
            let _ = std::io::stdin().lock().read(&mut [0]);
        }
    });
}

pub(crate) async fn run(told: Told) {
    let Told { place, role, point } = told;
    let engine = place.engine().await;
    let events = place.events(&engine).await;
    let log = FileLog(place.folder.join("log"));
    let is = |name: &str| role == name || role == "all";
    // The parts before the one that is hit have done their work.
    if !is("relay") {
        publish(&engine, &events, &log).await;
    }
    stop_at(point);
    if is("relay") {
        publish(&engine, &events, &log).await;
    }
    if is("worker") {
        consume(worker(&engine, &place), &log).await;
    }
    if is("projection") {
        let handler = projection(&engine, &place).handler(1).await.unwrap();
        consume(handler, &log).await;
    }
    events.close().await.unwrap();
    engine.close().await.unwrap();
    say("done");
}

/// Publishes everything.
async fn publish(engine: &Engine, events: &EventStore, log: &FileLog) {
    let options = RelayOptions {
        lease: Duration::from_millis(500),
        checkpoint_every: Duration::ZERO,
        batch_size: 5,
        // Nothing but the checkpoint keeps what was published from being published again.
        dedup_max: 0,
        ..RelayOptions::default()
    };
    let head = events.head().await.unwrap();
    let (source, sink) = (Arc::new(events.clone()), Arc::new(log.clone()));
    let bucket = events.objects().store().clone();
    let relay = Relay::start(engine.clone(), source, bucket, sink, options).unwrap();
    while relay.status().checkpointed < head {
        // sleeps because a relay rings for nobody
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.drain().await.unwrap();
}

/// Feeds a handler until everything in the log is final.
async fn consume(handler: Handler, log: &FileLog) {
    let name = handler.name().to_owned();
    let engine = handler.engine().clone();
    let options = ConsumerOptions {
        lease: Duration::from_millis(500),
        commit_every: Duration::from_millis(5),
        ..ConsumerOptions::default()
    };
    let end = log.end().await.unwrap();
    assert!(end.segment as usize >= EVENTS);
    let consumer = Consumer::start(handler, Arc::new(log.clone()), options).unwrap();
    while read_offset(&engine, &name).await.unwrap().is_none_or(|offset| offset.place() < end) {
        // sleeps because a consumer rings for nobody
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    consumer.drain(Duration::from_secs(20)).await.unwrap();
}

/// A foreign effect, a line in a file, and a transactional one, a line in a document.
fn worker(engine: &Engine, place: &Place) -> Handler {
    let file = place.folder.join("ledger");
    let work = Work::elsewhere(move |attempt| {
        let file = file.clone();
        async move {
            let event = attempt.event();
            let ledger = attempt.read("ledger", &event.aggregate_id).await?;
            attempt.check()?;
            let mut file =
                std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
            let (key, fence) = (attempt.effect_key(), attempt.fence());
            writeln!(file, "{}\t{key}\t{fence}", event.event_id).unwrap();
            file.sync_data().unwrap();
            let mut lines = ledger.value.as_deref().unwrap_or_default().to_vec();
            lines.extend(format!("{}\n", event.sequence_number).into_bytes());
            let mut done = Done::new();
            done.put(&ledger, lines)?;
            Ok::<_, HandlerError>(done)
        }
    });
    let options = HandlerOptions {
        lease: Duration::from_millis(1_000),
        heartbeat: Duration::from_millis(300),
        ..HandlerOptions::default()
    };
    Handler::new(engine.clone(), "worker", options, work).unwrap()
}

/// What the auditor folds too.
pub(crate) fn fold(event: &Event, _: Option<&[u8]>) -> Result<Folded, HandlerError> {
    Ok(match event.kind.as_str() {
        "delete" => Folded::Delete,
        _ => Folded::Put(event.payload.clone()),
    })
}

fn projection(engine: &Engine, place: &Place) -> Projection {
    let view: Arc<dyn View> = match place.on {
        On::Sqlite => Arc::new(SqliteIndex::new(engine.clone(), place.file(), "search").unwrap()),
        On::Postgres => Arc::new(PostgresIndex::new(url(), place.name.as_str()).unwrap()),
    };
    let options = HandlerOptions {
        lease: Duration::from_millis(1_000),
        heartbeat: Duration::from_millis(300),
        ..HandlerOptions::default()
    };
    Projection::new(engine.clone(), "search", view, fold, options)
}
