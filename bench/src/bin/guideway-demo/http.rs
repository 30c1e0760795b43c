//! A small HTTP/1.1 client: it sends one request, and the answer names its node.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

const TIMEOUT: Duration = Duration::from_secs(5);
const LONGEST_LINE: u64 = 1024;

/// A connection to a service.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    host: SocketAddr,
}

/// What happens to the connection after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Close,
    KeepAlive,
}

impl Connection {
    /// Connects from the network namespace of the calling thread.
    pub(crate) fn connect(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&to, TIMEOUT)
            .with_context(|| format!("cannot connect to {to}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self {
            stream: BufReader::new(stream),
            host: to,
        })
    }

    /// Returns the client's side of the connection.
    pub(crate) fn client(&self) -> Result<SocketAddr> {
        Ok(self.stream.get_ref().local_addr()?)
    }

    /// Gets the page and returns its first line, the node's name.
    pub(crate) fn get(&mut self, after: After) -> Result<String> {
        let connection = match after {
            After::Close => "close",
            After::KeepAlive => "keep-alive",
        };
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {}\r\nConnection: {connection}\r\n\r\n",
            self.host
        );
        self.stream
            .get_mut()
            .write_all(request.as_bytes())
            .context("cannot send the request")?;
        let body = self.answer().context("no complete answer")?;
        if after == After::Close {
            let mut rest = Vec::new();
            self.stream
                .read_to_end(&mut rest)
                .context("the connection was not closed in order")?;
            ensure!(rest.is_empty(), "bytes beyond the answer");
        }
        let name = body.lines().next().unwrap_or_default();
        Ok(name.to_owned())
    }

    fn answer(&mut self) -> Result<String> {
        let status = self.line()?;
        ensure!(status.starts_with("HTTP/1.1 200 "), "status {status:?}");
        let mut length = None;
        loop {
            let header = self.line()?;
            if header.is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').context("a header without colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse()?);
            }
        }
        let Some(length) = length else {
            bail!("no Content-Length");
        };
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(String::from_utf8(body)?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(LONGEST_LINE).read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").context("the connection ended")?;
        Ok(line.to_owned())
    }
}
