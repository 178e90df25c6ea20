//! A wire that can be cut: forwards one store's connections, and loses an answer when told to.
//!
//! Rule: when armed, the bytes that carry a group or a COMMIT reach the server, and nothing comes
//! back to the store; its side of the connection is closed. Whether the server answered first is
//! the test's choice. The server's side stays open until the proxy is dropped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const OPEN: u8 = 0;
const AFTER_ANSWER: u8 = 1;
const BEFORE_ANSWER: u8 = 2;

/// What the wire may be cut at.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(dead_code, reason = "each suite that has this proxy cuts at one of them")]
pub(crate) enum CutAt {
    /// A call of the group's function.
    Group,
    /// The COMMIT of a transaction.
    Commit,
}

/// When to cut the wire on which it goes out.
#[derive(Clone, Copy)]
pub(crate) enum Cut {
    /// Once the server has answered: it is committed, and nobody hears.
    AfterAnswer = AFTER_ANSWER as isize,
    /// At once: the server has it, and may take its time.
    BeforeAnswer = BEFORE_ANSWER as isize,
}

pub(crate) struct Proxy {
    address: SocketAddr,
    cut: Arc<AtomicU8>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(server: String, at: CutAt) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(AtomicU8::new(OPEN));
        let armed = cut.clone();
        let task = tokio::spawn(async move {
            while let Ok((store, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                tokio::spawn(forward(store, server, at, armed.clone()));
            }
        });
        Self { address, cut, task }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the wire of the next one, once.
    pub(crate) fn arm(&self, cut: Cut) {
        self.cut.store(cut as u8, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut store: TcpStream, mut server: TcpStream, at: CutAt, cut: Arc<AtomicU8>) {
    let mut to_server = vec![0; 1 << 16];
    let mut to_store = vec![0; 1 << 16];
    let mut groups = Groups::default();
    loop {
        tokio::select! {
            read = store.read(&mut to_server) => {
                let Ok(bytes @ 1..) = read else { return };
                let sent = &to_server[..bytes];
                server.write_all(sent).await.unwrap();
                let carries = match at {
                    CutAt::Group => groups.carried_by(sent),
                    CutAt::Commit => sent.windows(7).any(|window| window == b"COMMIT\0"),
                };
                let how = if carries { cut.swap(OPEN, Ordering::SeqCst) } else { OPEN };
                if how != OPEN {
                    if how == AFTER_ANSWER {
                        while !answered_commit(&mut server, &mut to_store).await {}
                    }
                    drop(store);
                    // Held open, so that the server goes on with what it was given.
                    while let Ok(1..) = server.read(&mut to_store).await {}
                    return;
                }
            }
            read = server.read(&mut to_store) => {
                let Ok(bytes @ 1..) = read else { return };
                if store.write_all(&to_store[..bytes]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The names under which a connection has prepared calls of the group's functions.
#[derive(Default)]
struct Groups(Vec<Vec<u8>>);

impl Groups {
    /// Whether these bytes, which begin with a message, hold such a call. What they prepare is
    /// learnt on the way.
    fn carried_by(&mut self, sent: &[u8]) -> bool {
        let mut rest = sent;
        while let [kind, a, b, c, d, body @ ..] = rest {
            let (first, next) = text_of(body).unzip();
            let (second, _) = next.and_then(text_of).unzip();
            match (kind, first, second) {
                // A statement's name and text.
                (b'P', Some(name), Some(sql)) if calls_a_group(sql) => self.0.push(name.to_vec()),
                // A portal's name, and that of its statement.
                (b'B', _, Some(name)) if self.0.iter().any(|known| known == name) => return true,
                _ => {}
            }
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            rest = rest.get(1 + length..).unwrap_or_default();
        }
        false
    }
}

fn calls_a_group(sql: &[u8]) -> bool {
    let calls = |function: &[u8]| sql.windows(function.len()).any(|part| part == function);
    calls(b"apply_group(") || calls(b"apply_lean(")
}

/// A text up to its end, and what follows.
fn text_of(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// Reads on until the server says that it has committed: it is ready, and in no transaction.
async fn answered_commit(server: &mut TcpStream, buffer: &mut [u8]) -> bool {
    let bytes = server.read(buffer).await.unwrap();
    assert_ne!(bytes, 0, "the server closed the connection before it had committed");
    buffer[..bytes].windows(6).any(|window| window == b"Z\0\0\0\x05I")
}
