//! Messages in a stream of bytes: each has its length in front, or is the body of an HTTP/1.1 message.
//!
//! A receiver tells the two forms apart by the first byte: lengths begin with a small one, and HTTP with a letter.

use std::{
    io::{ErrorKind, Read},
    net::TcpStream,
};

use crate::scenario::Exchange;

/// Bytes of a length in front, in network order.
const PREFIX_LENGTH: usize = 2;
/// Bytes that are read at once.
const BUFFER: usize = 4096;
/// Fields of a head that are read: programs that are not ours send some more.
const FIELDS: usize = 32;

/// How messages of a stream are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By their lengths.
    Prefixed,
    /// As HTTP/1.1 (RFC 9112): a request by POST, and an answer with status 200. Both have a body of a given length.
    Http,
}

impl Form {
    /// Returns the form of an exchange's messages.
    pub fn of(exchange: Exchange) -> Self {
        match exchange {
            Exchange::Http => Self::Http,
            Exchange::Rr | Exchange::Crr | Exchange::Connect => Self::Prefixed,
        }
    }

    /// Returns the bytes that a request has besides its message.
    pub fn overhead(self) -> usize {
        self.request(&[]).len()
    }

    /// Returns a message as a request.
    ///
    /// # Panics
    ///
    /// When it is longer than a length in front can tell.
    pub fn request(self, message: &[u8]) -> Vec<u8> {
        self.framed(message, "POST / HTTP/1.1\r\nHost: bench\r\n")
    }

    /// Returns a message as an answer.
    ///
    /// # Panics
    ///
    /// As for [`Form::request`].
    pub fn answer(self, message: &[u8]) -> Vec<u8> {
        self.framed(message, "HTTP/1.1 200 OK\r\n")
    }

    fn framed(self, message: &[u8], head: &str) -> Vec<u8> {
        match self {
            Self::Prefixed => {
                let length = u16::try_from(message.len()).expect("messages fit one segment");
                [&length.to_be_bytes(), message].concat()
            }
            Self::Http => {
                // All lengths have as many digits, so that all heads are of one length.
                let head = format!("{head}Content-Length: {:04}\r\n\r\n", message.len());
                [head.as_bytes(), message].concat()
            }
        }
    }
}

/// What has come of a stream, and has not been taken.
#[derive(Debug, Default)]
pub struct Incoming {
    bytes: Vec<u8>,
    is_broken: bool,
}

impl Incoming {
    /// Reads all that has come. Returns whether the stream goes on.
    pub fn read(&mut self, mut stream: &TcpStream) -> bool {
        let mut buffer = [0; BUFFER];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(length) => self.bytes.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock && !self.is_broken,
            }
        }
    }

    /// Takes the next whole message, and tells its form.
    pub fn take(&mut self) -> Option<(Form, Vec<u8>)> {
        let is_http = self.bytes.first()?.is_ascii_alphabetic();
        let (form, body) = if is_http {
            match http_body(&self.bytes) {
                Ok(body) => (Form::Http, body?),
                Err(NotHttp) => {
                    self.is_broken = true;
                    self.bytes.clear();
                    return None;
                }
            }
        } else {
            let (&length, _) = self.bytes.split_first_chunk()?;
            let length = usize::from(u16::from_be_bytes(length));
            (Form::Prefixed, PREFIX_LENGTH..PREFIX_LENGTH + length)
        };
        let message = self.bytes.get(body.clone())?.to_vec();
        self.bytes.drain(..body.end);
        Some((form, message))
    }
}

/// The bytes are no message of HTTP/1.1 with a length.
struct NotHttp;

/// Finds the body of the first message; `None` until its head is there.
fn http_body(bytes: &[u8]) -> Result<Option<std::ops::Range<usize>>, NotHttp> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let (parsed, fields) = if bytes.starts_with(b"HTTP") {
        let mut head = httparse::Response::new(&mut fields);
        (head.parse(bytes), head.headers)
    } else {
        let mut head = httparse::Request::new(&mut fields);
        (head.parse(bytes), head.headers)
    };
    let Ok(status) = parsed else {
        return Err(NotHttp);
    };
    let httparse::Status::Complete(head) = status else {
        return Ok(None);
    };
    let mut lengths = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = lengths.next().and_then(|field| {
        let digits = str::from_utf8(field.value).ok()?;
        digits.trim().parse::<u16>().ok()
    });
    let length = usize::from(length.ok_or(NotHttp)?);
    Ok(Some(head..head + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(sent: &[u8], part: usize) -> (Vec<(Form, Vec<u8>)>, Incoming) {
        let mut incoming = Incoming::default();
        let mut taken = Vec::new();
        for part in sent.chunks(part) {
            incoming.bytes.extend_from_slice(part);
            taken.extend(std::iter::from_fn(|| incoming.take()));
        }
        (taken, incoming)
    }

    #[test]
    fn messages_are_taken_whole_and_in_order_however_they_come() {
        for form in [Form::Prefixed, Form::Http] {
            let messages = [b"one".to_vec(), Vec::new(), vec![7; 300]];
            for framed in [Form::request, Form::answer] {
                let sent: Vec<u8> = messages
                    .iter()
                    .flat_map(|message| framed(form, message))
                    .collect();
                for part in [1, 5, 1_000] {
                    let (taken, incoming) = taken(&sent, part);
                    assert_eq!(taken, messages.clone().map(|message| (form, message)));
                    assert!(incoming.bytes.is_empty() && !incoming.is_broken);
                }
            }
        }
    }

    #[test]
    fn requests_of_all_lengths_have_the_same_overhead() {
        for form in [Form::Prefixed, Form::Http] {
            for length in [0, 16, 1_400] {
                let request = form.request(&vec![0; length]);
                assert_eq!(request.len(), length + form.overhead());
            }
        }
    }

    #[test]
    fn a_stream_that_is_no_http_ends() {
        for sent in [
            "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            "NO\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        ] {
            let (taken, incoming) = taken(sent.as_bytes(), 64);
            assert!(taken.is_empty() && incoming.is_broken, "{sent:?}");
        }
        let (taken, incoming) = taken(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", 64);
        assert!(taken.is_empty() && !incoming.is_broken);
    }
}
