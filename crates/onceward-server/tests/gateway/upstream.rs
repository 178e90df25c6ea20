//! The API behind the door: it counts what reaches it and misbehaves on demand.
//!
//! The ledger of runs is a plain append: a duplicate would show.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

/// One execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) key: String,
    pub(crate) fence: u64,
    pub(crate) attempt: u64,
}

/// The state of the API, and what steers it.
pub(crate) struct App {
    runs: Mutex<Vec<Run>>,
    at_once: Mutex<HashMap<String, usize>>,
    at_once_max: Mutex<usize>,
    /// One permit for every execution that has begun to wait.
    started: Semaphore,
    /// One permit lets one waiting execution go on.
    go_on: Semaphore,
}

impl App {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            runs: Mutex::default(),
            at_once: Mutex::default(),
            at_once_max: Mutex::default(),
            started: Semaphore::new(0),
            go_on: Semaphore::new(0),
        })
    }

    pub(crate) fn runs(&self) -> Vec<Run> {
        self.runs.lock().unwrap().clone()
    }

    pub(crate) fn ran(&self) -> usize {
        self.runs().len()
    }

    /// The most executions of one key that ever overlapped.
    pub(crate) fn at_once_max(&self) -> usize {
        *self.at_once_max.lock().unwrap()
    }

    /// Waits until one more execution has begun to wait.
    pub(crate) async fn started(&self) {
        self.started.acquire().await.unwrap().forget();
    }

    /// Lets one waiting execution go on.
    pub(crate) fn go_on(&self) {
        self.go_on.add_permits(1);
    }

    async fn wait(&self) {
        self.started.add_permits(1);
        self.go_on.acquire().await.unwrap().forget();
    }

    fn begin(self: &Arc<Self>, headers: &HeaderMap) -> (usize, Running) {
        let text = |name: &str| headers.get(name).map_or("", |value| value.to_str().unwrap());
        let number = |name: &str| text(name).parse().unwrap_or_default();
        let key = text("idempotency-key").to_string();
        let run = Run {
            key: key.clone(),
            fence: number("onceward-fence"),
            attempt: number("onceward-attempt"),
        };
        let mut runs = self.runs.lock().unwrap();
        runs.push(run);
        let mut at_once = self.at_once.lock().unwrap();
        let now = at_once.entry(key.clone()).or_default();
        *now += 1;
        let mut most = self.at_once_max.lock().unwrap();
        *most = (*most).max(*now);
        (runs.len(), Running { app: self.clone(), key })
    }

    /// The API.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/payments", post(pay).get(count))
            .route("/things/{id}", any(pay))
            .route("/slow", post(slow))
            .route("/trickle", post(trickle))
            .route("/status/{code}", post(status))
            .route("/large/{bytes}", post(large).get(download))
            .route("/chunked", post(chunked))
            .route("/events", post(events))
            .route("/binary", post(binary))
            .route("/gzip", post(gzip))
            .route("/half", post(half))
            .route("/panics", post(panics))
            .route("/echo", any(echo))
            .route("/echo/{value}", any(echo))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(self.clone())
    }
}

/// An execution that has not ended.
struct Running {
    app: Arc<App>,
    key: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.app.at_once.lock().unwrap().get_mut(&self.key).unwrap() -= 1;
    }
}

type Api = State<Arc<App>>;

async fn pay(State(app): Api, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let (ran, _running) = app.begin(&headers);
    let answer = json!({ "payment": ran, "bytes": body.len() });
    let headers = [
        ("content-type", "application/json"),
        ("location", "/payments/1"),
        ("etag", "\"1\""),
        ("set-cookie", "session=1"),
        ("x-correlation-id", "corr-1"),
        ("x-ratelimit-remaining", "9"),
        ("x-other", "only once"),
        ("onceward-forged", "yes"),
        ("idempotency-replayed", "forged"),
        ("x-idempotency-replay", "forged"),
        ("onceward_fence", "forged"),
        ("idempotency_replayed", "forged"),
        ("connection", "x-private"),
        ("x-private", "of this hop"),
    ];
    (StatusCode::CREATED, headers, answer.to_string())
}

async fn count(State(app): Api) -> String {
    app.ran().to_string()
}

async fn slow(State(app): Api, headers: HeaderMap) -> String {
    let (ran, _running) = app.begin(&headers);
    app.wait().await;
    format!("slow {ran}")
}

