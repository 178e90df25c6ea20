//! E09: one key travels through two services behind two gateways, and each part runs once.
//!
//! client → gateway → desk → gateway → business service: five processes but for the client, each
//! with a store of its own. The desk is a service on the library that books and asks the business
//! service for a payment link, with the key that it got. Each of the four is killed (-9) while
//! requests are under way and started again at its address; clients retry with their keys. Then
//! the ledgers are counted: they are plain appends, so that nothing hides a duplicate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::future::join_all;
use http::{HeaderMap, StatusCode};
use onceward::client::{Client, ClientOptions};
use onceward::engine::Engine;
use onceward::http::{
    Code, Commits, Door, Identity, OncewardLayer, Policy, Refusal, Route, Routes, Writes,
};
use onceward::store::sqlite::{SqliteOptions, SqliteStore};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::world::{Call, ORGANISATION_A, Service, call, eventually, link};

/// Tells a process of this program to be the desk: its folder.
const FOLDER: &str = "ONCEWARD_TEST_DESK_FOLDER";
/// Where it listens.
const LISTEN: &str = "ONCEWARD_TEST_DESK_LISTEN";
/// Where the business service is.
const NEXT: &str = "ONCEWARD_TEST_DESK_NEXT";
/// Where the desk keeps its bookings.
const BOOKINGS: &str = "desk.booking";
/// What the desk's own tenant is called.
const TENANT: &str = "desk";

#[derive(Clone)]
struct Desk {
    engine: Engine,
    client: Client,
    next: String,
}

/// The desk as a router.
fn desk(folder: &Path, next: &str) -> Router {
    let store = SqliteStore::open(folder.join("desk.db"), SqliteOptions::default()).unwrap();
    let engine = Engine::new(Arc::new(store));
    // The gateway in front knows who asks; behind it there is one caller.
    let identity = Identity::Custom(Arc::new(|_: &http::request::Parts| {
        Some(onceward::http::Caller { tenant: TENANT.into(), caller: "gateway".into() })
    }));
    let policy = Policy { commits: Commits::One, ..Policy::default() };
    let routes = Routes::written(vec![Route::new("POST /book", policy).unwrap()]);
    let door = Door::new(engine.clone(), identity, routes);
    // It does not retry: whoever called the desk does, with the same key.
    let mut options = ClientOptions::default();
    options.backoff.attempts = 1;
    let client = Client::with_options(options).unwrap();
    Router::new()
        .route("/book", post(book))
        .route("/bookings", get(bookings))
        .with_state(Desk { engine, client, next: next.into() })
        .layer(OncewardLayer::new(door))
}

/// Asks for a payment link under the key that came, and books, in one commit with that key.
async fn book(
    State(desk): State<Desk>,
    headers: HeaderMap,
    mut writes: Writes,
    body: String,
) -> Result<Response, Refusal> {
    let failed = |why: String| Refusal::new(Code::UpstreamFailed, why);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let key = header("idempotency-key").unwrap_or_default().to_string();
    let asked = desk.client.post(format!("{}/payments/link", desk.next));
    let asked = asked
        .header("authorization", header("authorization").unwrap_or_default())
        .header("content-type", "application/json")
        .with_idempotency_key(&key)
        .body(body);
    let made = asked.send().await.map_err(|error| failed(error.to_string()))?;
    if made.status != StatusCode::CREATED {
        return Err(failed(format!("no link: {}", made.status)));
    }
    let made: Value = made.json().map_err(|error| failed(error.to_string()))?;
    // A new name each time: a second booking of one key would be there beside the first.
    let id = format!("{:032x}", getrandom::u64().unwrap());
    let booking = json!({ "booking": id, "key": key, "link": made["id"] });
    let seen = writes.read(BOOKINGS, &id).await?;
    writes.put(&seen, booking.to_string().into_bytes())?;
    Ok(writes.answer((StatusCode::CREATED, axum::Json(booking))))
}

async fn bookings(State(desk): State<Desk>) -> Response {
    let found = desk.engine.documents(TENANT, BOOKINGS, "", None, 1_000).await.unwrap().0;
    let items = found.iter().map(|found| serde_json::from_slice(&found.value).unwrap());
    axum::Json(json!({ "items": items.collect::<Vec<Value>>() })).into_response()
}

/// This program is both sides: told by its environment, this is the desk's process, until it is
/// killed. Otherwise the desk is looked at by itself: without the other service nothing is booked,
/// and what is refused so can be sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e09_a_desk_that_gets_no_link_books_nothing() {
    let told = |name| std::env::var(name).ok();
    if let (Some(folder), Some(listen), Some(next)) = (told(FOLDER), told(LISTEN), told(NEXT)) {
        let listener = TcpListener::bind(&listen).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let folder = PathBuf::from(folder);
        let router = desk(&folder, &next);
        std::fs::write(folder.join("ready.tmp"), address).unwrap();
        std::fs::rename(folder.join("ready.tmp"), folder.join("ready.txt")).unwrap();
        axum::serve(listener, router).await.unwrap();
        return;
    }
    let folder = folder("desk-alone");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let nowhere = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let next = format!("http://{}", nowhere.local_addr().unwrap());
    drop(nowhere);
    let served = tokio::spawn(axum::serve(listener, desk(&folder, &next)).into_future());
    for _ in 0..2 {
        let refused = sent("k").try_send(address).await.unwrap();
        assert_eq!((refused.status, refused.is_again()), (502, false), "{refused:?}");
    }
    let booked = call("GET", "/bookings").try_send(address).await.unwrap();
    assert_eq!(booked.items(), Vec::<Value>::new());
    served.abort();
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("business-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn sent(key: &str) -> Call {
    call("POST", "/book").key(key).json(&link(4_900))
}

