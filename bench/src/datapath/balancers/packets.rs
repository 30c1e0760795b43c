//! The frames that balancers get, and what comes out, read back and checked.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use xdp_prog::{
    bench::LISTED_LENGTH,
    csum::{self, Sum},
    wire::{
        ethernet::Ethernet,
        ipv4::Ipv4,
        ipv6::Ipv6,
        protocol,
        transport::{Ports, Tcp},
    },
};
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    datapath::frames::{Family, Protocol},
    load::frame::Framing,
};

/// Which packet of a TCP connection a frame has. Datagrams are all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The SYN.
    First,
    /// The answer to it.
    Answer,
    /// A segment with data, after the handshake.
    Later,
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Returns a frame with right checksums. Its last two bytes are the number of its flow.
pub(super) fn frame(
    framing: Framing,
    [from, to]: [SocketAddr; 2],
    flow: u16,
    stage: Stage,
) -> [u8; LISTED_LENGTH] {
    let at = framing.offsets(from.is_ipv4());
    let mut payload = vec![0; LISTED_LENGTH - at.payload - size_of_val(&flow)];
    payload.extend(flow.to_be_bytes());
    let mut frame = framing.frame(from, to, &payload);
    if framing.protocol == Protocol::Tcp {
        let header = Tcp::mut_from_prefix(&mut frame[at.port..]);
        stage.write(header.expect("the frame has a TCP header").0);
    }
    frame.try_into().expect("the payload fills the frame")
}

impl Stage {
    /// Changes a header with the flag ACK and all numbers zero into one of this stage.
    fn write(self, header: &mut Tcp) {
        let (flags, sequence, acknowledged) = match self {
            Self::First => (SYN, 0, 0),
            Self::Answer => (SYN | ACK, 0, 1),
            Self::Later => (ACK, 1, 1),
        };
        header.flags = flags;
        header.sequence[3] = sequence;
        header.acknowledgement[3] = acknowledged;
        let difference = Sum::ZERO
            .replace_u16(ACK.into(), flags.into())
            .add_u16(sequence.into())
            .add_u16(acknowledged.into());
        let check = u16::from_be_bytes(header.checksum);
        header.checksum = csum::update(check, difference).to_be_bytes();
    }
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
    if ![protocol::UDP, protocol::TCP].contains(&packet.protocol) {
        return Ok(None);
    }
    ensure!(
        packet.is_intact(),
        "the checksum of a packet to {} is wrong",
        packet.destination
    );
    let ports = Ports::ref_from_prefix(packet.payload).ok();
    let (ports, _) = ports.context("a packet without ports")?;
    let flow = packet.payload.last_chunk().context("a short packet")?;
    let [source, destination] = [ports.source, ports.destination].map(u16::from_be_bytes);
    Ok(Some(Seen {
        outer,
        source: (packet.source, source).into(),
        destination: (packet.destination, destination).into(),
        flow: u16::from_be_bytes(*flow),
    }))
}

