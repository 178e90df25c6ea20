//! A connection as the HTTP library sees it, with its deadlines and a watch on its framing.
//!
//! The library has no deadline before it knows the protocol, and none for a client that does not
//! read. Both are here: a first head that does not come, and an answer that nobody takes, end the
//! connection. So does an answer that is taken too slowly. As with the body of a request, bytes
//! earn time: what is whole on our side is held only as long as its size allows, and a trickle is
//! cut. On HTTP/2, where a client can leave one answer with us, each has a deadline of its own,
//! however many share the connection. Of what is passed on live (see `sent.rs`) only progress is
//! asked: how long it takes is not the client's doing alone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::framing::Framing;
use super::sent::Streams;
use super::trailers::Checked;

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
    inner: Checked<S>,
    framing: Framing,
    double: DoubleFramed,
    /// Until the first head is there.
    first_head: Option<Pin<Box<Sleep>>>,
    patience: Patience,
    streams: Streams,
    /// How much longer the client may take for what waits to be written. None when nothing waits.
    left: Option<Duration>,
    /// Since when a write waits, and how long it may.
    stalled: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Until the next answer has to be gone.
    overdue: Option<Pin<Box<Sleep>>>,
    /// What is left to write of interim answers.
    interim: Vec<u8>,
    /// Whether the library has written nothing since it last had nothing to write.
    is_between: bool,
}

/// How long a client may take to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Without taking a byte, and in all beyond what the bytes earn.
    pub(crate) write_for: Duration,
    /// Bytes of a whole answer that earn a second.
    pub(crate) bytes_per_second: u32,
}

impl Patience {
    /// The time that bytes earn.
    pub(super) fn earned(self, bytes: u64) -> Duration {
        let per_second = u64::from(self.bytes_per_second.max(1));
        // In small units: what many small writes earn is not rounded away.
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / per_second)
    }
}

impl<S> Socket<S> {
    /// Watches a connection that has just been made, whose heads have at most so many bytes.
    pub(crate) fn new(
        inner: S,
        head_bytes_max: usize,
        first_head_for: Duration,
        patience: Patience,
    ) -> Self {
        Self {
            inner: Checked::new(inner),
            framing: Framing::new(head_bytes_max),
            double: DoubleFramed(Arc::new(AtomicU64::new(NONE))),
            first_head: Some(Box::pin(tokio::time::sleep(first_head_for))),
            patience,
            streams: Streams::new(patience),
            left: None,
            stalled: None,
            overdue: None,
            interim: Vec::new(),
            is_between: true,
        }
    }

    /// What tells which request was framed twice.
    pub(crate) fn double_framed(&self) -> DoubleFramed {
        self.double.clone()
    }

    /// What tells of the answers that are under way here.
    pub(crate) fn streams(&self) -> Streams {
        self.streams.clone()
    }

    fn seen(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.framing.feed(bytes);
        if self.framing.is_lost() {
            let why = "a line of the request is too long to follow";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if let Some(request) = self.framing.double() {
            self.double.0.store(request, Ordering::Release);
        }
        if self.framing.past_first_head() {
            self.first_head = None;
        }
        Ok(())
    }

    /// An answer whose time is over ends the connection, whatever else goes well on it. Looked at
    /// whenever the library waits for the client, as it does after every answer that it begins.
    fn wait_for_client(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(deadline) = &mut self.first_head {
            ready!(deadline.as_mut().poll(context));
            return Poll::Ready(Err(late("no head came")));
        }
        let Some(at) = self.streams.deadline() else {
            self.overdue = None;
            return Poll::Pending;
        };
        let overdue = self.overdue.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if overdue.deadline() != at {
            overdue.as_mut().reset(at);
        }
        ready!(overdue.as_mut().poll(context));
        Poll::Ready(Err(late("the client leaves an answer with us")))
    }

    /// Bytes that the connection took, or none yet.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(Ok(bytes)) = result else { return self.timed(context, result) };
        self.is_between = false;
        let waited = self.stalled.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
        if let Some(left) = self.left {
            let left = left.saturating_sub(waited) + self.patience.earned(bytes as u64);
            self.left = Some(left.min(self.patience.write_for));
        }
        Poll::Ready(Ok(bytes))
    }

    /// The library flushes once it has written all that it has: then nothing waits any more.
    fn flushed(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if result.is_ready() {
            self.left = None;
            self.is_between = true;
        }
        self.timed(context, result)
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
        let most = self.patience.write_for;
        // A live answer starts over with every byte that is taken.
        let left = if self.streams.any_live() { most } else { self.left.unwrap_or(most) };
        self.left = Some(left);
        let wait = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, deadline) = self.stalled.get_or_insert_with(wait);
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(late("the client takes too little"))),
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
            Poll::Ready(Ok(())) => Poll::Ready(this.seen(&mut buffer.filled_mut()[before..])),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => this.wait_for_client(context),
        }
    }
}

