//! HTTP/2 streams that a client resets: half a body is no whole one, however the stream ended.
//!
//! The frames are written by hand, because a client's library closes its streams in its own way.

use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::client::{post, request, send};
use super::frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, INTERNAL_ERROR, NO_ERROR, RST_STREAM,
    block, frame,
};
use super::target::{Gateway, Setup, Target, folder};

/// Half of a body that is whole JSON lines all the same.
const HALF: &str = "{\"pay\":1}\n";
const WHOLE: &str = "{\"pay\":1}\n{\"pay\":2}\n";

/// The head of a POST by alice.
fn head(stream: u32, path: &str, key: Option<&str>, flags: u8) -> Vec<u8> {
    let mut headers = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "api.example"),
        ("authorization", "Bearer alice"),
        ("content-type", "application/x-ndjson"),
    ];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    frame(HEADERS, END_HEADERS | flags, stream, &block(&headers))
}

/// An upstream that never answers, and says what came on each connection once it was closed.
async fn silent_upstream() -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut came = Vec::new();
                let _ = stream.read_to_end(&mut came).await;
                let _ = tell.send(String::from_utf8_lossy(&came).into_owned());
            });
        }
    });
    (address, told)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_whose_stream_is_reset_never_runs_under_a_key() {
    let at = Target::gateway("reset_keyed", &Setup::default()).await;
    for code in [NO_ERROR, CANCEL, INTERNAL_ERROR] {
        for n in 0..20 {
            let key = format!("k{code}-{n}");
            let mut client = Frames::open(at.address).await;
            client
                .send(&[head(1, "/payments", Some(&key), 0), frame(DATA, 0, 1, HALF.as_bytes())])
                .await;
            if n % 2 == 0 {
                // Taken in before the reset, or together with it.
                client.seen().await;
            }
            client.send(&[frame(RST_STREAM, 0, 1, &code.to_be_bytes())]).await;
            client.seen().await;
            let mut whole = request("/payments", Some(&key), WHOLE);
            whole.headers_mut().insert("content-type", "application/x-ndjson".parse().unwrap());
            let retried = send(at.address, whole).await;
            assert_eq!((retried.status, retried.is_replay()), (201, false), "{code} {retried:?}");
            assert_eq!(retried.json()["bytes"], WHOLE.len());
        }
    }
    assert_eq!(at.app.ran(), 60, "only the retries ran");
}

/// As clients on Node.js do that give up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_ended_and_reset_in_one_breath_does_not_run() {
    let at = Target::gateway("reset_ended", &Setup::default()).await;
    let mut client = Frames::open(at.address).await;
    for n in 0..20_u32 {
        let (stream, key) = (n * 2 + 1, format!("k{n}"));
        client.send(&[head(stream, "/payments", Some(&key), 0)]).await;
        client.send(&[frame(DATA, 0, stream, HALF.as_bytes())]).await;
        client.seen().await;
        let (end, reset) = (frame(DATA, END_STREAM, stream, &[]), CANCEL.to_be_bytes());
        client.send(&[end, frame(RST_STREAM, 0, stream, &reset)]).await;
        client.seen().await;
        assert_eq!(post(at.address, "/payments", Some(&key), WHOLE).await.status, 201, "{n}");
    }
    assert_eq!(at.app.ran(), 20, "only the retries ran");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_whose_stream_is_reset_is_passed_on_as_half_a_body() {
    let (address, mut came) = silent_upstream().await;
    let gateway = Gateway::start(&folder("reset_unkeyed"), address, &[]);
    for code in [NO_ERROR, CANCEL, INTERNAL_ERROR] {
        let mut client = Frames::open(gateway.listen).await;
        client.send(&[head(1, "/payments", None, 0), frame(DATA, 0, 1, HALF.as_bytes())]).await;
        client.seen().await;
        client.send(&[frame(RST_STREAM, 0, 1, &code.to_be_bytes())]).await;
        let came = came.recv().await.unwrap();
        assert!(!came.ends_with("\r\n0\r\n\r\n"), "{code}: {came}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_ends_however_it_ends_is_a_whole_body() {
    let at = Target::gateway("reset_ends", &Setup::default()).await;
    let trailers = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x-sum", "1")]));
    let whole = WHOLE.as_bytes();
    let ends = [
        (vec![frame(DATA, END_STREAM, 1, whole)], WHOLE.len()),
        (vec![frame(DATA, 0, 1, whole), frame(DATA, END_STREAM, 1, &[])], WHOLE.len()),
        (vec![frame(DATA, 0, 1, whole), trailers.clone()], WHOLE.len()),
        (vec![frame(DATA, END_STREAM, 1, &[])], 0),
        (vec![trailers], 0),
        (vec![], 0),
    ];
    for (n, (frames, bytes)) in ends.iter().enumerate() {
        for key in [Some(format!("k{n}")), None] {
            for together in [true, false] {
                let key = key.as_ref().map(|key| format!("{key}-{together}"));
                let mut client = Frames::open(at.address).await;
                let flags = if frames.is_empty() { END_STREAM } else { 0 };
                client.send(&[head(1, "/payments", key.as_deref(), flags)]).await;
                if !together {
                    client.seen().await;
                }
                client.send(frames).await;
                let answer = client.body(1).await;
                assert!(answer.contains(&format!("\"bytes\":{bytes}")), "{n} {key:?}: {answer}");
            }
        }
    }
    assert_eq!(post(at.address, "/payments", Some("last"), "{}").await.status, 201);
}
