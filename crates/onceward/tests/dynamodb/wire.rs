//! A wire that can be cut: forwards a store's requests, and loses an answer when told to.
//!
//! Rule: when armed, the next request of that kind about that item reaches the server, and nothing
//! of its answer comes back. Whether the server has answered by then is the test's choice. Requests
//! are told apart by their head and body, so it speaks just enough HTTP to see where one ends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// When the wire is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Once the server has answered: it is applied, and nobody hears.
    AfterAnswer,
    /// At once: the server has it, and may take its time.
    BeforeAnswer,
}

type Armed = Arc<Mutex<Option<(Cut, String, [String; 2])>>>;

pub(crate) struct Wire {
    address: SocketAddr,
    armed: Armed,
    task: tokio::task::JoinHandle<()>,
    connections: Arc<Mutex<Vec<tokio::task::JoinHandle<()>>>>,
}

impl Wire {
    /// A wire to the server of this URL.
    pub(crate) async fn to(server: &str) -> Self {
        let server = server.trim_start_matches("http://").trim_end_matches('/').to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let armed = Armed::default();
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

    /// Loses the answer of the next request to do this whose body holds one of the words.
    pub(crate) fn arm(&self, cut: Cut, target: &str, word: &str, other: &str) {
        let words = [word.to_string(), other.to_string()];
        *self.armed.lock().unwrap() = Some((cut, target.to_string(), words));
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

async fn forward(mut store: TcpStream, mut server: TcpStream, armed: Armed) {
    while let Some(request) = message(&mut store).await {
        server.write_all(&request).await.unwrap();
        let cut = meant(&request, &armed);
        if cut == Some(Cut::BeforeAnswer) {
            drop(store);
            // Held open, so that the server goes on with what it was given.
            let _ = message(&mut server).await;
            return;
        }
        let Some(answer) = message(&mut server).await else { return };
        if cut.is_some() || store.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn meant(request: &[u8], armed: &Armed) -> Option<Cut> {
    let text = String::from_utf8_lossy(request);
    let mut armed = armed.lock().unwrap();
    let (cut, target, words) = armed.as_ref()?;
    let targets = text.to_ascii_lowercase().contains(&format!(".{target}\r").to_ascii_lowercase());
    if !targets || !words.iter().any(|word| text.contains(word.as_str())) {
        return None;
    }
    let cut = *cut;
    *armed = None;
    Some(cut)
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
