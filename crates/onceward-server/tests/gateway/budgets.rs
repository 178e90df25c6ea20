//! What answers may hold in memory: replays that nobody takes are in nobody else's way, and not for
//! long.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::client::{Answer, PATIENCE, read_to_close, request, send};
use super::target::{Gateway, folder, serve};
use super::upstream::App;

const LARGE: &str = "/large/900000";
/// More answers than the buffers of a connection between here and there take.
const PIPELINED: usize = 40;

fn by(who: &str, key: &str) -> Request<Full<Bytes>> {
    let mut sent = request(LARGE, Some(key), "{}");
    sent.headers_mut().insert("authorization", format!("Bearer {who}").parse().unwrap());
    sent
}

/// Asks until the answer is as wanted.
async fn until(gateway: &Gateway, what: &str, wanted: impl Fn(&Answer) -> bool) {
    let begun = std::time::Instant::now();
    while !wanted(&send(gateway.listen, by("mallory", "k")).await) {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        // sleeps because what is waited for is the kernel's buffers and a deadline
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replays_that_nobody_takes_are_cut_and_meanwhile_in_nobody_s_way() {
    let (folder, app) = (folder("slow_replays"), App::new());
    let file = "[limits]\nreplay_bytes = \"2MiB\"\nanswer_bytes = \"2MiB\"\n\
                write_bytes_per_second = 1000000\n[server]\nwrite_timeout = \"5s\"\n";
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let gateway = Gateway::start(&folder, serve(app.router()).await, &[]);
    assert_eq!(send(gateway.listen, by("mallory", "k")).await.body.len(), 900_000);
    assert_eq!(send(gateway.listen, by("alice", "k")).await.body.len(), 900_000);
    // A client asks for one replay after another and reads none of them.
    let mut stream = TcpStream::connect(gateway.listen).await.unwrap();
    let asked = format!(
        "POST {LARGE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer mallory\r\n\
         idempotency-key: k\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(asked.repeat(PIPELINED).as_bytes()).await.unwrap();
    until(&gateway, "its share is full", |answer| {
        answer.status == 503 && answer.problem().1 == "overload.shed"
    })
    .await;
    // Its own new requests run and are stored, others have their replays.
    let new = send(gateway.listen, by("mallory", "new")).await;
    assert_eq!((new.status, new.header("idempotency-stored")), (200, None));
    let other = send(gateway.listen, by("alice", "k")).await;
    assert_eq!((other.status, other.is_replay(), other.body.len()), (200, true, 900_000));
    // Who does not take what it asked for is cut, and all of its share is there again.
    until(&gateway, "it is cut", |answer| answer.is_replay() && answer.body.len() == 900_000).await;
    let got = read_to_close(&mut stream).await;
    assert!(got.len() < PIPELINED * 900_000, "{}", got.len());
    assert_eq!(app.ran(), 3);
}
