//! The frames that balancers get, and what comes out, read back and checked.

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::{Context, Result, ensure};
use xdp_prog::{
    bench::LISTED_LENGTH,
    csum::{self, Sum, pseudo_header_v4, pseudo_header_v6, udp_checksum},
    wire::{
        ethernet::Ethernet,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Tcp, Udp},
    },
};

use super::Case;
use crate::datapath::{
    frames::{self, Family, Protocol},
    paths,
};

/// Which packet of a TCP connection a frame has. Datagrams are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The SYN.
    First,
    /// A segment with data, after the handshake.
    Later,
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
/// Offsets in a TCP header: the low bytes of sequence and acknowledgement numbers, and the flags.
const SEQUENCE: usize = 7;
const ACKNOWLEDGED: usize = 11;
const FLAGS: usize = 13;

/// Returns a frame of a flow, with right checksums. Its last two bytes are the number of the flow.
pub(super) fn frame(macs: [u8; 12], case: Case, flow: u32, stage: Stage) -> [u8; LISTED_LENGTH] {
    let (client, service) = case.ends_of(flow);
    let number = case.protocol.number();
    let headers = Ethernet::LENGTH + case.family.header_length();
    let length = LISTED_LENGTH - headers;
    let mut segment = frames::transport(case.protocol, client.port(), service.port());
    segment.resize(length, 0);
    match (case.protocol, stage) {
        (Protocol::Udp, _) => segment[4..6].copy_from_slice(&frames::length_field(length)),
        (Protocol::Tcp, Stage::First) => segment[FLAGS] = SYN,
        (Protocol::Tcp, Stage::Later) => [segment[SEQUENCE], segment[ACKNOWLEDGED]] = [1, 1],
    }
    let flow = u16::try_from(flow).expect("there are few flows");
    segment[length - 2..].copy_from_slice(&flow.to_be_bytes());
    let sum = pseudo_header(client.ip(), service.ip(), number, length).add_bytes(&segment);
    let (at, check) = match case.protocol {
        Protocol::Udp => (offset_of!(Udp, checksum), udp_checksum(sum.checksum())),
        Protocol::Tcp => (offset_of!(Tcp, checksum), sum.checksum()),
    };
    segment[at..at + 2].copy_from_slice(&check.to_be_bytes());

    let mut bytes = [0; LISTED_LENGTH];
    bytes[..Ethernet::LENGTH].copy_from_slice(&frames::ethernet_header(macs, case.family));
    let ip = paths::ip_header(number, length, client.ip(), service.ip());
    bytes[Ethernet::LENGTH..headers].copy_from_slice(&ip);
    bytes[headers..].copy_from_slice(&segment);
    bytes
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The destination of its outer header.
    pub(super) outer: Option<IpAddr>,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    /// The number of its flow.
    pub(super) flow: u16,
}

/// Reads a frame; `None` if it is neither TCP nor UDP. A wrong checksum is an error.
pub(super) fn read(frame: &[u8], family: Family) -> Result<Option<Seen>> {
    let bytes = frame.get(Ethernet::LENGTH..).context("a runt")?;
    let mut packet = Packet::read(bytes, family)?;
    let mut outer = None;
    if [protocol::IPV4, protocol::IPV6].contains(&packet.protocol) {
        outer = Some(packet.destination);
        packet = Packet::read(packet.payload, family)?;
    }
    let segment = packet.payload;
    match packet.protocol {
        protocol::UDP | protocol::TCP => {}
        _ => return Ok(None),
    }
    let (source, destination) = (packet.source, packet.destination);
    let sum = pseudo_header(source, destination, packet.protocol, segment.len());
    ensure!(
        sum.add_bytes(segment).is_valid(),
        "the checksum of a packet to {destination} is wrong"
    );
    let word = |at: usize| {
        let bytes = segment.get(at..at + 2).context("a short packet")?;
        anyhow::Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    Ok(Some(Seen {
        outer,
        source: (source, word(0)?).into(),
        destination: (destination, word(2)?).into(),
        flow: word(segment.len().saturating_sub(2))?,
    }))
}

/// Returns the answer to a frame without outer header: both ends change places, which no checksum notices, and a SYN
/// is acknowledged by another.
pub(super) fn answer(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let family = match frame[Ethernet::LENGTH] >> 4 {
        4 => Family::V4,
        _ => Family::V6,
    };
    let (source, length) = match family {
        Family::V4 => (offset_of!(Ipv4, source), 4),
        Family::V6 => (offset_of!(Ipv6, source), 16),
    };
    let ports = Ethernet::LENGTH + family.header_length();
    for (at, length) in [(0, 6), (Ethernet::LENGTH + source, length), (ports, 2)] {
        let (first, second) = frame[at..at + 2 * length].split_at_mut(length);
        first.swap_with_slice(second);
    }
    let number = match family {
        Family::V4 => offset_of!(Ipv4, protocol),
        Family::V6 => offset_of!(Ipv6, next_header),
    };
    let is_tcp = frame[Ethernet::LENGTH + number] == protocol::TCP;
    let segment = &mut frame[ports..];
    if is_tcp && segment[FLAGS] == SYN {
        segment[FLAGS] |= ACK;
        segment[ACKNOWLEDGED] = 1;
        let at = offset_of!(Tcp, checksum);
        let check = u16::from_be_bytes([segment[at], segment[at + 1]]);
        let check = csum::update(check, Sum::ZERO.add_u16(ACK.into()).add_u16(1));
        segment[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }
    frame
}

/// An IP packet. The payload is as long as the header says: a frame may have a trailer.
struct Packet<'a> {
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    fn read(bytes: &'a [u8], family: Family) -> Result<Self> {
        let (header, payload) = bytes
            .split_at_checked(family.header_length())
            .context("a short header")?;
        let word = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let (protocol, source, destination, length) = match family {
            Family::V4 => {
                ensure!(header[0] == 0x45, "no IPv4 header without options");
                let sum = Sum::ZERO.add_bytes(header);
                ensure!(sum.is_valid(), "the checksum of an IPv4 header is wrong");
                let address = |at: usize| -> Result<IpAddr> {
                    Ok(Ipv4Addr::from(<[u8; 4]>::try_from(&header[at..at + 4])?).into())
                };
                let length = word(2).checked_sub(Ipv4::LENGTH);
                (header[9], address(12)?, address(16)?, length)
            }
            Family::V6 => {
                ensure!(header[0] >> 4 == 6, "no IPv6 header");
                let address = |at: usize| -> Result<IpAddr> {
                    Ok(Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16])?).into())
                };
                (header[6], address(8)?, address(24)?, Some(word(4)))
            }
        };
        let payload = length.and_then(|length| payload.get(..length));
        Ok(Self {
            protocol,
            source,
            destination,
            payload: payload.context("an IP header with a wrong length")?,
        })
    }
}

fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Sum {
    let length = u16::try_from(length).expect("frames are short");
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            pseudo_header_v4(&source.octets(), &destination.octets(), protocol, length)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => pseudo_header_v6(
            &source.octets(),
            &destination.octets(),
            protocol,
            length.into(),
        ),
        _ => unreachable!("both ends are of one family"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    fn cases() -> impl Iterator<Item = Case> {
        let of = |family| {
            Protocol::ALL.map(|protocol| Case {
                family,
                protocol,
                services: 1_000,
            })
        };
        Family::ALL.into_iter().flat_map(of)
    }

    #[test]
    fn frames_have_right_checksums_and_say_their_flow() {
        for case in cases() {
            for flow in [0, 1, 77, 6_999] {
                let seen = read(&frame(MACS, case, flow, Stage::Later), case.family);
                let seen = seen.unwrap().unwrap();
                assert_eq!((seen.source, seen.destination), case.ends_of(flow));
                assert_eq!((u32::from(seen.flow), seen.outer), (flow, None));
            }
        }
    }

    #[test]
    fn a_changed_byte_of_a_packet_is_found() {
        for case in cases() {
            let intact = frame(MACS, case, 5, Stage::Later);
            for at in Ethernet::LENGTH..LISTED_LENGTH {
                let mut changed = intact;
                changed[at] ^= 1;
                let before = read(&intact, case.family).unwrap();
                let after = read(&changed, case.family);
                // IPv6 has no checksum over the first bytes and the hop limit of its header.
                let is_free = case.family == Family::V6 && [14, 15, 16, 17, 21].contains(&at);
                assert_eq!(after.is_ok_and(|after| after == before), is_free, "{at}");
            }
        }
    }

    #[test]
    fn an_outer_header_and_a_trailer_are_seen_through() {
        for case in cases() {
            let inner = frame(MACS, case, 9, Stage::Later);
            let node = frames::node(case.family, 1);
            let client = case.ends_of(9).0.ip();
            let number = match case.family {
                Family::V4 => protocol::IPV4,
                Family::V6 => protocol::IPV6,
            };
            let mut bytes = inner[..Ethernet::LENGTH].to_vec();
            let length = LISTED_LENGTH - Ethernet::LENGTH;
            bytes.extend(paths::ip_header(number, length, client, node));
            bytes.extend(&inner[Ethernet::LENGTH..]);
            bytes.extend([0xff; 3]);
            let seen = read(&bytes, case.family).unwrap().unwrap();
            assert_eq!((seen.outer, seen.flow), (Some(node), 9));
        }
    }

    #[test]
    fn an_answer_goes_back() {
        for case in cases() {
            for stage in [Stage::First, Stage::Later] {
                let asked = frame(MACS, case, 3, stage);
                let answered = answer(&asked);
                let seen = read(&answered, case.family).unwrap().unwrap();
                let (client, service) = case.ends_of(3);
                assert_eq!((seen.source, seen.destination), (service, client));
                let is_syn = (case.protocol, stage) == (Protocol::Tcp, Stage::First);
                assert_eq!(answer(&answered) == asked, !is_syn);
            }
        }
    }
}
