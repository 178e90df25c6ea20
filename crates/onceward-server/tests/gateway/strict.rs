//! Readers of HTTP/1.1 that forgive nothing: an upstream that reads what a gateway sends it, and a
//! client that reads what it is answered.
//!
//! They take the grammar of RFC 9112 for what a sender may write, which is far less than a
//! recipient has to bear: lines end in CRLF, names are tokens, a message has one framing, and
//! nothing follows it that was not asked for. What they refuse is a fault of whoever wrote it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::PATIENCE;

/// A message that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// Its first line, without the end.
    pub(crate) start: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// The values of a header.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// Status of an answer.
    pub(crate) fn status(&self) -> u16 {
        self.start.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or_default()
    }
}

/// Why something can't be read; none yet when more has to come.
pub(crate) type Read<T> = Result<Option<(T, usize)>, String>;

/// What decides about an answer's body beside its own head.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Request,
    /// The answer to a request, and whether that was a HEAD.
    Answer {
        to_head: bool,
        closed: bool,
    },
}

/// Reads one message from the start of some bytes; with it, how many bytes it took.
pub(crate) fn read_message(bytes: &[u8], kind: Kind) -> Read<Message> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return match bytes.iter().position(|byte| *byte == b'\n') {
            Some(at) if at == 0 || bytes[at - 1] != b'\r' => Err("a bare line feed".into()),
            _ => Ok(None),
        };
    };
    let head = std::str::from_utf8(&bytes[..end]).map_err(|_| "a head that is no text")?;
    let mut lines = head.split("\r\n");
    let start = lines.next().unwrap_or_default().to_string();
    let headers: Vec<_> = lines.map(header).collect::<Result<_, _>>()?;
    let mut message = Message { start, headers, body: Vec::new() };
    match kind {
        Kind::Request => request_line(&message)?,
        Kind::Answer { .. } => status_line(&message.start)?,
    }
    let body = body(&message, kind, &bytes[end + 4..])?;
    Ok(body.map(|(body, length)| {
        message.body = body;
        (message, end + 4 + length)
    }))
}

fn header(line: &str) -> Result<(String, String), String> {
    let (name, value) = line.split_once(':').ok_or(format!("no header: {line:?}"))?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("no name of a header: {name:?}"));
    }
    let value = value.trim_matches([' ', '\t']);
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(format!("a control character in {line:?}"));
    }
    Ok((name.to_ascii_lowercase(), value.into()))
}

fn request_line(request: &Message) -> Result<(), String> {
    let words: Vec<_> = request.start.split(' ').collect();
    let [method, target, "HTTP/1.1"] = words[..] else {
        return Err(format!("no request line: {:?}", request.start));
    };
    let is_plain = target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if method.is_empty() || !method.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("no method: {method:?}"));
    }
    if !(target.starts_with('/') || target == "*") || !is_plain {
        return Err(format!("no target of an origin: {target:?}"));
    }
    let hosts = request.all("host");
    if hosts.len() != 1 || hosts[0].is_empty() || hosts[0].contains([' ', '@', '/', '<', ',']) {
        return Err(format!("not one host: {hosts:?}"));
    }
    Ok(())
}

fn status_line(line: &str) -> Result<(), String> {
    let rest = line.strip_prefix("HTTP/1.1 ").or(line.strip_prefix("HTTP/1.0 "));
    let rest = rest.ok_or(format!("no status line: {line:?}"))?;
    let (code, _) = rest.split_once(' ').ok_or(format!("no reason, not even none: {line:?}"))?;
    match code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Ok(()),
        false => Err(format!("no status: {line:?}")),
    }
}

fn body(message: &Message, kind: Kind, bytes: &[u8]) -> Read<Vec<u8>> {
    for gone in ["upgrade", "http2-settings", "te", "trailer", "keep-alive", "proxy-connection"] {
        if !message.all(gone).is_empty() {
            return Err(format!("{gone} of another hop"));
        }
    }
    let (lengths, codings) = (message.all("content-length"), message.all("transfer-encoding"));
    let is_empty = match kind {
        Kind::Request => false,
        Kind::Answer { to_head, .. } => {
            to_head || message.status() < 200 || [204, 304].contains(&message.status())
        }
    };
    match (&lengths[..], &codings[..]) {
        (_, [_, ..]) if message.status() == 204 => Err("a coding of nothing".into()),
        ([_, ..], _) if message.status() == 204 => Err("a length of nothing".into()),
        ([], []) | ([_], []) | ([], ["chunked"]) if is_empty => Ok(Some((Vec::new(), 0))),
        ([], ["chunked"]) => chunks(bytes),
        ([length], []) => {
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse::<usize>().ok().filter(|_| digits);
            let length = length.ok_or(format!("no length: {lengths:?}"))?;
            Ok((bytes.len() >= length).then(|| (bytes[..length].to_vec(), length)))
        }
        ([], []) => match kind {
            Kind::Request => Ok(Some((Vec::new(), 0))),
            Kind::Answer { closed, .. } if closed => Ok(Some((bytes.to_vec(), bytes.len()))),
            Kind::Answer { .. } => Ok(None),
        },
        _ => Err(format!("framed in two ways: {lengths:?} {codings:?}")),
    }
}

