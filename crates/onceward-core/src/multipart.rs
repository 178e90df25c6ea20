//! The parts of a `multipart/form-data` body (RFC 7578, RFC 2046 section 5.1).
//!
//! Rule: the boundary separates parts and counts for nothing else, so a retry with another one is
//! the same request. Everything that a part says of itself counts: name, file name, type, content,
//! every other parameter and header. What lies before the first and behind the last part is to be
//! ignored by readers; not all do, so it counts as well. Nothing is decoded (file names, transfer
//! encodings, a multipart inside a part): readers disagree, and bytes don't.
//!
//! Where readers could take one body for two, it is not well-formed here and its bytes are
//! compared: lines that end otherwise than in CRLF, a line that begins like a delimiter and goes
//! on, a part without a name, a header or a parameter twice that may be there once, no closing
//! delimiter.

use crate::canonical::quote;
use crate::content_type::{Param, is_token, params};
use crate::form::{Fields, What, array, content, text};

/// The longest headers of a part, in bytes.
const MAX_HEADER_BYTES: usize = 16 * 1024;

/// How many parameters the disposition of a part may have.
const MAX_PARAMS: usize = 16;

/// The longest boundary (RFC 2046, section 5.1.1).
const MAX_BOUNDARY_BYTES: usize = 70;

/// The parts of a body by name. None when it is not well-formed, or has too many.
pub(crate) fn parts(body: &[u8], boundary: &[u8]) -> Option<Fields> {
    if !is_boundary(boundary) {
        return None;
    }
    let delimiter = [b"\r\n--", boundary].concat();
    let mut fields = Fields::default();
    let (preamble, mut rest) = match body.strip_prefix(&delimiter[2..]) {
        Some(rest) => (&b""[..], rest),
        None => split(body, &delimiter)?,
    };
    beside(&mut fields, "before", preamble)?;
    loop {
        if let Some(end) = rest.strip_prefix(b"--") {
            let end = padded(end);
            let epilogue = if end.is_empty() { end } else { end.strip_prefix(b"\r\n")? };
            beside(&mut fields, "behind", epilogue)?;
            return Some(fields);
        }
        let (part, after) = split(padded(rest).strip_prefix(b"\r\n")?, &delimiter)?;
        let mut part = Part::read(part)?;
        let value = part.written();
        let what = if part.file_name.is_some() { What::File } else { What::Field };
        fields.add(&part.name, what, value)?;
        rest = after;
    }
}

/// RFC 2046, section 5.1.1: 1 to 70 characters, no blank at the end.
fn is_boundary(boundary: &[u8]) -> bool {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    (1..=MAX_BOUNDARY_BYTES).contains(&boundary.len())
        && boundary.iter().all(allowed)
        && !boundary.ends_with(b" ")
}

/// What stands before and behind the first delimiter.
fn split<'b>(bytes: &'b [u8], delimiter: &[u8]) -> Option<(&'b [u8], &'b [u8])> {
    let mut from = 0;
    loop {
        let at = from + bytes[from..].iter().position(|byte| *byte == b'\r')?;
        if let Some(after) = bytes[at..].strip_prefix(delimiter) {
            return Some((&bytes[..at], after));
        }
        from = at + 1;
    }
}

/// Without the space that transports may leave behind a delimiter (RFC 2046, section 5.1.1).
fn padded(rest: &[u8]) -> &[u8] {
    let end = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t')).unwrap_or(rest.len());
    &rest[end..]
}

fn beside(fields: &mut Fields, what: &str, bytes: &[u8]) -> Option<()> {
    if bytes.is_empty() { Some(()) } else { fields.add_beside(what, content(bytes)) }
}

/// A part, as it was written.
struct Part<'b> {
    name: Vec<u8>,
    file_name: Option<Vec<u8>>,
    /// Further parameters of its disposition.
    params: Vec<Param>,
    media_type: Option<Vec<u8>>,
    /// Further headers: names in lower case, values.
    headers: Vec<(String, Vec<u8>)>,
    content: &'b [u8],
}

