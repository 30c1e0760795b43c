//! One check of one backend: a TCP connection, or an HTTP request over it.
//!
//! A backend may be broken or hostile, so the time and size of its answers are limited.

mod http;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream};

use crate::desired::{Check, CheckKind};
use crate::render::printable;

/// Where the packets of a check go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer of the socket.
    pub peer: SocketAddr,
    /// Mark of the socket's packets; 0 for none. The egress program diverts marked packets onto the path of clients.
    pub mark: u32,
}

/// Why a check failed, as shown to users.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The check exceeded its time limit.
    #[error("timeout {}", span(*.0))]
    Timeout(Duration),
    /// The connection cannot be opened.
    #[error("{}", reason(.0))]
    Connect(io::Error),
    /// The TLS handshake failed.
    #[error("TLS: {}", printable(&.0.to_string()))]
    Tls(io::Error),
    /// The answer is not valid HTTP.
    #[error("no HTTP answer: {}", printable(&.0.to_string()))]
    Http(hyper::Error),
    /// The status is not an expected one.
    #[error("HTTP {0}")]
    Status(u16),
    /// The body does not contain the expected text.
    #[error("the body lacks {0:?}")]
    Body(String),
}

/// Makes one check.
///
/// # Errors
///
/// When the backend does not pass, with the reason.
pub async fn probe(route: &Route, check: &Check) -> Result<(), ProbeError> {
    match tokio::time::timeout(check.timeout, attempt(route, check)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(ProbeError::Timeout(check.timeout)),
    }
}

async fn attempt(route: &Route, check: &Check) -> Result<(), ProbeError> {
    let stream = connect(route).await.map_err(ProbeError::Connect)?;
    match &check.kind {
        CheckKind::Tcp => Ok(()),
        CheckKind::Http { tls: false, get } => http::get(stream, get, route.peer).await,
        CheckKind::Http { tls: true, get } => {
            let stream = tls::handshake(stream, get.host.as_deref(), route.peer.ip())
                .await
                .map_err(ProbeError::Tls)?;
            http::get(stream, get, route.peer).await
        }
    }
}

async fn connect(route: &Route) -> io::Result<TcpStream> {
    let socket = match route.peer {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if route.mark != 0 {
        setsockopt(&socket, sockopt::Mark, &route.mark)?;
    }
    socket.connect(route.peer).await
}

/// Formats a duration as `2 s` or `500 ms`.
fn span(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

/// Returns the text of an operating system error, without its number.
fn reason(error: &io::Error) -> String {
    let code = error.raw_os_error();
    code.map_or_else(
        || error.to_string(),
        |code| nix::errno::Errno::from_raw(code).desc().to_lowercase(),
    )
}

#[cfg(test)]
mod tests;
