//! Frames from etherparse: its headers, its checksums.

use std::net::IpAddr;

use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Type, Icmpv6Header, Icmpv6Type, IpFragOffset, IpNumber,
    Ipv4Header, Ipv4Options, Ipv6Header, TcpHeader, UdpHeader,
};

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
/// 802.1Q.
pub(crate) const VLAN: u16 = 0x8100;
/// 802.1ad.
pub(crate) const SERVICE_VLAN: u16 = 0x88a8;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Of all TCP segments, unless a test says otherwise.
pub(crate) const TCP_SEQUENCE: u32 = 0x0102_0304;

/// Address and port.
pub(crate) type End = (IpAddr, u16);

/// What stands in front of the payload of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link<'a> {
    pub(crate) destination: [u8; 6],
    pub(crate) source: [u8; 6],
    /// (EtherType that announces the tag, tag control information), outermost first.
    pub(crate) tags: &'a [(u16, u16)],
}

impl Link<'_> {
    /// Returns a frame with any payload.
    pub(crate) fn frame(&self, ether_type: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = [self.destination, self.source].concat();
        for (announced_by, control) in self.tags {
            frame.extend(announced_by.to_be_bytes());
            frame.extend(control.to_be_bytes());
        }
        frame.extend(ether_type.to_be_bytes());
        frame.extend(payload);
        frame
    }

    /// Returns a frame with an IP packet.
    pub(crate) fn carry(&self, packet: &Packet) -> Vec<u8> {
        self.frame(packet.ether_type(), &packet.bytes())
    }
}

