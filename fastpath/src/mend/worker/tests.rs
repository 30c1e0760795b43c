//! The worker over rings in memory.

use std::{cell::RefCell, collections::BTreeSet, io, sync::Arc};

use xdp_prog::{
    abi::{AddressKey, Tuple},
    csum::Sum,
    punt::PuntHeader,
    reason::PuntReason,
    wire::protocol,
};
use zerocopy::IntoBytes as _;

use super::{
    super::{Counts, Limits, Outcome},
    Back, Known, Worker,
};
use crate::port::{
    Port,
    memory::{MemoryRings, START},
};

const VIP: [u8; 4] = [203, 0, 113, 1];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const MS: u64 = 1_000_000;

/// The key of a datagram of the client, by its identification.
fn datagram(identification: u8) -> Tuple {
    let [source, vip] = [CLIENT, VIP].map(AddressKey::v4);
    Tuple::fragments(source, vip, [0, 0, 0, identification], protocol::UDP)
}

/// The datagrams whose ports are known.
#[derive(Default)]
struct Ports(RefCell<Vec<Tuple>>);

impl Known for Ports {
    fn has(&self, datagram: &Tuple) -> bool {
        self.0.borrow().contains(datagram)
    }
}

/// What went back.
#[derive(Default)]
struct Sent {
    frames: Vec<Vec<u8>>,
    refuses: bool,
}

impl Back for Sent {
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if self.refuses {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        self.frames.push(frame.to_vec());
        Ok(())
    }
}

struct Rig {
    port: Port<MemoryRings>,
    worker: Worker<Ports, Sent>,
    counts: Arc<Counts>,
}

impl Rig {
    fn new() -> Self {
        let counts = Arc::new(Counts::default());
        let limits = Limits::default();
        let (ports, sent) = (Ports::default(), Sent::default());
        Self {
            port: Port::new(MemoryRings::new(64, 64), 0),
            worker: Worker::new(limits, ports, sent, MAC, Arc::clone(&counts)),
            counts,
        }
    }

    fn punt(&mut self, now: u64, frame: &[u8]) {
        self.punt_as(now, PuntReason::Fragment, frame);
    }

    fn punt_as(&mut self, now: u64, reason: PuntReason, frame: &[u8]) {
        self.punt_of(now, PuntHeader::new(7, reason as u16, 0), frame);
    }

    fn punt_of(&mut self, now: u64, header: PuntHeader, frame: &[u8]) {
        let bytes = [header.as_bytes(), frame].concat();
        // The program puts its bytes in front of where the frame began.
        assert!(
            self.port
                .rings_mut()
                .arrive(&bytes, START - PuntHeader::LENGTH)
        );
        assert_eq!(self.worker.take(&mut self.port, now).unwrap(), 1);
        assert_eq!(self.port.balance().held, 0);
    }

    fn learn(&mut self, datagram: Tuple) {
        self.worker.parts().0.0.borrow_mut().push(datagram);
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.worker.parts().1.frames)
    }

    /// Asserts that what was taken is somewhere.
    fn assert_all_counted(&self) {
        let ends = Outcome::ALL.into_iter().skip(1);
        let ended: u64 = ends.map(|outcome| self.counts.of(outcome)).sum();
        let (held, _) = self.counts.held();
        assert_eq!(self.counts.of(Outcome::Taken), ended + held);
    }
}

const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

fn ipv4(source: [u8; 4], protocol: u8, flags_and_offset: u16, payload: &[u8]) -> Vec<u8> {
    ipv4_of(1, source, protocol, flags_and_offset, payload)
}

fn ipv4_of(
    identification: u16,
    source: [u8; 4],
    protocol: u8,
    flags_and_offset: u16,
    payload: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap();
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend(identification.to_be_bytes());
    packet.extend(flags_and_offset.to_be_bytes());
    packet.extend([64, protocol, 0, 0]);
    packet.extend(source);
    packet.extend(VIP);
    let checksum = Sum::ZERO.add_bytes(&packet).checksum();
    packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    packet.extend(payload);
    packet
}

fn frame(tags: &[u8], packet: &[u8]) -> Vec<u8> {
    [&ETHERNET, tags, &[8, 0], packet].concat()
}

