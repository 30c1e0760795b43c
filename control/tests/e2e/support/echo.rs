//! Servers that answer every line or datagram with the node's name before it.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use lab::Machine;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt::RcvBufForce};

use super::{Protocol, Service};

/// How long a UDP server may take to notice that it is to end.
const POLL: Duration = Duration::from_millis(50);

/// Bytes that may wait for a UDP server.
const RECEIVE_BUFFER: usize = 8 << 20;

/// The servers of one machine; they end on drop.
#[derive(Debug)]
pub(crate) struct Echo {
    stop: Arc<AtomicBool>,
    listeners: Vec<TcpListener>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Puts the VIPs on the node and serves every service.
    pub(crate) fn start(node: &Machine, services: &[Service]) -> Self {
        let vips: BTreeSet<IpAddr> = services
            .iter()
            .map(|service| service.address.ip())
            .collect();
        for vip in vips {
            node.add_vip(vip).unwrap();
        }
        let services = services.iter();
        Self::serve(
            node,
            services.map(|service| (service.address, service.protocol)),
        )
    }

    /// Serves at addresses that the machine has.
    pub(crate) fn serve(
        machine: &Machine,
        at: impl IntoIterator<Item = (SocketAddr, Protocol)>,
    ) -> Self {
        let mut echo = Self {
            stop: Arc::default(),
            listeners: Vec::new(),
            threads: Vec::new(),
        };
        for (address, protocol) in at {
            match protocol {
                Protocol::Tcp | Protocol::Sctp => echo.serve_stream(machine, address, protocol),
                Protocol::Udp => echo.serve_udp(machine, address),
            }
        }
        echo
    }

    fn serve_stream(&mut self, node: &Machine, address: SocketAddr, protocol: Protocol) {
        let listener = node.namespace().run(|| listen(address, protocol)).unwrap();
        self.listeners.push(listener.try_clone().unwrap());
        let name = node.label().to_owned();
        self.threads.push(thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let name = name.clone();
                // Ends when the client closes; a reset is the client's matter.
                thread::spawn(move || drop(answer_lines(&name, &stream)));
            }
        }));
    }

    fn serve_udp(&mut self, node: &Machine, address: SocketAddr) {
        let socket = node.namespace().run(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(POLL)).unwrap();
        // What comes while this thread does not run waits for it.
        setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER).unwrap();
        let (name, stop) = (node.label().to_owned(), Arc::clone(&self.stop));
        self.threads.push(thread::spawn(move || {
            let mut buffer = vec![0; usize::from(u16::MAX)];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, client)) = socket.recv_from(&mut buffer) {
                    let answer = [name.as_bytes(), b" ", &buffer[..length]].concat();
                    socket.send_to(&answer, client).unwrap();
                }
            }
        }));
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for listener in &self.listeners {
            // Linux: wakes the thread in accept().
            let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr, protocol: Protocol) -> io::Result<TcpListener> {
    const BACKLOG: i32 = 128;
    let socket = protocol.stream(address)?;
    // Connections of an earlier server may not have expired.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn answer_lines(name: &str, mut stream: &TcpStream) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        stream.write_all(&[name.as_bytes(), b" ", &line].concat())?;
        line.clear();
    }
    Ok(())
}
