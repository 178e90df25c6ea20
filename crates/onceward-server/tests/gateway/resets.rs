//! HTTP/2 streams that a client resets: half a body is no whole one, however the stream ended.
//!
//! The frames are written by hand, because a client's library closes its streams in its own way.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::client::{post, request, send};
use super::target::{Gateway, Setup, Target, folder};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const CANCEL: u32 = 8;

/// Half of a body that is whole JSON lines all the same.
const HALF: &str = "{\"pay\":1}\n";
const WHOLE: &str = "{\"pay\":1}\n{\"pay\":2}\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Headers as literals that no table keeps.
fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

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

/// A connection whose frames are ours.
struct Frames(TcpStream);

impl Frames {
    async fn open(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self(stream)
    }

    async fn send(&mut self, frames: &[Vec<u8>]) {
        self.0.write_all(&frames.concat()).await.unwrap();
    }

    async fn next(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut payload).await.unwrap();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        (head[3], head[4], stream, payload)
    }

    /// Waits until all that was sent has been taken in.
    async fn seen(&mut self) {
        self.send(&[frame(PING, 0, 0, b"are you?")]).await;
        while self.next().await.0 != PING {}
    }

    /// The body of the answer to a stream.
    async fn body(&mut self, of: u32) -> String {
        let mut body = Vec::new();
        loop {
            let (kind, flags, stream, payload) = self.next().await;
            if kind == SETTINGS && flags & ACK == 0 {
                self.send(&[frame(SETTINGS, ACK, 0, &[])]).await;
            } else if stream == of && [DATA, HEADERS, RST_STREAM].contains(&kind) {
                assert_ne!(kind, RST_STREAM, "the stream was reset");
                body.extend(if kind == DATA { payload } else { Vec::new() });
                if flags & END_STREAM != 0 {
                    return String::from_utf8(body).unwrap();
                }
            }
        }
    }
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