/// An IP packet; [`Packet::bytes`] fills in lengths and header checksum.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    header: Header,
    payload: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Header {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

impl Packet {
    /// Makes a packet of any protocol.
    pub(crate) fn ip(source: IpAddr, destination: IpAddr, protocol: u8, payload: &[u8]) -> Self {
        let header = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Header::V4(Ipv4Header {
                identification: 0x1234,
                dont_fragment: true,
                time_to_live: 64,
                protocol: IpNumber(protocol),
                source: source.octets(),
                destination: destination.octets(),
                ..Ipv4Header::default()
            }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Header::V6(Ipv6Header {
                flow_label: 0x5_4321.try_into().unwrap(),
                next_header: IpNumber(protocol),
                hop_limit: 64,
                source: source.octets(),
                destination: destination.octets(),
                ..Ipv6Header::default()
            }),
            _ => panic!("addresses of two families"),
        };
        Self {
            header,
            payload: payload.to_vec(),
        }
    }

    /// Makes the first segment of a TCP connection.
    pub(crate) fn tcp(from: End, to: End, payload: &[u8]) -> Self {
        Self::segment(from, to, SYN, payload)
    }

    /// Makes a TCP segment with these of the flags below.
    pub(crate) fn segment(from: End, to: End, flags: u8, payload: &[u8]) -> Self {
        let mut header = TcpHeader::new(from.1, to.1, TCP_SEQUENCE, 0xfaf0);
        header.fin = flags & FIN != 0;
        header.syn = flags & SYN != 0;
        header.rst = flags & RST != 0;
        header.ack = flags & ACK != 0;
        Self::tcp_with(from, to, header, payload)
    }

    /// Makes a TCP segment with this header and the right checksum.
    pub(crate) fn tcp_with(from: End, to: End, mut header: TcpHeader, payload: &[u8]) -> Self {
        header.checksum = match (from.0, to.0) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                header.calc_checksum_ipv6_raw(source.octets(), destination.octets(), payload)
            }
            _ => panic!("addresses of two families"),
        }
        .unwrap();
        let segment = [header.to_bytes().as_slice(), payload].concat();
        Self::ip(from.0, to.0, 6, &segment)
    }

    /// Makes a UDP datagram.
    pub(crate) fn udp(from: End, to: End, payload: &[u8]) -> Self {
        let length = 8 + u16::try_from(payload.len()).unwrap();
        let mut header = UdpHeader {
            source_port: from.1,
            destination_port: to.1,
            length,
            checksum: 0,
        };
        header.checksum = match (from.0, to.0) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                header.calc_checksum_ipv4_raw(source.octets(), destination.octets(), payload)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                header.calc_checksum_ipv6_raw(source.octets(), destination.octets(), payload)
            }
            _ => panic!("addresses of two families"),
        }
        .unwrap();
        let datagram = [&header.to_bytes()[..], payload].concat();
        Self::ip(from.0, to.0, 17, &datagram)
    }

    /// Makes an SCTP packet: its checksum, here a made-up one, covers no addresses.
    pub(crate) fn sctp(from: End, to: End, payload: &[u8]) -> Self {
        let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        let rest = [0, 0, 0, 9, 0xc0, 0xff, 0xee, 0x11];
        Self::ip(from.0, to.0, 132, &[&ports, &rest[..], payload].concat())
    }

    /// Makes an echo request of the addresses' family.
    pub(crate) fn echo(source: IpAddr, destination: IpAddr) -> Self {
        let echo = IcmpEchoHeader { id: 7, seq: 1 };
        match (source, destination) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let kind = Icmpv6Type::EchoRequest(echo);
                let header =
                    Icmpv6Header::with_checksum(kind, from.octets(), to.octets(), b"ping").unwrap();
                let message = [&header.to_bytes(), &b"ping"[..]].concat();
                Self::ip(source, destination, 58, &message)
            }
            _ => {
                let kind = Icmpv4Type::EchoRequest(echo);
                let header = Icmpv4Header::with_checksum(kind, b"ping");
                let message = [&header.to_bytes(), &b"ping"[..]].concat();
                Self::ip(source, destination, 1, &message)
            }
        }
    }

    /// Makes an ICMP message of the addresses' family, of any type and code.
    pub(crate) fn icmp(
        source: IpAddr,
        destination: IpAddr,
        (type_u8, code_u8): (u8, u8),
        bytes5to8: [u8; 4],
        body: &[u8],
    ) -> Self {
        match (source, destination) {
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let kind = Icmpv6Type::Unknown {
                    type_u8,
                    code_u8,
                    bytes5to8,
                };
                let header =
                    Icmpv6Header::with_checksum(kind, from.octets(), to.octets(), body).unwrap();
                let message = [header.to_bytes().as_slice(), body].concat();
                Self::ip(source, destination, 58, &message)
            }
            _ => {
                let kind = Icmpv4Type::Unknown {
                    type_u8,
                    code_u8,
                    bytes5to8,
                };
                let header = Icmpv4Header::with_checksum(kind, body);
                let message = [header.to_bytes().as_slice(), body].concat();
                Self::ip(source, destination, 1, &message)
            }
        }
    }

    /// Makes this packet one that began its way at Guideway: no identification or flow label.
    pub(crate) fn fresh(mut self) -> Self {
        match &mut self.header {
            Header::V4(header) => header.identification = 0,
            Header::V6(header) => header.flow_label = 0.try_into().unwrap(),
        }
        self
    }

    /// Returns source and destination.
    pub(crate) fn ends(&self) -> (IpAddr, IpAddr) {
        match &self.header {
            Header::V4(header) => (header.source.into(), header.destination.into()),
            Header::V6(header) => (header.source.into(), header.destination.into()),
        }
    }

    /// Puts this packet into an outer one, as the edge does it: fresh
    /// identification or flow label, do not fragment, TTL 64, same class.
    pub(crate) fn within(&self, source: IpAddr, destination: IpAddr) -> Self {
        let protocol = match self.header {
            Header::V4(_) => 4,
            Header::V6(_) => 41,
        };
        Self::ip(source, destination, protocol, &self.bytes())
            .class(self.tos())
            .fresh()
    }

    /// Sets what an outer header says of the pod: identification, or the low bits of the flow label.
    pub(crate) fn tag(mut self, tag: u16) -> Self {
        match &mut self.header {
            Header::V4(header) => header.identification = tag,
            Header::V6(header) => header.flow_label = u32::from(tag).try_into().unwrap(),
        }
        self
    }

    /// Cuts the packet into fragments that carry `size` bytes each, a multiple of eight.
    pub(crate) fn pieces(&self, size: usize, identification: u32) -> Vec<Self> {
        let count = self.payload.len().div_ceil(size);
        let chunks = self.payload.chunks(size).enumerate();
        chunks
            .map(|(index, chunk)| {
                let offset = u16::try_from(index * size / 8).unwrap();
                self.piece(chunk, offset, index + 1 < count, identification)
            })
            .collect()
    }

    /// Makes one fragment of the packet; the offset counts in units of eight bytes.
    pub(crate) fn piece(&self, chunk: &[u8], offset: u16, more: bool, identification: u32) -> Self {
        let mut piece = self.clone();
        piece.payload = chunk.to_vec();
        match &mut piece.header {
            Header::V4(header) => {
                header.identification = (identification & 0xffff).try_into().unwrap();
                header.dont_fragment = false;
                header.more_fragments = more;
                header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
                piece
            }
            Header::V6(_) => {
                let field = (offset << 3 | u16::from(more)).to_be_bytes();
                let rest = [&[0], &field[..], &identification.to_be_bytes()].concat();
                piece.extensions(&[(44, &rest)])
            }
        }
    }

    /// Returns the number of the protocol behind the IP header.
    pub(crate) fn protocol(&self) -> u8 {
        match &self.header {
            Header::V4(header) => header.protocol.0,
            Header::V6(header) => header.next_header.0,
        }
    }

    /// Returns what follows the IP header.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Replaces what follows the IP header.
    pub(crate) fn with_payload(mut self, payload: Vec<u8>) -> Self {
        self.payload = payload;
        self
    }

    /// Sets TTL or hop limit.
    pub(crate) fn hop_limit(mut self, hop_limit: u8) -> Self {
        match &mut self.header {
            Header::V4(header) => header.time_to_live = hop_limit,
            Header::V6(header) => header.hop_limit = hop_limit,
        }
        self
    }

    /// Returns the packet one hop further on.
    pub(crate) fn next_hop(&self) -> Self {
        let hop_limit = match &self.header {
            Header::V4(header) => header.time_to_live,
            Header::V6(header) => header.hop_limit,
        };
        self.clone().hop_limit(hop_limit - 1)
    }

    /// Sets DSCP and ECN.
    pub(crate) fn class(mut self, class: u8) -> Self {
        match &mut self.header {
            Header::V4(header) => {
                header.dscp = (class >> 2).try_into().unwrap();
                header.ecn = (class & 3).try_into().unwrap();
            }
            Header::V6(header) => header.traffic_class = class,
        }
        self
    }

    fn tos(&self) -> u8 {
        match &self.header {
            Header::V4(header) => header.dscp.value() << 2 | header.ecn.value(),
            Header::V6(header) => header.traffic_class,
        }
    }

    /// Gives an IPv4 packet options.
    pub(crate) fn options(mut self, options: &[u8]) -> Self {
        self.v4().options = Ipv4Options::try_from(options).unwrap();
        self
    }

    /// Makes an IPv4 packet a fragment; the offset counts in units of eight bytes.
    pub(crate) fn fragment(mut self, offset: u16, more: bool) -> Self {
        let header = self.v4();
        header.dont_fragment = false;
        header.fragment_offset = IpFragOffset::try_new(offset).unwrap();
        header.more_fragments = more;
        self
    }

    /// Allows an IPv4 packet to be fragmented.
    pub(crate) fn fragmentable(mut self) -> Self {
        self.v4().dont_fragment = false;
        self
    }

    /// Sets the identification of an IPv4 packet.
    pub(crate) fn identification(mut self, identification: u16) -> Self {
        self.v4().identification = identification;
        self
    }

    /// Puts extension headers in front of the payload of an IPv6 packet:
    /// (protocol number, bytes from the second on).
    pub(crate) fn extensions(mut self, chain: &[(u8, &[u8])]) -> Self {
        let Header::V6(header) = &mut self.header else {
            panic!("extension headers are IPv6's");
        };
        for (protocol, rest) in chain.iter().rev() {
            self.payload
                .splice(..0, [&[header.next_header.0], *rest].concat());
            header.next_header = IpNumber(*protocol);
        }
        self
    }

    fn v4(&mut self) -> &mut Ipv4Header {
        match &mut self.header {
            Header::V4(header) => header,
            Header::V6(_) => panic!("this is IPv4's"),
        }
    }

    /// Returns the packet's length.
    pub(crate) fn length(&self) -> usize {
        self.bytes().len()
    }

    /// Lays the packet out.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match &self.header {
            Header::V4(header) => {
                let mut header = header.clone();
                header.set_payload_len(self.payload.len()).unwrap();
                header.header_checksum = header.calc_header_checksum();
                [&header.to_bytes(), self.payload.as_slice()].concat()
            }
            Header::V6(header) => {
                let mut header = header.clone();
                header.set_payload_length(self.payload.len()).unwrap();
                [&header.to_bytes(), self.payload.as_slice()].concat()
            }
        }
    }

    /// Returns the EtherType.
    pub(crate) fn ether_type(&self) -> u16 {
        match self.header {
            Header::V4(_) => IPV4,
            Header::V6(_) => IPV6,
        }
    }
}

/// Overwrites bytes.
pub(crate) fn patched(mut bytes: Vec<u8>, offset: usize, with: &[u8]) -> Vec<u8> {
    bytes[offset..offset + with.len()].copy_from_slice(with);
    bytes
}

/// Overwrites bytes of an IPv4 header and makes its checksum right again.
pub(crate) fn forged_v4(bytes: Vec<u8>, offset: usize, with: &[u8]) -> Vec<u8> {
    let bytes = patched(bytes, offset, with);
    let header = usize::from(bytes[0] & 15).max(5) * 4;
    let blank = patched(bytes, 10, &[0, 0]);
    let sum = etherparse::checksum::Sum16BitWords::new()
        .add_slice(&blank[..header.min(blank.len())])
        .ones_complement();
    // The sum counts words as they lie in memory.
    patched(blank, 10, &sum.to_ne_bytes())
}
