//! What captures share with user space: layouts, names, and the filter.
//!
//! While nobody captures, the slot [`Slot::Around`] of `CAPTURE` is empty, and all that the edge's plain
//! path pays is a tail call that goes nowhere. While somebody does, its program runs the others:
//!
//! ```text
//! guideway -> guideway_capture: filter, copy
//!                                 guideway_capture_edge, which is guideway again -> stages
//!                               copy, reasons, event
//! ```
//!
//! What was decided is read from the counters of reasons: those that a frame moved on its CPU. A frame
//! that moved none was forwarded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    abi::{AddressKey, Tag},
    family::Family,
    frame::Frame,
    parse,
    reason::REASON_COUNT,
    wire::{ethernet, icmp::Icmp, ipv4::Ipv4, ipv6::Ipv6, protocol, transport::Ports},
};

/// A place in `CAPTURE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Slot {
    /// What the program gives way to; empty while nobody captures.
    Around = 0,
    /// What goes on in the program's place; never empty.
    Edge = 1,
}

impl Slot {
    /// Length of `CAPTURE`.
    pub const COUNT: usize = 2;

    /// Returns the index in `CAPTURE`.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// Returns the name of the slot's program in the object.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Around => "guideway_capture",
            Self::Edge => "guideway_capture_edge",
        }
    }
}

/// Most bytes of a frame that are kept; a power of two.
pub const SNAP_MAX: u32 = 2048;
/// Room for two copies of a frame.
pub const COPIES: usize = 2 * SNAP_MAX as usize;
/// Size of `EVENTS` in bytes.
pub const RING: usize = 2 << 20;
/// Most interfaces that a capture can be confined to.
pub const INTERFACES: usize = 16;
/// IP headers that the filter looks at: the outer one, the inner one, the one that an ICMP error quotes.
const LAYERS: usize = 3;
/// How far into a frame the filter follows layers.
const OFFSETS: u64 = 0x1ff;
/// Marks a layer's place as that of an IPv6 header.
const IS_V6: u64 = OFFSETS + 1;

/// What is captured.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Settings {
    /// Monotonic time at which the capture is over, in ns: its owner puts it off again and again.
    pub until_ns: u64,
    /// Which frames.
    pub filter: Filter,
    /// The outcomes that are wanted.
    pub outcomes: Outcomes,
    /// One frame out of so many, chosen at random.
    pub sample: u32,
    /// Bytes kept of each frame, up to [`SNAP_MAX`].
    pub snap: u32,
    /// Process that captures; 0 for none.
    pub owner: u32,
    /// How many of `interfaces` count; 0 for all there are.
    pub interface_count: u32,
    /// Ingress interfaces.
    pub interfaces: [u32; INTERFACES],
}

/// A set of outcomes: reasons by index, or none of them, which is a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Outcomes {
    /// One bit for each reason.
    pub reasons: Reasons,
    /// Not 0 if frames that were counted under no reason belong to the set.
    pub forwarded: u64,
}

impl Outcomes {
    /// Every outcome.
    pub const ALL: Self = Self {
        reasons: Reasons([u64::MAX; 2]),
        forwarded: 1,
    };
    /// None.
    pub const NONE: Self = Self {
        reasons: Reasons([0; 2]),
        forwarded: 0,
    };

    /// Tells whether a frame that was counted under these reasons belongs to the set.
    #[inline(always)]
    pub const fn holds(&self, counted: Reasons) -> bool {
        let ([a, b], [c, d]) = (self.reasons.0, counted.0);
        if c | d == 0 {
            self.forwarded != 0
        } else {
            (a & c) | (b & d) != 0
        }
    }
}

/// A set of reasons by their index.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Reasons(pub [u64; 2]);

const _: () = assert!(REASON_COUNT <= 128, "every reason has its bit");

impl Reasons {
    /// Adds a reason.
    #[inline(always)]
    pub const fn insert(&mut self, index: u32) {
        let bit = 1 << (index % 64);
        if index < 64 {
            self.0[0] |= bit;
        } else {
            self.0[1] |= bit;
        }
    }

    /// Tells whether a reason belongs to the set.
    pub const fn holds(self, index: u32) -> bool {
        let [low, high] = self.0;
        let word = if index < 64 { low } else { high };
        word >> (index % 64) & 1 != 0
    }
}

/// One captured frame; as many bytes as `before_copied` and `after_copied` say follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// Monotonic time before the program, in ns.
    pub before_ns: u64,
    /// Monotonic time after it.
    pub after_ns: u64,
    /// What the program counted.
    pub reasons: Reasons,
    /// The device that the frame came in on.
    pub ifindex: u32,
    /// The `XDP_*` code that the program returned.
    pub action: u32,
    /// Length of the frame as it came in.
    pub before_length: u32,
    /// Bytes of it that were copied.
    pub before_copied: u32,
    /// Length of the frame as it goes on.
    pub after_length: u32,
    /// Bytes of it that were copied; none of a frame that ends here.
    pub after_copied: u32,
}

