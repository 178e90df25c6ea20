//! Views: a fold of the log, rebuilt and verified; deletes that are not undone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use onceward::engine::Engine;
use onceward::events::Event;
use onceward::handlers::{Handled, Handler, HandlerError};
use onceward::projection::{
    Documents, Entry, PostgresIndex, Projection, RedisView, SqliteIndex, Versioned, View, http_call,
};
use onceward::relay::Log;
use onceward::store::sqlite::{SqliteOptions, SqliteStore};

use super::on_both;
use super::world::{PATIENCE, World, event, handler_options, last_update, quick, until};
use crate::support::on::On;
use crate::support::redis::shared_url;

static VIEWS: AtomicU64 = AtomicU64::new(0);

fn projection(world: &World, view: Arc<dyn View>) -> Projection {
    Projection::new(world.engine.clone(), "search", view, last_update, handler_options())
}

/// A name that no other test uses on a shared server.
fn name() -> String {
    format!("t{}_{}", std::process::id(), VIEWS.fetch_add(1, Ordering::SeqCst))
}

/// Events with updates, deletes, one that makes no sense, and one after a delete.
async fn history(world: &World) {
    world.append_all(&["a", "b", "c", "d"], 5).await;
    world.append("a", 6, "delete", "{}").await;
    world.append("b", 6, "nonsense", "{}").await;
    world.append("b", 7, "update", "{\"name\":\"blue boat\"}").await;
    world.append("c", 6, "delete", "{}").await;
    world.append("c", 7, "update", "{\"name\":\"calm boat\"}").await;
}

async fn follow_rebuild_and_verify(world: &World, view: Arc<dyn View>) -> Projection {
    let projection = projection(world, view.clone());
    let relay = world.relay();
    let live = projection.start(world.log.clone(), quick());
    history(world).await;
    let head = world.events.head().await.unwrap();
    until("projecting", || async { projection.place().await.unwrap() == head }).await;
    let log: Arc<dyn Log> = world.log.clone();
    let verified = projection.verify(&log, |_| {}).await.unwrap();
    assert!(verified.holds(), "{verified:?}");
    assert_eq!((verified.events, verified.documents, verified.generation), (25, 4, 1));
    assert_eq!(verified.ahead, 0);
    check(&*view, 1).await;
    // From zero into the next generation, while events come in.
    let (rebuilt, ()) = tokio::join!(projection.rebuild(log.clone(), quick(), |_, _| {}), async {
        world.append("d", 6, "update", "{\"name\":\"dark boat\"}").await;
    });
    assert_eq!(rebuilt.unwrap().generation, 2);
    assert_eq!(projection.generation().await.unwrap().live, 2);
    let head = world.events.head().await.unwrap();
    until("following", || async { projection.place().await.unwrap() == head }).await;
    world.append("d", 7, "update", "{\"name\":\"deep boat\"}").await;
    let head = world.events.head().await.unwrap();
    until("going on", || async { projection.place().await.unwrap() == head }).await;
    let verified = projection.verify(&log, |_| {}).await.unwrap();
    assert!(verified.holds() && verified.generation == 2, "{verified:?}");
    check(&*view, 2).await;
    live.drain().await.unwrap();
    relay.drain().await.unwrap();
    projection
}

async fn check(view: &dyn View, generation: u64) {
    let get = async |id: &'static str| view.get(generation, "acme", id).await.unwrap();
    let entry = get("a").await.unwrap();
    assert_eq!((entry.version, entry.body), (6, None), "deleted, and that is remembered");
    let entry = get("b").await.unwrap();
    assert_eq!((entry.version, &entry.body.unwrap()[..]), (7, &b"{\"name\":\"blue boat\"}"[..]));
    assert_eq!(get("nothing").await, None);
    let (mut ids, _) = view.ids(generation, "acme", None).await.unwrap();
    ids.sort();
    assert_eq!(ids, ["b", "c", "d"]);
    assert_eq!(view.ids(generation, "globex", None).await.unwrap().0, Vec::<String>::new());
}

async fn i15_c09_documents_equal_their_rebuild(on: On) {
    let world = World::open(on).await;
    let view = Arc::new(Documents::new(world.engine.clone(), "search"));
    let projection = follow_rebuild_and_verify(&world, view.clone()).await;
    // Someone changes the view behind the projection's back: that is found.
    let subject = onceward::core::key::Subject::new("acme", &view.space(2), "b").unwrap();
    world.engine.put(&subject, 7, Some(b"other".as_slice().into())).await.unwrap();
    let log: Arc<dyn Log> = world.log.clone();
    let verified = projection.verify(&log, |_| {}).await.unwrap();
    assert_eq!(verified.different, 1, "{verified:?}");
    assert_eq!(verified.differences[0].id, "b");
}

