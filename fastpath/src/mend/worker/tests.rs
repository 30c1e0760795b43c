//! The worker over rings in memory.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

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
    Back, Carried, Known, Worker,
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

/// The datagrams whose ports are known, and the nodes of backends without a next hop.
#[derive(Default)]
struct Tables {
    ports: RefCell<Vec<Tuple>>,
    unresolved: RefCell<BTreeMap<u32, AddressKey>>,
}

impl Known for Tables {
    fn has(&self, datagram: &Tuple) -> bool {
        self.ports.borrow().contains(datagram)
    }

    fn unresolved(&self, backend: u32) -> Option<AddressKey> {
        self.unresolved.borrow().get(&backend).copied()
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
    worker: Worker<Tables, Sent>,
    counts: Arc<Counts>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let counts = Arc::new(Counts::default());
        let (tables, sent) = (Tables::default(), Sent::default());
        Self {
            port: Port::new(MemoryRings::new(64, 64), 0),
            worker: Worker::new(limits, tables, sent, MAC, Arc::clone(&counts)),
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
        self.worker.parts().0.ports.borrow_mut().push(datagram);
    }

    /// Has a backend at a node have no next hop.
    fn unresolve(&mut self, backend: u32, node: [u8; 4]) {
        let unresolved = &self.worker.parts().0.unresolved;
        unresolved
            .borrow_mut()
            .insert(backend, AddressKey::v4(node));
    }

    /// Has a backend have a next hop, or not be there.
    fn resolve(&mut self, backend: u32) {
        self.worker
            .parts()
            .0
            .unresolved
            .borrow_mut()
            .remove(&backend);
    }

    /// Has a packet come for a backend to which XDP has found no next hop.
    fn punt_for(&mut self, now: u64, backend: u32, packet: &[u8]) {
        self.punt_of(now, next_hop().lacking(backend), &frame(&[], packet));
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

fn next_hop() -> PuntHeader {
    PuntHeader::new(7, PuntReason::NextHop as u16, 0)
}

fn returned(packet: &[u8], reason: PuntReason) -> Vec<u8> {
    returned_of(&frame(&[], packet), PuntHeader::new(7, reason as u16, 0))
}

fn returned_of(frame: &[u8], header: PuntHeader) -> Vec<u8> {
    [header.back_to(MAC).as_bytes(), frame].concat()
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
fn vlan_tags_stay_and_outer_headers_are_followed() {
    let mut rig = Rig::new();
    rig.learn(datagram(1));
    let inner = ipv4(CLIENT, protocol::UDP, 2, &[3; 8]);
    let outer = ipv4([10, 0, 0, 1], protocol::IPV4, 0, &inner);
    for tags in [&[0x81, 0, 0, 5][..], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 5]] {
        let frame = frame(tags, &outer);
        rig.punt(0, &frame);
        let header = PuntHeader::new(7, PuntReason::Fragment as u16, 0);
        assert_eq!(rig.sent(), [returned_of(&frame, header)]);
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
            returned_of(&frame(tags, &piece), too_big(90))
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

fn segment(number: u16) -> Vec<u8> {
    ipv4_of(number, CLIENT, protocol::TCP, 0, &[6; 20])
}

fn resolved(packet: &[u8]) -> Vec<u8> {
    returned_of(&frame(&[], packet), next_hop())
}

#[test]
fn packets_wait_for_the_next_hop_to_their_node_and_go_back_in_order() {
    let mut rig = Rig::new();
    // Two backends are at one node.
    for (backend, node) in [(1, [10, 0, 0, 1]), (2, [10, 0, 0, 1]), (3, [10, 0, 0, 3])] {
        rig.unresolve(backend, node);
    }
    let packets: Vec<_> = (1..=5).map(segment).collect();
    for (packet, backend) in packets.iter().zip([1, 3, 2, 1]) {
        rig.punt_for(0, backend, packet);
    }
    rig.worker.release_and_expire(2999 * MS);
    assert_eq!(rig.sent().len(), 0);
    assert_eq!(rig.counts.held().0, 4);
    assert!(!rig.worker.is_idle());
    rig.assert_all_counted();
    for backend in [1, 2] {
        rig.resolve(backend);
    }
    // One that comes just now does not overtake those that have waited.
    rig.punt_for(2999 * MS, 1, &packets[4]);
    let back = [0, 2, 3, 4].map(|number: usize| resolved(&packets[number]));
    assert_eq!(rig.sent(), back);
    assert_eq!(rig.counts.of(Outcome::Mended), 4);
    rig.worker.release_and_expire(3000 * MS);
    assert_eq!(rig.counts.of(Outcome::NextHopUnresolved), 1);
    assert_eq!(rig.sent().len(), 0);
    assert_eq!(rig.counts.held(), (0, 0));
    assert!(rig.worker.is_idle());
    rig.assert_all_counted();
}

#[test]
fn tags_of_a_packet_that_waited_are_kept() {
    let mut rig = Rig::new();
    let tagged = frame(&[0x81, 0, 0, 5], &segment(1));
    rig.unresolve(1, [10, 0, 0, 1]);
    rig.punt_of(0, next_hop().lacking(1), &tagged);
    rig.resolve(1);
    rig.worker.release_and_expire(MS);
    assert_eq!(rig.sent(), [returned_of(&tagged, next_hop())]);
    rig.assert_all_counted();
}

#[test]
fn id_that_is_another_backends_lets_its_packets_go() {
    let mut rig = Rig::new();
    rig.unresolve(1, [10, 0, 0, 1]);
    rig.punt_for(0, 1, &segment(1));
    rig.unresolve(1, [10, 0, 0, 2]);
    rig.worker.release_and_expire(MS);
    assert_eq!(rig.sent(), [resolved(&segment(1))]);
    rig.assert_all_counted();
}

#[test]
fn backend_that_has_gone_keeps_no_packets_of_its_node_waiting() {
    let mut rig = Rig::new();
    for backend in [1, 2] {
        rig.unresolve(backend, [10, 0, 0, 1]);
        rig.punt_for(0, backend, &segment(1));
    }
    // Nobody stores a next hop for the second one any more, whose packet is the newest.
    rig.resolve(1);
    rig.worker.release_and_expire(MS);
    assert_eq!(rig.sent().len(), 2);
    rig.assert_all_counted();
}

#[test]
fn queue_of_a_next_hop_takes_so_many_and_keeps_no_other_out() {
    let mut rig = Rig::new();
    rig.unresolve(1, [10, 0, 0, 1]);
    rig.unresolve(2, [10, 0, 0, 2]);
    for number in 0..100 {
        rig.punt_for(0, 1, &segment(number));
    }
    rig.punt_for(0, 2, &segment(100));
    assert_eq!(rig.counts.of(Outcome::NextHopFull), 36);
    assert_eq!(rig.counts.held().0, 65);
    rig.resolve(1);
    rig.worker.release_and_expire(MS);
    let first: Vec<_> = (0..64).map(|number| resolved(&segment(number))).collect();
    assert_eq!(rig.sent(), first);
    // There is room again.
    rig.unresolve(1, [10, 0, 0, 1]);
    rig.punt_for(2 * MS, 1, &segment(101));
    assert_eq!(rig.counts.held().0, 2);
    rig.worker.end();
    assert_eq!(rig.counts.of(Outcome::Ended), 2);
    assert_eq!(rig.counts.held(), (0, 0));
    rig.assert_all_counted();
}

#[test]
fn all_that_waits_keeps_to_the_memory_and_leaves_half_of_it_to_fragments() {
    let limits = Limits {
        bytes: 16 << 10,
        bytes_of_source: 16 << 10,
        next_hop_wait: Duration::from_millis(5),
        ..Limits::default()
    };
    let mut rig = Rig::with(limits);
    for number in 0..200 {
        let later = ipv4_of(number, CLIENT, protocol::UDP, 2, &[3; 8]);
        rig.punt(0, &frame(&[], &later));
    }
    let (fragments, _) = rig.counts.held();
    // More nodes than there is room for packets.
    for node in 0..200u8 {
        rig.unresolve(node.into(), [10, 0, 0, node]);
        rig.punt_for(0, node.into(), &segment(node.into()));
        let (_, bytes) = rig.counts.held();
        assert!(bytes <= limits.bytes as u64, "{bytes}");
    }
    assert!(rig.counts.of(Outcome::NextHopFull) > 100);
    assert!(rig.counts.of(Outcome::OutOfMemory) > 10);
    rig.worker.release_and_expire(5 * MS);
    let (left, _) = rig.counts.held();
    assert!((fragments / 3..fragments).contains(&left), "{left}");
    rig.assert_all_counted();
    // The whole memory is the fragments' again.
    for number in 200..400 {
        let later = ipv4_of(number, CLIENT, protocol::UDP, 2, &[3; 8]);
        rig.punt(5 * MS, &frame(&[], &later));
    }
    assert_eq!(rig.counts.held().0, fragments);
    rig.assert_all_counted();
}

#[test]
fn finished_frame_leaves_by_its_device_without_what_is_in_front() {
    let mut rig = Rig::new();
    let header = PuntHeader::new(7, PuntReason::Carry as u16, 0).leaving_by(9);
    let frames = [1, 2].map(|number| frame(&[0x81, 0, 0, 42], &segment(number)));
    for finished in &frames {
        rig.punt_of(0, header, finished);
    }
    let mut finished = rig.worker.take_finished();
    let leave: Vec<(u32, Vec<Vec<u8>>)> = finished
        .by_device()
        .map(|(device, frames)| (device, frames.map(<[u8]>::to_vec).collect()))
        .collect();
    assert_eq!(leave, [(9, frames.to_vec())]);
    assert_eq!(rig.sent(), Vec::<Vec<u8>>::new());
    // One has left by now.
    let turn = Carried {
        carried: 1,
        leaving: 1,
        ..Carried::default()
    };
    rig.worker.note_carried(finished, turn);
    assert!(!rig.worker.is_idle());
    assert_eq!(rig.counts.held().0, 1);
    rig.assert_all_counted();
    let finished = rig.worker.take_finished();
    assert!(finished.is_empty());
    let turn = Carried {
        not_carried: 1,
        ..Carried::default()
    };
    rig.worker.note_carried(finished, turn);
    assert!(rig.worker.is_idle());
    for outcome in [Outcome::Carried, Outcome::NotCarried] {
        assert_eq!(rig.counts.of(outcome), 1);
    }
    rig.assert_all_counted();
}
