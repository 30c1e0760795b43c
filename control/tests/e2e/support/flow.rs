//! Flows of a client: a TCP connection, an SCTP association or a connected UDP socket.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    time::Duration,
};

use lab::{Machine, wait_for};
use nix::sys::socket::{setsockopt, sockopt::TcpRepair};

use super::{Protocol, Service, TIMEOUT};

/// How long an answer may take; a lost datagram is not sent again.
const PATIENCE: Duration = Duration::from_secs(10);

/// A flow to a service, and the node that answers it.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) service: Service,
    /// The client's address and port.
    pub(crate) client: SocketAddr,
    /// The node that answered first.
    pub(crate) node: String,
    socket: Socket,
    asked: u64,
}

/// Has a machine send to another one that refuses it, so that its kernel knows the neighbours on the way there.
pub(crate) fn resolve_way(from: &Machine, to: &Machine) {
    /// Nothing listens there (RFC 863).
    const DISCARD: u16 = 9;
    for address in [to.v4(), to.v6()] {
        let refused = from
            .namespace()
            .run(|| TcpStream::connect_timeout(&(address, DISCARD).into(), PATIENCE));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{address}");
    }
}

#[derive(Debug)]
enum Socket {
    /// Of TCP or SCTP.
    Stream(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Flow {
    /// Opens a flow and asks once.
    pub(crate) fn open(client: &Machine, service: &Service) -> io::Result<Self> {
        Self::open_within(client, service, PATIENCE)
    }

    /// Opens a flow that does not wait longer than told for any answer.
    pub(crate) fn open_within(
        client: &Machine,
        service: &Service,
        patience: Duration,
    ) -> io::Result<Self> {
        let port = client.fresh_port();
        Self::open_from(client, service, port, patience)
    }

    /// Opens a flow from a port, which no other flow has.
    pub(crate) fn open_from(
        client: &Machine,
        service: &Service,
        port: u16,
        patience: Duration,
    ) -> io::Result<Self> {
        Self::ask_first(client, service, port, |from| {
            Socket::connect(service, from, patience)
        })
    }

    /// Asks on a TCP connection that no other machine knows: its client has sent no SYN.
    pub(crate) fn resume(client: &Machine, service: &Service) -> io::Result<Self> {
        let port = client.fresh_port();
        Self::ask_first(client, service, port, |from| Socket::resume(service, from))
    }

    fn ask_first(
        client: &Machine,
        service: &Service,
        port: u16,
        connect: impl FnOnce(SocketAddr) -> io::Result<Socket> + Send,
    ) -> io::Result<Self> {
        let from = SocketAddr::new(client.address_like(service.address.ip()), port);
        let socket = client.namespace().run(|| connect(from))?;
        let mut flow = Self {
            service: *service,
            client: socket.client()?,
            node: String::new(),
            socket,
            asked: 0,
        };
        flow.node = flow.ask()?;
        Ok(flow)
    }

    /// Opens several flows to each service; all of them must succeed.
    pub(crate) fn open_many(client: &Machine, services: &[Service], each: usize) -> Vec<Self> {
        Self::open_many_within(client, services, each, PATIENCE)
    }

    /// Opens several flows to each service, none of which waits longer than told for any answer; all of them must succeed.
    pub(crate) fn open_many_within(
        client: &Machine,
        services: &[Service],
        each: usize,
        patience: Duration,
    ) -> Vec<Self> {
        services
            .iter()
            .flat_map(|service| std::iter::repeat_n(service, each))
            .map(|service| {
                Self::open_within(client, service, patience)
                    .unwrap_or_else(|error| panic!("{service} ({:?}): {error}", service.mode))
            })
            .collect()
    }

    /// Resets a TCP connection, and opens another one from its port.
    pub(crate) fn open_anew(self, client: &Machine) -> io::Result<Self> {
        let (service, port) = (self.service, self.client.port());
        let Socket::Stream(stream) = self.socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        socket2::SockRef::from(stream.get_ref()).set_linger(Some(Duration::ZERO))?;
        drop(stream);
        // A process that another thread begins has a copy of the socket for a moment.
        let opened = wait_for("the port is free", TIMEOUT, || {
            match Self::open_from(client, &service, port, PATIENCE) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
                opened => Ok(opened),
            }
        });
        opened.unwrap()
    }

    /// Asks on each flow; the node or pod that has answered first must answer.
    pub(crate) fn all_stay<'f>(flows: impl IntoIterator<Item = &'f mut Self>, when: &str) {
        for flow in flows {
            let service = flow.service;
            let of = format!("{} to {service} ({}) {when}", flow.client, service.mode);
            let answered = flow.ask().unwrap_or_else(|error| panic!("{of}: {error}"));
            assert_eq!(answered, flow.node, "{of}");
        }
    }

    /// The nodes or pods that some flows are at.
    pub(crate) fn nodes<'f>(flows: impl IntoIterator<Item = &'f Self>) -> BTreeSet<&'f str> {
        let flows = flows.into_iter();
        flows.map(|flow| flow.node.as_str()).collect()
    }

    /// Sends a few bytes and returns the node that answers.
    pub(crate) fn ask(&mut self) -> io::Result<String> {
        self.ask_with("")
    }

    /// Sends bytes, which come back, and returns the node that answers.
    pub(crate) fn ask_with(&mut self, bytes: &str) -> io::Result<String> {
        self.asked += 1;
        // The number tells a late answer from the right one.
        let question = format!("{} {bytes}", self.asked);
        let answer = self.socket.exchange(&question)?;
        match answer.split_once(' ') {
            Some((node, echoed)) if echoed == question => Ok(node.to_owned()),
            _ => Err(io::Error::other(format!("{answer:?} for {question:?}"))),
        }
    }
}

impl Socket {
    fn connect(service: &Service, from: SocketAddr, patience: Duration) -> io::Result<Self> {
        match service.protocol {
            Protocol::Tcp | Protocol::Sctp => {
                let socket = service.protocol.stream(service.address)?;
                socket.bind(&from.into())?;
                socket.connect_timeout(&service.address.into(), patience)?;
                socket.set_read_timeout(Some(patience))?;
                if service.protocol == Protocol::Tcp {
                    socket.set_tcp_nodelay(true)?;
                }
                Ok(Self::Stream(BufReader::new(socket.into())))
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(from)?;
                socket.connect(service.address)?;
                socket.set_read_timeout(Some(patience))?;
                Ok(Self::Udp(socket))
            }
        }
    }

    fn resume(service: &Service, from: SocketAddr) -> io::Result<Self> {
        let socket = service.protocol.stream(service.address)?;
        // Under repair, connecting sends nothing (tcp(7)).
        setsockopt(&socket, TcpRepair, &1)?;
        socket.bind(&from.into())?;
        socket.connect(&service.address.into())?;
        setsockopt(&socket, TcpRepair, &0)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self::Stream(BufReader::new(socket.into())))
    }

    fn client(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Stream(stream) => stream.get_ref().local_addr(),
            Self::Udp(socket) => socket.local_addr(),
        }
    }

    fn exchange(&mut self, question: &str) -> io::Result<String> {
        match self {
            Self::Stream(stream) => {
                let line = format!("{question}\n");
                stream.get_mut().write_all(line.as_bytes())?;
                let mut answer = String::new();
                stream.read_line(&mut answer)?;
                match answer.strip_suffix('\n') {
                    Some(answer) => Ok(answer.to_owned()),
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
            Self::Udp(socket) => {
                socket.send(question.as_bytes())?;
                let mut answer = vec![0; usize::from(u16::MAX)];
                let length = socket.recv(&mut answer)?;
                Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
            }
        }
    }
}
