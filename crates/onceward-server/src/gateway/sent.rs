//! Answers on their way out: which of them are live, and by when the others have to be gone.
//!
//! Whoever watches the connection can't see where one answer ends and another begins. While a live
//! one is under way, only progress is asked of the client; `socket.rs` has the rule for whole ones.
//! On HTTP/2 a client can refuse the bytes of one answer and take all others, so nothing ever waits
//! in the connection itself. There a large answer goes out in pieces, and has a deadline until the
//! last of them was asked for.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::socket::Patience;

/// Largest piece of an answer on HTTP/2, and so the most of one that a client can leave with us.
const PIECE_BYTES: usize = 16 << 10;

/// The answers that are under way on a connection.
#[derive(Debug, Clone)]
pub(crate) struct Streams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    patience: Patience,
    live: AtomicUsize,
    /// How many have a deadline: a look at it is cheaper than one at them.
    due: AtomicUsize,
    deadlines: Mutex<BTreeSet<(Instant, u64)>>,
    numbers: AtomicU64,
}

/// How an answer goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// As it comes from elsewhere.
    Live,
    /// All of it is here; the connection shows whether it is taken.
    Whole,
    /// All of it is here, and its protocol has windows of its own.
    InPieces,
}

impl Streams {
    /// None yet.
    pub(super) fn new(patience: Patience) -> Self {
        Self(Arc::new(Shared {
            patience,
            live: AtomicUsize::new(0),
            due: AtomicUsize::new(0),
            deadlines: Mutex::default(),
            numbers: AtomicU64::new(0),
        }))
    }

    /// Whether any of them is live.
    pub(super) fn any_live(&self) -> bool {
        self.0.live.load(Ordering::Relaxed) > 0
    }

    /// When the connection ends unless an answer goes out.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.0.due.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.deadlines().first().map(|(at, _)| *at)
    }

    /// An answer as it goes out.
    pub(crate) fn send<B: HttpBody>(&self, body: B, how: How) -> Sent<B> {
        let large = body.size_hint().lower() > PIECE_BYTES as u64;
        let way = match how {
            How::Live => Some(self.live()),
            How::InPieces if large => Some(self.due(body.size_hint().lower())),
            How::InPieces | How::Whole => None,
        };
        Sent { body, rest: Bytes::new(), way }
    }

    fn live(&self) -> Way {
        self.0.live.fetch_add(1, Ordering::Relaxed);
        Way { streams: self.clone(), deadline: None }
    }

    fn due(&self, bytes: u64) -> Way {
        let Patience { write_for, .. } = self.0.patience;
        let at = Instant::now() + write_for + self.0.patience.earned(bytes);
        let deadline = (at, self.0.numbers.fetch_add(1, Ordering::Relaxed));
        self.deadlines().insert(deadline);
        self.0.due.fetch_add(1, Ordering::Release);
        Way { streams: self.clone(), deadline: Some(deadline) }
    }

    fn deadlines(&self) -> MutexGuard<'_, BTreeSet<(Instant, u64)>> {
        self.0.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer is on its way for as long as this lives.
#[derive(Debug)]
struct Way {
    streams: Streams,
    deadline: Option<(Instant, u64)>,
}

impl Drop for Way {
    fn drop(&mut self) {
        match &self.deadline {
            None => {
                self.streams.0.live.fetch_sub(1, Ordering::Relaxed);
            }
            Some(deadline) => {
                self.streams.deadlines().remove(deadline);
                self.streams.0.due.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

/// The body of an answer as it goes out.
#[derive(Debug)]
pub(crate) struct Sent<B> {
    body: B,
    /// What is left of a frame that goes out in pieces.
    rest: Bytes,
    way: Option<Way>,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.way.as_ref().is_none_or(|way| way.deadline.is_none()) {
            return Pin::new(&mut this.body).poll_frame(context);
        }
        if this.rest.is_empty() {
            match Pin::new(&mut this.body).poll_frame(context).map_ok(Frame::into_data) {
                Poll::Ready(Some(Ok(Ok(data)))) => this.rest = data,
                Poll::Ready(Some(Ok(Err(other)))) => return Poll::Ready(Some(Ok(other))),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
        let piece = this.rest.split_to(this.rest.len().min(PIECE_BYTES));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}
