//! Interim answers (103 Early Hints and their like) on their way from an upstream to a client.
//!
//! A proxy passes them on (RFC 9110 section 15.2), and the HTTP library's server knows none. So
//! they are written past it, over HTTP/1.1, where the connection shows that nothing else is under
//! way: before the first byte of the final answer. What comes at another time, or is more than the
//! bound, is dropped, as is everything for clients over HTTP/1.0, which know none, and over HTTP/2,
//! where frames are the library's. They are hints: whoever misses one loses time.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{Response, StatusCode};
use onceward::http::names;
use tokio::sync::Notify;

use super::headers;
use super::hops::Hop;

/// Bytes of the interim answers to one request at most.
const BYTES_MAX: usize = 16 << 10;

/// The interim answers that wait to be written to a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Waiting(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    any: AtomicBool,
    lines: Mutex<Lines>,
    came: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    /// The request that is being answered.
    of: Option<u64>,
    bytes: Vec<u8>,
    bytes_left: usize,
}

impl Waiting {
    /// What came, if anything did.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        if !self.0.any.swap(false, Ordering::AcqRel) {
            return None;
        }
        Some(std::mem::take(&mut self.lines().bytes))
    }

    /// Takes interim answers to a request of the connection from now on.
    pub(super) fn open(&self, request: u64) -> Interim {
        *self.lines() = Lines { of: Some(request), bytes: Vec::new(), bytes_left: BYTES_MAX };
        Interim { waiting: self.clone(), request }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the interim answers to one request go.
#[derive(Debug, Clone)]
pub(super) struct Interim {
    waiting: Waiting,
    request: u64,
}

impl Interim {
    /// Awaits the final answer, behind which none is taken. Looks up for each: the connection
    /// writes when it was looked at.
    pub(super) async fn until<T>(&self, answering: impl Future<Output = T>) -> T {
        tokio::pin!(answering);
        loop {
            tokio::select! {
                biased;
                answer = &mut answering => {
                    self.waiting.lines().of = None;
                    return answer;
                }
                () = self.waiting.0.came.notified() => {}
            }
        }
    }

    /// Passes one on.
    pub(super) fn pass(&self, mut answer: Response<()>, hop: &Hop) {
        // We have asked for the body, or it was none: nobody waits for us to say so.
        if answer.status() == StatusCode::CONTINUE {
            return;
        }
        let version = answer.version();
        let headers = answer.headers_mut();
        headers::strip_hop_by_hop(headers, &[]);
        names::strip_ours(headers);
        for framing in [CONTENT_LENGTH, TRANSFER_ENCODING] {
            headers.remove(framing);
        }
        hop.sign(headers, version);
        let said = said(&answer);
        let mut lines = self.waiting.lines();
        if lines.of == Some(self.request) && said.len() <= lines.bytes_left {
            lines.bytes_left -= said.len();
            lines.bytes.extend(said);
            drop(lines);
            self.waiting.0.any.store(true, Ordering::Release);
            self.waiting.0.came.notify_one();
        }
    }
}

fn said(answer: &Response<()>) -> Vec<u8> {
    let (status, headers) = (answer.status(), answer.headers());
    let reason = status.canonical_reason().unwrap_or_default();
    let mut said = format!("HTTP/1.1 {} {reason}\r\n", status.as_u16()).into_bytes();
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            said.extend_from_slice(part);
        }
    }
    said.extend_from_slice(b"\r\n");
    said
}