fn chunks(bytes: &[u8]) -> Read<Vec<u8>> {
    let (mut at, mut body) = (0, Vec::new());
    loop {
        let Some(end) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[at..at + end]).unwrap_or_default();
        let is_hex = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(text, 16).ok().filter(|_| is_hex);
        let size = size.ok_or(format!("no size of a chunk: {text:?}"))?;
        at += end + 2;
        if bytes.len() < at + size + 2 {
            return Ok(None);
        }
        if size > 0 {
            body.extend(&bytes[at..at + size]);
            at += size;
        }
        if &bytes[at..at + 2] != b"\r\n" {
            return Err("a chunk, or a last one, without its end".into());
        }
        at += 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

/// What an upstream answers to what it is asked: bytes, and whether it closes behind them.
type Script = dyn Fn(&Message) -> (Vec<u8>, bool) + Send + Sync;

/// An upstream that reads what comes, and answers bytes of a test's own.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Message>>>,
    faults: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// One that answers by this script.
    pub(crate) async fn start(
        script: impl Fn(&Message) -> (Vec<u8>, bool) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, faults) = (Arc::default(), Arc::default());
        let upstream = Self { address, asked, faults };
        let (asked, faults) = (upstream.asked.clone(), upstream.faults.clone());
        let script: Arc<Script> = Arc::new(script);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (asked, faults, script) = (asked.clone(), faults.clone(), script.clone());
                tokio::spawn(async move {
                    if let Err(fault) = serve(stream, &asked, &script).await {
                        faults.lock().unwrap().push(fault);
                    }
                });
            }
        });
        upstream
    }

    /// What it was asked since the last time.
    pub(crate) fn asked(&self) -> Vec<Message> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// What it could not read since the last time.
    pub(crate) fn faults(&self) -> Vec<String> {
        std::mem::take(&mut *self.faults.lock().unwrap())
    }
}

async fn serve(
    mut stream: TcpStream,
    asked: &Mutex<Vec<Message>>,
    script: &Arc<Script>,
) -> Result<(), String> {
    let mut bytes = Vec::new();
    loop {
        while let Some((request, length)) =
            read_message(&bytes, Kind::Request).map_err(|fault| told(&fault, &bytes))?
        {
            bytes.drain(..length);
            let (answer, closes) = script(&request);
            asked.lock().unwrap().push(request);
            if stream.write_all(&answer).await.is_err() || closes {
                return Ok(());
            }
        }
        match stream.read_buf(&mut bytes).await {
            Ok(0) if !bytes.is_empty() => return Err(told("it ends half-way", &bytes)),
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
    }
}

fn told(fault: &str, bytes: &[u8]) -> String {
    format!("{fault}: {:?}", String::from_utf8_lossy(bytes))
}

/// What a strict client was answered on one connection.
#[derive(Debug)]
pub(crate) struct Answers {
    /// Interim answers and final ones, in order.
    pub(crate) all: VecDeque<Message>,
    /// Whether the connection was closed behind them.
    pub(crate) closed: bool,
}

impl Answers {
    /// The next final answer, as a status; 0 when there is none.
    pub(crate) fn status(&self) -> u16 {
        let last = self.all.iter().find(|answer| answer.status() >= 200);
        last.map_or(0, Message::status)
    }
}

/// Sends bytes, and reads what is answered to so many requests, or until the other side closes.
pub(crate) async fn ask(to: SocketAddr, bytes: &[u8], requests: usize) -> Result<Answers, String> {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let to_head = bytes.starts_with(b"HEAD ");
    let (mut read, mut finals) = (Vec::new(), 0);
    let mut answers = Answers { all: VecDeque::new(), closed: false };
    loop {
        let kind = Kind::Answer { to_head, closed: answers.closed };
        let is_over = finals == requests || answers.closed && read.is_empty();
        match if is_over { Ok(None) } else { read_message(&read, kind) } {
            Err(fault) => return Err(told(&fault, &read)),
            Ok(Some((answer, length))) => {
                read.drain(..length);
                finals += usize::from(answer.status() >= 200);
                answers.all.push_back(answer);
                continue;
            }
            Ok(None) if !is_over && answers.closed => {
                return Err(told("it ends half-way", &read));
            }
            Ok(None) => {}
        }
        if is_over {
            break;
        }
        let reading = tokio::time::timeout(PATIENCE, stream.read_buf(&mut read)).await;
        answers.closed = !matches!(reading.expect("an answer in time"), Ok(1..));
    }
    // Nothing may follow that nobody asked for.
    let more = tokio::time::timeout(Duration::from_millis(5), stream.read_buf(&mut read)).await;
    answers.closed |= matches!(more, Ok(Ok(0) | Err(_)));
    match read.is_empty() {
        true => Ok(answers),
        false => Err(told("more than was asked for", &read)),
    }
}
