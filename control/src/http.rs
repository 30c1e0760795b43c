//! The HTTP listener for scrapes and probes. Its limits protect it from anyone who can reach it.

mod limits;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Notify;

pub(crate) use self::limits::{ConnectionLimit, Limits, SourceLimit};
use self::limits::{ConnectionPermit, SourcePermit};
#[cfg(test)]
pub(crate) use self::tests::testing;

/// The answer to a request.
pub type Answer = Response<Full<Bytes>>;

/// The address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("{}; {}", self.without_remedy(), self.remedy())]
pub struct ListenError {
    address: SocketAddr,
    /// The configuration field or option with the address.
    field: &'static str,
    #[source]
    source: std::io::Error,
}

impl ListenError {
    pub(crate) const fn new(
        address: SocketAddr,
        field: &'static str,
        source: std::io::Error,
    ) -> Self {
        Self {
            address,
            field,
            source,
        }
    }

    /// Returns what cannot be done, and whose port it usually is.
    pub(crate) fn without_remedy(&self) -> String {
        let address = self.address;
        let owner = match address.port() {
            10248 | 10250 => ", a port of the kubelet",
            10249 => ", kube-proxy's port for metrics",
            10256 => ", kube-proxy's port for health checks",
            _ => "",
        };
        format!("cannot listen on {address}{owner}")
    }

    pub(crate) fn remedy(&self) -> String {
        format!("free it or set {} to another address", self.field)
    }
}

/// Opens a listener at the address of a configuration field or option.
///
/// # Errors
///
/// When the address is in use, or is not this machine's.
pub async fn listen(address: SocketAddr, field: &'static str) -> Result<TcpListener, ListenError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| ListenError::new(address, field, source))
}

/// Serves scrapes and probes until the task is dropped. `pages` answers for each path. If the peer closes the
/// connection before the answer is ready, the work for it is dropped.
pub async fn serve_pages<F, S>(listener: TcpListener, pages: F)
where
    F: Fn(String) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = Answer> + Send + 'static,
{
    let answer = move |request: Request<Incoming>| {
        let is_read = [Method::GET, Method::HEAD].contains(request.method());
        let page = is_read.then(|| pages(request.uri().path().to_owned()));
        async {
            match page {
                Some(page) => page.await,
                None => with_header(
                    text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n"),
                    ALLOW,
                    HeaderValue::from_static("GET, HEAD"),
                ),
            }
        }
    };
    serve(listener, Limits::of_pages(), answer).await;
}

/// Serves until the task is dropped. Every connection is closed after one answer.
pub(crate) async fn serve<A, F>(listener: TcpListener, limits: Limits, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send,
{
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Descriptors or memory are exhausted. Both pass, but not at once.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let admitted = limits.source_limits.iter().map(|one| one.admit(peer.ip()));
        let Some(admitted) = admitted.collect::<Option<Vec<SourcePermit>>>() else {
            tracing::debug!(%peer, "closed: its source has as many connections as it may");
            continue;
        };
        let close = Arc::new(Notify::new());
        let permits = limits.connection_limits.iter();
        let permits = permits.map(|limit| limit.take(&close));
        let permits: Vec<ConnectionPermit> = permits.collect();
        let answer = answer.clone();
        let (header_timeout, timeout) = (limits.header_timeout, limits.timeout);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                permits.iter().for_each(ConnectionPermit::note_question);
                let answered = answer(request);
                async { Ok::<_, Infallible>(answered.await) }
            });
            let connection = http1::Builder::new()
                .max_buf_size(16 << 10)
                .timer(TokioTimer::new())
                .header_read_timeout(header_timeout)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                served = tokio::time::timeout(timeout, connection) => match served {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
                    Err(_) => tracing::debug!("a connection took too long"),
                },
                () = close.notified() => tracing::debug!(%peer, "closed: another connection has its place"),
            }
            drop((permits, admitted));
        });
        // Lets connections that were closed end before more are accepted.
        tokio::task::yield_now().await;
    }
}

pub(crate) fn text(status: StatusCode, text: impl Into<Bytes>) -> Answer {
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    body(status, kind, text)
}

/// Answers `ok`, or with status 503 the faults, one a line.
pub(crate) fn ok_unless(faults: &[String]) -> Answer {
    if faults.is_empty() {
        return text(StatusCode::OK, "ok\n");
    }
    let lines: String = faults.iter().map(|fault| format!("{fault}\n")).collect();
    text(StatusCode::SERVICE_UNAVAILABLE, lines)
}

/// Answers with a document of JSON.
pub(crate) fn json(document: impl Into<Bytes>) -> Answer {
    let kind = HeaderValue::from_static("application/json");
    body(StatusCode::OK, kind, document)
}

/// Answers with a content and its type.
pub(crate) fn body(status: StatusCode, kind: HeaderValue, content: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(content.into()));
    *answer.status_mut() = status;
    with_header(answer, CONTENT_TYPE, kind)
}

pub(crate) fn with_header(mut answer: Answer, name: HeaderName, value: HeaderValue) -> Answer {
    answer.headers_mut().insert(name, value);
    answer
}
