//! Packets that are cut, judged by etherparse: its headers, its checksum, its joining of fragments.

use etherparse::{
    IpFragOffset, IpNumber, Ipv4Header,
    defrag::{IpDefragBuf, IpDefragError},
};
use proptest::prelude::*;

use super::Pieces;
use crate::mend::Outcome;

const FRESH: u16 = 0xabcd;
/// Options of which each fragment has one: a security label (RFC 1108), a stream id (RFC 791).
const LABEL: [u8; 4] = [0x82, 4, 0xde, 0xad];
const STREAM: [u8; 4] = [0x88, 4, 0, 9];
/// Options that the first fragment has alone: a record of the route, time stamps (RFC 791).
const ROUTE: [u8; 7] = [0x07, 7, 4, 0, 0, 0, 0];
const TIME: [u8; 8] = [0x44, 8, 9, 0, 0, 0, 0, 0];

/// A packet of a host.
#[derive(Clone, Debug)]
struct Packet {
    header: Ipv4Header,
    payload: Vec<u8>,
}

impl Packet {
    fn new(length: usize) -> Self {
        let byte = |at: usize| u8::try_from((at * 7 + at / 256) % 256).unwrap();
        let payload: Vec<u8> = (0..length).map(byte).collect();
        let header = Ipv4Header {
            identification: 0x1234,
            dont_fragment: false,
            time_to_live: 63,
            protocol: IpNumber::UDP,
            source: [192, 0, 2, 1],
            destination: [203, 0, 113, 1],
            dscp: 46.try_into().unwrap(),
            ecn: 1.try_into().unwrap(),
            ..Ipv4Header::default()
        };
        Self { header, payload }
    }

    fn options(mut self, options: &[&[u8]]) -> Self {
        let mut list = options.concat();
        list.resize(list.len().next_multiple_of(4), 0);
        self.header.options = list[..].try_into().unwrap();
        self
    }

    fn fragment(mut self, offset: usize, has_more: bool) -> Self {
        let units = u16::try_from(offset / 8).unwrap();
        self.header.fragment_offset = IpFragOffset::try_new(units).unwrap();
        self.header.more_fragments = has_more;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut header = self.header.clone();
        header.set_payload_len(self.payload.len()).unwrap();
        header.header_checksum = header.calc_header_checksum();
        [&header.to_bytes()[..], &self.payload].concat()
    }

    fn cut(&self, size: usize) -> Result<Vec<Vec<u8>>, Outcome> {
        cut(&self.bytes(), size)
    }
}

fn cut(packet: &[u8], size: usize) -> Result<Vec<Vec<u8>>, Outcome> {
    let mut pieces = Pieces::of(packet, size, FRESH)?;
    let mut written = Vec::new();
    let mut piece = Vec::new();
    while pieces.write_next(&mut piece) {
        written.push(std::mem::take(&mut piece));
    }
    assert!(piece.is_empty(), "nothing is written behind the last one");
    Ok(written)
}

/// Reads the pieces, and asserts that each is a whole packet that fits.
fn read(pieces: &[Vec<u8>], size: usize) -> Vec<(Ipv4Header, &[u8])> {
    let pieces = pieces.iter().map(|piece| {
        assert!(piece.len() <= size, "{} > {size}", piece.len());
        let (header, payload) = Ipv4Header::from_slice(piece).unwrap();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(usize::from(header.payload_len().unwrap()), payload.len());
        (header, payload)
    });
    pieces.collect()
}

/// Joins the pieces of a packet, with what lies before and behind it in its datagram. Returns the datagram's payload.
fn join(packet: &Packet, pieces: &[(Ipv4Header, &[u8])]) -> Result<Option<Vec<u8>>, IpDefragError> {
    let mut whole = IpDefragBuf::new(IpNumber::UDP, Vec::new(), Vec::new());
    let before = vec![0xbe; packet.header.fragment_offset.byte_offset().into()];
    if !before.is_empty() {
        whole.add(IpFragOffset::ZERO, true, &before)?;
    }
    for (header, payload) in pieces {
        assert!(header.more_fragments || header.fragment_offset != IpFragOffset::ZERO);
        whole.add(header.fragment_offset, header.more_fragments, payload)?;
    }
    if packet.header.more_fragments {
        let end = u16::try_from((before.len() + packet.payload.len()) / 8).unwrap();
        whole.add(IpFragOffset::try_new(end).unwrap(), false, &[0xaf; 5])?;
    }
    Ok(whole.is_complete().then(|| whole.take_bufs().0))
}

#[test]
fn packet_of_a_full_mtu_becomes_two_of_which_the_first_is_as_large_as_fits() {
    let packet = Packet::new(1480);
    let pieces = packet.cut(1480).unwrap();
    let lengths: Vec<_> = pieces.iter().map(Vec::len).collect();
    assert_eq!(lengths, [20 + 1456, 20 + 24]);
    let read = read(&pieces, 1480);
    let joined = join(&packet, &read).unwrap();
    assert_eq!(joined.as_ref(), Some(&packet.payload));
    // All other fields are the packet's.
    for (header, _) in read {
        let expected = Ipv4Header {
            total_len: header.total_len,
            more_fragments: header.more_fragments,
            fragment_offset: header.fragment_offset,
            header_checksum: header.header_checksum,
            ..packet.header.clone()
        };
        assert_eq!(header, expected);
    }
}

