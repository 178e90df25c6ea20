//! The admin listener, and that of the demo's services: HTTP/1.1 within bounds, until told to end.
//!
//! Connections, their heads, bodies, idle times and unread answers are bounded, so that slow or
//! many clients can't take the process: a place is only kept by one who sends or takes. A request
//! that is framed twice is refused and its connection closed. When told to end, it takes no new
//! connection, lets requests under way finish for a while and then breaks off.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use onceward::http::{Code, Dialect, Refusal, names};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::Service;

use super::{AdminState, router};
use crate::gateway::body::RequestBody;
use crate::gateway::sent::How;
use crate::gateway::socket::{Patience, Socket};
use crate::open_files::Shares;

/// Connections at once, and how long a request's body may take beyond what its bytes earn.
const BOUNDS: Bounds = Bounds { connections_max: 1_024, body_within: Duration::from_secs(30) };
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long a request's head may take, and a kept connection may idle.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long a client may leave its answer unread, beyond what the bytes that it takes earn.
const PATIENCE: Patience = Patience { write_for: Duration::from_secs(30), bytes_per_second: 1_000 };
/// How long requests under way may take after the listener was told to end.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// Pause after an accept that failed: most often there are no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What clients may take of a listener.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    connections_max: usize,
    body_within: Duration,
}

/// Serves the control API until `shutdown` resolves and requests under way have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    state: AdminState,
    shutdown: impl Future<Output = ()>,
) {
    let router = router(state.clone());
    // Waits for outcomes and jobs end, so that their requests can.
    let told = || state.0.options.health.drain();
    serve_router(listener, &router, shutdown, told).await;
}

/// Serves a router until `shutdown` resolves, which `told` passes on, and requests under way have
/// ended.
pub(crate) async fn serve_router(
    listener: TcpListener,
    router: &axum::Router,
    shutdown: impl Future<Output = ()>,
    told: impl FnOnce(),
) {
    let connections_max = BOUNDS.connections_max.min(Shares::now().control);
    serve_within(Bounds { connections_max, ..BOUNDS }, listener, router, shutdown, told).await;
}

async fn serve_within(
    bounds: Bounds,
    listener: TcpListener,
    router: &axum::Router,
    shutdown: impl Future<Output = ()>,
    told: impl FnOnce(),
) {
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(bounds.connections_max));
    tokio::pin!(shutdown);
    loop {
        // A place first: whoever comes when all are taken waits in the listener's own queue.
        let accept = async {
            let place = room.clone().acquire_owned().await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>((place, listener.accept().await?))
        };
        let accepted = tokio::select! {
            accepted = accept => accepted,
            () = &mut shutdown => break,
        };
        let (place, (stream, peer)) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(error = %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let watcher = graceful.watcher();
        let connection = connection(stream, peer, router, bounds.body_within);
        tokio::spawn(async move {
            // A client that breaks off is no news.
            let _ = watcher.watch(connection).await;
            drop(place);
        });
    }
    told();
    if tokio::time::timeout(DRAIN_WITHIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were broken off: they took too long to end");
    }
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: &axum::Router,
    body_within: Duration,
) -> impl hyper_util::server::graceful::GracefulConnection<Error = hyper::Error> + use<> {
    // Answers are small and wait for nothing; a failure only costs time.
    let _ = stream.set_nodelay(true);
    let router = router.clone();
    let socket = Socket::new(stream, HEAD_BYTES_MAX, HEAD_WITHIN, PATIENCE);
    let (double_framed, streams) = (socket.double_framed(), socket.streams());
    let requests = AtomicU64::new(0);
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let double = double_framed.is(requests.fetch_add(1, Ordering::Relaxed));
        let version = request.version();
        let live = |body| axum::body::Body::new(RequestBody::live(body, version, body_within));
        let mut request = request.map(live);
        request.extensions_mut().insert(ConnectInfo(peer));
        let (mut router, streams) = (router.clone(), streams.clone());
        async move {
            let answered = if double {
                Ok(framed_twice(request.headers()))
            } else {
                router.call(request).await
            };
            answered.map(|response| {
                response.map(|body| {
                    // What is streamed does not know its length.
                    let is_live = body.size_hint().exact().is_none();
                    streams.send(body, if is_live { How::Live } else { How::Whole })
                })
            })
        }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), service)
}

/// The answer to a request whose length is said in two ways, after which its connection closes:
/// whoever stands before us may have seen another request end there.
fn framed_twice(headers: &HeaderMap) -> axum::response::Response {
    let id = headers.get(names::X_REQUEST_ID).and_then(|id| id.to_str().ok());
    let detail = "it has both Content-Length and Transfer-Encoding";
    let refusal = Refusal::new(Code::BadRequest, detail);
    let said = Dialect::Standard.speaker().refuse(&refusal, id.unwrap_or("none"));
    let mut response = said.map(axum::body::Body::from);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::response::IntoResponse;
    use axum::routing::post;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::super::answer::whole;
    use super::*;

    const HALF: &str = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{";
    const WHOLE: &str =
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";

    /// All that comes back until the connection is closed.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut said = Vec::new();
        // Closed on one who still sends it may break off; what was said counts.
        let _ = stream.read_to_end(&mut said).await;
        String::from_utf8(said).unwrap()
    }

    #[tokio::test]
    async fn bodies_that_do_not_come_lose_their_places_to_others() {
        let echo = |body: Body| async move {
            whole(body).await.map_or_else(IntoResponse::into_response, IntoResponse::into_response)
        };
        let router = axum::Router::new().route("/", post(echo));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let bounds = Bounds { connections_max: 2, body_within: Duration::from_millis(300) };
        let served = tokio::spawn(async move {
            let until = async { drop(stopped.await) };
            serve_within(bounds, listener, &router, until, || {}).await;
        });
        let (mut silent, trickle) = (
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
        );
        silent.write_all(HALF.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = trickle.into_split();
        writer.write_all(HALF.as_bytes()).await.unwrap();
        let trickling = tokio::spawn(async move {
            while writer.write_all(b" ").await.is_ok() {
                // sleeps because the client is to be slow
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        // All places are theirs: another client is answered once they are cut.
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(WHOLE.as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(30), rest(&mut other)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{}"), "{answer}");
        let cut = rest(&mut silent).await;
        assert!(cut.starts_with("HTTP/1.1 408"), "{cut}");
        // A trickle does not earn its time.
        let mut said = Vec::new();
        let _ = reader.read_to_end(&mut said).await;
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 408"));
        drop(reader);
        trickling.await.unwrap();
        drop(stop);
        served.await.unwrap();
    }
}
