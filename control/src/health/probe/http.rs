//! Sends a GET over HTTP/1.1 and checks the answer.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::ProbeError;
use crate::desired::HttpGet;

/// Number of bytes of the body in which the expected text must be.
pub(super) const MAX_BODY_BYTES: usize = 64 << 10;
/// Largest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

pub(super) async fn get(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    get: &HttpGet,
    peer: SocketAddr,
) -> Result<(), ProbeError> {
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ProbeError::Http)?;
    let host = get.host.clone().unwrap_or_else(|| peer.to_string());
    let request = Request::get(&get.path)
        .header(HOST, host)
        .header(USER_AGENT, concat!("guideway/", env!("CARGO_PKG_VERSION")))
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("the configuration's rules took path and host for ones of HTTP");
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(ProbeError::Http)?;
        let status = response.status().as_u16();
        if !get.status.iter().any(|range| range.contains(&status)) {
            return Err(ProbeError::Status(status));
        }
        match &get.body {
            Some(text) if !contains(response.into_body(), text).await? => {
                Err(ProbeError::Body(text.clone()))
            }
            _ => Ok(()),
        }
    };
    // The connection task reads and writes. Dropping it closes the socket.
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        outcome = &mut exchange => outcome,
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(ProbeError::Http(error)),
        },
    }
}

/// Returns whether the first bytes of a body contain a text. Reads no more than necessary.
async fn contains(mut body: Incoming, text: &str) -> Result<bool, ProbeError> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ProbeError::Http)?.into_data() else {
            continue;
        };
        // The text may span two frames.
        let known = read.len().saturating_sub(text.len());
        let room = MAX_BODY_BYTES - read.len();
        read.extend_from_slice(&data[..data.len().min(room)]);
        let found = read[known..]
            .windows(text.len())
            .any(|part| part == text.as_bytes());
        if found || read.len() == MAX_BODY_BYTES {
            return Ok(found);
        }
    }
    Ok(false)
}