#[test]
fn identification_is_kept_but_none_of_a_whole_packet() {
    let identifications = |packet: &Packet| -> Vec<u16> {
        let pieces = packet.cut(500).unwrap();
        let read = read(&pieces, 500);
        read.iter()
            .map(|(header, _)| header.identification)
            .collect()
    };
    let mut packet = Packet::new(800);
    assert_eq!(identifications(&packet), [0x1234; 2]);
    packet.header.identification = 0;
    assert_eq!(identifications(&packet), [FRESH; 2]);
    // Those of another fragment of its datagram have it too.
    assert_eq!(identifications(&packet.clone().fragment(0, true)), [0; 2]);
    assert_eq!(identifications(&packet.fragment(800, false)), [0; 2]);
}

#[test]
fn options_are_in_the_first_piece_and_those_for_all_in_each() {
    let packet = Packet::new(600).options(&[&[1], &ROUTE, &LABEL, &[1], &TIME, &STREAM]);
    let pieces = packet.cut(300).unwrap();
    let read = read(&pieces, 300);
    assert_eq!(read[0].0.options, packet.header.options);
    for (header, _) in &read[1..] {
        assert_eq!(header.options.as_slice(), [LABEL, STREAM].concat());
    }
    assert_eq!(join(&packet, &read).unwrap(), Some(packet.payload.clone()));
    // What is behind the end of the list is no option.
    let packet = Packet::new(600).options(&[&ROUTE, &[0], &LABEL]);
    let pieces = packet.cut(300).unwrap();
    let (second, _) = Ipv4Header::from_slice(&pieces[1]).unwrap();
    assert!(second.options.is_empty());
}

#[test]
fn what_is_behind_the_packet_is_not_sent() {
    let packet = Packet::new(600);
    let padded = [&packet.bytes()[..], &[0xff; 30]].concat();
    assert_eq!(cut(&padded, 300), packet.cut(300));
}

#[test]
fn what_cannot_be_read_or_must_not_be_cut_is_given_up() {
    let good = Packet::new(600);
    assert!(good.cut(300).is_ok());
    let with = |change: fn(&mut Vec<u8>)| {
        let mut bytes = good.bytes();
        change(&mut bytes);
        bytes
    };
    let mut whole = good.clone();
    whole.header.dont_fragment = true;
    for packet in [
        whole.bytes(),
        // A packet that fits would come back as no fragment.
        Packet::new(280).bytes(),
        Packet::new(600).options(&[&[0x82, 1, 0, 0]]).bytes(),
        Packet::new(600).options(&[&[0x82, 9, 0, 0]]).bytes(),
        Packet::new(600).options(&[&[1, 1, 1, 0x82]]).bytes(),
        Packet::new(600).fragment(65_528, false).bytes(),
        with(|bytes| bytes[0] = 0x65),
        with(|bytes| bytes[0] = 0x44),
        with(|bytes| bytes[10] ^= 1),
        with(|bytes| bytes.truncate(619)),
        with(|bytes| bytes.truncate(19)),
        Vec::new(),
    ] {
        assert_eq!(cut(&packet, 300), Err(Outcome::Unreadable), "{packet:x?}");
    }
    assert_eq!(good.cut(27), Err(Outcome::NoPieceFits));
    assert_eq!(good.cut(28).unwrap().len(), 75);
    let with_options = good.options(&[&LABEL]);
    assert_eq!(with_options.cut(31), Err(Outcome::NoPieceFits));
    assert_eq!(with_options.cut(32).unwrap().len(), 75);
}

prop_compose! {
    fn packets()(
        length in 1usize..4000,
        options in prop::collection::vec(0usize..5, 0..5),
        (place, has_more) in (0usize..4, any::<bool>()),
        header in any::<(u16, u8)>(),
    ) -> Packet {
        let known: [&[u8]; 5] = [&LABEL, &STREAM, &ROUTE, &TIME, &[1]];
        let options: Vec<_> = options.into_iter().map(|option| known[option]).collect();
        let length = if has_more { length.next_multiple_of(8) } else { length };
        let mut packet = Packet::new(length)
            .options(&options)
            .fragment(place * 15_000, has_more);
        (packet.header.identification, packet.header.time_to_live) = header;
        packet
    }
}

proptest! {
    /// Whatever is cut, all pieces fit, and the datagram is joined as it was.
    #[test]
    fn pieces_fit_and_join_to_what_was_cut(packet in packets(), size in 28usize..4000) {
        let length = packet.bytes().len();
        let pieces = match packet.cut(size) {
            Ok(pieces) => pieces,
            Err(Outcome::Unreadable) => {
                prop_assert!(length <= size);
                return Ok(());
            }
            Err(outcome) => {
                prop_assert_eq!(outcome, Outcome::NoPieceFits);
                prop_assert!(size < packet.header.header_len() + 8);
                return Ok(());
            }
        };
        prop_assert!(pieces.len() > 1);
        let read = read(&pieces, size);
        let offsets: Vec<_> = read.iter().map(|(header, _)| header.fragment_offset).collect();
        prop_assert!(offsets.is_sorted());
        for (header, _) in &read {
            prop_assert!(!header.dont_fragment);
            prop_assert_eq!(header.time_to_live, packet.header.time_to_live);
        }
        let joined = join(&packet, &read).unwrap().expect("no hole is left");
        let begin = usize::from(packet.header.fragment_offset.byte_offset());
        prop_assert_eq!(&joined[begin..][..packet.payload.len()], &packet.payload[..]);
        // Pieces of pieces join to the same.
        let smaller = 28 + (size - 28) / 2;
        let mut again = Vec::new();
        for piece in &pieces {
            match cut(piece, smaller) {
                Ok(pieces) => again.extend(pieces),
                Err(Outcome::Unreadable) => again.push(piece.clone()),
                Err(_) => return Ok(()),
            }
        }
        let read = self::read(&again, size);
        prop_assert_eq!(join(&packet, &read).unwrap(), Some(joined));
    }
}