/// Scratch of one CPU from before the program until after it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Copies {
    /// The event.
    pub event: Event,
    /// The copy made before, and right behind it the one made after.
    pub bytes: [u8; COPIES],
    /// The counters of reasons before the program.
    pub counters: [u64; REASON_COUNT],
    /// Not 0 while the frame under way is to be captured.
    pub armed: u64,
    /// Where the filter's next layer lies.
    pub place: u64,
}

/// Which frames are wanted: all that is set must hold, within one of a frame's IP packets.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Filter {
    /// Source or destination lies in each of these.
    pub networks: [Network; 2],
    /// Source or destination port is each of these, unless it is zero.
    pub ports: [[u8; 2]; 2],
    /// The protocol is one of these, unless both are zero.
    pub protocols: [u8; 2],
    /// Not 0 if something is set.
    pub is_set: [u8; 2],
}

/// A prefix of addresses; the default holds all.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Network {
    address: [u64; 2],
    mask: [u64; 2],
}

impl Network {
    /// Builds a network; the length counts the bits of the address as an IPv6 one.
    #[must_use]
    pub const fn new(address: AddressKey, length: u32) -> Self {
        let mask = match length {
            0 => 0,
            1..128 => u128::MAX << (128 - length),
            _ => u128::MAX,
        };
        let mask = AddressKey::v6(mask.to_be_bytes()).words();
        let address = address.words();
        Self {
            address: [address[0] & mask[0], address[1] & mask[1]],
            mask,
        }
    }

    #[inline(always)]
    fn holds(&self, address: AddressKey) -> bool {
        let [high, low] = address.words();
        high & self.mask[0] == self.address[0] && low & self.mask[1] == self.address[1]
    }
}

/// One IP packet of those that lie within each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Source address.
    pub source: AddressKey,
    /// Destination address.
    pub destination: AddressKey,
    /// Protocol of what it carries.
    pub protocol: u8,
    /// Source port; 0 where it has none or cannot be read.
    pub source_port: u16,
    /// Destination port, likewise.
    pub destination_port: u16,
    /// What an outer header would say of the pod.
    pub tag: Tag,
    /// The packet that it carries or quotes: its family, and where it begins.
    inner: Option<(Family, usize)>,
}

/// Lists the IP packets that lie within each other, from the outermost on.
#[cfg(not(target_arch = "bpf"))]
pub fn layers<F: Frame>(frame: &F) -> impl Iterator<Item = Layer> {
    let first = parse::link(frame)
        .ok()
        .and_then(|link| match link.ether_type {
            ethernet::IPV4 => read_v4(frame, link.l3),
            ethernet::IPV6 => read_v6(frame, link.l3),
            _ => None,
        });
    let next = |layer: &Layer| match layer.inner? {
        (Family::V4, l3) => read_v4(frame, l3),
        (Family::V6, l3) => read_v6(frame, l3),
    };
    core::iter::successors(first, next).take(LAYERS)
}

impl Filter {
    /// Tells whether a frame is wanted. What cannot be read is not.
    ///
    /// Each layer's place goes through `relay`, which returns what it is given by a way that the verifier
    /// does not see through: it follows a layer once, and not once for each way that leads there.
    #[inline(always)]
    pub fn matches<F: Frame>(&self, frame: &F, mut relay: impl FnMut(u64) -> u64) -> bool {
        if self.is_set[0] == 0 {
            return true;
        }
        let Ok(link) = parse::link(frame) else {
            return false;
        };
        let mut place = match link.ether_type {
            ethernet::IPV4 => link.l3 as u64,
            ethernet::IPV6 => link.l3 as u64 | IS_V6,
            _ => return false,
        };
        for _ in 0..LAYERS {
            place = relay(place);
            let l3 = (place & OFFSETS) as usize;
            let layer = if place & IS_V6 == 0 {
                read_v4(frame, l3)
            } else {
                read_v6(frame, l3)
            };
            let Some(layer) = layer else {
                return false;
            };
            if self.wants(&layer) {
                return true;
            }
            place = match layer.inner {
                Some((Family::V4, l3)) => l3 as u64,
                Some((Family::V6, l3)) => l3 as u64 | IS_V6,
                None => return false,
            };
        }
        false
    }