/// An IP packet. The payload is as long as the header says: a frame may have a trailer.
struct Packet<'a> {
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    /// The sum of both addresses.
    addresses: Sum,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    fn read(bytes: &'a [u8], family: Family) -> Result<Self> {
        match family {
            Family::V4 => Self::read_v4(bytes),
            Family::V6 => Self::read_v6(bytes),
        }
    }

    fn read_v4(bytes: &'a [u8]) -> Result<Self> {
        let header = Ipv4::ref_from_prefix(bytes).ok();
        let (header, payload) = header.context("a short IPv4 header")?;
        ensure!(header.version_ihl == 0x45, "no IPv4 header without options");
        let sum = Sum::ZERO.add_bytes(header.as_bytes());
        ensure!(sum.is_valid(), "the checksum of an IPv4 header is wrong");
        let length = usize::from(u16::from_be_bytes(header.total_length));
        let length = length.checked_sub(Ipv4::LENGTH);
        let payload = length.and_then(|length| payload.get(..length));
        Ok(Self {
            protocol: header.protocol,
            source: header.source.into(),
            destination: header.destination.into(),
            addresses: Sum::ZERO
                .add_array(&header.source)
                .add_array(&header.destination),
            payload: payload.context("an IPv4 header with a wrong length")?,
        })
    }

    fn read_v6(bytes: &'a [u8]) -> Result<Self> {
        let header = Ipv6::ref_from_prefix(bytes).ok();
        let (header, payload) = header.context("a short IPv6 header")?;
        ensure!(header.class_label[0] >> 4 == 6, "no IPv6 header");
        let length = usize::from(u16::from_be_bytes(header.payload_length));
        Ok(Self {
            protocol: header.next_header,
            source: header.source.into(),
            destination: header.destination.into(),
            addresses: Sum::ZERO
                .add_array(&header.source)
                .add_array(&header.destination),
            payload: payload
                .get(..length)
                .context("an IPv6 header with a wrong length")?,
        })
    }

    /// Tells whether the checksum of TCP or UDP is right.
    fn is_intact(&self) -> bool {
        let length = u16::try_from(self.payload.len()).expect("headers have 16 bits for it");
        let pseudo_header = self.addresses.add_u16(self.protocol.into()).add_u16(length);
        pseudo_header.add_bytes(self.payload).is_valid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{frames, paths};

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

    /// Returns the frames of a flow, with their families and ends.
    fn frames_of(flow: u16) -> Vec<(Family, [SocketAddr; 2], [u8; LISTED_LENGTH])> {
        let mut all = Vec::new();
        for (family, from, to) in [
            (Family::V4, "10.0.0.3:33000", "198.51.100.1:80"),
            (Family::V6, "[2001:db8:2::3]:33000", "[2001:db8:1::1]:80"),
        ] {
            let ends = [from, to].map(|end| end.parse().unwrap());
            for protocol in Protocol::ALL {
                let macs = MACS;
                let framing = Framing::plain(macs, protocol);
                for stage in [Stage::First, Stage::Answer, Stage::Later] {
                    all.push((family, ends, frame(framing, ends, flow, stage)));
                }
            }
        }
        all
    }

    #[test]
    fn frames_have_right_checksums_and_say_their_flow() {
        for flow in [0, 77, 6_999] {
            for (family, [source, destination], frame) in frames_of(flow) {
                let expected = Seen {
                    outer: None,
                    source,
                    destination,
                    flow,
                };
                assert_eq!(read(&frame, family).unwrap(), Some(expected));
            }
        }
    }

    #[test]
    fn a_changed_byte_of_a_packet_is_found() {
        for (family, _, intact) in frames_of(5) {
            for at in Ethernet::LENGTH..LISTED_LENGTH {
                let mut changed = intact;
                changed[at] ^= 1;
                let before = read(&intact, family).unwrap();
                let after = read(&changed, family);
                // IPv6 has no checksum over the first bytes and the hop limit of its header.
                let is_free = family == Family::V6 && [14, 15, 16, 17, 21].contains(&at);
                assert_eq!(after.is_ok_and(|after| after == before), is_free, "{at}");
            }
        }
    }

    #[test]
    fn an_outer_header_and_a_trailer_are_seen_through() {
        for (family, [client, _], inner) in frames_of(9) {
            let node = frames::node(family, 1);
            let number = match family {
                Family::V4 => protocol::IPV4,
                Family::V6 => protocol::IPV6,
            };
            let (ethernet, packet) = inner.split_at(Ethernet::LENGTH);
            let outer = paths::ip_header(number, packet.len(), client.ip(), node);
            let frame = [ethernet, &outer, packet, &[0xff; 3]].concat();
            let seen = read(&frame, family).unwrap().unwrap();
            assert_eq!((seen.outer, seen.flow), (Some(node), 9));
        }
    }
}