async fn i15_a_deleted_document_is_not_brought_back_by_a_late_write(on: On) {
    let world = World::open(on).await;
    let view = Arc::new(Documents::new(world.engine.clone(), "search"));
    let handler = projection(&world, view.clone()).handler(1).await.unwrap();
    for number in 1..=3 {
        let mut event = event("a", number);
        event.kind = if number == 3 { "delete" } else { "update" }.into();
        assert_eq!(handler.handle(&event).await.unwrap(), Handled::Done);
    }
    let mut late = event("a", 2);
    late.event_id = "another id".into();
    assert_eq!(handler.handle(&late).await.unwrap(), Handled::Stale { current: 3 });
    let there = view.get(1, "acme", "a").await.unwrap().unwrap();
    assert_eq!((there.version, there.body), (3, None));
}

/// A failing event holds its aggregate and the offset; the others go on, and are as they should be.
async fn i15_a_view_that_is_ahead_of_its_offset_holds(on: On) {
    let world = World::open(on).await;
    let view = Arc::new(Documents::new(world.engine.clone(), "search"));
    let fold = |event: &Event, before: Option<&[u8]>| match event.kind.as_str() {
        "later" => Err(HandlerError::retryable("not yet")),
        _ => last_update(event, before),
    };
    let engine = world.engine.clone();
    let projection =
        Projection::new(engine, "search", view.clone() as Arc<dyn View>, fold, handler_options());
    let relay = world.relay();
    let live = projection.start(world.log.clone(), quick());
    world.append("stuck", 1, "later", "{}").await;
    world.append_all(&["a", "b"], 5).await;
    for id in ["a", "b"] {
        until("going on", || async {
            view.get(1, "acme", id).await.unwrap().is_some_and(|there| there.version == 5)
        })
        .await;
    }
    let log: Arc<dyn Log> = world.log.clone();
    let verified = projection.verify(&log, |_| {}).await.unwrap();
    assert!(verified.holds() && verified.documents == 3, "{verified:?}");
    // All of it lies behind the offset, which is told.
    assert_eq!((verified.events, verified.ahead), (0, 11), "{verified:?}");
    let subject = onceward::core::key::Subject::new("acme", &view.space(1), "b").unwrap();
    world.engine.put(&subject, 5, Some(b"other".as_slice().into())).await.unwrap();
    let verified = projection.verify(&log, |_| {}).await.unwrap();
    assert_eq!(verified.different, 1, "{verified:?}");
    live.drain().await.unwrap();
    relay.drain().await.unwrap();
}

async fn i15_a_rebuild_ends_although_writers_never_rest(on: On) {
    let world = Arc::new(World::open(on).await);
    let view = Arc::new(Documents::new(world.engine.clone(), "search"));
    let projection = projection(&world, view);
    let relay = world.relay();
    let writer = tokio::spawn({
        let world = world.clone();
        async move {
            for number in 1.. {
                world.append("a", number, "update", "{}").await;
            }
        }
    });
    until("the first events", || async { world.events.head().await.unwrap().segment > 5 }).await;
    let log: Arc<dyn Log> = world.log.clone();
    let rebuilding = projection.rebuild(log, quick(), |_, _| {});
    let rebuilt = tokio::time::timeout(PATIENCE, rebuilding).await;
    writer.abort();
    assert_eq!(rebuilt.unwrap().unwrap().generation, 2, "it ends");
    relay.drain().await.unwrap();
}

/// What moves on while it is looked at is no difference.
async fn i15_a_view_is_verified_although_writers_never_rest(on: On) {
    let world = Arc::new(World::open(on).await);
    let view = Arc::new(Documents::new(world.engine.clone(), "search"));
    let projection = projection(&world, view);
    let relay = world.relay();
    let live = projection.start(world.log.clone(), quick());
    let writers = ["a", "b", "c", "d"].map(|id| {
        let world = world.clone();
        tokio::spawn(async move {
            for number in 1.. {
                world.append(id, number, "update", "{}").await;
            }
        })
    });
    until("the first events", || async { world.events.head().await.unwrap().segment > 5 }).await;
    let log: Arc<dyn Log> = world.log.clone();
    let verified = projection.verify(&log, |_| {}).await.unwrap();
    for writer in &writers {
        writer.abort();
    }
    assert!(verified.holds() && verified.documents == 4, "{verified:?}");
    live.drain().await.unwrap();
    relay.drain().await.unwrap();
}

on_both! {
    i15_a_view_is_verified_although_writers_never_rest,
    i15_a_view_that_is_ahead_of_its_offset_holds,
    i15_a_rebuild_ends_although_writers_never_rest,
    i15_c09_documents_equal_their_rebuild,
    i15_a_deleted_document_is_not_brought_back_by_a_late_write,
}

