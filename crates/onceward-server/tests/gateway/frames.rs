//! HTTP/2 frames written by hand, because a client's library closes its streams, and checks its
//! headers, in its own way.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const INTERNAL_ERROR: u32 = 2;
pub(crate) const CANCEL: u32 = 8;

/// A frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Headers as literals that no table keeps.
pub(crate) fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.as_bytes());
        }
    }
    block
}

/// A connection whose frames are ours.
pub(crate) struct Frames(TcpStream);

impl Frames {
    /// Begins a connection.
    pub(crate) async fn open(to: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self(stream)
    }

    /// Sends frames as they are.
    pub(crate) async fn send(&mut self, frames: &[Vec<u8>]) {
        self.0.write_all(&frames.concat()).await.unwrap();
    }

    /// The next frame: kind, flags, stream, payload.
    pub(crate) async fn next(&mut self) -> (u8, u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.0.read_exact(&mut payload).await.unwrap();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        (head[3], head[4], stream, payload)
    }

    /// Waits until all that was sent has been taken in.
    pub(crate) async fn seen(&mut self) {
        self.send(&[frame(PING, 0, 0, b"are you?")]).await;
        while self.next().await.0 != PING {}
    }

    /// The body of the answer to a stream.
    pub(crate) async fn body(&mut self, of: u32) -> String {
        let mut body = Vec::new();
        loop {
            let (kind, flags, stream, payload) = self.next().await;
            if kind == SETTINGS && flags & ACK == 0 {
                self.send(&[frame(SETTINGS, ACK, 0, &[])]).await;
            } else if stream == of && [DATA, HEADERS, RST_STREAM].contains(&kind) {
                assert_ne!(kind, RST_STREAM, "the stream was reset");
                body.extend(if kind == DATA { payload } else { Vec::new() });
                if flags & END_STREAM != 0 {
                    return String::from_utf8(body).unwrap();
                }
            }
        }
    }

    /// How a stream ends: its first byte of headers, which is the status, or the code of its reset.
    pub(crate) async fn end(&mut self, of: u32) -> End {
        loop {
            let (kind, flags, stream, payload) = self.next().await;
            match kind {
                SETTINGS if flags & ACK == 0 => self.send(&[frame(SETTINGS, ACK, 0, &[])]).await,
                HEADERS if stream == of => return End::Answered(payload[0]),
                RST_STREAM if stream == of => {
                    return End::Reset(u32::from_be_bytes(payload[..4].try_into().unwrap()));
                }
                GOAWAY => return End::Gone,
                _ => {}
            }
        }
    }
}

/// The statuses that HPACK has an index for.
pub(crate) const STATUS_200: u8 = 0x88;
pub(crate) const STATUS_400: u8 = 0x8c;

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// With an answer, whose headers begin with this byte.
    Answered(u8),
    /// It was reset with this code.
    Reset(u32),
    /// The whole connection was given up.
    Gone,
}
