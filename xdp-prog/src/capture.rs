//! Captures: the layouts and names that programs and user space share, and the filter.
//!
//! While no capture runs, the slot [`Slot::Around`] of `CAPTURE` is empty, and the edge's plain path pays only for a
//! tail call that fails. While one runs, its program surrounds the others:
//!
//! ```text
//! guideway -> guideway_capture: filter, copy
//!                                 guideway_capture_edge, which is guideway again -> stages
//!                               copy, reasons, event
//! ```
//!
//! An event's outcome is the set of reason counters that the frame moved on its CPU. A frame that moved none was
//! forwarded.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    abi::{AddressKey, Tag},
    family::Family,
    frame::Frame,
    parse,
    reason::REASON_COUNT,
    wire::{ethernet, icmp::Icmp, ipv4::Ipv4, ipv6::Ipv6, protocol, transport::Ports},
};

/// An entry of `CAPTURE`, an array of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Slot {
    /// The program that runs first; empty while no capture runs.
    Around = 0,
    /// The copy of the edge's program that the first one calls; never empty.
    Edge = 1,
}

impl Slot {
    /// Number of entries in `CAPTURE`.
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

/// Most bytes of a frame that an event keeps; a power of two.
pub const SNAP_MAX: u32 = 2048;
/// Bytes for two copies of a frame.
pub const COPIES: usize = 2 * SNAP_MAX as usize;
/// Size of `EVENTS` in bytes.
pub const RING: usize = 2 << 20;
/// Most interfaces to which a capture can be confined.
pub const INTERFACES: usize = 16;
/// Most IP headers of a frame that the filter reads: the outer one, the inner one, and the one that an ICMP error
/// quotes.
const LAYERS: usize = 3;
/// Mask of a layer's offset in the frame, which bounds how far the filter looks.
const OFFSETS: u64 = 0x1ff;
/// Flag of a layer's place: its header is IPv6.
const IS_V6: u64 = OFFSETS + 1;

/// A capture's settings.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Settings {
    /// Monotonic time in ns at which the capture ends. Its owner keeps moving it ahead.
    pub until_ns: u64,
    /// The frames that are wanted.
    pub filter: Filter,
    /// The outcomes that are wanted.
    pub outcomes: Outcomes,
    /// Captures one frame in this many, chosen at random.
    pub sample: u32,
    /// Bytes kept of each frame, up to [`SNAP_MAX`].
    pub snap: u32,
    /// Id of the process that captures; 0 while none does.
    pub owner: u32,
    /// Number of valid entries in `interfaces`; 0 captures on all interfaces.
    pub interface_count: u32,
    /// Ingress interfaces that are captured.
    pub interfaces: [u32; INTERFACES],
}

/// A set of outcomes: reasons by index, and forwards, which are counted under no reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Outcomes {
    /// One bit for each reason.
    pub reasons: Reasons,
    /// Not 0 if forwarded frames belong to the set.
    pub forwarded: u64,
}

impl Outcomes {
    /// Every outcome.
    pub const ALL: Self = Self {
        reasons: Reasons([u64::MAX; 2]),
        forwarded: 1,
    };
    /// No outcome.
    pub const NONE: Self = Self {
        reasons: Reasons([0; 2]),
        forwarded: 0,
    };

    /// Tells whether a frame that was counted under `counted` belongs to the set.
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

/// A set of reasons, one bit for each index.
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

/// A captured frame. The `before_copied` and then the `after_copied` bytes of the frame follow it in `EVENTS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// Monotonic time before the program, in ns.
    pub before_ns: u64,
    /// Monotonic time after it.
    pub after_ns: u64,
    /// Reasons that the program counted for the frame.
    pub reasons: Reasons,
    /// Ingress device.
    pub ifindex: u32,
    /// `XDP_*` code that the program returned.
    pub action: u32,
    /// Length of the frame in bytes as it came in.
    pub before_length: u32,
    /// Bytes copied of the frame as it came in.
    pub before_copied: u32,
    /// Length of the frame in bytes as it goes on; 0 if it ends here.
    pub after_length: u32,
    /// Bytes copied of the frame as it goes on; 0 if it ends here.
    pub after_copied: u32,
}

/// One CPU's scratch space, from before the program until after it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Copies {
    /// The event.
    pub event: Event,
    /// The copy of the frame as it came in, directly followed by the copy as it goes on.
    pub bytes: [u8; COPIES],
    /// The counters of reasons before the program.
    pub counters: [u64; REASON_COUNT],
    /// Not 0 while the current frame is captured.
    pub armed: u64,
    /// Place of the filter's next layer: its offset in the frame, and a flag for IPv6.
    pub place: u64,
}

/// A filter of frames. A frame matches if one of its IP packets meets every condition that is set.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Filter {
    /// Source or destination must lie in each of these.
    pub networks: [Network; 2],
    /// Source or destination port must be each of these, in wire order; zero permits any port.
    pub ports: [[u8; 2]; 2],
    /// The protocol must be one of these; zero in the first permits any protocol.
    pub protocols: [u8; 2],
    /// The first byte is not 0 if any condition is set.
    pub is_set: [u8; 2],
}

/// A prefix of addresses. The default contains every address.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Network {
    address: [u64; 2],
    mask: [u64; 2],
}

impl Network {
    /// Builds a network. `length` counts the prefix bits of the IPv6 form: an IPv4 prefix is 96 bits longer.
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

/// One of a frame's nested IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Source address.
    pub source: AddressKey,
    /// Destination address.
    pub destination: AddressKey,
    /// Protocol number of the payload.
    pub protocol: u8,
    /// Source port; 0 if there is none or it cannot be read.
    pub source_port: u16,
    /// Destination port; 0 as above.
    pub destination_port: u16,
    /// The pod's tag, if this is an outer header.
    pub tag: Tag,
    /// Family and offset of the packet that this one carries or quotes.
    inner: Option<(Family, usize)>,
}

/// Lists a frame's nested IP packets, the outermost first.
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
    /// Tells whether a frame is wanted. A frame that cannot be read is not.
    ///
    /// `relay` must return its argument, and hide it from the verifier. The verifier then checks each layer once, and
    /// not once for each path that leads to it.
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

/// Adds the ports, or the place of the packet that lies behind the IP header.
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

/// Tells whether an ICMP message has one of the types that quote a packet.
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
