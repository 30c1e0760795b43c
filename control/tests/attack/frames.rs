//! Frames of an attacker, who can claim any source.

use std::net::Ipv4Addr;

use lab::Mac;

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// More fragments follow (RFC 791 section 3.1).
const MORE_FRAGMENTS: u16 = 0x2000;
/// Where a second fragment begins, in units of 8 bytes.
const SECOND: u16 = 4;

pub(crate) type End = (Ipv4Addr, u16);

/// Numbers that look random and are the same in each run: xorshift64 (Marsaglia 2003).
#[derive(Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns an end that nobody has: of the networks for benchmarks (RFC 2544), which the lab's router drops.
    pub(crate) fn stranger(&mut self) -> End {
        let [a, b, c, d, ..] = self.next().to_le_bytes();
        let address = Ipv4Addr::new(198, 18 | a & 1, b, c);
        (address, 1024 + u16::from(d) * 251)
    }
}

/// Where frames go on the wire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
}

impl Wire {
    /// A TCP segment with these flags, sequence and acknowledgement numbers.
    pub(crate) fn tcp(
        &self,
        from: End,
        to: End,
        flags: u8,
        numbers: [u32; 2],
        data: &[u8],
    ) -> Vec<u8> {
        self.packet(
            from,
            to,
            TCP,
            [0, 0x4000],
            &segment(from, to, flags, numbers, data),
        )
    }

    /// A TCP segment in three fragments, of which none has both the ports and the flags (RFC 1858 section 3).
    pub(crate) fn tcp_in_pieces(
        &self,
        from: End,
        to: End,
        flags: u8,
        numbers: [u32; 2],
        identification: u16,
    ) -> [Vec<u8>; 3] {
        let segment = segment(from, to, flags, numbers, &[]);
        let piece =
            |at: u16, more, bytes| self.packet(from, to, TCP, [identification, at | more], bytes);
        [
            piece(0, MORE_FRAGMENTS, &segment[..8]),
            piece(1, MORE_FRAGMENTS, &segment[8..16]),
            piece(2, 0, &segment[16..]),
        ]
    }

    /// A UDP datagram.
    pub(crate) fn udp(&self, from: End, to: End, data: &[u8]) -> Vec<u8> {
        let datagram = finished(from, to, UDP, 6, datagram(from, to, data));
        self.packet(from, to, UDP, [0, 0x4000], &datagram)
    }

    /// The first fragment of a UDP datagram.
    pub(crate) fn first_fragment(&self, from: End, to: End, identification: u16) -> Vec<u8> {
        let bytes = datagram(from, to, &[0; SECOND as usize * 8 - 8]);
        self.packet(from, to, UDP, [identification, MORE_FRAGMENTS], &bytes)
    }

    /// The second and last one.
    pub(crate) fn second_fragment(&self, from: End, to: End, identification: u16) -> Vec<u8> {
        self.packet(from, to, UDP, [identification, SECOND], &[0; 32])
    }

    fn packet(&self, from: End, to: End, protocol: u8, words: [u16; 2], payload: &[u8]) -> Vec<u8> {
        const HEADER: usize = 20;
        let [identification, fragment] = words;
        let length = u16::try_from(HEADER + payload.len()).unwrap();
        let mut header = vec![0x45, 0];
        header.extend(length.to_be_bytes());
        header.extend(identification.to_be_bytes());
        header.extend(fragment.to_be_bytes());
        header.extend([64, protocol, 0, 0]);
        header.extend(from.0.octets());
        header.extend(to.0.octets());
        let sum = !fold(sum(&header));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let ethernet = [&self.destination[..], &self.source, &[0x08, 0x00]].concat();
        [ethernet, header, payload.to_vec()].concat()
    }
}

fn ports(from: End, to: End) -> Vec<u8> {
    [from.1.to_be_bytes(), to.1.to_be_bytes()].concat()
}

fn segment(from: End, to: End, flags: u8, numbers: [u32; 2], data: &[u8]) -> Vec<u8> {
    let [sequence, acknowledgement] = numbers;
    let mut segment = ports(from, to);
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledgement.to_be_bytes());
    segment.extend([5 << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(data);
    finished(from, to, TCP, 16, segment)
}

fn datagram(from: End, to: End, data: &[u8]) -> Vec<u8> {
    let mut datagram = ports(from, to);
    let length = u16::try_from(8 + data.len()).unwrap();
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(data);
    datagram
}

/// Fills in the checksum, at this place of the segment (RFC 793 section 3.1, RFC 768).
fn finished(from: End, to: End, protocol: u8, at: usize, mut segment: Vec<u8>) -> Vec<u8> {
    let length = u16::try_from(segment.len()).unwrap();
    let pseudo = [
        &from.0.octets()[..],
        &to.0.octets(),
        &[0, protocol],
        &length.to_be_bytes(),
    ]
    .concat();
    let sum = match !(fold(sum(&pseudo) + sum(&segment))) {
        0 => 0xffff,
        sum => sum,
    };
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    segment
}

/// Sums 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| match *word {
        [a, b] => u32::from(u16::from_be_bytes([a, b])),
        [a] => u32::from(a) << 8,
        _ => 0,
    });
    words.sum()
}

fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap()
}
