//! Bodies: buffered within a bound, or passed on live.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};

/// Any error, as bodies and services report it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A response body: ours, or passed on live.
pub struct Body(UnsyncBoxBody<Bytes, BoxError>);

impl Body {
    /// Passes another body on.
    pub fn live<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::live(Full::new(bytes))
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Body")
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.0).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// What became of a body that was buffered.
pub(super) enum Buffered<B> {
    /// All of it.
    Whole(Bytes),
    /// It is larger than the bound: what was read, and the rest.
    TooLarge(Bytes, B),
    /// It broke off.
    Broken(BoxError),
}

/// Reads a body up to `most` bytes.
pub(super) async fn buffer<B>(mut body: B, most: u64) -> Buffered<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > most {
        return Buffered::TooLarge(Bytes::new(), body);
    }
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let data = match frame.map(Frame::into_data) {
            Ok(Ok(data)) => data,
            // Trailers are not kept.
            Ok(Err(_)) => continue,
            Err(error) => return Buffered::Broken(error.into()),
        };
        if first.is_empty() && more.is_empty() {
            // Most bodies come in one piece: no copy for them.
            first = data;
        } else {
            if more.is_empty() {
                more.extend_from_slice(&first);
            }
            more.extend_from_slice(&data);
        }
        let read = first.len().max(more.len()) as u64;
        if read > most {
            let read = if more.is_empty() { first } else { more.freeze() };
            return Buffered::TooLarge(read, body);
        }
    }
    Buffered::Whole(if more.is_empty() { first } else { more.freeze() })
}

/// Most bytes of a refused body that are read and thrown away.
const DISCARD_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest time that this takes.
const DISCARD_FOR: Duration = Duration::from_secs(5);

/// Reads the rest of a refused body, within bounds: closing on a client that is still sending
/// would take the answer away from it.
pub(super) async fn discard<B>(mut body: B)
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, |data| data.len() as u64);
            if read > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    // Whoever takes longer finds the connection closed.
    let _ = tokio::time::timeout(DISCARD_FOR, reading).await;
}

/// What was read already, then the rest.
pub(super) struct Resumed<B> {
    pub(super) read: Option<Bytes>,
    pub(super) rest: B,
}

impl<B> HttpBody for Resumed<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.read.take() {
            Some(read) if !read.is_empty() => Poll::Ready(Some(Ok(Frame::data(read)))),
            _ => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_none() && self.rest.is_end_stream()
    }
}
