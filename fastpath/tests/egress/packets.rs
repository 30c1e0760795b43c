//! Packets that pods and their nodes send, from etherparse's headers and checksums.

use std::net::IpAddr;

use etherparse::{TcpHeader, checksum::Sum16BitWords};

use super::support::packet::{End, Packet};

/// The flags of a TCP segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flags {
    Syn,
    SynAck,
    Ack,
    PshAck,
    FinAck,
    Rst,
}

/// The sequence number of every segment.
pub(crate) const SEQUENCE: u32 = 0x0a0b_0c0d;
/// The acknowledgement number of every segment.
pub(crate) const ACKNOWLEDGEMENT: u32 = 0x0102_0305;

/// Makes a TCP segment with options, padded to whole words by the caller.
pub(crate) fn tcp(from: End, to: End, flags: Flags, options: &[u8], payload: &[u8]) -> Packet {
    let mut header = TcpHeader::new(from.1, to.1, SEQUENCE, 0xfaf0);
    header.acknowledgment_number = ACKNOWLEDGEMENT;
    match flags {
        Flags::Syn => header.syn = true,
        Flags::SynAck => (header.syn, header.ack) = (true, true),
        Flags::Ack => header.ack = true,
        Flags::PshAck => (header.psh, header.ack) = (true, true),
        Flags::FinAck => (header.fin, header.ack) = (true, true),
        Flags::Rst => (header.rst, header.ack) = (true, true),
    }
    header.set_options_raw(options).unwrap();
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
    let segment = [&header.to_bytes(), payload].concat();
    Packet::ip(from.0, to.0, 6, &segment)
}

/// Makes an SCTP packet with any checksum: it covers no addresses.
pub(crate) fn sctp(from: End, to: End) -> Packet {
    let packet = [
        &from.1.to_be_bytes()[..],
        &to.1.to_be_bytes(),
        &[1, 2, 3, 4, 0xc3, 0x2c, 0xc3, 0x2c],
        b"chunks..",
    ]
    .concat();
    Packet::ip(from.0, to.0, 132, &packet)
}

/// Makes an ICMP message of the addresses' family.
pub(crate) fn icmp(source: IpAddr, destination: IpAddr, kind: u8, quote: &[u8]) -> Packet {
    let message = |check: [u8; 2]| {
        let rest = [0, 0, 0x05, 0x00];
        [&[kind, 1][..], &check, &rest, quote].concat()
    };
    let blank = message([0, 0]);
    let mut sum = Sum16BitWords::new().add_slice(&blank);
    match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            let check = sum.ones_complement().to_ne_bytes();
            Packet::ip(source, destination, 1, &message(check))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let length = u32::try_from(blank.len()).unwrap();
            let check = sum
                .add_16bytes(from.octets())
                .add_16bytes(to.octets())
                .add_4bytes(length.to_be_bytes())
                .add_4bytes([0, 0, 0, 58])
                .ones_complement()
                .to_ne_bytes();
            Packet::ip(source, destination, 58, &message(check))
        }
        _ => panic!("addresses of two families"),
    }
}

/// Cuts a packet into fragments of up to `size` bytes of payload, a multiple of eight.
pub(crate) fn fragments(packet: &Packet, from: IpAddr, to: IpAddr, size: usize) -> Vec<Packet> {
    let header = if from.is_ipv4() { 20 } else { 40 };
    let bytes = packet.bytes();
    let protocol = if from.is_ipv4() { bytes[9] } else { bytes[6] };
    let chunks: Vec<_> = bytes[header..].chunks(size).collect();
    let last = chunks.len() - 1;
    let pieces = chunks.iter().enumerate().map(|(number, chunk)| {
        let units = u16::try_from(number * size / 8).unwrap();
        let more = number != last;
        let piece = Packet::ip(from, to, protocol, chunk);
        if from.is_ipv4() {
            return piece.fragment(units, more).identification(0x4321);
        }
        let [high, low] = (units << 3 | u16::from(more)).to_be_bytes();
        piece.extensions(&[(44, &[0, high, low, 0xfe, 0xed, 0x43, 0x21])])
    });
    pieces.collect()
}
