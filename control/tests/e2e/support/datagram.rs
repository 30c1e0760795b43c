//! UDP datagrams in fragments, sent as frames in any order, for sockets of the kernel that gets the answers.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use lab::{Link, Machine, RawSocket, Topology};

/// An MTU that leaves room for outer headers everywhere.
const SMALL_MTU: usize = 1280;

/// A client that cuts its datagrams itself.
#[derive(Debug)]
pub(crate) struct Sender<'net> {
    client: &'net Machine,
    frames: RawSocket,
    macs: [u8; 12],
    next_id: u32,
    mtu: usize,
}

/// A socket that waits for the answer to a datagram.
#[derive(Debug)]
pub(crate) struct Asked {
    socket: UdpSocket,
    pub(crate) fragments: Vec<Vec<u8>>,
    payload: Vec<u8>,
}

impl<'net> Sender<'net> {
    pub(crate) fn new(net: &'net Topology) -> Self {
        Self::of_mtu(net, SMALL_MTU)
    }

    /// One whose packets are as large as an MTU allows.
    pub(crate) fn of_mtu(net: &'net Topology, mtu: usize) -> Self {
        let client = &net.clients()[0];
        let near = client.link().unwrap();
        let far = net.far_end(client).unwrap();
        Self {
            client,
            frames: RawSocket::open(&near, 0).unwrap(),
            macs: macs(&far, &near),
            next_id: 0x1000,
            mtu,
        }
    }

    /// Prepares a datagram to a service, with a payload of its own.
    pub(crate) fn ask(&mut self, to: SocketAddr, length: usize) -> Asked {
        let from = self.client.address_like(to.ip());
        let from = SocketAddr::new(from, self.client.fresh_port());
        let socket = self.client.namespace().run(|| UdpSocket::bind(from));
        let socket = socket.unwrap();
        socket.connect(to).unwrap();
        self.asked(socket, length)
    }

    /// Prepares another datagram by the socket of an earlier one, whose answer has come.
    pub(crate) fn ask_again(&mut self, earlier: Asked, length: usize) -> Asked {
        self.asked(earlier.socket, length)
    }

    fn asked(&mut self, socket: UdpSocket, length: usize) -> Asked {
        let (from, to) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        self.next_id += 1;
        let seed = self.next_id as usize;
        let payload: Vec<u8> = (0..length)
            .map(|at| b'a' + u8::try_from((at * 7 + at / 26 + seed) % 26).unwrap())
            .collect();
        let fragments = fragments(from, to, self.next_id, &payload, self.mtu);
        Asked {
            socket,
            fragments: fragments
                .into_iter()
                .map(|packet| self.frame(&packet, to.is_ipv4()))
                .collect(),
            payload,
        }
    }

    /// Makes the frame of a packet.
    fn frame(&self, packet: &[u8], is_v4: bool) -> Vec<u8> {
        let ether_type = if is_v4 { [8, 0] } else { [0x86, 0xdd] };
        [&self.macs, &ether_type[..], packet].concat()
    }

    /// Sends a later fragment of a datagram whose first one never comes, from any source.
    pub(crate) fn send_orphan(&mut self, from: IpAddr, to: IpAddr) {
        self.next_id += 1;
        let ends = [from, to].map(|address| SocketAddr::new(address, 9));
        let pieces = fragments(
            ends[0],
            ends[1],
            self.next_id,
            &[b'x'; SMALL_MTU],
            SMALL_MTU,
        );
        let frame = self.frame(&pieces[1], to.is_ipv4());
        self.send(&frame);
    }

    /// Sends a frame, as soon as the device has room.
    pub(crate) fn send(&self, frame: &[u8]) {
        while !self.frames.send(frame).unwrap() {
            std::thread::yield_now();
        }
    }
}

