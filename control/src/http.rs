//! The HTTP listener: `/metrics` for Prometheus, `/healthz` for probes.
//!
//! [`healthz`](crate::healthz) has listeners of the same kind.

mod limits;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use self::limits::{Admitted, Place};
use crate::metrics;

pub(crate) use self::limits::{Limits, Places, Sources};

/// The listener cannot be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}; free it or set {field} to another address")]
pub struct ListenError {
    /// The address.
    address: SocketAddr,
    /// The field that it comes from.
    field: &'static str,
    /// The operating system's reason.
    #[source]
    source: std::io::Error,
}

/// Opens the listener whose address a field of the configuration, or an option, says.
///
/// # Errors
///
/// When the address is not free or not this machine's.
pub async fn listen(address: SocketAddr, field: &'static str) -> Result<TcpListener, ListenError> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|source| ListenError {
        address,
        field,
        source,
    })
}

/// Serves the agent's pages until the task is dropped: `metrics` writes a scrape, and `unattached` names each device
/// without its program, or gives nothing if the agent is stuck.
///
/// Where the peer goes before its answer is made, what makes it is dropped.
pub async fn serve<M, N, U, V>(listener: TcpListener, metrics: M, unattached: U)
where
    M: Fn() -> N + Clone + Send + Sync + 'static,
    N: Future<Output = Option<String>> + Send + 'static,
    U: Fn() -> V + Clone + Send + Sync + 'static,
    V: Future<Output = Option<Vec<String>>> + Send + 'static,
{
    let pages = move |path| page(path, metrics.clone(), unattached.clone());
    serve_pages(listener, pages).await;
}

/// Serves until the task is dropped; `pages` answers for each path.
pub async fn serve_pages<F, S>(listener: TcpListener, pages: F)
where
    F: Fn(String) -> S + Clone + Send + Sync + 'static,
    S: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    serve_with(listener, Limits::of_pages(), move |request| {
        answer(request, pages.clone())
    })
    .await;
}

/// Serves until the task is dropped: every connection is closed after one answer.
pub(crate) async fn serve_with<A, F>(listener: TcpListener, limits: Limits, answer: A)
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send,
{
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or memory: both pass, but not at once.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let admitted = limits.sources.iter().map(|one| one.admit(peer.ip()));
        let Some(admitted) = admitted.collect::<Option<Vec<Admitted>>>() else {
            tracing::debug!(%peer, "closed: its source has as many connections as it may");
            continue;
        };
        let close = Arc::new(Notify::new());
        let places = limits.places.iter().map(|places| places.take(&close));
        let places: Vec<Place> = places.collect();
        let answer = answer.clone();
        let (header_timeout, timeout) = (limits.header_timeout, limits.timeout);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                places.iter().for_each(Place::note_question);
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
            drop((places, admitted));
        });
        // Those that were closed end before more are accepted.
        tokio::task::yield_now().await;
    }
}

async fn answer<F, S>(request: Request<Incoming>, pages: F) -> Response<Full<Bytes>>
where
    F: Fn(String) -> S,
    S: Future<Output = Response<Full<Bytes>>>,
{
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    pages(request.uri().path().to_owned()).await
}

/// Answers for the agent.
async fn page<M, N, U, V>(path: String, metrics: M, unattached: U) -> Response<Full<Bytes>>
where
    M: Fn() -> N,
    N: Future<Output = Option<String>>,
    U: Fn() -> V,
    V: Future<Output = Option<Vec<String>>>,
{
    match path.as_str() {
        "/metrics" => metrics_page(metrics().await),
        "/healthz" => match unattached().await {
            Some(unattached) => health(&unattached),
            None => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the dataplane does not answer\n",
            ),
        },
        _ => plain(StatusCode::NOT_FOUND, "try /metrics or /healthz\n"),
    }
}

/// Answers with a scrape's text, if there are values.
pub(crate) fn metrics_page(text: Option<String>) -> Response<Full<Bytes>> {
    let Some(text) = text else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "no values\n");
    };
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static(metrics::CONTENT_TYPE),
    );
    response
}

/// Healthy: the programs are on every device where they have to be. A refused file or
/// service is no reason to restart an agent that serves; the metrics tell of those.
fn health(unattached: &[String]) -> Response<Full<Bytes>> {
    if unattached.is_empty() {
        return plain(StatusCode::OK, "ok\n");
    }
    let lines: String = unattached.iter().map(|line| format!("{line}\n")).collect();
    plain(StatusCode::SERVICE_UNAVAILABLE, lines)
}

