use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

use super::*;
use crate::desired::HttpGet;
use crate::http::testing::{free_port, own_loopback};

/// Longer than any answer takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// For who gives none.
const SHORT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn open_port_passes_a_tcp_check() {
    let listener = listen().await;
    assert_eq!(outcome(address(&listener), CheckKind::Tcp).await, "ok");
}

#[tokio::test]
async fn closed_port_is_connection_refused() {
    let closed = (own_loopback(), free_port()).into();
    assert_eq!(outcome(closed, CheckKind::Tcp).await, "connection refused");
}

#[tokio::test]
async fn unreachable_address_is_told_in_the_kernels_words() {
    let nowhere = "[2001:db8:ffff::1]:9".parse().unwrap();
    let told = outcome_within(SHORT, nowhere, CheckKind::Tcp).await;
    assert!(
        [
            "network is unreachable",
            "no route to host",
            "timeout 400 ms"
        ]
        .contains(&told.as_str()),
        "{told}"
    );
}

#[tokio::test]
async fn expected_status_passes_and_another_is_named() {
    let ok = serve(answer("204 No Content", "")).await;
    assert_eq!(outcome(ok, http(&[200..=399], None)).await, "ok");
    let broken = serve(answer("503 Service Unavailable", "")).await;
    assert_eq!(outcome(broken, http(&[200..=399], None)).await, "HTTP 503");
    let wanted = serve(answer("503 Service Unavailable", "")).await;
    assert_eq!(
        outcome(wanted, http(&[200..=299, 503..=503], None)).await,
        "ok"
    );
}

#[tokio::test]
async fn body_must_have_the_expected_text() {
    let ready = serve(answer("200 OK", "state: ready\n")).await;
    assert_eq!(
        outcome(ready, http(&[200..=200], Some("ready"))).await,
        "ok"
    );
    let starting = serve(answer("200 OK", "state: starting\n")).await;
    assert_eq!(
        outcome(starting, http(&[200..=200], Some("ready"))).await,
        "the body lacks \"ready\""
    );
}

#[tokio::test]
async fn text_cut_in_two_by_the_network_is_found() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
    let parts = [format!("{head}..re"), "ady..".to_owned()];
    let address = serve(parts.concat().into_bytes()).await;
    assert_eq!(
        outcome(address, http(&[200..=200], Some("ready"))).await,
        "ok"
    );
    let address = serve_in_parts(parts.map(String::into_bytes).to_vec()).await;
    assert_eq!(
        outcome(address, http(&[200..=200], Some("ready"))).await,
        "ok"
    );
}

#[tokio::test]
async fn body_without_end_is_read_up_to_the_bound() {
    let mut endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n".to_vec();
    endless.resize(endless.len() + super::http::MAX_BODY_BYTES, b'.');
    let address = serve(endless).await;
    assert_eq!(
        outcome(address, http(&[200..=200], Some("ready"))).await,
        "the body lacks \"ready\""
    );
}

#[tokio::test]
async fn head_without_end_is_refused() {
    let mut endless = b"HTTP/1.1 200 OK\r\nA: ".to_vec();
    endless.resize(256 << 10, b'a');
    let told = outcome(serve(endless).await, http(&[200..=200], None)).await;
    assert!(told.starts_with("no HTTP answer: "), "{told}");
}

#[tokio::test]
async fn other_protocols_are_no_answer() {
    let told = outcome(
        serve(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()).await,
        http(&[200..=200], None),
    )
    .await;
    assert!(told.starts_with("no HTTP answer: "), "{told}");
}

#[tokio::test]
async fn peer_that_closes_without_a_word_is_no_answer() {
    let told = outcome(serve(Vec::new()).await, http(&[200..=200], None)).await;
    assert!(told.starts_with("no HTTP answer: "), "{told}");
}

#[tokio::test]
async fn silent_peer_runs_into_the_timeout() {
    // The kernel accepts for it; nobody answers.
    let listener = listen().await;
    let told = outcome_within(SHORT, address(&listener), http(&[200..=200], None)).await;
    assert_eq!(told, "timeout 400 ms");
}

