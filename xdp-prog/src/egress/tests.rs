//! What test runs in the kernel cannot show: checksums left to the device,
//! headers outside of the linear part, merged segments, lack of memory.

extern crate std;

use core::cell::{Cell, RefCell};
use std::{
    collections::{HashMap, hash_map::Entry},
    vec,
    vec::Vec,
};

use proptest::prelude::*;

use super::{host::HostSkb, *};
use crate::{
    abi::{AddressKey, Datagram, IndexEntry, PodFlow},
    flow_state::IDLE_TCP_NS,
    reason::REASON_COUNT,
    world::{Clock, FlowTable, Inserted, Relay},
};

const TCP: u8 = 6;
const UDP: u8 = 17;
const NOW: u64 = 1 << 50;
const ETHERNET: usize = 14;

proptest! {
    #[test]
    fn reply_has_a_right_checksum(reply in any_reply()) {
        let world = reply.world();
        let mut skb = HostSkb::new(&reply.frame(Checksum::Finished));
        process(&mut skb, &world).unwrap();
        prop_assert_eq!(skb.bytes(), reply.translated(Checksum::Finished));
        prop_assert_eq!(world.translated(), 1);
    }

    #[test]
    fn checksum_that_is_left_to_the_device_is_right_once_finished(reply in any_reply()) {
        let world = reply.world();
        let mut skb = HostSkb::new(&reply.frame(Checksum::Partial)).partial();
        process(&mut skb, &world).unwrap();
        let finished = reply.finish(skb.bytes().to_vec());
        prop_assert_eq!(finished, reply.translated(Checksum::Finished));
    }

    #[test]
    fn headers_outside_of_the_linear_part_are_brought_in(
        reply in any_reply(),
        linear in ETHERNET..120_usize,
    ) {
        let mut skb = HostSkb::new(&reply.frame(Checksum::Finished)).linear(linear);
        process(&mut skb, &reply.world()).unwrap();
        prop_assert_eq!(skb.bytes(), reply.translated(Checksum::Finished));
    }

    #[test]
    fn damaged_reply_never_panics_and_keeps_its_length(
        reply in any_reply(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut frame = reply.frame(Checksum::Finished);
        for (place, byte) in damage {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        frame.truncate(cut.index(frame.len()) + 1);
        let mut skb = HostSkb::new(&frame);
        process(&mut skb, &reply.world()).unwrap();
        prop_assert_eq!(skb.bytes().len(), frame.len());
    }

    #[test]
    fn packet_of_no_flow_is_untouched(reply in any_reply()) {
        let frame = reply.frame(Checksum::Finished);
        let mut skb = HostSkb::new(&frame);
        let world = World::default();
        process(&mut skb, &world).unwrap();
        prop_assert_eq!(skb.bytes(), frame);
        prop_assert_eq!(world.translated(), 0);
    }
}

#[test]
fn segments_merged_beyond_64_kib_are_translated() {
    for is_v4 in [true, false] {
        let reply = Reply {
            payload: vec![7; 0x1_2000],
            ..Reply::example(is_v4, TCP)
        };
        let mut skb = HostSkb::new(&reply.frame(Checksum::Partial)).partial();
        process(&mut skb, &reply.world()).unwrap();
        assert_eq!(skb.bytes(), reply.translated(Checksum::Partial));
    }
}

#[test]
fn finished_checksum_that_is_the_pseudo_headers_sum_is_right_afterwards() {
    for (is_v4, protocol) in [(true, TCP), (true, UDP), (false, TCP), (false, UDP)] {
        let looks_partial = |word: u16| {
            let reply = Reply {
                payload: [&word.to_be_bytes()[..], b"hello."].concat(),
                ..Reply::example(is_v4, protocol)
            };
            let frames = [Checksum::Finished, Checksum::Partial].map(|kind| reply.frame(kind));
            (frames[0] == frames[1]).then_some(reply)
        };
        let reply = (0..=u16::MAX).find_map(looks_partial).unwrap();
        let mut skb = HostSkb::new(&reply.frame(Checksum::Finished));
        process(&mut skb, &reply.world()).unwrap();
        assert_eq!(skb.bytes(), reply.translated(Checksum::Finished));
    }
}

/// A guest's, of which the device makes the checksums anew: all that must hold is that the field is taken for a part of
/// one.
#[test]
fn merged_segments_are_left_to_the_device_whatever_is_in_their_checksum() {
    for is_v4 in [true, false] {
        let reply = Reply::example(is_v4, TCP);
        let at = ETHERNET + if is_v4 { 20 } else { 40 } + reply.checksum_at();
        let without_length = |frame: &[u8]| {
            let length = u16::try_from(frame.len() - at + reply.checksum_at()).unwrap();
            let field = u16::from_be_bytes([frame[at], frame[at + 1]]);
            let field = sum(&[&field.to_be_bytes(), &(!length).to_be_bytes()]);
            let mut frame = frame.to_vec();
            frame[at..at + 2].copy_from_slice(&field.to_be_bytes());
            frame
        };
        let input = without_length(&reply.frame(Checksum::Partial));
        let mut skb = HostSkb::new(&input).partial().merged();
        process(&mut skb, &reply.world()).unwrap();
        let expected = without_length(&reply.translated(Checksum::Partial));
        assert_eq!(skb.bytes(), expected);
    }
}

#[test]
fn packet_that_cannot_be_written_is_dropped_and_counted() {
    let reply = Reply::example(true, UDP);
    let world = reply.world();
    let mut skb = HostSkb::new(&reply.frame(Checksum::Finished)).read_only();
    assert_eq!(process(&mut skb, &world), Err(DropReason::NotWritable));
    assert_eq!(world.count(DropReason::NotWritable.index()), 1);
    assert_eq!(world.translated(), 0);
}

#[test]
fn reply_keeps_its_flow_fresh() {
    let reply = Reply::example(true, TCP);
    let world = reply.world();
    let seen = || world.flows[0].borrow()[&reply.key()].seen;
    world.flows[0]
        .borrow_mut()
        .get_mut(&reply.key())
        .unwrap()
        .seen = NOW - IDLE_TCP_NS + 1;
    let mut skb = HostSkb::new(&reply.frame(Checksum::Finished));
    process(&mut skb, &world).unwrap();
    assert_eq!(seen(), NOW);

    let stale = NOW - IDLE_TCP_NS;
    world.flows[0]
        .borrow_mut()
        .get_mut(&reply.key())
        .unwrap()
        .seen = stale;
    process(&mut HostSkb::new(&reply.frame(Checksum::Finished)), &world).unwrap();
    assert_eq!(seen(), stale);
    assert_eq!(world.translated(), 1);
}

#[test]
fn segment_without_a_flow_is_dropped_while_flows_are_copied() {
    let sent = |reply: &Reply, flows_copied_by| {
        let config = Config {
            flows_copied_by,
            ..Config::default()
        };
        let world = World {
            config,
            ..World::default()
        };
        let frame = reply.frame(Checksum::Finished);
        let mut skb = HostSkb::new(&frame);
        let outcome = process(&mut skb, &world);
        assert_eq!(skb.bytes(), frame);
        (outcome, world.count(DropReason::FlowNotCopied.index()))
    };
    for is_v4 in [true, false] {
        let segment = Reply::example(is_v4, TCP);
        let dropped = (Err(DropReason::FlowNotCopied), 1);
        assert_eq!(sent(&segment, NOW + 1), dropped);
        assert_eq!(
            sent(&segment, NOW),
            (Ok(Next::Out), 0),
            "the agent has ended"
        );
        assert_eq!(sent(&segment, 0), (Ok(Next::Out), 0));
        let datagram = Reply::example(is_v4, UDP);
        assert_eq!(sent(&datagram, NOW + 1), (Ok(Next::Out), 0));
    }
    let reply = Reply::example(true, TCP);
    let mut world = reply.world();
    world.config.flows_copied_by = NOW + 1;
    process(&mut HostSkb::new(&reply.frame(Checksum::Finished)), &world).unwrap();
    assert_eq!(world.translated(), 1, "its flow is there");
}

#[test]
fn flow_that_the_table_does_not_take_stays_where_it_is() {
    let reply = Reply::example(true, TCP);
    let world = reply.world();
    world.flows[0].swap(&world.flows[1]);
    world.is_full.set(true);
    process(&mut HostSkb::new(&reply.frame(Checksum::Finished)), &world).unwrap();
    let lengths = || [0, 1].map(|table: usize| world.flows[table].borrow().len());
    assert_eq!(lengths(), [0, 1]);
    assert_eq!(world.translated(), 1);
    world.is_full.set(false);
    process(&mut HostSkb::new(&reply.frame(Checksum::Finished)), &world).unwrap();
    assert_eq!(lengths(), [1, 0]);
}

/// Whether the transport checksum covers the segment yet.
#[derive(Clone, Copy)]
enum Checksum {
    Finished,
    Partial,
}

/// A pod's answer; addresses as in the tables.
#[derive(Clone, Debug)]
struct Reply {
    is_v4: bool,
    protocol: u8,
    pod: ([u8; 16], u16),
    vip: ([u8; 16], u16),
    client: ([u8; 16], u16),
    payload: Vec<u8>,
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let end = || (any::<[u8; 16]>(), any::<u16>());
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    let protocol = prop_oneof![Just(TCP), Just(UDP)];
    (any::<bool>(), protocol, end(), end(), end(), payload).prop_map(
        |(is_v4, protocol, pod, vip, client, payload)| {
            let family = |(address, port)| (in_family(address, is_v4), port);
            Reply {
                is_v4,
                protocol,
                pod: family(pod),
                vip: family(vip),
                client: family(client),
                payload,
            }
        },
    )
}

fn in_family(mut address: [u8; 16], is_v4: bool) -> [u8; 16] {
    if is_v4 {
        address[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255]);
    } else {
        address[0] = 0x20;
    }
    address
}

impl Reply {
    fn example(is_v4: bool, protocol: u8) -> Self {
        let address = |last| in_family([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, last], is_v4);
        Self {
            is_v4,
            protocol,
            pod: (address(1), 8080),
            vip: (address(2), 80),
            client: (address(3), 40_000),
            payload: b"hello".to_vec(),
        }
    }

    fn key(&self) -> Tuple {
        let (client, pod) = (self.client, self.pod);
        Tuple::new(
            AddressKey::v6(client.0),
            AddressKey::v6(pod.0),
            client.1.to_be_bytes(),
            pod.1.to_be_bytes(),
            self.protocol,
        )
    }

    fn world(&self) -> World {
        let world = World::default();
        let (address, port) = self.vip;
        let (key, port) = (self.key(), port.to_be_bytes());
        let flow = PodFlow::new(&key, AddressKey::v6(address), port, 0, 0, NOW);
        world.flows[0].borrow_mut().insert(key, flow);
        world
    }

    /// The frame as the pod sends it.
    fn frame(&self, checksum: Checksum) -> Vec<u8> {
        self.frame_from(self.pod, checksum)
    }

    /// The frame as the client must see it.
    fn translated(&self, checksum: Checksum) -> Vec<u8> {
        self.frame_from(self.vip, checksum)
    }

    fn frame_from(&self, from: ([u8; 16], u16), checksum: Checksum) -> Vec<u8> {
        let ports = [from.1.to_be_bytes(), self.client.1.to_be_bytes()].concat();
        let mut segment = if self.protocol == TCP {
            [
                &ports[..],
                &[0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0],
            ]
            .concat()
        } else {
            let length = u16::try_from(8 + self.payload.len()).unwrap();
            [&ports[..], &length.to_be_bytes(), &[0, 0]].concat()
        };
        segment.extend(&self.payload);
        let at = self.checksum_at();
        let field = match checksum {
            Checksum::Finished => {
                let check = !sum(&[&self.pseudo_header(from.0, segment.len()), &segment]);
                if check == 0 && self.protocol == UDP {
                    0xffff
                } else {
                    check
                }
            }
            Checksum::Partial => sum(&[&self.pseudo_header(from.0, segment.len())]),
        };
        segment[at..at + 2].copy_from_slice(&field.to_be_bytes());

        let mut frame = vec![2; 12];
        let is_big = segment.len() > 0xff00;
        if self.is_v4 {
            frame.extend([0x08, 0x00]);
            let total = if is_big {
                0
            } else {
                u16::try_from(20 + segment.len()).unwrap()
            };
            let mut header = [0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, self.protocol, 0, 0].to_vec();
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header.extend(&from.0[12..]);
            header.extend(&self.client.0[12..]);
            let check = !sum(&[&header]);
            header[10..12].copy_from_slice(&check.to_be_bytes());
            frame.extend(header);
        } else {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            let length = if is_big {
                0
            } else {
                u16::try_from(segment.len()).unwrap()
            };
            frame.extend(length.to_be_bytes());
            frame.extend([if is_big { 0 } else { self.protocol }, 64]);
            frame.extend(from.0);
            frame.extend(self.client.0);
            if is_big {
                // A jumbo payload option (RFC 2675 section 2).
                let length = u32::try_from(8 + segment.len()).unwrap();
                frame.extend([self.protocol, 0, 0xc2, 4]);
                frame.extend(length.to_be_bytes());
            }
        }
        frame.extend(segment);
        frame
    }

    /// Does what a device does with a partial checksum.
    fn finish(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let start = ETHERNET + if self.is_v4 { 20 } else { 40 };
        let check = !sum(&[&frame[start..]]);
        let check = if check == 0 && self.protocol == UDP {
            0xffff
        } else {
            check
        };
        let at = start + self.checksum_at();
        frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
        frame
    }

    fn checksum_at(&self) -> usize {
        if self.protocol == TCP { 16 } else { 6 }
    }

    fn pseudo_header(&self, source: [u8; 16], length: usize) -> Vec<u8> {
        let skip = if self.is_v4 { 12 } else { 0 };
        let mut header = [&source[skip..], &self.client.0[skip..]].concat();
        header.extend([0, self.protocol]);
        header.extend(u32::try_from(length).unwrap().to_be_bytes());
        header
    }
}

/// The one's complement sum of all parts but the last of even length.
fn sum(parts: &[&[u8]]) -> u16 {
    let mut checksum = internet_checksum::Checksum::new();
    for part in parts {
        checksum.add_bytes(part);
    }
    !u16::from_be_bytes(checksum.checksum())
}

struct World {
    flows: [RefCell<HashMap<Tuple, PodFlow>>; 2],
    /// The tables take no more.
    is_full: Cell<bool>,
    config: Config,
    reasons: RefCell<Vec<u64>>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            flows: Default::default(),
            is_full: Cell::default(),
            config: Config::default(),
            reasons: RefCell::new(vec![0; REASON_COUNT]),
        }
    }
}

