//! The part of HTTP/1.1 that a read-only Kubernetes client uses.

use std::{
    collections::BTreeMap,
    io::{self, BufRead, Write},
    net::TcpStream,
};

use serde_json::json;

/// A request for objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// Plural name of the kind, such as `endpointslices`.
    pub(super) resource: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    options: BTreeMap<String, String>,
}

impl Request {
    /// Reads a request; `None` if the client has closed the connection.
    pub(super) fn read(stream: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut first = String::new();
        stream.read_line(&mut first)?;
        if first.is_empty() {
            return Ok(None);
        }
        loop {
            let mut header = String::new();
            stream.read_line(&mut header)?;
            if header.trim_end().is_empty() {
                break;
            }
        }
        let request = match *first.split_whitespace().collect::<Vec<_>>() {
            ["GET", target, _] => Self::of(target),
            _ => None,
        };
        let request = request.ok_or_else(|| io::Error::other(format!("what is {first:?}?")))?;
        Ok(Some(request))
    }

    /// Parses `/apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME?OPTIONS` and its shorter forms.
    fn of(target: &str) -> Option<Self> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let parts = match *parts {
            ["api", _, ref rest @ ..] | ["apis", _, _, ref rest @ ..] => rest,
            _ => return None,
        };
        let (namespace, parts) = match *parts {
            ["namespaces", namespace, ref rest @ ..] if !rest.is_empty() => (Some(namespace), rest),
            _ => (None, parts),
        };
        let (resource, name) = match *parts {
            [resource] => (resource, None),
            [resource, name] => (resource, Some(name)),
            _ => return None,
        };
        let options = query.split('&').filter_map(|pair| pair.split_once('='));
        Some(Self {
            resource: resource.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            options: options
                .map(|(name, value)| (name.to_owned(), decoded(value)))
                .collect(),
        })
    }

    /// Returns a parameter of the query.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// Returns a numeric parameter of the query.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.option(name)?.parse().ok()
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).filter(|_| *first == b'%');
        let byte = hex.and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(match first {
            b'+' => b' ',
            _ => byte.unwrap_or(*first),
        });
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Answers with JSON.
pub(super) fn answer(stream: &TcpStream, body: &str) -> io::Result<()> {
    respond(stream, "200 OK\r\nContent-Type: application/json", body)
}

/// Refuses as the API server does. A 429 has plain text, because the server sends it before a `Status` could be made.
pub(super) fn refuse(stream: &TcpStream, status: u16) -> io::Result<()> {
    if status == 429 {
        let head = "429 Too Many Requests\r\nRetry-After: 1\r\nContent-Type: text/plain";
        return respond(stream, head, "Too many requests, please try again later.\n");
    }
    let head = format!("{status} Refused\r\nContent-Type: application/json");
    respond(stream, &head, &error(status))
}

/// Returns a `Status` as JSON.
pub(super) fn error(status: u16) -> String {
    let reason = match status {
        404 => "NotFound",
        410 => "Expired",
        _ => "",
    };
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": format!("refused with {status}"), "reason": reason, "code": status,
    })
    .to_string()
}

fn respond(mut stream: &TcpStream, head: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// A chunked body of unknown length.
#[derive(Debug)]
pub(super) struct Chunks<'stream>(&'stream TcpStream);

impl<'stream> Chunks<'stream> {
    /// Starts an answer.
    pub(super) fn begin(mut stream: &'stream TcpStream) -> io::Result<Self> {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        Ok(Self(stream))
    }

    /// Writes a chunk.
    pub(super) fn write(&mut self, text: &str) -> io::Result<()> {
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        self.0.write_all(chunk.as_bytes())
    }

    /// Writes half of a chunk.
    pub(super) fn write_half(&mut self, text: &str) -> io::Result<()> {
        let chunk = format!("{:x}\r\n{}", text.len(), half(text));
        self.0.write_all(chunk.as_bytes())
    }

    /// Ends the body correctly.
    pub(super) fn end(self) -> io::Result<()> {
        (&mut &*self.0).write_all(b"0\r\n\r\n")
    }
}

/// Returns the first half of a text.
pub(super) fn half(text: &str) -> &str {
    &text[..text.floor_char_boundary(text.len() / 2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_what_it_is_for() {
        let target = "/apis/discovery.k8s.io/v1/namespaces/x/endpointslices?watch=true&labelSelector=a+in+%28b%2Cc%29";
        let request = Request::of(target).unwrap();
        assert_eq!(request.resource, "endpointslices");
        assert_eq!(request.namespace.as_deref(), Some("x"));
        assert_eq!(request.name, None);
        assert_eq!(request.option("watch"), Some("true"));
        assert_eq!(request.option("labelSelector"), Some("a in (b,c)"));
        let secret = Request::of("/api/v1/namespaces/x/secrets/seed").unwrap();
        assert_eq!(secret.resource, "secrets");
        assert_eq!(secret.name.as_deref(), Some("seed"));
        assert_eq!(Request::of("/api/v1/nodes?").unwrap().resource, "nodes");
    }
}
