//! Servers that run beside a test, and a client that says what it is told to.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};

use super::super::*;

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