/// Answers with a text.
pub(crate) fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
pub(crate) mod testing {
    //! Servers that run beside a test, and a client that says what it is told to.

    use std::io::{Read, Write};
    use std::net::{IpAddr, Ipv4Addr, TcpStream};
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    /// Returns a loopback address that no other process uses: a port that is free there stays so.
    pub(crate) fn own_loopback() -> Ipv4Addr {
        let [_, a, b, c] = std::process::id().to_be_bytes();
        // Process ids have 22 bits.
        Ipv4Addr::new(127, 64 | a, b, c)
    }

    /// Returns a port that no other test is told, below those that the kernel gives out.
    pub(crate) fn free_port() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(11_000);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs a task in a thread until the end of the process.
    pub(crate) fn runs(task: impl Future<Output = ()> + Send + 'static) {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(task);
        });
    }

    /// Serves a free port until the end of the process.
    pub(crate) fn serving<F, S>(serve: F) -> SocketAddr
    where
        F: FnOnce(TcpListener) -> S + Send + 'static,
        S: Future<Output = ()> + Send,
    {
        let (tell, told) = std::sync::mpsc::channel();
        runs(async move {
            let listener = listen("127.0.0.1:0".parse().unwrap(), "").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            serve(listener).await;
        });
        told.recv().unwrap()
    }

    pub(crate) fn send(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Connects from a certain address.
    pub(crate) fn connect_from(source: IpAddr, to: SocketAddr) -> TcpStream {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((source, 0).into()).unwrap();
            socket.connect(to).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream
    }

    pub(crate) fn get(address: SocketAddr, path: &str) -> String {
        send(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    pub(crate) fn body_of(response: &str) -> &str {
        response.split_once("\r\n\r\n").unwrap().1
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use tokio::sync::Semaphore;

    use super::testing::{connect_from, get, send};
    use super::*;
    use crate::api::{Egress, Interface, Status, unattached};
    use crate::metrics::Snapshot;

    /// A node, whose programs are attached in this mode.
    fn snapshot(mode: Option<&str>) -> Snapshot {
        node(mode, Some("tcx"))
    }

    fn node(mode: Option<&str>, egress: Option<&str>) -> Snapshot {
        Snapshot {
            status: Status {
                interfaces: vec![Interface {
                    name: "eth0".to_owned(),
                    mode: mode.map(str::to_owned),
                    ..Interface::default()
                }],
                egress: vec![Egress {
                    device: "veth7".to_owned(),
                    mode: egress.map(str::to_owned),
                    note: Some("noqueue".to_owned()),
                }],
                ..Status::default()
            },
            ..Snapshot::default()
        }
    }

    fn serving(snapshot: Option<Snapshot>) -> SocketAddr {
        let devices = snapshot.as_ref().map(|Snapshot { status, .. }| {
            let Status {
                interfaces, egress, ..
            } = status;
            unattached(interfaces, egress)
        });
        let text = snapshot.and_then(|snapshot| metrics::render(snapshot).ok());
        testing::serving(|listener| {
            serve(
                listener,
                move || ready(text.clone()),
                move || ready(devices.clone()),
            )
        })
    }

    #[test]
    fn metrics_have_prometheus_content_type() {
        let response = get(serving(Some(snapshot(Some("native")))), "/metrics");
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        assert!(
            response.contains("content-type: application/openmetrics-text;"),
            "{response}"
        );
        assert!(
            response.contains("\nguideway_interface_attached{"),
            "{response}"
        );
    }

    /// Reads until the peer ends the connection.
    fn read(mut stream: TcpStream) -> String {
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        said
    }

    #[test]
    fn peers_that_never_finish_their_question_do_not_keep_a_probe_out() {
        const PLACES: usize = 3;
        let limits = Limits {
            places: vec![Places::new(PLACES)],
            sources: Vec::new(),
            // What gives way does so for the probe, not after a time.
            header_timeout: Duration::from_secs(60),
            timeout: Duration::from_secs(60),
        };
        let (begin, begun) = std::sync::mpsc::channel();
        let release = Arc::new(Semaphore::new(0));
        let released = Arc::clone(&release);
        let address = testing::serving(|listener| {
            serve_with(listener, limits, move |request| {
                let (begin, released) = (begin.clone(), Arc::clone(&released));
                async move {
                    if request.uri().path() == "/metrics" {
                        begin.send(()).unwrap();
                        let _ = released.acquire().await;
                    }
                    plain(StatusCode::OK, "ok\n")
                }
            })
        });
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            stream
        };
        let scrape = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        begun.recv().unwrap();
        let silent: Vec<TcpStream> = (1..PLACES).map(|_| ask("GET /hea")).collect();
        let said = read(ask("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
        // The oldest gave way. The others and the one that had asked did not.
        let mut silent = silent.into_iter();
        assert_eq!(silent.next().map(read), Some(String::new()));
        for mut stream in silent {
            stream
                .write_all(b"lthz HTTP/1.1\r\nHost: x\r\n\r\n")
                .unwrap();
            let said = read(stream);
            assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
        }
        release.add_permits(1);
        let said = read(scrape);
        assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
    }

    #[test]
    fn scraper_that_goes_leaves_no_work() {
        let (begin, begun) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel();
        let address = testing::serving(|listener| {
            let metrics = move || {
                let (begin, dropped) = (begin.clone(), Dropped(end.clone()));
                async move {
                    begin.send(()).unwrap();
                    std::future::pending::<()>().await;
                    drop(dropped);
                    None
                }
            };
            serve(listener, metrics, || ready(Some(Vec::new())))
        });
        let mut scraper = TcpStream::connect(address).unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
        scraper.write_all(request).unwrap();
        begun.recv().unwrap();
        assert!(ended.try_recv().is_err(), "it waits for its answer");
        drop(scraper);
        ended.recv().unwrap();
    }

    /// Tells when it is dropped.
    struct Dropped(std::sync::mpsc::Sender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn one_source_does_not_take_the_connections_of_others() {
        const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let release = Arc::new(Semaphore::new(0));
        let released = Arc::clone(&release);
        let limits = Limits {
            timeout: Duration::from_secs(600),
            ..Limits::of_probes(vec![Places::new(4)], vec![Sources::new(9), Sources::new(2)])
        };
        let address = testing::serving(|listener| {
            serve_with(listener, limits, move |_| {
                let released = Arc::clone(&released);
                async move {
                    let _ = released.acquire().await;
                    plain(StatusCode::OK, "ok\n")
                }
            })
        });
        let ask = |source: [u8; 4]| {
            let mut stream = connect_from(source.into(), address);
            // One that is closed already may refuse it.
            let _ = stream.write_all(REQUEST);
            stream
        };
        let greedy = [127, 0, 0, 1];
        let kept = [ask(greedy), ask(greedy)];
        // Closed at once, while the others wait for their answers.
        for _ in 0..4 {
            assert_eq!(read(ask(greedy)), "");
        }
        let other = ask([127, 0, 0, 2]);
        release.add_permits(100);
        for stream in kept.into_iter().chain([other]) {
            let said = read(stream);
            assert!(said.starts_with("HTTP/1.1 200 "), "{said:?}");
        }
        // What has ended counts no more, once its end is noticed.
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !read(ask(greedy)).starts_with("HTTP/1.1 200 ") {
            assert!(std::time::Instant::now() < deadline);
        }
    }

    #[test]
    fn health_follows_both_programs() {
        let attached = get(serving(Some(snapshot(Some("generic")))), "/healthz");
        assert!(attached.starts_with("HTTP/1.1 200 "), "{attached}");
        let detached = get(serving(Some(snapshot(None))), "/healthz");
        assert!(detached.starts_with("HTTP/1.1 503 "), "{detached}");
        let named = "\nno XDP program on eth0: somebody removed it";
        assert!(detached.contains(named), "{detached}");
        assert!(!detached.contains("veth7"), "{detached}");
        let untranslated = get(serving(Some(node(Some("native"), None))), "/healthz");
        assert!(untranslated.starts_with("HTTP/1.1 503 "), "{untranslated}");
        let named = "\nno egress program on veth7: noqueue; the agent tries again";
        assert!(untranslated.contains(named), "{untranslated}");
        assert!(!untranslated.contains("eth0"), "{untranslated}");
        let stuck = get(serving(None), "/healthz");
        assert!(stuck.starts_with("HTTP/1.1 503 "), "{stuck}");
    }

    #[test]
    fn other_requests_are_refused() {
        let address = serving(Some(snapshot(None)));
        assert!(get(address, "/").starts_with("HTTP/1.1 404 "));
        assert!(
            send(address, "POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 405 ")
        );
        assert!(send(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(64 << 10));
        let mut stream = TcpStream::connect(address).unwrap();
        let _ = stream.write_all(long.as_bytes());
        assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 "));
    }
}
