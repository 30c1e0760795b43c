//! What a delivered or answered packet must look like, by bytes.

use std::net::IpAddr;

use etherparse::checksum::Sum16BitWords;

use super::world::{TARGET_PORT, World};

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// What is compared of a packet.
#[derive(Debug)]
struct View {
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
    checksum: u16,
    /// What the sum over pseudo-header, transport header and payload lacks to be right.
    error: u16,
    /// What the sum over an IPv4 header lacks to be right.
    header_error: u16,
    /// The IP header with options or extension headers; hop limit, checksum and destination zero.
    header: Vec<u8>,
    /// The transport header and what follows, ports and checksum zero.
    rest: Vec<u8>,
}

/// Panics unless `output` is `sent`, translated to a pod of its service.
pub(crate) fn is_delivered(world: &World, sent: &[u8], output: &[u8]) {
    if is_later_fragment(sent) {
        return is_moved(world, sent, output);
    }
    let (before, after) = (view(sent), view(output));
    let story = || format!("{before:02x?}\n{after:02x?}\nsent {sent:02x?}\ngot  {output:02x?}");
    assert!(
        world.serves(
            after.destination,
            before.destination,
            before.destination_port,
            before.protocol
        ),
        "not to a pod of the service\n{}",
        story()
    );
    assert_eq!(after.destination_port, TARGET_PORT, "{}", story());
    assert_eq!(after.source, before.source, "{}", story());
    assert_eq!(after.source_port, before.source_port, "{}", story());
    assert_eq!(after.protocol, before.protocol, "{}", story());
    assert_eq!(after.hop_limit + 1, before.hop_limit, "{}", story());
    assert_eq!(after.header, before.header, "{}", story());
    assert_eq!(after.rest, before.rest, "{}", story());
    assert_eq!(after.header_error, before.header_error, "{}", story());
    if before.protocol == UDP && before.checksum == 0 {
        assert_eq!(after.checksum, 0, "{}", story());
    } else {
        assert_eq!(after.error, before.error, "{}", story());
    }
}

/// Panics unless a later fragment has its destination translated and its hop limit lowered, and nothing else.
fn is_moved(world: &World, sent: &[u8], output: &[u8]) {
    let (before, after) = (header(sent), header(output));
    let story = || format!("{before:02x?}\n{after:02x?}\nsent {sent:02x?}\ngot  {output:02x?}");
    assert!(
        world.serves_some(after.destination, before.destination),
        "not to a pod of the address\n{}",
        story()
    );
    assert_eq!(after.source, before.source, "{}", story());
    assert_eq!(after.hop_limit + 1, before.hop_limit, "{}", story());
    assert_eq!(after.kept, before.kept, "{}", story());
    assert_eq!(after.error, before.error, "{}", story());
    assert_eq!(after.rest, before.rest, "{}", story());
}

/// Tells whether a frame that was forwarded is a fragment without a transport header.
pub(crate) fn is_later_fragment(frame: &[u8]) -> bool {
    header(frame).is_later_fragment
}

/// Panics unless `output` goes back to where `input` came from and is not much larger.
pub(crate) fn is_answer(input: &[u8], output: &[u8]) {
    assert_eq!(input[..6], output[6..12], "an answer goes back by MAC");
    assert_eq!(input[6..12], output[..6], "an answer goes back by MAC");
    let l3 = l3(input);
    let allowed = if input[l3] >> 4 == 4 { 28 } else { 48 };
    let length = if input[l3] >> 4 == 4 {
        word(input, l3 + 2)
    } else {
        word(input, l3 + 4) + 40
    };
    assert!(
        output.len() <= l3 + usize::from(length) + allowed,
        "an answer of {} bytes\nto {input:02x?}\nis {output:02x?}",
        output.len()
    );
    has_good_checksums(output);
}