impl World {
    fn count(&self, reason: u32) -> u64 {
        self.reasons.borrow()[reason as usize]
    }

    fn translated(&self) -> u64 {
        self.count(PassReason::Translated.index())
    }
}

impl Relay for World {
    fn relay(&self, words: [u64; 4]) -> Option<[u64; 4]> {
        Some(words)
    }

    fn relayed(&self) -> Option<[u64; 4]> {
        None
    }
}

impl Memory for World {
    fn config(&self) -> Option<&Config> {
        Some(&self.config)
    }

    fn service_v4(&self, _: &ServiceKeyV4) -> Option<IndexEntry> {
        None
    }

    fn service_v6(&self, _: &ServiceKeyV6) -> Option<IndexEntry> {
        None
    }

    fn service(&self, _: u32) -> Option<Service> {
        None
    }

    fn is_egress_port(&self, _: u16) -> bool {
        true
    }

    fn probe(&self, _: u32) -> Option<&Probe> {
        None
    }

    fn remember_probe(&self, _: &Tuple, _: &AddressKey) {}

    fn renew_local(&self, _: &Tuple, _: impl Fn(LocalFlow) -> LocalFlow) {}
}

impl Clock for World {
    fn now(&self) -> u64 {
        NOW
    }
}

impl Fragments for World {
    fn datagram(&self, _: &Tuple) -> Option<Datagram> {
        None
    }

    fn publish(&self, _: &Tuple, _: &Datagram) {}
}

impl Flows for World {
    fn with_flow<R>(
        &self,
        table: FlowTable,
        key: &Tuple,
        f: impl FnOnce(&mut PodFlow) -> R,
    ) -> Option<R> {
        let mut flows = self.flows[table as usize].borrow_mut();
        let known = flows.get_mut(key);
        known.filter(|known| known.is_for(key)).map(f)
    }

    fn insert_flow(&self, table: FlowTable, key: &Tuple, flow: &PodFlow) -> Inserted {
        match self.flows[table as usize].borrow_mut().entry(*key) {
            Entry::Occupied(_) => Inserted::Exists,
            Entry::Vacant(_) if self.is_full.get() => Inserted::Full,
            Entry::Vacant(place) => {
                place.insert(*flow);
                Inserted::Done
            }
        }
    }

    fn remove_flow(&self, table: FlowTable, key: &Tuple) {
        self.flows[table as usize].borrow_mut().remove(key);
    }
}

impl Counters for World {
    fn count_reason(&self, index: u32) {
        self.reasons.borrow_mut()[index as usize] += 1;
    }

    fn count_forward(&self, _: u32, _: u32, _: u64) {}
}
