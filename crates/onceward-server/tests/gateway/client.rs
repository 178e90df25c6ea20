//! A plain HTTP client: one connection per request, and raw bytes where a client must misbehave.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::target::whole;

/// Nothing in these tests takes longer; a hang is a failure that names its place.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// Status and code of a problem.
    #[track_caller]
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_string())
    }
}

/// A POST by alice.
pub(crate) fn request(path: &str, key: Option<&str>, body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::post(path)
        .header("host", "api.example")
        .header("authorization", "Bearer alice")
        .header("content-type", "application/json");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    request.body(Full::new(Bytes::from(body.to_string()))).unwrap()
}

/// A POST by alice, and its answer.
pub(crate) async fn post(to: SocketAddr, path: &str, key: Option<&str>, body: &str) -> Answer {
    send(to, request(path, key, body)).await
}

/// Sends a request on a connection of its own.
pub(crate) async fn send<B>(to: SocketAddr, request: Request<B>) -> Answer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let answer = tokio::time::timeout(PATIENCE, try_send(to, request)).await;
    answer.expect("an answer in time").expect("a whole answer")
}

/// As [`send`]; none when the connection broke before a whole answer.
pub(crate) async fn try_send<B>(to: SocketAddr, request: Request<B>) -> Option<Answer>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let response = open(to, request).await?;
    let (head, body) = response.into_parts();
    let body = whole(body).await?;
    Some(Answer { status: head.status.as_u16(), headers: head.headers, body })
}

/// The head of an answer, with its body still coming.
pub(crate) async fn open<B>(to: SocketAddr, request: Request<B>) -> Option<http::Response<Incoming>>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = TcpStream::connect(to).await.ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    sender.send_request(request).await.ok()
}

/// Sends bytes and reads until the other side closes.
pub(crate) async fn raw(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    read_to_close(&mut stream).await
}

/// Reads until the other side closes.
pub(crate) async fn read_to_close(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    // A reset closes too; what came before it counts.
    let _ = read.expect("the connection closes in time");
    String::from_utf8_lossy(&answer).into_owned()
}
