//! A connection as the HTTP library sees it, with two deadlines and a watch on its framing.
//!
//! The library has no deadline before it knows the protocol, and none for a client that does not
//! read. Both are here: a first head that does not come, and an answer that nobody takes, end the
//! connection.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::framing::Framing;

/// What is read of a connection at a time, at most. The HTTP library doubles its buffer whenever a
/// read fills it, up to the largest head; just below 16 KiB it stays at that, and a crowd of slow
/// bodies does not hold four times as much.
const READ_BYTES_MAX: usize = (16 << 10) - 1;
/// No request was framed twice.
const NONE: u64 = u64::MAX;

/// Which request of a connection was framed twice, told across it.
#[derive(Debug, Clone)]
pub(crate) struct DoubleFramed(Arc<AtomicU64>);

impl DoubleFramed {
    /// Whether it was this one, counted from 0.
    pub(crate) fn is(&self, request: u64) -> bool {
        self.0.load(Ordering::Acquire) == request
    }
}

/// A watched connection.
pub(crate) struct Socket<S> {
    inner: S,
    framing: Framing,
    double: DoubleFramed,
    /// Until the first head is there.
    first_head: Option<Pin<Box<Sleep>>>,
    write_for: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Socket<S> {
    /// Watches a connection that has just been made.
    pub(crate) fn new(inner: S, first_head_for: Duration, write_for: Duration) -> Self {
        Self {
            inner,
            framing: Framing::default(),
            double: DoubleFramed(Arc::new(AtomicU64::new(NONE))),
            first_head: Some(Box::pin(tokio::time::sleep(first_head_for))),
            write_for,
            stalled: None,
        }
    }

    /// What tells which request was framed twice.
    pub(crate) fn double_framed(&self) -> DoubleFramed {
        self.double.clone()
    }

    fn seen(&mut self, bytes: &mut [u8]) {
        self.framing.feed(bytes);
        if let Some(request) = self.framing.double() {
            self.double.0.store(request, Ordering::Release);
        }
        if self.framing.past_first_head() {
            self.first_head = None;
        }
    }

    /// A write that waits may wait only so long.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let wait = self.write_for;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(late("the client takes nothing"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        let read = if buffer.remaining() <= READ_BYTES_MAX {
            Pin::new(&mut this.inner).poll_read(context, buffer)
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(READ_BYTES_MAX));
            let read = Pin::new(&mut this.inner).poll_read(context, &mut part);
            let length = part.filled().len();
            buffer.advance(length);
            read
        };
        match read {
            Poll::Ready(Ok(())) => {
                this.seen(&mut buffer.filled_mut()[before..]);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let Some(deadline) = &mut this.first_head else { return Poll::Pending };
                ready!(deadline.as_mut().poll(context));
                Poll::Ready(Err(late("no head came")))
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.timed(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.timed(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        self.timed(context, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.timed(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