fn returned(packet: &[u8], reason: PuntReason) -> Vec<u8> {
    returned_of(packet, PuntHeader::new(7, reason as u16, 0))
}

fn returned_of(packet: &[u8], header: PuntHeader) -> Vec<u8> {
    let header = header.back_to(MAC);
    let macs = [&MAC[..], &ETHERNET[6..], &[8, 0]].concat();
    [header.as_bytes(), &macs, packet].concat()
}

const CLIENT: [u8; 4] = [192, 0, 2, 1];

#[test]
fn fragment_waits_for_the_first_one_and_goes_back_with_what_is_in_front() {
    let mut rig = Rig::new();
    let second = ipv4(CLIENT, protocol::UDP, 0x2001, &[2; 8]);
    let third = ipv4(CLIENT, protocol::UDP, 2, &[3; 8]);
    rig.punt(0, &frame(&[], &third));
    rig.punt(0, &frame(&[], &second));
    rig.worker.release_and_expire(MS);
    assert_eq!(rig.sent().len(), 0);
    assert_eq!(rig.counts.held().0, 2);
    rig.assert_all_counted();
    rig.learn(datagram(1));
    rig.worker.release_and_expire(2 * MS);
    let back = [second, third].map(|packet| returned(&packet, PuntReason::Fragment));
    assert_eq!(rig.sent(), back);
    assert_eq!(rig.counts.of(Outcome::Mended), 2);
    assert_eq!(rig.counts.held(), (0, 0));
    assert!(rig.worker.is_idle());
    // One that comes when the ports are known does not wait.
    let fourth = ipv4(CLIENT, protocol::UDP, 3, &[4; 8]);
    rig.punt(3 * MS, &frame(&[], &fourth));
    assert_eq!(rig.sent(), [returned(&fourth, PuntReason::Fragment)]);
    rig.assert_all_counted();
}

#[test]
fn vlan_tags_are_taken_off_and_outer_headers_followed() {
    let mut rig = Rig::new();
    rig.learn(datagram(1));
    let inner = ipv4(CLIENT, protocol::UDP, 2, &[3; 8]);
    let outer = ipv4([10, 0, 0, 1], protocol::IPV4, 0, &inner);
    for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5]] {
        rig.punt(0, &frame(tags, &outer));
        assert_eq!(rig.sent(), [returned(&outer, PuntReason::Fragment)]);
    }
    rig.assert_all_counted();
}

#[test]
fn what_is_no_later_fragment_is_given_up() {
    let mut rig = Rig::new();
    let whole = ipv4(CLIENT, protocol::UDP, 0, &[0; 8]);
    let first = ipv4(CLIENT, protocol::UDP, 0x2000, &[0; 8]);
    let longest = ipv4(CLIENT, protocol::UDP, 0x1fff, &[0; 16]);
    let cut = &ipv4(CLIENT, protocol::UDP, 2, &[0; 8])[..24];
    for packet in [&whole, &first, &longest, cut, &[0x45]] {
        rig.punt(0, &frame(&[], packet));
    }
    rig.punt(0, &[]);
    assert_eq!(rig.counts.of(Outcome::Unreadable), 6);
    assert!(rig.worker.is_idle());
    rig.assert_all_counted();
}

#[test]
fn what_may_be_the_kernels_is_passed_on_in_the_end() {
    let mut rig = Rig::new();
    let later = ipv4(CLIENT, protocol::UDP, 2, &[3; 8]);
    rig.punt_as(0, PuntReason::NodeFragment, &frame(&[], &later));
    rig.worker.release_and_expire(499 * MS);
    assert_eq!(rig.sent().len(), 0);
    rig.worker.release_and_expire(500 * MS);
    assert_eq!(rig.sent(), [returned(&later, PuntReason::NodeFragment)]);
    assert_eq!(rig.counts.of(Outcome::PassedOn), 1);
    rig.assert_all_counted();
}

fn too_big(size: u16) -> PuntHeader {
    PuntHeader::new(7, PuntReason::TooBig as u16, size)
}