/// Half of the answer, then a wait, then the rest.
async fn trickle(State(app): Api, headers: HeaderMap) -> Response {
    let (ran, running) = app.begin(&headers);
    let (sender, body) = channel();
    tokio::spawn(async move {
        let _ = sender.send(Ok(format!("trickle {ran}, "))).await;
        app.wait().await;
        let _ = sender.send(Ok("and the rest".into())).await;
        drop(running);
    });
    body.into_response()
}

async fn status(State(app): Api, Path(code): Path<u16>, headers: HeaderMap) -> impl IntoResponse {
    let (ran, _running) = app.begin(&headers);
    (StatusCode::from_u16(code).unwrap(), format!("run {ran}"))
}

async fn large(State(app): Api, Path(bytes): Path<usize>, headers: HeaderMap) -> Vec<u8> {
    app.begin(&headers);
    vec![7; bytes]
}

/// A large body in pieces, without a length.
async fn download(Path(bytes): Path<usize>) -> Body {
    const PIECE: usize = 64 * 1024;
    let pieces = (0..bytes.div_ceil(PIECE)).map(move |n| {
        let size = PIECE.min(bytes - n * PIECE);
        Bytes::from(vec![7; size])
    });
    Body::new(Each(pieces))
}

async fn chunked(State(app): Api, headers: HeaderMap) -> Body {
    let (ran, _running) = app.begin(&headers);
    let pieces = [format!("one {ran} "), "two ".into(), "three".into()];
    Body::new(Each(pieces.into_iter().map(Bytes::from)))
}

async fn events(State(app): Api, headers: HeaderMap) -> impl IntoResponse {
    let (ran, _running) = app.begin(&headers);
    let (sender, body) = channel();
    tokio::spawn(async move {
        let _ = sender.send(Ok(format!("data: first {ran}\n\n"))).await;
        app.wait().await;
        let _ = sender.send(Ok("data: second\n\n".into())).await;
    });
    ([("content-type", "text/event-stream")], body)
}

async fn binary(State(app): Api, headers: HeaderMap) -> impl IntoResponse {
    app.begin(&headers);
    let bytes: Vec<u8> = (0..=255).collect();
    ([("content-type", "application/octet-stream")], bytes)
}

/// Bytes that say they are compressed: nobody on the way may look into them.
async fn gzip(State(app): Api, headers: HeaderMap) -> impl IntoResponse {
    app.begin(&headers);
    let bytes =
        [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b, 4, 0, 0x43, 0xbe, 0xb7, 0xe8, 1, 0, 0, 0];
    ([("content-encoding", "gzip"), ("content-type", "text/plain")], bytes)
}

/// Ten bytes of a hundred, then the connection breaks.
async fn half(State(app): Api, headers: HeaderMap) -> impl IntoResponse {
    app.begin(&headers);
    let (sender, body) = channel();
    tokio::spawn(async move {
        let _ = sender.send(Ok("ten bytes.".into())).await;
        let _ = sender.send(Err("the handler gives up".into())).await;
    });
    ([("content-length", "100")], body)
}

async fn panics(State(app): Api, headers: HeaderMap) -> String {
    app.begin(&headers);
    panic!("the handler breaks off, as the test wants it");
}

/// What reached the API.
async fn echo(State(app): Api, request: http::Request<Body>) -> impl IntoResponse {
    let (head, body) = request.into_parts();
    app.begin(&head.headers);
    let bytes = body.collect().await.unwrap().to_bytes();
    let mut headers: HashMap<String, Vec<String>> = HashMap::new();
    for (name, value) in &head.headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        headers.entry(name.to_string()).or_default().push(value);
    }
    let answer = json!({
        "method": head.method.as_str(),
        "uri": head.uri.to_string(),
        "headers": headers,
        "bytes": bytes.len(),
    });
    axum::Json(answer)
}

type Piece = Result<String, String>;

fn channel() -> (mpsc::Sender<Piece>, Body) {
    let (sender, receiver) = mpsc::channel::<Piece>(1);
    let stream = Pieces(receiver);
    (sender, Body::new(stream))
}

/// A body from a channel.
struct Pieces(mpsc::Receiver<Piece>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        let piece = self.0.poll_recv(context);
        piece.map(|piece| piece.map(|piece| piece.map(|text| Frame::data(Bytes::from(text)))))
    }
}

/// A body from an iterator: pieces without a length.
struct Each<I>(I);

impl<I: Iterator<Item = Bytes> + Unpin> http_body::Body for Each<I> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|bytes| Ok(Frame::data(bytes))))
    }
}