#[tokio::test]
async fn i15_the_full_text_index_equals_its_rebuild_and_is_searched_by_prefix() {
    let mut world = World::open(On::Memory).await;
    // The index lies in the file of the store that the registry is in.
    let file = world.folder.join("index.db");
    let store = SqliteStore::open(&file, SqliteOptions::default()).unwrap();
    world.events.close().await.unwrap();
    let engine = Engine::new(Arc::new(store));
    world = world.on(engine.clone()).await;
    let index = SqliteIndex::new(engine.clone(), &file, "search").unwrap();
    follow_rebuild_and_verify(&world, Arc::new(index.clone())).await;
    let found = |text: &'static str| {
        let index = index.clone();
        async move { index.search(2, "acme", text, (None, 10)).await.unwrap() }
    };
    let mut boats = found("boa").await;
    boats.sort();
    assert_eq!(boats, [("b".into(), 7), ("c".into(), 7), ("d".into(), 7)]);
    assert_eq!(found("bl boat").await, [("b".into(), 7)]);
    assert_eq!(found("number5").await, [], "words of earlier contents are forgotten");
    assert_eq!(found("\" OR tenant:*").await, []);
    assert_eq!(index.search(2, "globex", "boat", (None, 10)).await.unwrap(), []);
}

#[tokio::test]
async fn i15_the_table_in_postgres_equals_its_rebuild_and_is_searched_by_prefix() {
    let world = World::open(On::Postgres).await;
    let url = std::env::var("ONCEWARD_TEST_POSTGRES_URL").unwrap();
    let index = PostgresIndex::new(url, name()).unwrap();
    follow_rebuild_and_verify(&world, Arc::new(index.clone())).await;
    let mut boats = index.search(2, "acme", "boa", (None, 10)).await.unwrap();
    boats.sort();
    assert_eq!(boats, [("b".into(), 7), ("c".into(), 7), ("d".into(), 7)]);
    assert_eq!(index.search(2, "acme", "bl boat", (None, 10)).await.unwrap(), [("b".into(), 7)]);
    assert_eq!(index.search(2, "acme", "number5", (None, 10)).await.unwrap(), []);
    assert_eq!(index.search(2, "globex", "boat", (None, 10)).await.unwrap(), []);
    late_writes_change_nothing(&index, 2).await;
    View::clear(&index, 1, &[]).await.unwrap();
    View::clear(&index, 2, &[]).await.unwrap();
}

#[tokio::test]
async fn i15_documents_in_redis_equal_their_rebuild() {
    let world = World::open(On::Sqlite).await;
    let view = RedisView::new(&shared_url(), name()).unwrap();
    follow_rebuild_and_verify(&world, Arc::new(view.clone())).await;
    late_writes_change_nothing(&view, 2).await;
    for generation in [1, 2] {
        View::clear(&view, generation, &["acme".into()]).await.unwrap();
    }
    assert_eq!(view.get(2, "acme", "b").await.unwrap(), None);
}

async fn late_writes_change_nothing(view: &impl Versioned, generation: u64) {
    for (id, version) in [("a", 5), ("a", 6), ("b", 7), ("b", 1)] {
        let before = view.read(generation, &[("acme", id)]).await.unwrap();
        let body = Some("late".into());
        let entry = Entry { tenant: "acme".into(), id: id.into(), version, body };
        view.write(generation, &[entry]).await.unwrap();
        let after = view.read(generation, &[("acme", id)]).await.unwrap();
        assert_eq!(after, before, "{id} at {version}");
    }
}

/// What the other side of an external call saw.
type Calls = Arc<std::sync::Mutex<Vec<(String, u64)>>>;

#[tokio::test]
async fn c01_an_external_call_carries_the_same_key_on_every_attempt() {
    let calls = Calls::default();
    let app = Router::new()
        .route(
            "/hook",
            post(async |State(calls): State<Calls>, headers: HeaderMap| {
                let key = headers["idempotency-key"].to_str().unwrap().to_owned();
                let fence = headers["onceward-fence"].to_str().unwrap().parse().unwrap();
                let mut calls = calls.lock().unwrap();
                calls.push((key, fence));
                if calls.len() == 1 { StatusCode::BAD_GATEWAY } else { StatusCode::OK }
            }),
        )
        .with_state(calls.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let world = World::open(On::Sqlite).await;
    let mut options = handler_options();
    options.backoff.first_ms = 0;
    options.backoff.max_ms = 0;
    let work = http_call(url, Duration::from_secs(5)).unwrap();
    let handler = Handler::new(world.engine.clone(), "hook", options, work).unwrap();
    let first = handler.handle(&event("a", 1)).await.unwrap();
    assert!(matches!(first, Handled::Failed { .. }), "{first:?}");
    assert_eq!(handler.handle(&event("a", 1)).await.unwrap(), Handled::Done);
    assert_eq!(handler.handle(&event("a", 1)).await.unwrap(), Handled::Duplicate);
    let calls = calls.lock().unwrap();
    assert_eq!(calls.len(), 2);
    assert!(calls[0].0 == calls[1].0 && calls[0].1 < calls[1].1, "{calls:?}");
}
