//! kill -9 between the steps of a request: nothing is lost, nothing runs twice at once.
//!
//! Each test stops the gateway at one known point, starts it again on the same file and retries
//! with the same key, as a client does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::client::{Answer, PATIENCE, post, request, send, try_send};
use super::target::{Gateway, Setup, folder, serve};
use super::upstream::App;

/// A short lease, so that a test need not wait for a long one.
fn setup() -> Setup {
    Setup { lease_ms: 1_000, ..Setup::default() }
}

struct Place {
    folder: PathBuf,
    app: Arc<App>,
    upstream: SocketAddr,
}

impl Place {
    async fn new(name: &str) -> Self {
        let app = App::new();
        let upstream = serve(app.router()).await;
        Self { folder: folder(name), app, upstream }
    }

    fn start(&self) -> Gateway {
        Gateway::start(&self.folder, self.upstream, &setup().flags())
    }
}

/// Sends the same request with the same key until it has a final answer.
async fn retry(to: SocketAddr, path: &str, key: &str) -> Answer {
    let trying = async {
        loop {
            let answer = post(to, path, Some(key), "{}").await;
            if answer.status < 400 {
                return answer;
            }
            assert_eq!(answer.problem(), (409, "idempotency.in_flight".into()));
        }
    };
    tokio::time::timeout(PATIENCE, trying).await.expect("final within lease and a little")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i10_killed_after_the_claim_before_upstream_reads() {
    let place = Place::new("killed_after_claim").await;
    // Accepts connections and reads nothing.
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = deaf.local_addr().unwrap();
    let gateway = Gateway::start(&place.folder, address, &setup().flags());
    let lost = tokio::spawn(try_send(gateway.listen, request("/payments", Some("k"), "{}")));
    let held = deaf.accept().await.unwrap();
    gateway.kill();
    assert_eq!(lost.await.unwrap(), None);
    drop(held);
    let gateway = place.start();
    let answer = retry(gateway.listen, "/payments", "k").await;
    assert_eq!((answer.status, place.app.ran()), (201, 1));
    assert_eq!(place.app.runs()[0].attempt, 2, "the first may have been sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i05_killed_while_upstream_works() {
    let place = Place::new("killed_at_work").await;
    let gateway = place.start();
    let lost = tokio::spawn(try_send(gateway.listen, request("/slow", Some("k"), "{}")));
    place.app.started().await;
    gateway.kill();
    assert_eq!(lost.await.unwrap(), None);
    let gateway = place.start();
    let listen = gateway.listen;
    let retried = tokio::spawn(async move { retry(listen, "/slow", "k").await });
    place.app.started().await;
    place.app.go_on();
    place.app.go_on();
    assert_eq!(retried.await.unwrap().status, 200);
    let runs = place.app.runs();
    assert_eq!((runs.len(), runs[0].attempt, runs[1].attempt), (2, 1, 2));
    assert!(runs[1].fence > runs[0].fence, "{runs:?}");
    assert!(post(listen, "/slow", Some("k"), "{}").await.is_replay());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i02_killed_in_the_middle_of_the_answer() {
    let place = Place::new("killed_in_answer").await;
    let gateway = place.start();
    let lost = tokio::spawn(try_send(gateway.listen, request("/trickle", Some("k"), "{}")));
    place.app.started().await;
    gateway.kill();
    assert_eq!(lost.await.unwrap(), None, "half an answer is never sent");
    place.app.go_on();
    let gateway = place.start();
    place.app.go_on();
    let answer = retry(gateway.listen, "/trickle", "k").await;
    assert_eq!(&answer.body[..], b"trickle 2, and the rest");
    let runs = place.app.runs();
    assert!(runs[1].fence > runs[0].fence, "{runs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i02_killed_after_the_answer_replays_it() {
    let place = Place::new("killed_after_answer").await;
    let gateway = place.start();
    let first = post(gateway.listen, "/payments", Some("k"), "{}").await;
    gateway.kill();
    let gateway = place.start();
    let again = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    assert_eq!(place.app.ran(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i01_killed_anywhere_every_answer_stands_and_no_two_run_at_once() {
    let place = Place::new("killed_anywhere").await;
    let mut acknowledged: Vec<(String, Answer)> = Vec::new();
    for round in 0..6_u64 {
        let gateway = place.start();
        let listen = gateway.listen;
        let sent: Vec<_> = (0..20)
            .map(|n| {
                let key = format!("r{round}-{n}");
                let sent = request("/payments", Some(&key), "{}");
                (key, tokio::spawn(try_send(listen, sent)))
            })
            .collect();
        // sleeps because the point of the kill is to be any
        tokio::time::sleep(std::time::Duration::from_millis(round * 4)).await;
        gateway.kill();
        for (key, answer) in sent {
            if let Some(answer) = answer.await.unwrap() {
                assert_eq!(answer.status, 201, "{answer:?}");
                acknowledged.push((key, answer));
            }
        }
    }
    let gateway = place.start();
    for (key, first) in &acknowledged {
        let again = post(gateway.listen, "/payments", Some(key), "{}").await;
        assert_eq!((again.is_replay(), &again.body), (true, &first.body), "i03 {key}");
    }
    for round in 0..6 {
        for n in 0..20 {
            retry(gateway.listen, "/payments", &format!("r{round}-{n}")).await;
        }
    }
    let mut runs = place.app.runs();
    runs.sort_by_key(|run| (run.key.clone(), run.fence));
    for pair in runs.windows(2).filter(|pair| pair[0].key == pair[1].key) {
        assert!(pair[0].fence < pair[1].fence, "i05 {pair:?}");
        assert!(pair[0].attempt < pair[1].attempt, "{pair:?}");
    }
    assert_eq!(place.app.at_once_max(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_killed_at_work_is_502_and_the_retry_runs() {
    // An upstream that reads a request and dies, then one that answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gateway = Gateway::start(&folder("upstream_killed"), address, &setup().flags());
    let upstream = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in ["", "HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 4_096];
            let read = stream.read(&mut buffer).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            heads.push(String::from_utf8_lossy(&buffer[..read]).into_owned());
        }
        heads
    });
    let failed = post(gateway.listen, "/payments", Some("k"), "{}").await;
    assert_eq!(failed.problem(), (502, "upstream.failed".into()));
    assert_eq!(send(gateway.listen, request("/payments", Some("k"), "{}")).await.status, 201);
    let heads = upstream.await.unwrap();
    let attempt = |head: &str| {
        head.lines().find(|line| line.starts_with("onceward-attempt")).map(str::to_string)
    };
    assert_eq!(attempt(&heads[0]).as_deref(), Some("onceward-attempt: 1"));
    assert_eq!(attempt(&heads[1]).as_deref(), Some("onceward-attempt: 2"));
}