/// The desk's process. Killed when it is dropped.
struct DeskProcess {
    child: Child,
    listen: SocketAddr,
    folder: PathBuf,
    next: String,
}

impl DeskProcess {
    async fn start(folder: PathBuf, listen: &str, next: &str) -> Self {
        let ready = folder.join("ready.txt");
        let _ = std::fs::remove_file(&ready);
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "across::e09_a_desk_that_gets_no_link_books_nothing"])
            .envs([(FOLDER, folder.to_str().unwrap()), (LISTEN, listen), (NEXT, next)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the desk listens", async || ready.exists()).await;
        let listen = std::fs::read_to_string(&ready).unwrap().parse().unwrap();
        Self { child, listen, folder, next: next.into() }
    }

    async fn killed_and_started(mut self) -> Self {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let (listen, next) = (self.listen.to_string(), self.next.clone());
        Self::start(self.folder.clone(), &listen, &next).await
    }
}

impl Drop for DeskProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A gateway in front of a service. Its leases are short, so that a test need not wait long.
fn gateway(folder: PathBuf, listen: &str, upstream: SocketAddr) -> Service {
    let upstream = format!("http://{upstream}");
    let arguments = ["serve", "--upstream", &upstream, "--lease", "1s"];
    Service::spawn_at("gateway", folder, &arguments, (listen, "sqlite:gateway.db"), &[])
}

fn gateway_again(mut killed: Service, upstream: SocketAddr) -> Service {
    killed.kill();
    gateway(killed.folder.clone(), &killed.listen.to_string(), upstream)
}

/// The four that may be killed.
struct Chain {
    first: Service,
    desk: DeskProcess,
    second: Service,
    business: Service,
}

impl Chain {
    async fn start() -> Self {
        let business = Service::start("e09");
        let second = gateway(folder("e09-second"), "127.0.0.1:0", business.listen);
        let next = format!("http://{}", second.listen);
        let desk = DeskProcess::start(folder("e09-desk"), "127.0.0.1:0", &next).await;
        let first = gateway(folder("e09-first"), "127.0.0.1:0", desk.listen);
        Self { first, desk, second, business }
    }

    /// Kills one of them and starts it again, at its address.
    async fn hit(mut self, which: usize) -> Self {
        match which {
            0 => self.first = gateway_again(self.first, self.desk.listen),
            1 => self.desk = self.desk.killed_and_started().await,
            2 => self.second = gateway_again(self.second, self.business.listen),
            _ => {
                self.business.kill();
                let listen = self.business.listen.to_string();
                let place = (&*listen, self.business.store_url());
                let folder = self.business.folder.clone();
                let arguments = ["demo", "business", "--no-traffic"];
                self.business = Service::spawn_at("business", folder, &arguments, place, &[]);
            }
        }
        self
    }
}

/// Sends a request until it is done, as a client does.
async fn until_done(to: SocketAddr, key: String) -> Value {
    loop {
        match sent(&key).try_send(to).await {
            Some(answer) if answer.status == 201 => return answer.json(),
            // Unreachable, broken off, in flight, or one of those behind it is away.
            Some(answer) => assert!([409, 502, 503, 504].contains(&answer.status), "{answer:?}"),
            None => {}
        }
        // sleeps because a client backs off before it tries again
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e09_one_key_through_two_services_runs_each_part_once_whoever_is_killed() {
    const EACH: usize = 6;
    let mut chain = Chain::start().await;
    let entry = chain.first.listen;
    let mut answers: Vec<(String, Value)> = Vec::new();
    for round in 0..8 {
        let keys: Vec<String> = (0..EACH).map(|n| format!("trip-{round}-{n}")).collect();
        let waiting: Vec<_> =
            keys.iter().map(|key| tokio::spawn(until_done(entry, key.clone()))).collect();
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(Duration::from_millis(3 + round as u64 * 7)).await;
        chain = chain.hit(round % 4).await;
        for (key, answer) in keys.into_iter().zip(join_all(waiting).await) {
            answers.push((key, answer.unwrap()));
        }
    }
    // Each key's first answer is its answer.
    for (key, answer) in &answers {
        assert_eq!(&until_done(entry, key.clone()).await, answer, "{key}");
    }
    let booked = call("GET", "/bookings").try_send(chain.desk.listen).await.unwrap().items();
    let links = chain.business.entries(ORGANISATION_A, "payment_link.create").await;
    assert_eq!((booked.len(), links.len()), (answers.len(), answers.len()));
    for (key, answer) in &answers {
        let of_key: Vec<_> = booked.iter().filter(|booking| booking["key"] == **key).collect();
        assert_eq!(of_key, [answer], "{key} is booked once, as it was answered");
        let link = format!("payment_link/{}", answer["link"].as_str().unwrap());
        assert!(links.iter().any(|entry| entry["subject"] == link), "{key}: {link}");
    }
}
