//! Answers on their way out: which of them are live, and by when the others have to be gone.
//!
//! Whoever watches the connection can't see where one answer ends and another begins. While a live
//! one is under way, only progress is asked of the client; `socket.rs` has the rule for whole ones.
//! On HTTP/2 a client can refuse the bytes of one answer and take all others, so nothing ever waits
//! in the connection itself. There answers go out in pieces: a large whole one has a deadline until
//! the last of them was asked for, a live one has one for each piece.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Instant;

use super::interim::Waiting;
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
    interim: Waiting,
}

/// How an answer goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// As it comes from elsewhere; the connection shows whether it is taken.
    Live,
    /// As it comes from elsewhere, and its protocol has windows of its own.
    LiveInPieces,
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
            interim: Waiting::default(),
        }))
    }

    /// What goes out before an answer.
    pub(super) fn interim(&self) -> &Waiting {
        &self.0.interim
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
            How::Live => Some(self.way(true)),
            How::LiveInPieces => {
                let mut way = self.way(true);
                way.in_pieces = true;
                // Its first piece may never be asked for.
                way.due_in(self.0.patience.write_for);
                Some(way)
            }
            How::InPieces if large => {
                let mut way = self.way(false);
                way.in_pieces = true;
                let earned = self.0.patience.earned(body.size_hint().lower());
                way.due_in(self.0.patience.write_for + earned);
                Some(way)
            }
            How::InPieces | How::Whole => None,
        };
        Sent { body, rest: Bytes::new(), way }
    }

    fn way(&self, is_live: bool) -> Way {
        self.0.live.fetch_add(usize::from(is_live), Ordering::Relaxed);
        Way { streams: self.clone(), is_live, in_pieces: false, deadline: None }
    }

    fn deadlines(&self) -> MutexGuard<'_, BTreeSet<(Instant, u64)>> {
        self.0.deadlines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer is on its way for as long as this lives.
#[derive(Debug)]
struct Way {
    streams: Streams,
    is_live: bool,
    in_pieces: bool,
    deadline: Option<(Instant, u64)>,
}

impl Way {
    /// The connection ends when this passes.
    fn due_in(&mut self, time: Duration) {
        let shared = &self.streams.0;
        let deadline = (Instant::now() + time, shared.numbers.fetch_add(1, Ordering::Relaxed));
        self.streams.deadlines().insert(deadline);
        shared.due.fetch_add(1, Ordering::Release);
        self.deadline = Some(deadline);
    }

    /// The client has done its part.
    fn nothing_due(&mut self) {
        if let Some(deadline) = self.deadline.take() {
            self.streams.deadlines().remove(&deadline);
            self.streams.0.due.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.nothing_due();
        self.streams.0.live.fetch_sub(usize::from(self.is_live), Ordering::Relaxed);
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
        let Some(way) = this.way.as_mut().filter(|way| way.in_pieces) else {
            return Pin::new(&mut this.body).poll_frame(context);
        };
        if way.is_live {
            // The next piece is asked for when there is room for it: the last one was taken.
            way.nothing_due();
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
        if way.is_live {
            way.due_in(way.streams.0.patience.write_for);
        }
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