    #[inline(always)]
    fn wants(&self, layer: &Layer) -> bool {
        let [a, b] = &self.networks;
        let [first, second] = self.protocols;
        (a.holds(layer.source) || a.holds(layer.destination))
            && (b.holds(layer.source) || b.holds(layer.destination))
            && wants_port(self.ports[0], layer)
            && wants_port(self.ports[1], layer)
            && (first == 0 || layer.protocol == first || layer.protocol == second)
    }
}

#[inline(always)]
const fn wants_port(port: [u8; 2], layer: &Layer) -> bool {
    let port = u16::from_be_bytes(port);
    port == 0 || port == layer.source_port || port == layer.destination_port
}

#[inline(always)]
fn read_v4<F: Frame>(frame: &F, l3: usize) -> Option<Layer> {
    let header: &Ipv4 = frame.view(l3)?;
    let layer = Layer {
        source: AddressKey::v4(header.source()),
        destination: AddressKey::v4(header.destination()),
        protocol: header.protocol,
        source_port: 0,
        destination_port: 0,
        tag: Tag(u16::from_be_bytes(header.identification)),
        inner: None,
    };
    if header.fragment_offset() != 0 {
        return Some(layer);
    }
    let l4 = l3 + header.header_length();
    Some(match header.protocol {
        protocol::ICMP if quotes(frame, l4, &[3, 5, 11, 12]) => Layer {
            inner: Some((Family::V4, l4 + Icmp::LENGTH)),
            ..layer
        },
        _ => within(frame, layer, l4),
    })
}

#[inline(always)]
fn read_v6<F: Frame>(frame: &F, l3: usize) -> Option<Layer> {
    let header: &Ipv6 = frame.view(l3)?;
    let Ok(end) = parse::follow_extensions(frame, header.next_header, l3 + Ipv6::LENGTH) else {
        return None;
    };
    let layer = Layer {
        source: AddressKey::v6(header.source),
        destination: AddressKey::v6(header.destination),
        protocol: end.protocol,
        source_port: 0,
        destination_port: 0,
        tag: Tag(header.label_tag()),
        inner: None,
    };
    if end.piece.offset != 0 {
        return Some(layer);
    }
    Some(match end.protocol {
        protocol::ICMPV6 if quotes(frame, end.l4, &[1, 2, 3, 4]) => Layer {
            inner: Some((Family::V6, end.l4 + Icmp::LENGTH)),
            ..layer
        },
        _ => within(frame, layer, end.l4),
    })
}

/// Adds what lies behind the IP header.
#[inline(always)]
fn within<F: Frame>(frame: &F, mut layer: Layer, l4: usize) -> Layer {
    match layer.protocol {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            if let Some(ports) = frame.view::<Ports>(l4) {
                layer.source_port = u16::from_be_bytes(ports.source);
                layer.destination_port = u16::from_be_bytes(ports.destination);
            }
        }
        protocol::IPV4 => layer.inner = Some((Family::V4, l4)),
        protocol::IPV6 => layer.inner = Some((Family::V6, l4)),
        _ => {}
    }
    layer
}

/// Tells whether an ICMP message is of a kind that quotes a packet.
#[inline(always)]
fn quotes<F: Frame>(frame: &F, l4: usize, kinds: &[u8; 4]) -> bool {
    let [a, b, c, d] = *kinds;
    match frame.view::<Icmp>(l4) {
        Some(header) => {
            let kind = header.kind;
            kind == a || kind == b || kind == c || kind == d
        }
        None => false,
    }
}

