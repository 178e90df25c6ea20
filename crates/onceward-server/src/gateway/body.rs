//! Bodies on their way through: whole ones, and live ones that may not stall.
//!
//! A client earns time with every byte, so that a slow line is served and a trickle is cut. An
//! upstream may be silent for a while, however much it has sent.
//!
//! Over HTTP/2 the library takes a stream that the client reset without an error for one that has
//! ended. Half a body must not pass for a whole one: only the end of the stream is an end.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Version;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use onceward::http::{BoxError, ServiceError};
use tokio::time::Sleep;

use super::pool::Lent;
use super::trouble::{Trouble, chain};

/// Bytes that earn a client a second: about the slowest line that is still served.
const BYTES_PER_SECOND_MIN: u64 = 1_000;

/// How long after the bare end of an HTTP/2 stream it may still turn out to be a reset. Clients on
/// Node.js that give up first end their stream, and reset it when they next write: by the book that
/// is a whole request, and it is none. A reset drops whoever waits. Only waited for where the end
/// came in a frame of its own, after a body that did not tell its length.
const RESET_WITHIN: Duration = Duration::from_millis(5);

/// A request's body: the client's, or one that was read whole.
pub(crate) enum RequestBody {
    /// As it comes in.
    Live(Live),
    /// All of it.
    Whole(Option<Bytes>),
}

/// A client's body as it comes in.
pub(crate) struct Live {
    body: Incoming,
    end: End,
    /// Whether the last frame carried no bytes, only the end.
    is_bare_end: bool,
    ending: Option<Pin<Box<Sleep>>>,
    most: Duration,
    left: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    flow: Arc<Flow>,
}

/// What is known of the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It is as the library says.
    Told,
    /// Over HTTP/2, it has to be one.
    Checked,
    /// It was one.
    Come,
}

/// How a client's body flows, for whoever waits for the answer.
#[derive(Debug, Default)]
pub(super) struct Flow {
    frames: AtomicU64,
    awaited: AtomicBool,
    broken: OnceLock<String>,
}

impl Flow {
    /// Rises with every frame.
    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether the client is to go on: nobody else can be blamed for the silence.
    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// Why it broke off, if it did.
    pub(super) fn broken(&self) -> Option<&str> {
        self.broken.get().map(String::as_str)
    }
}

impl RequestBody {
    /// The body of a request that has just come in, over this version of HTTP.
    pub(crate) fn live(body: Incoming, version: Version, most: Duration) -> Self {
        let end = match version == Version::HTTP_2 && !body.is_end_stream() {
            true => End::Checked,
            false => End::Told,
        };
        Self::Live(Live {
            body,
            end,
            is_bare_end: false,
            ending: None,
            most,
            left: most,
            waiting: None,
            flow: Arc::default(),
        })
    }

    /// How it flows; none when it is whole.
    pub(super) fn flow(&self) -> Option<Arc<Flow>> {
        match self {
            Self::Live(live) if !live.is_end() => Some(live.flow.clone()),
            _ => None,
        }
    }
}

/// Whether a body broke off because it did not come in time.
pub(crate) fn is_late(error: &(dyn Error + 'static)) -> bool {
    let mut whys = std::iter::successors(Some(error), |&error| error.source());
    whys.any(|why| {
        why.downcast_ref::<io::Error>().is_some_and(|why| why.kind() == io::ErrorKind::TimedOut)
    })
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Live {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.poll_in_time(context);
        self.flow.awaited.store(polled.is_pending(), Ordering::Relaxed);
        if let Poll::Ready(frame) = &polled {
            self.flow.frames.fetch_add(1, Ordering::Relaxed);
            if let Some(Err(error)) = frame {
                let _ = self.flow.broken.set(error.to_string());
            }
        }
        polled
    }

    fn is_end(&self) -> bool {
        self.end != End::Checked && self.body.is_end_stream()
    }

    /// The library says that nothing more comes.
    fn check_end(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.body.is_end_stream() {
            let why = "its stream was reset before its end";
            return Poll::Ready(Some(
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into()),
            ));
        }
        if self.is_bare_end && self.body.size_hint().exact().is_none() {
            let wait = || Box::pin(tokio::time::sleep(RESET_WITHIN));
            ready!(self.ending.get_or_insert_with(wait).as_mut().poll(context));
        }
        self.end = End::Come;
        Poll::Ready(None)
    }

    fn poll_in_time(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(None) if self.end == End::Checked => self.check_end(context),
            Poll::Ready(frame) => {
                let data = match &frame {
                    Some(Ok(frame)) => frame.data_ref().map(Bytes::len),
                    _ => None,
                };
                self.is_bare_end = data == Some(0);
                let bytes = data.unwrap_or_default() as u64;
                let waited = self.waiting.take().map_or(Duration::ZERO, |(at, _)| at.elapsed());
                let earned = Duration::from_millis(bytes * 1_000 / BYTES_PER_SECOND_MIN);
                self.left = (self.left.saturating_sub(waited) + earned).min(self.most);
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let left = self.left;
                let (_, deadline) = self
                    .waiting
                    .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
                ready!(deadline.as_mut().poll(context));
                let late = io::Error::new(io::ErrorKind::TimedOut, "it came too slowly");
                Poll::Ready(Some(Err(late.into())))
            }
        }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Live(live) => live.poll(context),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Live(live) => live.is_end(),
            Self::Whole(bytes) => bytes.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Live(live) => live.body.size_hint(),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

/// An upstream's body; its connection goes back to the pool when it has ended.
pub(super) struct ResponseBody {
    body: Incoming,
    /// Given back at the end; dropped with a body that nobody reads to its end.
    connection: Option<Lent>,
    silence: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    trouble: Trouble,
}

impl ResponseBody {
    /// The body of an answer that has just come in.
    pub(super) fn new(
        body: Incoming,
        connection: Lent,
        silence: Duration,
        trouble: Trouble,
    ) -> Self {
        let connection = Some(connection);
        let mut body = Self { body, connection, silence, waiting: None, trouble };
        if body.body.is_end_stream() {
            body.ended();
        }
        body
    }

    fn ended(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.give_back();
        }
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(None) => {
                this.ended();
                Poll::Ready(None)
            }
            Poll::Ready(Some(frame)) => {
                this.waiting = None;
                match &frame {
                    Ok(_) if this.body.is_end_stream() => this.ended(),
                    Ok(_) => {}
                    Err(error) => {
                        let why = chain(error);
                        this.trouble.note(&format!("the upstream's answer broke off: {why}"));
                    }
                }
                Poll::Ready(Some(frame.map_err(Into::into)))
            }
            Poll::Pending => {
                let silence = this.silence;
                let deadline =
                    this.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(silence)));
                ready!(deadline.as_mut().poll(context));
                let why = "the upstream fell silent in its answer";
                this.trouble.note(why);
                let late = ServiceError::TimedOut(why.into());
                Poll::Ready(Some(Err(late.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