impl<'b> Part<'b> {
    fn read(part: &'b [u8]) -> Option<Self> {
        let head = &part[..part.len().min(MAX_HEADER_BYTES)];
        let end = head.windows(4).position(|four| four == b"\r\n\r\n")?;
        let (mut disposition, mut media_type, mut headers) = (None, None, Vec::new());
        for (name, value) in read_headers(&part[..end])? {
            match &*name {
                "content-disposition" if disposition.is_none() => disposition = Some(value),
                "content-type" if media_type.is_none() => media_type = Some(value),
                "content-disposition" | "content-type" => return None,
                _ => headers.push((name, value)),
            }
        }
        let (mut name, mut file_name, mut further) = (None, None, Vec::new());
        for param in disposition_params(&disposition?)? {
            match &*param.name {
                "name" => name = Some(param.raw),
                "filename" => file_name = Some(param.raw),
                _ => further.push(param),
            }
        }
        let content = &part[end + 4..];
        Some(Self { name: name?, file_name, params: further, media_type, headers, content })
    }

    /// The part as JSON: its content alone where it says nothing else, as of a form's field.
    fn written(&mut self) -> Vec<u8> {
        let content = content(self.content);
        let is_plain = self.file_name.is_none()
            && self.params.is_empty()
            && self.media_type.is_none()
            && self.headers.is_empty();
        if is_plain {
            return content;
        }
        let mut out = b"{\"content\":".to_vec();
        out.extend_from_slice(&content);
        if !self.params.is_empty() {
            self.params.sort_by(|one, other| one.name.cmp(&other.name));
            let params = self.params.iter().map(|param| (&*param.name, written(&param.raw)));
            member("disposition", &object(params.collect()), &mut out);
        }
        if let Some(file_name) = &self.file_name {
            member("filename", &written(file_name), &mut out);
        }
        if !self.headers.is_empty() {
            self.headers.sort_by(|(one, _), (other, _)| one.cmp(other));
            let same = self.headers.chunk_by(|(one, _), (other, _)| one == other);
            let headers = same.map(|same| {
                let values: Vec<_> = same.iter().map(|(_, value)| written(value)).collect();
                let mut list = Vec::new();
                array(values.iter(), &mut list);
                (&*same[0].0, list)
            });
            member("headers", &object(headers.collect()), &mut out);
        }
        if let Some(media_type) = &self.media_type {
            member("type", &written(media_type), &mut out);
        }
        out.push(b'}');
        out
    }
}

fn written(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    quote(text(bytes).as_bytes(), &mut out);
    out
}

fn member(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.push(b',');
    quote(name.as_bytes(), out);
    out.push(b':');
    out.extend_from_slice(value);
}

fn object(members: Vec<(&str, Vec<u8>)>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in members {
        member(name, &value, &mut out);
    }
    out[0] = b'{';
    out.push(b'}');
    out
}

/// The headers of a part: `name: value` between CRLF. A line that begins with a blank goes on with
/// the one before it (RFC 5322, section 2.2.3).
fn read_headers(mut bytes: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
    loop {
        let end = bytes.windows(2).position(|two| two == b"\r\n").unwrap_or(bytes.len());
        let line = &bytes[..end];
        if line.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return None;
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            headers.last_mut()?.1.extend_from_slice(line);
        } else {
            let colon = line.iter().position(|byte| !is_token(*byte)).filter(|at| *at > 0)?;
            let value = line[colon..].strip_prefix(b":")?;
            let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
            headers.push((name, value.to_vec()));
        }
        if end == bytes.len() {
            break;
        }
        bytes = &bytes[end + 2..];
    }
    for (_, value) in &mut headers {
        *value = value.trim_ascii().to_vec();
    }
    Some(headers)
}

/// The parameters of `form-data` (RFC 7578, section 4.2); none when one of them is there twice, or
/// when there are too many to be compared with each other.
fn disposition_params(value: &[u8]) -> Option<Vec<Param>> {
    let end = value.iter().position(|byte| !is_token(*byte)).unwrap_or(value.len());
    let params =
        params(&value[end..]).filter(|_| value[..end].eq_ignore_ascii_case(b"form-data"))?;
    if params.len() > MAX_PARAMS {
        return None;
    }
    let twice = |param: &Param| params.iter().filter(|other| other.name == param.name).count() > 1;
    (!params.iter().any(twice)).then_some(params)
}

#[cfg(test)]
mod tests;