#[tokio::test]
async fn request_names_path_host_and_sender() {
    let listener = listen().await;
    let peer = address(&listener);
    let asked = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        respond(stream, vec![answer("200 OK", "")]).await
    });
    let get = HttpGet {
        path: "/ready?full=1".to_owned(),
        host: Some("www.example.com".to_owned()),
        ..HttpGet::default()
    };
    assert_eq!(
        outcome(peer, CheckKind::Http { tls: false, get }).await,
        "ok"
    );
    let request = asked.await.unwrap().to_lowercase();
    assert!(
        request.starts_with("get /ready?full=1 http/1.1\r\n"),
        "{request}"
    );
    for header in [
        "host: www.example.com\r\n",
        "user-agent: guideway/",
        "connection: close\r\n",
    ] {
        assert!(request.contains(header), "{request}");
    }
}

#[tokio::test]
async fn https_takes_any_certificate_and_looks_at_the_answer() {
    let ok = serve_tls(answer("200 OK", "ready")).await;
    assert_eq!(outcome(ok, https("ready")).await, "ok");
    let broken = serve_tls(answer("500 Internal Server Error", "")).await;
    assert_eq!(outcome(broken, https("ready")).await, "HTTP 500");
}

#[tokio::test]
async fn plain_http_where_tls_belongs_is_told() {
    let told = outcome(serve(answer("200 OK", "ready")).await, https("ready")).await;
    assert!(told.starts_with("TLS: "), "{told}");
}

#[test]
fn spans_are_written_in_the_largest_unit_that_is_exact() {
    assert_eq!(span(Duration::from_secs(2)), "2 s");
    assert_eq!(span(Duration::from_millis(1_500)), "1500 ms");
}

async fn outcome(peer: SocketAddr, kind: CheckKind) -> String {
    outcome_within(TIMEOUT, peer, kind).await
}

async fn outcome_within(timeout: Duration, peer: SocketAddr, kind: CheckKind) -> String {
    let check = Check {
        kind,
        timeout,
        ..Check::default()
    };
    match probe(&Route { peer, mark: 0 }, &check).await {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn http(status: &[std::ops::RangeInclusive<u16>], body: Option<&str>) -> CheckKind {
    CheckKind::Http {
        tls: false,
        get: HttpGet {
            status: status.to_vec(),
            body: body.map(str::to_owned),
            ..HttpGet::default()
        },
    }
}

fn https(body: &str) -> CheckKind {
    CheckKind::Http {
        tls: true,
        get: HttpGet {
            body: Some(body.to_owned()),
            host: Some("www.example.com:8443".to_owned()),
            ..HttpGet::default()
        },
    }
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().unwrap()
}

async fn serve(response: Vec<u8>) -> SocketAddr {
    serve_in_parts(vec![response]).await
}

/// Answers one request with these bytes, each part in a write of its own.
async fn serve_in_parts(parts: Vec<Vec<u8>>) -> SocketAddr {
    let listener = listen().await;
    let served = address(&listener);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        respond(stream, parts).await;
    });
    served
}

async fn serve_tls(response: Vec<u8>) -> SocketAddr {
    let own = rcgen::generate_simple_self_signed(["other.example.com".to_owned()]).unwrap();
    let key = own.signing_key.serialize_der().try_into().unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.into()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = listen().await;
    let served = address(&listener);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = acceptor.accept(stream).await.unwrap();
        respond(stream, vec![response]).await;
    });
    served
}

/// Reads a request, answers, and returns the request.
async fn respond(mut stream: impl AsyncRead + AsyncWrite + Unpin, parts: Vec<Vec<u8>>) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => request.extend_from_slice(&buffer[..length]),
        }
        if !request.starts_with(b"GET") {
            break;
        }
    }
    for part in parts {
        let _ = stream.write_all(&part).await;
        let _ = stream.flush().await;
        tokio::task::yield_now().await;
    }
    String::from_utf8_lossy(&request).into_owned()
}