#[test]
fn packet_that_is_too_big_goes_back_in_pieces_at_once() {
    let mut rig = Rig::new();
    let payload: Vec<u8> = (0..104).collect();
    let packet = ipv4(CLIENT, protocol::UDP, 0, &payload);
    for tags in [&[][..], &[0x81, 0, 0, 5]] {
        rig.punt_of(0, too_big(90), &frame(tags, &packet));
        let pieces = [(0x2000, 0..64), (64 / 8, 64..104)].map(|(fragment, part)| {
            let piece = ipv4(CLIENT, protocol::UDP, fragment, &payload[part]);
            returned_of(&piece, too_big(90))
        });
        assert_eq!(rig.sent(), pieces);
    }
    assert_eq!(rig.counts.of(Outcome::Cut), 2);
    assert!(rig.worker.is_idle());
    rig.assert_all_counted();
}

#[test]
fn packets_without_identification_get_one_each() {
    let mut rig = Rig::new();
    let packet = ipv4_of(0, CLIENT, protocol::UDP, 0, &[5; 104]);
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        rig.punt_of(0, too_big(90), &frame(&[], &packet));
        let identification = |piece: &Vec<u8>| [piece[34], piece[35]];
        let of_pieces: BTreeSet<_> = rig.sent().iter().map(identification).collect();
        assert_eq!(of_pieces.len(), 1);
        seen.extend(of_pieces);
    }
    assert_eq!(seen.len(), 3);
    assert!(!seen.contains(&[0; 2]));
}

#[test]
fn what_cannot_be_cut_is_given_up_and_what_the_way_back_refuses_too() {
    let mut rig = Rig::new();
    let packet = ipv4(CLIENT, protocol::UDP, 0, &[5; 104]);
    let whole = ipv4(CLIENT, protocol::UDP, 0x4000, &[5; 104]);
    let mut v6 = frame(&[], &[0x60; 124]);
    v6[12..14].copy_from_slice(&[0x86, 0xdd]);
    rig.punt_of(0, too_big(90), &frame(&[], &whole));
    rig.punt_of(0, too_big(124), &frame(&[], &packet));
    rig.punt_of(0, too_big(90), &v6);
    rig.punt_of(0, too_big(90), &frame(&[], &packet)[..20]);
    rig.punt_of(0, too_big(90), &[]);
    assert_eq!(rig.counts.of(Outcome::Unreadable), 5);
    rig.punt_of(0, too_big(27), &frame(&[], &packet));
    assert_eq!(rig.counts.of(Outcome::NoPieceFits), 1);
    assert_eq!(rig.sent().len(), 0);
    rig.worker.parts().1.refuses = true;
    rig.punt_of(0, too_big(90), &frame(&[], &packet));
    assert_eq!(rig.counts.of(Outcome::Unsent), 1);
    rig.assert_all_counted();
}

#[test]
fn what_the_way_back_refuses_is_counted_and_what_is_held_at_the_end_too() {
    let mut rig = Rig::new();
    rig.worker.parts().1.refuses = true;
    let later = frame(&[], &ipv4(CLIENT, protocol::UDP, 2, &[3; 8]));
    rig.punt(0, &later);
    rig.learn(datagram(1));
    rig.worker.release_and_expire(0);
    assert_eq!(rig.counts.of(Outcome::Unsent), 1);
    rig.punt(
        0,
        &frame(&[], &ipv4([192, 0, 2, 2], protocol::UDP, 2, &[3; 8])),
    );
    rig.worker.end();
    assert_eq!(rig.counts.of(Outcome::Ended), 1);
    rig.assert_all_counted();
}

#[test]
fn flood_takes_no_buffer_of_the_port_and_keeps_nobody_out() {
    let mut rig = Rig::new();
    let good = ipv4(CLIENT, protocol::UDP, 2, &[3; 8]);
    rig.punt(0, &frame(&[], &good));
    for number in 0..5000u16 {
        let mut forged = ipv4([198, 51, 100, 1], protocol::UDP, 2, &[3; 8]);
        forged[4..6].copy_from_slice(&number.to_be_bytes());
        rig.punt(u64::from(number), &frame(&[], &forged));
    }
    let (_, bytes) = rig.counts.held();
    assert!(
        bytes <= Limits::default().bytes_of_source as u64 + 1024,
        "{bytes}"
    );
    assert!(rig.counts.of(Outcome::SourceShare) > 4000);
    rig.learn(datagram(1));
    rig.worker.release_and_expire(MS);
    assert_eq!(rig.sent(), [returned(&good, PuntReason::Fragment)]);
    rig.assert_all_counted();
}