/// Panics unless an answer's checksums are right. An echo reply's are as right as its request's.
fn has_good_checksums(answer: &[u8]) {
    const ECHO_REPLIES: [u8; 2] = [0, 129];
    let packet = &answer[l3(answer)..];
    let (protocol, header, addresses) = if packet[0] >> 4 == 4 {
        (packet[9], 20, 12..20)
    } else {
        (packet[6], 40, 8..40)
    };
    if protocol != TCP && ECHO_REPLIES.contains(&packet[header]) {
        return;
    }
    if header == 20 {
        let sum = Sum16BitWords::new().add_slice(&packet[..header]);
        assert_eq!(sum.ones_complement(), 0, "header of {answer:02x?}");
    }
    let message = &packet[header..];
    let mut sum = Sum16BitWords::new().add_slice(message);
    if protocol != ICMP {
        let length = u16::try_from(message.len()).unwrap();
        sum = sum
            .add_slice(&packet[addresses])
            .add_2bytes([0, protocol])
            .add_2bytes(length.to_be_bytes());
    }
    assert_eq!(sum.ones_complement(), 0, "message of {answer:02x?}");
}

/// An IP header with its options or extension headers, and what follows.
#[derive(Debug)]
struct Header<'f> {
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    protocol: u8,
    is_later_fragment: bool,
    /// The header; hop limit, checksum and destination zero.
    kept: Vec<u8>,
    /// What the sum over an IPv4 header lacks to be right.
    error: u16,
    rest: &'f [u8],
}

fn header(frame: &[u8]) -> Header<'_> {
    let packet = &frame[l3(frame)..];
    if packet[0] >> 4 == 4 {
        let length = usize::from(packet[0] & 15) * 4;
        let address = |at: usize| {
            let octets: [u8; 4] = packet[at..at + 4].try_into().unwrap();
            IpAddr::from(octets)
        };
        let mut kept = packet[..length].to_vec();
        kept[8] = 0;
        kept[10..12].fill(0);
        kept[16..20].fill(0);
        Header {
            source: address(12),
            destination: address(16),
            hop_limit: packet[8],
            protocol: packet[9],
            is_later_fragment: word(packet, 6) & 0x1fff != 0,
            kept,
            error: Sum16BitWords::new()
                .add_slice(&packet[..length])
                .ones_complement(),
            rest: &packet[length..usize::from(word(packet, 2))],
        }
    } else {
        let address = |at: usize| {
            let octets: [u8; 16] = packet[at..at + 16].try_into().unwrap();
            IpAddr::from(octets)
        };
        let (mut protocol, mut l4) = (packet[6], 40);
        let mut is_later_fragment = false;
        // Hop-by-hop, routing, fragment, authentication, destination options, mobility.
        while let 0 | 43 | 44 | 51 | 60 | 135 = protocol
            && !is_later_fragment
        {
            let length = match protocol {
                44 => {
                    is_later_fragment = word(packet, l4 + 2) & 0xfff8 != 0;
                    8
                }
                51 => (usize::from(packet[l4 + 1]) + 2) * 4,
                _ => (usize::from(packet[l4 + 1]) + 1) * 8,
            };
            protocol = packet[l4];
            l4 += length;
        }
        let mut kept = packet[..l4].to_vec();
        kept[7] = 0;
        kept[24..40].fill(0);
        Header {
            source: address(8),
            destination: address(24),
            hop_limit: packet[7],
            protocol,
            is_later_fragment,
            kept,
            error: 0,
            rest: &packet[l4..40 + usize::from(word(packet, 4))],
        }
    }
}

fn view(frame: &[u8]) -> View {
    let Header {
        source,
        destination,
        hop_limit,
        protocol,
        kept,
        error,
        rest: segment,
        ..
    } = header(frame);
    let checksum_at = if protocol == TCP { 16 } else { 6 };
    let pseudo = [source, destination].map(|address| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    });
    let mut rest = segment.to_vec();
    rest[..4].fill(0);
    rest[checksum_at..checksum_at + 2].fill(0);
    View {
        source,
        destination,
        hop_limit,
        protocol,
        source_port: word(segment, 0),
        destination_port: word(segment, 2),
        checksum: word(segment, checksum_at),
        error: Sum16BitWords::new()
            .add_slice(&pseudo.concat())
            .add_2bytes([0, protocol])
            .add_2bytes(u16::try_from(segment.len()).unwrap().to_be_bytes())
            .add_slice(segment)
            .ones_complement(),
        header_error: error,
        header: kept,
        rest,
    }
}

/// Returns where the IP header begins.
fn l3(frame: &[u8]) -> usize {
    let tags = (0..2)
        .take_while(|depth| matches!(word(frame, 12 + 4 * depth), 0x8100 | 0x88a8))
        .count();
    14 + 4 * tags
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}