crate::abi::plain_data! {
    Settings: 184,
    Outcomes: 24,
    Reasons: 16,
    Event: 56,
    Filter: 72,
    Network: 32,
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use alloc::vec::Vec;

    use zerocopy::IntoBytes;

    use super::*;
    use crate::{
        frame::HostFrame,
        wire::{
            ethernet::{Ethernet, VlanTag},
            transport::Udp,
        },
    };

    const CLIENT: [u8; 4] = [198, 51, 100, 7];
    const VIP: [u8; 4] = [192, 0, 2, 1];
    const EDGE: [u8; 4] = [10, 0, 0, 1];
    const NODE: [u8; 4] = [10, 0, 0, 2];

    fn frame(ether_type: [u8; 2], packet: &[u8]) -> Vec<u8> {
        let header = Ethernet {
            macs: [2; 12],
            ether_type,
        };
        [header.as_bytes(), packet].concat()
    }

    fn v4(source: [u8; 4], destination: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
        let header = Ipv4 {
            version_ihl: 0x45,
            protocol,
            source,
            destination,
            ..Ipv4::default()
        };
        [header.as_bytes(), payload].concat()
    }

    fn udp() -> Vec<u8> {
        let header = Udp {
            ports: Ports {
                source: 40000_u16.to_be_bytes(),
                destination: 53_u16.to_be_bytes(),
            },
            ..Udp::default()
        };
        header.as_bytes().to_vec()
    }

    fn question() -> Vec<u8> {
        v4(CLIENT, VIP, protocol::UDP, &udp())
    }

    fn error_about(packet: &[u8], kind: u8) -> Vec<u8> {
        let header = Icmp {
            kind,
            ..Icmp::default()
        };
        let payload = [header.as_bytes(), packet].concat();
        v4(NODE, EDGE, protocol::ICMP, &payload)
    }

    fn host(address: [u8; 4]) -> Network {
        Network::new(AddressKey::v4(address), 128)
    }

    fn dns_at_vip() -> Filter {
        Filter {
            networks: [host(VIP), Network::default()],
            ports: [53_u16.to_be_bytes(), [0; 2]],
            protocols: [protocol::UDP; 2],
            is_set: [1, 0],
        }
    }

    fn matches(filter: &Filter, frame: &[u8]) -> bool {
        filter.matches(&HostFrame::new(frame), |word| word)
    }

    #[test]
    fn service_is_found_bare_encapsulated_and_quoted() {
        let filter = dns_at_vip();
        let tunnelled = v4(EDGE, NODE, protocol::IPV4, &question());
        let quoted = error_about(&question(), 3);
        let quoted_tunnel = error_about(&tunnelled, 3);
        for packet in [&question(), &tunnelled, &quoted, &quoted_tunnel] {
            assert!(matches(
                &filter,
                &frame(ethernet::IPV4.to_be_bytes(), packet)
            ));
        }
        let echo = error_about(&question(), 8);
        assert!(
            !matches(&filter, &frame(ethernet::IPV4.to_be_bytes(), &echo)),
            "no error"
        );
    }

    #[test]
    fn all_that_is_set_must_hold_of_one_packet() {
        let mut filter = dns_at_vip();
        let bare = frame(ethernet::IPV4.to_be_bytes(), &question());
        filter.networks[1] = host(CLIENT);
        filter.ports[1] = 40000_u16.to_be_bytes();
        assert!(matches(&filter, &bare));
        filter.networks[1] = host(EDGE);
        assert!(!matches(&filter, &bare));
        let tunnelled = v4(EDGE, NODE, protocol::IPV4, &question());
        assert!(
            !matches(&filter, &frame(ethernet::IPV4.to_be_bytes(), &tunnelled)),
            "the edge's address is another packet's"
        );
        filter.networks[1] = Network::new(AddressKey::v4([198, 51, 0, 0]), 96 + 16);
        assert!(matches(&filter, &bare));
        filter.protocols = [protocol::TCP; 2];
        assert!(!matches(&filter, &bare));
    }

    #[test]
    fn vlan_tags_are_followed_and_what_is_cut_is_not_wanted() {
        let tag = VlanTag {
            control: [0, 7],
            ether_type: ethernet::IPV4.to_be_bytes(),
        };
        let tagged = [tag.as_bytes(), &question()].concat();
        let tagged = frame(ethernet::VLAN.to_be_bytes(), &tagged);
        assert!(matches(&dns_at_vip(), &tagged));
        for length in 0..tagged.len() - Udp::LENGTH + size_of::<Ports>() {
            assert!(!matches(&dns_at_vip(), &tagged[..length]), "{length}");
        }
    }

    #[test]
    fn nothing_set_wants_what_is_no_ip() {
        assert!(matches(&Filter::default(), &frame([8, 6], &[])));
        assert!(!matches(&dns_at_vip(), &frame([8, 6], &question())));
    }

    #[test]
    fn later_fragments_have_no_ports() {
        let mut packet = question();
        packet[7] = 1;
        let later = frame(ethernet::IPV4.to_be_bytes(), &packet);
        assert!(!matches(&dns_at_vip(), &later));
        let any_port = Filter {
            ports: [[0; 2]; 2],
            ..dns_at_vip()
        };
        assert!(matches(&any_port, &later));
    }

    #[test]
    fn frames_without_a_reason_are_forwarded_ones() {
        let mut counted = Reasons::default();
        let wanted = Outcomes {
            forwarded: 1,
            ..Outcomes::NONE
        };
        assert!(wanted.holds(counted) && Outcomes::ALL.holds(counted));
        assert!(!Outcomes::NONE.holds(counted));
        counted.insert(70);
        assert!(!wanted.holds(counted) && Outcomes::ALL.holds(counted));
        assert!(counted.holds(70) && !counted.holds(6));
        let wanted = Outcomes {
            reasons: counted,
            forwarded: 0,
        };
        assert!(wanted.holds(counted));
        assert!(!wanted.holds(Reasons::default()));
    }
}
