//! A wire that can be cut: forwards a store's requests, and does something else when told to.
//!
//! Rule: when armed, the next requests of that kind about such an item are lost, held back or
//! answered by the wire itself; all others pass. Requests are told apart by their head and body, so
//! it speaks just enough HTTP to see where one ends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Once the server has answered: it is applied, and nobody hears.
    AfterAnswer,
    /// At once: the server has it, and may take its time.
    BeforeAnswer,
    /// It waits on the wire until [`Wire::go`].
    Hold,
    /// The server never sees it; this status and error are the answer.
    Answer(u16, &'static str),
}

/// What is to be cut: how, which operation, what its request holds, how often.
type Planned = (Cut, String, [String; 2], u32);

/// What is armed: what happens, to which requests, and how many of them.
#[derive(Default)]
struct Armed {
    plan: Mutex<Option<Planned>>,
    arrived: Notify,
    go: Notify,
}

pub(crate) struct Wire {
    address: SocketAddr,
    armed: Arc<Armed>,
    task: tokio::task::JoinHandle<()>,
    connections: Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>,
}

impl Wire {
    /// A wire to the server of this URL.
    pub(crate) async fn to(server: &str) -> Self {
        let server = server.trim_start_matches("http://").trim_end_matches('/').to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let armed = Arc::new(Armed::default());
        let connections = Arc::new(Mutex::new(Vec::new()));
        let (all, shared) = (connections.clone(), armed.clone());
        let task = tokio::spawn(async move {
            while let Ok((store, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let connection = tokio::spawn(forward(store, server, shared.clone()));
                all.lock().unwrap().push(connection);
            }
        });
        Self { address, armed, task, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Does this to the next requests, so many of them, of this kind whose body holds a word.
    pub(crate) fn arm(&self, cut: Cut, target: &str, words: [&str; 2], times: u32) {
        let words = words.map(ToString::to_string);
        *self.armed.plan.lock().unwrap() = Some((cut, target.to_string(), words, times));
    }

    /// Returns once a request is held back.
    pub(crate) async fn holds(&self) {
        self.armed.arrived.notified().await;
    }

    /// Lets the request go on that is held back.
    pub(crate) fn go(&self) {
        self.armed.go.notify_one();
    }

    /// Ends it: nobody listens any more.
    pub(crate) async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
        for connection in self.connections.lock().unwrap().drain(..) {
            connection.abort();
        }
    }
}

async fn forward(mut store: TcpStream, mut server: TcpStream, armed: Arc<Armed>) {
    while let Some(request) = message(&mut store).await {
        let cut = armed.meant(&request);
        match cut {
            Some(Cut::Answer(status, error)) => {
                let body =
                    format!(r#"{{"__type":"com.amazonaws.dynamodb#{error}","message":"x"}}"#);
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}", body.len());
                let answer = format!("{head}\r\nx-amzn-errortype: {error}\r\n\r\n{body}");
                if store.write_all(answer.as_bytes()).await.is_err() {
                    return;
                }
                continue;
            }
            Some(Cut::Hold) => {
                armed.arrived.notify_one();
                armed.go.notified().await;
            }
            _ => {}
        }
        server.write_all(&request).await.unwrap();
        if cut == Some(Cut::BeforeAnswer) {
            drop(store);
            // Held open, so that the server goes on with what it was given.
            let _ = message(&mut server).await;
            return;
        }
        let Some(answer) = message(&mut server).await else { return };
        if cut == Some(Cut::AfterAnswer) || store.write_all(&answer).await.is_err() {
            return;
        }
    }
}

impl Armed {
    fn meant(&self, request: &[u8]) -> Option<Cut> {
        let text = String::from_utf8_lossy(request);
        let mut plan = self.plan.lock().unwrap();
        let (cut, target, words, times) = plan.as_mut()?;
        let target = format!(".{target}\r").to_ascii_lowercase();
        let meant = text.to_ascii_lowercase().contains(&target);
        if *times == 0 || !meant || !words.iter().any(|word| text.contains(word.as_str())) {
            return None;
        }
        *times -= 1;
        Some(*cut)
    }
}

/// One message, head and body; none when the connection ended.
async fn message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        if let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&all[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if all.len() >= end + 4 + length {
                return Some(all);
            }
        }
        match stream.read(&mut buffer).await {
            Ok(bytes @ 1..) => all.extend_from_slice(&buffer[..bytes]),
            _ => return None,
        }
    }
}
