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
//!
//! On a whole edge ([`crate::whole_edge`]) the slot stays empty. Its threads obey the same settings, and their events look the
//! same.

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

impl Settings {
    /// Tells whether frames are captured that come in by this device.
    #[inline(always)]
    pub fn holds_device(&self, ingress: u32) -> bool {
        self.interface_count == 0 || self.interfaces.contains(&ingress)
    }
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
mod tests;