impl Asked {
    /// Waits for the answer: the name of who gives it, and what was sent. Returns the name.
    ///
    /// # Panics
    ///
    /// Panics if it is another one, or comes twice; returns `None` if it does not come in time.
    pub(crate) fn answer(&self, patience: Duration) -> Option<String> {
        let mut answer = vec![0; usize::from(u16::MAX)];
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let length = match self.socket.recv(&mut answer) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let (name, echoed) = answer[..length].split_at(length - self.payload.len());
        assert_eq!(echoed, self.payload, "the datagram has changed");
        Some(String::from_utf8_lossy(name).trim().to_owned())
    }

    /// Tells whether another answer is there.
    pub(crate) fn has_another(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        self.socket.recv(&mut [0; 1]).is_ok()
    }
}

pub(crate) fn macs(to: &Link<'_>, from: &Link<'_>) -> [u8; 12] {
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&to.mac());
    macs[6..].copy_from_slice(&from.mac());
    macs
}

/// Makes a UDP datagram, and cuts it into IP packets if it does not fit into one (RFC 791 section 3.2, RFC 8200
/// section 4.5).
fn fragments(
    from: SocketAddr,
    to: SocketAddr,
    id: u32,
    payload: &[u8],
    mtu: usize,
) -> Vec<Vec<u8>> {
    let length = u16::try_from(8 + payload.len()).unwrap();
    let mut datagram = [from.port(), to.port(), length, 0]
        .map(u16::to_be_bytes)
        .concat();
    datagram.extend(payload);
    let addresses = [octets(from.ip()), octets(to.ip())].concat();
    let pseudo = [
        &addresses,
        &u32::from(length).to_be_bytes()[..],
        &[0, 0, 0, 17],
        &datagram,
    ];
    let sum = match checksum(&pseudo.concat()) {
        0 => 0xffff,
        sum => sum,
    };
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    if from.is_ipv6() && 40 + datagram.len() <= mtu {
        return vec![whole_v6(&addresses, &datagram)];
    }
    let size = if from.is_ipv4() { mtu - 20 } else { mtu - 48 } / 8 * 8;
    let pieces = datagram.chunks(size).enumerate();
    let cut = |(number, piece): (usize, &[u8])| {
        let offset = u16::try_from(number * size).unwrap();
        let is_last = number * size + piece.len() == datagram.len();
        if from.is_ipv4() {
            packet_v4(&addresses, id, offset, is_last, piece)
        } else {
            packet_v6(&addresses, id, offset, is_last, piece)
        }
    };
    pieces.map(cut).collect()
}

fn packet_v4(addresses: &[u8], id: u32, offset: u16, is_last: bool, piece: &[u8]) -> Vec<u8> {
    const MORE: u16 = 0x2000;
    let [.., a, b] = id.to_be_bytes();
    let [c, d] = u16::try_from(20 + piece.len()).unwrap().to_be_bytes();
    let flags = if is_last { 0 } else { MORE };
    let [e, f] = ((offset / 8) | flags).to_be_bytes();
    let mut header = vec![0x45, 0, c, d, a, b, e, f, 64, 17, 0, 0];
    header.extend(addresses);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header, piece].concat()
}

fn whole_v6(addresses: &[u8], datagram: &[u8]) -> Vec<u8> {
    let [a, b] = u16::try_from(datagram.len()).unwrap().to_be_bytes();
    let header = [0x60, 0, 0, 0, a, b, 17, 64];
    [&header, addresses, datagram].concat()
}

fn packet_v6(addresses: &[u8], id: u32, offset: u16, is_last: bool, piece: &[u8]) -> Vec<u8> {
    const FRAGMENT: u8 = 44;
    let [a, b] = u16::try_from(8 + piece.len()).unwrap().to_be_bytes();
    let [c, d] = (offset | u16::from(!is_last)).to_be_bytes();
    let header = [0x60, 0, 0, 0, a, b, FRAGMENT, 64];
    let fragment = [&[17, 0, c, d][..], &id.to_be_bytes()].concat();
    [&header, addresses, &fragment, piece].concat()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(high) << 8 | u32::from(low),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
