//! A network namespace of a pod, where the kernel has one connection in a state that a packet case gives it.

use std::{
    fs::File,
    io::{self, Read as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use xdp_prog::{
    abi::{AddressKey, Tuple},
    world::SocketState,
};

/// A connection of a pod; its client is the tuple's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodSocket {
    pub(crate) connection: Tuple,
    pub(crate) end: PodEnd,
    /// The client resets it before the last frame of the case.
    pub(crate) is_lost_at_last: bool,
}

/// What has become of the pod's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodEnd {
    Open,
    /// The client has closed its end.
    CloseWait,
    /// The pod has closed its end.
    FinWait,
    /// The pod has, and the client after it.
    TimeWait,
    /// The pod listens, and the client has reset the connection.
    Reset,
}

impl PodEnd {
    /// What a program sees of it.
    pub(crate) const fn seen(self) -> SocketState {
        match self {
            Self::Open => SocketState::of_number(1),
            Self::FinWait => SocketState::of_number(5),
            Self::TimeWait => SocketState::of_number(6),
            Self::CloseWait => SocketState::of_number(8),
            Self::Reset => SocketState::NONE,
        }
    }
}

/// The namespace, for as long as this lives.
#[derive(Debug)]
pub(crate) struct PodSandbox {
    namespace: File,
    ends: Ends,
    _listener: TcpListener,
}

impl PodSandbox {
    /// Makes the namespace, which has this id in the present one, and the connection in it.
    pub(crate) fn make(id: u32, socket: &PodSocket) -> anyhow::Result<Self> {
        let (source, destination, from, to, _) = socket.connection.parts();
        let client = SocketAddr::new(address(source), from);
        let pod = SocketAddr::new(address(destination), to);
        let made = thread::scope(|scope| {
            let inside = scope.spawn(|| Self::inside(client, pod, socket.end));
            inside.join().expect("it does not panic")
        })?;
        assign_id(&made.namespace, id).context("giving a namespace its id")?;
        Ok(made)
    }

    /// Has the client reset an open connection.
    pub(crate) fn reset(&mut self) -> io::Result<()> {
        self.ends.reset()
    }

    /// Moves the thread to a namespace of its own, and makes the connection there.
    fn inside(client: SocketAddr, pod: SocketAddr, end: PodEnd) -> anyhow::Result<Self> {
        // SAFETY: takes no pointers, and concerns this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error()).context("moving to a pod's namespace");
        }
        let namespace = File::open("/proc/thread-self/ns/net")?;
        ip(&["link", "set", "lo", "up"])?;
        for end in [client, pod] {
            let address = end.ip().to_string();
            let mut arguments = vec!["address", "add", &address, "dev", "lo"];
            // Without, an address counts only once nobody else has claimed it.
            arguments.extend(end.is_ipv6().then_some("nodad"));
            ip(&arguments)?;
        }
        let listener = TcpListener::bind(pod)?;
        let mut ends = Ends::connect(client, pod, &listener).context("connecting to a pod")?;
        ends.become_as(end)?;
        Ok(Self {
            namespace,
            ends,
            _listener: listener,
        })
    }
}

/// Both ends of the connection; the client's until it has gone.
#[derive(Debug)]
struct Ends {
    client: Option<TcpStream>,
    pod: TcpStream,
}

impl Ends {
    /// Connects. The kernel adds the route to an IPv6 address some time after the address.
    fn connect(client: SocketAddr, pod: SocketAddr, listener: &TcpListener) -> io::Result<Self> {
        let began = Instant::now();
        let client = loop {
            let socket = Socket::new(
                Domain::for_address(client),
                Type::STREAM,
                Some(Protocol::TCP),
            )?;
            socket.bind(&client.into())?;
            match socket.connect(&pod.into()) {
                Ok(()) => break socket.into(),
                Err(error)
                    if error.kind() == io::ErrorKind::NetworkUnreachable
                        && began.elapsed() < PATIENCE =>
                {
                    thread::sleep(MOMENT);
                }
                Err(error) => return Err(error),
            }
        };
        let (pod, _) = listener.accept()?;
        let client = Some(client);
        Ok(Self { client, pod })
    }

    /// Brings the pod's end into a state, and waits until it is there.
    fn become_as(&mut self, end: PodEnd) -> io::Result<()> {
        match end {
            PodEnd::Open => Ok(()),
            PodEnd::CloseWait => {
                self.client()?.shutdown(Shutdown::Write)?;
                self.wait_for(TCP_CLOSE_WAIT)
            }
            PodEnd::FinWait => {
                self.pod.shutdown(Shutdown::Write)?;
                self.wait_for(TCP_FIN_WAIT2)
            }
            PodEnd::TimeWait => {
                self.pod.shutdown(Shutdown::Write)?;
                self.wait_for(TCP_FIN_WAIT2)?;
                self.client()?.shutdown(Shutdown::Write)?;
                self.wait_for(TCP_CLOSE)
            }
            PodEnd::Reset => self.reset(),
        }
    }

    fn reset(&mut self) -> io::Result<()> {
        SockRef::from(self.client()?).set_linger(Some(Duration::ZERO))?;
        self.client = None;
        self.wait_for(TCP_CLOSE)
    }

    fn client(&self) -> io::Result<&TcpStream> {
        self.client
            .as_ref()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Waits until the pod's end is in a state.
    fn wait_for(&self, expected: u8) -> io::Result<()> {
        let began = Instant::now();
        while state_of(&self.pod)? != expected {
            if began.elapsed() >= PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(MOMENT);
        }
        Ok(())
    }
}

/// How the kernel numbers states (`include/net/tcp_states.h`).
const TCP_FIN_WAIT2: u8 = 5;
const TCP_CLOSE: u8 = 7;
const TCP_CLOSE_WAIT: u8 = 8;

const MOMENT: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the number of a socket's state, the first byte of `struct tcp_info`.
fn state_of(stream: &TcpStream) -> io::Result<u8> {
    let mut state = 0u8;
    let mut length: libc::socklen_t = 1;
    // SAFETY: the kernel writes as many bytes as the length says.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(state)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn address(key: AddressKey) -> IpAddr {
    IpAddr::from(key.octets()).to_canonical()
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("ip").args(arguments).status().context("ip")?;
    ensure!(status.success(), "ip {}: {status}", arguments.join(" "));
    Ok(())
}

/// Gives a namespace an id in the present one (`RTM_NEWNSID`).
fn assign_id(namespace: &File, id: u32) -> io::Result<()> {
    const RTM_NEWNSID: u16 = 88;
    const NETNSA_NSID: u16 = 1;
    const NETNSA_FD: u16 = 3;
    const NLM_F_REQUEST_ACK: u16 = 5;
    let descriptor = namespace.as_raw_fd().cast_unsigned();
    let mut request = Vec::new();
    request.extend(36u32.to_ne_bytes());
    request.extend(RTM_NEWNSID.to_ne_bytes());
    request.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    request.extend([0; 12]); // sequence number, port, `struct rtgenmsg` with its padding
    for (kind, value) in [(NETNSA_NSID, id), (NETNSA_FD, descriptor)] {
        request.extend(8u16.to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(value.to_ne_bytes());
    }
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, None)?;
    socket.send(&request)?;
    let mut answer = [0u8; 64];
    let length = (&socket).read(&mut answer)?;
    // `struct nlmsgerr` begins with the negated error number.
    match answer[..length].get(16..20) {
        Some(&[a, b, c, d]) => match i32::from_ne_bytes([a, b, c, d]) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        },
        _ => Err(io::Error::other("a short answer")),
    }
}