impl<S: AsyncWrite + Unpin> Socket<S> {
    /// Writes interim answers before what the library writes next. Once it has begun to write
    /// something, they would be in the middle of it, and are dropped.
    fn write_interim(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(waiting) = self.streams.interim().take().filter(|_| self.is_between) {
            self.interim.extend(waiting);
        }
        while !self.interim.is_empty() {
            let written = Pin::new(&mut self.inner).poll_write(context, &self.interim);
            let bytes = ready!(self.timed(context, written))?;
            self.interim.drain(..bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.write_interim(context))?;
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The library has nothing left to write.
        self.is_between = true;
        ready!(self.write_interim(context))?;
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        self.flushed(context, flushed)
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
        ready!(self.write_interim(context))?;
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::super::sent::How;
    use super::*;

    /// Long enough that a busy machine is not taken for a slow client.
    const WRITE_FOR: Duration = Duration::from_secs(1);

    fn socket(bytes_per_second: u32) -> (Socket<DuplexStream>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(16);
        let patience = Patience { write_for: WRITE_FOR, bytes_per_second };
        (Socket::new(ours, 1 << 16, Duration::from_secs(60), patience), theirs)
    }

    /// Takes ten bytes now and then, never nothing for as long as a stall may last.
    fn trickle(mut client: DuplexStream) -> tokio::task::JoinHandle<usize> {
        tokio::spawn(async move {
            let (mut taken, mut ten) = (0, [0; 10]);
            while let Ok(bytes @ 1..) = client.read(&mut ten).await {
                taken += bytes;
                // sleeps because the client is to be slow
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            taken
        })
    }

    async fn write(mut socket: Socket<DuplexStream>, bytes: usize) -> io::Result<()> {
        socket.write_all(&vec![b'x'; bytes]).await?;
        socket.flush().await
    }

    #[tokio::test]
    async fn a_whole_answer_is_taken_at_a_rate_or_cut() {
        // 500 bytes a second and not 5,000.
        let (ours, client) = socket(5_000);
        let client = trickle(client);
        let error = write(ours, 100_000).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(client.await.unwrap() < 2_000);
        // Whoever keeps the rate may take longer than a stall may last.
        let (ours, client) = socket(50);
        let (client, begun) = (trickle(client), Instant::now());
        write(ours, 800).await.unwrap();
        assert!(begun.elapsed() > WRITE_FOR);
        assert_eq!(client.await.unwrap(), 800);
    }

    #[tokio::test]
    async fn a_live_answer_only_has_to_make_progress() {
        let (ours, client) = socket(5_000);
        let live = ours.streams().send(Full::new(bytes::Bytes::new()), How::Live);
        let (client, begun) = (trickle(client), Instant::now());
        write(ours, 1_200).await.unwrap();
        assert!(begun.elapsed() > 2 * WRITE_FOR);
        assert_eq!(client.await.unwrap(), 1_200);
        drop(live);
        // Without progress it is cut as any other.
        let (ours, _client) = socket(5_000);
        let _live = ours.streams().send(Full::new(bytes::Bytes::new()), How::Live);
        write(ours, 600).await.unwrap_err();
    }

    #[tokio::test]
    async fn an_answer_that_is_left_with_us_ends_the_connection() {
        let (mut ours, mut client) = socket(1_000_000);
        // Past its first head.
        client.write_all(b"PRI * HTTP/2.0").await.unwrap();
        ours.read_exact(&mut [0; 14]).await.unwrap();
        ours.first_head = None;
        let body = Full::new(bytes::Bytes::from(vec![b'x'; 100_000]));
        let taken = ours.streams().send(body.clone(), How::InPieces);
        let left = ours.streams().send(body.clone(), How::InPieces);
        drop(taken);
        let error = ours.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(left);
        // A live one is due until its first piece is asked for, and then piece by piece.
        let mut live = Box::pin(ours.streams().send(body, How::LiveInPieces));
        ours.read(&mut [0; 1]).await.unwrap_err();
        let piece = live.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(piece.len() < 100_000);
        ours.read(&mut [0; 1]).await.unwrap_err();
        drop(live);
        let waits = tokio::time::timeout(2 * WRITE_FOR, ours.read(&mut [0; 1])).await;
        assert!(waits.is_err(), "nothing is owed: {waits:?}");
    }
}
